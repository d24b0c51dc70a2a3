"""What limits a tiny vision-language model in Points24: reading, arithmetic, or search?

    python benchmarks/points24.py limits --model bundled-cards RUN/checkpoints/best-… [--deals 300]
    python benchmarks/points24.py chance

- `limits`: each model plans held-out deals, which can be won and of whose hands no demonstration and no training deal
  was made. Of its first replies, sampled as in the recipe's evaluation: are the cards read; are the steps of attempts
  right, and if not, what was wrong first (a number that was not there, the result, what is left, the form); how often
  does an attempt make 24; how many plans end with one that does; and does their formula say the same.
- `chance`: what attempts at random, without a mistake, make of the same hands, exactly; and with the best choice among
  the last two numbers, or the last three. Of ten attempts no two begin alike.

Results go to benchmarks/results/points24.json.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement
from math import comb, factorial, prod
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from asking import asked, replies
from running import keep, kept, loaded, sized
from sightline.agents.resolving import game_maker, played_game
from sightline.agents.types import same_text
from sightline.config.loading import for_agent
from sightline.evaluation.seeds import make_panel
from sightline.evaluation.statistics import wilson
from sightline_tasks.games.formulas import solvable, value
from sightline_tasks.games.number_search import Numbers, is_plain, pairings
from sightline_tasks.games.points24 import MOST_ATTEMPTS, is_held_out

FILE = "points24.json"
GOAL = Fraction(24)
STEP = re.compile(r"(\d+|\([\d/]+\)) ([-+*/]) (\d+|\([\d/]+\)) = ([\d/]+)(?: -> ([\d/ ]+))?$")


def what_is_wrong(step: str, left: list[Fraction]) -> str:
    """The first mistake of a step, or ""; takes its numbers from those that are left."""
    found = STEP.match(step)
    if found is None:
        return "form"
    try:
        one, other, made = (Fraction(found[i].strip("()")) for i in (1, 3, 4))
        rest = [Fraction(number) for number in (found[5] or found[4]).split()]
        true = {"+": one + other, "-": one - other, "*": one * other}.get(found[2])
        true = one / other if true is None else true
    except (ValueError, ZeroDivisionError):
        return "form"
    for number in (one, other):
        if number not in left:
            return "numbers"
        left.remove(number)
    if made != true:
        return "result"
    left.append(made)
    return "" if rest == left else "rest"


def judged(plan: str, hand: Sequence[int]) -> Counter[str]:
    """Counts of a plan: attempts, steps, mistakes by kind, and whether it ends as it should."""
    *attempts, formula = plan.split("; ")
    counts: Counter[str] = Counter()
    for attempt in attempts:
        counts["attempts"] += 1
        left = list(map(Fraction, hand))
        first, *steps = attempt.split(": ")
        wrong = "" if first == " ".join(map(str, left)) else "numbers"
        for step in steps:
            if wrong:
                break
            counts["steps"] += 1
            wrong = what_is_wrong(step, left)
        if not wrong and len(left) > 1:  # it breaks off
            wrong = "form"
        counts[f"wrong {wrong}"] += bool(wrong)
        counts["faultless"] += not wrong
        if not wrong and left == [GOAL]:
            counts["makes 24"] += 1
    if counts["makes 24"]:
        counts["found"] = 1
        numbers = sorted(int(number) for number in re.findall(r"\d+", formula))
        counts["formula"] = int(value(formula) == GOAL and numbers == sorted(hand))
    return counts


def limits(model: str, deals: int) -> dict[str, Any]:
    """Counts of a model's plans for held-out deals, over all of them."""
    recipe = for_agent(loaded("points24"))
    panel, game = make_panel("limits", played_game(recipe), deals), game_maker(recipe)()
    inner: Any = game.unwrapped
    hands, shown, conversations = [], [], []
    for seed in panel.seeds:
        observation, info = game.reset(seed=seed)
        hands.append(list(inner.numbers))
        shown.append(info["facts"]["cards"])
        conversations.append(asked(inner, observation, recipe))
    keys = [(seed,) for seed in panel.seeds]
    said = replies(model, inner, conversations, keys, recipe, recipe.evaluation.temperature)
    counts: Counter[str] = Counter(deals=deals)
    for hand, cards, (reply, ended) in zip(hands, shown, said, strict=True):
        counts["read"] += same_text(reply.stated.get("cards", ""), cards)
        counts["ended"] += ended
        counts += judged(reply.thoughts, hand)
    return {"model": model, "panel": str(panel)} | dict(counts)


