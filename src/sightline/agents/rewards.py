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
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sightline.agents.algorithms.returns import is_complete
from sightline.agents.types import Trajectory, Turn
from sightline.errors import BadInput
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream
from sightline.rewards.scopes import Past

PerWhat = Literal["turn", "episode"]

BLOCK_TURNS = 512
"""Turns that are scored at once, at most."""
BLOCK_BYTES = 64_000_000
"""Bytes of their frames, at most: where frames are large, fewer turns are scored at once."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive turns of an episode, of those that led to a state.

    Attributes:
        start, stop: numbers of the first turn, and of the one after the last.
        over: whether the episode is over, and ends with this stretch.
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
        self.model = model
        self.per = per
        self.instruction = instruction
        self._states_success = states_success

    @property
    def needs_frames(self) -> bool:
        """True if turns have to keep their frames."""
        return "frames" in self.model.needs

    def score(self, trajectories: Sequence[Trajectory], learns: bool = False) -> None:
        """Replace the rewards of all turns of complete episodes, and drop their frames.

        Args:
            learns: hand the frames to a reward model that is learned during the run.

        Raises:
            BadInput: the environment does not say what the model needs, such as success.
            RunFailed: the model returned another shape or dtype, or a number that is not finite.
        """
        episodes = [episode for episode in trajectories if is_complete(episode)]
        if not episodes:
            return
        stretches = [Stretch(episode, 0, len(states_of(episode)), over=True) for episode in episodes]
        if not any(stretch.turns for stretch in stretches):
            # Every episode was forfeited at once: there is no state to judge, but penalties count.
            for episode in episodes:
                self.pay(episode, [])
            return
        rewards = self._rewards(self.clip(stretches), learns)[:, 0].tolist()
        # The clip has one episode after the other: take each one's rewards off its front.
        start = 0
        for stretch in stretches:
            end = start + len(stretch.turns)
            self.pay(stretch.episode, rewards[start:end])
            start = end

    def pay(self, episode: Trajectory, rewards: Sequence[float]) -> None:
        """Set the rewards of an episode's turns, less their penalties, and drop the frames.

        Args:
            rewards: of each turn that led to a state. A forfeited one led to none: there is nothing to judge, and its
                reward is 0.
        """
        remaining = iter(rewards)
        turn_rewards = [next(remaining) if _led_to_state(turn) else 0.0 for turn in episode.turns]
        if self.per == "episode":
            turn_rewards = [0.0] * (len(turn_rewards) - 1) + [sum(turn_rewards)]
        for turn, reward in zip(episode.turns, turn_rewards, strict=True):
            turn.reward = reward - turn.penalty
            turn.frame = None
        episode.reset_frame = None

    def _rewards(self, clip: Clip, learns: bool) -> np.ndarray:
        """float32[T, 1]: rewards of a clip, which a model that is learned takes in."""
        if not (learns and isinstance(self.model, OnlineRewardModel)):
            return RewardStream(self.model)(clip)
        # In the order of an online reward model's protocol: what it captures of the frames is taken before they go.
        captured = self.model.capture(clip)
        features = self.model.embed(clip)
        without_frames = clip.without_frames()
        rewards = self.model.score(features, without_frames)
        self.model.collected(features, without_frames, captured)
        return rewards

    def clip(self, stretches: Sequence[Stretch]) -> Clip:
        """The turns of stretches of episodes, one after the other, as a clip of one column."""
        turns: list[Turn] = []
        first: list[bool] = []
        ended: list[bool] = []
        terminated: list[bool] = []
        success: list[bool | None] = []
        resets: list[Past] = []
        for stretch in stretches:
            episode = stretch.episode
            if stretch.start == 0 and stretch.turns and self.model.sees_past and episode.reset_frame is not None:
                resets.append(Past.of_resets(len(turns), np.ones(1, bool), episode.reset_frame[None]))
            for number, turn in enumerate(stretch.turns, stretch.start):
                turns.append(turn)
                first.append(number == 0)
                ended.append(stretch.over and number == stretch.stop - 1)
                # The last turn of an episode may have led to no state, and then no state of it is a terminal one.
                is_last_turn = stretch.over and turn is episode.turns[-1]
                terminated.append(is_last_turn and not episode.truncated)
                # The episode's own rule says whether it succeeded; that is known at its end.
                success.append(episode.success if is_last_turn else turn.success)

        states_success = self._states_success or any(state is not None for state in success)
        frames = None
        if self.needs_frames:
            frames = np.stack([turn.frame for turn in turns])[:, None]  # type: ignore[misc]
        return Clip(
            np.array(first, bool)[:, None],
            frames=frames,
            env_reward=np.array([turn.env_reward for turn in turns], np.float32)[:, None],
            success=np.array([bool(state) for state in success])[:, None] if states_success else None,
            ended=np.array(ended, bool)[:, None],
            terminated=np.array(terminated, bool)[:, None],
            instruction=self.instruction,
            past=Past.joined(resets),
        )


class BlockRewards:
    """Rewards of episodes while they are played: frames are scored in blocks and dropped, so that there are never many.

    The numbers are those of `TurnRewards.score`, up to the rounding of a reward model that scores other batches.

    Args:
        rewards: scores the turns, by a model that reads frames and learns nothing meanwhile.
    """

    def __init__(self, rewards: TurnRewards) -> None:
        self._turn_rewards = rewards
        # By the index of an episode: the episode so far, and the rewards of its states so far.
        self._episodes: dict[int, Trajectory] = {}
        self._rewards: dict[int, list[float]] = {}
        self._over: set[int] = set()
        # Of each episode, for a model that is shown earlier frames.
        self._streams: dict[int, RewardStream] = {}
        # Of the block that is gathering.
        self._turns = 0
        self._bytes = 0

    def take(self, index: int, episode: Trajectory) -> None:
        """Take in the newest turn of an episode, and score the block if it is full."""
        self._episodes[index] = episode
        self._rewards.setdefault(index, [])
        self._turns += 1
        frame = episode.turns[-1].frame
        if frame is not None:
            self._bytes += frame.nbytes
        if self._turns >= BLOCK_TURNS or self._bytes >= BLOCK_BYTES:
            self.score()

    def end(self, index: int, episode: Trajectory) -> None:
        """Note that an episode has ended; one that broke down is not scored."""
        if is_complete(episode):
            self._over.add(index)
            return
        self._episodes.pop(index, None)
        self._streams.pop(index, None)
        for turn in episode.turns:
            turn.frame = None

    def score(self) -> None:
        """Score the turns that have gathered, but for the newest one of every episode that goes on: it may be its last.

        Raises:
            BadInput, RunFailed: as for `TurnRewards.score`.
        """
        model = self._turn_rewards.model
        # A stream of its own carries what an episode's later turns are shown; otherwise they go in again.
        overlap = 0 if model.sees_past else model.window - 1
        stretches: dict[int, Stretch] = {}
        for index, episode in self._episodes.items():
            over = index in self._over
            scored = len(self._rewards[index])
            stop = len(states_of(episode))
            if not over:
                stop -= 1
            if stop > scored:
                # Windows reach back over states that were scored before: those go in again.
                stretches[index] = Stretch(episode, max(scored - overlap, 0), stop, over)

        if stretches:
            rewards = self._rewards_of(stretches)
            begin = 0
            for index, stretch in stretches.items():
                end = begin + len(stretch.turns)
                # The first ones are of states that have their rewards already.
                repeated = len(self._rewards[index]) - stretch.start
                self._rewards[index] += rewards[begin + repeated : end]
                begin = end
                # Frames that no later window reaches back to are not needed any more.
                for turn in states_of(stretch.episode)[: max(stretch.stop - overlap, 0)]:
                    turn.frame = None

        for index in self._over:
            self._turn_rewards.pay(self._episodes.pop(index), self._rewards.pop(index))
            self._streams.pop(index, None)
        self._over.clear()
        self._turns = 0
        self._bytes = 0

    def _rewards_of(self, stretches: dict[int, Stretch]) -> list[float]:
        """The rewards of the turns of stretches, one after the other, by the index of their episode."""
        rewards = self._turn_rewards
        if not rewards.model.sees_past:
            clip = rewards.clip(list(stretches.values()))
            return list(RewardStream(rewards.model)(clip)[:, 0].tolist())
        paid: list[float] = []
        for index, stretch in stretches.items():
            stream = self._streams.setdefault(index, RewardStream(rewards.model))
            paid += stream(rewards.clip([stretch]))[:, 0].tolist()
        return paid


def states_of(episode: Trajectory) -> list[Turn]:
    """The turns that led to a state."""
    return [turn for turn in episode.turns if _led_to_state(turn)]


def _led_to_state(turn: Turn) -> bool:
    return turn.played is not None
