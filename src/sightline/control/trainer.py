"""The part of training that every kind of learner shares: what happens between two chunks, and how policies are judged.

One turn of the loop is a chunk of `learner.chunk` vector steps. How it is scored and learned from is said by
`off_policy.py` (from a replay buffer, one chunk later) and `on_policy.py` (at once). Between two chunks the session
(`sightline.session`) evaluates, saves and stops.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from sightline.control.background import BackgroundValidation, EvaluationProcess, evaluate_policy_in, wants_process
from sightline.control.collection import CollectingVecEnv
from sightline.control.control_setup import ControlSetup
from sightline.control.learners import greedy, policy_weights
from sightline.control.noticing import RunWatch
from sightline.control.state import load_policy, restore_run, save_policy, save_run
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.errors import RunFailed
from sightline.evaluation.episodes import Policy, play_one
from sightline.evaluation.landscape import reward_landscape
from sightline.evaluation.seeds import EvalSeeds
from sightline.evaluation.video import Film
from sightline.models.device import choose_devices, devices_in_words, has_gpu
from sightline.rewards.base import Interrupted, OnlineRewardModel, RewardModel, RewardUpdate
from sightline.rewards.config import RunContext, reward_config, run_shrinker
from sightline.rewards.learned.reward import IN_RUN, LearnedReward
from sightline.rewards.learned_state import as_learned, learned_reward
from sightline.session import Finished, RunSession, Validation

OWN_REWARD = (
    "the environment's own reward is not one finite number, and counts as 0; nothing is learned from it. "
    "mo_gymnasium.wrappers.LinearReward makes one number of several"
)


def training_envs(setup: ControlSetup) -> FrameVectorEnv:
    """The environments of a run, as its policy learns in them and its reward model sees them."""
    recipe = setup.recipe
    make = setup.make_for_training
    return FrameVectorEnv(
        make,
        recipe.envs,
        episode_seeds(recipe.seed),
        make.render,
        recipe.workers,
        # Frames are made as small as the reward model reads them where they are rendered, before they are kept.
        run_shrinker(reward_config(recipe.reward), setup.reward_model),
        recipe.step_timeout,
        needs_reward=recipe.reward.reads_own_reward,
        resets=setup.reward_model.sees_past,
    )


class ControlTrainer:
    """Base of trainers of a policy on states: the parts that learn, and their state between two chunks.

    Args:
        setup: what the recipe asks for, built.
        session: the run in progress.
        every: vector steps from one that is rendered and scored to the next.
        chunks_of_frames: chunks whose frames are kept.

    Attributes:
        model: the learner, once the run has started.
    """

    model: BaseAlgorithm

    def __init__(self, setup: ControlSetup, session: RunSession, every: int = 1, chunks_of_frames: int = 2) -> None:
        self.setup = setup
        self.session = session
        recipe = setup.recipe
        self._validation = setup.validation_panel
        self._reward: RewardModel = setup.reward_model
        self._last_report = (time.monotonic(), 0)
        """Time and step of the last report, for steps per second."""
        self._restarts = 0
        # A run that goes on has seen enough if it has seen both vary.
        self._watch = None if session.state.constant == [] else RunWatch(setup.reward)
        self._open = contextlib.ExitStack()
        render = setup.make_for_training.render
        self._env = CollectingVecEnv(training_envs(setup), recipe.learner.chunk, render, every, chunks_of_frames)
        self._open.callback(self._env.close)
        self._evaluator: EvaluationProcess | None = None
        if wants_process(recipe, setup.reward):
            self._evaluator = EvaluationProcess(session.run.path)
            self._open.callback(self._evaluator.close)

    @property
    def step(self) -> int:
        """Transitions collected so far."""
        return int(self.model.num_timesteps)

    def places(self) -> str | None:
        """The devices of this run and why they were chosen, in a line; None where there is no GPU to choose."""
        if not has_gpu():
            return None
        stated = self.setup.recipe.device
        weights = policy_weights(self.setup.recipe, self._env.observation_space)
        line = f"the policy learns on {devices_in_words(stated, choose_devices(stated, weights), weights)}"
        encoder = self.setup.reward.encoder
        where = getattr(encoder, "where", None)  # encoders of other people do not say
        if where is not None:
            line += f"; frames are read on {where}"
        return line

    # -- what each kind of learner does in its own way ---------------------------------------------------------------

    def learn(self) -> None:
        """Collect and learn until the recipe's steps are made."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin with an untrained learner."""
        raise NotImplementedError

    def restore(self, folder: Path) -> None:
        """Build the learner from the recipe as at the start, since checkpoints hold no code, and fill it."""
        raise NotImplementedError

    def save(self, folder: Path | None) -> None:
        """Save the learner, what it has collected, environments and random states."""
        raise NotImplementedError

    def _untrained(self) -> BaseAlgorithm:
        """The learner before its first step; equal seeds give equal weights."""
        raise NotImplementedError

    def _reward_changed(self, update: RewardUpdate) -> dict[str, float | None]:
        """Follow a reward model that has learned; gives metrics."""
        raise NotImplementedError

    # -- between two chunks ------------------------------------------------------------------------------------------

    def between_chunks(self, last: bool = False) -> None:
        """Have an online reward learn; then evaluate, save and stop as the session says.

        Raises:
            Stopped: after saving.
            RunFailed: after saving, since the reward model cannot go on for now.
        """
        self._check_losses()
        # Equal after resuming: this pause was dealt with before it was saved, unless a stop interrupted that.
        if self.step > self.session.state.step:
            try:
                self._learn_reward(self.step)
            except Interrupted as reason:
                raise self.session.save_and_stop(str(reason)) from None
        self.session.between_steps(last)

    def _learn_reward(self, step: int) -> None:
        """Have an online reward model learn if it is time to."""
        if not isinstance(self._reward, OnlineRewardModel):
            return
        update = self._reward.learn(step, self.session.stop.requested)
        if update is None:  # it is not due
            return
        self.session.log(step, update.metrics | self._reward_changed(update))
        self.session.forget_scores()

    def _online_reward(self, visited: Callable[[], np.ndarray] | None) -> RewardModel:
        """The learner's reward model: that of the setup, or the online one around it.

        Args:
            visited: gives all states visited so far, [M, …], or as many as are kept; None where they are of several
                parts, which no reward compares.
        """
        setup = self.setup
        recipe = setup.recipe
        context = RunContext(
            folder=self.session.run.path,
            env=recipe.env,
            goal=recipe.goal,
            frame_shape=self._env.envs.frame_shape if setup.make.render else (),
            seed=recipe.seed,
            steps=recipe.steps,
            visited=visited,
            say=self.session.progress.say,
        )
        return reward_config(recipe.reward).online(setup.reward, context) or setup.reward_model

    def _save(self, folder: Path | None, trainer_state: Mapping[str, Any]) -> None:
        """Write a checkpoint with what this kind of trainer keeps."""
        assert folder is not None, "a policy on states learns in one process"
        save_run(folder, self.model, self._reward, self._env, self.session.archives, trainer_state)

    def _restore(self, folder: Path, take_over: Callable[[Mapping[str, Any]], None]) -> tuple[bool, dict[str, Any]]:
        """See `restore_run`."""
        repeats, random_state = restore_run(
            folder, self.model, self._reward, self._env, self.session.archives, take_over
        )
        if not repeats:
            self.session.warn(
                "this environment does not repeat itself from its seed; unfinished episodes are started again"
            )
        self._last_report = (time.monotonic(), self.step)
        return repeats, random_state

    def _check_losses(self) -> None:
        """Refuse to go on, and above all to save, once learning has broken down.

        Raises:
            RunFailed: a loss of the last updates is not a finite number.
        """
        for name, value in self.model.logger.name_to_value.items():
            if name.startswith("train/") and not np.isfinite(value):
                raise RunFailed(
                    f"{name} is {float(value):g} at step {self.model.num_timesteps} of {self.setup.recipe.env} (seed "
                    f"{self.setup.recipe.seed}); checkpoints before it are good. Lower learner.learning_rate, or look "
                    "for huge observations and rewards (rescale_observations=true helps), and train again"
                )

    # -- evaluation ------------------------------------------------------------------------------------------------

    def validate(self) -> Validation:
        """Play the validation panel, in another process if there is one."""
        with_reward = self._knows_reward()
        if self._evaluator is not None:
            episodes = len(self._validation.seeds)
            return self._evaluate_beside(self._evaluator, self.model, "validation", episodes, with_reward)
        judge = self.setup.judge if with_reward else None
        numbers = self._play(greedy(self.model), self._validation, judge)
        return Finished(numbers, self._save_policy)

    def _save_policy(self, folder: Path | None) -> None:
        assert folder is not None, "a policy on states learns in one process"
        save_policy(folder, self.model, self.setup.reward_model)

    def _evaluate_beside(
        self, process: EvaluationProcess, model: BaseAlgorithm, panel: str, episodes: int, with_reward: bool
    ) -> BackgroundValidation:
        """Have a panel played by the other process; if that fails, play it here."""

        def instead(folder: Path, reason: str) -> dict[str, Any]:
            if self._evaluator is not None:
                self.session.warn(f"evaluation in the background failed ({reason}); it is made in between instead")
                self._evaluator = None
            return evaluate_policy_in(self.setup, folder, panel, episodes, with_reward, self.session.stop.requested)

        def save(folder: Path) -> None:
            save_policy(folder, model, self.setup.reward_model)

        return BackgroundValidation(process, save, panel, episodes, with_reward, instead)

    def score(self, numbers: Mapping[str, Any]) -> float | None:
        """The reward model's reward where there is one: a task in words has no true return to choose by."""
        if not self._knows_reward():
            return None
        score: float | None = numbers["reward"]
        if score is None:
            score = numbers["return"]
        return score

    def good_enough(self, numbers: Mapping[str, Any]) -> bool:
        """Never: the recipe's steps are made."""
        return False

    def film(self, step: int) -> Film | None:
        """Film the first validation episode."""
        return self._film(greedy(self.model), self._validation.seeds[0])

    def test(self, best: Path) -> dict[str, Any]:
        """Play the test panel by the chosen policy and by the untrained one."""
        setup = self.setup
        self._chosen = greedy(load_policy(setup.recipe, best, self._env))
        # Some of its episodes without any learning: success means little if random weights succeed as often.
        untrained = self._untrained()
        panel_before = setup.untrained_panel
        in_background: BackgroundValidation | None = None
        if self._evaluator is not None:  # both panels are played at the same time
            episodes = len(panel_before.seeds)
            in_background = self._evaluate_beside(self._evaluator, untrained, "test", episodes, with_reward=True)
        numbers = self._play(self._chosen, setup.test_panel, setup.judge)
        if in_background is None:
            numbers["untrained"] = self._play(greedy(untrained), panel_before, setup.judge)
        else:
            numbers["untrained"] = in_background.numbers(wait=True)
        self._save_reward(best)
        return numbers

    def _play(self, policy: Policy, panel: EvalSeeds, judge: RewardModel | None) -> dict[str, Any]:
        """Summary of a panel.

        Raises:
            Interrupted: a stop was asked for.
        """
        episodes = self.setup.play(policy, panel, judge, self.session.stop.requested)
        if episodes is None:
            raise Interrupted
        return episodes.summary()

    def _save_reward(self, best: Path) -> None:
        """Keep the learned reward that the chosen checkpoint was chosen by, as a folder that can be loaded anywhere."""
        model = self.setup.reward_model
        if isinstance(model, LearnedReward) and learned_reward(best) is not None:
            with as_learned(best, model), self.session.run.writing():
                model.save(self.session.run.path / IN_RUN)

    def illustrate(self) -> None:
        """Record videos and the reward landscape."""
        setup = self.setup
        if setup.recipe.videos.final:
            # The same episode by each policy, with the reward drawn on one common scale.
            seed = setup.test_panel.seeds[0]
            films = {
                "untrained": self._film(greedy(self._untrained()), seed),
                "chosen": self._film(self._chosen, seed),
            }
            rewards = np.concatenate([film.rewards for film in films.values()])
            limits = (float(rewards.min()), float(rewards.max()))
            for name, film in films.items():
                self.session.save_film(name, film, limits)
        judge = setup.judge
        # A state of the grid is one picture, before which nothing came.
        if judge is not None and "frames" in judge.needs and judge.judges_stills:
            landscape = reward_landscape(setup.task, setup.make, judge)
            if landscape is not None:
                self.session.write_json("landscape.json", landscape)
        # Tests and pictures are paid for, too, and nothing is logged after them.
        if costs := self._costs():
            self.session.log(self.model.num_timesteps, costs)

    def _costs(self) -> dict[str, float]:
        """What rewards have cost so far, as metrics."""
        return {f"reward/{name}": amount for name, amount in self._reward.costs().items()}

    def _film(self, policy: Policy, seed: int) -> Film:
        setup = self.setup
        judge = setup.judge if self._knows_reward() else None
        episode = play_one(
            policy,
            setup.make,
            seed,
            judge,
            setup.make_for_display,
            setup.recipe.workers,
            setup.recipe.reward.reads_own_reward,
        )
        if not episode.repeats:
            self.session.warn(
                "this environment does not repeat itself from its seed; films show the pictures of the episode that "
                "was judged, as the reward reads them"
            )
        caption = "; ".join(setup.recipe.goal) or "the environment's own reward"
        return Film(episode.frames, episode.rewards, self._env.envs.frames_per_second, caption)

    def close(self) -> None:
        """Close the environments, the reward model, and the process that evaluates."""
        self._open.close()

    # -- measuring -----------------------------------------------------------------------------------------------

    def _report_chunk(self, rewards: np.ndarray) -> None:
        """Log a chunk's metrics, and warn of what they foretell.

        Args:
            rewards: float32[T, N], those that were committed last.
        """
        step = self.model.num_timesteps
        values = self._rollout_metrics(rewards)
        values["time/steps_per_second"] = self._steps_per_second(step)
        # What SB3's update has logged, such as its losses.
        for name, value in self.model.logger.name_to_value.items():
            if name.startswith("train/"):
                values[name] = float(value)
        values |= self._costs()
        self._warn_of_environments(values)
        self._warn_of_constants(rewards)
        self.session.log(step, values)
        self.session.progress.update(step, values)

    def _rollout_metrics(self, rewards: np.ndarray) -> dict[str, float | None]:
        """Metrics of a chunk's rewards, and of the episodes that ended since the last report."""
        episodes = self._env.take_finished()
        success: float | None = None
        if self._env.stats.knows_success:
            success = _mean([episode[self.setup.task.success] for episode in episodes])
        return {
            "rollout/reward": float(rewards.mean()),
            "rollout/return": _mean([episode["return"] for episode in episodes]),
            "rollout/success": success,
            "rollout/length": _mean([episode["length"] for episode in episodes]),
            "rollout/diverged": self._env.take_diverged() or None,
            "rollout/restarts": self._env.envs.restarts or None,
        }

    def _steps_per_second(self, step: int) -> float | None:
        """Speed since the last report; None if no step was made since."""
        now = time.monotonic()
        last_time, last_step = self._last_report
        self._last_report = (now, step)
        if step <= last_step:
            return None
        return (step - last_step) / (now - last_time)

    def _warn_of_environments(self, values: Mapping[str, float | None]) -> None:
        """Warn of environments that diverged, died, or give no reward that counts."""
        if values["rollout/diverged"]:
            self.session.warn(
                "the physics diverged in training, which ended those episodes; rollout/diverged counts them"
            )
        envs = self._env.envs
        if envs.restarts > self._restarts:
            self._restarts = envs.restarts
            self.session.warn(
                f"{envs.last_death}; it was started again where it had been, and rollout/restarts counts it"
            )
        if envs.ignores_reward and OWN_REWARD not in self.session.state.warnings:
            self.session.warn(OWN_REWARD)

    def _warn_of_constants(self, rewards: np.ndarray) -> None:
        """Warn, once, if nothing can be learned from what was seen so far; look no more once all of it has varied."""
        if self._watch is None:
            return
        self._watch.see_rewards(rewards)
        for line in self._watch.complaints():
            # The words before the colon name the complaint; what follows them changes with every chunk.
            complaint = line.partition(":")[0]
            earlier = [warning.partition(":")[0] for warning in self.session.state.warnings]
            if complaint not in earlier:
                self.session.warn(line)
        self.session.state.constant = self._watch.constant
        if not self._watch.constant:
            self._watch = None

    def _knows_reward(self) -> bool:
        """True if there is a reward to judge a policy by; a learned one means nothing before its first fit."""
        return self.setup.reward_model.ready


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
