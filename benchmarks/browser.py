"""Which of MiniWoB++'s pages can be played, and how fast? Every claim of docs/results.md about them.

    python benchmarks/browser.py pages turns

- `pages`: every page: does it load, state a task, look the same for the same seed when it is begun twice, and other for
  one of eight others, and take clicks, keys and drags without an error?
- `turns`: turns per second of one page, a click and a screenshot each, resets left out; and milliseconds of a reset.

Numbers go to benchmarks/results/browser.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from running import keep, sized
from sightline.envs.games.miniwob import MiniWoB, _pages

FILE = "browser.json"
TRIED = ("click 80 120", "type a1", "press Tab", "drag 20 90 to 120 180", "scroll down 80 120", "double click 40 100")


def trouble(page: str) -> str:
    """What is wrong with a page, in words; empty if nothing is."""
    game: MiniWoB | None = None
    try:
        game = MiniWoB(page)
        first, again = (game.reset(seed=1)[0] for _ in range(2))
        if first.text != again.text:
            return "the task differs for equal seeds"
        if (first.images[0] != again.images[0]).any():
            return "the picture differs for equal seeds"
        others = (game.reset(seed=seed)[0] for seed in range(2, 10))
        if not any(other.text != first.text or (other.images[0] != first.images[0]).any() for other in others):
            return "all seeds give the same"
        for action in TRIED:
            _, _, over, _, _ = game.step(action)
            if over:
                game.reset(seed=1)
    except Exception as error:
        return " ".join(str(error).split())[:120]
    finally:
        if game is not None:
            game.close()
    return ""


def pages() -> dict[str, Any]:
    """Part `pages`."""
    names = sorted(file.stem for file in (_pages() / "miniwob").glob("*.html"))[:: sized(1, 40)]
    keeping_open = MiniWoB("click-test")  # or every page would start a browser
    found = {}
    for name in names:
        found[name] = trouble(name)
        print(f"{name}: {found[name] or 'works'}", flush=True)
    keeping_open.close()
    works = [name for name, why in found.items() if not why]
    return {"tried": len(found), "work": works, "do not": {name: why for name, why in found.items() if why}}


def turns() -> dict[str, float]:
    """Part `turns`."""
    game, resets, steps = MiniWoB("click-checkboxes"), [], []
    for seed in range(sized(20, 1)):
        began = time.monotonic()
        game.reset(seed=seed)
        resets.append(time.monotonic() - began)
        for _ in range(5):
            began = time.monotonic()
            game.step("click 80 20")
            steps.append(time.monotonic() - began)
    game.close()
    return {"turns/s": 1 / float(np.median(steps)), "reset: ms": 1000 * float(np.median(resets))}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"pages": pages, "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    for part in parser.parse_args().parts:
        numbers = PARTS[part]()
        print(numbers)
        keep(FILE, part, numbers, jobs=1)


if __name__ == "__main__":
    main()
