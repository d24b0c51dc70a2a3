"""Fit a reward to labels outside of a run: those of a label store, or of any segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.blocks import checked_block
from sightline.errors import BadInput
from sightline.labels.store import LabelStore
from sightline.labels.types import Answer
from sightline.preferences.config import LearnedConfig
from sightline.rewards.learned.fitting import Examples, fit
from sightline.rewards.learned.reward import EnsembleReward

Labelled = tuple[Sequence[np.ndarray], Answer | float]
"""The segments of a question, uint8[L, H, W, 3] or single frames each, and its answer."""


def fit_reward(
    labels: LabelStore | str | Path | Sequence[Labelled],
    *,
    model: str | dict[str, Any] = "embeddings",
    feedback: str | dict[str, Any] = "pairs",
    seed: int = 0,
    device: str = "auto",
    **fitting: Any,
) -> EnsembleReward:
    """Fit a reward to labels.

    >>> reward = fit_reward("runs/mine/labels")
    >>> reward.save("my-reward")

    Args:
        labels: a label store or its folder, or pairs of frames with their answers (0 first, 1 second, 0.5 equal).
        model: kind of reward network (`embeddings`, `cnn`, `resnet`), or its recipe block as a mapping.
        feedback: kind of labels to learn from (`pairs`, `ratings`, `scores`), or its recipe block.
        seed: of the networks' first weights and the minibatches.
        device: where the networks are.
        fitting: settings of `FittingConfig`, such as `epochs`.

    Raises:
        BadInput: there are no labels of that kind, or their segments differ in length or size.
        RunFailed: the loss is not finite.
    """
    config = checked_block(
        LearnedConfig,
        {
            "model": {"kind": model} if isinstance(model, str) else model,
            "feedback": {"kind": feedback} if isinstance(feedback, str) else feedback,
            "fitting": fitting,
            "device": device,
        },
    )
    if config.model.reads_states:
        raise BadInput("labels hold frames, not states; choose another model than states")
    given = _of_store(labels, config) if isinstance(labels, LabelStore | str | Path) else _of_pairs(labels)
    usable = [(segments, value) for segments, value in given if value is not None]
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


def _of_store(labels: LabelStore | str | Path, config: LearnedConfig) -> list[tuple[list[np.ndarray], float | None]]:
    store = labels if isinstance(labels, LabelStore) else LabelStore(Path(labels))
    wanted = [
        label
        for label in store.labels()
        if label.kind == config.feedback.question and config.feedback.teaches(label.answer.outcome)
    ]
    return [([store.segment(digest).frames for digest in label.segments], label.answer.value) for label in wanted]


def _of_pairs(labels: Sequence[Labelled]) -> list[tuple[list[np.ndarray], float | None]]:
    found = []
    for segments, answer in labels:
        frames = [np.asarray(frames) for frames in segments]
        value = answer.value if isinstance(answer, Answer) else float(answer)
        found.append(([one[None] if one.ndim == 3 else one for one in frames], value))
    return found
