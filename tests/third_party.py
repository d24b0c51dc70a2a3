"""A package of somebody else's with one plug-in of each kind; `test_plugins.py` installs it as `bright_kit`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.agents.algorithms.base import AlgorithmConfig
from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Advantages, Group
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.labels.types import Answer, Outcome, Question, QuestionKind, Teacher, preference
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest
from sightline.preferences.feedback.base import FeedbackConfig, Learner
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup
from sightline.teachers.base import TeacherConfig, TeacherContext

if TYPE_CHECKING:
    from torch import Tensor


class BrightnessConfig(RewardConfig):
    """The mean of a frame's pixels."""

    kind: Literal["brightness"] = "brightness"
    gain: float = 1.0

    def build(self, context: RewardContext) -> RewardSetup:
        return RewardSetup(Brightness(self.gain), frame_size=(16, 16))


class Brightness(RewardModel):
    def __init__(self, gain: float) -> None:
        self.gain = gain

    def reward(self, clip: Clip) -> np.ndarray:
        frames: Any = clip.frames
        return np.asarray(self.gain * frames.mean((-3, -2, -1)) / 255, np.float32)


class BrighterConfig(TeacherConfig):
    """Prefers what is brighter."""

    kind: Literal["brighter"] = "brighter"
    needs_words: ClassVar[bool] = False

    def build(self, context: TeacherContext) -> Brighter:
        return Brighter()


class Brighter(Teacher):
    name = signature = "brighter"

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        for number, question in enumerate(questions):
            light = [float(segment.frames.mean()) / 255 for segment in question.segments]
            if question.kind == "compare":
                yield number, preference(float(light[1] > light[0]))
            else:
                yield number, Answer(Outcome.VALUE, light[0])


class PointsConfig(FeedbackConfig):
    """Scores, learned from by their squared error."""

    kind: Literal["points"] = "points"
    question: ClassVar[QuestionKind] = "score"
    bounded: ClassVar[bool] = True

    def choose(self, learner: Learner, count: int, rng: np.random.Generator) -> np.ndarray:
        return learner.choose_singles(count, rng)

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor:
        return (returns[0] / segment - values).square().mean(-1)


class Plain(AlgorithmConfig):
    """The return of the episode, less the mean of all; its values are learned for nothing."""

    kind: Literal["plain"] = "plain"
    title: ClassVar[str] = "Plain returns"
    needs_values: ClassVar[bool] = True

    def compute_advantages(self, groups: Sequence[Group]) -> list[list[Advantages | None]]:
        played = [episode for group in groups for episode in group if is_complete(episode)]
        mean = np.mean([episode.rewards.sum() for episode in played] or [0.0])
        return [
            [
                Advantages(np.full(len(one.turns), one.rewards.sum() - mean), one.rewards) if is_complete(one) else None
                for one in group
            ]
            for group in groups
        ]


class EyesModel:
    """A model that scores pictures by their brightness."""

    hosted: ClassVar[bool] = False
    key_env: ClassVar[str] = "BRIGHT_KIT_KEY"
    package: ClassVar[str] = "bright_client"
    where, batched = "bright_kit", False

    @classmethod
    def of(cls, config: Any) -> EyesModel:
        return cls()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Ask]:
        async def ask(request: ChatRequest) -> ChatReply:
            light = [part.pixels.mean() / 255 for part in request.parts if not isinstance(part, str)]
            answer = str(round(10 * light[0])) if len(light) == 1 else ("first", "second")[int(light[1] > light[0])]
            return ChatReply(json.dumps({"reason": "It shines.", "answer": answer}))

        yield ask


class Lamp(gymnasium.Env[np.ndarray, np.int64]):
    """Made brighter and darker by its two actions."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None, render_size: tuple[int, int] = (16, 16)) -> None:
        self.render_mode, self.render_size = render_mode, render_size
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.light = float(self.np_random.uniform(0.3, 0.7))
        return self._state(), {"success": False}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.light = min(max(self.light + (0.05 if action else -0.05), 0.0), 1.0)
        return self._state(), self.light, False, False, {"success": self.light > 0.9}

    def render(self) -> np.ndarray:
        return np.full((*self.render_size, 3), round(255 * self.light), np.uint8)

    def _state(self) -> np.ndarray:
        return np.array([self.light], np.float32)


LAMP = Task("lamp", "bright_kit:Lamp", goal=("a bright picture",), summary="Turn a lamp up.")


class Switch(Game):
    """Press the button that is lit."""

    action_names = ("left", "right")
    asked = ("lit",)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.lit, self.done = int(self.np_random.integers(2)), False
        return self._observation(), self._info(False)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.done = True
        won = int(action) == self.lit
        return self._observation(), float(won), True, False, self._info(won)

    def text(self) -> str:
        return "The picture shows two buttons, one of which is lit. Press that one."

    def draw(self) -> np.ndarray:
        picture = np.zeros((*self.render_size, 3), np.uint8)
        half = self.render_size[1] // 2
        picture[:, self.lit * half : (self.lit + 1) * half] = 255
        return picture

    def facts(self) -> dict[str, str]:
        return {"lit": self.action_names[self.lit]}

    def legal_actions(self) -> tuple[str, ...]:
        return self.action_names

    def oracle(self) -> str | None:
        return None if self.done else self.action_names[self.lit]

    def caption(self) -> str:
        return f"The {self.action_names[self.lit]} button is lit."


SWITCH = Task("switch", "bright_kit:Switch", success="end", is_game=True, summary="Press the button that is lit.")
