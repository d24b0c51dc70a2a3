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
from sightline.reports.costs import reward_costs
from sightline.reports.pages import (
    Number,
    block,
    data_url,
    decimal,
    duration,
    interval,
    known_facts,
    number,
    percent,
    read_mapping,
    read_recipe,
    read_records,
    report_values,
    whole,
    write_page,
)
from sightline.reports.people_block import people_block
from sightline.reports.teacher_block import teacher_block
from sightline.reports.trajectories_page import PAGE
from sightline.reports.verdicts import next_steps, verdicts
from sightline.runs.files import read_bytes

MAX_VIDEO_BYTES = 8 * 1024 * 1024
"""Maximum size of an embedded video; larger ones are named only, so that the page stays small."""
MOST_FILMS = 4
"""Maximum number of videos of policies between the untrained and the chosen one."""


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
        run: the folder, with any of `recipe.yaml`, `metrics.jsonl`, `result.json`, `check.json`, `landscape.json`,
            `versions.json`, `warnings.json`, `model_card.md`, `command.txt`, `labels`, `labels.html`, `people`,
            `videos`, `trajectories` and `trajectories.html`.
        target: the page; default: `report.html` in the folder.

    Returns:
        The page's path.
    """
    recipe = read_recipe(run)
    result = read_mapping(run / "result.json")
    if recipe.get("steps") == 0:  # a warm start alone: the model before RL is the one after it
        result = {key: value for key, value in result.items() if key != "untrained"}
    metrics = read_records(run)
    reward = _reward_block(recipe)
    values = report_values(run, recipe, result)
    values |= _result_values(recipe, reward, result, metrics, read_mapping(run / "check.json"))
    values |= _plot_values(run, reward.wording.reward, result, metrics)
    values["next_steps"] = next_steps(recipe, result, metrics, has_landscape=bool(values["landscape"]))
    values["rows"] = comparison_rows(result)
    values["in_words"] = result.get("control") == "words"
    values["kinds"] = kind_rows(result)
    values["strip"] = episode_strip(run)
    values["teaching"] = teacher_block(run, recipe, reward, metrics)
    values["people"] = people_block(run, result)
    values["videos"] = _videos(run, recipe, result)
    values["episodes"] = ""
    # The link to the page of episodes is relative: it leads there from the run folder alone.
    if target is None and (run / PAGE).is_file():
        values["episodes"] = PAGE
    return write_page(target or run / "report.html", "run.html", **values)


def _result_values(
    recipe: Mapping[str, Any],
    reward: RewardBlock,
    result: Mapping[str, Any],
    metrics: plots.Metrics,
    check: Mapping[str, Any],
) -> dict[str, Any]:
    """Template values of what was wanted and what came of it."""
    of_agent = recipe.get("role") == "agent"
    # An agent's reward is mostly the game's own, which its return says already.
    reward_name = ""
    if reward.needs_frames or not of_agent:
        reward_name = reward.wording.reward
    numbers = _numbers(result, reward_name)
    headline = None
    headline_before = ""
    if numbers:
        headline = numbers[0]
        if headline.interval:
            untrained = block(result, "untrained")
            headline_before = interval(untrained)
            # The untrained policy mostly plays some of the test panel's episodes only.
            if headline_before and untrained.get("episodes") not in (None, result.get("episodes")):
                headline_before += f" ({untrained['episodes']} episodes)"
    goal: Sequence[str] = ()
    baseline: Sequence[str] = ()
    if reward.needs_words:
        goal = _sentences(recipe.get("goal"))
        baseline = _sentences(recipe.get("baseline"))
    return {
        "of_agent": of_agent,
        "wording": reward.wording,
        "goal": goal,
        "baseline": baseline,
        "headline": headline,
        "headline_before": headline_before,
        "numbers": numbers[1:],
        "errors": result.get("errors") or 0,
        "facts": _facts(recipe, reward, result, metrics),
        "verdicts": verdicts(recipe, result, metrics, check),
    }


def _plot_values(run: Path, reward_name: str, result: Mapping[str, Any], metrics: plots.Metrics) -> dict[str, Any]:
    """Template values of the plots, as SVG text; empty without the data."""
    # Without any record there would be empty axes.
    curves = ""
    vitals = ""
    if metrics:
        curves = plots.learning_curves(metrics, result.get("chosen_step"), reward_name)
        vitals = plots.agent_vitals(metrics)
    landscape = read_mapping(run / "landscape.json")
    return {
        "curves": curves,
        "vitals": vitals,
        "landscape": plots.landscape(landscape) if landscape else "",
        "landscape_axes": len(landscape.get("axes", ())),
    }


def _numbers(result: Mapping[str, Any], reward_name: str) -> list[Number]:
    """Result numbers, most important first: success if it is known, otherwise the return."""
    rate = result.get("success_rate")
    numbers = [number(result, "Success rate", "success_rate", percent, "")]
    # Success by other rules is worth a line only where it differs.
    if rate is not None:
        for name, key in (("Success at the end", "success_end"), ("Success without mistakes", "clean")):
            if result.get(key) != rate:
                numbers.append(number(result, name, key, percent))
    numbers.append(number(result, "Mean over kinds", "kinds_mean", percent))
    numbers.append(number(result, "True replies", "truthful_replies", percent))
    # The return of an environment that pays nothing is left out, unless nothing else is known.
    if rate is None or is_paid(result) or is_paid(block(result, "untrained")):
        numbers.append(number(result, "Ground-truth return", "return", decimal, "return_"))
    if reward_name:
        numbers.append(number(result, reward_name, "reward", decimal))
    before = block(block(result, "untrained"), "measures")
    for name, share in block(result, "measures").items():
        title = name.replace("_", " ").capitalize()
        numbers.append(Number(title, percent(before.get(name)), percent(share)))
    return [line for line in numbers if line is not None]


def _reward_block(recipe: Mapping[str, Any]) -> RewardBlock:
    """Reward block of the recipe; one that says little where the recipe cannot be read."""
    values = block(recipe, "reward")
    checked = _checked(REWARD, values)
    if isinstance(checked, RewardBlock):
        return checked
    return RewardBlock(kind=str(values.get("kind") or ""))


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
    facts: dict[str, Any] = {"Environment": recipe.get("env")}
    time_unit = "Steps"
    if recipe.get("role") == "agent":
        facts |= _agent_facts(recipe)
        time_unit = "Turns"
    facts |= reward.facts()
    questions = plots.last_value(metrics, "labels/asked")
    if questions is not None:
        facts["Questions asked"] = whole(round(questions))
    facts["Rewards have cost"] = reward_costs(metrics)
    facts["Learner"] = block(recipe, "learner").get("algorithm")
    # What was made, if a metric says so: a run may have been stopped, or resumed with more steps.
    facts[time_unit] = whole(_steps_made(metrics) or recipe.get("steps"))
    facts["Seed"] = recipe.get("seed")
    facts["Time"] = duration(result.get("seconds"))
    return known_facts(facts)


def _agent_facts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of an agent's model, its replies and its learning."""
    policy = block(recipe, "policy")
    facts: dict[str, Any] = {"Model": policy.get("model")}
    rank = block(policy, "lora").get("rank")
    if rank:
        facts["Adapters"] = f"LoRA, rank {rank}"
    facts |= _algorithm_block(recipe).facts()
    replies = block(recipe, "replies")
    if replies.get("format"):
        statements = [name for name in ("facts", "thoughts") if replies.get(name)]
        facts["Replies"] = ", ".join([str(replies["format"]), *statements])
    samples = block(recipe, "warm_start").get("samples")
    if samples:
        facts["Warm start"] = f"{whole(samples)} turns"
    temperature = block(recipe, "evaluation").get("temperature")
    if temperature and plots.is_number(temperature):  # 0 is greedy, as usual
        facts["In evaluation"] = f"temperature {temperature:g}"
    return facts


