"""The zero-shot reward: the similarity of a frame to the goal's words.

Method: goal-baseline regularisation (goal-baseline regularization), Rocamonde, Montesinos, Nava, Perez and Lindner,
"Vision-Language Models are Zero-Shot Reward Models for Reinforcement Learning", ICLR 2024, section 3.2. With the
frame's embedding x, the mean g of the goal sentences' embeddings, the mean b of the baseline's, and the unit vector u
from b to g:

    r = 1 - 1/2 || alpha * proj_L(x) + (1 - alpha) * x - g ||^2,      L the line through b and g.

The same without any matrix, with z = x - g and s = z.u, which is what is computed here:

    r = 1 - 1/2 [ (1 - (1 - alpha)^2) s^2 + (1 - alpha)^2 ||z||^2 ].

Without a baseline the reward is the cosine similarity to the goal, averaged over its sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from sightline import errors
from sightline.config.basics import Aspect, Resizing, check_words
from sightline.config.blocks import Dtype, RewardWording, checked_block
from sightline.errors import BadInput
from sightline.models.encoder_base import Encoder
from sightline.models.encoder_files import embedding_size, picture_side, weights_stamp
from sightline.models.encoders import load_encoder, warn_of_cropping
from sightline.models.familiarity import warn_of_unfamiliar_pictures
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel, check_score_every
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup

if TYPE_CHECKING:
    from sightline.config.recipe import AgentRecipe, ControlRecipe

DEFAULT_ALPHA = 0.5
Combine = Literal["mean", "min"]


class ZeroShotConfig(RewardConfig):
    """The similarity of a frame to the goal's words, regularised towards the direction from baseline to goal."""

    kind: Literal["zero_shot"] = "zero_shot"
    encoder: str = "bundled"
    """`bundled`, `bundled-deformables`, `Architecture/tag` (open_clip), `hf:owner/name` or `local-dir:/path`."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Strength of the regularisation in [0, 1]; without baseline there is none. Default 0.5."""
    batch_size: PositiveInt = 128
    """Frames per forward pass of the image tower."""
    device: str = "auto"
    """`auto`, a device such as `cpu` or `cuda:1`, `cuda:all` for every GPU, or several separated by commas, among which
    the frames are shared out."""
    dtype: Dtype = "auto"
    """What the encoder computes in; `auto`: bfloat16 where the GPU or the processor is made for it, else float32. A run
    keeps what it began with."""
    aspect: Aspect = "crop"
    """Frames that are not square: `crop` leaves them to the model's own transform (CLIP's cuts off both ends of the
    longer side), `pad` adds black bars, `squash` resizes without keeping the ratio."""
    resizing: Resizing = "torch"
    """Scaling of frames to the encoder's size: `torch` scales many in one call; `pillow` one by one, exactly as
    open_clip does it, five times as slowly; a few values differ by one grey level."""
    views: PositiveInt = 1
    """Views of several cameras in each frame, of equal width, side by side. Each is scored by itself."""
    combine: Combine = "mean"
    """The reward of several views: their `mean`, or their `min`, which is high only if all cameras see the goal."""
    keep_embeddings: bool = False
    """Keep every frame's embedding (float16) beside its transition, so that other words need no new frames."""

    wording: ClassVar[RewardWording] = RewardWording(
        "Reward under the words", "What the words reward", "the picture fits the words better", "Words are good"
    )

    @property
    def needs_words(self) -> bool:
        return True

    @property
    def words_alpha(self) -> float | None:
        return self.alpha

    @property
    def judges_single_frames(self) -> bool:
        return self.reward_class().window == 1

    @property
    def feature_bytes(self) -> float | None:
        if not self.keep_embeddings:
            return 0.0
        size = embedding_size(self.encoder)
        return None if size is None else 2.0 * size * self.views

    @property
    def feature_source(self) -> str | None:
        # All that decides about an embedding; words and alpha come after it.
        settings = (weights_stamp(self.encoder), self.device, self.dtype, self.aspect, self.resizing, self.views)
        return f"embeddings of {self.encoder} {settings}"

    @property
    def frame_pixels(self) -> int | None:
        side = picture_side(self.encoder)
        return None if side is None else self.views * side**2

    def check(self, recipe: ControlRecipe | AgentRecipe) -> None:
        check_words(recipe.goal, recipe.baseline, self.alpha, goal_required=False)
        score_every = recipe.evaluation.score_every if recipe.role == "control" else None
        if score_every is not None:
            check_score_every(self.reward_class(), score_every)

    def facts(self) -> dict[str, str]:
        facts = super().facts() | {"Encoder": self.encoder}
        if self.alpha is not None:
            facts["Alpha"] = str(self.alpha)
        return facts

    def build(self, context: RewardContext) -> RewardSetup:
        encoder = self._load_encoder()
        # A run embeds no further words, so the text tower is freed with this.
        model, warnings = from_words(
            context.goal, context.baseline, encoder, reward=self.reward_class(), alpha=self.alpha, **self.options()
        )
        if self.keep_embeddings:
            model.keeps_features = True
            model.feature_dtype = np.float16
        # Pictures that the encoder cannot judge are warned of before training.
        size = (encoder.image_size, encoder.image_size)
        frame = context.first_seen(size, False)
        doubts = model.doubts(frame[None])
        return RewardSetup(model, size, encoder=encoder, warnings=warnings, doubts=tuple(doubts))

    def reworded(self, goal: Sequence[str], baseline: Sequence[str], alpha: float | None) -> ZeroShotReward:
        encoder = self._load_encoder()
        return self.reward_class()(goal, baseline, alpha=alpha, encoder=encoder, warn=False, **self.options())

    def _load_encoder(self) -> Encoder:
        return load_encoder(self.encoder, self.device, self.dtype, self.batch_size, self.aspect, self.resizing)

    def reward_class(self) -> type[ZeroShotReward]:
        """The reward model that the block stands for."""
        return ZeroShotReward

    def options(self) -> dict[str, Any]:
        """Further arguments of `reward_class`."""
        return {"views": self.views, "combine": self.combine}


