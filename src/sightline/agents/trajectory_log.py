"""Log of trajectories: the prompts, pictures, replies, tokens and facts of some episodes, as JSON in the run folder.

`reports/trajectories_page.py` makes a page of the log: a key that is written here is read there.
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
THOUGHT = "thought"
ACTION = "action"
Token = tuple[str, float | None, float | None, str]
"""Text, natural log-probability, advantage, and `thought` or `action`; None is unknown."""


def trajectory_log(
    trajectories: Sequence[Trajectory], credits: Sequence[Advantages | None] | None = None, vlm: VLM | None = None
) -> tuple[list[dict[str, Any]], dict[str, Picture]]:
    """Convert trajectories to plain data for JSON.

    Args:
        credits: one for each trajectory; None if nothing was learned from them.
        vlm: decodes the tokens of the replies. Without it, or where a reply has no tokens, a reply is divided into its
            action and the text before and after that.

    Returns:
        A record for each trajectory, and the pictures that they name: digest -> picture.
    """
    if credits is None:
        credits = [None] * len(trajectories)
    records: list[dict[str, Any]] = []
    pictures: dict[str, Picture] = {}
    for trajectory, credit in zip(trajectories, credits, strict=True):
        records.append(_episode_record(trajectory, credit, vlm))
        for turn in trajectory.turns:
            pictures |= {picture.digest: picture for picture in turn.exchange.pictures}
    return records, pictures


def write_trajectory_log(
    run: RunFolder, name: str, records: Sequence[Mapping[str, Any]], pictures: Mapping[str, Picture]
) -> None:
    """Write `trajectories/<name>.json`, and each picture once as `trajectories/pictures/<digest>.png`.

    The pictures are written first, and every file whole or not at all: so every picture that a record names exists.

    Args:
        name: letters, digits, `-`, `_` and `.`, such as `update-0004`.

    Raises:
        ValueError: the name has other characters.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"'{name}' cannot name a file")
    folder = run.path / TRAJECTORIES
    document = {"format": FORMAT, "episodes": list(records)}
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    with run.writing():
        picture_folder = folder / PICTURES
        picture_folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures.values():
            PictureFiles(picture_folder, flat=True).add(picture.pixels)
        # A reply may contain half of a surrogate pair, which UTF-8 cannot encode.
        write_atomically(folder / f"{name}.json", text.encode("utf-8", "replace"))


def _episode_record(trajectory: Trajectory, credit: Advantages | None, vlm: VLM | None) -> dict[str, Any]:
    turns = [_turn_record(turn, credit, number, vlm) for number, turn in enumerate(trajectory.turns)]
    return {
        "seed": trajectory.seed,
        "member": trajectory.member,
        "kind": trajectory.kind,
        "success": trajectory.success,
        "return": _finite(trajectory.env_return),
        "truncated": trajectory.truncated,
        "mistakes": trajectory.mistakes,
        "error": trajectory.error,
        "turns": turns,
    }


def _turn_record(turn: Turn, credit: Advantages | None, number: int, vlm: VLM | None) -> dict[str, Any]:
    advantage = value = None
    if credit is not None:
        advantage = _finite(credit.advantages[number])
        if credit.returns is not None:  # only algorithms with a critic have values
            value = _finite(turn.value)
    # The turn's advantage is logged in any case, that of its tokens only if they were trained on.
    is_trained_on = turn.prompt is not None and turn.on_policy
    token_advantage = advantage if is_trained_on else None

    reply = turn.reply
    failure = reply.failure and reply.failure.value
    correct_facts = {name: same_text(reply.stated.get(name, ""), fact) for name, fact in turn.facts.items()}
    return {
        "prompt": turn.exchange.text,
        "pictures": [picture.digest for picture in turn.exchange.pictures],
        "reply": turn.sample.text,
        "finished": turn.sample.finished,
        "tokens": tokens_of(turn, token_advantage, vlm),
        "action": reply.action,
        "failure": failure,
        "played": turn.played,
        "legal": turn.legal,
        "legal_actions": list(turn.legal_actions),
        "stated": dict(reply.stated),
        "facts": dict(turn.facts),
        "true": correct_facts,
        "reward": _finite(turn.reward),
        "value": value,
        "advantage": advantage,
        "credited": turn.on_policy,
    }


def tokens_of(turn: Turn, advantage: float | None, vlm: VLM | None) -> list[Token]:
    """Divide the reply's text among its tokens; joined, the texts of the tokens are the reply's text.

    Where several tokens make up one character, the first of them has it. Tokens that are not in the text, such as the
    one that ends the reply, are empty.
    """
    ids = [int(token) for token in turn.sample.ids]
    text = turn.sample.text
    if vlm is None or not ids:
        return _tokens_by_span(text, turn.reply.span, advantage)
    tokens: list[Token] = []
    start = 0
    sampled = zip(vlm.offsets(ids), turn.sample.logprobs, turn.action_tokens, strict=True)
    for (_, stop), logprob, is_action in sampled:
        end = max(stop, start)  # a byte of a character that is finished later adds nothing
        kind = ACTION if is_action else THOUGHT
        tokens.append((text[start:end], _finite(logprob), advantage, kind))
        start = end
    if start < len(text):
        tokens.append((text[start:], None, advantage, THOUGHT))
    return tokens


def _tokens_by_span(text: str, span: tuple[int, int] | None, advantage: float | None) -> list[Token]:
    """Divide a reply without tokens into the text before the action, the action, and the text after it."""
    start, end = span or (len(text), len(text))
    pieces = ((text[:start], THOUGHT), (text[start:end], ACTION), (text[end:], THOUGHT))
    return [(piece, None, advantage, kind) for piece, kind in pieces if piece]


def _finite(value: float) -> float | None:
    """The number, or None if JSON cannot hold it."""
    if not math.isfinite(value):
        return None
    return float(value)
