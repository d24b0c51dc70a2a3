"""Training run of an agent: warm start, then rollouts and updates, with evaluations and checkpoints in between.

warm start (SFT) -- reference model, evaluation before RL
     |
     v
rollout -- update -- rollout -- update -- ...        every `evaluation.every` turns: validation, best model
                                                     every `checkpoints.every` turns: checkpoint
     |
     v
test of the best model -- result.json
"""

from __future__ import annotations

import signal
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.agents.alarms import Alarms
from sightline.agents.algorithms.returns import is_complete
from sightline.agents.building import AgentSetup
from sightline.agents.checkpoints import AgentCheckpoints, AgentTrainerState, read_optimiser_state
from sightline.agents.evaluation import describe_agent, evaluate_policy, play_eval_seeds, summary
from sightline.agents.metrics import MetricValues, merge_sums, rollout_metrics, update_metrics
from sightline.agents.rollouts import EpisodeTask
from sightline.agents.samplers import Completion, Conversation, Key, Sampler
from sightline.agents.trajectory_log import trajectory_log, write_trajectory_log
from sightline.agents.types import Advantages, Trajectory
from sightline.agents.warm_start import warm_start
from sightline.config.agents import WarmStart
from sightline.errors import Damaged, RunFailed
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import Metrics as MetricsWriter
from sightline.runs.progress import Progress
from sightline.runs.state import restoring
from sightline.runs.stopping import Stopped, StopRequests

LOGGED_EPISODES = 32
"""Episodes of an update, and of each picture condition, that are written to the trajectory log."""
TRAINING = zlib.crc32(b"training")
"""First number of the training seeds' PRNG key, so that they differ from evaluation seeds."""


def train(setup: AgentSetup, run: RunFolder, progress: Progress, resume: bool = False) -> dict[str, Any]:
    """Train an agent in a run folder. With several processes, all of them call this; process 0 writes.

    Args:
        setup: policy, engine and recipe.
        run: run folder, owned by process 0 (`sightline.runs.folder.owned_run`).
        progress: progress bar and messages.
        resume: resume from the newest complete checkpoint; without one, start from the beginning.

    Returns:
        The content of the run's `result.json`: the best model on the test seeds with real, blank and shuffled pictures,
        the model before RL, random play and the environment's oracle.

    Raises:
        Stopped: SIGINT or SIGTERM came; a checkpoint is saved.
        RunFailed: in one line; earlier checkpoints are complete.
    """
    with StopRequests() as stop:
        trainer = AgentTrainer(setup, run, progress, stop, resume)
        try:
            trainer.begin()
            trainer.learn()
            return trainer.conclude()
        finally:
            trainer.close()


