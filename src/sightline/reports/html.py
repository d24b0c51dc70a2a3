"""One page that shows a run, from the files of its folder; the page needs nothing else, not even a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from sightline.reports import plots
from sightline.runs.folder import write_atomically
from sightline.runs.metrics import read_metrics

MAX_VIDEO_BYTES = 8 * 1024 * 1024
"""Longer videos are named, not embedded, so that the page stays light."""
THIN_SPACE = "\u202f"


@dataclass(frozen=True)
class Number:
    """A result before and after training, as text.

    Attributes:
        interval: the 95 % interval of `after`; empty if unknown.
    """

    name: str
    before: str
    after: str
    interval: str = ""


@dataclass(frozen=True)
class Video:
    """Attributes: `source` is a data URL, or empty with the reason in `problem`."""

    caption: str
    source: str = ""
    problem: str = ""


def write_report(run: Path) -> Path:
    """Write `report.html` into a run folder.

    Every file of the folder may be missing or unreadable; the page then says what is not there.

    Args:
        run: the folder, with any of `recipe.yaml`, `metrics.jsonl`, `result.json`, `landscape.json`, `versions.json`,
            `warnings.json`, `model_card.md`, `command.txt`, `videos/untrained.mp4` and `videos/chosen.mp4`.

    Returns:
        The page's path.
    """
    import jinja2

    recipe, result = _recipe(run), _mapping(run / "result.json")
    metrics, landscape = read_metrics(run / "metrics.jsonl"), _mapping(run / "landscape.json")
    warnings = _json(run / "warnings.json")
    numbers = _numbers(result)
    template = (resources.files("sightline.reports") / "templates" / "report.html").read_text("utf-8")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template).render(
        title=recipe.get("description") or recipe.get("env") or run.resolve().name,
        run_name=run.resolve().name,
        goal=_sentences(recipe.get("goal")),
        baseline=_sentences(recipe.get("baseline")),
        warnings=warnings if isinstance(warnings, list) else [],
        headline=numbers[0] if numbers else None,
        numbers=numbers[1:],
        panel=_panel_sentence(result),
        facts=_facts(recipe, result),
        curves=plots.learning_curves(metrics, result.get("chosen_step"), _reward_name(recipe)) if metrics else "",
        chosen_step=_whole(result.get("chosen_step")),
        landscape=plots.landscape(landscape) if landscape else "",
        landscape_axes=len(landscape.get("axes", ())),
        videos=_videos(run, result),
        recipe_text=_text(run / "recipe.yaml"),
        versions=_mapping(run / "versions.json"),
        model_card=_text(run / "model_card.md"),
        command=_text(run / "command.txt").strip(),
    )  # fmt: skip
    path = run / "report.html"
    write_atomically(path, page.encode())
    return path


def _numbers(result: Mapping[str, Any]) -> list[Number]:
    """The results, most important first: success if it is known, otherwise the return."""
    untrained = result.get("untrained") or {}

    def number(name: str, key: str, show: Any, prefix: str | None = None) -> Number:
        low, high = (None, None) if prefix is None else (result.get(f"{prefix}ci_low"), result.get(f"{prefix}ci_high"))
        interval = "" if low is None or high is None else f"{show(low)} – {show(high)}"
        return Number(name, show(untrained.get(key)), show(result[key]), interval)

    numbers = []
    if result.get("success_rate") is not None:
        numbers.append(number("Success rate", "success_rate", _percent, ""))
    if result.get("return") is not None:
        numbers.append(number("Ground-truth return", "return", _decimal, "return_"))
    if result.get("reward") is not None:
        numbers.append(number("Reward under the words", "reward", _decimal))
    before = untrained.get("measures") or {}
    for name, rate in (result.get("measures") or {}).items():
        numbers.append(Number(name.replace("_", " ").capitalize(), _percent(before.get(name)), _percent(rate)))
    return numbers


def _reward_name(recipe: Mapping[str, Any]) -> str:
    """What the learner was paid, as a heading."""
    reward = recipe.get("reward")
    from_words = not isinstance(reward, dict) or reward.get("kind") != "ground_truth"
    return "Reward under the words" if from_words else "Environment reward"


def _panel_sentence(result: Mapping[str, Any]) -> str:
    """On what the numbers were measured, such as "100 episodes, panel cartpole-test 3f9a"."""
    episodes = f"{result['episodes']} episodes" if result.get("episodes") else ""
    panel = f"panel {result['panel']}" if result.get("panel") else ""
    return ", ".join(part for part in (episodes, panel) if part)


def _facts(recipe: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str]:
    """The run in a few words: those that are known."""
    reward, learner = recipe.get("reward") or {}, recipe.get("learner") or {}
    facts = {
        "Environment": recipe.get("env"),
        "Reward": str(reward.get("kind") or "").replace("_", " "),
        "Encoder": reward.get("encoder"),
        "Alpha": reward.get("alpha"),
        "Learner": learner.get("algorithm"),
        "Steps": _whole(recipe.get("steps")),
        "Seed": recipe.get("seed"),
        "Time": _duration(result.get("seconds")),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _videos(run: Path, result: Mapping[str, Any]) -> list[Video]:
    step = _whole(result.get("chosen_step"))
    captions = {
        "untrained": "Before training",
        "chosen": f"After training, step {step}" if step else "After training",
    }
    videos = [_video(run, f"videos/{name}.mp4", caption) for name, caption in captions.items()]
    return videos if any(video.source or "too large" in video.problem for video in videos) else []


def _video(run: Path, name: str, caption: str) -> Video:
    path = run / name
    if not path.is_file():
        return Video(caption, problem="not recorded")
    size = path.stat().st_size
    if size >= MAX_VIDEO_BYTES:
        return Video(caption, problem=f"too large to stand in this page ({size / 2**20:.0f} MB): see {name}")
    return Video(caption, source="data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode())


def _recipe(run: Path) -> dict[str, Any]:
    try:
        recipe = yaml.safe_load(_text(run / "recipe.yaml"))
    except yaml.YAMLError:
        return {}
    return recipe if isinstance(recipe, dict) else {}


def _mapping(path: Path) -> dict[str, Any]:
    values = _json(path)
    return values if isinstance(values, dict) else {}


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError:
        return None


def _text(path: Path) -> str:
    """The file's text; empty if there is none."""
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


def _sentences(value: Any) -> Sequence[str]:
    return [value] if isinstance(value, str) else [str(sentence) for sentence in value or ()]


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.0f}{THIN_SPACE}%"


def _decimal(value: float | None) -> str:
    """Three significant digits: 0.912, 47.3, 1 830."""
    if value is None:
        return ""
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}".replace(",", THIN_SPACE).replace("-", "−")


def _whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}".replace(",", THIN_SPACE)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, hours = round(seconds / 60), seconds / 3600
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{hours:.1f} h"
