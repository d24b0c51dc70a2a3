"""Fit a reward to labels outside of a run: those of a label store, or of any segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.basics import MAX_SEED
from sightline.config.blocks import checked_block
from sightline.errors import BadInput
from sightline.evaluation.statistics import spearman, wilson
from sightline.labels.store import LabelStore, existing_store
from sightline.labels.types import Answer, Question, Segment
from sightline.preferences.config import LearnedConfig
from sightline.preferences.feedback.base import FeedbackConfig
from sightline.preferences.stored_labels import answer_of, usable_labels
from sightline.rewards.learned.config import FittingConfig
from sightline.rewards.learned.fitting import Examples, Fit, fit, held_out
from sightline.rewards.learned.reward import EnsembleReward

Labelled = tuple[Sequence[np.ndarray], Answer | float]
"""The segments of a question, uint8[L, H, W, 3] or single frames uint8[H, W, 3], and its answer."""


def fit_reward(
    labels: LabelStore | str | Path | Sequence[Labelled],
    *,
    model: str | dict[str, Any] = "embeddings",
    feedback: str | dict[str, Any] = "pairs",
    goal: str | Sequence[str] | None = None,
    seed: int = 0,
    device: str = "auto",
    **fitting: Any,
) -> EnsembleReward:
    """Fit a reward to labels.

    >>> reward = fit_reward("runs/mine/labels")
    >>> reward.save("my-reward")

    Args:
        labels: a label store, its folder or its run's; or a list of (segments, answer). The segments are two for pairs
            and one for ratings and scores, each uint8[L, H, W, 3] or a frame uint8[H, W, 3]. The answer is a teacher's,
            or a number: 0 first, 1 second, 0.5 equal; the level of a rating; a score from 0 to 1.
        model: kind of reward network (`embeddings`, `cnn`, `resnet`), or its recipe block as a mapping.
        feedback: kind of labels to learn from (`pairs`, `ratings`, `scores`), or its recipe block.
        goal: the goal to learn, of a store that has labels for several.
        seed: of the networks' first weights and the minibatches.
        device: where the networks are.
        fitting: settings of `FittingConfig`, such as `epochs`.

    Raises:
        BadInput: there are no labels of that kind, or one is malformed; their segments differ in length or size; those
            of a store are for several goals, or on other levels.
        RunFailed: the loss is not finite.
    """
    # A name stands for the block of that kind with its defaults.
    if isinstance(model, str):
        model = {"kind": model}
    if isinstance(feedback, str):
        feedback = {"kind": feedback}
    fitting_block = checked_block(FittingConfig, fitting)
    block = {"model": model, "feedback": feedback, "fitting": fitting_block, "device": device}
    config = checked_block(LearnedConfig, block)
    return fit_labels(labels, config, goal, seed).reward


@dataclass(frozen=True)
class FittedReward:
    """A reward that was fitted to labels, and how well it judges those that it was not fitted to.

    Attributes:
        labels, held_out: how many there were, and how many of them were held out.
        fit: losses and accuracies.
        interval: Wilson's 95 % interval of the accuracy on held-out pairs that are decided; None without any.
        rank_correlation: Spearman's, of predicted and true returns of held-out segments; None where the true ones are
            unknown.
    """

    reward: EnsembleReward
    labels: int
    held_out: int
    fit: Fit
    interval: tuple[float, float] | None
    rank_correlation: float | None


def fit_labels(
    labels: LabelStore | str | Path | Sequence[Labelled],
    config: LearnedConfig,
    goal: str | Sequence[str] | None,
    seed: int,
) -> FittedReward:
    """Fit a reward as `fit_reward` does, by a recipe's block, and say how good it is.

    Raises:
        BadInput, RunFailed: see `fit_reward`.
    """
    if config.model.reads_states:
        raise BadInput(
            "which of a label's numbers are the state is known to a run only: choose another model, or train with "
            "reward.labels_from"
        )
    if not isinstance(seed, Integral) or not 0 <= seed <= MAX_SEED:
        raise BadInput(f"seed must be a whole number from 0 to {MAX_SEED}, not {seed!r}")
    if isinstance(labels, str | Path):
        with LabelStore(existing_store(Path(labels)), read_only=True) as store:
            return fit_labels(store, config, goal, seed)
    if isinstance(labels, LabelStore):
        store_labels = usable_labels(labels, config.feedback, goal, config.labels_any_goal)
        return _fit([(label.segments, value) for label, value in store_labels], labels.segment, config, seed)
    if goal is not None:
        raise BadInput("goal is to choose among the labels of a store; leave it out for a list of labels")
    by_digest: dict[str, Segment] = {}
    digests_and_values = []
    for segments, value in _of_list(labels, config.feedback):
        by_digest |= {segment.digest: segment for segment in segments}
        digests_and_values.append((tuple(segment.digest for segment in segments), value))
    return _fit(digests_and_values, by_digest.__getitem__, config, seed)


def _fit(
    labels: list[tuple[tuple[str, ...], float]], segment_of: Callable[[str], Segment], config: LearnedConfig, seed: int
) -> FittedReward:
    """Fit to labels of segments that are named by their digests; the frames of one segment are in memory at a time."""
    if not labels:
        raise BadInput(f"there are no usable {config.feedback.noun} among these labels")
    first_digest = labels[0][0][0]
    shape = segment_of(first_digest).frames.shape  # [L, H, W, 3]
    encoder = config.model.load_encoder(config.device)
    reward = config.make_reward(shape[1:], encoder, seed)
    if not isinstance(reward, EnsembleReward):
        raise BadInput(f"feedback={config.feedback.kind} learns from questions of its own; choose pairs")

    # A segment may be in many pairs: its features are computed once.
    features: dict[str, np.ndarray] = {}
    true_returns: dict[str, float] = {}
    examples = Examples()
    for digests, value in labels:
        for digest in digests:
            if digest not in features:
                segment = segment_of(digest)
                _check_shape(segment.frames.shape, shape, config.labels_resize)
                features[digest] = reward.features_of(segment.frames)
                true_returns[digest] = segment.true_return
        examples.add(tuple(features[digest] for digest in digests), value)
    result = fit(reward, examples, config.feedback, shape[0], seed)
    reward.fit_normalizer(examples.steps())

    # Interval of the accuracy on the held-out pairs that are decided.
    test = np.flatnonzero(held_out(len(examples), reward.fitting.held_out))
    decided = sum(labels[i][1] != 0.5 for i in test)
    interval = None
    if decided and not np.isnan(result.held_out_accuracy):
        interval = wilson(round(result.held_out_accuracy * decided), decided)

    # Predicted and true returns of the held-out segments.
    predicted = []
    true = []
    for i in test:
        for digest in labels[i][0]:
            predicted.append(float(reward.raw_reward(features[digest]).sum()))
            true.append(true_returns[digest])
    correlation = spearman(np.array(predicted), np.array(true))
    return FittedReward(reward, len(examples), len(test), result, interval, correlation)


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...], may_resize: bool) -> None:
    """Check that a segment can be learned from beside the first one.

    Raises:
        BadInput: segments differ in length, or in size though none may be resized.
    """
    if shape[0] == expected[0] and (shape == expected or may_resize):
        return
    hint = ""
    if shape[0] == expected[0]:
        hint = "; reward.labels_resize=true takes other sizes"
    raise BadInput(
        f"the segments differ: {sorted((expected, shape))}; labels of one length and size can be learned from{hint}"
    )


def _of_list(labels: Sequence[Labelled], feedback: FeedbackConfig) -> list[tuple[Sequence[Segment], float]]:
    """Segments and values of a list of labels, without those that teach nothing."""
    if not isinstance(labels, Iterable):
        raise BadInput(f"labels must be a label store or a list of (segments, answer), not {type(labels).__name__}")
    usable: list[tuple[Sequence[Segment], float]] = []
    for number, label in enumerate(labels, 1):
        try:
            frames, answer = label
        except (TypeError, ValueError) as error:
            raise BadInput(f"label {number} must be (segments, answer)") from error
        try:
            checked = answer if isinstance(answer, Answer) else answer_of(answer, feedback)
            question = Question.of_frames(feedback.question, frames, (), feedback.question_levels)
            if isinstance(answer, Answer):
                question.check_answer(answer)
        except ValueError as error:
            raise BadInput(f"label {number}: {error}") from error
        if checked.value is not None and feedback.teaches(checked.outcome):
            usable.append((question.segments, checked.value))
    return usable
