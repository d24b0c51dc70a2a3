"""Training run of an agent: warm start, then rollouts and updates, with evaluations and checkpoints in between.

warm start (SFT) -- reference model, evaluation before RL
     |
     v
rollout -- update -- rollout -- update -- ...        in between: the session (`sightline.session`) evaluates and saves
     |
     v
test of the best model

How seeds are derived, for all streams of chance: the table at the head of `sightline.evaluation.seeds`.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sightline.agents.agent_setup import AgentSetup
from sightline.agents.alarms import Alarms
from sightline.agents.algorithms.returns import informative_tasks, is_complete
from sightline.agents.asynchronous import RolloutsAhead, staleness, within_bound
from sightline.agents.evaluation import evaluate_policy, film_episode, play_eval_seeds, progress_lines, summary
from sightline.agents.losses import Sums
from sightline.agents.metrics import MetricValues, merge_sums, rollout_metrics, update_metrics
from sightline.agents.resolving import game_maker
from sightline.agents.rollouts import EpisodeTask
from sightline.agents.samplers import Completion, Conversation, Key, Sampler
from sightline.agents.samplers.server import ServerSampler
from sightline.agents.sharing import gather_episodes
from sightline.agents.trajectory_log import LOGGED_EPISODES, trajectory_log, write_trajectory_log
from sightline.agents.types import Advantages, Trajectory
from sightline.agents.warm_start import warm_start
from sightline.config.agents import WarmStart
from sightline.envs.games.checking import HOW_TO_STATE_SUCCESS, picture_trouble
from sightline.errors import RunFailed
from sightline.evaluation.episode_stats import describe
from sightline.evaluation.seeds import EvalSeeds
from sightline.evaluation.video import Film
from sightline.models.device import devices_in_words, has_gpu
from sightline.models.vlm.card import write_form
from sightline.models.vlm.loading import weights_known
from sightline.rewards.base import Interrupted, Unavailable
from sightline.rewards.learned_state import load_reward, save_reward
from sightline.runs.folder import RunFolder
from sightline.runs.progress import Progress
from sightline.runs.state import read_state, restoring, write_state
from sightline.runs.stopping import StopRequests
from sightline.session import Finished, RunSession

STATE = "trainer.safetensors"
CHECKED_REPLIES = 32
"""Replies that are looked at before the first update."""
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
        Stopped: a signal asked for it; a checkpoint is saved.
        RunFailed: in one line; earlier checkpoints are complete.
    """
    engine = setup.engine
    with StopRequests() as stop:
        session = RunSession(
            setup.recipe,
            run,
            progress,
            stop,
            resume,
            leads=engine.rank == 0,
            in_any=lambda flag: bool(engine.largest(int(flag))),
        )
        if has_gpu() and engine.rank == 0:
            policy = setup.recipe.policy
            weights = weights_known(policy.model, policy.four_bit)
            progress.say(f"the model learns on {devices_in_words(setup.recipe.device, [setup.vlm.device], weights)}")
        return session.carry_out(AgentTrainer(setup, session))


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


@dataclass
class _Batch:
    """What an update learns from.

    Attributes:
        episodes: of all processes.
        advantages: of each episode.
        mismatch: how far the sampler's probabilities are from the learner's.
        seconds: how long it took to play them.
    """

    episodes: list[Trajectory] = field(default_factory=list)
    advantages: list[Advantages | None] = field(default_factory=list)
    mismatch: Sums = field(default_factory=dict)
    seconds: float = 0.0


