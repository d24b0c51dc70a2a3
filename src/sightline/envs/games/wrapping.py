"""Wrappers of games: a prompt template of the user's own, and the game interface for ordinary environments."""

from __future__ import annotations

import string
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import rgb_frame
from sightline.envs.games.contract import ActionText, AnyText, Game, Observation
from sightline.errors import BadInput, RunFailed, nearest

AnyEnv = gymnasium.Env[Any, Any]


class GameWrapper(gymnasium.ObservationWrapper[Observation, np.int64, Any]):
    """Base class of game wrappers: exposes `action_names` and `asked`, which Gymnasium's own wrappers hide."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.action_names: tuple[str, ...] = tuple(_attribute(env, "action_names"))
        self.asked: tuple[str, ...] = tuple(_attribute(env, "asked"))

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
    """Wrapper that makes a game of an ordinary environment with `rgb_array` frames.

    Observations are the prompt and the last frames. Infos are extended by

    - `success`: the environment's own `success` or `is_success`, and False without either: the end of an episode, or a
      positive reward, does not mean that it was won;
    - `legal_actions`: the environment's own `legal_actions` (names or numbers) or `action_mask` (a boolean per action),
      and all actions without either;
    - `facts`: the environment's own, from its infos or its method `facts()`, or none. An attribute `asked` of the
      environment is kept.

    Args:
        env: an environment with a `Discrete` action space, or with any other and named actions.
        name: name of the environment in error messages.
        prompt: text of the observation; may hold `{actions}` and `{mission}`, the episode's task in words, from the
            info or the observation of that name.
        actions: names of the actions, in the order of their numbers, or name -> value for other action spaces; empty
            takes the environment's `action_names`.
        frames: number of last frames to show, oldest first. One frame cannot tell how things move. At an episode's
            start the first frame is shown for those that are not there yet.

    Raises:
        BadInput: no prompt, or actions without names or values that fit the action space.
        RunFailed: the environment renders anything but frames uint8[H, W, 3].
    """

    def __init__(
        self,
        env: AnyEnv,
        name: str,
        prompt: str | None,
        actions: Sequence[str] | Mapping[str, Any] = (),
        frames: int = 1,
    ) -> None:
        super().__init__(env)
        self._values = named_actions(env, name, actions)
        self.action_names: tuple[str, ...] = tuple(self._values)
        self.asked: tuple[str, ...] = tuple(_attribute(env, "asked"))
        if not prompt:
            raise BadInput(f"'{name}' has no text of its own; describe the task to the agent: prompt=…")
        check_fields(prompt, ("actions", "mission"))
        self._prompt, self._has_mission = prompt, "{mission}" in prompt
        self._name, self._mission = name, ""
        env.reset(seed=0)  # some renderers need a reset first
        picture = spaces.Box(0, 255, rgb_frame(env).shape, np.uint8)
        self.action_space = spaces.Discrete(len(self.action_names))
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Tuple((picture,) * frames)))
        self._frames: deque[np.ndarray] = deque(maxlen=frames)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        state, info = self.env.reset(seed=seed, options=options)
        self._note_mission(state, info)
        self._frames.extend([rgb_frame(self.env)] * (self._frames.maxlen or 1))
        return self._observation(), self._with_game_keys(info)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        value = self._values[self.action_names[action]]
        state, reward, terminated, truncated, info = self.env.step(value)
        self._note_mission(state, info)
        self._frames.append(rgb_frame(self.env))
        return self._observation(), float(reward), bool(terminated), bool(truncated), self._with_game_keys(info)

    def _note_mission(self, state: Any, info: Mapping[str, Any]) -> None:
        """Keep the task of the episode in words, which an environment states at its start or in every step."""
        if not self._has_mission:
            return
        seen = state if isinstance(state, Mapping) else {}
        self._mission = str(info.get("mission", seen.get("mission", self._mission)))
        if not self._mission:
            raise RunFailed(
                f"'{self._name}' states no mission, neither in its infos nor in a dictionary of observations; leave "
                "{mission} out of prompt"
            )

    def _observation(self) -> Observation:
        text = self._prompt.format(actions=", ".join(self.action_names), mission=self._mission)
        return Observation(text, tuple(frame.copy() for frame in self._frames))

    def _with_game_keys(self, info: Mapping[str, Any]) -> dict[str, Any]:
        if "legal_actions" in info:
            names = {int(value): name for name, value in self._values.items() if np.ndim(value) == 0}
            legal = tuple(a if isinstance(a, str) else names.get(int(a), str(int(a))) for a in info["legal_actions"])
        elif "action_mask" in info:
            legal = tuple(name for name, allowed in zip(self.action_names, info["action_mask"], strict=True) if allowed)
        else:
            legal = self.action_names
        success = bool(info.get("success", info.get("is_success", False)))
        facts = info["facts"] if "facts" in info else _call_if_defined(self.env, "facts") or {}
        return {**info, "success": success, "legal_actions": legal, "facts": dict(facts)}


def named_actions(env: AnyEnv, owner: str, actions: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Actions of an environment by name: name -> value of its action space.

    Args:
        owner: name of the environment in error messages.
        actions: names in the order of their numbers, or name -> value; empty takes the environment's `action_names`.

    Raises:
        BadInput: actions without names, or values that do not fit.
    """
    space = env.action_space
    if isinstance(actions, Mapping):
        values = {}
        for name, value in actions.items():
            given = np.asarray(value, space.dtype) if space.dtype is not None else value
            if isinstance(space, spaces.Discrete) and np.ndim(given) == 0:
                given = space.dtype.type(value)
            if not space.contains(given):
                raise BadInput(f"actions: '{name}' is {value!r}, which is no action of '{owner}' ({space})")
            values[name] = given
        return values
    names = tuple(actions or _attribute(env, "action_names"))
    if not isinstance(space, spaces.Discrete):
        raise BadInput(
            f"actions of '{owner}' are of the kind {type(space).__name__}, and an agent needs a few that are named; "
            "say what they mean: actions={left: [-1.0], right: [1.0]}"
        )
    count = int(space.n)
    if len(names) != count:
        given = f"{len(names)} names are given" if names else "does not name them"
        raise BadInput(f"'{owner}' has {count} actions and {given}; give {count} names, in order: actions=[…]")
    check_action_names(names, owner)
    return {name: space.dtype.type(space.start + number) for number, name in enumerate(names)}


