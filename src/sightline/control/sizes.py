"""Memory and disk space of a run with a policy: transitions, frames, pool of segments, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sightline.config.learners import OffPolicyLearner, OnPolicyLearner
from sightline.config.loading import for_control
from sightline.config.recipe import ControlRecipe
from sightline.envs.observations import bytes_of
from sightline.evaluation.episodes import PARALLEL, SCORED_AT_ONCE, SCORED_BYTES
from sightline.models.device import check_layers, check_room, memory_for_use, readable_size
from sightline.runs.folder import open_run

CHUNKS_OF_FRAMES = 2
"""Chunks whose frames are kept: one is filled while the other is being embedded."""


@dataclass(frozen=True)
class EnvironmentShapes:
    """Spaces and frame of a run's environment, as its first reset gave them before anything was loaded.

    Attributes:
        states, actions: its spaces.
        frame: (H, W, 3) of a frame as it is rendered; None if nothing is rendered.
        horizon: steps of an episode, at most.
    """

    states: spaces.Space[Any]
    actions: spaces.Space[Any]
    frame: tuple[int, ...] | None
    horizon: int


def transitions_kept(recipe: ControlRecipe) -> int:
    """Transitions that the replay buffer of a run has room for: `learner.buffer_size`, or all that there can be, if
    that is less: those of its data set and those that it collects, in whole chunks; or those that the run named by
    `replay` has stored."""
    learner = recipe.learner
    assert isinstance(learner, OffPolicyLearner)
    if recipe.replay is None:
        return min(learner.buffer_size, _stored(recipe))
    source = for_control(open_run(Path(recipe.replay)).recipe())
    # A run that learned from yet another one's transitions does not say how many it had.
    if not isinstance(source.learner, OffPolicyLearner) or source.replay is not None:
        return learner.buffer_size
    return min(learner.buffer_size, source.learner.buffer_size, _stored(source))


def _stored(recipe: ControlRecipe) -> int:
    """Transitions of a run's data set, and those that it collects."""
    chunk = recipe.learner.chunk * recipe.envs
    collected = math.ceil(recipe.steps / chunk) * chunk
    if recipe.dataset is None:
        return collected
    assert recipe.dataset.transitions is not None, "a completed recipe says it"
    return collected + recipe.dataset.transitions


def check_memory(recipe: ControlRecipe, shapes: EnvironmentShapes) -> None:
    """Refuse, before anything is loaded, a run whose transitions cannot be kept on this machine.

    Raises:
        BadInput: naming the sizes, and what to lower.
    """
    inputs = 1  # pictures are made small before they reach these layers
    if shapes.states.shape is not None and len(shapes.states.shape) == 1:
        inputs = math.prod(shapes.states.shape)
    check_layers([inputs, *recipe.learner.hidden], 1, "learner.hidden")
    transition, _ = _bytes_of_transition(recipe, shapes)
    learner = recipe.learner
    if isinstance(learner, OffPolicyLearner):
        count = transitions_kept(recipe)
        fits = _rounded(math.floor(memory_for_use() / transition))
        what = "the replay buffer"
        advice = f"lower learner.buffer_size ({fits:,} would fit)"
    else:
        count = learner.chunk * recipe.envs
        what = "a chunk"
        advice = "lower learner.chunk or envs"
    check_room(
        count * transition,
        f"{what} ({count:,} transitions of {readable_size(transition)} each, with observations "
        f"{_described(shapes.states)})",
        f"{advice}, or observe smaller pictures (env_options, or gymnasium.wrappers.ResizeObservation)",
    )


def check_frames(frame: tuple[int, ...], chunk: int, envs: int, chunks: int) -> None:
    """Refuse a run whose frames cannot be kept until they are scored.

    Args:
        frame: (H, W, 3) of a frame as it is kept.
        chunk: vector steps in a chunk that are scored.
        chunks: that are kept.

    Raises:
        BadInput: naming the sizes, and what to lower.
    """
    check_room(
        math.prod(frame) * chunk * envs * chunks,
        f"the frames that wait for their rewards ({chunks} x {chunk} steps of {envs} environments, "
        f"{frame[0]}x{frame[1]} pixels each)",
        "lower learner.chunk or envs, or render smaller frames (env_options)",
    )


