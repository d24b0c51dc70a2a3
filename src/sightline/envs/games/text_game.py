"""Any environment whose actions are words, as a game for agents: one function that says where its words are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import checked_frame, rgb_frame
from sightline.envs.games.contract import MAX_TEXT, ActionText, AnyText, Observation
from sightline.envs.games.old_api import OldTextEnv
from sightline.envs.games.wrapping import begin_once
from sightline.envs.stepping import scalar_reward
from sightline.envs.success import stated_success, truth
from sightline.errors import BadInput, RunFailed

OfState = str | Callable[[Any, Mapping[str, Any]], Any]
"""Where something of a state is: the key of an info, or a function of (observation, info)."""


def text_game(
    make: str | Callable[[], Any],
    *,
    commands: OfState | Sequence[str] = (),
    text: OfState | None = None,
    pictures: OfState | None = None,
    success: OfState | None = None,
    facts: OfState | None = None,
    kind: OfState | None = None,
    send: Callable[[str], Any] | None = None,
) -> TextGame:
    """Make a game of a Gymnasium environment that is played in words.

        def coins() -> gymnasium.Env:
            return sl.text_game(make_coins, commands="admissible_commands", success="won")

    is played by `sightline train role=agent env=my_module:coins`.

    Args:
        make: makes the environment, or its Gymnasium id. An environment with the API of the old gym, such as
            TextWorld's, is taken as well.
        commands: what can be done in a state: names that are always the same, or where they are; empty allows any text.
        text: what the agent is told; None takes the observation, which must be a text then.
        pictures: uint8[H, W, 3], or several; `render` takes the environment's `render()`; None shows none.
        success: whether the task is done in a state; `reward` says so by a positive reward; None takes the infos
            `success`, `is_success` and `won`, and leaves it unknown without any.
        facts: what only the pictures show, name -> text, or where it is.
        kind: group of tasks by which results are reported.
        send: makes the environment's action of a command; None hands over the words.

    Raises:
        BadInput: there is no such Gymnasium id, or what was made is no environment.
    """
    if isinstance(make, str):
        render_mode = "rgb_array" if pictures == "render" else None
        try:
            env = gymnasium.make(make, render_mode=render_mode, disable_env_checker=True)
        except gymnasium.error.Error as error:
            raise BadInput(f"text_game: there is no environment '{make}' ({error})") from error
    elif callable(make):
        env = make()
    else:
        raise BadInput(f"text_game: give what makes an environment, or its id, not {type(make).__name__}")
    if not isinstance(env, gymnasium.Env):
        env = OldTextEnv(env)
    return TextGame(env, commands, text, pictures, success, facts, kind, send)


class TextGame(gymnasium.Wrapper[Observation, str, Any, Any]):
    """Game made of an environment that is played in words; see `text_game` for the arguments.

    The environment is reset once, with seed 0, to see the size of its pictures.

    Raises:
        RunFailed: a state has no text or too much of it, a picture that is none, or nothing that can be done in it.
    """

    action_names: tuple[str, ...] = ()

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        commands: OfState | Sequence[str],
        text: OfState | None,
        pictures: OfState | None,
        success: OfState | None,
        facts: OfState | None,
        kind: OfState | None,
        send: Callable[[str], Any] | None,
    ) -> None:
        super().__init__(env)
        self._commands = commands
        self._text = text
        self._pictures = pictures
        self._success = success
        self._facts = facts
        self._kind = kind
        self._send = send
        self.action_space: Any = ActionText()
        # One state tells the size of the pictures and the names of the facts.
        observation, info = begin_once(env, type(env.unwrapped).__name__)
        images = self._observation(observation, info).images
        picture_spaces = [spaces.Box(0, 255, image.shape, np.uint8) for image in images]
        self.asked: tuple[str, ...] = tuple(self._with_game_keys(observation, 0.0, info, over=False)["facts"])
        # Gymnasium's checker rejects an empty tuple of spaces; a sequence may be empty.
        pictures_space: Any = spaces.Sequence(spaces.Box(0, 255, (1, 1, 3), np.uint8))
        if picture_spaces:
            pictures_space = spaces.Tuple(picture_spaces)
        self.observation_space: Any = spaces.Tuple((AnyText(), pictures_space))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observation(observation, info), self._with_game_keys(observation, 0.0, info, over=False)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        own_action: Any = action
        if self._send is not None:
            own_action = self._send(action)
        observation, own_reward, terminated, truncated, info = self.env.step(own_action)
        over = bool(terminated or truncated)
        reward = scalar_reward(own_reward)
        if reward is None:
            raise BadInput(f"the reward of a state is {' '.join(repr(own_reward).split()):.60}, which is no number")
        extended_info = self._with_game_keys(observation, reward, info, over)
        return self._observation(observation, info), reward, bool(terminated), bool(truncated), extended_info

    def _observation(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        """The text and the pictures of a state."""
        text = observation
        if self._text is not None:
            text = _value_of(self._text, observation, info, "text")
        if not isinstance(text, str):
            raise RunFailed(
                f"the text of a state is a {type(text).__name__}; say where it is, text='key of an info' or a function"
            )
        if len(text) > MAX_TEXT:
            raise RunFailed(
                f"the text of a state has {len(text):,} characters; say by text= what of it the agent is told"
            )
        if self._pictures is None:
            return Observation(text, ())
        if self._pictures == "render":
            pictures: Any = rgb_frame(self.env)
        else:
            pictures = _value_of(self._pictures, observation, info, "pictures")
        if not isinstance(pictures, list | tuple):
            pictures = [pictures]
        # Copies: some environments draw on one canvas all the time.
        return Observation(text, tuple(checked_frame(picture).copy() for picture in pictures))

    def _with_game_keys(self, observation: Any, reward: float, info: Mapping[str, Any], over: bool) -> dict[str, Any]:
        """The environment's info, with what infos of games hold."""
        commands: Any = self._commands
        if isinstance(commands, str) or callable(commands):
            commands = _value_of(commands, observation, info, "commands")
        legal = () if over else tuple(str(command) for command in commands)
        if self._commands and not legal and not over:
            raise RunFailed("nothing can be done in a state, but the episode goes on; commands gave an empty list")
        # What the caller said counts before what the infos say.
        if self._success == "reward":
            success: bool | None = reward > 0
        elif self._success is not None:
            success = truth(_value_of(self._success, observation, info, "success"), "what success= gives of a state")
        else:
            success = stated_success(info)
            if success is None and info.get("won") is not None:
                success = truth(info["won"], "the info 'won'")
        facts: Any = {}
        if self._facts is not None:
            facts = _value_of(self._facts, observation, info, "facts")
        game_info: dict[str, Any] = {"success": success, "legal_actions": legal, "facts": dict(facts)}
        if self._kind is not None:
            game_info["kind"] = str(_value_of(self._kind, observation, info, "kind"))
        return {**info, **game_info}


def _value_of(where: OfState, observation: Any, info: Mapping[str, Any], name: str) -> Any:
    """What a key of an info, or a function, gives for a state."""
    if callable(where):
        return where(observation, info)
    if where not in info:
        raise RunFailed(f"{name}='{where}': there is no such info, but {', '.join(sorted(info)) or 'none'}")
    return info[where]
