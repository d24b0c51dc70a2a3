"""HTML report of a run, made from the files of its folder; the page is self-contained and needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from sightline.config.recipe import REWARD, RewardBlock
from sightline.errors import BadInput
from sightline.labels.types import Outcome
from sightline.reports import plots
from sightline.reports.examples import Example, examples
from sightline.reports.pages import (
    Number,
    block,
    data_url,
    decimal,
    duration,
    known,
    money,
    number,
    percent,
    read_mapping,
    read_recipe,
    read_records,
    report_values,
    whole,
    write_page,
)
from sightline.runs.files import read_bytes

MAX_VIDEO_BYTES = 8 * 1024 * 1024
"""Maximum size of an embedded video; larger ones are named only, so that the page stays small."""


@dataclass(frozen=True)
class Video:
    """Video of the report; `source` is a data URL, or empty with the reason in `problem`."""

    caption: str
    source: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Tally:
    """Number about the labels, as text; `note` qualifies it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class TeacherSection:
    """Section about the teacher of a learned reward.

    Attributes:
        scripted: True if it answers from the environment's own reward.
        curves: SVG text.
        examples: some of its answers; None if they cannot be read.
        segment: number of steps of a segment.
        page: True if the page about the labels is beside the report.
    """

    tallies: Sequence[Tally]
    scripted: bool
    curves: str
    examples: Sequence[Example] | None
    segment: int
    page: bool


def write_report(run: Path) -> Path:
    """Write `report.html` into a run folder.

    Every file of the folder may be missing or unreadable; the page then names what is missing.

    Args:
        run: the folder, with any of `recipe.yaml`, `metrics.jsonl`, `result.json`, `landscape.json`, `versions.json`,
            `warnings.json`, `model_card.md`, `command.txt`, `labels`, `labels.html`, `videos/untrained.mp4` and
            `videos/chosen.mp4`.

    Returns:
        The page's path.
    """
    recipe, result = read_recipe(run), read_mapping(run / "result.json")
    metrics, landscape = read_records(run), read_mapping(run / "landscape.json")
    wording = _reward_block(recipe).wording
    numbers = _numbers(result, wording.reward)
    return write_page(
        run / "report.html",
        "report.html",
        **report_values(run, recipe, result),
        goal=_sentences(recipe.get("goal")),
        baseline=_sentences(recipe.get("baseline")),
        headline=numbers[0] if numbers else None,
        numbers=numbers[1:],
        facts=_facts(recipe, result, metrics),
        curves=plots.learning_curves(metrics, result.get("chosen_step"), wording.reward) if metrics else "",
        teaching=_teaching(run, recipe, metrics),
        wording=wording,
        landscape=plots.landscape(landscape) if landscape else "",
        landscape_axes=len(landscape.get("axes", ())),
        videos=_videos(run, result),
    )


def _numbers(result: Mapping[str, Any], reward_name: str) -> list[Number]:
    """Result numbers, most important first: success if it is known, otherwise the return."""
    rate, at_end = result.get("success_rate"), result.get("success_end")
    numbers = [
        number(result, "Success rate", "success_rate", percent, ""),
        number(result, "Success at the end", "success_end", percent) if rate is not None and rate != at_end else None,
        number(result, "Ground-truth return", "return", decimal, "return_"),
        number(result, reward_name, "reward", decimal),
    ]
    before = block(block(result, "untrained"), "measures")
    measures = [
        Number(name.replace("_", " ").capitalize(), percent(before.get(name)), percent(rate))
        for name, rate in block(result, "measures").items()
    ]
    return [one for one in numbers if one is not None] + measures


def _reward_block(recipe: Mapping[str, Any]) -> RewardBlock:
    """Reward block of the recipe; one that says little where the recipe cannot be read."""
    reward = block(recipe, "reward")
    try:
        checked = REWARD.check(reward)
    except (ValueError, BadInput):
        return RewardBlock(kind=str(reward.get("kind") or ""))
    assert isinstance(checked, RewardBlock)
    return checked


def _facts(recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics) -> dict[str, str]:
    """Known facts of the run, in a few words each."""
    learner, asked = block(recipe, "learner"), _last(metrics, "labels/asked")
    facts = {
        "Environment": recipe.get("env"),
        **_reward_block(recipe).facts(),
        "Questions asked": whole(asked if asked is None else round(asked)),
        "Learner": learner.get("algorithm"),
        "Steps": whole(recipe.get("steps")),
        "Seed": recipe.get("seed"),
        "Time": duration(result.get("seconds")),
    }
    return known(facts)