def space_of(recipe: ControlRecipe, shapes: EnvironmentShapes) -> str:
    """Memory and disk space of a completed recipe, in two lines.

    Transitions are kept once in memory and once on disk; a checkpoint appends what is new, and writes the rewards (4
    bytes a transition) and the networks again. The sizes of embeddings are known for encoders that are described here.
    """
    transition, is_complete = _bytes_of_transition(recipe, shapes)
    if isinstance(recipe.learner, OnPolicyLearner):
        chunk = recipe.learner.chunk * recipe.envs
        memory = [f"a chunk of {chunk:,} transitions: {readable_size(chunk * transition)}", *recipe.reward.sizes()]
        on_disk = ["checkpoints hold the networks and little else", *recipe.reward.sizes()]
    else:
        count = transitions_kept(recipe)
        buffer = f"{count:,} transitions of {readable_size(transition)}: {readable_size(count * transition)}"
        if not is_complete:
            buffer += " (and the embeddings, whose size is known once the encoder is loaded)"
        memory = [buffer, *recipe.reward.sizes()]
        on_disk = [*memory, f"a checkpoint adds what is new and rewrites {readable_size(5 * count)} of rewards"]
    memory += _frames(recipe, shapes)
    return f"memory      {'; '.join(memory)}\ndisk        {'; '.join(on_disk)}"


def _frames(recipe: ControlRecipe, shapes: EnvironmentShapes) -> Iterator[str]:
    """What frames take, in a few words."""
    if shapes.frame is None:
        return
    height, width, _ = shapes.frame
    pixels = height * width
    at_most = ""
    if recipe.reward.frame_pixels is None:  # the reward model may make frames smaller once it is loaded
        at_most = "at most "
    else:
        pixels = min(pixels, recipe.reward.frame_pixels)
    frame = 3 * pixels
    learner = recipe.learner
    if isinstance(learner, OnPolicyLearner):
        steps = math.ceil(learner.chunk / learner.frames_every)
        chunks = 1
    else:
        steps = learner.chunk
        chunks = CHUNKS_OF_FRAMES
    size = readable_size(frame * steps * recipe.envs * chunks)
    yield (
        f"frames that wait for their rewards: {at_most}{size} ({chunks} x {steps} steps of {recipe.envs} environments, "
        f"{readable_size(frame)} each)"
    )
    evaluation = recipe.evaluation
    episodes_at_once = min(PARALLEL, max(evaluation.episodes or 0, evaluation.test_episodes or 0))
    block = min(SCORED_AT_ONCE * frame, max(SCORED_BYTES, episodes_at_once * frame))
    yield f"frames of an evaluation: {at_most}{readable_size(block)}"


def _bytes_of_transition(recipe: ControlRecipe, shapes: EnvironmentShapes) -> tuple[float, bool]:
    """Bytes of a transition in the replay buffer, and whether all of it is counted."""
    actions = shapes.actions
    state = float(bytes_of(shapes.states))
    action = 4.0 * float(np.prod(actions.shape or (1,)))  # float32
    if isinstance(actions, spaces.Discrete):
        action = 8.0  # int64
    flags = 4 * 4 + 1  # reward, the environment's own, done and timeout as float32; whether it is committed
    if isinstance(recipe.learner, OnPolicyLearner):
        return state + action + 6 * 4, True
    features = recipe.reward.feature_bytes
    return 2 * state + action + flags + (features or 0.0), features is not None


def _described(space: spaces.Space[Any]) -> str:
    """Dtypes and shapes of observations, such as `uint8[3, 480, 640]`."""
    if isinstance(space, spaces.Dict):
        return ", ".join(f"{name} {_described(part)}" for name, part in space.items())
    return f"{space.dtype}{list(space.shape or ())}"


def _rounded(count: int) -> int:
    """A count rounded down to two digits."""
    step: int = 10 ** max(len(str(count)) - 2, 0)
    return count // step * step
