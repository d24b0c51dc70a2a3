"""Wrappers of games: a prompt template of the user's own, and the game interface for ordinary environments."""

from __future__ import annotations

import string
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import rgb_frame, to_array
from sightline.envs.games.actions import AnyEnv, attribute, named_actions, own_action_names, whole_number
from sightline.envs.games.contract import ActionText, AnyText, Game, Observation
from sightline.envs.rendering import drawing_advice
from sightline.envs.stepping import scalar_reward
from sightline.envs.success import stated_success
from sightline.errors import BadInput, RunFailed, nearest, reason_and_place


class GameWrapper(gymnasium.ObservationWrapper[Observation, np.int64, Any]):
    """Base class of game wrappers: exposes `action_names` and `asked`, which Gymnasium's own wrappers hide."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.action_names: tuple[str, ...] = tuple(attribute(env, "action_names"))
        self.asked: tuple[str, ...] = tuple(attribute(env, "asked"))

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

    Observations are the prompt and the last frames. The attribute `names_from` says where the environment has the names
    of its actions; empty if they are the recipe's. Infos are extended by

    - `success`: the environment's own `success` or `is_success`, and None without either: the end of an episode, or a
      positive reward, does not mean that it was won;
    - `legal_actions`: the environment's own `legal_actions` (names, numbers, or a boolean per action) or `action_mask`
      (a boolean per action), and all actions without either;
    - `facts`: the environment's own, from its infos or its method `facts()`, or none. An attribute `asked` of the
      environment is kept.

    Args:
        env: an environment with a `Discrete` action space, or with any other and named actions.
        name: name of the environment in error messages.
        prompt: text of the observation; may hold `{actions}` and `{mission}`, the episode's task in words, from the
            info or the observation of that name.
        actions: names of the actions, in the order of their numbers, or name -> value for other action spaces; empty
            takes the environment's own, see `own_action_names`.
        ignores_reward: whether something else is learned from than the environment's own reward, which may then be
            anything; what is no number counts as 0.
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
        ignores_reward: bool = False,
    ) -> None:
        super().__init__(env)
        self._ignores_reward = ignores_reward
        # Some environments set it to None.
        self.metadata = dict(env.metadata or {})
        # name -> value of the environment's own action space
        self._values = named_actions(env, name, actions)
        self.names_from = ""
        if not actions:
            _, self.names_from = own_action_names(env)
        self.action_names: tuple[str, ...] = tuple(self._values)
        self.asked: tuple[str, ...] = tuple(attribute(env, "asked"))
        if not prompt:
            raise BadInput(f"'{name}' has no text of its own; describe the task to the agent: prompt=…")
        check_fields(prompt, ("actions", "mission"))
        self._prompt = prompt
        self._has_mission = "{mission}" in prompt
        self._mission = ""
        self._name = name
        begin_once(env, name)  # some renderers need a reset first
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
        info = self._with_game_keys(info)
        return self._observation(), self._own_reward(reward), bool(terminated), bool(truncated), info

    def _own_reward(self, reward: Any) -> float:
        """The environment's own reward as a number.

        Raises:
            BadInput: it is none, and is what is learned from.
        """
        number = scalar_reward(reward)
        if number is not None:
            return number
        if self._ignores_reward:
            return 0.0
        raise BadInput(
            f"the reward of '{self._name}' is {' '.join(repr(reward).split()):.60}, which is no number; return one, "
            "let mo_gymnasium.wrappers.LinearReward weigh a vector's parts, or learn from another reward (reward.kind)"
        )

    def _note_mission(self, state: Any, info: Mapping[str, Any]) -> None:
        """Keep the task of the episode in words, which an environment states at its start or in every step."""
        if not self._has_mission:
            return
        if "mission" in info:
            self._mission = str(info["mission"])
        elif isinstance(state, Mapping) and "mission" in state:
            self._mission = str(state["mission"])
        if not self._mission:
            raise RunFailed(
                f"'{self._name}' states no mission, neither in its infos nor in a dictionary of observations; leave "
                "{mission} out of prompt"
            )

    def _observation(self) -> Observation:
        text = self._prompt.format(actions=", ".join(self.action_names), mission=self._mission)
        return Observation(text, tuple(frame.copy() for frame in self._frames))

    def _with_game_keys(self, info: Mapping[str, Any]) -> dict[str, Any]:
        success = stated_success(info, f"'{self._name}'")
        facts = info["facts"] if "facts" in info else _call_if_defined(self.env, "facts") or {}
        return {**info, "success": success, "legal_actions": self._legal_actions(info), "facts": dict(facts)}

    def _legal_actions(self, info: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the actions that the environment allows.

        Raises:
            BadInput: they are neither names nor numbers of actions, nor a boolean for each.
        """
        key = "legal_actions"
        if info.get(key) is None:
            key = "action_mask"
        allowed = info.get(key)
        if allowed is None:
            return self.action_names
        is_mask = key == "action_mask" or getattr(allowed, "dtype", None) == np.bool_
        try:
            if is_mask:
                return self._allowed_by_mask(allowed)
            return tuple(self._allowed_by_name(allowed))
        except (TypeError, ValueError) as error:
            form = "names or numbers of its actions"
            if is_mask:
                form = f"a boolean for each of its {len(self._numbered_names())} actions"
            raise BadInput(
                f"the info '{key}' of '{self._name}' is {' '.join(repr(allowed).split()):.60}; it must hold {form}"
            ) from error

    def _allowed_by_mask(self, mask: Any) -> tuple[str, ...]:
        by_number = self._numbered_names()
        flags = to_array(mask)
        if flags.shape != (len(by_number),):
            raise ValueError("a mask of another length")
        # A recipe may name some of the actions only.
        return tuple(name for name, allowed in zip(by_number, flags, strict=True) if allowed and name is not None)

    def _allowed_by_name(self, allowed: Iterable[Any]) -> Iterable[str]:
        by_number = self._numbered_names()
        first = int(getattr(self.env.action_space, "start", 0))
        for action in allowed:
            if isinstance(action, str):
                yield action
                continue
            # Discrete spaces may begin elsewhere than at 0.
            number = whole_number(action) - first
            if not 0 <= number < len(by_number):
                raise ValueError("no number of an action")
            name = by_number[number]
            if name is not None:
                yield name

    def _numbered_names(self) -> list[str | None]:
        """Names by the numbers of actions, as the environment counts them; None where the recipe names no such action.

        Actions that are not numbered are counted in the order of their names.
        """
        space = self.env.action_space
        if not isinstance(space, spaces.Discrete):
            return list(self.action_names)
        names = {int(value) - int(space.start): name for name, value in self._values.items()}
        return [names.get(number) for number in range(int(space.n))]