class AgentTrainer:
    """Trainer of an agent: warm start, then rollouts and updates.

    All randomness of an update is derived from its number and the recipe, so no random generator is saved. The state is
    what `save` writes: weights, optimiser, the counts of turns and updates, alarms, whether success is known, and an
    online reward with its archives.
    """

    def __init__(self, setup: AgentSetup, session: RunSession) -> None:
        self.setup, self.session = setup, session
        recipe = setup.recipe
        self._is_main_process = setup.engine.rank == 0
        self._train_worker = setup.rollout_worker(training=True)
        self._eval_worker = setup.rollout_worker()
        self._validation = setup.eval_seeds("validation", recipe.evaluation.episodes)
        self._test = setup.eval_seeds("test", recipe.evaluation.test_episodes)
        self._online = setup.online_reward(session.run.path, session.progress.say)
        self._rewards = setup.turn_rewards()
        self._train_rewards = setup.turn_rewards(self._online)
        self._alarms = Alarms(recipe.alarms)
        self._turns = 0
        self._updates = 0
        self._knows_success = False
        """Whether the environment has stated success so far, so that checkpoints are chosen by it."""
        self._latest: tuple[list[Trajectory], list[Advantages | None]] | None = None
        self._ahead: RolloutsAhead | None = None
        setup.engine.prepare(setup.vlm)
        self._learner = setup.learner(session.progress.say)

    @property
    def step(self) -> int:
        """Turns played so far."""
        return self._turns

    def learn(self) -> None:
        """Alternate rollouts and updates until the recipe's turns are played, or the score is good enough."""
        self._begin_playing_ahead()
        if self._turns > self.session.state.step:  # it was stopped in the middle of a pause
            self._pause()
        while self._turns < self.setup.recipe.steps and not self.session.state.finished:
            try:
                self._update()
            except Unavailable as reason:  # nobody samples any more
                raise self.session.save_and_stop(str(reason)) from reason
            self._pause()
        self._end_playing_ahead()

    def _pause(self) -> None:
        """What is done between two updates."""
        self._learn_reward()
        self.session.between_steps(last=self._turns >= self.setup.recipe.steps)

    def _learn_reward(self) -> None:
        """Have an online reward model ask and learn if it is time to."""
        if self._online is None:
            return
        try:
            update = self._online.learn(self._turns, self.session.stop.requested)
        except Interrupted as reason:
            raise self.session.save_and_stop(str(reason)) from None
        if update is not None:
            self.session.log(self._turns, update.metrics)
            self.session.forget_scores()

    def close(self) -> None:
        """Close the environments, and leave the other processes."""
        self._end_playing_ahead()
        if self._online is not None:
            self._online.close()
        self._train_worker.close()
        self._eval_worker.close()
        self.setup.engine.close()

    # -- start and resume ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Warm-start if the recipe says so, and evaluate the model before RL."""
        settings = self.setup.recipe.warm_start
        if settings is not None:
            self._warm_start(settings)
        self._keep_reference()
        if settings is not None:
            # A run that is stopped from here on does not repeat the warm start.
            self.session.save(before_choosing=True)
        self._evaluate_before_rl()
        self.session.begin_choosing()

    def _evaluate_before_rl(self) -> None:
        """Evaluate the model on the test panel, and warn of what would spoil the run."""
        setup = self.setup
        with setup.engine.full_params():
            if self._is_main_process:
                self._check_pictures()
                self._check_replies()
            episodes = self._play(self._test, "before RL")
            numbers_before = summary(episodes, self._test, self._eval_worker.success)
            if self._is_main_process:
                self.session.write_json("untrained.json", numbers_before)
                self.session.progress.say(f"before RL    test: {describe(numbers_before)}")
                self._warn_if_chosen_by_return(numbers_before)

    def _warn_if_chosen_by_return(self, numbers: Mapping[str, Any]) -> None:
        if numbers["episodes"] and numbers["success_rate"] is None and self.setup.judge is None:
            self.session.warn(
                f"'{self.setup.recipe.env}' does not state success, so the checkpoint with the highest return is "
                f"chosen; {HOW_TO_STATE_SUCCESS}"
            )

    def _check_pictures(self) -> None:
        """Warn before a run is spent on pictures that show nothing."""
        recipe = self.setup.recipe
        if recipe.text_only or recipe.workers == "processes":
            return  # what is played in processes of its own may not bear to be played in this one
        with contextlib.suppress(Exception, SystemExit):  # a game that fails is told of by the episodes to come
            trouble = picture_trouble(game_maker(recipe), recipe.seed)
            if trouble is not None:
                self.session.warn(f"the agent sees nothing: {trouble}")

    def _check_replies(self) -> None:
        """Warn before a run is spent on a model whose replies cannot be read."""
        tasks = [EpisodeTask(seed) for seed in self.setup.eval_seeds("replies", CHECKED_REPLIES).seeds]
        turns = self._train_worker.first_turns(self.setup.sampler(training=True), tasks)
        unparsable = [turn for turn in turns if turn.reply.failure is not None]
        if len(unparsable) > self.setup.recipe.alarms.unparsable * len(turns):
            failures = Counter(str(turn.reply.failure) for turn in unparsable)
            reasons = ", ".join(f"{failure}: {count}" for failure, count in failures.most_common())
            example = " ".join(unparsable[0].sample.text.split())
            self.session.warn(
                f"{len(unparsable)} of {len(turns)} replies cannot be read ({reasons}), such as "
                f"'{example[:60]}': the model does not reply in the form that it is asked for; warm-start it "
                "(warm_start={}), or choose another policy.model or replies.format"
            )

    def _warm_start(self, settings: WarmStart) -> None:
        """Fine-tune on demonstrations, and save the result as the reference model."""
        setup = self.setup

        def report(samples: int, numbers: MetricValues) -> None:
            line = f"warm start: {samples} samples, loss {numbers['warm_start/loss']:.3f}"
            accuracy = numbers.get("warm_start/truthful")
            if accuracy is not None:
                line += f", {accuracy:.0%} of the facts that it states are true"
            self.session.progress.say(line)

        numbers = warm_start(setup, settings, report, self._give_up_if_overdue, self.session.progress.say)
        accuracy = numbers.get("warm_start/truthful")
        if settings.stop_at is not None and accuracy is not None and accuracy < settings.stop_at:
            self.session.warn(
                f"after the warm start {accuracy:.0%} of the facts that it states are true, not "
                f"{settings.stop_at:.0%}; raise warm_start.samples"
            )
        with self.session.single_checkpoint("warm") as folder, setup.engine.full_params():
            if folder is not None:
                setup.vlm.save(folder)
        setup.weights_changed(self._updates)

    def restore(self, folder: Path) -> None:
        """Restore weights, reference model, optimiser and counters."""
        setup = self.setup
        if setup.recipe.warm_start is not None and setup.recipe.update.needs_reference:
            warm = self.session.find_single_checkpoint("warm")
            if warm is None:
                raise RunFailed("the model before RL (checkpoints/warm-…) is gone or damaged; train again")
            with setup.engine.full_params():
                setup.vlm.load_weights(warm)
        self._keep_reference()
        state = read_state(folder / STATE)
        with setup.engine.full_params():
            setup.vlm.load_weights(folder)
        setup.weights_changed(int(state["updates"]))
        with restoring(folder):
            setup.engine.load_optimiser_state(self._learner.optimiser, state["optimiser"])
            self._turns = int(state["turns"])
            self._updates = int(state["updates"])
            self._alarms.load_state_dict(state["alarms"])
            self._knows_success = bool(state.get("knows_success", False))  # older checkpoints have none
            if self._online is not None:
                archives = self.session.archives
                archives.restore(state["archives"])
                self._online.restore(state["reward"], archives)
        if self._turns == 0 and self.session.run.read_json("untrained.json") is None:
            self._evaluate_before_rl()

    def save(self, folder: Path | None) -> None:
        """Save weights, optimiser and counters."""
        engine = self.setup.engine
        # All processes take part in gathering the optimiser's state and the weights; the main one writes them.
        state = {
            "turns": self._turns,
            "updates": self._updates,
            "alarms": self._alarms.state_dict(),
            "knows_success": self._knows_success,
            "optimiser": engine.optimiser_state(self._learner.optimiser),
        }
        with engine.full_params():
            if folder is None:
                return
            self._write_model(folder)
            if self._online is not None:
                archives = self.session.archives
                # The reward model appends its rows to the archives, so they are listed after it.
                state["reward"] = self._online.state(archives)
                state["archives"] = archives.state()
            write_state(folder / STATE, state)

    def _write_model(self, folder: Path) -> None:
        self.setup.vlm.save(folder)
        write_form(folder, self.setup.recipe.replies)

    def _keep_reference(self) -> None:
        """Copy the present weights as the reference model, if the loss has a KL term."""
        if self.setup.recipe.update.needs_reference:
            with self.setup.engine.full_params():
                self.setup.vlm.keep_reference()

    # -- one update: rollout, values, advantages, training ---------------------------------------------------------

    def _update(self) -> None:
        start = time.monotonic()
        batch = self._play_batch()
        metrics: MetricValues = rollout_metrics(batch.episodes)
        if self.setup.server is not None:
            oldest = max(staleness(episode, self._updates) for episode in batch.episodes)
            metrics["rollout/staleness"] = float(oldest)
        progress = self._turns / self.setup.recipe.steps
        metrics |= self._learner.learn(batch.episodes, batch.advantages, self._updates, progress)
        turns = sum(len(episode.turns) for episode in batch.episodes)
        self._turns += turns
        self._updates += 1
        try:
            # Before anything is recorded: what plays ahead waits for these weights.
            self._hand_on_weights(self._updates)
        finally:
            self._record(batch, metrics | self._costs(batch, turns, time.monotonic() - start))

    def _costs(self, batch: _Batch, turns: int, seconds: float) -> MetricValues:
        """What an update has come to, in turns and seconds."""
        mismatch = update_metrics(batch.mismatch)
        measured: MetricValues = {name: value for name, value in mismatch.items() if "mismatch" in name}
        return measured | {
            "time/steps_per_second": turns / seconds,
            "time/rollout": batch.seconds,
            "time/update": seconds - batch.seconds,
            "rollout/episodes": float(len(batch.episodes)),
        }

    def _play_batch(self) -> _Batch:
        """Play the tasks of an update, others in place of those that teach nothing, and compute their advantages."""
        engine = self.setup.engine
        rollouts = self.setup.recipe.rollouts
        episodes_per_task = self.setup.recipe.algorithm.episodes_per_task
        batch = _Batch()
        mismatches: list[Sums] = []
        for attempt in range(1 + rollouts.dynamic_sampling):
            tasks = rollouts.tasks - informative_tasks(batch.episodes, batch.advantages)
            if tasks <= 0:
                break
            with engine.full_params():
                start = time.monotonic()
                local = self._rollout(tasks, attempt)
                batch.seconds += time.monotonic() - start
                if self._train_rewards is not None:
                    self._train_rewards.score(local, learns=True)
                mismatches += engine.gather(self._learner.compute_values(local))
            # Advantages compare episodes of all processes, and every process needs the number of all turns for its
            # loss.
            batch.episodes += gather_episodes(engine, local, episodes_per_task, pictured=LOGGED_EPISODES)
            if any(episode.restarts for episode in batch.episodes):
                self.session.warn(
                    "the process of an environment died; its episodes were repeated as far as they had been, and "
                    "rollout/restarts counts them"
                )
            if not any(is_complete(episode) for episode in batch.episodes):
                errors = sorted({episode.error for episode in batch.episodes if episode.error})
                raise RunFailed(f"no episode could be played to its end: {'; '.join(errors[:2])}")
            # Anew for all: what an algorithm divides by may be that of the whole update.
            batch.advantages = self._learner.compute_advantages(batch.episodes)
        batch.mismatch = merge_sums(mismatches)
        return batch

    def _hand_on_weights(self, version: int) -> None:
        """Let whatever has a copy of the weights have the new ones, or have them where it will ask for them."""
        if self._ahead is None:
            self.setup.weights_changed(version)
        else:
            self._ahead_server().publish(version, keep=self._staleness + 2)

    def _record(self, batch: _Batch, metrics: MetricValues) -> None:
        """Log an update, and warn of what its metrics foretell."""
        for line in self._alarms.watch(metrics):
            self.session.warn(line)
        self.session.log(self._turns, metrics)
        if self._updates == 1:
            self._log_trajectories("update-0001", batch.episodes, batch.advantages)
        # Not all, for they hold their pictures.
        self._latest = batch.episodes[:LOGGED_EPISODES], batch.advantages[:LOGGED_EPISODES]
        self.session.progress.update(min(self._turns, self.setup.recipe.steps), metrics)

    def _rollout(self, count: int, attempt: int = 0) -> list[Trajectory]:
        """Play this process's share of an update's tasks, each one as often as the algorithm's group is large.

        Args:
            count: tasks, over all processes.
            attempt: how often tasks of this update were played before; each has others.
        """
        if self._ahead is None or attempt:
            with self._present_weights():
                return self._play_tasks(self._tasks(self._updates, count, attempt), self._updates)
        episodes = self._ahead.take(self._updates)
        fresh = within_bound(episodes, self._updates, self._staleness)
        if len(fresh) < len(episodes):
            self.session.warn(
                f"{len(episodes) - len(fresh)} of {len(episodes)} episodes are older than "
                f"rollouts.staleness={self._staleness} and are not learned from"
            )
        return fresh

    def _tasks(self, update: int, count: int, attempt: int = 0) -> list[EpisodeTask]:
        """This process's share of an update's tasks."""
        recipe = self.setup.recipe
        engine = self.setup.engine
        key = [TRAINING, recipe.seed, update]
        if attempt:
            key.append(attempt)
        seeds = np.random.SeedSequence(key).generate_state(recipe.rollouts.tasks, np.uint32)[:count]
        # Dealt out in turn; the episodes of a group stay on one process (`sharing.gather_episodes`).
        tasks: list[EpisodeTask] = []
        for seed in seeds[engine.rank :: engine.world].tolist():
            tasks += [EpisodeTask(seed, member) for member in range(recipe.algorithm.episodes_per_task)]
        return tasks

    def _play_tasks(self, tasks: list[EpisodeTask], update: int) -> list[Trajectory]:
        sampler = InterruptibleSampler(self.setup.sampler(training=True), self._give_up_if_overdue)
        return self._train_worker.play(sampler, tasks, (self.setup.recipe.seed, update))

    # -- a server that plays on while the model learns -----------------------------------------------------------------

    @property
    def _staleness(self) -> int:
        return self.setup.recipe.rollouts.staleness or 0

    def _ahead_server(self) -> ServerSampler:
        server = self.setup.server
        assert isinstance(server, ServerSampler), "rollouts.staleness is for a server"
        return server

    def _begin_playing_ahead(self) -> None:
        recipe = self.setup.recipe
        if recipe.rollouts.staleness is None or self._turns >= recipe.steps or self.session.state.finished:
            return
        server = self._ahead_server()
        server.take_over_weights(self._updates)

        def play(update: int, weights: int) -> list[Trajectory]:
            with server.with_weights(weights):
                return self._play_tasks(self._tasks(update, recipe.rollouts.tasks), update)

        self._ahead = RolloutsAhead(play, self._updates, self._staleness)

    def _end_playing_ahead(self) -> None:
        """Whatever was played ahead is not learned from; it is played again after a resumption."""
        ahead = self._ahead
        self._ahead = None
        if ahead is not None:
            ahead.close()

    def _present_weights(self) -> contextlib.AbstractContextManager[None]:
        """Within the context the sampler has the present weights, whatever is played ahead."""
        if self._ahead is None:
            return contextlib.nullcontext()
        return self._ahead_server().with_weights(self._updates)

    def _give_up_if_overdue(self) -> None:
        """Stop in the middle of a rollout if a stop was requested long ago; unsaved progress is lost."""
        if self.setup.engine.world == 1:
            self.session.give_up_if_overdue()

    # -- evaluation ------------------------------------------------------------------------------------------------

    def validate(self) -> Finished:
        """Play the validation seeds."""
        with self.setup.engine.full_params():
            episodes = self._play(self._validation, "validation")
            numbers = summary(episodes, self._validation, self._eval_worker.success)
        if self._latest is not None:
            self._log_trajectories(f"update-{self._updates:04d}", *self._latest)
        return Finished(numbers, self._save_policy)

    def score(self, numbers: Mapping[str, Any]) -> float | None:
        """The reward model's reward where it sees something: a goal in words has no true score to choose by. Else the
        score by success, or where the environment does not state that, the return."""
        if self.setup.reward is not None and not self.setup.reward.model.ready:
            return None  # a learned one means nothing before its first fit
        if self.setup.judge is not None:
            reward: float | None = numbers["reward"]
            return reward
        if not self._knows_success and numbers["success_rate"] is not None:
            # Some environments state success only where there is one: what was chosen before was so by its return.
            self._knows_success = True
            self.session.state.best_score = None
        if self._knows_success:
            return numbers["score"] or 0.0
        env_return: float | None = numbers["return"]
        return env_return

    def good_enough(self, numbers: Mapping[str, Any]) -> bool:
        """True if the validation score has reached `evaluation.stop_at`."""
        stop_at = self.setup.recipe.evaluation.stop_at
        if stop_at is None or numbers["score"] is None:
            return False
        return bool(numbers["score"] >= stop_at)

    def film(self, step: int) -> Film | None:
        """Film the first validation episode."""
        with self.setup.engine.full_params():
            if not self._is_main_process:
                return None
            with self._present_weights():
                return film_episode(self._eval_worker, self._eval_sampler(), self._validation, self._rewards)

    def test(self, best: Path) -> dict[str, Any]:
        """Play the test seeds by the best model, with real, blank and shuffled pictures."""
        setup = self.setup
        with setup.engine.full_params():
            setup.vlm.load_weights(best)
        if setup.reward is not None:
            load_reward(best, setup.reward.model)
        setup.weights_changed()

        def log(pictures: str, episodes: list[Trajectory]) -> None:
            self._log_trajectories(f"test-{pictures}", episodes, [None] * len(episodes))

        with setup.engine.full_params():
            result = evaluate_policy(
                self._eval_worker,
                self._eval_sampler(),
                self._test,
                log,
                self._rewards,
                setup.engine,
                lambda what: self._watch(f"test, {what}", self._test),
            )
        return result | {"untrained": self.session.run.read_json("untrained.json")}

    def illustrate(self) -> None:
        """Film the first test episode by the best model."""
        if self.setup.recipe.videos.final and self._is_main_process:
            film = film_episode(self._eval_worker, self._eval_sampler(), self._test, self._rewards)
            if film is not None:
                self.session.save_film("chosen", film)

    def _watch(self, what: str, seeds: EvalSeeds) -> Callable[[int], None]:
        """Say what is about to be played, and now and then how far it is; stop it if that was asked for long ago."""
        report = progress_lines(self.session.progress.say, len(seeds.seeds))(what)

        def after_turns(count: int) -> None:
            report(count)
            self._give_up_if_overdue()

        return after_turns

    def _play(self, seeds: EvalSeeds, what: str) -> list[Trajectory]:
        """Play evaluation seeds, those of all processes; a reward model scores the episodes, if there is one."""
        with self._present_weights():
            return play_eval_seeds(
                self._eval_worker,
                self._eval_sampler(),
                seeds,
                after_turns=self._watch(what, seeds),
                rewards=self._rewards,
                engine=self.setup.engine,
            )

    def _eval_sampler(self) -> InterruptibleSampler:
        return InterruptibleSampler(self.setup.sampler(), self._give_up_if_overdue)

    def _save_policy(self, folder: Path | None) -> None:
        with self.setup.engine.full_params():
            if folder is None:
                return
            self._write_model(folder)
            if self.setup.reward is not None:
                save_reward(folder, self.setup.reward.model)

    def _log_trajectories(self, name: str, episodes: list[Trajectory], advantages: list[Advantages | None]) -> None:
        """Write some episodes to the trajectory log. If that fails, the run goes on."""
        try:
            if self._is_main_process:
                records, pictures = trajectory_log(
                    episodes[:LOGGED_EPISODES], advantages[:LOGGED_EPISODES], self.setup.vlm
                )
                write_trajectory_log(self.session.run, name, records, pictures)
        except OSError as error:
            self.session.warn(f"the episodes of {name} could not be kept: {error.strerror or error}")
