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
        try:
            mode = "rgb_array" if pictures == "render" else None
            env = gymnasium.make(make, render_mode=mode, disable_env_checker=True)
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
        RunFailed: a state has no text, a picture that is none, or nothing that can be done in it.
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
        self._commands, self._text, self._pictures = commands, text, pictures
        self._success, self._facts, self._kind, self._send = success, facts, kind, send
        observation, info = begin_once(env, type(env.unwrapped).__name__)
        self.action_space: Any = ActionText()
        shown = self._shown(observation, info)
        self.asked: tuple[str, ...] = tuple(self._with_game_keys(observation, 0.0, info, over=False)["facts"])
        picture_spaces = tuple(spaces.Box(0, 255, picture.shape, np.uint8) for picture in shown.images)
        # Gymnasium's checker rejects an empty tuple of spaces; a sequence may be empty.
        none = spaces.Sequence(spaces.Box(0, 255, (1, 1, 3), np.uint8))
        self.observation_space: Any = spaces.Tuple(
            (AnyText(), spaces.Tuple(picture_spaces) if picture_spaces else none)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._shown(observation, info), self._with_game_keys(observation, 0.0, info, over=False)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        sent = action if self._send is None else self._send(action)
        observation, reward, terminated, truncated, info = self.env.step(sent)
        over = bool(terminated or truncated)
        own = scalar_reward(reward)
        if own is None:
            raise BadInput(f"the reward of a state is {' '.join(repr(reward).split()):.60}, which is no number")
        known = self._with_game_keys(observation, own, info, over)
        return self._shown(observation, info), own, bool(terminated), bool(truncated), known

    def _shown(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        told = observation if self._text is None else _find(self._text, observation, info, "text")
        if not isinstance(told, str):
            raise RunFailed(
                f"the text of a state is a {type(told).__name__}; say where it is, text='key of an info' or a function"
            )
        if self._pictures is None:
            return Observation(told[:MAX_TEXT], ())
        found = (
            rgb_frame(self.env) if self._pictures == "render" else _find(self._pictures, observation, info, "pictures")
        )
        pictures = found if isinstance(found, list | tuple) else (found,)
        # Copies: some environments draw on one canvas all the time.
        return Observation(told[:MAX_TEXT], tuple(checked_frame(picture).copy() for picture in pictures))

    def _with_game_keys(self, observation: Any, reward: float, info: Mapping[str, Any], over: bool) -> dict[str, Any]:
        named = self._commands
        listed = _find(named, observation, info, "commands") if isinstance(named, str) or callable(named) else named
        legal = () if over else tuple(str(command) for command in listed)
        if named and not legal and not over:
            raise RunFailed("nothing can be done in a state, but the episode goes on; commands gave an empty list")
        if self._success == "reward":
            success: bool | None = reward > 0
        elif self._success is not None:
            success = truth(_find(self._success, observation, info, "success"), "what success= gives of a state")
        else:
            success = stated_success(info)
            if success is None and info.get("won") is not None:
                success = truth(info["won"], "the info 'won'")
        facts = {} if self._facts is None else _find(self._facts, observation, info, "facts")
        known: dict[str, Any] = {"success": success, "legal_actions": legal, "facts": dict(facts)}
        if self._kind is not None:
            known["kind"] = str(_find(self._kind, observation, info, "kind"))
        return {**info, **known}


def _find(where: OfState, observation: Any, info: Mapping[str, Any], name: str) -> Any:
    """What a key of an info, or a function, gives for a state."""
    if callable(where):
        return where(observation, info)
    if where not in info:
        raise RunFailed(f"{name}='{where}': there is no such info, but {', '.join(sorted(info)) or 'none'}")
    return info[where]
