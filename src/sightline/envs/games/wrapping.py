"""Wrappers of games: a prompt template of the user's own, and the game interface for ordinary environments."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.games.contract import AnyText, Observation
from sightline.envs.vector import rgb_frame
from sightline.errors import BadInput, nearest

AnyEnv = gymnasium.Env[Any, Any]


class GameWrapper(gymnasium.ObservationWrapper[Observation, np.int64, Any]):
    """Base class of game wrappers: exposes `action_names` and `asked`, which Gymnasium's own wrappers hide."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.action_names: tuple[str, ...] = tuple(env.get_wrapper_attr("action_names"))
        self.asked: tuple[str, ...] = tuple(env.get_wrapper_attr("asked"))

    def observation(self, observation: Any) -> Observation:
        return Observation(*observation)


class PromptWrapper(GameWrapper):
    """Wrapper that replaces a game's text by a prompt template.

    Args:
        env: a game.
        prompt: a template with the optional fields `{text}` (the game's own text) and `{actions}` (the action names,
            separated by commas). Literal braces are doubled.

    Raises:
        BadInput: an unknown field, or unmatched braces.
    """

    def __init__(self, env: AnyEnv, prompt: str) -> None:
        super().__init__(env)
        self._prompt = prompt
        check_fields(prompt, ("text", "actions"))

    def observation(self, observation: Any) -> Observation:
        text, images = observation
        return Observation(self._prompt.format(text=text, actions=", ".join(self.action_names)), images)


class PictureGame(gymnasium.Wrapper[Observation, np.int64, Any, Any]):
    """Wrapper that makes a game of an ordinary environment with `rgb_array` frames and a `Discrete` action space.

    Observations are the prompt, which is constant, and the frame. Infos are extended by

    - `success`: the environment's own `success` or `is_success`, and False without either: the end of an episode, or a
      positive reward, does not mean that it was won;
    - `legal_actions`: the environment's own `legal_actions` (names or numbers) or `action_mask` (a boolean per action),
      and all actions without either;
    - `facts`: the environment's own, or none. An attribute `asked` of the environment is kept.

    Args:
        env: an environment with a `Discrete` action space.
        name: name of the environment in error messages.
        prompt: text of the observation; may hold `{actions}`.
        actions: names of the actions, in the order of their numbers; empty takes the environment's `action_names`.

    Raises:
        BadInput: no prompt, another action space, or not one name per action.
        RunFailed: the environment renders anything but frames uint8[H, W, 3].
    """

    def __init__(self, env: AnyEnv, name: str, prompt: str | None, actions: Sequence[str] = ()) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            kind = type(env.action_space).__name__
            raise BadInput(
                f"'{name}' has an action space of type {kind}; an agent needs actions that can be named: Discrete"
            )
        self.action_names: tuple[str, ...] = tuple(actions or _attribute(env, "action_names"))
        self.asked: tuple[str, ...] = tuple(_attribute(env, "asked"))
        count = int(env.action_space.n)
        if len(self.action_names) != count:
            given = f"{len(self.action_names)} names are given" if self.action_names else "does not name them"
            raise BadInput(f"'{name}' has {count} actions and {given}; give {count} names, in order: actions=[…]")
        if not prompt:
            raise BadInput(f"'{name}' has no text of its own; describe the task to the agent: prompt=…")
        check_fields(prompt, ("actions",))
        self._text = prompt.format(actions=", ".join(self.action_names))
        self._first = int(env.action_space.start)
        env.reset(seed=0)  # some renderers need a reset first
        picture = spaces.Box(0, 255, rgb_frame(env).shape, np.uint8)
        self.action_space = spaces.Discrete(count)
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Tuple((picture,))))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        return self._observation(), self._with_game_keys(info)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(self._first + action)
        return self._observation(), float(reward), bool(terminated), bool(truncated), self._with_game_keys(info)

    def _observation(self) -> Observation:
        return Observation(self._text, (rgb_frame(self.env),))

    def _with_game_keys(self, info: Mapping[str, Any]) -> dict[str, Any]:
        if "legal_actions" in info:
            names = dict(enumerate(self.action_names, self._first))
            legal = tuple(a if isinstance(a, str) else names.get(int(a), str(int(a))) for a in info["legal_actions"])
        elif "action_mask" in info:
            legal = tuple(name for name, allowed in zip(self.action_names, info["action_mask"], strict=True) if allowed)
        else:
            legal = self.action_names
        success = bool(info.get("success", info.get("is_success", False)))
        return {**info, "success": success, "legal_actions": legal, "facts": dict(info.get("facts", {}))}


def oracle(env: AnyEnv) -> str | None:
    """Name of a best action in the present state; None if there is none, or if the environment has no oracle."""
    found: str | None = _call_if_defined(env, "oracle")
    return found


def has_oracle(env: AnyEnv) -> bool:
    """True if the unwrapped environment has an oracle."""
    return callable(getattr(env.unwrapped, "oracle", None))


def caption(env: AnyEnv) -> str | None:
    """Description of everything that the picture shows; None if the environment does not provide one."""
    found: str | None = _call_if_defined(env, "caption")
    return found


def _call_if_defined(env: AnyEnv, method: str) -> Any:
    ask = getattr(env.unwrapped, method, None)
    return ask() if callable(ask) else None


def _attribute(env: AnyEnv, name: str) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else ()


def check_fields(template: str, known: Sequence[str]) -> None:
    """Refuse a prompt template with unknown fields.

    Args:
        template: the prompt.
        known: names of its fields.

    Raises:
        BadInput: an unknown field, or unmatched braces.
    """
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise BadInput(f"prompt: {error}; double literal braces: {{{{ and }}}}") from error
    for _, field, form, conversion in pieces:
        if field is None:
            continue
        if field not in known or form or conversion:
            given = field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            given = " ".join(given.split())
            hint = nearest(field, known) or "; it takes none here"
            raise BadInput(f"prompt: unknown field '{{{given}}}'{hint}; double literal braces: {{{{ and }}}}")


def check_action_names(names: Sequence[str], owner: str) -> None:
    """Refuse action names that cannot be told apart in a reply. One may be part of another: replies are parsed whole.

    Args:
        names: the action names.
        owner: name of the environment in error messages.

    Raises:
        BadInput: no names, one that is empty or not a string, or two that differ in case and white space only.
    """
    if not names:
        raise BadInput(f"'{owner}' has no actions")
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"'{owner}': the action name {name!r} is not a string; put it in quotes")
        plain = " ".join(name.split()).casefold()
        if not plain:
            raise BadInput(f"'{owner}' has an action with an empty name; every action needs a name")
        if plain in seen:
            raise BadInput(f"'{owner}': the action names '{seen[plain]}' and '{name}' read the same; rename one")
        seen[plain] = name