class TextActions(GameWrapper):
    """Outermost wrapper of a game: `step` takes the action in words.

    Where actions have numbers, the words are one of `action_names`. An environment whose action space is text is given
    the words as they are; its `action_names` are empty, and `info["legal_actions"]` says what can be done in each state
    (any text, if that is empty too).
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.action_space: Any = ActionText(self.action_names, getattr(env.action_space, "examples", ()))
        self._numbers = {name: np.int64(number) for number, name in enumerate(self.action_names)}

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action, given as text."""
        return super().step(self._numbers[action] if self._numbers else action)


def random_action(env: AnyEnv, legal: Sequence[str], rng: np.random.Generator) -> str:
    """An action drawn at random.

    Args:
        env: a game with actions in words.
        legal: draw from these; if empty, from all names, or from what the action space samples where any text is an
            action.
        rng: of all chance.
    """
    known = tuple(legal) or tuple(_attribute(env, "action_names"))
    if known:
        return known[int(rng.integers(len(known)))]
    env.action_space.seed(int(rng.integers(2**31)))
    return str(env.action_space.sample())


def oracle(env: AnyEnv) -> str | None:
    """Name of a best action in the present state; None if there is none, or if the environment has no oracle."""
    found: str | None = _call_if_defined(env, "oracle")
    return found


def thoughts(env: AnyEnv) -> str | None:
    """Thoughts that lead to the oracle's action; None if the environment has none to tell. To be asked before it."""
    told: str | None = _call_if_defined(env, "thoughts")
    return told


def has_oracle(env: AnyEnv) -> bool:
    """True if the unwrapped environment has an oracle; the one that `Game` has by default knows nothing."""
    found = getattr(env.unwrapped, "oracle", None)
    return callable(found) and getattr(found, "__func__", found) is not Game.oracle


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