def _algorithm_block(recipe: Mapping[str, Any]) -> AlgorithmBlock:
    """Algorithm block of the recipe; one that says little where the recipe cannot be read."""
    values = block(recipe, "algorithm")
    checked = _checked(ALGORITHM, values)
    if isinstance(checked, AlgorithmBlock):
        return checked
    return AlgorithmBlock(kind=str(values.get("kind") or ""))


def _steps_made(metrics: plots.Metrics) -> int | None:
    """Steps or turns that were really made; None if no metrics say so."""
    steps = [line["step"] for line in metrics if plots.is_number(line.get("step"))]
    return int(max(steps)) if steps else None


def _videos(run: Path, recipe: Mapping[str, Any], result: Mapping[str, Any]) -> list[Video]:
    """Videos of the untrained policy, from between, and of the chosen one, as far as they were recorded."""
    # Few of those from between, evenly, so that the page stays small.
    between = sorted((run / "videos").glob("step-*.mp4"))
    if len(between) > MOST_FILMS:
        between = [between[index * len(between) // MOST_FILMS] for index in range(MOST_FILMS)]
    captions = {}
    # Agents have no film of before; of what a policy should have, it is said that it is missing.
    if recipe.get("role") != "agent":
        captions["untrained"] = "Before training"
    for file in between:
        step = file.stem.removeprefix("step-")
        if step.isdigit():
            captions[file.stem] = f"Step {int(step)}"
    captions["chosen"] = "After training"
    chosen_step = whole(result.get("chosen_step"))
    if chosen_step:
        captions["chosen"] += f", step {chosen_step}"
    videos = [_video(run, f"videos/{name}.mp4", caption) for name, caption in captions.items()]
    # Without any film the whole section is left out.
    if not any(video.source or "too large" in video.problem for video in videos):
        return []
    return videos


def _video(run: Path, name: str, caption: str) -> Video:
    path = run / name
    if path.is_symlink() or not path.is_file():
        return Video(caption, problem="not recorded")
    size = path.stat().st_size
    if size >= MAX_VIDEO_BYTES:
        return Video(caption, problem=f"too large to stand in this page ({size / 2**20:.0f} MB): see {name}")
    return Video(caption, source=data_url(read_bytes(path), "video/mp4"))


def _sentences(value: Any) -> Sequence[str]:
    if isinstance(value, str):
        return [value]
    return [str(sentence) for sentence in value or ()]
