"""Check that an environment keeps to Gymnasium's API, and say in one line where it does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from sightline.envs.naming import OLD_API
from sightline.errors import BadInput


class GymnasiumAPI(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that checks the form of what `reset` and `step` return.

    Infos that are None become empty, and ends that are arrays or tensors of one element become truth values.

    Args:
        env: an environment.
        name: of the environment, in error messages.

    Raises:
        BadInput: later, at the first reset or step that returns something else than Gymnasium says.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        returned: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise BadInput(
                f"reset() of '{self._name}' returned {_form(returned)}; it must return (observation, info), and what "
                f"returns the observation alone is of the old API of gym: {OLD_API}"
            )
        observation, info = returned
        return observation, self._checked_info(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        returned: Any = self.env.step(action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            old = ""
            if isinstance(returned, tuple | list) and len(returned) == 4:
                old = f", and what returns four is of the old API of gym: {OLD_API}"
            raise BadInput(
                f"step() of '{self._name}' returned {_form(returned)}; it must return (observation, reward, "
                f"terminated, truncated, info){old}"
            )
        observation, reward, terminated, truncated, info = returned
        terminated = self._truth(terminated, "terminated")
        truncated = self._truth(truncated, "truncated")
        return observation, reward, terminated, truncated, self._checked_info(info)

    def _truth(self, value: Any, what: str) -> bool:
        try:
            return bool(value)
        except (TypeError, ValueError, RuntimeError) as error:  # arrays and tensors with several elements
            raise BadInput(
                f"step() of '{self._name}' returned {what}={value!r:.60}; it must be True or False. If it simulates "
                "several environments at once, have it make one"
            ) from error

    def _checked_info(self, info: Any) -> dict[str, Any]:
        if info is None:
            return {}
        if not isinstance(info, Mapping):
            raise BadInput(f"'{self._name}' returned an info that is a {type(info).__name__}; it must be a dictionary")
        return dict(info)


def check_environment(env: Any, name: str) -> None:
    """Refuse what is no single Gymnasium environment with spaces.

    Raises:
        BadInput: it is none, simulates several at once, or has no spaces.
    """
    # Some simulators' own vectors are no `VectorEnv`; they have these attributes.
    if isinstance(env, VectorEnv) or (hasattr(env, "single_action_space") and hasattr(env, "num_envs")):
        raise BadInput(
            f"'{name}' simulates several environments at once ({type(env).__name__}); name what makes a single one: "
            "envs=8 makes eight of it"
        )
    if not isinstance(env, gymnasium.Env):
        hint = ""
        if hasattr(env, "step") and hasattr(env, "reset"):
            hint = f"; {OLD_API}"
        raise BadInput(f"'{name}' returned a {type(env).__name__}, not a gymnasium.Env{hint}")
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, spaces.Space):
            kind = "none"
            if space is not None:
                kind = f"a {type(space).__module__}.{type(space).__name__}"
            raise BadInput(f"'{name}' must have an {attribute} of gymnasium.spaces, and has {kind}")


def layers_of(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """Wrappers of an environment, outermost first, and the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def check_reset_signature(env: gymnasium.Env[Any, Any], name: str) -> None:
    """Refuse an environment, or a wrapper around it, whose `reset` takes no seed.

    Raises:
        BadInput: naming the class.
    """
    for layer in layers_of(env):
        try:
            # As it will be called; every wrapper's `reset` has to pass it on.
            inspect.signature(layer.reset).bind(seed=0, options=None)
        except ValueError:
            continue  # written in C, without a signature
        except TypeError as error:
            lacks = " and ".join(key for key in ("seed", "options") if not _takes(layer.reset, key)) or "keywords"
            raise BadInput(
                f"reset() of '{name}' ({type(layer).__name__}) takes no {lacks}; write it as "
                "reset(self, *, seed=None, options=None)"
            ) from error


def _takes(method: Callable[..., Any], argument: str) -> bool:
    """Whether a method has a parameter of this name."""
    return argument in inspect.signature(method).parameters


def _form(returned: Any) -> str:
    """The form of a returned value in words."""
    if isinstance(returned, tuple):
        return f"a tuple of {len(returned)}"
    return f"a {type(returned).__name__}"
