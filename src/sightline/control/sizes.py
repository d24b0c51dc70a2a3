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
class Seen:
    """One environment of a run, as it was seen before anything was loaded.

    Attributes:
        states, actions: its spaces.
        frame: (H, W, 3) of a frame as it is rendered; None if nothing is rendered.
    """

    states: spaces.Space[Any]
    actions: spaces.Space[Any]
    frame: tuple[int, ...] | None


def transitions_kept(recipe: ControlRecipe) -> int:
    """Transitions that the replay buffer of a run has room for: `learner.buffer_size`, or all that there can be, if
    that is less: those that it collects, in whole chunks, or those that the run named by `replay` has stored."""
    learner = recipe.learner
    assert isinstance(learner, OffPolicyLearner)
    if recipe.replay is None:
        return min(learner.buffer_size, _collected(recipe))
    source = for_control(open_run(Path(recipe.replay)).recipe())
    if not isinstance(source.learner, OffPolicyLearner) or source.replay is not None:
        return learner.buffer_size
    return min(learner.buffer_size, source.learner.buffer_size, _collected(source))


def _collected(recipe: ControlRecipe) -> int:
    chunk = recipe.learner.chunk * recipe.envs
    return -(-recipe.steps // chunk) * chunk


def check_memory(recipe: ControlRecipe, seen: Seen) -> None:
    """Refuse, before anything is loaded, a run whose transitions cannot be kept on this machine.

    Raises:
        BadInput: naming the sizes, and what to lower.
    """
    # Pictures are made small before they reach these layers.
    read = math.prod(seen.states.shape) if seen.states.shape is not None and len(seen.states.shape) == 1 else 1
    check_layers([read, *recipe.learner.hidden], 1, "learner.hidden")
    transition, _ = _bytes_of_transition(recipe, seen)
    learner = recipe.learner
    if isinstance(learner, OffPolicyLearner):
        count = transitions_kept(recipe)
        fits = _rounded(math.floor(memory_for_use() / transition))
        what, advice = "the replay buffer", f"lower learner.buffer_size ({fits:,} would fit)"
    else:
        count = learner.chunk * recipe.envs
        what, advice = "a chunk", "lower learner.chunk or envs"
    check_room(
        count * transition,
        f"{what} ({count:,} transitions of {readable_size(transition)} each, with observations "
        f"{_described(seen.states)})",
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


def space_of(recipe: ControlRecipe, seen: Seen) -> str:
    """Memory and disk space of a completed recipe, in two lines.

    Transitions are kept once in memory and once on disk; a checkpoint appends what is new, and writes the rewards (4
    bytes a transition) and the networks again. The sizes of embeddings are known for encoders that are described here.
    """
    transition, is_whole = _bytes_of_transition(recipe, seen)
    unknown = "" if is_whole else " (and the embeddings, whose size is known once the encoder is loaded)"
    if isinstance(recipe.learner, OnPolicyLearner):
        chunk = recipe.learner.chunk * recipe.envs
        kept = [f"a chunk of {chunk:,} transitions: {readable_size(chunk * transition)}", *recipe.reward.sizes()]
        on_disk = ["checkpoints hold the networks and little else", *recipe.reward.sizes()]
    else:
        count = transitions_kept(recipe)
        whole = f"{count:,} transitions of {readable_size(transition)}: {readable_size(count * transition)}{unknown}"
        kept = [whole, *recipe.reward.sizes()]
        on_disk = [*kept, f"a checkpoint adds what is new and rewrites {readable_size(5 * count)} of rewards"]
    memory = [*kept, *_frames(recipe, seen)]
    return f"memory      {'; '.join(memory)}\ndisk        {'; '.join(on_disk)}"


def _frames(recipe: ControlRecipe, seen: Seen) -> Iterator[str]:
    """What frames take, in a few words."""
    if seen.frame is None:
        return
    height, width, _ = seen.frame
    pixels, most = height * width, ""
    read = recipe.reward.frame_pixels
    if read is None:
        most = "at most "
    else:
        pixels = min(pixels, read)
    frame = 3 * pixels
    learner, chunks = recipe.learner, CHUNKS_OF_FRAMES
    scored = learner.chunk
    if isinstance(learner, OnPolicyLearner):
        scored, chunks = -(-learner.chunk // learner.frames_every), 1
    yield (
        f"frames that wait for their rewards: {most}{readable_size(frame * scored * recipe.envs * chunks)} ({chunks} x "
        f"{scored} steps of {recipe.envs} environments, {readable_size(frame)} each)"
    )
    played = min(PARALLEL, max(recipe.evaluation.episodes, recipe.evaluation.test_episodes))
    block = min(SCORED_AT_ONCE * frame, max(SCORED_BYTES, played * frame))
    yield f"frames of an evaluation: {most}{readable_size(block)}"


def _bytes_of_transition(recipe: ControlRecipe, seen: Seen) -> tuple[float, bool]:
    """Bytes of a transition in the replay buffer, and whether all of it is counted."""
    states, actions = seen.states, seen.actions
    state = float(bytes_of(states))
    action = 8.0 if isinstance(actions, spaces.Discrete) else 4.0 * float(np.prod(actions.shape or (1,)))
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
