"""Base of all recipe blocks: strict validation, and the types of goal and baseline sentences."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

MAX_SENTENCES = 1_000
"""Sentences of a goal, at most."""
MAX_SENTENCE = 10_000
"""Characters of a sentence, at most. Encoders read some dozens of words; tokenising megabytes takes minutes."""
MAX_SEED = 2**32 - 1
"""Largest seed that NumPy, PyTorch and Gymnasium all accept."""

LARGEST = 2**63 - 1
"""Largest whole number of 64 bits."""
MAX_EPISODES = 1_000_000
"""Episodes of a panel, at most: more would take weeks, and their seeds all of the memory."""

Workers = Literal["inline", "processes"]
Episodes = Annotated[int, Field(ge=1, le=MAX_EPISODES)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Address = Annotated[str, Field(min_length=1)]
Aspect = Literal["crop", "pad", "squash"]
"""Preprocessing of frames that are not square, before an encoder reads them: `crop` leaves them to the model's own
transform, which for CLIP cuts off both ends of the longer side (some models squash by themselves); `pad` adds black
bars; `squash` resizes without keeping the ratio."""
Resizing = Literal["torch", "pillow"]
"""Scaling of frames to the size that an encoder reads: `torch` scales many in one call; `pillow` one by one, exactly as
open_clip does it, which takes five times as long and differs from `torch` by one grey level in a few values."""


class Strict(BaseModel):
    """Base class of recipe blocks: unknown keys are errors, numbers are finite, instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_endless_number(cls, value: Any) -> Any:
        """Refuse whole numbers that no library can count to."""
        numbers = value if isinstance(value, list | tuple) else (value,)
        # 64 bits are what files and tensors hold; Python alone counts further.
        for number in numbers:
            if isinstance(number, int) and abs(number) > LARGEST:
                raise ValueError("is too large")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse booleans for numbers: YAML reads `yes` as true, which Python would count as 1."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            # `int | None` and `Annotated[int, …] | None` have a number among their members.
            members = [getattr(member, "__origin__", member) for member in get_args(annotation) or (annotation,)]
            if any(member in (int, float) for member in members):
                raise ValueError("must be a number, not true or false (YAML reads yes, no, on and off as these)")
        return value


def tag_of(value: Any, key: str, default: str) -> str:
    """Discriminator of a tagged union, for plain data as well as for instances."""
    if isinstance(value, dict):
        return str(value.get(key, default))
    return str(getattr(value, key, None))


def _as_sentences(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) > MAX_SENTENCES:
        raise ValueError(f"{len(value)} sentences are too many; at most {MAX_SENTENCES} are averaged")
    if isinstance(value, str):
        return [value]
    return value


def _goal(value: Any) -> Any:
    if value is None:
        raise ValueError("""null is not a sentence; leave it out, or write one (the word itself: "goal='null'")""")
    return value


def _checked(sentence: str) -> str:
    if not sentence.strip():
        raise ValueError("a sentence is empty; write what the picture should show")
    if len(sentence) > MAX_SENTENCE:
        raise ValueError(f"a sentence has {len(sentence)} characters; at most {MAX_SENTENCE} are read")
    return sentence.strip()


Sentence = Annotated[str, BeforeValidator(lambda value: _checked(value) if isinstance(value, str) else value)]
Sentences = Annotated[tuple[Sentence, ...], BeforeValidator(_as_sentences)]
Goal = Annotated[Sentences, BeforeValidator(_goal)]
Baseline = Annotated[Sentences, BeforeValidator(lambda value: () if value is None else value)]


def check_words(goal: Sequence[str], baseline: Sequence[str], alpha: float | None, goal_required: bool = True) -> None:
    """Check that goal, baseline and alpha define a reward.

    Args:
        goal: goal sentences.
        baseline: baseline sentences, possibly none.
        alpha: strength of the goal-baseline regularisation, in [0, 1]; None for the default.
        goal_required: refuse an empty goal.

    Raises:
        ValueError: no goal, an empty or huge sentence, too many, goal equal to baseline, alpha outside [0, 1], alpha
            without baseline.
    """
    if goal_required and not goal:
        raise ValueError(
            'there is no goal; say what the picture should show, for example goal="a rod standing upright"'
        )
    for sentences in (goal, baseline):
        for sentence in _as_sentences(sentences):
            _checked(sentence)
    if goal and sorted(goal) == sorted(baseline):
        raise ValueError("goal and baseline are the same words; the baseline should say what the picture shows anyway")
    if alpha is not None and not isinstance(alpha, Real):
        raise ValueError(f"alpha must be a number in [0, 1], not {type(alpha).__name__}")
    if alpha is not None and not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} is outside [0, 1]")
    if alpha and goal and not baseline:
        raise ValueError(f"alpha={alpha} needs a baseline; add one or leave alpha out (in a recipe: alpha=null)")


def addresses_of(url: str | Sequence[str]) -> list[str]:
    """The addresses of one server or of several.

    Raises:
        ValueError: one is named twice.
    """
    addresses = [url] if isinstance(url, str) else list(url)
    if len(set(addresses)) < len(addresses):
        raise ValueError("url: an address is named twice; name each server once")
    return addresses
