"""What can be put around a game: a prompt of the user's own, or all that makes an ordinary environment a game."""

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
    """A game as it is, but with what Gymnasium's own wrappers hide: `action_names` and `asked`."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.action_names: tuple[str, ...] = tuple(env.get_wrapper_attr("action_names"))
        self.asked: tuple[str, ...] = tuple(env.get_wrapper_attr("asked"))

    def observation(self, observation: Any) -> Observation:
        return Observation(*observation)


class Prompted(GameWrapper):
    """A game told in the user's words.

    Args:
        env: a game.
        prompt: a template that may hold `{text}` (what the game says by itself) and `{actions}` (their names, with
            commas). Braces that are meant are doubled.

    Raises:
        BadInput: an unknown field, or braces that do not match.
    """

    def __init__(self, env: AnyEnv, prompt: str) -> None:
        super().__init__(env)
        self._prompt = prompt
        check_fields(prompt, ("text", "actions"))

    def observation(self, observation: Any) -> Observation:
        text, images = observation
        return Observation(self._prompt.format(text=text, actions=", ".join(self.action_names)), images)


class PictureGame(gymnasium.Wrapper[Observation, np.int64, Any, Any]):
    """An ordinary environment with `rgb_array` frames and numbered actions as a game.

    Observations are the prompt, which never changes, and the frame. Infos get

    - `success`: the environment's own `success` or `is_success`, and False where it states neither: that an episode
      ended, or that its reward was positive, does not say that it was won;
    - `legal_actions`: the environment's own `legal_actions` (names or numbers) or `action_mask` (one truth value for
      each action), and all actions where it states neither;
    - `facts`: the environment's own, or none. An attribute `asked` of the environment is kept.

    Args:
        env: an environment with a `Discrete` action space.
        name: how errors call it.
        prompt: what the agent is told; may hold `{actions}`.
        actions: the names of the actions, in the order of their numbers; empty takes the environment's `action_names`.

    Raises:
        BadInput: no prompt, another action space, actions without names or of another number than the space's.
        RunFailed: the frames are no frames.
    """

    def __init__(self, env: AnyEnv, name: str, prompt: str | None, actions: Sequence[str] = ()) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            kind = type(env.action_space).__name__
            raise BadInput(
                f"'{name}' has actions of the kind {kind}; an agent needs actions that can be named: Discrete"
            )
        self.action_names: tuple[str, ...] = tuple(actions or _attribute(env, "action_names"))
        self.asked: tuple[str, ...] = tuple(_attribute(env, "asked"))
        count = int(env.action_space.n)
        if len(self.action_names) != count:
            given = f"{len(self.action_names)} names are given" if self.action_names else "does not name them"
            raise BadInput(f"'{name}' has {count} actions and {given}; say their {count} names, in order: actions=[…]")
        if not prompt:
            raise BadInput(f"'{name}' says nothing in words; say what the agent is told: prompt=…")
        check_fields(prompt, ("actions",))
        self._text = prompt.format(actions=", ".join(self.action_names))
        self._first = int(env.action_space.start)
        env.reset(seed=0)
        picture = spaces.Box(0, 255, rgb_frame(env).shape, np.uint8)
        self.action_space = spaces.Discrete(count)
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Tuple((picture,))))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        return self._observation(), self._completed(info)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(self._first + action)
        return self._observation(), float(reward), bool(terminated), bool(truncated), self._completed(info)

    def _observation(self) -> Observation:
        return Observation(self._text, (rgb_frame(self.env),))

    def _completed(self, info: Mapping[str, Any]) -> dict[str, Any]:
        if "legal_actions" in info:
            legal = tuple(a if isinstance(a, str) else self._name(int(a)) for a in info["legal_actions"])
        elif "action_mask" in info:
            legal = tuple(name for name, allowed in zip(self.action_names, info["action_mask"], strict=True) if allowed)
        else:
            legal = self.action_names
        success = bool(info.get("success", info.get("is_success", False)))
        return {**info, "success": success, "legal_actions": legal, "facts": dict(info.get("facts", {}))}

    def _name(self, action: int) -> str:
        number = action - self._first
        return self.action_names[number] if 0 <= number < len(self.action_names) else str(action)


def oracle(env: AnyEnv) -> str | None:
    """The name of a best action in the present state, None if there is none, or nobody who knows it."""
    found: str | None = _say(env, "oracle")
    return found


def has_oracle(env: AnyEnv) -> bool:
    """Whether the environment inside all wrappers knows how to play."""
    return callable(getattr(env.unwrapped, "oracle", None))


def in_words(env: AnyEnv) -> str | None:
    """All that the picture shows, as a sentence or a few; None if the environment does not say it."""
    found: str | None = _say(env, "in_words")
    return found


def _say(env: AnyEnv, method: str) -> Any:
    ask = getattr(env.unwrapped, method, None)
    return ask() if callable(ask) else None


def _attribute(env: AnyEnv, name: str) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else ()


def check_fields(template: str, known: Sequence[str]) -> None:
    """Refuse a template with fields that nothing can be put in.

    Raises:
        BadInput: an unknown field, or braces that do not match.
    """
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise BadInput(f"prompt: {error}; double the braces that are meant: {{{{ and }}}}") from error
    for _, field, form, conversion in pieces:
        if field is None:
            continue
        if field not in known or form or conversion:
            given = field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            given = " ".join(given.split())
            hint = nearest(field, known) or "; it takes none here"
            raise BadInput(
                f"prompt: unknown field '{{{given}}}'{hint}; double the braces that are meant: {{{{ and }}}}"
            )


def check_action_names(names: Sequence[str], owner: str) -> None:
    """Refuse action names that a reply could not tell apart. One may be a part of another: replies are read whole.

    Raises:
        BadInput: no names, one that is empty or no text, or two that differ in case and white space only.
    """
    if not names:
        raise BadInput(f"'{owner}' has no actions")
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"'{owner}': the action name {name!r} is no text; put it in quotes")
        plain = " ".join(name.split()).casefold()
        if not plain:
            raise BadInput(f"'{owner}' has an action without a name; every action needs one that can be written")
        if plain in seen:
            raise BadInput(f"'{owner}': the action names '{seen[plain]}' and '{name}' read the same; rename one")
        seen[plain] = name
