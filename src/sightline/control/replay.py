"""A replay buffer from which a transition can be drawn only once its reward is committed.

Rewards are computed from frames after the transitions were collected, so every transition spends some time in the
buffer without a reward. Stable-Baselines3 takes this buffer for any off-policy algorithm as `replay_buffer_class`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        self.optimize_memory_usage = False
        self.handle_timeout_termination = True
        self.n_steps = n_steps
        self.gamma = gamma
        # The ring once it is full. Rewards are committed in the order of time, so the rows that wait for theirs are
        # always the newest ones, right before `pos`, where the next row overwrites the oldest:
        #
        #     place     0   1   2   3   4   5   6   7
        #             | C | C | w | w | C | C | C | C |    C committed: can be drawn; only its reward still changes
        #                       ▲       ▲                  w waiting: its reward is NaN, and it is never drawn
        #                       │       └ pos: the oldest row, overwritten next; it must not be waiting then
        #                       └ first waiting row
        shape = (self.buffer_size, self.n_envs)
        self.observations = blank(observation_space, shape)
        self.next_observations = blank(observation_space, shape)
        self.actions = np.zeros((*shape, self.action_dim), self._maybe_cast_dtype(action_space.dtype))
        self.rewards = np.zeros(shape, np.float32)
        self.dones = np.zeros(shape, np.float32)
        self.timeouts = np.zeros(shape, np.float32)
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
        self._set_rows_added(self.rows_added + 1)

    def _set_rows_added(self, count: int) -> None:
        """Set how many vector steps were stored, and with it SB3's own place and flag in the ring."""
        self.rows_added = count
        self.pos = count % self.buffer_size
        self.full = count >= self.buffer_size

    def take_new_rows(self) -> np.ndarray:
        """int[T]: the rows added since the last call, in order of time."""
        rows = np.asarray(self._new_rows, dtype=np.int64)
        self._new_rows = []
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

    def write(
        self,
        cells: tuple[np.ndarray, np.ndarray],
        transitions: Mapping[str, np.ndarray],
        features: np.ndarray | None,
    ) -> None:
        """Write transitions that are known already to cells of the empty ring; `begin_with` counts them.

        Args:
            cells: rows and columns, int[M] each.
            transitions: name of an array of this buffer -> its values of these cells, [M, …].
            features: [M, …], kept if the buffer was made to.
        """
        for name, values in transitions.items():
            getattr(self, name)[cells] = values
        if self.features is not None and features is not None:
            self.features[cells] = features

    def begin_with(self, rows: int) -> None:
        """Count the first rows, which were written, as stored and committed; nothing follows on their episodes."""
        self.committed[:rows] = True
        self._set_rows_added(rows)
        self.end_episodes()

    def end_episodes(self) -> None:
        """End the episodes of the newest row, which cannot be gone on with: the next row begins new ones."""
        newest = (self.rows_added - 1) % self.buffer_size
        self.timeouts[newest] = np.maximum(self.timeouts[newest], 1 - self.dones[newest])
        self.dones[newest] = 1

    def filled_rows(self) -> np.ndarray:
        """int[T]: rows that hold committed transitions, in order of time."""
        places = self._places(self._oldest_row, self.rows_added)
        return np.asarray(places[self.committed[places].all(axis=1)])

    def clip(self, rows: np.ndarray) -> Clip:
        """Clip of stored rows that follow each other in time; the first counts as the first of an episode if it is the
        oldest in the ring."""
        # A step begins an episode where the step before it ended one.
        before = (rows - 1) % self.buffer_size
        first = self.dones[before] > 0
        # What came before the oldest row is overwritten: the place before it holds the newest row.
        oldest = self._oldest_row % self.buffer_size
        first |= (rows == oldest)[:, None]
        states = None
        if isinstance(self.next_observations, np.ndarray):  # no reward reads observations of several parts
            states = self.next_observations[rows]
        return Clip(first, states=states, env_reward=self.true_rewards[rows])

    def visited(self) -> np.ndarray:
        """All states [M, …] that were reached, committed or not; for observations of one part."""
        assert isinstance(self.next_observations, np.ndarray), "no reward compares observations of several parts"
        states = self.next_observations[: self._stored]
        return np.asarray(states.reshape(-1, *states.shape[2:]))

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Draw uniformly, with replacement, from all committed transitions.

        With `n_steps` above 1, rewards are n-step returns, and next states, ends and discounts are those of the last
        transition that was added up, as in SB3's `NStepReplayBuffer`.

        Args:
            batch_size: M, transitions to draw.
            env: part of SB3's interface. Sightline wraps no environment in `VecNormalize`, so it is None, and
                observations and rewards stay as they were stored.

        Raises:
            RunFailed: nothing is committed yet.
        """
        rows, columns = self._draw_committed(batch_size)
        if self.n_steps > 1:
            return self._sample_returns(rows, columns, env)
        # Truncated, not terminated: the target still bootstraps from the next state's value.
        terminated = self.dones[rows, columns] * (1 - self.timeouts[rows, columns])
        rewards = self._normalize_reward(self.rewards[rows, columns].reshape(-1, 1), env)
        return self._samples((rows, columns), (rows, columns), env, terminated.reshape(-1, 1), rewards)

    def _samples(
        self,
        cells: tuple[np.ndarray, np.ndarray],
        next_cells: tuple[np.ndarray, np.ndarray],
        env: VecNormalize | None,
        *numbers: np.ndarray,
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Batch of transitions as tensors.

        Args:
            cells: rows and columns of the states and actions, int[M] each.
            next_cells: of the next states.
            numbers: ends, rewards and, for several steps, discounts: [M, 1] each.
        """
        states: Any = self._normalize_obs(picked(self.observations, cells), env)
        next_states: Any = self._normalize_obs(picked(self.next_observations, next_cells), env)
        actions = self.to_torch(self.actions[cells])
        tensors = [self.to_torch(array) for array in numbers]
        if isinstance(states, dict):
            state_parts = {name: self.to_torch(part) for name, part in states.items()}
            next_state_parts = {name: self.to_torch(part) for name, part in next_states.items()}
            return DictReplayBufferSamples(state_parts, actions, next_state_parts, *tensors)
        return ReplayBufferSamples(self.to_torch(states), actions, self.to_torch(next_states), *tensors)

    def _sample_returns(
        self, rows: np.ndarray, columns: np.ndarray, env: VecNormalize | None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """n-step returns from these cells on. They stop with the end of an episode, before a transition that has no
        reward yet, and before the ring's oldest row, which does not follow on its newest."""
        # The n cells from each drawn one on, [M, n].
        ahead = (rows[:, None] + np.arange(self.n_steps)) % self.buffer_size
        cells = (ahead, columns[:, None])
        # goes_on[:, k]: step k + 1 may be added after step k. A return is the unbroken row of such steps:
        #
        #     step      0  1  2  3  4
        #     goes_on      1  1  0  1      the episode ends with step 2, so steps 3 and 4 are of another one
        #     added     1  1  1  0  0
        ended = (self.dones[cells] > 0) | (self.timeouts[cells] > 0)
        has_reward = self.committed[cells][:, 1:]
        follows = ahead[:, 1:] != self.pos
        goes_on = ~ended[:, :-1] & has_reward & follows
        always_first = np.ones((len(rows), 1), bool)
        added = np.cumprod(np.hstack([always_first, goes_on]), axis=1).astype(bool)
        counts = added.sum(axis=1)
        discounts = self.gamma ** np.arange(self.n_steps + 1, dtype=np.float32)
        rewards = np.where(added, self._normalize_reward(self.rewards[cells], env), 0)
        returns = (rewards * discounts[:-1]).sum(axis=1, keepdims=True)
        # The value that completes a return is that of the state after its last step, discounted by their number.
        last_rows = ahead[np.arange(len(rows)), counts - 1]
        terminated = self.dones[last_rows, columns] * (1 - self.timeouts[last_rows, columns])
        return self._samples(
            (rows, columns),
            (last_rows, columns),
            env,
            terminated.reshape(-1, 1),
            returns,
            discounts[counts].reshape(-1, 1),
        )

    def _draw_committed(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rejection sampling of committed cells: nearly all are committed, so few draws are thrown away."""
        committed = self.committed.reshape(-1)
        cells = np.empty(0, np.int64)
        while len(cells) < count:
            if len(cells) == 0 and not committed.any():
                raise RunFailed("no transition has a reward yet; raise learner.learning_starts")
            # NumPy's global generator, as in SB3: `seed` has set it, and its state is in every checkpoint.
            drawn_cells = np.random.randint(0, self._stored * self.n_envs, size=count - len(cells))
            cells = np.concatenate([cells, drawn_cells[committed[drawn_cells]]])
        rows, columns = np.divmod(cells, self.n_envs)
        return rows, columns

    def copy_from(self, other: CommittedReplayBuffer) -> None:
        """Take over everything that another buffer stores, into this one, which is still empty.

        Raises:
            BadInput: it stores other shapes, or more than there is room for.
        """
        rows = other.filled_rows()
        count = len(rows)
        if other.n_envs != self.n_envs or count > self.buffer_size:
            raise BadInput(
                f"the stored transitions are {count} steps of {other.n_envs} environments; this run needs "
                f"envs={other.n_envs} and a learner.buffer_size of at least {count * other.n_envs}"
            )
        sources = other._lasting()
        for name, array in self._lasting().items():
            if name not in sources or sources[name].shape[2:] != array.shape[2:]:
                raise BadInput(f"the stored transitions do not fit this run: their {name} differ; use the same recipe")
            # In order of time from the first place on, wherever the other ring began.
            array[:count] = sources[name][rows]
        self.rewards[:count] = other.rewards[rows]
        self.committed[:count] = True
        self._set_rows_added(count)

    # -- checkpoints -----------------------------------------------------------------------------------------------
    #
    # What was seen and done never changes once its reward is committed, so it is archived once. Rewards change when a
    # reward model is fitted again; they are small, and every checkpoint holds all of them. The last rows, which still
    # wait for their rewards and features, are in the checkpoint too.

    def archive_to(self, archive: Archive) -> None:
        """Append the committed rows that are not archived yet."""
        archive.append_ring(self._lasting(), self._first_waiting(), self._oldest_row)

    def state(self) -> dict[str, Any]:
        """Everything that is not archived, for a checkpoint: rewards, and the rows that wait for theirs."""
        places = self._places(self._oldest_row, self.rows_added)
        waiting = self._places(self._first_waiting(), self.rows_added)
        return {
            "rows_added": self.rows_added,
            "new_rows": np.array(self._new_rows, np.int64),
            "rewards": self.rewards[places],
            "committed": self.committed[places],
            "waiting": {name: array[waiting] for name, array in self._lasting().items()},
        }

    def restore(self, state: dict[str, Any], archive: Archive) -> None:
        """Take over what `state` gave, and the rows that were archived before it.

        Raises:
            ValueError, KeyError: they do not fit this buffer.
            Damaged: a file of the archive is.
        """
        self._set_rows_added(int(state["rows_added"]))
        oldest = self._oldest_row
        places = self._places(oldest, self.rows_added)
        self.rewards[places] = state["rewards"]
        self.committed[places] = state["committed"]
        # First the archived rows, then those that were still waiting: each part has to follow on the one before.
        next_row = archive.read_ring(self._lasting(), oldest)
        next_row = restore_rows(self._lasting(), self._first_waiting(), state["waiting"], oldest, next_row)
        if next_row != self.rows_added:
            raise ValueError(f"rows {next_row} to {self.rows_added} are missing")
        self._new_rows = [int(row) for row in state["new_rows"]]

    def _lasting(self) -> dict[str, np.ndarray]:
        """The arrays of which a row never changes once it is committed."""
        arrays = named(self.observations, "observations") | named(self.next_observations, "next_observations")
        arrays |= {
            "actions": self.actions,
            "dones": self.dones,
            "timeouts": self.timeouts,
            "true_rewards": self.true_rewards,
        }
        if self.features is not None:
            arrays["features"] = self.features
        return arrays

    @property
    def _stored(self) -> int:
        """Number of rows in the ring."""
        return min(self.rows_added, self.buffer_size)

    @property
    def _oldest_row(self) -> int:
        """Number of the oldest row in the ring, counted from the run's first one."""
        return self.rows_added - self._stored

    def _places(self, start: int, end: int) -> np.ndarray:
        """Places of rows in the ring, int[end - start]."""
        return np.arange(start, max(start, end)) % self.buffer_size

    def _first_waiting(self) -> int:
        """The first row without a reward; rewards are committed in the order of time."""
        places = self._places(self._oldest_row, self.rows_added)
        committed = self.committed[places].all(axis=1)
        if committed.all():
            return self.rows_added
        return self._oldest_row + int(np.argmin(committed))