def _teaching(run: Path, recipe: Mapping[str, Any], metrics: plots.Metrics) -> TeacherSection | None:
    """Section about the teacher; None if no teacher was asked anything."""
    rounds = [line for line in metrics if plots.is_number(line.get("labels/asked"))]
    if not rounds:
        return None
    reward, teaching = block(recipe, "reward"), _reward_block(recipe).teaching
    segment = reward.get("segment")
    return TeacherSection(
        tallies=_tallies(rounds),
        scripted=teaching is not None and teaching.teacher.knows_truth,
        curves=plots.teaching_curves(metrics),
        examples=examples(run),
        segment=segment if isinstance(segment, int) else 1,
        page=(run / "labels.html").is_file(),
    )


def _tallies(rounds: plots.Metrics) -> list[Tally]:
    """Known numbers about the labels of all rounds together."""
    asked, kept = _last(rounds, "labels/asked") or 0, _last(rounds, "labels/kept")
    paid = [(_last(rounds, f"labels/{what}"), what) for what in ("requests", "tokens")]
    waited, seconds = _values(rounds, "time/waiting_for_teacher"), _values(rounds, "labels/seconds")
    tallies = [
        Tally("Labels", whole(round(asked)), f"{len(rounds)} round{'' if len(rounds) == 1 else 's'} of questions"),
        Tally("Usable", percent(kept / asked) if asked and kept is not None else "", _without_use(rounds)),
        Tally("Accuracy", percent(_accuracy(rounds)), "of decided pairs, by ground truth"),
        Tally(
            "Cost",
            money(_last(rounds, "labels/cost")),
            ", ".join(f"{whole(round(count))} {what}" for count, what in paid if count) or "no requests",
        ),
        Tally(
            "Waited for teacher",
            duration(sum(waited)) if waited else "",
            f"{duration(fmean(seconds))} for an answer" if seconds else "",
        ),
    ]
    return [tally for tally in tallies if tally.value]


def _accuracy(rounds: plots.Metrics) -> float | None:
    """Accuracy over all rounds: the share of decided pairs on which the teacher agrees with ground truth."""
    right, decided = 0.0, 0.0
    for line, counts in zip(rounds, _outcomes(rounds), strict=True):
        if plots.is_number(line.get("labels/accuracy")):
            count = counts[Outcome.FIRST] + counts[Outcome.SECOND]
            right, decided = right + count * line["labels/accuracy"], decided + count
    return right / decided if decided else None


def _without_use(rounds: plots.Metrics) -> str:
    """Number of answers without a label, by outcome: "3 unsure, 1 refused"."""
    reasons = (Outcome.UNSURE, Outcome.SKIPPED, Outcome.REFUSED, Outcome.UNPARSABLE, Outcome.FAILED)
    counts = {reason: round(sum(of_round[reason] for of_round in _outcomes(rounds))) for reason in reasons}
    return ", ".join(f"{whole(count)} {reason.value}" for reason, count in counts.items() if count)


def _outcomes(rounds: plots.Metrics) -> list[dict[Outcome, float]]:
    """Number of answers of each outcome, per round."""
    asked = [float(line["labels/asked"]) for line in rounds]
    new = [max(after - before, 0.0) for before, after in pairwise([0.0, *asked])]
    return [
        {outcome: count * sum(_values([line], f"labels/{outcome}")) for outcome in Outcome}
        for line, count in zip(rounds, new, strict=True)
    ]


def _values(metrics: plots.Metrics, key: str) -> list[float]:
    return [line[key] for line in metrics if plots.is_number(line.get(key))]


def _last(metrics: plots.Metrics, key: str) -> float | None:
    return next(iter(_values(metrics, key)[::-1]), None)


def _videos(run: Path, result: Mapping[str, Any]) -> list[Video]:
    step = whole(result.get("chosen_step"))
    captions = {
        "untrained": "Before training",
        "chosen": f"After training, step {step}" if step else "After training",
    }
    videos = [_video(run, f"videos/{name}.mp4", caption) for name, caption in captions.items()]
    return videos if any(video.source or "too large" in video.problem for video in videos) else []


def _video(run: Path, name: str, caption: str) -> Video:
    path = run / name
    if path.is_symlink() or not path.is_file():
        return Video(caption, problem="not recorded")
    size = path.stat().st_size
    if size >= MAX_VIDEO_BYTES:
        return Video(caption, problem=f"too large to stand in this page ({size / 2**20:.0f} MB): see {name}")
    return Video(caption, source=data_url(read_bytes(path), "video/mp4"))


def _sentences(value: Any) -> Sequence[str]:
    return [value] if isinstance(value, str) else [str(sentence) for sentence in value or ()]
