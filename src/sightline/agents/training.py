"""A whole run of an agent: episodes are played, the model learns from them, and is examined now and then."""

from __future__ import annotations

import signal
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.agents.alarms import Alarms
from sightline.agents.algorithms.returns import is_whole
from sightline.agents.building import AgentSetup
from sightline.agents.checkpoints import AgentCheckpoints, AgentTrainerState, load_optimiser
from sightline.agents.evaluation import describe_agent, evaluate_policy, play, summary
from sightline.agents.learning import PolicyLearner
from sightline.agents.metrics import Metrics, added, rollout_metrics, update_metrics
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

RECORDED = 32
"""Episodes of an update, and of each way of looking, that are kept to be read."""
TRAINING = zlib.crc32(b"training")
"""Keeps the seeds of training apart from those of panels."""


def train(setup: AgentSetup, run: RunFolder, progress: Progress, resume: bool = False) -> dict[str, Any]:
    """Carry out a recipe in a run folder. With several processes, all of them call this; the first writes.

    Args:
        setup: what to do.
        run: where; owned by the first process (`sightline.runs.folder.owned_run`).
        progress: is told how it goes.
        resume: go on from the newest whole checkpoint; without one, start anew.

    Returns:
        The content of the run's `result.json`: the chosen model on the test panel with real, blank and shuffled
        pictures, the model before RL, random play and the game's own best play.

    Raises:
        Stopped: SIGINT or SIGTERM came; what can be resumed is saved.
        RunFailed: in one line; earlier checkpoints are whole.
    """
    with StopRequests() as stop:
        session = AgentTrainer(setup, run, progress, stop, resume)
        try:
            session.begin()
            session.learn()
            return session.conclude()
        finally:
            session.close()


