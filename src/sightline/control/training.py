"""Train a policy from a recipe: collect, score, learn; and go on exactly where a run was left.

One turn of the loop is a chunk: `learner.chunk` vector steps are collected, their frames are handed to the scorer, the
rewards of the chunk before are committed, and the learner makes `learner.gradient_steps` updates. Between two chunks
the session (`sightline.session`) evaluates, saves and stops.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sightline.config.loading import for_control
from sightline.control.background import BackgroundValidation, EvaluationProcess, evaluate_policy_in, wants_process
from sightline.control.building import ControlSetup
from sightline.control.collection import CollectingVecEnv
from sightline.control.learners import build_learner, greedy, name_of_values, reset_critic
from sightline.control.relabelling import relabel
from sightline.control.reward_worker import RewardWorker
from sightline.control.state import (
    buffer_of,
    latest_learner,
    load_policy,
    restore_run,
    save_policy,
    save_run,
    set_random_state,
)
from sightline.envs.vector import FrameVectorEnv, episode_seeds
from sightline.errors import RunFailed
from sightline.evaluation.episodes import Policy, play_one
from sightline.evaluation.landscape import reward_landscape
from sightline.evaluation.seeds import EvalSeeds
from sightline.evaluation.video import Film
from sightline.rewards.base import Clip, Interrupted, OnlineRewardModel, RewardModel, RewardStream
from sightline.rewards.building import RunContext, reward_config
from sightline.rewards.kept import as_learned, learned_reward
from sightline.rewards.learned.reward import IN_RUN, LearnedReward
from sightline.runs.archive import Archives
from sightline.runs.folder import RunFolder, open_run
from sightline.runs.progress import Progress
from sightline.runs.state import restoring
from sightline.runs.stopping import StopRequests
from sightline.session import Commit, Finished, RunSession, Validation


def train(setup: ControlSetup, run: RunFolder, progress: Progress, resume: bool = False) -> dict[str, Any]:
    """Carry out a recipe in a run folder.

    Args:
        setup: the models, the environment and the recipe.
        run: the run folder; owned by this process (`sightline.runs.folder.owned_run`).
        progress: is told how it goes.
        resume: go on from the newest whole checkpoint; without one, start from the beginning.

    Returns:
        The content of the run's `result.json`: the chosen checkpoint on the test panel, and the untrained policy.

    Raises:
        Stopped: SIGINT or SIGTERM came; what can be resumed is saved.
        RunFailed: in one line; earlier checkpoints are whole.
    """
    with StopRequests() as stop:
        session = RunSession(setup.recipe, run, progress, stop, resume)
        for warning in setup.warnings:
            session.warn(warning)
        session.write_json("warnings.json", {"warnings": session.state.warnings})
        return session.carry_out(ControlTrainer(setup, session))


class ControlTrainer:
    """Trainer of a policy on states: the parts that learn, and their state between two chunks."""

    def __init__(self, setup: ControlSetup, session: RunSession) -> None:
        self.setup, self.session = setup, session
        recipe = setup.recipe
        self._archives = Archives(session.run.replay)
        self._validation = setup.panel("validation", recipe.evaluation.episodes)
        self._random_state: dict[str, Any] | None = None
        self._pace = (time.monotonic(), 0)
        self._open = contextlib.ExitStack()
        envs = FrameVectorEnv(setup.make, recipe.envs, episode_seeds(recipe.seed), setup.make.render, recipe.workers)
        self._env = CollectingVecEnv(envs, recipe.learner.chunk, setup.make.render)
        self._open.callback(self._env.close)
        self._process = EvaluationProcess(session.run.path) if wants_process(recipe) else None
        if self._process is not None:
            self._open.callback(self._process.close)
        self.model: OffPolicyAlgorithm

    @property
    def step(self) -> int:
        """Transitions collected so far."""
        return int(self.model.num_timesteps)

    def learn(self) -> None:
        """Collect and learn until the recipe's steps are made."""
        remaining = self.setup.recipe.steps - self.model.num_timesteps
        if self.setup.recipe.replay is not None:
            self._learn_from_replay(remaining)
        elif remaining > 0:
            # The interval keeps SB3 from printing and clearing the losses, which `_report_chunk` reads.
            self.model.learn(remaining, callback=_Hooks(self), log_interval=10**9, reset_num_timesteps=False)
        # Rewards are committed one chunk late; those of the last chunk are still to come.
        rewards = self._scorer.finish()
        if rewards is not None:
            self._report_chunk(rewards)
        self.between_chunks(last=True)

    def _learn_from_replay(self, remaining: int) -> None:
        """Make the updates that collecting would have made, on stored transitions alone.

        A turn of the loop is what it is otherwise, but for collecting: a chunk's steps are counted (by which SB3 times
        target networks and schedules), then the learner makes its updates.
        """
        recipe, model = self.setup.recipe, self.model
        # SB3's own loop cannot do without stepping the environment, so its parts are called one by one.
        if remaining > 0:
            total, _ = model._setup_learn(remaining, reset_num_timesteps=False)
        while model.num_timesteps < recipe.steps:
            self.between_chunks()
            self.session.give_up_if_overdue()
            for _ in range(recipe.learner.chunk):
                model.num_timesteps += recipe.envs
                model._update_current_progress_remaining(model.num_timesteps, total)
                model._on_step()
            model.train(gradient_steps=recipe.learner.gradient_steps, batch_size=model.batch_size)
            self._report_chunk(buffer_of(model).rewards[buffer_of(model).filled_rows()])

    def end_of_chunk(self) -> None:
        """Embed the chunk that was just collected; commit the rewards of the one before."""
        rewards = self._scorer.end_of_chunk(self._env.take_clip())
        if rewards is not None:
            self._report_chunk(rewards)

    def between_chunks(self, last: bool = False) -> None:
        """Have an online reward learn; then evaluate, save and stop as the session says.

        Raises:
            Stopped: after saving.
        """
        if self._random_state is not None:
            # SB3 draws the noise of a chunk before it calls here; a resumed run must not draw it twice.
            with restoring(self.session.run.checkpoints):
                set_random_state(self.model, self._random_state)
            self._random_state = None
        self._check_losses()
        # Equal after resuming: this pause was dealt with before it was saved, unless a stop interrupted that.
        if self.step > self.session.state.step:
            try:
                self._learn_reward(self.step)
            except Interrupted:
                raise self.session.save_and_stop() from None
        self.session.between_steps(last)

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

    def _learn_reward(self, step: int) -> None:
        """Have an online reward model learn if it is time to, and give stored transitions their new rewards."""
        model = self._scorer.model
        stop = self.session.stop.requested
        update = model.learn(step, stop) if isinstance(model, OnlineRewardModel) else None
        if update is None:
            return
        metrics = dict(update.metrics)
        if update.relabel:
            began = time.monotonic()
            relabel(buffer_of(self.model), model)
            metrics["time/relabelling"] = time.monotonic() - began
        if update.reset_critic:
            reset_critic(self.model)
        if update.updates:
            self.model.train(gradient_steps=update.updates, batch_size=self.model.batch_size)
        self.session.log(step, metrics)
        self.session.forget_scores()

    # -- evaluation ------------------------------------------------------------------------------------------------

    def validate(self) -> Validation:
        """Play the validation panel, in another process if there is one."""
        setup, judged = self.setup, self._knows_reward()
        if self._process is not None:
            return self._beside(self._process, self.model, "validation", setup.recipe.evaluation.episodes, judged)
        numbers = self._play(greedy(self.model), self._validation, setup.judge if judged else None)
        return Finished(
            numbers, lambda commit: commit(lambda folder: save_policy(folder, self.model, setup.reward_model))
        )

    def _beside(
        self, process: EvaluationProcess, model: OffPolicyAlgorithm, panel: str, episodes: int, judged: bool
    ) -> BackgroundValidation:
        """Have a panel played by the other process; if that fails, play it here."""

        def instead(folder: Path, reason: str) -> dict[str, Any]:
            if self._process is not None:
                self.session.warn(f"evaluation in the background failed ({reason}); it is made in between instead")
                self._process = None
            return evaluate_policy_in(self.setup, folder, panel, episodes, judged)

        def save(folder: Path) -> None:
            save_policy(folder, model, self.setup.reward_model)

        return BackgroundValidation(process, save, panel, episodes, judged, instead)

    def score(self, numbers: Mapping[str, Any]) -> float | None:
        """The reward model's reward where there is one: a task in words has no true return to choose by."""
        if not self._knows_reward():
            return None
        score: float = numbers["return"] if numbers["reward"] is None else numbers["reward"]
        return score

    def good_enough(self, numbers: Mapping[str, Any]) -> bool:
        """Never: the recipe's steps are made."""
        return False

    def film(self, step: int) -> Film | None:
        """Film the first validation episode."""
        return self._film(greedy(self.model), self._validation.seeds[0])

    def test(self, best: Path) -> dict[str, Any]:
        """Play the test panel by the chosen policy and by the untrained one."""
        recipe, setup = self.setup.recipe, self.setup
        self._chosen = greedy(load_policy(recipe, best, self._env))
        test = "test", recipe.evaluation.test_episodes
        # The same panel without any learning: success means little if random weights succeed as often.
        untrained = self._untrained()
        beside = None if self._process is None else self._beside(self._process, untrained, *test, judged=True)
        numbers = self._play(self._chosen, setup.panel(*test), setup.judge)
        numbers["untrained"] = (
            self._play(greedy(untrained), setup.panel(*test), setup.judge) if beside is None else beside.numbers(True)
        )
        self._save_reward(best)
        return numbers

    def _play(self, policy: Policy, panel: EvalSeeds, judge: RewardModel | None) -> dict[str, Any]:
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
            seed = setup.panel("test", setup.recipe.evaluation.test_episodes).seeds[0]
            films = {
                name: self._film(policy, seed)
                for name, policy in {"untrained": greedy(self._untrained()), "chosen": self._chosen}.items()
            }
            rewards = np.concatenate([film.rewards for film in films.values()])
            for name, film in films.items():
                self.session.save_film(name, film, (float(rewards.min()), float(rewards.max())))
        judge = setup.judge
        if judge is not None and "frames" in judge.needs:
            landscape = reward_landscape(setup.task, setup.make, judge)
            if landscape is not None:
                self.session.write_json("landscape.json", landscape)

    def _film(self, policy: Policy, seed: int) -> Film:
        setup = self.setup
        judge = setup.judge if self._knows_reward() else None
        frames, rewards = play_one(policy, setup.make, seed, judge, setup.make_for_display)
        caption = "; ".join(setup.recipe.goal) or "the environment's own reward"
        return Film(frames, rewards, self._env.envs.frames_per_second, caption)

    def save(self, commit: Commit) -> None:
        """Save learner, replay buffer, environments and random states."""
        commit(lambda folder: save_run(folder, self.model, self._scorer, self._env, self._archives))

    def close(self) -> None:
        """Close the environments, and end the reward worker."""
        self._open.close()

    # -- state ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with an untrained learner, and a filled replay buffer if the recipe names a run to take it from."""
        self.model = model = self._untrained()
        if self.setup.recipe.replay is not None:
            buffer = buffer_of(model)
            source, recipe = open_run(Path(self.setup.recipe.replay)), self.setup.recipe
            had = for_control(source.recipe())
            # Code that this run's own recipe names was imported already, and may be for its source.
            agreed = ["env"] if had.env == recipe.env else []
            agreed += ["learner.algorithm"] if had.learner.algorithm == recipe.learner.algorithm else []
            buffer.copy_from(buffer_of(latest_learner(source, stated=agreed)))
            relabel(buffer, self.setup.reward_model)
        self._scorer = self._scorer_for(model)
        if isinstance(self._scorer.model, OnlineRewardModel) and self._scorer.model.resets_critic:
            name_of_values(model)  # refused now rather than after exploring

    def _untrained(self) -> OffPolicyAlgorithm:
        """The learner before its first step; equal seeds give equal weights."""
        return build_learner(self.setup.recipe, self._env, *self._kept_of_a_state())

    def _kept_of_a_state(self) -> tuple[tuple[int, ...] | None, Any]:
        """Shape and dtype of the features that the replay buffer keeps beside each transition, for relabelling."""
        model = self.setup.reward_model
        if not model.keeps_features:
            return None, np.float16
        # One blank state through the model tells both, whatever the encoder or network is.
        envs, space = self._env.envs, self._env.envs.state_space
        blank = Clip(
            np.ones((1, 1), bool),
            frames=np.zeros((1, 1, *envs.frame_shape), np.uint8) if "frames" in model.needs else None,
            states=np.zeros((1, 1, *space.shape), space.dtype) if "states" in model.needs else None,
            env_reward=np.zeros((1, 1), np.float32),
        )
        features = RewardStream(model).embed(blank)
        return features.shape[2:], model.feature_dtype or features.dtype

    def _scorer_for(self, model: OffPolicyAlgorithm) -> RewardWorker:
        reward_model = self._reward_model(model)
        worker = RewardWorker(buffer_of(model), reward_model)
        self._open.callback(worker.close)
        if isinstance(reward_model, OnlineRewardModel):
            self._open.callback(reward_model.close)
        return worker

    def _reward_model(self, model: OffPolicyAlgorithm) -> RewardModel:
        """The learner's reward model: that of the setup, or the online one around it."""
        setup, recipe = self.setup, self.setup.recipe
        shape = self._env.envs.frame_shape if setup.make.render else ()
        context = RunContext(
            folder=self.session.run.path,
            env=recipe.env,
            goal=recipe.goal,
            frame_shape=shape,
            seed=recipe.seed,
            steps=recipe.steps,
            visited=buffer_of(model).visited,
            say=self.session.progress.say,
        )
        return reward_config(recipe.reward).online(setup.reward, context) or setup.reward_model

    def restore(self, folder: Path) -> None:
        """Build the learner from the recipe as at the start, since checkpoints hold no code, and fill it."""
        self.model = model = self._untrained()
        self._scorer = self._scorer_for(model)
        same, self._random_state = restore_run(folder, model, self._scorer, self._env, self._archives)
        if not same:
            self.session.warn(
                "this environment does not repeat itself from its seed; unfinished episodes are started again"
            )
        self._pace = (time.monotonic(), self.step)

    # -- measuring -----------------------------------------------------------------------------------------------

    def _report_chunk(self, rewards: np.ndarray) -> None:
        step, now = self.model.num_timesteps, time.monotonic()
        finished = self._env.take_finished()
        knows_success = self._env.stats.knows_success
        values: dict[str, float | None] = {
            "rollout/reward": float(rewards.mean()),
            "rollout/return": _mean([episode["return"] for episode in finished]),
            "rollout/success": _mean([episode[self.setup.task.success] for episode in finished])
            if knows_success
            else None,
            "rollout/length": _mean([episode["length"] for episode in finished]),
            "time/steps_per_second": (step - self._pace[1]) / (now - self._pace[0]) if step > self._pace[1] else None,
        }
        logged = self.model.logger.name_to_value
        values |= {name: float(value) for name, value in logged.items() if name.startswith("train/")}
        self._pace = (now, step)
        self.session.log(step, values)
        self.session.progress.update(step, values)

    def _knows_reward(self) -> bool:
        """True if there is a reward to judge a policy by; a learned one means nothing before its first fit."""
        return self.setup.reward_model.ready


class _Hooks(BaseCallback):
    """Callback of SB3's loop, which calls the trainer."""

    def __init__(self, trainer: ControlTrainer) -> None:
        super().__init__()
        self._trainer = trainer

    def _on_rollout_start(self) -> None:
        self._trainer.between_chunks()

    def _on_step(self) -> bool:
        self._trainer.session.give_up_if_overdue()
        return True

    def _on_rollout_end(self) -> None:
        self._trainer.end_of_chunk()


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
