"""Train a policy from a recipe: collect, score, learn, evaluate, save; and go on exactly where a run was left.

One turn of the loop is a chunk: `learner.chunk` vector steps are collected, their frames are handed to the scorer, the
rewards of the chunk before are committed, and the learner makes `learner.gradient_steps` updates. Evaluation and
checkpoints happen between two chunks only.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sightline.config.loading import for_control
from sightline.control.building import ControlSetup, reward_config
from sightline.control.checkpoints import (
    ControlCheckpoints,
    TrainerState,
    buffer_of,
    latest_learner,
    learned_reward,
    load_policy,
    set_random_state,
)
from sightline.control.collection import CollectingVecEnv
from sightline.control.learners import build_learner, name_of_values, reset_critic
from sightline.control.relabelling import relabel
from sightline.control.reward_worker import RewardWorker
from sightline.envs.vector import FrameVectorEnv, episode_seeds
from sightline.errors import RunFailed
from sightline.evaluation.episodes import Policy, describe, play_one, play_panel
from sightline.evaluation.landscape import reward_landscape
from sightline.evaluation.seeds import EvalSeeds
from sightline.rewards.base import Clip, Interrupted, OnlineRewardModel, RewardModel, RewardStream
from sightline.rewards.building import RunContext
from sightline.rewards.learned.reward import IN_RUN, LearnedReward
from sightline.runs.checkpoints import Checkpoint
from sightline.runs.folder import RunFolder, open_run
from sightline.runs.metrics import Metrics
from sightline.runs.progress import Progress
from sightline.runs.state import restoring
from sightline.runs.stopping import Stopped, StopRequests


def greedy(model: OffPolicyAlgorithm) -> Policy:
    """The deterministic policy of a learner."""

    def act(states: np.ndarray) -> np.ndarray:
        actions, _ = model.predict(states, deterministic=True)
        return actions

    return act


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
    for warning in setup.warnings:
        progress.say(f"warning: {warning}")
    run.write_json("warnings.json", {"warnings": list(setup.warnings)})
    with StopRequests() as stop:
        session = ControlTrainer(setup, run, progress, stop, resume)
        try:
            session.learn()
            return session.conclude()
        finally:
            session.close()


class ControlTrainer:
    """A run in progress: the parts that learn, and their state between two chunks."""

    def __init__(
        self, setup: ControlSetup, run: RunFolder, progress: Progress, stop: StopRequests, resume: bool = False
    ) -> None:
        self.setup, self.run, self.progress, self.stop = setup, run, progress, stop
        recipe = setup.recipe
        self._snapshots = ControlCheckpoints(run, recipe.checkpoints.keep)
        self._saved_step: int | None = None
        self._validation = setup.panel("validation", recipe.evaluation.episodes)
        self._started = time.monotonic()
        self._counters = TrainerState()
        self._random_state: dict[str, Any] | None = None
        self._pace = (time.monotonic(), 0)
        self._open = contextlib.ExitStack()
        envs = FrameVectorEnv(setup.make, recipe.envs, episode_seeds(recipe.seed), setup.make.render, recipe.workers)
        self._env = CollectingVecEnv(envs, recipe.learner.chunk, setup.make.render)
        self._open.callback(self._env.close)
        found = self._snapshots.steps.latest(progress.say) if resume else None
        try:
            if resume and found is None:
                self._snapshots.best.clear()  # chosen in steps that are about to be repeated
            self.model = self._fresh() if found is None else self._restored(found)
            resume_step = (0 if found is None else found.step) if resume else None
            self._metrics = Metrics(run, recipe.tensorboard, recipe.wandb, resume_step)
        except BaseException:
            self._open.close()
            raise
        self._earlier_seconds = self._counters.seconds

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
            self.give_up_chunk_if_overdue()
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
        """Evaluate and save if it is time to, and stop here if asked to.

        Raises:
            Stopped: after saving.
        """
        if self._random_state is not None:
            # SB3 draws the noise of a chunk before it calls here; a resumed run must not draw it twice.
            with restoring(self.run.checkpoints):
                set_random_state(self.model, self._random_state)
            self._random_state = None
        self._check_losses()
        # Equal after resuming: this boundary was dealt with before it was saved, unless a stop interrupted that.
        recipe, before, now = self.setup.recipe, self._counters.boundary_step, self.model.num_timesteps
        saved = None
        if now > before:
            try:
                self._learn_reward(now)
            except Interrupted:
                raise Stopped(self.stop.signal_number or 0, self.save()) from None
            due = last or _due(recipe.evaluation.every, before, now)
            if due and not self._evaluate():
                # Interrupted: the boundary is left open, so that the evaluation is made after resuming.
                raise Stopped(self.stop.signal_number or 0, self.save())
            self._counters.boundary_step = now
            if last or _due(recipe.checkpoints.every, before, now):
                saved = self.save()
        if self.stop.requested():
            saved = saved or (self.save() if now > 0 else None)
            raise Stopped(self.stop.signal_number or 0, saved)

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
        update = model.learn(step, self.stop.requested) if isinstance(model, OnlineRewardModel) else None
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
        self._metrics.write(step, metrics)
        # Scores under different rewards do not compare: checkpoints are chosen from here on.
        self._counters.best_score = -np.inf

    def give_up_chunk_if_overdue(self) -> None:
        """Leave in mid-chunk if a stop was asked for and the chunk takes too long; the chunk is lost.

        Raises:
            Stopped: with the step of the last checkpoint.
        """
        if self.stop.overdue():
            raise Stopped(self.stop.signal_number or 0, self._saved_step)

    def conclude(self) -> dict[str, Any]:
        """Play the test panel with the chosen checkpoint and with the untrained policy, and write what came out."""
        recipe, setup = self.setup.recipe, self.setup
        best = self._snapshots.best.latest(self.progress.say)
        if best is None and self._counters.best_step is not None:
            raise RunFailed("the chosen checkpoint is gone or damaged; train again")
        if best is None:
            raise RunFailed("the run ended before anything was learned from the teacher; raise steps")
        chosen = greedy(load_policy(recipe, best.path, self._env))
        panel = setup.panel("test", recipe.evaluation.test_episodes)
        self.progress.say(f"testing the checkpoint of step {best.step} on {len(panel.seeds)} episodes")
        result: dict[str, Any] = {"chosen_step": best.step} | self._play(chosen, panel)
        # The same panel without any learning: success means little if random weights succeed as often.
        untrained = greedy(self._untrained())
        result["untrained"] = self._play(untrained, panel)
        result["seconds"] = self._seconds()
        self.run.write_json("result.json", result)
        self._save_reward(best.path)
        self._illustrate({"untrained": untrained, "chosen": chosen}, panel.seeds[0])
        return result

    def _save_reward(self, best: Path) -> None:
        """Keep the learned reward that the chosen checkpoint was chosen by, as a folder that can be loaded anywhere."""
        model = self.setup.reward_model
        state = learned_reward(best)
        if isinstance(model, LearnedReward) and state is not None:
            # Put back afterwards, so that saving changes nothing in the trainer.
            now = model.state_dict()
            with restoring(best), self.run.writing():
                model.load_state_dict(state)
                model.save(self.run.path / IN_RUN)
            model.load_state_dict(now)

    def _illustrate(self, policies: dict[str, Policy], seed: int) -> None:
        """Record videos and the reward landscape. If they fail, the numbers stand all the same."""
        try:
            if self.setup.recipe.videos:
                self._film(policies, seed)
            judge = self.setup.judge
            if judge is not None and "frames" in judge.needs:
                landscape = reward_landscape(self.setup.task, self.setup.make, judge)
                if landscape is not None:
                    self.run.write_json("landscape.json", landscape)
        except Exception as error:
            warning = f"the pictures of the report are not complete: {' '.join(str(error).split())[:200]}"
            self.progress.say(f"warning: {warning}")
            self.run.write_json("warnings.json", {"warnings": [*self.setup.warnings, warning]})

    def save(self) -> int:
        """Write a checkpoint from which the run goes on exactly; gives its step."""
        self._counters.seconds = self._seconds()
        self._snapshots.save(self.model, self._scorer, self._env, self._counters)
        self._saved_step = int(self.model.num_timesteps)
        return self._saved_step

    def close(self) -> None:
        self._open.close()
        self._metrics.close()

    # -- state ---------------------------------------------------------------------------------------------------

    def _fresh(self) -> OffPolicyAlgorithm:
        model = self._untrained()
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
        return model

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
            folder=self.run.path,
            env=recipe.env,
            goal=recipe.goal,
            frame_shape=shape,
            seed=recipe.seed,
            steps=recipe.steps,
            visited=buffer_of(model).visited,
            say=self.progress.say,
        )
        return reward_config(recipe).online(setup.reward, context) or setup.reward_model

    def _restored(self, checkpoint: Checkpoint) -> OffPolicyAlgorithm:
        self.progress.say(f"resuming from step {checkpoint.step} of {self.run.path}")
        # Built from the recipe as at the start, since checkpoints hold arrays and no code.
        model = self._untrained()
        self._scorer = self._scorer_for(model)
        restored = self._snapshots.restore(checkpoint.path, model, self._scorer, self._env)
        self._counters, same, self._random_state = restored
        if not same:
            self.progress.say(
                "warning: this environment does not repeat itself from its seed; unfinished episodes are started again"
            )
        self._snapshots.bring_back_best(checkpoint.path, self._counters.best_step)
        self._pace = (time.monotonic(), checkpoint.step)
        self._saved_step = checkpoint.step
        return model

    def _seconds(self) -> float:
        """Time spent on this run, over all sessions."""
        return self._earlier_seconds + time.monotonic() - self._started

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
        self._metrics.write(step, values)
        self.progress.update(step, values)

    def _evaluate(self) -> bool:
        """Play the validation panel; keep the model if the words like it best so far. False if interrupted."""
        step = self.model.num_timesteps
        episodes = play_panel(
            greedy(self.model),
            self.setup.make,
            self.setup.task,
            self._validation,
            self.setup.judge if self._knows_reward() else None,
            self.stop.requested,
        )
        if episodes is None:
            return False
        numbers = episodes.summary()
        names = ["reward", "return", "return_ci_low", "return_ci_high", "success_rate", "ci_low", "ci_high"]
        names += ["success_any", "success_end"]
        self._metrics.write(step, {f"evaluation/{name}": numbers[name] for name in names})
        # Chosen by the model's reward where there is one: a task in words has no true return to choose by.
        score = numbers["return"] if numbers["reward"] is None else numbers["reward"]
        self.progress.say(f"step {step}: {describe(numbers)}")
        if self._knows_reward() and score > self._counters.best_score:
            self._counters.best_score, self._counters.best_step = score, step
            self._snapshots.save_best(step, self.model, self.setup.reward_model.state_dict())
        return True

    def _knows_reward(self) -> bool:
        """True if there is a reward to judge a policy by; a learned one means nothing before its first fit."""
        return self.setup.reward_model.ready

    def _play(self, policy: Policy, panel: EvalSeeds) -> dict[str, Any]:
        setup = self.setup
        episodes = play_panel(policy, setup.make, setup.task, panel, setup.judge, self.stop.requested)
        if episodes is None:
            raise Stopped(self.stop.signal_number or 0, self.model.num_timesteps)
        return episodes.summary()

    def _film(self, policies: dict[str, Policy], seed: int) -> None:
        """Record the same episode by each policy, with the reward drawn on one common scale."""
        from sightline.reports.video import write_scored_video

        setup = self.setup
        films = {
            name: play_one(policy, setup.make, seed, setup.judge, setup.make_for_display)
            for name, policy in policies.items()
        }
        rewards = np.concatenate([rewards for _, rewards in films.values()])
        limits = (float(rewards.min()), float(rewards.max()))
        fps = self._env.envs.frames_per_second
        caption = "; ".join(setup.recipe.goal) or "the environment's own reward"
        for name, (frames, film_rewards) in films.items():
            file = self.run.videos / f"{name}.mp4"
            with self.run.writing():
                write_scored_video(file, frames, film_rewards, fps, caption, limits)
            self._metrics.film(name, file, self.model.num_timesteps)


class _Hooks(BaseCallback):
    """Callback of SB3's loop, which calls the trainer."""

    def __init__(self, session: ControlTrainer) -> None:
        super().__init__()
        self._session = session

    def _on_rollout_start(self) -> None:
        self._session.between_chunks()

    def _on_step(self) -> bool:
        self._session.give_up_chunk_if_overdue()
        return True

    def _on_rollout_end(self) -> None:
        self._session.end_of_chunk()


def _due(every: int | None, before: int, now: int) -> bool:
    return every is not None and now // every > before // every


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
