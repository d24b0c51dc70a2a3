"""Fit a reward to labels outside of a run: those of a label store, or of any segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.basics import MAX_SEED
from sightline.config.blocks import checked_block
from sightline.errors import BadInput
from sightline.labels.store import LabelStore, StoredLabel, existing_store
from sightline.labels.types import Answer, Outcome, Question, preference, sentences_of
from sightline.preferences.config import LearnedConfig
from sightline.preferences.feedback.base import FeedbackConfig
from sightline.rewards.learned.config import FittingConfig
from sightline.rewards.learned.fitting import Examples, fit
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
    if config.model.reads_states:
        raise BadInput("labels hold frames, not states; choose another model than states")
    if not 0 <= seed <= MAX_SEED:
        raise BadInput(f"seed must be from 0 to {MAX_SEED}, not {seed}")
    if isinstance(labels, LabelStore):
        usable = _of_store(labels, config.feedback, goal)
    elif isinstance(labels, str | Path):
        with LabelStore(existing_store(Path(labels)), read_only=True) as store:
            usable = _of_store(store, config.feedback, goal)
    elif goal is not None:
        raise BadInput("goal is to choose among the labels of a store; leave it out for a list of labels")
    else:
        usable = _of_list(labels, config.feedback)
    if not usable:
        raise BadInput(f"there are no usable {config.feedback.noun} among these labels")
    shapes = {frames.shape for segments, _ in usable for frames in segments}
    if len(shapes) > 1:
        raise BadInput(f"the segments differ: {sorted(shapes)[:3]}; labels of one length and size can be learned from")
    (shape,) = shapes
    reward = config.make_reward(shape[1:], config.model.load_encoder(device), seed)
    if not isinstance(reward, EnsembleReward):
        raise BadInput(f"feedback={config.feedback.kind} learns from questions of its own; choose pairs")
    examples = Examples()
    for segments, value in usable:
        examples.add(tuple(reward.features_of(frames) for frames in segments), value)
    fit(reward, examples, config.feedback, shape[0], seed)
    reward.fit_normalizer(examples.steps())
    return reward


def _of_store(
    store: LabelStore, feedback: FeedbackConfig, goal: str | Sequence[str] | None
) -> list[tuple[list[np.ndarray], float]]:
    labels = [
        label
        for label in store.labels()
        if label.kind == feedback.question and label.answer.value is not None and feedback.teaches(label.answer.outcome)
    ]
    labels = _for_one_goal(labels, feedback, goal)
    if feedback.question == "rate":
        labels = _on_levels(labels, feedback)
    for label in labels:
        try:
            _answer(label.answer.value, feedback)
        except ValueError as error:
            raise BadInput(f"label {label.id} of '{store.folder}': {error}") from error
    return [
        ([store.segment(digest).frames for digest in label.segments], label.answer.value)
        for label in labels
        if label.answer.value is not None
    ]


def _for_one_goal(
    labels: list[StoredLabel], feedback: FeedbackConfig, goal: str | Sequence[str] | None
) -> list[StoredLabel]:
    goals = list(dict.fromkeys(label.goal for label in labels))
    listed = ", ".join(map(_in_words, goals))
    if goal is None:
        if len(goals) > 1:
            raise BadInput(f"these {feedback.noun} are for several goals, {listed}; say which: goal=…")
        return labels
    wanted = sentences_of(goal)
    if labels and wanted not in goals:
        raise BadInput(f"there are no {feedback.noun} for the goal {_in_words(wanted)}, only for {listed}")
    return [label for label in labels if label.goal == wanted]


def _in_words(goal: tuple[str, ...]) -> str:
    return f"'{' '.join(' / '.join(goal).split())}'"


def _on_levels(labels: list[StoredLabel], feedback: FeedbackConfig) -> list[StoredLabel]:
    """The ratings on as many levels as the feedback has; all must be on those unless its levels were chosen."""
    levels = sorted({label.levels for label in labels})
    chosen = [label for label in labels if label.levels == feedback.question_levels]
    if labels and (not chosen or (len(levels) > 1 and "levels" not in feedback.model_fields_set)):
        listed = " and ".join(map(str, levels))
        raise BadInput(
            f"these {feedback.noun} are on {listed} levels, not on {feedback.question_levels}; say "
            f"feedback={{'kind': '{feedback.kind}', 'levels': {levels[-1]}}}"
        )
    return chosen


def _of_list(labels: Sequence[Labelled], feedback: FeedbackConfig) -> list[tuple[list[np.ndarray], float]]:
    if not isinstance(labels, Iterable):
        raise BadInput(f"labels must be a label store or a list of (segments, answer), not {type(labels).__name__}")
    found = []
    for number, label in enumerate(labels, 1):
        try:
            segments, answer = label
        except (TypeError, ValueError) as error:
            raise BadInput(f"label {number} must be (segments, answer)") from error
        try:
            told = answer if isinstance(answer, Answer) else _answer(answer, feedback)
            question = Question.of_frames(feedback.question, segments, (), feedback.question_levels)
            if isinstance(answer, Answer):
                question.check_answer(answer)
        except ValueError as error:
            raise BadInput(f"label {number}: {error}") from error
        if told.value is not None and feedback.teaches(told.outcome):
            found.append(([segment.frames for segment in question.segments], told.value))
    return found


def _answer(number: Any, feedback: FeedbackConfig) -> Answer:
    """Answer that a number stands for; of a pair it may also be a probability that the second is preferred.

    Raises:
        ValueError: it is no number, or not one of those.
    """
    highest, meaning = 1, ""
    if feedback.question == "compare":
        meaning = " (0 first, 1 second, 0.5 equal)"
    elif feedback.question == "rate":
        highest, meaning = feedback.question_levels - 1, " (the level)"
    try:
        value = float(number)
    except (TypeError, ValueError, RuntimeError):
        value = float("nan")
    if not 0 <= value <= highest:
        shown = " ".join(repr(number).split())[:60]
        raise ValueError(f"the answer must be a number from 0 to {highest}{meaning}, not {shown}")
    return preference(value) if feedback.question == "compare" else Answer(Outcome.VALUE, value)
