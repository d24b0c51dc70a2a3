"""Page of a run, made from the files of its folder: self-contained, without network.

It is built from blocks. A block is there if the run's files hold what it shows, whoever acted and whoever paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.config.blocks import AlgorithmBlock, Plugin
from sightline.config.recipe import ALGORITHM, REWARD, RewardBlock
from sightline.errors import BadInput
from sightline.evaluation.episode_stats import is_paid
from sightline.reports import plots
from sightline.reports.agent_block import comparison_rows, episode_strip, kind_rows
from sightline.reports.pages import (
    Number,
    block,
    data_url,
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
from sightline.reports.teacher_block import teacher_block
from sightline.reports.trajectories_page import PAGE
from sightline.reports.verdicts import next_steps, verdicts
from sightline.runs.files import read_bytes

MAX_VIDEO_BYTES = 8 * 1024 * 1024
"""Maximum size of an embedded video; larger ones are named only, so that the page stays small."""
MOST_FILMS = 4
"""Number of videos from between that are shown."""


@dataclass(frozen=True)
class Video:
    """Video of the report; `source` is a data URL, or empty with the reason in `problem`."""

    caption: str
    source: str = ""
    problem: str = ""


def write_report(run: Path, target: Path | None = None) -> Path:
    """Write the report of a run folder.

    Every file of the folder may be missing or unreadable; the page then names what is missing.

    Args:
        run: the folder, with any of `recipe.yaml`, `metrics.jsonl`, `result.json`, `landscape.json`, `versions.json`,
            `warnings.json`, `model_card.md`, `command.txt`, `labels`, `labels.html`, `videos`, `trajectories` and
            `trajectories.html`.
        target: the page; default: `report.html` in the folder.

    Returns:
        The page's path.
    """
    recipe, result = read_recipe(run), read_mapping(run / "result.json")
    if recipe.get("steps") == 0:  # a warm start alone: the model before RL is the one after it
        result = {key: value for key, value in result.items() if key != "untrained"}
    metrics, landscape = read_records(run), read_mapping(run / "landscape.json")
    reward = _reward_block(recipe)
    wording, of_agent = reward.wording, recipe.get("role") == "agent"
    numbers = _numbers(result, wording.reward if reward.needs_frames or not of_agent else "")
    return write_page(
        target or run / "report.html",
        "run.html",
        **report_values(run, recipe, result),
        of_agent=of_agent,
        goal=_sentences(recipe.get("goal")) if reward.needs_words else (),
        baseline=_sentences(recipe.get("baseline")) if reward.needs_words else (),
        headline=numbers[0] if numbers else None,
        headline_before=interval(block(result, "untrained")) if numbers and numbers[0].interval else "",
        numbers=numbers[1:],
        errors=result.get("errors") or 0,
        facts=_facts(recipe, reward, result, metrics),
        verdicts=verdicts(recipe, result, metrics),
        next_steps=next_steps(recipe, result, metrics),
        rows=comparison_rows(result),
        strip=episode_strip(run),
        episodes=PAGE if target is None and (run / PAGE).is_file() else "",
        curves=plots.learning_curves(metrics, result.get("chosen_step"), wording.reward) if metrics else "",
        vitals=plots.agent_vitals(metrics) if metrics else "",
        kinds=kind_rows(result),
        teaching=teacher_block(run, recipe, reward, metrics),
        wording=wording,
        landscape=plots.landscape(landscape) if landscape else "",
        landscape_axes=len(landscape.get("axes", ())),
        videos=_videos(run, recipe, result),
    )


def _numbers(result: Mapping[str, Any], reward_name: str) -> list[Number]:
    """Result numbers, most important first: success if it is known, otherwise the return."""
    rate = result.get("success_rate")
    pays = is_paid(result) or is_paid(block(result, "untrained"))

    def where_it_differs(name: str, key: str) -> Number | None:
        return number(result, name, key, percent) if rate is not None and result.get(key) != rate else None

    numbers = [
        number(result, "Success rate", "success_rate", percent, ""),
        where_it_differs("Success at the end", "success_end"),
        where_it_differs("Success without mistakes", "clean"),
        number(result, "Mean over kinds", "kinds_mean", percent),
        number(result, "True replies", "truthful_replies", percent),
        # Of an environment that pays nothing there is none, unless nothing else is known.
        number(result, "Ground-truth return", "return", decimal, "return_") if pays or rate is None else None,
        number(result, reward_name, "reward", decimal) if reward_name else None,
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
    checked = _checked(REWARD, reward)
    return checked if isinstance(checked, RewardBlock) else RewardBlock(kind=str(reward.get("kind") or ""))


def _checked(plugin: Plugin, values: Mapping[str, Any]) -> Any:
    """A block as its plug-in reads it; None if it is damaged, or of a package that is not installed here."""
    try:
        return plugin.check(values)
    except (ValueError, BadInput):
        return None


def _facts(
    recipe: Mapping[str, Any], reward: RewardBlock, result: Mapping[str, Any], metrics: plots.Metrics
) -> dict[str, str]:
    """Known facts of the run, in a few words each."""
    learner, asked = block(recipe, "learner"), plots.last_value(metrics, "labels/asked")
    facts = {
        "Environment": recipe.get("env"),
        **(_agent_facts(recipe) if recipe.get("role") == "agent" else {}),
        **reward.facts(),
        "Questions asked": whole(asked if asked is None else round(asked)),
        "Learner": learner.get("algorithm"),
        "Turns" if recipe.get("role") == "agent" else "Steps": whole(_played(metrics) or recipe.get("steps")),
        "Seed": recipe.get("seed"),
        "Time": duration(result.get("seconds")),
    }
    return known(facts)


def _agent_facts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    policy, replies, algorithm = block(recipe, "policy"), block(recipe, "replies"), block(recipe, "algorithm")
    checked = _checked(ALGORITHM, algorithm)
    if not isinstance(checked, AlgorithmBlock):
        checked = AlgorithmBlock(kind=str(algorithm.get("kind") or ""))
    lora, warm_start = block(policy, "lora"), block(recipe, "warm_start")
    said = [name for name in ("facts", "thoughts") if replies.get(name)]
    temperature = block(recipe, "evaluation").get("temperature") or None  # 0 is greedy, as ever
    return {
        "Model": policy.get("model"),
        "Adapters": f"LoRA, rank {lora['rank']}" if lora.get("rank") else None,
        **checked.facts(),
        "Replies": ", ".join([str(replies["format"]), *said]) if replies.get("format") else None,
        "Warm start": f"{whole(warm_start['samples'])} turns" if warm_start.get("samples") else None,
        "In evaluation": f"temperature {temperature:g}" if plots.is_number(temperature) else None,
    }


def _played(metrics: plots.Metrics) -> int | None:
    """Steps or turns that were really made; None if no metrics say so."""
    steps = [line["step"] for line in metrics if plots.is_number(line.get("step"))]
    return int(max(steps)) if steps else None


def _videos(run: Path, recipe: Mapping[str, Any], result: Mapping[str, Any]) -> list[Video]:
    """Videos of the untrained policy, from between, and of the chosen one, as far as they were recorded."""
    step, between = whole(result.get("chosen_step")), sorted((run / "videos").glob("step-*.mp4"))
    if len(between) > MOST_FILMS:
        between = [between[i * len(between) // MOST_FILMS] for i in range(MOST_FILMS)]
    captions = {
        "untrained": "Before training",
        **{file.stem: f"Step {int(file.stem[5:])}" for file in between if file.stem[5:].isdigit()},
        "chosen": f"After training, step {step}" if step else "After training",
    }
    # Agents have no film of before; of what a policy should have, it is said that it is missing.
    names = [name for name in captions if name != "untrained" or recipe.get("role") != "agent"]
    videos = [_video(run, f"videos/{name}.mp4", captions[name]) for name in names]
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
