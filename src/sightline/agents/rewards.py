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
from dataclasses import replace
from typing import Literal

import numpy as np

from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Trajectory, Turn
from sightline.errors import BadInput
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream

PerWhat = Literal["turn", "episode"]


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
        led = any(_led_somewhere(turn) for episode in episodes for turn in episode.turns)
        rewards = iter(self._rewards(self.clip(episodes), learns)[:, 0].tolist() if led else ())
        for episode in episodes:
            # A forfeited turn led to no state: there is nothing to judge, and nothing is earned.
            earned = [next(rewards) if _led_somewhere(turn) else 0.0 for turn in episode.turns]
            if self.per == "episode":
                earned = [0.0] * (len(earned) - 1) + [sum(earned)]
            for turn, reward in zip(episode.turns, earned, strict=True):
                turn.reward, turn.frame = reward - turn.penalty, None

    def _rewards(self, clip: Clip, learns: bool) -> np.ndarray:
        if not (learns and isinstance(self.model, OnlineRewardModel)):
            return RewardStream(self.model)(clip)
        captured = self.model.capture(clip)
        features, seen = self.model.embed(clip), replace(clip, frames=None)
        rewards = self.model.score(features, seen)
        self.model.collected(features, seen, captured)
        return rewards

    def clip(self, episodes: Sequence[Trajectory]) -> Clip:
        """The turns of some episodes, one after the other, as a clip of one column."""
        in_episodes = [[turn for turn in episode.turns if _led_somewhere(turn)] for episode in episodes]
        turns = [turn for of_episode in in_episodes for turn in of_episode]
        first = [i == 0 for of_episode in in_episodes for i in range(len(of_episode))]
        ended = [i == len(of_episode) - 1 for of_episode in in_episodes for i in range(len(of_episode))]
        terminal = {id(e.turns[-1]) for e in episodes if not e.truncated}
        # The episode's own rule says whether it succeeded; that is known at its end.
        won = {id(e.turns[-1]): e.success for e in episodes}
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


def _led_somewhere(turn: Turn) -> bool:
    return turn.played is not None
