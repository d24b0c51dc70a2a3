"""Text-only games, for models without vision and as a baseline for the value of pictures."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from sightline.envs.games.actions import AnyEnv
from sightline.envs.games.contract import AnyText, Observation
from sightline.envs.games.wrapping import GameWrapper, caption
from sightline.errors import BadInput


class TextOnlyWrapper(GameWrapper):
    """Wrapper that replaces the picture by a description of it after the game's own text; `images` is empty.

    Raises:
        BadInput: the environment has no method `caption`.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        if not callable(getattr(env.unwrapped, "caption", None)):
            kind = type(env.unwrapped).__name__
            raise BadInput(f"{kind} cannot describe its pictures in words (it has no caption()); leave out text_only")
        text_and_pictures: Any = env.observation_space
        picture = text_and_pictures[1][0]
        # Gymnasium's checker rejects an empty Tuple as a space; a Sequence of pictures may be empty.
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Sequence(picture)))

    def observation(self, observation: Any) -> Observation:
        return Observation(f"{observation[0]}\n{caption(self.env)}", ())
