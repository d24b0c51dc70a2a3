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

PAGE = "trajectories.html"
MAX_RECORD = 256 * 2**20
"""Maximum size in bytes of a file of episodes."""
MAX_BYTES = 48 * 1024 * 1024
"""Maximum size of records and pictures in the page, which a browser still opens at once; early updates are left out."""
_LOOKS = {"real": "real observations", "blank": "blank observations", "shuffled": "shuffled observations"}
_EPISODE_KEYS = {"seed", "member", "kind", "success", "return", "truncated", "mistakes", "error", "turns"}
_TURN_KEYS = {
    "prompt",
    "pictures",
    "finished",
    "tokens",
    "action",
    "failure",
    "played",
    "legal",
    "legal_actions",
    "stated",
    "facts",
    "true",
    "reward",
    "value",
    "advantage",
    "credited",
}
"""Keys without which the record of a turn is damaged; `agents/trajectory_log.py` writes them."""


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
    contents, left_out = _fitting_contents(sets, run, MAX_BYTES)
    if left_out:
        problems.append(f"Left out, so that the page stays light: {', '.join(left_out)}.")
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
    sets = []
    problems = []
    for file in sorted((run / TRAJECTORIES).glob("*.json"), key=lambda file: _order(file.stem)):
        try:
            document = parse_json(read_bytes(file, MAX_RECORD), file.name)
            check_format(document.get("format"), file.name)
            episodes = document["episodes"]
            _check(episodes)
        except (OSError, BadInput, LookupError, ValueError, TypeError, AttributeError):
            problems.append(f"{file.name} is damaged and is not shown.")
            continue
        sets.append(RecordedSet(file.stem, _title(file.stem), episodes))
    return sets, problems


def picture_url(run: Path, digest: str) -> str | None:
    """Encode a recorded picture as a data URL; None if it is missing."""
    try:
        return png_url(PictureFiles(run / TRAJECTORIES / PICTURES, flat=True).file(digest))
    except BadInput:  # no name of a picture: it would lead out of the folder
        return None


def _order(name: str) -> tuple[bool, int, list[tuple[int, str]]]:
    """Sort key of a set: tests by how much is shown, then other sets, updates last; numbers by their size."""
    looks = list(_LOOKS)
    suffix = name.rsplit("-", 1)[-1]
    look = len(looks)
    if suffix in _LOOKS:
        look = looks.index(suffix)
    parts = re.split(r"(\d+)", name)  # text and numbers in turn
    numbered = [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]
    return name.startswith("update-"), look, numbered


def _title(name: str) -> str:
    """Display title of a set, such as "test, blank observations" or "update 4"."""
    if update := re.fullmatch(r"update-0*(\d+)", name):
        return f"update {update[1]}"
    panel, _, look = name.rpartition("-")
    title = _LOOKS.get(name, name)
    if panel and look in _LOOKS:
        title = f"{panel}, {_LOOKS[look]}"
    return title.replace("_", " ")


def _check(episodes: Any) -> None:
    """Raise an exception if these are no recorded episodes."""
    if not isinstance(episodes, list):
        raise TypeError("no list of episodes")
    for episode in episodes:
        if missing := _EPISODE_KEYS - episode.keys():
            raise KeyError(*missing)
        for turn in episode["turns"]:
            if missing := _TURN_KEYS - turn.keys():
                raise KeyError(*missing)
            _compact_turn(turn, {})  # raises what a damaged turn would raise later
            "".join(turn["pictures"])  # raises TypeError unless all are text


def _fitting_contents(sets: Sequence[RecordedSet], run: Path, room: int) -> tuple[dict[str, Any], list[str]]:
    """Contents of the page, of the sets that fit into it, and the titles of the others.

    Tests come first, then the latest updates: early ones are missed least.
    """
    prompts: dict[str, int] = {}  # text -> its number; a prompt that turns share is in the page once
    pictures: dict[str, str | None] = {}
    contents: dict[str, dict[str, Any]] = {}
    updates = [recorded for recorded in sets if recorded.name.startswith("update-")]
    tests = [recorded for recorded in sets if recorded not in updates]
    for recorded in [*tests, *reversed(updates)]:
        episodes = [_compact_episode(episode, prompts) for episode in recorded.episodes]
        content = {"name": recorded.name, "title": recorded.title, "episodes": episodes}
        new_digests = _digests(recorded.episodes) - pictures.keys()
        new_pictures = {digest: picture_url(run, digest) for digest in new_digests}
        room -= len(json.dumps(content, ensure_ascii=False))
        room -= sum(len(url or "") for url in new_pictures.values())
        # The first set is shown whatever its size, for a page without any says nothing.
        if room < 0 and contents:
            break
        contents[recorded.name] = content
        pictures |= new_pictures
    in_order = [contents[recorded.name] for recorded in sets if recorded.name in contents]
    left_out = [recorded.title for recorded in sets if recorded.name not in contents]
    return {"sets": in_order, "prompts": list(prompts), "pictures": pictures}, left_out


def _digests(episodes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Digests of all pictures of some episodes."""
    digests: set[str] = set()
    for episode in episodes:
        for turn in episode["turns"]:
            digests.update(turn["pictures"])
    return digests


def _compact_episode(episode: Mapping[str, Any], prompts: dict[str, int]) -> dict[str, Any]:
    return {**episode, "turns": [_compact_turn(turn, prompts) for turn in episode["turns"]]}


def _compact_turn(turn: Mapping[str, Any], prompts: dict[str, int]) -> dict[str, Any]:
    """Compact a turn: prompts by their number, and of each token the text, log-probability, whether it is part of the
    action, and its advantage if that is not the turn's."""
    tokens = []
    for text, logprob, advantage, kind in turn["tokens"]:
        rounded = None if logprob is None else round(float(logprob), 3)
        token = [str(text), rounded, int(kind == "action")]
        # Most algorithms give all tokens of a turn the turn's advantage, which is in the page once.
        if advantage != turn["advantage"]:
            token.append(advantage)
        tokens.append(token)
    compact = {name: value for name, value in turn.items() if name not in ("prompt", "reply", "tokens")}
    compact["prompt"] = prompts.setdefault(str(turn["prompt"]), len(prompts))
    compact["tokens"] = tokens
    return compact