@dataclass(frozen=True)
class InterruptibleSampler:
    """Sampler that checks for an interruption before every turn.

    Attributes:
        sampler: generates the replies.
        check: ends the rollout by raising.
    """

    sampler: Sampler
    check: Callable[[], None]

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`."""
        self.check()
        return self.sampler.generate(conversations, keys)


class AgentTrainer:
    """Trainer of an agent's run: begin or resume, run updates, conclude."""

    def __init__(
        self, setup: AgentSetup, run: RunFolder, progress: Progress, stop: StopRequests, resume: bool = False
    ) -> None:
        self.setup, self.run, self.progress, self.stop = setup, run, progress, stop
        recipe = setup.recipe
        self._is_main_process = setup.engine.rank == 0
        self._checkpoints = AgentCheckpoints(run, recipe.checkpoints.keep)
        self._train_worker, self._eval_worker = setup.rollout_worker(training=True), setup.rollout_worker()
        self._validation = setup.eval_seeds("validation", recipe.evaluation.episodes)
        self._test = setup.eval_seeds("test", recipe.evaluation.test_episodes)
        self._alarms = Alarms(recipe.alarms)
        self._state = AgentTrainerState()
        self._started, self._earlier_seconds = time.monotonic(), 0.0
        setup.engine.prepare(setup.vlm)
        self._learner = setup.learner(progress.say)
        self._resume_from = self._checkpoints.latest(progress.say) if resume else None
        # Without a checkpoint nothing is kept, not even metrics from before the first turn.
        resume_step = (-1 if self._resume_from is None else self._resume_from[1].turns) if resume else None
        self._metrics = (
            MetricsWriter(run, recipe.tensorboard, recipe.wandb, resume_step) if self._is_main_process else None
        )

    def begin(self) -> None:
        """Resume from the checkpoint that was found; without one, warm-start and evaluate the model before RL."""
        if self._resume_from is None:
            self._start()
        else:
            self._restore(*self._resume_from)
            self._earlier_seconds = self._state.seconds

    def learn(self) -> None:
        """Alternate rollouts and updates until the recipe's turns are played, or the score is good enough."""
        state, recipe = self._state, self.setup.recipe
        while state.turns < recipe.steps and not state.finished:
            before = state.turns
            self._update()
            last = state.turns >= recipe.steps
            assert recipe.evaluation.every is not None and recipe.checkpoints.every is not None
            if last or _due(recipe.evaluation.every, before, state.turns):
                self._evaluate()
            stopping = bool(self.setup.engine.largest(int(self.stop.requested())))
            if last or state.finished or stopping or _due(recipe.checkpoints.every, before, state.turns):
                self._save()
            if stopping:
                raise self._stopped(state.turns)

    def conclude(self) -> dict[str, Any]:
        """Evaluate the best model on the test seeds, and write `result.json`."""
        state, setup = self._state, self.setup
        if state.best_turns is None:
            raise Damaged(f"'{self.run.checkpoints}' is damaged: the model was evaluated, and none was chosen")
        path = self._checkpoints.best(state.best_turns)
        self.progress.say(f"testing the checkpoint of turn {state.best_turns} on {len(self._test.seeds)} episodes")
        result: dict[str, Any] = {"chosen_step": state.best_turns, "chosen_update": state.best_update}
        with setup.engine.full_params():
            setup.vlm.load_weights(path)
        setup.weights_changed()
        with setup.engine.full_params():
            if self._is_main_process:

                def keep(pictures: str, played: list[Trajectory]) -> None:
                    self._log_trajectories(f"test-{pictures}", played, [None] * len(played))

                result |= evaluate_policy(self._eval_worker, self._eval_sampler(), self._test, keep)
        result["untrained"] = self.run.read_json("untrained.json")
        result["seconds"] = self._seconds()
        if self._is_main_process:
            self.run.write_json("result.json", result)
        return result

    def close(self) -> None:
        self._train_worker.close()
        self._eval_worker.close()
        if self._metrics is not None:
            self._metrics.close()
        self.setup.engine.close()

    # -- start and resume ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        setup = self.setup
        if setup.recipe.warm_start is not None:
            self._warm_start(setup.recipe.warm_start)
        self._keep_reference()
        with setup.engine.full_params():
            if self._is_main_process:
                played = play_eval_seeds(self._eval_worker, self._eval_sampler(), self._test)
                numbers_before = summary(played, self._test)
                self.run.write_json("untrained.json", numbers_before)
                self.progress.say(f"before RL   {describe_agent(numbers_before)}")
        self._evaluate()
        self._save()  # so that a resumed run does not repeat the warm start

    def _warm_start(self, settings: WarmStart) -> None:
        """Fine-tune on demonstrations, and save the result as the reference model."""
        setup = self.setup

        def report(samples: int, numbers: MetricValues) -> None:
            accuracy = numbers.get("warm_start/truthful")
            said = "" if accuracy is None else f", {accuracy:.0%} of what is said of the pictures is true"
            self.progress.say(f"warm start: {samples} samples, loss {numbers['warm_start/loss']:.3f}{said}")

        numbers = warm_start(setup, settings, report, self._give_up_if_overdue)
        accuracy = numbers.get("warm_start/truthful")
        if settings.stop_at is not None and accuracy is not None and accuracy < settings.stop_at:
            self._warn(
                f"after the warm start {accuracy:.0%} of what is said of the pictures is true, not "
                f"{settings.stop_at:.0%}; raise warm_start.samples"
            )
        with setup.engine.full_params():
            if self._is_main_process:
                self._checkpoints.save_warm(setup.vlm)
        setup.weights_changed()

    def _restore(self, path: Any, state: AgentTrainerState) -> None:
        """Restore weights, reference model, optimiser and trainer state of a checkpoint."""
        setup = self.setup
        self.progress.say(f"resuming from turn {state.turns} of {self.run.path}")
        if setup.recipe.warm_start is not None and setup.recipe.update.needs_reference:
            warm = self._checkpoints.warm()
            if warm is None:
                raise RunFailed("the model before RL (checkpoints/warm-…) is gone or damaged; train again")
            with setup.engine.full_params():
                setup.vlm.load_weights(warm)
        self._keep_reference()
        with setup.engine.full_params():
            setup.vlm.load_weights(path)
        setup.weights_changed()
        optimiser = read_optimiser_state(path)
        with restoring(path):
            setup.engine.load_optimiser_state(self._learner.optimiser, optimiser)
            if state.alarms:
                self._alarms.load_state_dict(state.alarms)
        self._state = state
        if state.finished and state.turns < setup.recipe.steps:
            stop_at = setup.recipe.evaluation.stop_at
            self.progress.say(f"this run has ended already: its validation score reached evaluation.stop_at={stop_at}")

    def _keep_reference(self) -> None:
        """Copy the present weights as the reference model, if the loss has a KL term."""
        if self.setup.recipe.update.needs_reference:
            with self.setup.engine.full_params():
                self.setup.vlm.keep_reference()

    # -- one update: rollout, values, advantages, training ---------------------------------------------------------

    def _update(self) -> None:
        state, setup, recipe = self._state, self.setup, self.setup.recipe
        began = time.monotonic()
        with setup.engine.full_params():
            local = self._rollout()
            played_at = time.monotonic()
            local_mismatch = self._learner.compute_values_and_ref_logprobs(local)
        mismatch = merge_sums(setup.engine.gather(local_mismatch))
        # Advantages compare episodes of all processes, and every process needs the number of all turns for its loss.
        played = _in_order(setup.engine.gather(local), recipe.algorithm.episodes_per_task)
        if not any(is_complete(episode) for episode in played):
            reasons = sorted({episode.error for episode in played if episode.error})
            raise RunFailed(f"no episode could be played to its end: {'; '.join(reasons[:2])}")
        advantages = self._learner.compute_advantages(played)
        values: MetricValues = rollout_metrics(played, recipe.rollouts.reward)
        values |= self._learner.learn(played, advantages, state.update, state.turns / recipe.steps)
        setup.weights_changed()
        values |= {k: v for k, v in update_metrics(mismatch).items() if "mismatch" in k}
        turns = sum(len(episode.turns) for episode in played)
        seconds = time.monotonic() - began
        state.turns += turns
        state.update += 1
        values |= {
            "time/steps_per_second": turns / seconds,
            "time/rollout": played_at - began,
            "time/update": seconds - (played_at - began),
            "rollout/episodes": float(len(played)),
        }
        for line in self._alarms.watch(values):
            self._warn(line)
        if self._metrics is not None:
            self._metrics.write(state.turns, values)
            if state.update == 1:
                self._log_trajectories(f"update-{state.update:04d}", played, advantages)
        self._latest = played, advantages
        self.progress.update(min(state.turns, recipe.steps), values)

    def _rollout(self) -> list[Trajectory]:
        """Play this process's share of the update's tasks, each one as often as the algorithm's group is large."""
        setup, recipe, engine = self.setup, self.setup.recipe, self.setup.engine
        sequence = np.random.SeedSequence([TRAINING, recipe.seed, self._state.update])
        seeds = sequence.generate_state(recipe.rollouts.tasks, np.uint32)
        local = [int(seed) for seed in seeds[engine.rank :: engine.world]]
        tasks = [EpisodeTask(seed, member) for seed in local for member in range(recipe.algorithm.episodes_per_task)]
        key = (recipe.seed, self._state.update)
        return self._train_worker.play(InterruptibleSampler(setup.sampler(), self._give_up_if_overdue), tasks, key)

    def _eval_sampler(self) -> InterruptibleSampler:
        """Greedy sampler of evaluations."""
        return InterruptibleSampler(self.setup.sampler(greedy=True), self._give_up_if_overdue)

    def _give_up_if_overdue(self) -> None:
        """Stop in the middle of a rollout if a stop was requested long ago; unsaved progress is lost."""
        if self.setup.engine.world == 1 and self.stop.overdue():
            found = self._checkpoints.latest(lambda message: None)
            raise self._stopped(found[1].turns if found else None)

    def _stopped(self, turns: int | None) -> Stopped:
        # With several processes, another one may have got the signal.
        return Stopped(self.stop.signal_number or signal.SIGTERM, turns)

    # -- evaluation and checkpoints --------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Evaluate on the validation seeds; save the model if it is the best so far."""
        setup, state = self.setup, self._state
        numbers: dict[str, Any] = {}
        with setup.engine.full_params():
            if self._is_main_process:
                played = play_eval_seeds(self._eval_worker, self._eval_sampler(), self._validation)
                numbers = summary(played, self._validation)
            numbers = setup.engine.gather(numbers)[0]
            # Of equal scores the later one: it was trained longer.
            better = state.best_score is None or numbers["score"] >= state.best_score
            if better:
                state.best_score, state.best_turns = numbers["score"], state.turns
                state.best_update = state.update
                if self._is_main_process:
                    self._checkpoints.save_best(setup.vlm, state.turns)
        stop_at = setup.recipe.evaluation.stop_at
        state.finished = stop_at is not None and numbers["score"] >= stop_at
        if self._metrics is not None:
            rates = ("success_rate", "ci_low", "ci_high", "clean", "truthful", "truthful_replies", "illegal")
            self._metrics.write(
                state.turns, {f"evaluation/{name}": numbers.get(name) for name in (*rates, "return", "score")}
            )
            if state.update:
                self._log_trajectories(f"update-{state.update:04d}", *self._latest)
        self.progress.say(f"turn {state.turns:>6}  {describe_agent(numbers)}")

    def _log_trajectories(self, name: str, played: list[Trajectory], advantages: list[Advantages | None]) -> None:
        """Write some episodes to the trajectory log. If that fails, the run goes on."""
        try:
            records, pictures = trajectory_log(played[:LOGGED_EPISODES], advantages[:LOGGED_EPISODES], self.setup.vlm)
            write_trajectory_log(self.run, name, records, pictures)
        except OSError as error:
            self._warn(f"the episodes of {name} could not be kept: {error.strerror or error}")

    def _save(self) -> None:
        """Write a checkpoint; a run that is resumed from it is bit-identical."""
        setup, state = self.setup, self._state
        optimiser = setup.engine.optimiser_state(self._learner.optimiser)
        state.seconds, state.alarms = self._seconds(), self._alarms.state_dict()
        with setup.engine.full_params():
            if self._is_main_process:
                self._checkpoints.save(setup.vlm, optimiser, state)

    def _warn(self, line: str) -> None:
        self._state.warnings.append(line)
        self.progress.say(f"warning: {line}")
        if self._is_main_process:
            self.run.write_json("warnings.json", {"warnings": self._state.warnings})

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started


def _in_order(parts: list[list[Trajectory]], group: int) -> list[Trajectory]:
    """Merge the processes' episodes in the order of their tasks, as one process would have played them."""
    # Process r played the tasks r, r + world, …: take one group of each in turn.
    groups = [[part[start : start + group] for start in range(0, len(part), group)] for part in parts]
    rounds = max(len(of_process) for of_process in groups)
    return [
        episode
        for number in range(rounds)
        for of_process in groups
        if number < len(of_process)
        for episode in of_process[number]
    ]


def _due(every: int, before: int, now: int) -> bool:
    return now // every > before // every
