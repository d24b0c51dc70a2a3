"""Estimate the memory and disk space of a run with a policy: transitions, pool of segments, checkpoints."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from sightline.config.learners import OnPolicyLearner
from sightline.config.recipe import ControlRecipe
from sightline.control.resolving import env_maker
from sightline.envs.observations import bytes_of
from sightline.envs.vector import close_env


def describe_size(recipe: ControlRecipe) -> str:
    """One line about the replay buffer, or the rollout, and the pool of segments of a completed recipe.

    Both are kept once in memory and once on disk; a checkpoint appends what is new, and writes the rewards (4 bytes a
    transition) and the networks again. The sizes of embeddings are known for encoders that are described here; frames
    are counted as large as they are asked for.
    """
    transition, known = _bytes_of_transition(recipe)
    if isinstance(recipe.learner, OnPolicyLearner):
        chunk = recipe.learner.chunk * recipe.envs
        parts = [f"a chunk of {chunk:,} transitions: {_size(chunk * transition)}, in memory only"]
        parts += recipe.reward.sizes()
        return f"disk        {'; '.join(parts)}; checkpoints hold the networks and little else"
    stored = min(recipe.steps, recipe.learner.buffer_size)
    parts = [f"{stored:,} transitions of {transition / 1000:.3g} kB: {_size(stored * transition)}"]
    parts += recipe.reward.sizes()
    unknown = "" if known else " (and the embeddings, whose size is known once the encoder is loaded)"
    return (
        f"disk        {'; '.join(parts)}{unknown}; once in memory and once on disk, a checkpoint adds what is new and "
        f"rewrites {_size(5 * stored)} of rewards"
    )


def _bytes_of_transition(recipe: ControlRecipe) -> tuple[float, bool]:
    """Bytes of a transition in the replay buffer, and whether all of it is counted."""
    env = env_maker(recipe, None, render=False)()
    try:
        states, actions = env.observation_space, env.action_space
    finally:
        close_env(env)
    state = float(bytes_of(states))
    action = 8.0 if isinstance(actions, spaces.Discrete) else 4.0 * float(np.prod(actions.shape or (1,)))
    flags = 4 * 4 + 1  # reward, the environment's own, done and timeout as float32; whether it is committed
    features = recipe.reward.feature_bytes
    return 2 * state + action + flags + (features or 0.0), features is not None


def _size(count: float) -> str:
    """Size in readable units."""
    for unit, width in (("GB", 1e9), ("MB", 1e6)):
        if count >= width:
            return f"{count / width:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
