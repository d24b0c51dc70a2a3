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
MAX_WORDS = 1000
"""Characters of what was told in a turn that are shown, from its beginning."""
_ROWS = (
    ("untrained", "Before RL, real pictures"),
    ("", "Real pictures"),
    ("blank", "Blank pictures"),
    ("shuffled", "Pictures of other states"),
    ("random", "Random legal actions"),
    ("oracle", "The game's own best play"),
)
_ROWS_OF_WORDS = {
    "untrained": "Before RL, real words",
    "": "Real words",
    "blank": "No words of the state",
    "shuffled": "Words of other states",
}
"""Names of rows where the state is told in words."""


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
    """Turn of the strip: its picture as a data URL, or None, and the words in its place; the action, and the problem
    with it."""

    picture: str | None
    words: str
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
    names = dict(_ROWS)
    if result.get("control") == "words":
        names |= _ROWS_OF_WORDS
    rows = []
    for key, name in names.items():
        is_main = key == ""  # the result itself has no block of its own
        numbers = result if is_main else block(result, key)
        if numbers.get("return") is not None:
            rows.append(_row(name, is_main, numbers))
    return rows


def _row(name: str, main: bool, numbers: Mapping[str, Any]) -> TableRow:
    return TableRow(
        name,
        main,
        success=_in_percent(numbers.get("success_rate")),
        low=_in_percent(numbers.get("ci_low")),
        high=_in_percent(numbers.get("ci_high")),
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


def _in_percent(rate: Any) -> float | None:
    return None if rate is None else 100 * float(rate)


def kind_rows(result: Mapping[str, Any]) -> list[GameKind]:
    """Rows of the game's own kinds of episodes; empty if it has none."""
    before_training = block(block(result, "untrained"), "kinds")
    rows = []
    for name, numbers in block(result, "kinds").items():
        if not isinstance(numbers, dict):
            continue
        row = GameKind(
            name or "other",
            episodes=whole(numbers.get("episodes")),
            before=percent(block(before_training, name).get("success_rate")),
            won=percent(numbers.get("success_rate")),
            clean=percent(numbers.get("clean")),
            share=100 * float(numbers.get("clean") or 0.0),
        )
        rows.append(row)
    return rows


def episode_strip(run: Path) -> Strip | None:
    """Strip of one episode, of the test if one was recorded: the first that was won in several turns."""
    sets, _ = recorded_sets(run)
    # An episode may have ended before its first turn; there is nothing to see of it.
    with_turns = [recorded for recorded in sets if any(episode["turns"] for episode in recorded.episodes)]
    if not with_turns:
        return None
    # A test shows the agent that was chosen; without one, the latest update comes nearest to it.
    tests = [recorded for recorded in with_turns if not recorded.name.startswith("update-")]
    recorded = with_turns[-1]
    if tests:
        recorded = tests[0]
    index = _telling_episode(recorded)
    episode = recorded.episodes[index]
    ending = ""
    if episode["success"] is not None:
        ending = ", won" if episode["success"] else ", lost"
    return Strip(
        f"{recorded.title}, episode {index + 1}{ending}".capitalize(),
        link=f"{PAGE}#{recorded.name}/{index + 1}/",
        shots=[_shot(run, turn) for turn in episode["turns"][:MAX_STRIP]],
        left=max(0, len(episode["turns"]) - MAX_STRIP),
    )


def _telling_episode(recorded: RecordedSet) -> int:
    """Index of the episode of a set to show: the first that was won, of a length that fits, if there is one."""
    with_turns = [index for index, episode in enumerate(recorded.episodes) if episode["turns"]]

    def rank(index: int) -> tuple[bool, bool]:
        episode = recorded.episodes[index]
        fits = 3 <= len(episode["turns"]) <= MAX_STRIP
        return not episode["success"], not fits

    return min(with_turns, key=rank)


def _shot(run: Path, turn: Mapping[str, Any]) -> Shot:
    # Only the first picture of a turn: the strip is to be looked at, not studied.
    picture = None
    words = ""
    if turn["pictures"]:
        picture = picture_url(run, turn["pictures"][0])
    else:
        told = str(turn["prompt"])
        words = told if len(told) <= MAX_WORDS else f"{told[:MAX_WORDS]} …"
    action = turn["action"]
    if action is None:
        action = turn["failure"]
    return Shot(picture, words, str(action or "none"), _fault(turn))


def _fault(turn: Mapping[str, Any]) -> str:
    """The gravest problem of a turn in a word; empty if there is none."""
    if turn["failure"]:
        return "unparsable"
    if not turn["legal"]:
        return "illegal"
    if not all(turn["true"].values()):
        return "untruthful"
    return ""
