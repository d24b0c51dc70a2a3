"""What has a vision-language model learned to do in Blackjack, hand by hand, and how often does it win exactly?

    python benchmarks/blackjack.py model --model RUN/checkpoints/best-… [--pictures 3]
    python benchmarks/blackjack.py rules

`model`: of each hand (total, soft or not) and each of the dealer's cards the model is shown some pictures, of different
cards of that value, and replies greedily. The shares of hits among its replies are a policy that chooses at random;
exact dynamic programming over an infinite deck says how often this policy wins, without the luck of games, which in
10 000 of them is worth a percent either way. What is assumed is that it replies alike to all hands of a value, whatever
their cards.

Printed is where the majority hits (H) and stands (s), with ! where the other action wins more often; and what this
majority wins as a rule of its own, exactly and of the 10 000 games of the recipe's test panel.

`rules`: the same of rules that models are compared with, for a panel is kinder to some than to others.

Results go to benchmarks/results/blackjack.json.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from agents import played_by_rule
from asking import asked, replies
from blackjack_rules import from_14, odds_of, odds_of_shares
from running import keep, kept, loaded, sized
from sightline.agents.resolving import game_maker, played_game
from sightline.agents.types import same_text
from sightline.config.loading import for_agent
from sightline.evaluation.seeds import make_panel
from sightline_tasks.games.blackjack import HANDS, HIT, STAND, Hand, Rule, against_a_ten, as_dealer, hand_of, most_wins
from sightline_tasks.games.cards import RANKS, Card, any_suit

FILE = "blackjack.json"
RULES: dict[str, Rule] = {
    "hit below a ten more than the dealer shows": against_a_ten,
    "hit below 17": as_dealer,
    "stand from 14 on": from_14,
    "most wins": most_wins,
}
Spot = tuple[Hand, int]
"""The player's hand and the number of the dealer's card."""


def dealt(pictures: int, chance: np.random.Generator) -> list[tuple[Spot, list[Card], list[Card]]]:
    """For each hand and each of the dealer's cards: the player's and the dealer's cards, `pictures` times.

    Cards are taken at random until a hand of each value has come up often enough, so hands of a value are met about as
    often as in play: mostly of two and three cards.
    """
    hands: dict[Hand, list[list[Card]]] = {hand: [] for hand in HANDS}
    while min(map(len, hands.values())) < 10 * pictures:
        cards = [any_suit(RANKS[chance.integers(13)], chance) for _ in range(2)]
        while hand_of(cards).total <= 21:
            hands[hand_of(cards)].append([*cards])
            cards.append(any_suit(RANKS[chance.integers(13)], chance))
    ranks = {number: [*RANKS[number - 1 : number]] for number in range(1, 10)} | {10: [*RANKS[9:]]}
    found = []
    for hand, ways in sorted(hands.items()):
        for place in range(10 * pictures):
            number = place % 10 + 1
            upcard = any_suit(str(chance.choice(ranks[number])), chance)
            found.append(((hand, number), ways[place], [upcard, any_suit(RANKS[chance.integers(13)], chance)]))
    return found


def shares_of_hits(model: str, pictures: int) -> tuple[dict[Spot, float], float]:
    """Share of greedy replies that hit, and the share of all replies with a fact that is not true."""
    recipe = for_agent(loaded("blackjack"))
    game: Any = game_maker(recipe)()
    inner = game.unwrapped
    game.reset(seed=0)
    spots, facts, conversations = [], [], []
    for spot, player, dealer in dealt(pictures, np.random.default_rng(0)):
        inner.player, inner.dealer = player, dealer
        spots.append(spot)
        facts.append(inner.facts())
        conversations.append(asked(inner, inner._observation(), recipe))
    said = replies(model, inner, conversations, [()] * len(spots), recipe, temperature=0.0)
    hits: dict[Spot, list[bool]] = defaultdict(list)
    wrong = 0
    for spot, true, (reply, _) in zip(spots, facts, said, strict=True):
        wrong += any(not same_text(reply.stated.get(name, ""), value) for name, value in true.items())
        hits[spot].append(reply.action == HIT)
    return {spot: float(np.mean(found)) for spot, found in hits.items()}, wrong / len(spots)


def table(shares: Mapping[Spot, float]) -> str:
    """The majority's action for each hand (rows) and each of the dealer's cards (columns), ! where it is not best."""
    lines = ["hand       A  2  3  4  5  6  7  8  9  10"]
    for hand in HANDS:
        hits = [shares[hand, number] > 0.5 for number in range(1, 11)]
        best = [most_wins(hand, number) == HIT for number in range(1, 11)]
        cells = [("H" if hit else "s") + (" " if hit == known else "!") for hit, known in zip(hits, best, strict=True)]
        lines.append(f"{'soft' if hand.soft else 'hard'} {hand.total:2d}    {' '.join(cells)}".rstrip())
    return "\n".join(lines)


def won(rule: Rule) -> dict[str, float]:
    """How often a rule wins: exactly, and of the games of the recipe's test panel."""
    recipe = for_agent(loaded("blackjack"))
    panel = make_panel("test", played_game(recipe), recipe.evaluation.test_episodes)
    played = played_by_rule(game_maker(recipe)(), panel, lambda game: game.follow(rule))
    return {"exactly": odds_of(rule).win, "panel": played["success_rate"]}


def measured(model: str, pictures: int) -> dict[str, Any]:
    """What a model does and how often that wins, as it plays and by its majority for each spot."""
    shares, misread = shares_of_hits(model, pictures)
    print(table(shares))
    return {
        "pictures": len(shares) * pictures,
        "misread": misread,
        "wins": odds_of_shares(lambda *spot: shares[spot]).win,
        "majority": won(lambda *spot: HIT if shares[spot] > 0.5 else STAND),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["model", "rules"])
    parser.add_argument("--model", nargs="+", default=["bundled-cards"], help="names or folders")
    parser.add_argument(
        "--pictures", type=int, default=sized(3, 1), help="of each hand beside each of the dealer's cards"
    )
    given = parser.parse_args()
    if "rules" in given.parts:
        keep(FILE, "rules", found := {name: won(rule) for name, rule in RULES.items()})
        for name, wins in found.items():
            print(f"{name}: wins {in_words(wins)}")
    if "model" in given.parts:
        for model in given.model:
            numbers = measured(model, given.pictures)
            keep(FILE, "model", kept(FILE, "model") | {model: numbers})
            print(
                f"{model}: wins {100 * numbers['wins']:.2f} % exactly; by its majority {in_words(numbers['majority'])}"
                f"; a fact is wrong in {100 * numbers['misread']:.1f} % of {numbers['pictures']} replies",
                flush=True,
            )


def in_words(wins: dict[str, float]) -> str:
    """What `won` found."""
    return f"{100 * wins['exactly']:.2f} % exactly, {100 * wins['panel']:.2f} % of the test panel"


if __name__ == "__main__":
    main()
