"""Labels of a label store, whoever gave them, as a reward model learns from them.

store ──► answers of the kind that is learned from, for one goal ──► segments, or their states ──► features, value
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import BadInput
from sightline.labels.store import LabelStore, StoredLabel, existing_store
from sightline.labels.types import Answer, Lesson, Outcome, Segment, preference, sentences_of
from sightline.preferences.feedback.base import FeedbackConfig

if TYPE_CHECKING:
    from sightline.preferences.settings import LearnedSettings
    from sightline.rewards.learned.reward import EnsembleReward, LearnedReward


def usable_labels(
    store: LabelStore, feedback: FeedbackConfig, goal: str | Sequence[str] | None, any_goal: bool = False
) -> list[tuple[StoredLabel, float]]:
    """Labels of a store with their values, of the kind that the feedback learns from.

    Args:
        goal: the goal that they must be for; None if all are for one.
        any_goal: take them whatever goal they are for.

    Raises:
        BadInput: they are for several goals, or for another; ratings on other levels; or a value that is none.
    """
    labels = []
    for label in store.labels():
        # A kind of feedback is only asked about outcomes of its own questions.
        if label.kind != feedback.question or label.answer.value is None:
            continue
        if feedback.teaches(label.answer.outcome):
            labels.append(label)
    if not any_goal:
        labels = _for_one_goal(labels, feedback, goal)
    if feedback.question == "rate":
        labels = _on_levels(labels, feedback)
    for label in labels:
        try:
            answer_of(label.answer.value, feedback)
        except ValueError as error:
            raise BadInput(f"label {label.id} of '{store.folder}': {error}") from error
    return [(label, label.answer.value) for label in labels if label.answer.value is not None]


def lessons_of(
    folders: Sequence[str],
    config: LearnedSettings,
    reward: LearnedReward,
    goal: tuple[str, ...],
    frame_shape: Sequence[int],
    warn: Callable[[str], None],
) -> list[Lesson]:
    """Read the labels of stores, or of runs, as a run's own reward model learns them; a label that is in several of
    them, as after an import, counts once.

    Args:
        config: the recipe's block: which labels are learned from, and what is allowed of them.
        goal: the run's.
        frame_shape: (H, W, 3) of the frames that the run's teacher is shown.
        warn: told in one line of labels that contradict each other.

    Raises:
        BadInput: there is no such store; or its labels are of another kind, goal, length or frame size than the run's,
            or without the states that the reward model reads.
    """
    from sightline.rewards.learned.reward import EnsembleReward

    if not isinstance(reward, EnsembleReward):
        raise BadInput(f"feedback={config.feedback.kind} learns from questions of its own; leave out labels_from")
    lessons: list[Lesson] = []
    read: set[tuple[str, str]] = set()
    for folder in folders:
        with LabelStore(existing_store(Path(folder)), read_only=True) as store:
            try:
                labels = usable_labels(store, config.feedback, goal, config.labels_any_goal)
            except BadInput as error:
                raise BadInput(
                    f"labels_from '{folder}': {error}; reward.labels_any_goal=true takes any goal"
                ) from error
            if not labels:
                raise BadInput(f"there are no usable {config.feedback.noun} in '{folder}'")
            new = [(label, value) for label, value in labels if (label.key, label.time) not in read]
            read |= {(label.key, label.time) for label, _ in new}
            lessons += _lessons(new, store, config, reward, frame_shape)

    # Labels of one question contradict each other if they are more than half of the scale apart.
    highest = max(config.feedback.question_levels - 1, 1)
    contradictions = 0
    for values in _values_by_question(lessons).values():
        contradictions += max(values) - min(values) > highest / 2
    if contradictions:
        warn(
            f"{contradictions} {config.feedback.noun} in labels_from have labels that contradict each other; all of "
            "them are learned from. `sightline label stats` shows who said what"
        )
    return lessons


def _lessons(
    labels: Sequence[tuple[StoredLabel, float]],
    store: LabelStore,
    config: LearnedSettings,
    reward: EnsembleReward,
    frame_shape: Sequence[int],
) -> Iterator[Lesson]:
    """Labels with the features of their segments.

    Raises:
        BadInput: naming the store, what differs, and how it is allowed.
    """
    features: dict[str, np.ndarray] = {}  # a segment may be in many pairs
    for label, value in labels:
        for digest in label.segments:
            if digest in features:
                continue
            segment = store.segment(digest)
            reward_input = _states(segment, reward, store) if config.model.reads_states else segment.frames
            if len(reward_input) != config.segment:
                raise BadInput(
                    f"the labels in '{store.folder}' are of segments of {len(reward_input)} steps, and this run's have "
                    f"{config.segment}; say reward.segment={len(reward_input)}"
                )
            shape = segment.frames.shape[1:]
            if not config.model.reads_states and shape != tuple(frame_shape) and not config.labels_resize:
                raise BadInput(
                    f"the labels in '{store.folder}' are of frames of {shape[0]}x{shape[1]}, and this run's have "
                    f"{frame_shape[0]}x{frame_shape[1]}; say reward.frame_size=[{shape[0]},{shape[1]}], or allow it "
                    "by reward.labels_resize=true"
                )
            features[digest] = reward.features_of(reward_input)
        yield Lesson(label.segments, tuple(features[digest] for digest in label.segments), value, label.goal)


def _states(segment: Segment, reward: EnsembleReward, store: LabelStore) -> np.ndarray:
    """States of a segment as the reward model reads them, without the actions that may stand behind them."""
    shape = reward.seen_shape
    if segment.states is None or len(shape) != 1 or segment.states.shape[1] < shape[0]:
        content = "no states" if segment.states is None else f"states of {segment.states.shape[1]} numbers"
        raise BadInput(
            f"the labels in '{store.folder}' have {content}, and reward.model.kind=states reads "
            f"{'x'.join(map(str, shape))}; choose a model that reads frames"
        )
    return segment.states[:, : shape[0]]


def _values_by_question(lessons: Sequence[Lesson]) -> dict[tuple[tuple[str, ...], ...], list[float]]:
    """Values of all labels of each question; of a pair, in one order of its segments."""
    values: dict[tuple[tuple[str, ...], ...], list[float]] = defaultdict(list)
    for lesson in lessons:
        segments = tuple(sorted(lesson.segments))
        # A preference for the second segment is one for the first of the pair in the other order.
        value = lesson.value if segments == lesson.segments else 1.0 - lesson.value
        values[lesson.goal, segments].append(value)
    return values


def _for_one_goal(
    labels: list[StoredLabel], feedback: FeedbackConfig, goal: str | Sequence[str] | None
) -> list[StoredLabel]:
    """The labels for a goal; all of them must be for one if it is None."""
    goals = list(dict.fromkeys(label.goal for label in labels))
    listed = ", ".join(map(_in_words, goals))
    if goal is None:
        if len(goals) > 1:
            raise BadInput(f"these {feedback.noun} are for several goals, {listed}; say which: goal=…")
        return labels
    sentences = sentences_of(goal)
    if labels and sentences not in goals:
        raise BadInput(f"there are no {feedback.noun} for the goal {_in_words(sentences)}, only for {listed}")
    return [label for label in labels if label.goal == sentences]


def answer_of(number: Any, feedback: FeedbackConfig) -> Answer:
    """Answer that a number stands for; of a pair it may also be a probability that the second is preferred.

    Raises:
        ValueError: it is no number, or not one of those.
    """
    highest = 1
    meaning = ""
    if feedback.question == "compare":
        meaning = " (0 first, 1 second, 0.5 equal)"
    elif feedback.question == "rate":
        highest = feedback.question_levels - 1
        meaning = " (the level)"
    try:
        value = float(number)
    except (TypeError, ValueError, RuntimeError):
        value = float("nan")
    if not 0 <= value <= highest:  # NaN is refused, too
        text = " ".join(repr(number).split())[:60]
        raise ValueError(f"the answer must be a number from 0 to {highest}{meaning}, not {text}")
    if feedback.question == "compare":
        return preference(value)
    return Answer(Outcome.VALUE, value)


def _in_words(goal: tuple[str, ...]) -> str:
    return f"'{' '.join(' / '.join(goal).split())}'"


def _on_levels(labels: list[StoredLabel], feedback: FeedbackConfig) -> list[StoredLabel]:
    """The ratings on as many levels as the feedback has; all must be on those unless its levels were chosen."""
    levels = sorted({label.levels for label in labels})
    matching = [label for label in labels if label.levels == feedback.question_levels]
    is_ambiguous = len(levels) > 1 and "levels" not in feedback.model_fields_set
    if labels and (not matching or is_ambiguous):
        listed = " and ".join(map(str, levels))
        raise BadInput(
            f"these {feedback.noun} are on {listed} levels, not on {feedback.question_levels}; say "
            f"feedback={{'kind': '{feedback.kind}', 'levels': {levels[-1]}}}"
        )
    return matching
