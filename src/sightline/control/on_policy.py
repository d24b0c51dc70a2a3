"""On-policy training: our own loop around SB3's policy, rollout buffer and update.

    collect `learner.chunk` vector steps with the policy
        │ frames, a few steps at a time ──► embed (a thread)
        │ Chunk: steps, frames of the scored ones
        ▼
    score the chunk ──► standardise ──► bootstrap truncated episodes ──► returns and advantages (GAE) ──► update
        │ raw rewards, for the log                                                                          │
        └──────────────── between two chunks: the online reward learns, the session ◄───────────────────────┘

An on-policy learner needs the rewards of a chunk before it learns from it, so nothing is late by a chunk here, and
nothing is kept of a chunk once it was learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from sightline.config.learners import OnPolicyLearner
from sightline.control.collection import Chunk
from sightline.control.control_setup import ControlSetup
from sightline.control.learners import build_on_policy_learner, reset_values, value_weights
from sightline.control.sb3 import (
    advance_schedules,
    episode_starts,
    last_observations,
    set_episode_starts,
    set_last_observations,
)
from sightline.control.standardisation import RewardScale, StandardisedObservations
from sightline.control.state import set_random_state
from sightline.control.trainer import ControlTrainer
from sightline.envs.observations import Observations, joined, picked
from sightline.models.device import random_states_kept
from sightline.rewards.base import OnlineRewardModel, RewardStream, RewardUpdate
from sightline.rewards.novelty import AMONG
from sightline.runs.state import restoring
from sightline.runs.stopping import awaited
from sightline.session import RunSession

PART = 64
"""Frames that are embedded at once at least, but for the last ones of a chunk."""


class OnPolicyTrainer(ControlTrainer):
    """Trainer of an on-policy learner, which learns from each chunk once."""

    model: OnPolicyAlgorithm

    def __init__(self, setup: ControlSetup, session: RunSession) -> None:
        learner = setup.recipe.learner
        assert isinstance(learner, OnPolicyLearner)
        super().__init__(setup, session, learner.frames_every, chunks_of_frames=1)
        # Not by SB3's `VecNormalize`; see `control/standardisation.py`.
        self._standardises_rewards = learner.standardise_rewards
        self._action_cost = learner.action_cost
        self._scale = RewardScale()
        self._visited = NewestStates(max(AMONG, learner.chunk * setup.recipe.envs))
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rewards")
        self._open.callback(self._worker.shutdown, wait=True, cancel_futures=True)

    def learn(self) -> None:
        while self.step < self.setup.recipe.steps:
            self.between_chunks()
            chunk, features, truncated_states = self._collect()
            # Rewards come before the update here, so that an on-policy learner learns from the chunk it has collected.
            rewards = self._score(chunk, features)
            self._fill_returns(chunk, rewards, truncated_states)
            advance_schedules(self.model, self.step, self.setup.recipe.steps)
            self.model.train()
            self._standardise_observations()
            self._report_chunk(rewards)
        self.between_chunks(last=True)

    def _collect(self) -> tuple[Chunk, np.ndarray, list[Observations]]:
        """Step the environments through a chunk with the policy; the rollout buffer has all of it but rewards.

        Returns:
            The chunk, the features [S, N, …] of its scored steps, and the last states of truncated episodes, which a
            time limit cut off, in order of time.

        Raises:
            Stopped: a stop was asked for long ago; the chunk is lost.
        """
        model = self.model
        policy = model.policy
        buffer = model.rollout_buffer
        policy.set_training_mode(False)
        buffer.reset()
        features: list[Future[np.ndarray]] = []
        truncated_states: list[Observations] = []
        submitted = 0
        for step in range(model.n_steps):
            if self._is_noise_due(step):
                policy.reset_noise(model.n_envs)
            observations: Any = last_observations(model)
            with torch.no_grad():
                action_tensor, values, log_probs = policy(obs_as_tensor(observations, model.device))
            # The buffer keeps the actions that were drawn, whose probabilities are known; the environment gets them
            # within its bounds.
            actions = action_tensor.cpu().numpy()
            transitions = self._env.collect(self._within_bounds(actions))
            # Rewards are still to come; with NaN no update can go without them unnoticed.
            unknown_rewards = np.full(model.n_envs, np.nan, np.float32)
            buffer.add(observations, actions, unknown_rewards, episode_starts(model), values, log_probs)
            set_last_observations(model, transitions.states)
            set_episode_starts(model, transitions.ended)
            # After an episode's end `states` begin the next one; its own last states are needed to bootstrap from.
            truncated = transitions.ended & ~transitions.terminated
            if truncated.any():
                truncated_states.append(picked(transitions.final_states, truncated))
            model.num_timesteps += model.n_envs
            # The encoder works on these frames while the simulation makes the next ones.
            scored = self._env.scored
            is_last = step == model.n_steps - 1
            is_enough = (scored - submitted) * model.n_envs >= PART and not self._takes_whole_chunks
            if is_enough or (is_last and scored > submitted):
                features.append(self._worker.submit(self._stream.embed, self._env.newest(submitted)))
                submitted = scored
            self.session.give_up_if_overdue()
        chunk = self._env.take_chunk()
        return chunk, np.concatenate([awaited(part) for part in features]), truncated_states

    @property
    def _takes_whole_chunks(self) -> bool:
        """Whether the reward is asked about some steps only, and about the last one of each part of a chunk as well."""
        return self._reward.sees_past and self._reward.window > 1

    def _is_noise_due(self, step: int) -> bool:
        """Whether state-dependent exploration draws its noise anew before a step of the chunk: every `sde_sample_freq`
        steps, or once a chunk."""
        every = self.model.sde_sample_freq
        return self.model.use_sde and (step == 0 or (every > 0 and step % every == 0))

    def _within_bounds(self, actions: np.ndarray) -> np.ndarray:
        """The actions that are carried out; what is learned from are those that the policy drew."""
        space = self.model.action_space
        if not isinstance(space, spaces.Box):
            return actions
        # Squashed policies draw from -1 to 1, to be stretched to the bounds; others from a Gaussian, which has none.
        if self.model.policy.squash_output:
            return np.asarray(self.model.policy.unscale_action(actions))
        return np.asarray(np.clip(actions, space.low, space.high))

    def _score(self, chunk: Chunk, features: np.ndarray) -> np.ndarray:
        """float32[T, N]: the rewards of a chunk, as the reward model gives them."""
        model = self._reward
        clip = chunk.clip
        without_frames = clip.without_frames()
        if self._watch is not None:
            self._watch.see(clip)
        if isinstance(model, OnlineRewardModel):
            captured = model.capture(clip)
            if isinstance(chunk.steps.states, np.ndarray):
                self._visited.add(chunk.steps.states)
            model.collected(features, without_frames, captured)
        return chunk.spread(self._stream.score(features, without_frames))

    def _fill_returns(self, chunk: Chunk, rewards: np.ndarray, truncated_states: list[Observations]) -> None:
        """Complete the rollout buffer: rewards, and from them returns and advantages.

        Args:
            rewards: float32[T, N], as the reward model gives them.
            truncated_states: see `_collect`.
        """
        model = self.model
        steps = chunk.steps
        assert steps.ended is not None and steps.terminated is not None
        if self._standardises_rewards:
            rewards = self._scale.standardise(rewards, steps)
        if self._action_cost:
            # After standardising, so that one cost suits rewards of any scale.
            rewards = rewards - self._action_cost * self._mean_squares(model.rollout_buffer.actions)
        truncated = steps.ended & ~steps.terminated
        # A time limit says nothing about the state: what would have come after it is estimated.
        rewards = rewards.copy()
        if truncated_states:
            values = self._values(joined(truncated_states)).cpu().numpy().flatten()
            # Step by step and then by environment: the order in which `_collect` kept these states.
            rewards[truncated] += model.gamma * values
        model.rollout_buffer.rewards[:] = rewards
        # What comes after the chunk is estimated, too, by the value of the states that it has ended in.
        last_values = self._values(last_observations(model))
        model.rollout_buffer.compute_returns_and_advantage(last_values, steps.ended[-1])

    def _mean_squares(self, actions: np.ndarray) -> np.ndarray:
        """float32[T, N]: mean squares of actions [T, N, …] as they are carried out, as shares of the greatest."""
        space = self.model.action_space
        assert isinstance(space, spaces.Box)
        greatest = np.maximum(np.abs(space.low), np.abs(space.high))
        scale = np.where(np.isfinite(greatest), greatest, 1.0)
        steps_and_envs = actions.shape[:2]
        shares = self._within_bounds(actions.reshape(*steps_and_envs, *space.shape)) / scale
        squares = np.square(shares).reshape(*steps_and_envs, -1)
        return np.asarray(squares.mean(axis=2), np.float32)

    def _values(self, states: Observations) -> torch.Tensor:
        """float32[M, 1]: the values of states [M, …]."""
        with torch.no_grad():
            return self.model.policy.predict_values(obs_as_tensor(states, self.model.device))

    def _standardise_observations(self) -> None:
        """Take the chunk's observations into the statistics by which the policy standardises them.

        Not before the update: its ratios compare the policy with the one that collected the chunk.
        """
        for module in self.model.policy.modules():
            if isinstance(module, StandardisedObservations):
                module.take_in(self.model.rollout_buffer.observations)

    def _report_chunk(self, rewards: np.ndarray) -> None:
        log = self.model.logger.name_to_value
        if not np.isfinite(log.get("train/explained_variance", 0.0)):
            del log["train/explained_variance"]  # all returns are equal, so there is nothing to explain
        super()._report_chunk(rewards)

    def _reward_changed(self, update: RewardUpdate) -> dict[str, float | None]:
        """Measure the scale of the new rewards, and begin the values anew. No transition is stored, so there is nothing
        to relabel, and nothing to make `update.updates` from."""
        if update.relabel or update.reset_critic:
            self._scale.begin_anew()
        if update.reset_critic:
            with random_states_kept():
                reset_values(self.model, self._untrained())
        return {}

    # -- state ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.model = self._untrained()
        set_last_observations(self.model, self._env.reset())
        self._begin()
        if isinstance(self._reward, OnlineRewardModel) and self._reward.resets_critic:
            value_weights(self.model)  # refused now rather than after exploring

    def _untrained(self) -> OnPolicyAlgorithm:
        return build_on_policy_learner(self.setup.recipe, self._env)

    def _begin(self) -> None:
        """Make the reward model; unless a checkpoint says otherwise, episodes begin with the next step."""
        set_episode_starts(self.model, np.ones(self.model.n_envs, bool))
        is_one_array = not isinstance(self._env.envs.state_space, spaces.Dict)
        self._reward = self._online_reward(self._visited.all if is_one_array else None)
        self._stream = RewardStream(self._reward)
        if isinstance(self._reward, OnlineRewardModel):
            self._open.callback(self._reward.close)

    def restore(self, folder: Path) -> None:
        self.model = self._untrained()
        self._begin()

        def take_over(state: Mapping[str, Any]) -> None:
            self._stream.restore(state["stream"])
            self._scale.restore(state["scale"])
            self._visited.restore(state["visited"])

        repeats, random_state = self._restore(folder, take_over)
        if not repeats:
            set_episode_starts(self.model, np.ones(self.model.n_envs, bool))
        # Nothing is drawn before the next chunk.
        with restoring(folder):
            set_random_state(self.model, random_state)

    def save(self, folder: Path | None) -> None:
        self._save(
            folder,
            {"stream": self._stream.state(), "scale": self._scale.state(), "visited": self._visited.state()},
        )


class NewestStates:
    """The newest states that were visited, for rewards that compare states with earlier ones: there is no replay buffer
    to take them from.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._states: np.ndarray | None = None

    def add(self, states: np.ndarray) -> None:
        """Take in the states of a chunk, [T, N, …]."""
        newest = states.reshape(-1, *states.shape[2:])
        if self._states is not None:
            newest = np.concatenate([self._states, newest])
        self._states = newest[-self._size :].copy()

    def all(self) -> np.ndarray:
        """[M, …], oldest first."""
        assert self._states is not None, "the states to be judged are included"
        return self._states

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"states": self._states}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self._states = state["states"]
