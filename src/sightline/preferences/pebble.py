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
from sightline.rewards.base import Clip, Interrupted, Need, OnlineRewardModel, RewardUpdate, to_numpy
from sightline.rewards.config import RunContext
from sightline.rewards.learned.reward import LearnedReward
from sightline.rewards.novelty import NoveltyReward
from sightline.runs.archive import Archives
from sightline.runs.folder import RunFolder
from sightline.teachers.base import TeacherRunContext

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
        self.config, self.learned = config, model
        of_teacher: frozenset[Need] = frozenset({"frames", "states"} if context.visited else {"frames"})
        self.needs = model.needs | of_teacher
        self.resets_critic = config.reset_critic
        self._seed, self._steps, self._say = context.seed, context.steps, context.say
        self._learner = PreferenceLearner(config, model, context.goal, context.frame_shape, context.seed)
        self._novelty = NoveltyReward(context.visited, context.seed) if context.visited else None
        self._scales: Scale = (None, None)
        self._round: QueryRound | None = None
        self._next_round = config.explore
        self._asked_at = 0
        self._chunks = 0
        self._lessons, self._has_rewarded = lessons, False
        self._finished, self._has_warned = config.questions == 0, False
        self._store = store
        people = TeacherRunContext(store, lambda: self._labelling.context, context.say)
        asked = (teacher or config.teacher.in_run(people)) if config.questions else Teacher()
        asked.say = context.say
        self._labelling = BackgroundLabeller(asked, store, config.budget, RunFolder(context.folder).id, context.env)

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
        # Networks that were never fitted would reward at random; novelty at least makes the first queries diverse.
        if self.learned.ready:
            return self.learned.score(features, clip)
        return np.zeros(clip.shape, np.float32) if self._novelty is None else self._novelty.score(features, clip)

    def capture(self, clip: Clip) -> dict[str, np.ndarray]:
        """Keep the frames of a few random segments of the chunk, for questions."""
        assert clip.frames is not None, "a teacher looks at frames"
        steps, envs = clip.shape
        config, length = self.config, self.config.segment
        self._chunks += 1
        share = config.pool / (ROUNDS_IN_POOL * config.every)
        wanted = max(1, round(share * steps * envs))
        # Seeded by the chunk's number: a resumed run captures the same segments, and no generator needs saving.
        rng = np.random.default_rng([self._seed, self._chunks])
        # An episode's last transition is the one before a first; that of the chunk's last step does not matter, since
        # no segment goes on behind it.
        ends = np.concatenate([clip.first[1:], np.zeros((1, envs), bool)])
        places = whole_segments(ends, length, wanted, rng)
        frames = to_numpy(clip.frames)
        shown = [frames[start : start + length, env] for start, env in places]
        return {"places": places, "frames": np.stack(shown) if shown else np.zeros((0, length, *frames.shape[2:]))}

    def collected(self, features: np.ndarray, clip: Clip, captured: dict[str, np.ndarray]) -> None:
        """Take the captured segments into the pool, with their features and true rewards."""
        assert clip.env_reward is not None
        self._has_rewarded = True  # from now on there are transitions to relabel
        for (start, env), frames in zip(captured["places"], captured["frames"], strict=True):
            span = slice(start, start + self.config.segment)
            self._learner.pool.add(frames[None], features[span, env][None], clip.env_reward[span, env][None])

    # -- asking and learning -------------------------------------------------------------------------------------

    def learn(self, step: int, should_stop: Callable[[], bool]) -> RewardUpdate | None:
        """Ask, and learn from what was answered, if it is time to.

        Raises:
            Interrupted: told to stop while waiting for answers, or the teacher answers no more for now.
            RunFailed: the teacher has given no usable answer at all, or no episode is as long as a segment.
        """
        if self._lessons and self._has_rewarded:
            return self._begin_with(self._lessons)
        update = None
        if self._round is not None and step >= self._round.due:
            update = self._fit(self._round, should_stop)
        if self._round is None and step >= self._next_round and not self._finished:
            self._ask(step)
            # Without lag the answers are due at once, and training waits for them here.
            if self._round is not None and step >= self._round.due:
                update = self._fit(self._round, should_stop)
        return update

    def _begin_with(self, lessons: Sequence[Lesson]) -> RewardUpdate:
        """Learn from labels that exist, once."""
        self._lessons = ()
        numbers = self._learner.learn_lessons(lessons)
        self._say(f"begins with {len(lessons)} labels that exist{_how_good(numbers)}")
        return self._taken_over(numbers, first=True)

    def _ask(self, step: int) -> None:
        due = step + self.config.every if self.config.answers_lag else step
        if due >= self._steps or self._nothing_to_ask_about():
            return  # or the answers would come too late to teach anything
        left = self.config.budget.questions - self._learner.questions
        count = min(left, _size_of_round(self.config, step, self._steps))
        # Counted from the plan rather than from `step`, so that late rounds do not delay those that follow.
        self._next_round += self.config.every
        composed = self._learner.compose(count, due) if count > 0 else None
        if left <= 0:
            self._end_asking(f"all {self.config.budget.questions} questions of the budget are asked")
        elif composed is not None and len(composed.questions) < count:
            self._say(
                f"{len(composed.questions)} instead of {count} questions: only {self._learner.pool.looks} of "
                f"{len(self._learner.pool)} segments in the pool look different, and nothing is asked twice"
            )
        if composed is not None and composed.questions:
            # Before asking: the labeller's threads read the scale with the first question.
            self._set_scales(self._measured_scale(composed))
            self._labelling.ask(composed.questions, step)
            self._round, self._asked_at = composed, step

    def _nothing_to_ask_about(self) -> bool:
        pool, labelled = self._learner.pool, len(self._learner.examples)
        if pool.looks > 1:
            return False
        if self._chunks >= PATIENCE and len(pool) == 0:
            raise RunFailed(
                f"no episode had {self.config.segment} steps within one chunk so far, so there is nothing to ask "
                "about; lower reward.segment, or raise learner.chunk"
            )
        if self._chunks >= PATIENCE and len(pool):
            same = (
                f"all {len(pool)} segments in the pool look the same, so there is nothing to ask about; look at what "
                "the environment draws: its camera, and what moves in front of it"
            )
            if not labelled:
                raise RunFailed(same)
            if not self._has_warned:
                self._say(f"warning: {same}")
            self._has_warned = True
        return True

    def _measured_scale(self, asked: QueryRound) -> Scale:
        """The teacher's scale for a round; its range is never narrower than in earlier rounds, so that a level means
        much the same over the whole run."""
        average, seen = self._labelling.teacher.measure_scale(asked.questions, self._learner.pool.true_returns)
        _, before = self._scales
        if seen is None or before is None:
            return average, seen
        return average, (min(seen[0], before[0]), max(seen[1], before[1]))

    def _set_scales(self, scales: Scale) -> None:
        """Set the teacher's scale for this round; kept with it, so that a question asked again gets the same answer."""
        self._scales = scales
        self._labelling.teacher.use_scale(scales)

    def _fit(self, asked: QueryRound, should_stop: Callable[[], bool]) -> RewardUpdate:
        waited = time.monotonic()
        answers = self._labelling.collect(should_stop)
        if answers is None:
            raise Interrupted
        if answers.exhausted:
            # The round stays open: what was answered is in the store, and a resumed run asks the rest.
            raise Interrupted(f"{answers.exhausted}; what was answered is kept")
        waited = time.monotonic() - waited
        first = not self.learned.ready
        numbers = self._learner.learn(asked, answers.answers)
        self._round = None
        self._report(answers, numbers)
        if answers.over_budget:
            self._end_asking(f"the budget is reached ({answers.over_budget})")
        numbers["time/waiting_for_teacher"] = waited
        if not self.learned.ready:
            return RewardUpdate(numbers)
        return self._taken_over(numbers, first)

    def _taken_over(self, numbers: dict[str, float | None], first: bool) -> RewardUpdate:
        # The first lesson takes over from novelty: values learned so far mean nothing now.
        reset, updates = first and self.config.reset_critic, self.config.reset_updates if first else 0
        return RewardUpdate(numbers, relabel=True, reset_critic=reset, updates=updates)

    def _report(self, answers: Answers, numbers: dict[str, float | None]) -> None:
        spent = self._store.spent(self._labelling.run)
        numbers |= {"labels/remembered": answers.remembered, "labels/requests": spent.requests}
        numbers |= {"labels/tokens": spent.tokens, "labels/cost": spent.money}
        if len(self._learner.examples) == 0:
            raise RunFailed(_nothing_usable(answers))
        failed = answers.failures
        if failed:
            self._say(f"{len(failed)} of {len(answers.answers)} questions failed ({_most_frequent(failed)})")
        if answers.other_model:
            self._say(f"warning: {answers.other_model}")
        self._say(f"labels {numbers['labels/kept']:.0f} of {numbers['labels/asked']:.0f}{_how_good(numbers)}")

    def _end_asking(self, why: str) -> None:
        self._finished = True
        self._say(f"{why}; training goes on with {self._learner.kept} labels")

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
        self._next_round, self._asked_at = int(state["next_round"]), int(state["asked_at"])
        self._chunks, self._finished = int(state["chunks"]), bool(state["finished"])
        if state.get("begun_with_labels", True):
            self._lessons = ()
        self._set_scales(state["scales"])
        if self._round is not None:
            self._labelling.ask(self._round.questions, self._asked_at)


