"""What all blocks of a recipe share: strictness, sentences, and the rules for words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Strict(BaseModel):
    """Unknown keys are errors, and nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def tag_of(value: Any, key: str, default: str) -> str:
    """Which member of a union is meant, whether by plain data or by the member itself."""
    tag = value.get(key, default) if isinstance(value, dict) else getattr(value, key, None)
    return str(tag)


def _as_sentences(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _not_empty(sentence: str) -> str:
    if not sentence.strip():
        raise ValueError("a sentence is empty; write what the picture should show")
    return sentence.strip()


Sentence = Annotated[str, BeforeValidator(lambda s: _not_empty(s) if isinstance(s, str) else s)]
Sentences = Annotated[tuple[Sentence, ...], BeforeValidator(_as_sentences)]


def check_words(goal: Sequence[str], baseline: Sequence[str], alpha: float | None, goal_required: bool = True) -> None:
    """Refuse words that cannot make a reward.

    Raises:
        ValueError: no goal, an empty sentence, goal equal to baseline, alpha outside [0, 1], alpha without baseline.
    """
    if goal_required and not goal:
        raise ValueError(
            'there is no goal; say what the picture should show, for example goal="a rod standing upright"'
        )
    for sentence in (*goal, *baseline):
        _not_empty(sentence)
    if goal and sorted(goal) == sorted(baseline):
        raise ValueError("goal and baseline are the same words; the baseline should say what the picture shows anyway")
    if alpha is not None and not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} is outside [0, 1]")
    if alpha and goal and not baseline:
        raise ValueError(f"alpha={alpha} needs a baseline; add one or leave alpha out")
