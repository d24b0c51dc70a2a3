"""Episodes that are kept to be read: every look, reply, token and fact, as plain data in the run folder.

`reports/trajectories_page.py` makes a page of them, so what is written here is read there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.agents.types import Advantages, Trajectory, Turn, same_text
from sightline.images import Picture, PictureFiles
from sightline.models.vlm.model import VLM
from sightline.runs.files import FORMAT, write_atomically
from sightline.runs.folder import PICTURES, TRAJECTORIES, RunFolder

LOGGED_EPISODES = 32
"""Episodes of an update, and of each picture condition, that are written."""
THOUGHT, ACTION = "thought", "action"
Token = tuple[str, float | None, float | None, str]
"""Text, natural log-probability, advantage, and `thought` or `action`; None is unknown."""


def trajectory_log(
    trajectories: Sequence[Trajectory], credits: Sequence[Advantages | None] | None = None, vlm: VLM | None = None
) -> tuple[list[dict[str, Any]], dict[str, Picture]]:
    """What happened, as plain data for JSON.

    Args:
        credits: one for each trajectory; None if nothing was learned from them.
        vlm: whose tokens the replies are made of. Without it, or where a reply has no tokens, what stands for the
            action is told apart from the rest of the text, and nothing more.

    Returns:
        A record for each trajectory, and the pictures that they name: digest -> picture.
    """
    credits = credits if credits is not None else [None] * len(trajectories)
    records = [_episode(one, credit, vlm) for one, credit in zip(trajectories, credits, strict=True)]
    pictures = {
        picture.digest: picture for one in trajectories for turn in one.turns for picture in turn.exchange.pictures
    }
    return records, pictures


def write_trajectory_log(
    run: RunFolder, name: str, records: Sequence[Mapping[str, Any]], pictures: Mapping[str, Picture]
) -> None:
    """Write `trajectories/<name>.json`, and each picture once as `trajectories/pictures/<digest>.png`.

    The pictures come first and every file whole or not at all, so no record names a picture that is not there.

    Args:
        name: letters, digits, `-`, `_` and `.`, such as `update-0004`.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"'{name}' cannot name a file")
    folder = run.path / TRAJECTORIES
    document = {"format": FORMAT, "episodes": list(records)}
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    with run.writing():
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for picture in pictures.values():
            PictureFiles(folder / PICTURES, flat=True).add(picture.pixels)
        # A reply may hold half of a surrogate pair, which no file can.
        write_atomically(folder / f"{name}.json", text.encode("utf-8", "replace"))


def _episode(trajectory: Trajectory, credit: Advantages | None, vlm: VLM | None) -> dict[str, Any]:
    return {
        "seed": trajectory.seed,
        "member": trajectory.member,
        "kind": trajectory.kind,
        "success": trajectory.success,
        "return": _finite(trajectory.env_return),
        "truncated": trajectory.truncated,
        "mistakes": trajectory.mistakes,
        "error": trajectory.error,
        "turns": [_turn(turn, credit, i, vlm) for i, turn in enumerate(trajectory.turns)],
    }


def _turn(turn: Turn, credit: Advantages | None, index: int, vlm: VLM | None) -> dict[str, Any]:
    advantage = None if credit is None else _finite(credit.advantages[index])
    valued = credit is not None and credit.returns is not None
    learned = turn.prompt is not None and turn.on_policy
    reply = turn.reply
    return {
        "prompt": turn.exchange.text,
        "pictures": [picture.digest for picture in turn.exchange.pictures],
        "reply": turn.sample.text,
        "finished": turn.sample.finished,
        "tokens": tokens_of(turn, advantage if learned else None, vlm),
        "action": reply.action,
        "failure": None if reply.failure is None else reply.failure.value,
        "played": turn.played,
        "legal": turn.legal,
        "legal_actions": list(turn.legal_actions),
        "stated": dict(reply.stated),
        "facts": dict(turn.facts),
        "true": {name: same_text(reply.stated.get(name, ""), fact) for name, fact in turn.facts.items()},
        "reward": _finite(turn.reward),
        "value": _finite(turn.value) if valued else None,
        "advantage": advantage,
        "credited": turn.on_policy,
    }


def tokens_of(turn: Turn, advantage: float | None, vlm: VLM | None) -> list[Token]:
    """The reply in pieces that together are its text.

    A character that several tokens make up is given to the first of them; tokens that are not in the text, such as the
    one that ends the reply, are empty.
    """
    ids = [int(token) for token in turn.sample.ids]
    text = turn.sample.text
    if vlm is None or not ids:
        return _pieces(text, turn.reply.span, advantage)
    tokens: list[Token] = []
    reached = 0
    logprobs = zip(vlm.offsets(ids), turn.sample.logprobs, turn.action_tokens, strict=True)
    for (_, end), logprob, acts in logprobs:
        piece, reached = text[reached : max(end, reached)], max(end, reached)
        tokens.append((piece, _finite(logprob), advantage, ACTION if acts else THOUGHT))
    return [*tokens, (text[reached:], None, advantage, THOUGHT)] if reached < len(text) else tokens


def _pieces(text: str, span: tuple[int, int] | None, advantage: float | None) -> list[Token]:
    """The same without tokens: what comes before the action, the action, and what comes after."""
    start, end = span or (len(text), len(text))
    pieces = ((text[:start], THOUGHT), (text[start:end], ACTION), (text[end:], THOUGHT))
    return [(piece, None, advantage, kind) for piece, kind in pieces if piece]


def _finite(value: float) -> float | None:
    """A number that JSON has."""
    return float(value) if math.isfinite(value) else None