@dataclass(frozen=True)
class GoalBaselineHead:
    """The reward as a function of embeddings.

    Attributes:
        goal: float32[D], mean of unit vectors, not normalised again.
        baseline: float32[D], apart from the goal, or None.
        alpha: in [0, 1]; ignored without a baseline.
    """

    goal: np.ndarray
    baseline: np.ndarray | None
    alpha: float

    def __call__(self, embeddings: np.ndarray) -> np.ndarray:
        """float[N, D] unit vectors (any float type) -> float32[N] rewards."""
        x = embeddings.astype(np.float32, copy=False)
        # The mean over sentences of the cosine similarities, since all embeddings are unit vectors.
        if self.baseline is None:
            return np.asarray(x @ self.goal)
        # u, the direction from baseline to goal: what changes along it is what the words tell apart.
        direction = self.goal - self.baseline
        unit = direction / np.linalg.norm(direction)
        # z = x - g and s = z.u, the offset from the goal and its part along that direction.
        offset = x - self.goal
        along = offset @ unit
        # With alpha = 1 only s counts; with alpha = 0 the whole offset does.
        weight = (1 - self.alpha) ** 2
        squared_offset = np.einsum("nd,nd->n", offset, offset)
        squared_distance = (1 - weight) * along**2 + weight * squared_offset
        return np.asarray(1 - 0.5 * squared_distance, np.float32)


