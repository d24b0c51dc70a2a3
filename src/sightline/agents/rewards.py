"""Rewards of an agent's turns by a reward model, once its episodes are played.

    turn 0      turn 1      turn 2      |  turn 0      turn 1 …         episodes one after the other: one clip, [T, 1]
    frame 1     frame 2     frame 3     |  frame 1     frame 2          newest picture of the state that a turn led to
    first                               |  first                        windows stop where an episode begins
       └───────── reward model: float32[T, 1] ─────────┘                minus the turn's penalty: what is learned from

The agent is shown the same pictures, but for those that an evaluation replaces: a blind agent is still judged by what
really happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Trajectory, Turn
from sightline.errors import BadInput
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream

PerWhat = Literal["turn", "episode"]


BLOCK_TURNS, BLOCK_BYTES = 512, 64_000_000
"""So many turns are scored at once, or fewer whose frames take so much memory."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive turns of an episode, of those that led to a state.

    Attributes:
        start, stop: numbers of the first one and of the one after the last.
        over: whether the episode is over, and ends with them.
    """

    episode: Trajectory
    start: int
    stop: int
    over: bool

    @property
    def turns(self) -> list[Turn]:
        """The turns."""
        return states_of(self.episode)[self.start : self.stop]


class TurnRewards:
    """Gives the turns of finished episodes the rewards of a reward model.

    Args:
        model: the reward model.
        per: `turn` leaves each turn its reward; `episode` moves all rewards of an episode to its last turn.
        instruction: the goal in words, for models that read one.
        states_success: whether the environment is known to state success, though it may not in every episode.

    Raises:
        BadInput: the model reads states, which an agent's environment does not show.
    """

    def __init__(
        self,
        model: RewardModel,
        per: PerWhat = "turn",
        instruction: str | None = None,
        states_success: bool = False,
    ) -> None:
        if "states" in model.needs:
            raise BadInput(
                f"{type(model).__name__} reads states, and an agent's environment shows pictures; choose a reward that "
                "reads frames"
            )
        self.model, self.per, self.instruction = model, per, instruction
        self._states_success = states_success

    @property
    def needs_frames(self) -> bool:
        """True if turns have to keep their frames."""
        return "frames" in self.model.needs

    def score(self, trajectories: Sequence[Trajectory], learns: bool = False) -> None:
        """Replace the rewards of all turns of complete episodes; frames are let go.

        Args:
            learns: let a reward model that is learned during the run take in what was seen.

        Raises:
            BadInput: the environment does not say what the model needs, such as success.
            RunFailed: the model returned another shape or dtype, or a number that is not finite.
        """
        episodes = [episode for episode in trajectories if is_complete(episode)]
        if not episodes:
            return
        stretches = [Stretch(episode, 0, len(states_of(episode)), over=True) for episode in episodes]
        led = any(stretch.turns for stretch in stretches)
        rewards = iter(self._rewards(self.clip(stretches), learns)[:, 0].tolist() if led else ())
        for stretch in stretches:
            self.pay(stretch.episode, [next(rewards) for _ in stretch.turns])

    def pay(self, episode: Trajectory, earned: Sequence[float]) -> None:
        """Give the turns of an episode what they have earned, less their penalties; frames are let go.

        Args:
            earned: of each turn that led to a state. A forfeited one led to none: there is nothing to judge, and
                nothing is earned.
        """
        rewards = iter(earned)
        of_turns = [next(rewards) if _led_somewhere(turn) else 0.0 for turn in episode.turns]
        if self.per == "episode":
            of_turns = [0.0] * (len(of_turns) - 1) + [sum(of_turns)]
        for turn, reward in zip(episode.turns, of_turns, strict=True):
            turn.reward, turn.frame = reward - turn.penalty, None

    def _rewards(self, clip: Clip, learns: bool) -> np.ndarray:
        if not (learns and isinstance(self.model, OnlineRewardModel)):
            return RewardStream(self.model)(clip)
        captured = self.model.capture(clip)
        features, seen = self.model.embed(clip), replace(clip, frames=None)
        rewards = self.model.score(features, seen)
        self.model.collected(features, seen, captured)
        return rewards

    def clip(self, stretches: Sequence[Stretch]) -> Clip:
        """The turns of stretches of episodes, one after the other, as a clip of one column."""
        turns = [turn for stretch in stretches for turn in stretch.turns]
        first = [i == 0 for stretch in stretches for i in range(stretch.start, stretch.stop)]
        ended = [
            stretch.over and i == stretch.stop - 1 for stretch in stretches for i in range(stretch.start, stretch.stop)
        ]
        terminal = {
            id(stretch.episode.turns[-1]) for stretch in stretches if stretch.over and not stretch.episode.truncated
        }
        # The episode's own rule says whether it succeeded; that is known at its end.
        won = {id(stretch.episode.turns[-1]): stretch.episode.success for stretch in stretches if stretch.over}
        success = [won.get(id(turn), turn.success) for turn in turns]
        states_success = self._states_success or any(one is not None for one in success)
        return Clip(
            np.array(first, bool)[:, None],
            frames=np.stack([turn.frame for turn in turns])[:, None] if self.needs_frames else None,  # type: ignore[misc]
            env_reward=np.array([turn.env_reward for turn in turns], np.float32)[:, None],
            success=np.array([bool(one) for one in success])[:, None] if states_success else None,
            ended=np.array(ended, bool)[:, None],
            terminated=np.array([id(turn) in terminal for turn in turns], bool)[:, None],
            instruction=self.instruction,
        )


class BlockRewards:
    """Rewards of episodes while they are played: frames are scored in blocks and let go, so that there are never many.

    The numbers are those of `TurnRewards.score`, to the rounding of a reward model whose batches are others.

    Args:
        rewards: scores the turns, by a model that reads frames and learns nothing meanwhile.
    """

    def __init__(self, rewards: TurnRewards) -> None:
        self._rewards = rewards
        # By the index of an episode: what it consists of so far, and what its states have earned.
        self._played: dict[int, Trajectory] = {}
        self._earned: dict[int, list[float]] = {}
        self._over: set[int] = set()
        self._turns = self._bytes = 0

    def take(self, index: int, episode: Trajectory) -> None:
        """Take in the newest turn of an episode, and score what has gathered if it is a block."""
        self._played[index] = episode
        self._earned.setdefault(index, [])
        frame = episode.turns[-1].frame
        self._turns += 1
        self._bytes += 0 if frame is None else frame.nbytes
        if self._turns >= BLOCK_TURNS or self._bytes >= BLOCK_BYTES:
            self.score()

    def end(self, index: int, episode: Trajectory) -> None:
        """Take note that an episode has ended; one that broke down is not scored."""
        if is_complete(episode):
            self._over.add(index)
            return
        self._played.pop(index, None)
        for turn in episode.turns:
            turn.frame = None

    def score(self) -> None:
        """Score what has gathered: all turns but the newest of episodes that go on, which may be their last.

        Raises:
            BadInput, RunFailed: as for `TurnRewards.score`.
        """
        back = self._rewards.model.window - 1
        stretches: dict[int, Stretch] = {}
        for index, episode in self._played.items():
            over, scored = index in self._over, len(self._earned[index])
            stop = len(states_of(episode)) - (0 if over else 1)
            if stop > scored:
                # Rewards of windows need the steps before, whose own rewards are known.
                stretches[index] = Stretch(episode, max(scored - back, 0), stop, over)
        if stretches:
            rewards = iter(
                RewardStream(self._rewards.model)(self._rewards.clip(list(stretches.values())))[:, 0].tolist()
            )
            for index, stretch in stretches.items():
                of_stretch = [next(rewards) for _ in stretch.turns]
                self._earned[index] += of_stretch[len(self._earned[index]) - stretch.start :]
                for turn in states_of(stretch.episode)[: max(stretch.stop - back, 0)]:
                    turn.frame = None
        for index in self._over:
            self._rewards.pay(self._played.pop(index), self._earned.pop(index))
        self._over.clear()
        self._turns = self._bytes = 0


def states_of(episode: Trajectory) -> list[Turn]:
    """The turns that led to a state."""
    return [turn for turn in episode.turns if _led_somewhere(turn)]


def _led_somewhere(turn: Turn) -> bool:
    return turn.played is not None
