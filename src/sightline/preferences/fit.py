"""Fit a reward to labels outside of a run: those of a label store, or of any segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from sightline.preferences.existing import answer_of, usable_labels
from sightline.preferences.feedback.base import FeedbackConfig
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
    config = checked_block(
        LearnedConfig,
        {
            "model": {"kind": model} if isinstance(model, str) else model,
            "feedback": {"kind": feedback} if isinstance(feedback, str) else feedback,
            "fitting": checked_block(FittingConfig, fitting),
            "device": device,
        },
    )
    return fit_labels(labels, config, goal, seed).reward


@dataclass(frozen=True)
class FittedReward:
    """A reward that was fitted to labels, and how well it judges those that it was not fitted to.

    Attributes:
        labels, held_out: how many there were, and how many of them were held out.
        fit: losses and accuracies.
        interval: Wilson's 95 % interval of the accuracy on held-out pairs that are decided; None without any.
        rank_correlation: Spearman's, of what it says of held-out segments with their true returns; None where these
            are unknown.
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
        raise BadInput("labels hold frames, not states; choose another model than states")
    if not 0 <= seed <= MAX_SEED:
        raise BadInput(f"seed must be from 0 to {MAX_SEED}, not {seed}")
    if isinstance(labels, LabelStore):
        usable = _of_store(labels, config, goal)
    elif isinstance(labels, str | Path):
        with LabelStore(existing_store(Path(labels)), read_only=True) as store:
            usable = _of_store(store, config, goal)
    elif goal is not None:
        raise BadInput("goal is to choose among the labels of a store; leave it out for a list of labels")
    else:
        usable = _of_list(labels, config.feedback)
    if not usable:
        raise BadInput(f"there are no usable {config.feedback.noun} among these labels")
    shapes = {segment.frames.shape for segments, _ in usable for segment in segments}
    if len(shapes) > 1:
        raise BadInput(f"the segments differ: {sorted(shapes)[:3]}; labels of one length and size can be learned from")
    (shape,) = shapes
    reward = config.make_reward(shape[1:], config.model.load_encoder(config.device), seed)
    if not isinstance(reward, EnsembleReward):
        raise BadInput(f"feedback={config.feedback.kind} learns from questions of its own; choose pairs")
    examples = Examples()
    for segments, value in usable:
        examples.add(tuple(reward.features_of(segment.frames) for segment in segments), value)
    fitted = fit(reward, examples, config.feedback, shape[0], seed)
    reward.fit_normalizer(examples.steps())
    return _judged(reward, fitted, usable, examples)


def _judged(
    reward: EnsembleReward, fitted: Fit, usable: list[tuple[Sequence[Segment], float]], examples: Examples
) -> FittedReward:
    """The fitted reward with what held-out labels and true returns say of it."""
    chosen = np.flatnonzero(held_out(len(examples), reward.fitting.held_out))
    decided = sum(usable[i][1] != 0.5 for i in chosen)
    interval = None
    if decided and not np.isnan(fitted.held_out_accuracy):
        interval = wilson(round(fitted.held_out_accuracy * decided), decided)
    told, true = [], []
    for i in chosen:
        for segment, features in zip(usable[i][0], examples.features[i], strict=True):
            told.append(float(reward.raw_reward(features).sum()))
            true.append(segment.true_return)
    correlation = spearman(np.array(told), np.array(true))
    return FittedReward(reward, len(examples), len(chosen), fitted, interval, correlation)


def _of_store(
    store: LabelStore, config: LearnedConfig, goal: str | Sequence[str] | None
) -> list[tuple[Sequence[Segment], float]]:
    labels = usable_labels(store, config.feedback, goal, config.labels_any_goal)
    return [([store.segment(digest) for digest in label.segments], value) for label, value in labels]


def _of_list(labels: Sequence[Labelled], feedback: FeedbackConfig) -> list[tuple[Sequence[Segment], float]]:
    if not isinstance(labels, Iterable):
        raise BadInput(f"labels must be a label store or a list of (segments, answer), not {type(labels).__name__}")
    found: list[tuple[Sequence[Segment], float]] = []
    for number, label in enumerate(labels, 1):
        try:
            segments, answer = label
        except (TypeError, ValueError) as error:
            raise BadInput(f"label {number} must be (segments, answer)") from error
        try:
            told = answer if isinstance(answer, Answer) else answer_of(answer, feedback)
            question = Question.of_frames(feedback.question, segments, (), feedback.question_levels)
            if isinstance(answer, Answer):
                question.check_answer(answer)
        except ValueError as error:
            raise BadInput(f"label {number}: {error}") from error
        if told.value is not None and feedback.teaches(told.outcome):
            found.append((question.segments, told.value))
    return found