def _how_good(numbers: dict[str, float | None]) -> str:
    """What is known of labels and reward, each part after a comma."""
    parts = ""
    for name, text in (("labels/accuracy", "as ground truth"), ("reward/held_out_accuracy", "held out")):
        value = numbers.get(name)
        if value is not None:
            parts += f", {text} {100 * value:.0f} %"
    correlation = numbers.get("reward/rank_correlation")
    if correlation is not None:
        parts += f", reward's rank correlation with ground truth {correlation:.2f}"
    return parts


def _nothing_usable(answers: Answers) -> str:
    """Error message of a round without any usable answer, in one line."""
    told = [answer for answer in answers.answers if answer is not None]
    reasons = [answer.reason for answer in told if answer.reason]
    why = f" ({_most_frequent(reasons)})" if reasons else ""
    if answers.over_budget:
        why += f", and the budget is reached: {answers.over_budget}"
    if all(answer.outcome is Outcome.FAILED for answer in told):
        fix = "fix it, then resume with --resume"
    else:
        fix = "what was said is kept: start a new run with another teacher, prompt or goal"
    return f"the teacher gave no usable answer to {len(told)} questions{why}; {fix}"


def _most_frequent(reasons: list[str]) -> str:
    return max(sorted(set(reasons)), key=reasons.count)


def _size_of_round(config: LearnedSettings, step: int, steps: int) -> int:
    """Questions at this step of a run; the schedules are PEBBLE's."""
    share = {"constant": 1.0, "falling": (steps - step) / steps, "rising": steps / (steps - step + 1)}
    return max(1, int(config.questions * share[config.schedule]))
