"""Off-policy training: SB3's loop, a replay buffer, and rewards that come one chunk late.

    collect a chunk ──► its frames to the reward worker ──► commit the rewards of the chunk before ──► updates
          ▲                                                                                               │
          └────────────────────────────────── between two chunks: the session ◄───────────────────────────┘

The learner makes `learner.gradient_steps` updates after each chunk, from all transitions whose rewards are committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sightline.config.learners import OffPolicyLearner
from sightline.config.loading import for_control
from sightline.config.recipe import ReplayDataset
from sightline.control.control_setup import ControlSetup
from sightline.control.dataset_replay import fill_from_dataset
from sightline.control.learners import build_learner, name_of_values, reset_critic
from sightline.control.relabelling import relabel
from sightline.control.reward_worker import RewardWorker
from sightline.control.sb3 import begin_learning, count_vector_step
from sightline.control.state import buffer_of, latest_learner, set_random_state
from sightline.control.trainer import ControlTrainer
from sightline.envs.observations import blank
from sightline.rewards.base import Clip, OnlineRewardModel, RewardStream, RewardUpdate, Unavailable
from sightline.rewards.config import reward_config, run_shrinker
from sightline.runs.folder import open_run
from sightline.runs.state import restoring
from sightline.session import RunSession


class OffPolicyTrainer(ControlTrainer):
    """Trainer of an off-policy learner, with its replay buffer and reward worker."""

    model: OffPolicyAlgorithm

    def __init__(self, setup: ControlSetup, session: RunSession) -> None:
        super().__init__(setup, session)
        assert isinstance(setup.recipe.learner, OffPolicyLearner)
        self._learner = setup.recipe.learner
        self._random_state: dict[str, Any] | None = None

    def learn(self) -> None:
        """Collect and learn until the recipe's steps are made."""
        if self._scorer.is_overdue:
            self._end_turn()
        remaining = self.setup.recipe.steps - self.model.num_timesteps
        if self.setup.recipe.replay is not None:
            self._learn_from_replay(remaining)
        elif remaining > 0:
            # The interval keeps SB3 from printing and clearing the losses, which `_report_chunk` reads.
            self.model.learn(remaining, callback=_Hooks(self), log_interval=10**9, reset_num_timesteps=False)
        # Rewards are committed one chunk late; those of the last chunk are still to come.
        with self._saved_if_unavailable():
            rewards = self._scorer.finish()
        if rewards is not None:
            self._report_chunk(rewards)
        self.between_chunks(last=True)

    def _end_turn(self) -> None:
        """Do what is left of a turn at whose end the reward model gave no rewards, so that the run was saved there:
        commit them, and make the updates that SB3 makes after a chunk."""
        model = self.model
        self._set_random_state()
        with self._saved_if_unavailable():
            rewards = self._scorer.commit_due()
        if rewards is not None:
            self._report_chunk(rewards)
        if model.num_timesteps > model.learning_starts:
            model.train(gradient_steps=self._learner.gradient_steps, batch_size=model.batch_size)

    @contextlib.contextmanager
    def _saved_if_unavailable(self) -> Iterator[None]:
        """Context in which a reward model that gives no rewards for now ends the run, saved."""
        try:
            yield
        except Unavailable as reason:
            raise self.session.save_and_stop(str(reason)) from reason

    def _learn_from_replay(self, remaining: int) -> None:
        """Make the updates that collecting would have made, on stored transitions alone.

        A turn of the loop is what it is otherwise, but for collecting: a chunk's steps are counted (by which SB3 times
        target networks and schedules), then the learner makes its updates.
        """
        recipe = self.setup.recipe
        model = self.model
        buffer = buffer_of(model)
        # SB3's own loop cannot do without stepping the environment, so its parts are called one by one.
        if remaining > 0:
            total = begin_learning(model, remaining)
        while model.num_timesteps < recipe.steps:
            self.between_chunks()
            self.session.give_up_if_overdue()
            for _ in range(recipe.learner.chunk):
                count_vector_step(model, recipe.envs, total)
            model.train(gradient_steps=self._learner.gradient_steps, batch_size=model.batch_size)
            self._report_chunk(buffer.rewards[buffer.filled_rows()])

    def end_of_chunk(self) -> None:
        """Embed the chunk that was just collected; commit the rewards of the one before."""
        clip = self._env.take_chunk().clip
        if self._watch is not None:
            self._watch.see(clip)
        with self._saved_if_unavailable():
            rewards = self._scorer.end_of_chunk(clip)
        if rewards is not None:
            self._report_chunk(rewards)

    def between_chunks(self, last: bool = False) -> None:
        # SB3 draws the noise of a chunk before it calls here; a resumed run must not draw it twice.
        self._set_random_state()
        super().between_chunks(last)

    def _set_random_state(self) -> None:
        """Go on drawing random numbers as when the checkpoint was written, once after resuming."""
        if self._random_state is None:
            return
        with restoring(self.session.run.checkpoints):
            set_random_state(self.model, self._random_state)
        self._random_state = None

    def _reward_changed(self, update: RewardUpdate) -> dict[str, float | None]:
        """Give stored transitions their new rewards, and the critic a new beginning."""
        metrics: dict[str, float | None] = {}
        if update.relabel:
            began = time.monotonic()
            relabel(buffer_of(self.model), self._reward)
            metrics["time/relabelling"] = time.monotonic() - began
        if update.reset_critic:
            # Its values are sums of rewards of another scale and meaning; the policy is still worth something.
            reset_critic(self.model)
        if update.updates:
            self.model.train(gradient_steps=update.updates, batch_size=self.model.batch_size)
        return metrics

    # -- state ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with an untrained learner, and a filled replay buffer if the recipe names a run, or a data set, to take
        it from."""
        self.model = self._untrained()
        if self.setup.recipe.replay is not None:
            self._copy_replay(self.setup.recipe.replay)
        self._make_scorer()
        if self.setup.recipe.dataset is not None:
            self._fill_replay(self.setup.recipe.dataset)
        if isinstance(self._reward, OnlineRewardModel) and self._reward.resets_critic:
            name_of_values(self.model)  # refused now rather than after exploring

    def _copy_replay(self, folder: str) -> None:
        """Fill the replay buffer with the stored transitions of another run, under this run's reward."""
        recipe = self.setup.recipe
        source = open_run(Path(folder))
        source_recipe = for_control(source.recipe())
        # Code that this run's own recipe names was imported already, and may be for its source.
        agreed = []
        if source_recipe.env == recipe.env:
            agreed.append("env")
        if source_recipe.learner.algorithm == recipe.learner.algorithm:
            agreed.append("learner.algorithm")
        buffer = buffer_of(self.model)
        buffer.copy_from(buffer_of(latest_learner(source, stated_keys=agreed)))
        relabel(buffer, self.setup.reward_model)

    def _fill_replay(self, dataset: ReplayDataset) -> None:
        """Fill the replay buffer with the transitions of a data set, under this run's reward."""
        shrink = run_shrinker(reward_config(self.setup.recipe.reward), self.setup.reward_model)
        frame_shape = self._env.envs.frame_shape if self.setup.make.render else ()
        filled = fill_from_dataset(self.model, buffer_of(self.model), dataset, self._reward, shrink, frame_shape)
        self.session.progress.say(filled)

    def _untrained(self) -> OffPolicyAlgorithm:
        shape, dtype = self._stored_features()
        return build_learner(self.setup.recipe, self._env, shape, dtype)

    def _stored_features(self) -> tuple[tuple[int, ...] | None, Any]:
        """Shape and dtype of the features that the replay buffer keeps beside each transition, for relabelling; no
        shape for a reward model that needs none."""
        model = self.setup.reward_model
        if not model.keeps_features:
            return None, np.float16
        # One blank state through the model tells both, whatever the encoder or network is.
        envs = self._env.envs
        clip = Clip(np.ones((1, 1), bool), env_reward=np.zeros((1, 1), np.float32))
        if "frames" in model.needs:
            clip = replace(clip, frames=np.zeros((1, 1, *envs.frame_shape), np.uint8))
        states = blank(envs.state_space, (1, 1))
        if "states" in model.needs and isinstance(states, np.ndarray):
            clip = replace(clip, states=states)
        features = RewardStream(model).embed(clip)
        return features.shape[2:], model.feature_dtype or features.dtype

    def _make_scorer(self) -> None:
        """Make the reward model and its worker, for the learner that was just built."""
        buffer = buffer_of(self.model)
        is_one_array = isinstance(buffer.observations, np.ndarray)
        self._reward = self._online_reward(buffer.visited if is_one_array else None)
        self._scorer = RewardWorker(buffer, self._reward)
        self._open.callback(self._scorer.close)
        if isinstance(self._reward, OnlineRewardModel):
            self._open.callback(self._reward.close)

    def restore(self, folder: Path) -> None:
        self.model = self._untrained()
        self._make_scorer()
        buffer = buffer_of(self.model)

        def take_over(state: Mapping[str, Any]) -> None:
            buffer.restore(state["replay"], self.session.archives["transitions"])
            self._scorer.restore(state["rewards"])

        repeats, self._random_state = self._restore(folder, take_over)
        if not repeats:
            buffer.end_episodes()

    def save(self, folder: Path | None) -> None:
        buffer = buffer_of(self.model)
        # Rows whose rewards are committed never change: each is archived once, and only named by later checkpoints.
        buffer.archive_to(self.session.archives["transitions"])
        self._save(folder, {"replay": buffer.state(), "rewards": self._scorer.state()})


class _Hooks(BaseCallback):
    """Callback of SB3's loop, which calls the trainer."""

    def __init__(self, trainer: OffPolicyTrainer) -> None:
        super().__init__()
        self._trainer = trainer

    def _on_rollout_start(self) -> None:
        self._trainer.between_chunks()

    def _on_step(self) -> bool:
        self._trainer.session.give_up_if_overdue()
        return True

    def _on_rollout_end(self) -> None:
        self._trainer.end_of_chunk()
