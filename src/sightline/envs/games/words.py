"""Games without pictures: everything in words, for models that cannot see, and to measure what pictures add."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from sightline.envs.games.contract import AnyText, Observation
from sightline.envs.games.wrapping import AnyEnv, GameWrapper, in_words
from sightline.errors import BadInput


class InWords(GameWrapper):
    """Tells what the picture shows, after the game's own text, and leaves the picture out: `images` is empty.

    Raises:
        BadInput: the environment cannot say what its pictures show.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        if not callable(getattr(env.unwrapped, "in_words", None)):
            kind = type(env.unwrapped).__name__
            raise BadInput(f"{kind} cannot say in words what its pictures show (in_words()); leave out in_words")
        shown: Any = env.observation_space
        # Gymnasium's check wants no empty tuple as a space; of pictures in sequence there may be none.
        self.observation_space: Any = spaces.Tuple((AnyText(), spaces.Sequence(shown[1][0])))

    def observation(self, observation: Any) -> Observation:
        return Observation(f"{observation[0]}\n{in_words(self.env)}", ())
