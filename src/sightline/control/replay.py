"""A replay buffer from which a transition can be drawn only once its reward is committed.

Rewards are computed from frames after the transitions were collected, so every transition spends some time in the
buffer without a reward. Stable-Baselines3 takes this buffer for any off-policy algorithm as `replay_buffer_class`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sightline.envs.observations import Observations, blank, named, picked, put
from sightline.errors import BadInput, RunFailed
from sightline.rewards.base import Clip
from sightline.runs.archive import Archive, restore_rows


class CommittedReplayBuffer(ReplayBuffer):
    """Replay buffer of SB3 with a commit step between storing a transition and drawing it.

    Rows are vector steps (ring order), columns are environments. `rewards` is NaN where nothing is committed;
    `true_rewards` always holds the environment's own reward. Observations are arrays, or arrays by name where a policy
    reads several parts.

    Args:
        buffer_size: transitions, summed over environments.
        observation_space, action_space: of one environment.
        device: of what is drawn.
        n_envs: environments.
        feature_shape: of the features that a reward model keeps of each transition, to relabel it; None for none.
        feature_dtype: of these features.
        n_steps: rewards that are added up to a return before a value is asked for; 1 gives plain transitions.
        gamma: discount of these rewards.
    """

    observations: Observations  # type: ignore[assignment]
    next_observations: Observations  # type: ignore[assignment]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        feature_shape: tuple[int, ...] | None = None,
        feature_dtype: Any = np.float16,
        n_steps: int = 1,
        gamma: float = 0.99,
    ) -> None:
        # Not SB3's constructor of replay buffers: it has one class for arrays and another for dictionaries.
        BaseBuffer.__init__(self, max(buffer_size // n_envs, 1), observation_space, action_space, device, n_envs)
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage forgets where episodes were cut off by a time limit; leave it out")
        self.optimize_memory_usage, self.handle_timeout_termination = False, True
        self.n_steps, self.gamma = n_steps, gamma
        # The ring once it is full. Rewards are committed in the order of time, so the rows that wait for theirs are
        # always the newest ones, right before `pos`, where the next row overwrites the oldest:
        #
        #     place     0   1   2   3   4   5   6   7
        #             | C | C | w | w | C | C | C | C |    C committed: can be drawn; only its reward still changes
        #                       ▲       ▲                  w waiting: its reward is NaN, and it is never drawn
        #                       │       └ pos: the oldest row, overwritten next; it must not be waiting then
        #                       └ first waiting row
        shape = (self.buffer_size, self.n_envs)
        self.observations, self.next_observations = blank(observation_space, shape), blank(observation_space, shape)
        self.actions = np.zeros((*shape, self.action_dim), self._maybe_cast_dtype(action_space.dtype))
        self.rewards, self.dones, self.timeouts = (np.zeros(shape, np.float32) for _ in range(3))
        self.committed = np.zeros(shape, bool)
        self.true_rewards = np.zeros(shape, np.float32)
        self.features = None if feature_shape is None else np.zeros((*shape, *feature_shape), feature_dtype)
        self._new_rows: list[int] = []
        self.rows_added = 0
        """Vector steps stored since the run began: row r lies in place r mod `buffer_size` of the ring."""

    def add(
        self,
        obs: Observations,
        next_obs: Observations,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Store a vector step whose reward is still to come.

        Raises:
            RunFailed: the ring has come round to a transition that still waits for its reward.
        """
        row = self.pos
        if self.full and not self.committed[row].all():
            raise RunFailed(f"the replay buffer ({self.buffer_size} rows) is too small for what waits for its reward")
        put(self.observations, row, obs)
        put(self.next_observations, row, next_obs)
        self.actions[row] = action.reshape(self.n_envs, self.action_dim)
        self.dones[row] = done
        self.timeouts[row] = [info.get("TimeLimit.truncated", False) for info in infos]
        self.committed[row] = False
        # With NaN no update can use the reward unnoticed before it is known.
        self.rewards[row] = np.nan
        self.true_rewards[row] = reward
        self._new_rows.append(row)
        self.rows_added += 1
        self.pos, self.full = self.rows_added % self.buffer_size, self.rows_added >= self.buffer_size

    def take_new_rows(self) -> np.ndarray:
        """int[T]: the rows added since the last call, in order of time."""
        rows, self._new_rows = np.asarray(self._new_rows, dtype=np.int64), []
        return rows

    def commit(self, rows: np.ndarray, rewards: np.ndarray, features: np.ndarray | None = None) -> None:
        """Give rows their rewards; from now on they can be drawn.

        Args:
            rows: int[T] as given by `take_new_rows`.
            rewards: float[T, n_envs].
            features: [T, n_envs, …], kept if the buffer was made to.

        Raises:
            RunFailed: a reward is NaN or infinite. Nothing is committed then.
        """
        if not np.isfinite(rewards).all():
            bad = int(np.size(rewards) - np.isfinite(rewards).sum())
            raise RunFailed(
                f"{bad} of {np.size(rewards)} rewards are not finite numbers; if a model gave them, look at its frames "
                "with 'sightline score' or try reward.dtype=float32"
            )
        self.rewards[rows] = rewards
        if self.features is not None and features is not None:
            self.features[rows] = features
        self.committed[rows] = True

    def end_episodes(self) -> None:
        """End the episodes of the newest row, which cannot be gone on with: the next row begins new ones."""
        newest = (self.rows_added - 1) % self.buffer_size
        self.timeouts[newest] = np.maximum(self.timeouts[newest], 1 - self.dones[newest])
        self.dones[newest] = 1

    def filled_rows(self) -> np.ndarray:
        """int[T]: rows that hold committed transitions, in order of time."""
        places = self._places(self.rows_added - self._stored, self.rows_added)
        return np.asarray(places[self.committed[places].all(axis=1)])

    def clip(self, rows: np.ndarray) -> Clip:
        """Clip of stored rows that follow each other in time; the first counts as the first of an episode if it is the
        oldest in the ring."""
        before = (rows - 1) % self.buffer_size
        first = self.dones[before] > 0
        first |= (rows == (self.rows_added - self._stored) % self.buffer_size)[:, None]
        reached = self.next_observations
        states = None if isinstance(reached, dict) else reached[rows]
        return Clip(first, states=states, env_reward=self.true_rewards[rows])

    def visited(self) -> np.ndarray:
        """All states [M, …] that were reached, committed or not; for observations of one part."""
        assert isinstance(self.next_observations, np.ndarray), "no reward compares observations of several parts"
        stored = self.next_observations if self.full else self.next_observations[: self.pos]
        return np.asarray(stored.reshape(-1, *stored.shape[2:]))

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Draw uniformly, with replacement, from all committed transitions.

        With `n_steps` above 1, rewards are n-step returns, and next states, ends and discounts are those of the last
        transition that was added up, as in SB3's `NStepReplayBuffer`.

        Raises:
            RunFailed: nothing is committed yet.
        """
        rows, columns = self._draw_committed(batch_size)
        if self.n_steps > 1:
            return self._returns(rows, columns, env)
        ended = self.dones[rows, columns] * (1 - self.timeouts[rows, columns])
        rewards = self._normalize_reward(self.rewards[rows, columns].reshape(-1, 1), env)
        return self._samples((rows, columns), (rows, columns), env, ended.reshape(-1, 1), rewards)

    def _samples(
        self,
        at: tuple[np.ndarray, np.ndarray],
        reached_at: tuple[np.ndarray, np.ndarray],
        env: VecNormalize | None,
        *numbers: np.ndarray,
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Batch of transitions as tensors.

        Args:
            at: rows and columns of the states and actions.
            reached_at: of the next states.
            numbers: ends, rewards and, for several steps, discounts: [M, 1] each.
        """
        seen: Any = self._normalize_obs(picked(self.observations, at), env)
        reached: Any = self._normalize_obs(picked(self.next_observations, reached_at), env)
        actions, *rest = map(self.to_torch, (self.actions[at], *numbers))
        if isinstance(seen, dict):
            before, after = ({name: self.to_torch(part) for name, part in each.items()} for each in (seen, reached))
            return DictReplayBufferSamples(before, actions, after, *rest)
        return ReplayBufferSamples(self.to_torch(seen), actions, self.to_torch(reached), *rest)

    def _returns(
        self, rows: np.ndarray, columns: np.ndarray, env: VecNormalize | None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """n-step returns from these cells on. They stop with the end of an episode, before a transition that has no
        reward yet, and before the ring's oldest row, which does not follow on its newest."""
        ahead = (rows[:, None] + np.arange(self.n_steps)) % self.buffer_size
        cells = ahead, columns[:, None]
        ended = (self.dones[cells] > 0) | (self.timeouts[cells] > 0)
        goes_on = ~ended[:, :-1] & self.committed[cells][:, 1:] & (ahead[:, 1:] != self.pos)
        added = np.cumprod(np.hstack([np.ones((len(rows), 1), bool), goes_on]), axis=1).astype(bool)
        counts = added.sum(axis=1)
        discounts = self.gamma ** np.arange(self.n_steps + 1, dtype=np.float32)
        rewards = np.where(added, self._normalize_reward(self.rewards[cells], env), 0)
        last = ahead[np.arange(len(rows)), counts - 1]
        over = self.dones[last, columns] * (1 - self.timeouts[last, columns])
        return self._samples(
            (rows, columns),
            (last, columns),
            env,
            over.reshape(-1, 1),
            (rewards * discounts[:-1]).sum(axis=1, keepdims=True),
            discounts[counts].reshape(-1, 1),
        )

    def _draw_committed(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rejection sampling of committed cells: nearly all are committed, so few draws are thrown away."""
        stored_rows = self.buffer_size if self.full else self.pos
        committed = self.committed.reshape(-1)
        drawn = np.empty(0, np.int64)
        while len(drawn) < count:
            if len(drawn) == 0 and not committed.any():
                raise RunFailed("no transition has a reward yet; raise learner.learning_starts")
            cells = np.random.randint(0, stored_rows * self.n_envs, size=count - len(drawn))
            drawn = np.concatenate([drawn, cells[committed[cells]]])
        rows, columns = np.divmod(drawn, self.n_envs)
        return rows, columns

    def copy_from(self, other: CommittedReplayBuffer) -> None:
        """Take over everything that another buffer stores, into this one, which is still empty.

        Raises:
            BadInput: it stores other shapes, or more than there is room for.
        """
        ours, theirs = self._lasting(), other._lasting()
        stored = other.filled_rows()
        if other.n_envs != self.n_envs or len(stored) > self.buffer_size:
            raise BadInput(
                f"the stored transitions are {len(stored)} steps of {other.n_envs} environments; this run needs "
                f"envs={other.n_envs} and a learner.buffer_size of at least {len(stored) * other.n_envs}"
            )
        for name in ours:
            if name not in theirs or theirs[name].shape[2:] != ours[name].shape[2:]:
                raise BadInput(f"the stored transitions do not fit this run: their {name} differ; use the same recipe")
            ours[name][: len(stored)] = theirs[name][stored]
        self.rewards[: len(stored)], self.committed[: len(stored)] = other.rewards[stored], True
        self.rows_added = len(stored)
        self.pos, self.full = len(stored) % self.buffer_size, len(stored) == self.buffer_size

    # -- checkpoints -----------------------------------------------------------------------------------------------
    #
    # What was seen and done never changes once its reward is committed, so it is archived once. Rewards change when a
    # reward model is fitted again; they are small, and every checkpoint holds all of them. The last rows, which still
    # wait for their rewards and features, are in the checkpoint too.

    def archive_to(self, archive: Archive) -> None:
        """Append the committed rows that are not archived yet."""
        archive.append_ring(self._lasting(), self._first_waiting(), self.rows_added - self._stored)

    def state(self) -> dict[str, Any]:
        """Everything that is not archived, for a checkpoint: rewards, and the rows that wait for theirs."""
        oldest, waiting = self.rows_added - self._stored, self._first_waiting()
        kept, last = self._places(oldest, self.rows_added), self._places(waiting, self.rows_added)
        return {
            "rows_added": self.rows_added,
            "new_rows": np.array(self._new_rows, np.int64),
            "rewards": self.rewards[kept],
            "committed": self.committed[kept],
            "waiting": {name: array[last] for name, array in self._lasting().items()},
        }

    def restore(self, state: dict[str, Any], archive: Archive) -> None:
        """Take over what `state` gave, and the rows that were archived before it.

        Raises:
            ValueError, KeyError: they do not fit this buffer.
            Damaged: a file of the archive is.
        """
        self.rows_added = int(state["rows_added"])
        self.pos, self.full = self.rows_added % self.buffer_size, self.rows_added >= self.buffer_size
        oldest = self.rows_added - self._stored
        kept = self._places(oldest, self.rows_added)
        self.rewards[kept], self.committed[kept] = state["rewards"], state["committed"]
        reached = archive.read_ring(self._lasting(), oldest)
        reached = restore_rows(self._lasting(), self._first_waiting(), state["waiting"], oldest, reached)
        if reached != self.rows_added:
            raise ValueError(f"rows {reached} to {self.rows_added} are missing")
        self._new_rows = [int(row) for row in state["new_rows"]]

    def _lasting(self) -> dict[str, np.ndarray]:
        """The arrays of which a row never changes once it is committed."""
        arrays = named(self.observations, "observations") | named(self.next_observations, "next_observations")
        names = ["actions", "dones", "timeouts", "true_rewards"]
        names += ["features"] if self.features is not None else []
        return arrays | {name: getattr(self, name) for name in names}

    @property
    def _stored(self) -> int:
        """Number of rows in the ring."""
        return min(self.rows_added, self.buffer_size)

    def _places(self, start: int, end: int) -> np.ndarray:
        """Places of rows in the ring, int[end - start]."""
        return np.arange(start, max(start, end)) % self.buffer_size

    def _first_waiting(self) -> int:
        """The first row without a reward; rewards are committed in the order of time."""
        places = self._places(self.rows_added - self._stored, self.rows_added)
        committed = self.committed[places].all(axis=1)
        waiting = len(places) if committed.all() else int(np.argmin(committed))
        return self.rows_added - self._stored + waiting