def line(found: dict[str, Any]) -> str:
    """What counts say, in words."""
    counts = Counter(found)

    def share(part: str, whole: str) -> str:
        low, high = wilson(counts[part], counts[whole])
        return f"{100 * counts[part] / max(counts[whole], 1):.0f} [{100 * low:.0f}, {100 * high:.0f}] % of {whole}"

    wrong = ", ".join(f"{kind} {share(f'wrong {kind}', 'attempts')}" for kind in ("form", "numbers", "result", "rest"))
    return (
        f"{found['model']}: cards read {share('read', 'deals')}; replies ended {share('ended', 'deals')}; "
        f"faultless {share('faultless', 'attempts')} (first wrong: {wrong}); "
        f"24 made {share('makes 24', 'attempts')}; found {share('found', 'deals')}; "
        f"formula right {share('formula', 'found')}"
    )


def chance() -> dict[str, dict[str, float]]:
    """Share of held-out deals that attempts at random solve, exactly: one attempt, and any of ten."""
    weights, hands = [], []
    for hand in combinations_with_replacement(range(1, 11), 4):
        if solvable(hand, 24) and is_held_out(hand):
            orders = factorial(4) // prod(map(factorial, Counter(hand).values()))
            weights.append(orders * prod(4 if number == 10 else 1 for number in hand))
            hands.append(tuple(map(Fraction, hand)))
    hands = hands[: sized(None, 5)]
    weights = weights[: sized(None, 5)]
    found = {}
    for name, knows in (("at random", 1), ("best of the last two numbers", 2), ("best of the last three", 3)):
        begun = [odds_of_beginnings(hand, knows) for hand in hands]
        found[name] = {
            "one": float(np.average([np.mean(odds) for odds in begun], weights=weights)),
            "any": float(np.average([odds_of_any(odds, MOST_ATTEMPTS) for odds in begun], weights=weights)),
        }
    return found


def odds_of_beginnings(hand: Numbers, knows: int) -> list[float]:
    """For each first step of an attempt, the probability that 24 is made after it.

    The best pairing is chosen from `knows` numbers on, which are fewer than the hand has, others at random.
    """

    @cache
    def odds(numbers: Numbers) -> float:
        if len(numbers) == 1:
            return float(numbers[0] == GOAL)
        after = [odds(left) for left in ways(numbers)]
        return (max(after) if len(numbers) <= knows else sum(after) / len(after)) if after else 0.0

    def ways(numbers: Numbers) -> list[Numbers]:
        return [tuple(sorted(left)) for made, left in pairings(numbers) if is_plain(made.value)]

    return [odds(left) for left in ways(hand)]


def odds_of_any(odds: Sequence[float], attempts: int) -> float:
    """Probability that one of some attempts succeeds, no two of which begin alike."""
    drawn = min(attempts, len(odds))
    # sums over all sets of beginnings of one size of the probability that they fail, size by size
    fails = np.zeros(drawn + 1)
    fails[0] = 1.0
    for one in odds:
        fails[1:] += (1.0 - one) * fails[:-1]
    return float(1.0 - fails[drawn] / comb(len(odds), drawn))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["limits", "chance"])
    parser.add_argument("--model", nargs="+", default=["bundled-cards"], help="names or folders, for limits")
    parser.add_argument("--deals", type=int, default=sized(300, 2))
    given = parser.parse_args()
    if "chance" in given.parts:
        keep(FILE, "chance", found := chance())
        for name, shares in found.items():
            print(f"{name}: {100 * shares['one']:.1f} %, any of {MOST_ATTEMPTS} {100 * shares['any']:.1f} %")
    if "limits" in given.parts:
        for model in given.model:
            counts = limits(model, given.deals)
            keep(FILE, "limits", kept(FILE, "limits") | {model: counts})
            print(line(counts), flush=True)


if __name__ == "__main__":
    main()