def begin_once(env: AnyEnv, name: str) -> tuple[Any, dict[str, Any]]:
    """Reset an environment, with seed 0, before anything is played in earnest.

    Raises:
        RunFailed: its `reset` fails.
    """
    try:
        return env.reset(seed=0)
    except (BadInput, RunFailed):
        raise
    except Exception as error:
        advice = drawing_advice(error) or "; fix it"
        raise RunFailed(f"reset() of '{name}' failed: {reason_and_place(error)}{advice}") from error


class TextActions(GameWrapper):
    """Outermost wrapper of a game: `step` takes the action in words.

    Where actions have numbers, the words are one of `action_names`. An environment whose action space is text is given
    the words as they are; its `action_names` are empty, and `info["legal_actions"]` says what can be done in each state
    (any text, if that is empty too). Its action space samples what can be done in the present state.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.action_space: Any = ActionText(self.action_names, getattr(env.action_space, "examples", ()))
        self._numbers = {name: np.int64(number) for number, name in enumerate(self.action_names)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self._take_examples(info)
        return observation, info

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action, given as text."""
        if self._numbers:
            action = self._numbers[action]
        result = super().step(action)
        self._take_examples(result[4])
        return result

    def _take_examples(self, info: Mapping[str, Any]) -> None:
        if info.get("legal_actions"):  # nothing can be done once it is over
            self.action_space.examples = tuple(info["legal_actions"])


def random_action(env: AnyEnv, legal: Sequence[str], rng: np.random.Generator) -> str:
    """An action drawn at random.

    Args:
        env: a game with actions in words.
        legal: draw from these; if empty, from all names, or from what the action space samples where any text is an
            action.
        rng: of all chance.
    """
    names = tuple(legal) or tuple(attribute(env, "action_names"))
    if names:
        return names[int(rng.integers(len(names)))]
    env.action_space.seed(int(rng.integers(2**31)))
    return str(env.action_space.sample())


def oracle(env: AnyEnv) -> str | None:
    """Name of a best action in the present state; None if there is none, or if the environment has no oracle."""
    best_action: str | None = _call_if_defined(env, "oracle")
    return best_action


def thoughts(env: AnyEnv) -> str | None:
    """Thoughts that lead to the oracle's action; None if the environment has none to tell. To be asked before it."""
    text: str | None = _call_if_defined(env, "thoughts")
    return text


def has_oracle(env: AnyEnv) -> bool:
    """True if the unwrapped environment has an oracle; the one that `Game` has by default knows nothing."""
    method = getattr(env.unwrapped, "oracle", None)
    return callable(method) and getattr(method, "__func__", method) is not Game.oracle


def caption(env: AnyEnv) -> str | None:
    """Description of everything that the picture shows; None if the environment does not provide one."""
    description: str | None = _call_if_defined(env, "caption")
    return description


def _call_if_defined(env: AnyEnv, name: str) -> Any:
    method = getattr(env.unwrapped, name, None)
    if not callable(method):
        return None
    return method()


def check_fields(template: str, fields: Sequence[str]) -> None:
    """Refuse a prompt template with unknown fields.

    Args:
        template: the prompt.
        fields: names of those that it may have.

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
        if field not in fields or form or conversion:
            placeholder = field
            if conversion:
                placeholder += f"!{conversion}"
            if form:
                placeholder += f":{form}"
            in_one_line = " ".join(placeholder.split())
            hint = nearest(field, fields) or "; it takes none here"
            raise BadInput(f"prompt: unknown field '{{{in_one_line}}}'{hint}; double literal braces: {{{{ and }}}}")
