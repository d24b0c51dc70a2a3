"""What learners read and do: observation and action spaces of any environment, as those that learners support."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, RescaleObservation, TransformAction, TransformObservation

from sightline.errors import BadInput


def adapted_to_learners(env: gymnasium.Env[Any, Any], env_id: str, rescale: bool) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that its observation and action spaces are those that learners support.

    Raises:
        BadInput: they cannot be converted.
    """
    env = _actions_from_zero(env, env_id)
    space: Any = env.observation_space
    if _is_words_and_pictures(space):
        env = TransformObservation(env, lambda observation: observation[1][-1], space[1][-1])
        space = env.observation_space
    if _holds_text(space) or not space.is_np_flattenable:
        kind = "text" if _holds_text(space) else f"of the kind {type(space).__name__}"
        raise BadInput(
            f"observations of '{env_id}' are {kind}; a policy on states needs a fixed number of numbers: Box, "
            "Discrete, or a dictionary of these"
        )
    if not isinstance(space, spaces.Box):
        env = FlattenObservation(env)
    if is_picture(env.observation_space):
        if rescale:
            raise BadInput(
                f"observations of '{env_id}' are pictures, which networks rescale themselves; leave out "
                "rescale_observations"
            )
        return _channels_first(env)
    if not rescale:
        return env
    space = env.observation_space
    if not (isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise BadInput(f"observations of '{env_id}' have no finite bounds; leave out rescale_observations")
    return RescaleObservation(env, np.float32(-1), np.float32(1))


def _is_words_and_pictures(space: spaces.Space[Any]) -> bool:
    """True for observations of games, (text, pictures): a policy is shown the newest picture alone."""
    if not isinstance(space, spaces.Tuple) or len(space) != 2 or not isinstance(space[0], spaces.Text):
        return False
    return isinstance(space[1], spaces.Tuple) and len(space[1]) > 0


def _actions_from_zero(env: gymnasium.Env[Any, Any], env_id: str) -> gymnasium.Env[Any, Any]:
    """Shift discrete actions so that they start at 0, as learners assume.

    Raises:
        BadInput: the action space is neither `Discrete` nor a `Box`.
    """
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        first = space.start
        return env if first == 0 else TransformAction(env, lambda action: action + first, spaces.Discrete(int(space.n)))
    if not isinstance(space, spaces.Box):
        raise BadInput(f"actions of '{env_id}' are of the kind {type(space).__name__}; learners take Discrete or Box")
    return env


def _holds_text(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(_holds_text(part) for part in space.values())
    if isinstance(space, spaces.Tuple | spaces.OneOf):
        return any(_holds_text(part) for part in space.spaces)
    return isinstance(space, spaces.Text)


def is_picture(space: spaces.Space[Any]) -> bool:
    """True if observations are pictures by Stable-Baselines3's rule: uint8 with three axes and bounds 0 and 255."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def _channels_first(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Transpose pictures to [C, H, W], taking the shortest axis for the channels, as Stable-Baselines3 does.

    So Stable-Baselines3 has nothing to transpose itself, and training, evaluation and restored episodes share one
    layout.
    """
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    shortest = int(np.argmin(space.shape))
    if shortest == 0:
        return env
    shape = np.moveaxis(np.empty(space.shape, np.uint8), shortest, 0).shape

    def move(picture: Any) -> Any:
        # Anything else is passed on: `vector.misfit` reports it in a better message than NumPy's.
        return np.moveaxis(np.asarray(picture), shortest, 0) if np.ndim(picture) == 3 else picture

    return TransformObservation(env, move, spaces.Box(0, 255, shape, np.uint8))
