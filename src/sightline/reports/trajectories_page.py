"""HTML page of an agent's recorded episodes: observations, statements and actions, turn by turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.errors import BadInput
from sightline.images import PictureFiles
from sightline.reports.pages import json_for_script, png_url, read_recipe, write_page
from sightline.runs.files import check_format, parse_json, read_bytes
from sightline.runs.folder import PICTURES, TRAJECTORIES

"""Folders that `agents/trajectory_log.py` writes."""
PAGE = "trajectories.html"
MAX_RECORD = 256 * 2**20
"""Maximum size in bytes of a file of episodes."""
MAX_BYTES = 48 * 1024 * 1024
"""Maximum size of records and pictures in the page, which a browser still opens at once; early updates are left out."""
_LOOKS = {"real": "real pictures", "blank": "blank pictures", "shuffled": "shuffled pictures"}
_OF_EPISODE = {"seed", "member", "kind", "success", "return", "truncated", "mistakes", "error", "turns"}
_OF_TURN = {
    *("prompt", "pictures", "finished", "tokens", "action", "failure", "played", "legal", "legal_actions", "stated"),
    *("facts", "true", "reward", "value", "advantage", "credited"),
}


@dataclass(frozen=True)
class RecordedSet:
    """Set of episodes that were recorded together.

    Attributes:
        name: name of the file, such as `update-0004`.
        title: display title.
        episodes: episodes as `agents/trajectory_log.py` writes them.
    """

    name: str
    title: str
    episodes: list[dict[str, Any]]


def write_trajectories(run: Path) -> Path:
    """Write `trajectories.html` into a run folder. The page holds everything and loads nothing.

    A set of episodes that cannot be read is left out and named, and so are early updates that would make the page too
    large. A turn is reached from outside by `trajectories.html#<set>/<episode>/<turn>`, counted from 1.

    Args:
        run: the folder, with `trajectories/<set>.json` and `trajectories/pictures/<digest>.png`; there may be none.

    Returns:
        The page's path.
    """
    sets, problems = recorded_sets(run)
    contents, too_much = _within(sets, run, MAX_BYTES)
    if too_much:
        problems.append(f"Left out, so that the page stays light: {', '.join(too_much)}.")
    return write_page(
        run / PAGE,
        "trajectories.html",
        title=read_recipe(run).get("description") or run.resolve().name,
        run_name=run.resolve().name,
        report=(run / "report.html").is_file(),
        problems=problems,
        data=json_for_script(contents),
        sets=len(contents["sets"]),
    )


def recorded_sets(run: Path) -> tuple[list[RecordedSet], list[str]]:
    """Read the recorded sets, tests before updates and these in order; and a sentence for each unreadable one."""
    found, problems = [], []
    for file in sorted((run / TRAJECTORIES).glob("*.json"), key=lambda file: _order(file.stem)):
        try:
            document = parse_json(read_bytes(file, MAX_RECORD), file.name)
            check_format(document.get("format"), file.name)
            episodes = document["episodes"]
            _check(episodes)
        except (OSError, BadInput, LookupError, ValueError, TypeError, AttributeError):
            problems.append(f"{file.name} is damaged and is not shown.")
            continue
        found.append(RecordedSet(file.stem, _title(file.stem), episodes))
    return found, problems


def picture_url(run: Path, digest: str) -> str | None:
    """Encode a recorded picture as a data URL; None if it is missing."""
    try:
        return png_url(PictureFiles(run / TRAJECTORIES / PICTURES, flat=True).file(digest))
    except BadInput:  # no name of a picture: it would lead out of the folder
        return None


def _order(name: str) -> tuple[bool, int, list[tuple[int, str]]]:
    """Sort key of a set: tests by how much is shown, then other sets, updates last; numbers by their size."""
    look = list(_LOOKS).index(_look(name)) if _look(name) in _LOOKS else len(_LOOKS)
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
    return name.startswith("update-"), look, parts


def _look(name: str) -> str:
    return name.rsplit("-", 1)[-1]


def _title(name: str) -> str:
    """Display title of a set, such as "test, blank pictures" or "update 4"."""
    if update := re.fullmatch(r"update-0*(\d+)", name):
        return f"update {update[1]}"
    panel, _, look = name.rpartition("-")
    said = f"{panel}, {_LOOKS[look]}" if panel and look in _LOOKS else _LOOKS.get(name, name)
    return said.replace("_", " ")


def _check(episodes: Any) -> None:
    """Raise an exception if these are no recorded episodes."""
    if not isinstance(episodes, list):
        raise TypeError("no list of episodes")
    for episode in episodes:
        if missing := _OF_EPISODE - episode.keys():
            raise KeyError(*missing)
        for turn in episode["turns"]:
            if missing := _OF_TURN - turn.keys():
                raise KeyError(*missing)
            _in_short(turn, {})
            "".join(turn["pictures"])  # raises TypeError unless all are text


def _within(sets: Sequence[RecordedSet], run: Path, room: int) -> tuple[dict[str, Any], list[str]]:
    """Select the sets that fit into the page, and list the titles of the others: tests first, then latest updates."""
    prompts: dict[str, int] = {}
    pictures: dict[str, str | None] = {}
    kept: dict[str, dict[str, Any]] = {}
    updates = [one for one in sets if one.name.startswith("update-")]
    for one in [*(one for one in sets if one not in updates), *reversed(updates)]:
        content = {"name": one.name, "title": one.title, "episodes": [_episode(e, prompts) for e in one.episodes]}
        new = {digest: picture_url(run, digest) for digest in _digests(one.episodes) if digest not in pictures}
        room -= len(json.dumps(content, ensure_ascii=False)) + sum(len(url or "") for url in new.values())
        if room < 0 and kept:
            break
        kept[one.name] = content
        pictures |= new
    shown = [kept[one.name] for one in sets if one.name in kept]
    contents = {"sets": shown, "prompts": list(prompts), "pictures": pictures}
    return contents, [one.title for one in sets if one.name not in kept]


def _digests(episodes: Iterable[Mapping[str, Any]]) -> set[str]:
    return {digest for episode in episodes for turn in episode["turns"] for digest in turn["pictures"]}


def _episode(episode: Mapping[str, Any], prompts: dict[str, int]) -> dict[str, Any]:
    return {**episode, "turns": [_in_short(turn, prompts) for turn in episode["turns"]]}


def _in_short(turn: Mapping[str, Any], prompts: dict[str, int]) -> dict[str, Any]:
    """Compact a turn: prompts by their number, and of each token the text, log-probability, whether it is part of the
    action, and its advantage if that is not the turn's."""
    tokens = []
    for text, logprob, advantage, kind in turn["tokens"]:
        token = [str(text), None if logprob is None else round(float(logprob), 3), int(kind == "action")]
        tokens.append(token if advantage == turn["advantage"] else [*token, advantage])
    rest = {name: value for name, value in turn.items() if name not in ("prompt", "reply", "tokens")}
    return {**rest, "prompt": prompts.setdefault(str(turn["prompt"]), len(prompts)), "tokens": tokens}
