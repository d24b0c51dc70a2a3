"""What has a vision-language model learned to do in Blackjack, hand by hand, and how often does it win exactly?

    python benchmarks/blackjack.py --model RUN/checkpoints/best-… [--pictures 3]

Of each hand (total, soft or not) and each of the dealer's cards the model is shown some pictures, of different cards
of that value, and replies greedily. The shares of hits among its replies are a policy that chooses at random; exact
dynamic programming over an infinite deck says how often this policy wins, without the luck of games, which in 10 000
of them is worth a percent either way. What is assumed is that it replies alike to all hands of a value, whatever their
cards.

Printed is where the majority hits (H) and stands (s), with ! where the other action wins more often.

Results go to benchmarks/results/blackjack.json.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from blackjack_rules import odds_of, odds_of_shares
from running import keep, kept
from sightline.agents.building import game_maker
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.types import same_text
from sightline.config.loading import for_agent, load_recipe
from sightline.envs.games.blackjack import HIT, Hand, as_dealer, hand_of, most_wins
from sightline.envs.games.cards import RANKS, Card, any_suit
from sightline.images import Picture
from sightline.models.vlm.model import load_vlm
from sightline.models.vlm.types import ChatTurn

FILE = "blackjack.json"
HANDS = [*(Hand(total, False) for total in range(21, 3, -1)), *(Hand(total, True) for total in range(21, 11, -1))]
"""All that a player may hold who is not over 21."""
Spot = tuple[Hand, int]
"""The player's hand and the number of the dealer's card."""


def dealt(pictures: int, chance: np.random.Generator) -> list[tuple[Spot, list[Card], list[Card]]]:
    """For each hand and each of the dealer's cards: the player's and the dealer's cards, `pictures` times.

    Cards are taken at random until a hand of each value has come up often enough, so hands of a value are met about as
    often as in play: mostly of two and three cards.
    """
    hands: dict[Hand, list[list[Card]]] = defaultdict(list)
    while len(hands) < len(HANDS) or min(map(len, hands.values())) < 10 * pictures:
        cards = [any_suit(RANKS[chance.integers(13)], chance) for _ in range(2)]
        while hand_of(cards).total <= 21:
            hands[hand_of(cards)].append([*cards])
            cards.append(any_suit(RANKS[chance.integers(13)], chance))
    ranks = {number: [rank for rank in RANKS if min(RANKS.index(rank) + 1, 10) == number] for number in range(1, 11)}
    found = []
    for hand, ways in sorted(hands.items()):
        for place in range(10 * pictures):
            number = place % 10 + 1
            upcard = any_suit(str(chance.choice(ranks[number])), chance)
            found.append(((hand, number), ways[place], [upcard, any_suit(RANKS[chance.integers(13)], chance)]))
    return found


def shares_of_hits(model: str, pictures: int) -> tuple[dict[Spot, float], float]:
    """Share of greedy replies that hit, and the share of all replies with a fact that is not true."""
    recipe = for_agent(load_recipe("blackjack"))
    game: Any = game_maker(recipe)()
    inner, vlm = game.unwrapped, load_vlm(model, device="cpu")
    game.reset(seed=0)
    spots, facts, conversations = [], [], []
    for spot, inner.player, inner.dealer in dealt(pictures, np.random.default_rng(0)):
        observation = inner._observation()
        spots.append(spot)
        facts.append(inner.facts())
        text = prompt_text(observation.text, recipe.replies, inner.asked, inner.action_names)
        conversations.append([ChatTurn(text, tuple(map(Picture, observation.images)))])
    sampler, said = PolicySampler(vlm, 0.0, recipe.replies.max_tokens), []
    for start in range(0, len(spots), 256):
        some = conversations[start : start + 256]
        said += sampler.generate(some, [()] * len(some))
    hits: dict[Spot, list[bool]] = defaultdict(list)
    wrong = 0
    for spot, true, completion in zip(spots, facts, said, strict=True):
        reply = read_reply(completion.sample.text, recipe.replies, inner.action_names, inner.asked)
        wrong += any(not same_text(reply.stated.get(name, ""), value) for name, value in true.items())
        hits[spot].append(reply.action == HIT)
    return {spot: float(np.mean(found)) for spot, found in hits.items()}, wrong / len(spots)


def share_of(shares: Mapping[Spot, float], hand: Hand, dealer: int) -> float:
    """The share of hits with this hand beside this card."""
    return shares[hand, dealer]


def table(shares: Mapping[Spot, float]) -> str:
    """The majority's action for each hand (rows) and each of the dealer's cards (columns), ! where it is not best."""
    lines = ["hand       A  2  3  4  5  6  7  8  9  10"]
    for hand in HANDS:
        hits = [shares[hand, number] > 0.5 for number in range(1, 11)]
        best = [most_wins(hand, number) == HIT for number in range(1, 11)]
        cells = [("H" if hit else "s") + (" " if hit == known else "!") for hit, known in zip(hits, best, strict=True)]
        lines.append(f"{'soft' if hand.soft else 'hard'} {hand.total:2d}    {' '.join(cells)}".rstrip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True, help="names or folders")
    parser.add_argument("--pictures", type=int, default=3, help="of each hand beside each of the dealer's cards")
    given = parser.parse_args()
    for model in given.model:
        shares, wrong = shares_of_hits(model, given.pictures)
        found: dict[str, Any] = {"pictures": len(shares) * given.pictures, "misread": wrong}
        found["wins"] = odds_of_shares(partial(share_of, shares)).win
        keep(FILE, "policies", kept(FILE, "policies") | {model: found})
        print(table(shares))
        print(
            f"{model}: wins {100 * found['wins']:.2f} % exactly (hit below 17: {100 * odds_of(as_dealer).win:.2f}, "
            f"best: {100 * odds_of(most_wins).win:.2f}); a fact is wrong in {100 * wrong:.1f} % of "
            f"{found['pictures']} replies",
            flush=True,
        )


if __name__ == "__main__":
    main()
