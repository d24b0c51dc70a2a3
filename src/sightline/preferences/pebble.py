"""PEBBLE: a reward model that is learned from preferences while a policy learns from it.

Method: PEBBLE (Lee, Smith and Abbeel, ICML 2021) with a vision-language model as teacher (RL-VLM-F, Wang et al., ICML
2024).

    explore for novelty ──► ask the teacher about ──► fit the reward ──► relabel every stored ──► go on learning,
    (no reward yet)         recent segments           to all labels      transition               and ask again
                                  ▲                                                                    │
                                  └────────────────────────── every `every` steps ─────────────────────┘

A teacher that takes its time is asked in the background: with `lag`, the answers of a round are used when the next
round is due. So training goes on meanwhile, and what a run does depends on the answers alone, not on when they came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sightline.errors import RunFailed
from sightline.labels.store import LabelStore
from sightline.labels.types import Lesson, Outcome, Scale, Teacher
from sightline.preferences.labelling import Answers, BackgroundLabeller
from sightline.preferences.pool import whole_segments
from sightline.preferences.rounds import PreferenceLearner, QueryRound
from sightline.preferences.settings import LearnedSettings
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, Interrupted, Need, OnlineRewardModel, RewardUpdate
from sightline.rewards.config import RunContext
from sightline.rewards.learned.reward import LearnedReward
from sightline.rewards.novelty import NoveltyReward
from sightline.runs.archive import Archives
from sightline.runs.folder import RunFolder
from sightline.teachers.base import TeacherRunContext, teacher_in_run

ROUNDS_IN_POOL = 4
"""Rounds over whose transitions the pool holds a random share."""
PATIENCE = 20
"""Chunks without a whole segment, or without two that look different, after which the run is given up."""


class Pebble(OnlineRewardModel):
    """Online reward model fitted to the teacher's answers so far; before the first fit, novelty, or nothing where there
    are no states.

    Args:
        config: the recipe's block.
        model: the reward that labels shape.
        teacher: who judges; None for one that is reached through the label store.
        store: where every answer is kept.
        context: the run that it learns in.
        lessons: labels that exist; it learns from them before it asks anything.
    """

    def __init__(
        self,
        config: LearnedSettings,
        model: LearnedReward,
        teacher: Teacher | None,
        store: LabelStore,
        context: RunContext,
        lessons: Sequence[Lesson] = (),
    ) -> None:
        self.config = config
        self.learned = model
        # Besides what the model reads: frames for the teacher, and states for novelty, where there are any.
        extra_needs: set[Need] = {"frames"}
        self._novelty: NoveltyReward | None = None
        if context.visited:
            extra_needs.add("states")
            self._novelty = NoveltyReward(context.visited, context.seed)
        self.needs = model.needs | extra_needs
        self.resets_critic = config.reset_critic
        self._seed = context.seed
        self._steps = context.steps
        self._say = context.say
        self._learner = PreferenceLearner(config, model, context.goal, context.frame_shape, context.seed)
        self._scales: Scale = (None, None)
        self._round: QueryRound | None = None
        self._next_round = config.explore
        self._asked_at = 0
        self._chunks = 0
        self._lessons = lessons
        self._has_rewarded = False
        self._finished = config.questions == 0
        self._has_warned = False
        self._store = store
        self._labelling = BackgroundLabeller(
            self._prepared_teacher(teacher, context), store, config.budget, RunFolder(context.folder).id, context.env
        )

    def _prepared_teacher(self, teacher: Teacher | None, context: RunContext) -> Teacher:
        """The teacher of this run: the one given, one that is reached through the store, or, without questions, one
        that is never asked."""
        if not self.config.questions:
            teacher = Teacher()
        elif teacher is None:
            in_run = TeacherRunContext(self._store, lambda: self._labelling.context, context.say)
            teacher = teacher_in_run(self.config.teacher, in_run)
        teacher.say = context.say
        return teacher

    def close(self) -> None:
        """Begin no further question, and wait a little for what is under way; what was answered is in the store."""
        if self._labelling.is_busy:
            self._say("waiting a little for the answers that are under way")
        self._labelling.close()
        self._store.close()

    # -- rewards -------------------------------------------------------------------------------------------------

    def embed(self, clip: Clip) -> np.ndarray:
        return self.learned.embed(clip)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        if self.learned.ready:
            return self.learned.score(features, clip)
        # Networks that were never fitted would reward at random; novelty at least makes the first queries diverse.
        if self._novelty is not None:
            return self._novelty.score(features, clip)
        return np.zeros(clip.shape, np.float32)

    def capture(self, clip: Clip) -> dict[str, np.ndarray]:
        """Keep the frames of a few random segments of the chunk, for questions."""
        assert clip.frames is not None, "a teacher looks at frames"
        steps, envs = clip.shape
        length = self.config.segment
        self._chunks += 1

        # As many as make the pool a random share of the transitions of the last few rounds.
        share = self.config.pool / (ROUNDS_IN_POOL * self.config.every)
        count = max(1, round(share * steps * envs))

        # Seeded by the chunk's number: a resumed run captures the same segments, and no generator needs saving.
        rng = np.random.default_rng([self._seed, self._chunks])
        # An episode's last transition is the one before a first; that of the chunk's last step does not matter, since
        # no segment goes on behind it.
        ends = np.concatenate([clip.first[1:], np.zeros((1, envs), bool)])
        places = whole_segments(ends, length, count, rng)

        # [T, N, H, W, 3] -> [K, L, H, W, 3]
        frames = to_numpy(clip.frames)
        segments = [frames[start : start + length, env] for start, env in places]
        if not segments:
            return {"places": places, "frames": np.zeros((0, length, *frames.shape[2:]))}
        return {"places": places, "frames": np.stack(segments)}

    def collected(self, features: np.ndarray, clip: Clip, captured: dict[str, np.ndarray]) -> None:
        """Take the captured segments into the pool, with their features and true rewards."""
        assert clip.env_reward is not None
        self._has_rewarded = True  # from now on there are transitions to relabel
        for (start, env), frames in zip(captured["places"], captured["frames"], strict=True):
            span = slice(start, start + self.config.segment)
            segment_features = features[span, env]
            true_rewards = clip.env_reward[span, env]
            self._learner.pool.add(frames[None], segment_features[None], true_rewards[None])

    # -- asking and learning -------------------------------------------------------------------------------------

    def learn(self, step: int, should_stop: Callable[[], bool]) -> RewardUpdate | None:
        """Ask, and learn from what was answered, if it is time to.

        Raises:
            Interrupted: told to stop while waiting for answers, or the teacher answers no more for now.
            RunFailed: the teacher has given no usable answer at all, or no episode is as long as a segment.
        """
        # Labels that exist come first, as soon as there are transitions that they can relabel.
        if self._lessons and self._has_rewarded:
            return self._begin_with(self._lessons)

        # With lag, the answers of the round before are due when the next is; they are learned from before it is asked,
        # so that its questions are chosen by the newest reward.
        update = None
        if self._round is not None and step >= self._round.due_step:
            update = self._fit(self._round, should_stop)
        if self._round is None and step >= self._next_round and not self._finished:
            self._ask(step)
            # Without lag the answers are due at once, and training waits for them here.
            if self._round is not None and step >= self._round.due_step:
                update = self._fit(self._round, should_stop)
        return update

    def _begin_with(self, lessons: Sequence[Lesson]) -> RewardUpdate:
        """Learn from labels that exist, once."""
        self._lessons = ()
        metrics = self._learner.learn_lessons(lessons)
        self._say(f"begins with {len(lessons)} labels that exist{_quality(metrics)}")
        return self._update(metrics, first=True)

    def _ask(self, step: int) -> None:
        """Begin a round of questions, if its answers can teach something still."""
        due_step = step + self.config.every if self.config.answers_lag else step
        if due_step >= self._steps or self._nothing_to_ask_about():
            return  # or the answers would come too late to teach anything
        # Counted from the plan rather than from `step`, so that late rounds do not delay those that follow.
        self._next_round += self.config.every

        budget = self.config.budget.questions
        questions_left = budget - self._learner.questions
        if questions_left <= 0:
            self._end_asking(f"all {budget} questions of the budget are asked")
            return
        count = min(questions_left, _round_size(self.config, step, self._steps))
        query_round = self._learner.compose(count, due_step)
        pool = self._learner.pool
        if len(query_round.questions) < count:
            self._say(
                f"{len(query_round.questions)} instead of {count} questions: only {pool.looks} of {len(pool)} segments "
                "in the pool look different, and nothing is asked twice"
            )
        if query_round.questions:
            # Before asking: the labeller's threads read the scale with the first question.
            self._set_scales(self._measured_scale(query_round))
            self._labelling.ask(query_round.questions, step)
            self._round = query_round
            self._asked_at = step

    def _nothing_to_ask_about(self) -> bool:
        """True as long as no two segments in the pool look different."""
        pool = self._learner.pool
        if pool.looks > 1:
            return False
        if self._chunks < PATIENCE:
            return True
        if len(pool) == 0:
            raise RunFailed(
                f"no episode had {self.config.segment} steps within one chunk so far, so there is nothing to ask "
                "about; lower reward.segment, or raise learner.chunk"
            )
        message = (
            f"all {len(pool)} segments in the pool look the same, so there is nothing to ask about; look at what "
            "the environment draws: its camera, and what moves in front of it"
        )
        if not len(self._learner.examples):
            raise RunFailed(message)
        # With labels of earlier rounds there is a reward, and the policy may well have come to rest.
        if not self._has_warned:
            self._say(f"warning: {message}")
        self._has_warned = True
        return True

    def _measured_scale(self, query_round: QueryRound) -> Scale:
        """The teacher's scale for a round; its range is never narrower than in earlier rounds, so that a level means
        much the same over the whole run."""
        true_returns = self._learner.pool.true_returns
        average, span = self._labelling.teacher.measure_scale(query_round.questions, true_returns)
        _, former_span = self._scales
        if span is None or former_span is None:
            return average, span
        return average, (min(span[0], former_span[0]), max(span[1], former_span[1]))

    def _set_scales(self, scales: Scale) -> None:
        """Set the teacher's scale for this round; kept with it, so that a question asked again gets the same answer."""
        self._scales = scales
        self._labelling.teacher.use_scale(scales)

    def _fit(self, query_round: QueryRound, should_stop: Callable[[], bool]) -> RewardUpdate:
        """Wait for the answers of a round, and fit the reward to them and to all labels before."""
        began = time.monotonic()
        answers = self._labelling.collect(should_stop)
        if answers is None:
            raise Interrupted
        if answers.exhausted:
            # The round stays open: what was answered is in the store, and a resumed run asks the rest.
            raise Interrupted(f"{answers.exhausted}; what was answered is kept")
        seconds = time.monotonic() - began
        first = not self.learned.ready
        metrics = self._learner.learn(query_round, answers.answers)
        self._round = None
        self._report(answers, metrics)
        if answers.over_budget:
            self._end_asking(f"the budget is reached ({answers.over_budget})")
        metrics["time/waiting_for_teacher"] = seconds
        if not self.learned.ready:
            return RewardUpdate(metrics)
        return self._update(metrics, first)

    def _update(self, metrics: dict[str, float | None], first: bool) -> RewardUpdate:
        """What the trainer does after a fit: relabel; after the first one, reset the critic, too."""
        if not first:
            return RewardUpdate(metrics, relabel=True)
        # The first fitted reward takes over from novelty: values learned so far mean nothing now.
        config = self.config
        return RewardUpdate(metrics, relabel=True, reset_critic=config.reset_critic, updates=config.reset_updates)

    def _report(self, answers: Answers, metrics: dict[str, float | None]) -> None:
        """Add to the metrics what the labels cost, and print how good they are.

        Raises:
            RunFailed: there is no usable answer, in this round or before.
        """
        costs = self._store.spent(self._labelling.run)
        metrics["labels/remembered"] = answers.remembered
        metrics["labels/requests"] = costs.requests
        metrics["labels/tokens"] = costs.tokens
        metrics["labels/cost"] = costs.money
        if len(self._learner.examples) == 0:
            raise RunFailed(_nothing_usable(answers))
        failures = answers.failures
        if failures:
            self._say(f"{len(failures)} of {len(answers.answers)} questions failed ({_most_frequent(failures)})")
        if answers.other_model:
            self._say(f"warning: {answers.other_model}")
        self._say(f"labels {metrics['labels/kept']:.0f} of {metrics['labels/asked']:.0f}{_quality(metrics)}")

    def _end_asking(self, why: str) -> None:
        """Ask nothing more in this run."""
        self._finished = True
        self._say(f"{why}; training goes on with {self._learner.usable_answers} labels")

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self, archives: Archives) -> dict[str, Any]:
        # The checkpoint says which questions were asked; their answers are in the store alone.
        self._store.back_up()
        return {
            "lessons": self._learner.state(archives),
            "novelty": None if self._novelty is None else self._novelty.state(),
            "round": None if self._round is None else self._round.state(),
            "scales": self._scales,
            "asked_at": self._asked_at,
            "next_round": self._next_round,
            "chunks": self._chunks,
            "finished": self._finished,
            "begun_with_labels": not self._lessons,
        }

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave; a round that was under way is asked again, of which the store knows most."""
        self._learner.restore(state["lessons"], archives)
        if self._novelty is not None:
            self._novelty.restore(state["novelty"])
        self._round = None if state["round"] is None else QueryRound.of(state["round"])
        self._next_round = int(state["next_round"])
        self._asked_at = int(state["asked_at"])
        self._chunks = int(state["chunks"])
        self._finished = bool(state["finished"])
        if state.get("begun_with_labels", True):
            self._lessons = ()
        # Before asking, as in `_ask`: a question that is asked again is to get the same answer.
        self._set_scales(state["scales"])
        if self._round is not None:
            self._labelling.ask(self._round.questions, self._asked_at)


def _quality(metrics: dict[str, float | None]) -> str:
    """Quality of labels and reward as far as it is measured, each part after a comma."""
    line = ""
    accuracy = metrics.get("labels/accuracy")
    if accuracy is not None:
        line += f", as ground truth {100 * accuracy:.0f} %"
    held_out = metrics.get("reward/held_out_accuracy")
    if held_out is not None:
        line += f", held out {100 * held_out:.0f} %"
    correlation = metrics.get("reward/rank_correlation")
    if correlation is not None:
        line += f", reward's rank correlation with ground truth {correlation:.2f}"
    return line


def _nothing_usable(answers: Answers) -> str:
    """Error message of a round without any usable answer, in one line."""
    received = [answer for answer in answers.answers if answer is not None]
    reasons = [answer.reason for answer in received if answer.reason]
    why = f" ({_most_frequent(reasons)})" if reasons else ""
    if answers.over_budget:
        why += f", and the budget is reached: {answers.over_budget}"
    if all(answer.outcome is Outcome.FAILED for answer in received):
        fix = "fix it, then resume with --resume"
    else:
        fix = "what was said is kept: start a new run with another teacher, prompt or goal"
    return f"the teacher gave no usable answer to {len(received)} questions{why}; {fix}"


def _most_frequent(reasons: list[str]) -> str:
    # Sorted first, so that of equally frequent ones the same is named in every run.
    return max(sorted(set(reasons)), key=reasons.count)


def _round_size(config: LearnedSettings, step: int, steps: int) -> int:
    """Questions at this step of a run; the schedules are PEBBLE's."""
    factor = 1.0
    if config.schedule == "falling":
        factor = (steps - step) / steps
    elif config.schedule == "rising":
        factor = steps / (steps - step + 1)
    return max(1, int(config.questions * factor))