class ZeroShotReward(RewardModel):
    """The similarity of frames to a goal in words, from a frozen image-text encoder.

    >>> reward = ZeroShotReward("pole vertically upright on top of the cart", "pole and cart")
    >>> reward(frames)  # uint8[N, H, W, 3] -> float32[N]

    Args:
        goal: a sentence, or several whose embeddings are averaged.
        baseline: the same for what the picture shows anyway; may be empty, or None.
        alpha: strength of the regularisation in [0, 1]; None is 0.5 with a baseline and nothing without.
        encoder: a name (`bundled`, `Architecture/tag` of open_clip, `hf:owner/name`, `local-dir:/path`), or an encoder
            that is loaded already. Its text tower can be freed afterwards (`encoder.free_text_tower()`).
        views, combine: of several cameras, side by side in each frame; see `ZeroShotConfig`.
        device, dtype, batch_size, aspect, resizing: of an encoder that is given by name; see `ZeroShotConfig`.
        warn: give Python warnings of words, and of the first pictures, that the encoder was not taught.

    Raises:
        BadInput: no goal, goal and baseline that are equal or embedded at one point, an alpha outside [0, 1] or without
            a baseline, an unknown encoder, or settings of it that `ZeroShotConfig` refuses.
    """

    def __init__(
        self,
        goal: str | Sequence[str],
        baseline: str | Sequence[str] | None = (),
        *,
        alpha: float | None = None,
        views: int = 1,
        combine: Combine = "mean",
        encoder: str | Encoder = "bundled",
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int = 128,
        aspect: Aspect = "crop",
        resizing: Resizing = "torch",
        warn: bool = True,
    ) -> None:
        self.goal = _sentences(goal, "goal")
        self.baseline = _sentences(baseline, "baseline")
        self.alpha = alpha
        try:
            check_words(self.goal, self.baseline, alpha)
        except ValueError as error:
            raise BadInput(str(error)) from error
        # Checked as a recipe's, so that both refuse the same settings.
        settings = {
            "dtype": dtype,
            "batch_size": batch_size,
            "aspect": aspect,
            "resizing": resizing,
            "views": views,
            "combine": combine,
        }
        block = checked_block(ZeroShotConfig, settings)
        self.views = block.views
        self.combine = block.combine
        if isinstance(encoder, str):
            encoder = load_encoder(encoder, device, block.dtype, block.batch_size, block.aspect, block.resizing)
        elif not hasattr(encoder, "embed_frames"):
            raise BadInput(
                f"encoder must be a name, such as 'bundled', or a loaded encoder, not {type(encoder).__name__}"
            )
        self.encoder = encoder
        # Several sentences are averaged, which makes the reward depend less on the choice of words.
        goal_embedding = self.encoder.embed_texts(self.goal).mean(axis=0)
        baseline_embedding = None
        if self.baseline:
            baseline_embedding = self.encoder.embed_texts(self.baseline).mean(axis=0)
        # Without a distance there is no direction from baseline to goal.
        if baseline_embedding is not None and np.linalg.norm(goal_embedding - baseline_embedding) < 1e-6:
            raise BadInput(_why_equal(self.encoder, self.goal, self.baseline))
        self.head = GoalBaselineHead(goal_embedding, baseline_embedding, DEFAULT_ALPHA if alpha is None else alpha)
        if warn:
            warning = warn_of_unknown_words(self.encoder, (*self.goal, *self.baseline))
            if warning:
                errors.warn(warning)
        self._looks_at_pictures = warn

    def embed(self, clip: Clip) -> np.ndarray:
        """float32[T, N, views x D] embeddings of the frames' views; a tensor on the encoder's device if the frames are.

        Raises:
            BadInput: frames whose width is no multiple of the number of views.
        """
        assert clip.frames is not None, "a model that needs frames is given frames"
        # [T, N, H, views x W, 3] -> [T, N, views, H, W, 3] -> [T * N * views, H, W, 3]
        frames: Any = clip.frames
        if not self.reads_tensors:
            frames = to_numpy(frames)
        if self.views > 1:
            frames = split_views(frames, self.views)
        pictures = frames.reshape(-1, *frames.shape[-3:])
        # Once: later pictures of a run are of the same world.
        if self._looks_at_pictures and len(pictures):
            self._look_at(pictures)
        embeddings = self.encoder.embed_frames(pictures)
        return embeddings.reshape(*clip.shape, self.views * embeddings.shape[1])

    @property
    def reads_tensors(self) -> bool:  # type: ignore[override]
        """True if the encoder does; a subclass that reads frames in a way of its own may expect numpy's."""
        is_ours = type(self).embed is ZeroShotReward.embed and type(self).reward is RewardModel.reward
        return is_ours and bool(getattr(self.encoder, "reads_tensors", False))  # those of other people do not say

    def _look_at(self, pictures: np.ndarray) -> None:
        """Warn of the first pictures, if they are of no world that the encoder was taught."""
        self._looks_at_pictures = False
        unfamiliar = warn_of_unfamiliar_pictures(self.encoder, pictures)
        if unfamiliar:
            errors.warn(unfamiliar)

    def doubts(self, frames: np.ndarray) -> list[str]:
        views = split_views(frames, self.views)
        views = views.reshape(-1, *views.shape[-3:])
        height, width = views.shape[1:3]
        cropped = None
        if hasattr(self.encoder, "cut_off"):  # loaded encoders of other people may have none
            cropped = warn_of_cropping(self.encoder, height, width, "reward.aspect")
        unfamiliar = warn_of_unfamiliar_pictures(self.encoder, views)
        return [line for line in (cropped, unfamiliar) if line]

    def shrink_frames(self, frames: Any) -> Any:
        """Frames as small as the encoder makes each of their views."""
        shrink = getattr(self.encoder, "shrink_frames", None)  # loaded encoders of other people may have none
        if shrink is None or not len(frames):
            return frames
        if self.views == 1:
            return shrink(frames)
        # Each view is resized by itself, as the encoder would do it.
        views = split_views(frames, self.views)
        small = shrink(views.reshape(-1, *views.shape[2:]))
        return joined_views(small.reshape(*views.shape[:2], *small.shape[1:]))

    def compute_elsewhere(self, elsewhere: Callable[[Encoder], Encoder]) -> bool:
        self.encoder = elsewhere(self.encoder)
        return True

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N] from embeddings [T, N, views x D] of any float type."""
        features = to_numpy(features)
        embeddings = features.reshape(-1, features.shape[-1] // self.views)
        # Each view has a reward of its own, [T, N, views].
        rewards = self.head(embeddings).reshape(*clip.shape, self.views)
        if self.combine == "min":
            return np.asarray(rewards.min(axis=2))
        return np.asarray(rewards.mean(axis=2))


def split_views(frames: Any, views: int) -> Any:
    """Frames [..., H, views x W, 3], of numpy or torch, as [..., views, H, W, 3].

    Raises:
        BadInput: the width is no multiple of the number of views.
    """
    *batch, height, width, channels = frames.shape
    check_views(views, width)
    # [..., H, views, W, 3] first: a row of a frame holds a row of each view, one after the other.
    views_in_rows = frames.reshape(*batch, height, views, width // views, channels)
    return views_in_rows.swapaxes(-3, -4)


def joined_views(views: Any) -> Any:
    """Frames [N, views, H, W, 3] as [N, H, views x W, 3]: the inverse of `split_views`."""
    count, number, height, width, channels = views.shape
    return views.swapaxes(1, 2).reshape(count, height, number * width, channels)


def check_views(views: int, width: int) -> None:
    """Check that frames of a width hold so many views side by side."""
    if width % views:
        raise BadInput(f"a frame of {width} pixels' width does not hold {views} views side by side (reward.views)")


def _sentences(words: Any, name: str) -> tuple[str, ...]:
    """Sentences as a tuple. A string is one sentence; as a sequence, each of its letters would be one."""
    if words is None:
        return ()
    if isinstance(words, str) or not isinstance(words, Iterable):
        words = (words,)
    sentences = tuple(words)
    for sentence in sentences:
        if not isinstance(sentence, str):
            raise BadInput(f"{name} must be a sentence, or several in a list, not {type(sentence).__name__}")
        if any("\ud800" <= character <= "\udfff" for character in sentence):
            raise BadInput(f"{name} is not text in UTF-8")
    return sentences


def from_words(
    goal: Sequence[str],
    baseline: Sequence[str],
    encoder: Encoder,
    reward: type[ZeroShotReward] = ZeroShotReward,
    **options: Any,
) -> tuple[ZeroShotReward, tuple[str, ...]]:
    """A reward from words with a loaded encoder, whose text tower is freed; and warnings about the words."""
    model = reward(goal, baseline, encoder=encoder, warn=False, **options)
    warning = warn_of_unknown_words(encoder, (*goal, *baseline))
    encoder.free_text_tower()
    return model, (warning,) if warning else ()


def _why_equal(encoder: Encoder, goal: Sequence[str], baseline: Sequence[str]) -> str:
    """Reason in one line why goal and baseline have one embedding, and what to do."""
    # Unknown words that both have would not tell them apart either.
    apart = set(encoder.unknown_words(goal)) ^ set(encoder.unknown_words(baseline))
    words = [word for word in encoder.unknown_words((*goal, *baseline)) if word in apart]
    equal = "the encoder cannot tell goal and baseline apart: their embeddings are equal"
    if not words:
        return f"{equal}; use other words"
    return (
        f"{equal}, since '{encoder.name}' does not know the {_listed(words)}; use other words, or another encoder "
        "(reward.encoder, such as ViT-B-32/laion2b_s34b_b79k)"
    )


def warn_of_unknown_words(encoder: Encoder, sentences: Sequence[str]) -> str | None:
    """Warning in one line if the encoder does not know some of the words, else None."""
    unknown = encoder.unknown_words(sentences)
    if not unknown:
        return None
    pronoun = "it" if len(unknown) == 1 else "them"
    return (
        f"encoder '{encoder.name}' does not know the {_listed(unknown)}; expect little from a reward that rests on "
        f"{pronoun}"
    )


def _listed(words: Sequence[str]) -> str:
    """Words in quotes after their noun, such as "words 'a', 'b'"."""
    noun = "word" if len(words) == 1 else "words"
    return f"{noun} {', '.join(map(repr, words))}"
