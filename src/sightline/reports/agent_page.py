"""HTML report of an agent's run: success, use of the pictures, and truth of its statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.config.blocks import AlgorithmBlock
from sightline.config.recipe import ALGORITHM
from sightline.errors import BadInput
from sightline.reports import plots
from sightline.reports.pages import (
    Number,
    block,
    decimal,
    duration,
    interval,
    known,
    number,
    percent,
    read_mapping,
    read_recipe,
    read_records,
    report_values,
    whole,
    write_page,
)
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
class Verdict:
    """Verdict on a question about the run.

    Attributes:
        answer: the answer in a word or two.
        because: a sentence with the numbers behind it.
    """

    answer: str
    because: str
    good: bool


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


def write_agent_report(run: Path) -> Path:
    """Write `report.html` into the run folder of an agent.

    Every file of the folder may be missing or unreadable; the page then names what is missing.

    Args:
        run: the folder, with any of `recipe.yaml`, `metrics.jsonl`, `result.json`, `versions.json`, `warnings.json`,
            `model_card.md`, `command.txt`, `trajectories` and `trajectories.html`.

    Returns:
        The page's path.
    """
    recipe, result = read_recipe(run), read_mapping(run / "result.json")
    metrics = read_records(run)
    return write_page(
        run / "report.html",
        "agent.html",
        **report_values(run, recipe, result),
        headline=number(result, "Episodes won", "success_rate", percent, ""),
        headline_before=interval(block(result, "untrained")),
        numbers=_numbers(result),
        errors=result.get("errors") or 0,
        facts=_facts(recipe, result),
        verdict=looking_verdict(result, bool(recipe.get("text_only"))),
        rows=_rows(result),
        kinds=_kinds(result),
        curves=plots.agent_curves(metrics, result.get("chosen_step")) if metrics else "",
        vitals=plots.agent_vitals(metrics) if metrics else "",
        chosen_update=result.get("chosen_update"),
        strip=_strip(run),
        episodes=PAGE if (run / PAGE).is_file() else "",
    )


def looking_verdict(result: Mapping[str, Any], text_only: bool = False) -> Verdict | None:
    """Judge if the agent uses the pictures: yes if the interval of its success lies above those with blank and with
    other pictures.

    Args:
        result: a summary with `blank` and `shuffled`.
        text_only: True if it was given descriptions instead of the pictures.

    Returns:
        None if that was not measured.
    """
    if text_only:
        return Verdict("It cannot", "This agent is told in words what the pictures show: it has nothing to see.", True)
    names = {"blank": "with blank pictures", "shuffled": "with pictures of other states"}
    blind = {name: block(result, name) for name in names}
    if any(numbers.get("ci_high") is None for numbers in [result, *blind.values()]):
        return None
    said = f"With the real pictures it wins {_won(result)}"
    compared = [f"{names[name]} {_won(numbers)}" for name, numbers in blind.items()]
    apart = {name: result["ci_low"] > numbers["ci_high"] for name, numbers in blind.items()}
    numbers_said = f"{said}; {' and '.join(compared)}."
    if all(apart.values()):
        return Verdict("Yes", numbers_said, True)
    alike = " and ".join(names[name] for name, differs in apart.items() if not differs)
    if all(result["success_rate"] <= numbers["success_rate"] for numbers in blind.values()):
        return Verdict("No", f"{numbers_said} It plays no worse when it cannot see: the words alone decide.", False)
    return Verdict(
        "Not shown",
        f"{numbers_said} The intervals are not apart {alike}: more episodes, or an agent that looks, would tell.",
        False,
    )


def _won(numbers: Mapping[str, Any]) -> str:
    """Format a success rate, such as "93 % [86, 97]"."""
    return f"{percent(numbers['success_rate'])} [{100 * numbers['ci_low']:.0f}, {100 * numbers['ci_high']:.0f}]"


def _numbers(result: Mapping[str, Any]) -> list[Number]:
    """Known numbers below the headline."""
    numbers = [
        number(result, "Won without mistakes", "clean", percent),
        number(result, "Mean over kinds", "kinds_mean", percent),
        number(result, "True replies", "truthful_replies", percent),
        number(result, "Return", "return", decimal, "return_"),
    ]
    return [one for one in numbers if one is not None]


def _rows(result: Mapping[str, Any]) -> list[TableRow]:
    """Rows of the comparison that were measured."""
    found = [(name, key, block(result, key) if key else result) for key, name in _ROWS]
    return [_row(name, not key, numbers) for name, key, numbers in found if numbers.get("success_rate") is not None]


def _row(name: str, main: bool, numbers: Mapping[str, Any]) -> TableRow:
    success, low, high = (
        None if numbers.get(key) is None else 100 * float(numbers[key]) for key in ("success_rate", "ci_low", "ci_high")
    )
    return TableRow(
        *(name, main, success, low, high),
        won=percent(numbers["success_rate"]),
        interval=interval(numbers),
        clean=percent(numbers.get("clean")),
        truthful=percent(numbers.get("truthful_replies")),
        returned=decimal(numbers.get("return")),
        return_interval=interval(numbers, "return_", decimal),
        illegal=percent(numbers.get("illegal")),
        unparsable=percent(numbers.get("unparsable")),
    )


def _kinds(result: Mapping[str, Any]) -> list[GameKind]:
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


def _facts(recipe: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str]:
    """Known facts of the run, in a few words each."""
    policy, replies, algorithm = block(recipe, "policy"), block(recipe, "replies"), block(recipe, "algorithm")
    try:
        checked: AlgorithmBlock = ALGORITHM.check(algorithm)  # type: ignore[assignment]
    except (ValueError, BadInput):  # damaged, or of a package that is not installed here
        checked = AlgorithmBlock(kind=str(algorithm.get("kind") or ""))
    lora, warm_start = block(policy, "lora"), block(recipe, "warm_start")
    said = [name for name in ("facts", "thoughts") if replies.get(name)]
    facts = {
        "Game": recipe.get("env"),
        "Model": policy.get("model"),
        "Adapters": f"LoRA, rank {lora['rank']}" if lora.get("rank") else None,
        **checked.facts(),
        "Replies": ", ".join([str(replies["format"]), *said]) if replies.get("format") else None,
        "Warm start": f"{whole(warm_start['samples'])} turns" if warm_start.get("samples") else None,
        "Turns": whole(recipe.get("steps")),
        "Seed": recipe.get("seed"),
        "Time": duration(result.get("seconds")),
    }
    return known(facts)


def _strip(run: Path) -> Strip | None:
    """Strip of one episode, of the test if one was recorded: the first that was won in several turns."""
    sets, _ = recorded_sets(run)
    played = [one for one in sets if any(episode["turns"] for episode in one.episodes)]
    if not played:
        return None
    tests = [one for one in played if not one.name.startswith("update-")]
    one = tests[0] if tests else played[-1]
    number = _telling(one)
    turns = one.episodes[number]["turns"]
    ending = "won" if one.episodes[number]["success"] else "lost"
    return Strip(
        f"{one.title}, episode {number + 1}, {ending}".capitalize(),
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
