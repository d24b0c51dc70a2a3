"""Blocks of a run's page about an agent: whether it looks at the pictures, kinds of episodes, an episode to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.reports.pages import block, decimal, interval, percent, whole
from sightline.reports.trajectories_page import PAGE, RecordedSet, picture_url, recorded_sets

MAX_STRIP = 12
"""Maximum number of turns of the episode shown."""
_ROWS = (
    ("untrained", "Before RL, real pictures"),
    ("", "Real pictures"),
    ("blank", "Blank pictures"),
    ("shuffled", "Pictures of other states"),
    ("random", "Random legal actions"),
    ("oracle", "The game's own best play"),
)


@dataclass(frozen=True)
class TableRow:
    """Row of the comparison table, as text; unknown values are empty.

    Attributes:
        main: True for the result itself.
        success, low, high: in percent, for the bar; None if unknown.
    """

    name: str
    main: bool
    success: float | None
    low: float | None
    high: float | None
    won: str
    interval: str
    clean: str
    truthful: str
    returned: str
    return_interval: str
    illegal: str
    unparsable: str
    replaced: str


@dataclass(frozen=True)
class GameKind:
    """Row of the table of kinds of episodes, as text."""

    name: str
    episodes: str
    before: str
    won: str
    clean: str
    share: float


@dataclass(frozen=True)
class Shot:
    """Turn of the strip: its picture as a data URL, or None; the action, and the problem with it."""

    picture: str | None
    action: str
    fault: str


@dataclass(frozen=True)
class Strip:
    """Strip of an episode. `link` leads to it in the page of episodes; `left` turns are not shown."""

    title: str
    link: str
    shots: Sequence[Shot]
    left: int


def comparison_rows(result: Mapping[str, Any]) -> list[TableRow]:
    """Rows of the comparison with other pictures and players that were measured; none for a policy on states."""
    if not any(block(result, key) for key in ("blank", "random", "oracle")):
        return []
    found = [(name, key, block(result, key) if key else result) for key, name in _ROWS]
    return [_row(name, not key, numbers) for name, key, numbers in found if numbers.get("return") is not None]


def _row(name: str, main: bool, numbers: Mapping[str, Any]) -> TableRow:
    success, low, high = (
        None if numbers.get(key) is None else 100 * float(numbers[key]) for key in ("success_rate", "ci_low", "ci_high")
    )
    return TableRow(
        *(name, main, success, low, high),
        won=percent(numbers.get("success_rate")),
        interval=interval(numbers),
        clean=percent(numbers.get("clean")),
        truthful=percent(numbers.get("truthful_replies")),
        returned=decimal(numbers.get("return")),
        return_interval=interval(numbers, "return_", decimal),
        illegal=percent(numbers.get("illegal")),
        unparsable=percent(numbers.get("unparsable")),
        replaced=percent(numbers.get("replaced") or None),
    )


def kind_rows(result: Mapping[str, Any]) -> list[GameKind]:
    """Rows of the game's own kinds of episodes; empty if it has none."""
    before = block(block(result, "untrained"), "kinds")
    return [
        GameKind(
            name or "other",
            whole(numbers.get("episodes")),
            percent(block(before, name).get("success_rate")),
            percent(numbers.get("success_rate")),
            percent(numbers.get("clean")),
            100 * float(numbers.get("clean") or 0.0),
        )
        for name, numbers in block(result, "kinds").items()
        if isinstance(numbers, dict)
    ]


def episode_strip(run: Path) -> Strip | None:
    """Strip of one episode, of the test if one was recorded: the first that was won in several turns."""
    sets, _ = recorded_sets(run)
    played = [one for one in sets if any(episode["turns"] for episode in one.episodes)]
    if not played:
        return None
    tests = [one for one in played if not one.name.startswith("update-")]
    one = tests[0] if tests else played[-1]
    number = _telling(one)
    turns = one.episodes[number]["turns"]
    success = one.episodes[number]["success"]
    ending = ""
    if success is not None:
        ending = ", won" if success else ", lost"
    return Strip(
        f"{one.title}, episode {number + 1}{ending}".capitalize(),
        f"{PAGE}#{one.name}/{number + 1}/",
        [_shot(run, turn) for turn in turns[:MAX_STRIP]],
        max(0, len(turns) - MAX_STRIP),
    )


def _telling(one: RecordedSet) -> int:
    """Index of the episode of a set to show."""
    with_turns = [number for number, episode in enumerate(one.episodes) if episode["turns"]]

    def rank(number: int) -> tuple[bool, bool]:
        episode = one.episodes[number]
        return not episode["success"], not 3 <= len(episode["turns"]) <= MAX_STRIP

    return min(with_turns, key=rank)


def _shot(run: Path, turn: Mapping[str, Any]) -> Shot:
    pictures = turn["pictures"]
    action = turn["action"] if turn["action"] is not None else turn["failure"]
    lied = not all(turn["true"].values())
    fault = "unparsable" if turn["failure"] else "illegal" if not turn["legal"] else "untruthful" if lied else ""
    return Shot(picture_url(run, pictures[0]) if pictures else None, str(action or "none"), fault)