@dataclass(frozen=True)
class InterruptibleSampler:
    """A sampler before which something is looked at.

    Attributes:
        sampler: who replies.
        look: called before every turn; ends the play by raising.
    """

    sampler: Sampler
    look: Callable[[], None]

    def ask(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`."""
        self.look()
        return self.sampler.ask(conversations, keys)


class AgentTrainer:
    """A run in progress."""

    def __init__(
        self, setup: AgentSetup, run: RunFolder, progress: Progress, stop: StopRequests, resume: bool = False
    ) -> None:
        self.setup, self.run, self.progress, self.stop = setup, run, progress, stop
        recipe = setup.recipe
        self._leads = setup.engine.rank == 0
        self._snapshots = AgentCheckpoints(run, recipe.checkpoints.keep)
        self._practice, self._examination = setup.table(practice=True), setup.table()
        self._validation = setup.panel("validation", recipe.evaluation.episodes)
        self._test = setup.panel("test", recipe.evaluation.test_episodes)
        self._alarms = Alarms(recipe.alarms)
        self._standing = AgentTrainerState()
        self._started, self._earlier_seconds = time.monotonic(), 0.0
        setup.engine.prepare(setup.vlm)
        self._learner = PolicyLearner(recipe, setup.vlm, setup.engine, progress.say)
        self._found = self._snapshots.latest(progress.say) if resume else None
        # Without a checkpoint nothing is kept, not even what was measured before the first turn.
        resume_step = (-1 if self._found is None else self._found[1].turns) if resume else None
        self._metrics = MetricsWriter(run, recipe.tensorboard, recipe.wandb, resume_step) if self._leads else None

    def begin(self) -> None:
        """Go on from the checkpoint that was found; without one, prepare and examine the model before RL."""
        if self._found is None:
            self._start()
        else:
            self._restore(*self._found)
            self._earlier_seconds = self._standing.seconds

    def learn(self) -> None:
        """Play and learn until the recipe's turns are played, or the score is good enough."""
        standing, recipe = self._standing, self.setup.recipe
        while standing.turns < recipe.steps and not standing.finished:
            before = standing.turns
            self._update()
            last = standing.turns >= recipe.steps
            assert recipe.evaluation.every is not None and recipe.checkpoints.every is not None
            if last or _due(recipe.evaluation.every, before, standing.turns):
                self._evaluate()
            stopping = bool(self.setup.engine.largest(int(self.stop.requested())))
            if last or standing.finished or stopping or _due(recipe.checkpoints.every, before, standing.turns):
                self._save()
            if stopping:
                raise self._stopped(standing.turns)

    def conclude(self) -> dict[str, Any]:
        """Examine the chosen model on the test panel, and write what came out."""
        standing, setup = self._standing, self.setup
        if standing.best_turns is None:
            raise Damaged(f"'{self.run.checkpoints}' is damaged: the model was evaluated, and none was chosen")
        path = self._snapshots.best(standing.best_turns)
        self.progress.say(f"testing the checkpoint of turn {standing.best_turns} on {len(self._test.seeds)} episodes")
        result: dict[str, Any] = {"chosen_step": standing.best_turns, "chosen_update": standing.best_update}
        with setup.engine.whole():
            setup.vlm.load_weights(path)
        setup.weights_changed()
        with setup.engine.whole():
            if self._leads:
                result |= self._examined()
        result["untrained"] = self.run.read_json("untrained.json")
        result["seconds"] = self._seconds()
        if self._leads:
            self.run.write_json("result.json", result)
        return result

    def close(self) -> None:
        self._practice.close()
        self._examination.close()
        if self._metrics is not None:
            self._metrics.close()
        self.setup.engine.close()

    # -- beginning and going on ------------------------------------------------------------------------------------

    def _start(self) -> None:
        setup = self.setup
        if setup.recipe.warm_start is not None:
            self._warm_up(setup.recipe.warm_start)
        self._keep_reference()
        with setup.engine.whole():
            if self._leads:
                played = play(self._examination, self._examinee(), self._test)
                numbers_before = summary(played, self._test)
                self.run.write_json("untrained.json", numbers_before)
                self.progress.say(f"before RL   {describe_agent(numbers_before)}")
        self._evaluate()
        self._save()  # what was prepared is not prepared again

    def _warm_up(self, settings: WarmStart) -> None:
        """Learn from demonstrations."""
        setup = self.setup
        told = lambda samples, numbers: self.progress.say(_warm_line(samples, numbers))  # noqa: E731
        numbers = warm_start(setup, settings, told, self._give_up_if_overdue)
        truthful = numbers.get("warm_start/truthful")
        if settings.truthful is not None and truthful is not None and truthful < settings.truthful:
            self._warn(
                f"after the warm start {truthful:.0%} of what is said of the pictures is true, not "
                f"{settings.truthful:.0%}; raise warm_start.samples"
            )
        with setup.engine.whole():
            if self._leads:
                self._snapshots.save_warm(setup.vlm)
        setup.weights_changed()

    def _restore(self, path: Any, standing: AgentTrainerState) -> None:
        setup = self.setup
        self.progress.say(f"resuming from turn {standing.turns}")
        if setup.recipe.warm_start is not None and setup.recipe.update.needs_reference:
            warm = self._snapshots.warm()
            if warm is None:
                raise RunFailed("the model before RL (checkpoints/warm-…) is gone or damaged; train again")
            with setup.engine.whole():
                setup.vlm.load_weights(warm)
        self._keep_reference()
        with setup.engine.whole():
            setup.vlm.load_weights(path)
        setup.weights_changed()
        optimiser = load_optimiser(path)
        with restoring(path):
            setup.engine.load_optimiser_state(self._learner.optimiser, optimiser)
            if standing.alarms:
                self._alarms.load_state_dict(standing.alarms)
        self._standing = standing
        if standing.finished and standing.turns < setup.recipe.steps:
            stop_at = setup.recipe.evaluation.stop_at
            self.progress.say(f"this run has ended already: its validation score reached evaluation.stop_at={stop_at}")

    def _keep_reference(self) -> None:
        """Remember the model before RL, if the loss needs it."""
        if self.setup.recipe.update.needs_reference:
            with self.setup.engine.whole():
                self.setup.vlm.keep_reference()

    # -- one update ------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        standing, setup, recipe = self._standing, self.setup, self.setup.recipe
        began = time.monotonic()
        with setup.engine.whole():
            mine = self._play_share()
            played_at = time.monotonic()
            judged = self._learner.compute_values_and_ref_logprobs(mine)
        mismatch = added(setup.engine.gather(judged))
        played = _in_order(setup.engine.gather(mine), recipe.algorithm.group)
        if not any(is_whole(episode) for episode in played):
            reasons = sorted({episode.error for episode in played if episode.error})
            raise RunFailed(f"no episode could be played to its end: {'; '.join(reasons[:2])}")
        credits = self._learner.compute_advantages(played)
        values: Metrics = rollout_metrics(played, recipe.rollouts.reward)
        values |= self._learner.learn(played, credits, standing.update, standing.turns / recipe.steps)
        setup.weights_changed()
        values |= {k: v for k, v in update_metrics(mismatch).items() if "mismatch" in k}
        turns = sum(len(episode.turns) for episode in played)
        seconds = time.monotonic() - began
        standing.turns += turns
        standing.update += 1
        values |= {
            "time/steps_per_second": turns / seconds,
            "time/rollout": played_at - began,
            "time/update": seconds - (played_at - began),
            "rollout/episodes": float(len(played)),
        }
        for line in self._alarms.watch(values):
            self._warn(line)
        if self._metrics is not None:
            self._metrics.write(standing.turns, values)
            if standing.update == 1:
                self._record(f"update-{standing.update:04d}", played, credits)
        self._latest = played, credits
        self.progress.update(min(standing.turns, recipe.steps), values)

    def _play_share(self) -> list[Trajectory]:
        """This process's share of the tasks, every one as often as the algorithm compares."""
        setup, recipe, engine = self.setup, self.setup.recipe, self.setup.engine
        sequence = np.random.SeedSequence([TRAINING, recipe.seed, self._standing.update])
        seeds = sequence.generate_state(recipe.rollouts.tasks, np.uint32)
        mine = [int(seed) for seed in seeds[engine.rank :: engine.world]]
        tasks = [EpisodeTask(seed, member) for seed in mine for member in range(recipe.algorithm.group)]
        chance = (recipe.seed, self._standing.update)
        return self._practice.play(InterruptibleSampler(setup.sampler(), self._give_up_if_overdue), tasks, chance)

    def _examinee(self) -> InterruptibleSampler:
        """The model as it is examined."""
        return InterruptibleSampler(self.setup.sampler(greedy=True), self._give_up_if_overdue)

    def _give_up_if_overdue(self) -> None:
        """Leave in the middle of anything if a stop was asked for and it takes too long; what is not saved is lost."""
        if self.setup.engine.world == 1 and self.stop.overdue():
            found = self._snapshots.latest(lambda message: None)
            raise self._stopped(found[1].turns if found else None)

    def _stopped(self, turns: int | None) -> Stopped:
        # With several processes it may be another one that was asked.
        return Stopped(self.stop.signal_number or signal.SIGTERM, turns)

    # -- examining and saving --------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Play the validation panel; keep the model if it is the best so far."""
        setup, standing = self.setup, self._standing
        numbers: dict[str, Any] = {}
        with setup.engine.whole():
            if self._leads:
                played = play(self._examination, self._examinee(), self._validation)
                numbers = summary(played, self._validation)
            numbers = setup.engine.gather(numbers)[0]
            # Of equal scores the later one: it has learned more.
            better = standing.best_score is None or numbers["score"] >= standing.best_score
            if better:
                standing.best_score, standing.best_turns = numbers["score"], standing.turns
                standing.best_update = standing.update
                if self._leads:
                    self._snapshots.save_best(setup.vlm, standing.turns)
        stop_at = setup.recipe.evaluation.stop_at
        standing.finished = stop_at is not None and numbers["score"] >= stop_at
        if self._metrics is not None:
            rates = ("success_rate", "ci_low", "ci_high", "clean", "truthful", "truthful_replies", "illegal")
            self._metrics.write(
                standing.turns, {f"evaluation/{name}": numbers.get(name) for name in (*rates, "return", "score")}
            )
            if standing.update:
                self._record(f"update-{standing.update:04d}", *self._latest)
        self.progress.say(f"turn {standing.turns:>6}  {describe_agent(numbers)}")

    def _examined(self) -> dict[str, Any]:
        """All that is measured of a chosen model on the test panel; the episodes are kept to be read."""

        def keep(look: str, played: list[Trajectory]) -> None:
            self._record(f"test-{look}", played, [None] * len(played))

        return evaluate_policy(self._examination, self._examinee(), self._test, keep)

    def _record(self, name: str, played: list[Trajectory], credits: list[Advantages | None]) -> None:
        """Keep some episodes to be read. If that fails, the run goes on."""
        try:
            records, pictures = trajectory_log(played[:RECORDED], credits[:RECORDED], self.setup.vlm)
            write_trajectory_log(self.run, name, records, pictures)
        except OSError as error:
            self._warn(f"the episodes of {name} could not be kept: {error.strerror or error}")

    def _save(self) -> None:
        """Write a checkpoint from which the run goes on exactly."""
        setup, standing = self.setup, self._standing
        optimiser = setup.engine.optimiser_state(self._learner.optimiser)
        standing.seconds, standing.alarms = self._seconds(), self._alarms.state_dict()
        with setup.engine.whole():
            if self._leads:
                self._snapshots.save(setup.vlm, optimiser, standing)

    def _warn(self, line: str) -> None:
        self._standing.warnings.append(line)
        self.progress.say(f"warning: {line}")
        if self._leads:
            self.run.write_json("warnings.json", {"warnings": self._standing.warnings})

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started


def _in_order(parts: list[list[Trajectory]], group: int) -> list[Trajectory]:
    """The processes' episodes in the order of their tasks, as one process would have played them."""
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


def _warm_line(samples: int, numbers: Metrics) -> str:
    truthful = numbers.get("warm_start/truthful")
    said = "" if truthful is None else f", {truthful:.0%} of what is said of the pictures is true"
    return f"warm start: {samples} samples, loss {numbers['warm_start/loss']:.3f}{said}"
