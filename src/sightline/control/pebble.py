"""A reward that is being learned while a policy learns from it.

Method: PEBBLE (Lee, Smith and Abbeel, ICML 2021) with a vision-language model as teacher (RL-VLM-F, Wang et al., ICML
2024). First the policy is paid for states unlike those it has seen. Then, every so often, the teacher is asked about
segments of the recent past, the reward model is fitted to all of its answers, and every stored transition is paid for
anew.

A teacher that takes its time is asked in the background: with `lag`, the answers of a round are used when the next
round is due. So training goes on meanwhile, and what a run does depends on the answers alone, not on when they came.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sightline.config import LearnedConfig
from sightline.control.building import ControlSetup
from sightline.control.learners import reset_critic
from sightline.control.relabelling import relabel
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.sources import Aside, ModelSource
from sightline.errors import RunFailed
from sightline.labels.store import LabelStore
from sightline.labels.types import Outcome
from sightline.preferences.labelling import Answers, BackgroundLabeller
from sightline.preferences.pool import whole_segments
from sightline.preferences.rounds import PreferenceLearner, QueryRound
from sightline.rewards.novelty import Novelty
from sightline.runs.archive import Archives
from sightline.runs.folder import RunFolder
from sightline.teachers.encoder import EncoderTeacher
from sightline.teachers.human import people
from sightline.teachers.scripted import ScriptedTeacher

ROUNDS_IN_POOL = 4
"""The pool holds a random share of the transitions collected during so many rounds."""
PATIENCE = 20
"""Chunks without a whole segment, after which there is no hope for one."""

Numbers = dict[str, float | None]
Scales = tuple[float | None, tuple[float, float] | None]
"""The average and the range of what segments earn, as the teacher sees it; None where it needs none."""


class Pebble(ModelSource):
    """Pays what has been learned from the teacher so far; before the first lesson, for novelty.

    Args:
        setup: with a learned reward model.
        run: its folder holds the label store, unless the recipe names another.
        buffer: whose rows are paid for.
        frame_shape: (H, W, 3) of the frames that the teacher is shown.
        say: is told, in one line now and then, how it goes.
    """

    def __init__(
        self,
        setup: ControlSetup,
        run: RunFolder,
        buffer: CommittedReplayBuffer,
        frame_shape: tuple[int, ...],
        say: Callable[[str], None],
    ) -> None:
        config, model = setup.recipe.reward, setup.learned
        assert isinstance(config, LearnedConfig) and model is not None
        super().__init__(buffer, model)
        self.config, self.learned = config, model
        self._recipe, self._say = setup.recipe, say
        self._lessons = PreferenceLearner(config, model, setup.recipe.goal, frame_shape, setup.recipe.seed)
        self._novelty = Novelty()
        self._scales: Scales = (None, None)
        self._round: QueryRound | None = None
        self._next_round = config.explore
        self._asked_at = 0
        self._chunks = 0
        self._finished = False
        self._store = LabelStore(Path(config.labels) if config.labels else run.path / "labels")
        teacher = setup.teacher or people(config, self._store, lambda: self._labelling.context, say)
        self._labelling = BackgroundLabeller(teacher, self._store, config.budget, run.path.name, setup.recipe.env)

    def close(self) -> None:
        """Begin no further question, and wait a little for what is under way; what was answered is in the store."""
        if self._labelling.is_busy:
            self._say("waiting a little for the answers that are under way")
        self._labelling.close()
        self._store.close()

    # -- paying --------------------------------------------------------------------------------------------------

    def set_aside(self, frames: np.ndarray | None, rows: np.ndarray) -> Aside:
        """Keep a few segments of the chunk for questions."""
        assert frames is not None, "a teacher looks at frames"
        config, length = self.config, self.config.segment
        self._chunks += 1
        share = config.pool / (ROUNDS_IN_POOL * config.every)
        wanted = max(1, round(share * frames.shape[0] * frames.shape[1]))
        rng = np.random.default_rng([self._recipe.seed, self._chunks])
        places = whole_segments(self.buffer.dones[rows] > 0, length, wanted, rng)
        shown = [frames[start : start + length, env] for start, env in places]
        return {"places": places, "frames": np.stack(shown) if shown else np.zeros((0, length, *frames.shape[2:]))}

    def pay(self, features: np.ndarray, rows: np.ndarray, aside: Aside) -> np.ndarray:
        self._take_into_pool(features, rows, aside)
        if self.learned.fitted:
            return super().pay(features, rows, aside)
        states = self.buffer.next_observations
        stored = states if self.buffer.full else states[: self.buffer.pos]
        rng = np.random.default_rng([self._recipe.seed, self._chunks])
        shape = stored.shape[2:]
        return self._novelty.reward(
            states[rows].reshape(-1, *shape), stored.reshape(-1, *shape), rng
        ).reshape(features.shape[:2])  # fmt: skip

    def _take_into_pool(self, features: np.ndarray, rows: np.ndarray, aside: Aside) -> None:
        length = self.config.segment
        true_rewards = self.buffer.true_rewards[rows]
        for (start, env), frames in zip(aside["places"], aside["frames"], strict=True):
            span = slice(start, start + length)
            self._lessons.pool.add(frames[None], features[span, env][None], true_rewards[span, env][None])

    # -- asking and learning -------------------------------------------------------------------------------------

    def between_chunks(self, learner: OffPolicyAlgorithm, step: int, should_stop: Callable[[], bool]) -> Numbers | None:
        """Ask, and learn from what was answered, if it is time to.

        Returns:
            What was learned, for the metrics; empty if it was not time; None if told to stop while waiting.

        Raises:
            RunFailed: the teacher has given no usable answer at all, or no episode is as long as a segment.
        """
        numbers: Numbers | None = {}
        if self._round is not None and step >= self._round.due:
            numbers = self._learn(self._round, learner, should_stop)
        if self._round is None and step >= self._next_round and not self._finished:
            self._ask(step)
            if self._round is not None and step >= self._round.due:
                numbers = self._learn(self._round, learner, should_stop)
        return numbers

    def _ask(self, step: int) -> None:
        due = step + self.config.every if self.config.answers_lag else step
        if due >= self._recipe.steps or self._nothing_to_ask_about():
            return  # or the answers would come too late to teach anything
        left = self.config.budget.questions - self._lessons.questions
        count = min(left, _size_of_round(self.config, step, self._recipe.steps))
        self._next_round += self.config.every
        composed = self._lessons.compose(count, due) if count > 0 else None
        if left <= 0:
            self._end_asking(f"all {self.config.budget.questions} questions of the budget are asked")
        elif composed is not None and composed.questions:
            self._set_scales(self._usual(composed))
            self._labelling.ask(composed.questions, step)
            self._round, self._asked_at = composed, step

    def _nothing_to_ask_about(self) -> bool:
        if len(self._lessons.pool) == 0 and self._chunks >= PATIENCE:
            raise RunFailed(
                f"no episode had {self.config.segment} steps within one chunk so far, so there is nothing to ask "
                "about; lower reward.segment, or raise learner.chunk"
            )
        return len(self._lessons.pool) == 0

    def _usual(self, asked: QueryRound) -> Scales:
        """What levels, scores and a script's failings are relative to."""
        returns, teacher = self._lessons.pool.true_returns, self._labelling.teacher
        if isinstance(teacher, ScriptedTeacher):
            seen = float(np.nanmin(returns)), float(np.nanmax(returns))
            return float(np.nanmean(returns)), self._widened(seen)
        if isinstance(teacher, EncoderTeacher) and asked.questions[0].kind != "compare":
            segments = [segment for question in asked.questions for segment in question.segments]
            return None, self._widened(teacher.range_of(segments))
        return None, None

    def _widened(self, seen: tuple[float, float]) -> tuple[float, float]:
        """With what was seen in earlier rounds, so that a level means much the same over the whole run."""
        _, before = self._scales
        return seen if before is None else (min(seen[0], before[0]), max(seen[1], before[1]))

    def _set_scales(self, scales: Scales) -> None:
        """Of this round; kept with it, so that a question that has to be asked once more gets the same answer."""
        self._scales = scales
        teacher = self._labelling.teacher
        if isinstance(teacher, ScriptedTeacher):
            teacher.average_segment_return, teacher.return_range = scales
        if isinstance(teacher, EncoderTeacher):
            _, teacher.reward_range = scales

    def _learn(self, asked: QueryRound, learner: OffPolicyAlgorithm, should_stop: Callable[[], bool]) -> Numbers | None:
        waited = time.monotonic()
        answers = self._labelling.collect(should_stop)
        if answers is None:
            return None
        waited = time.monotonic() - waited
        first = not self.learned.fitted
        numbers = self._lessons.learn(asked, answers.answers)
        self._round = None
        self._report(answers, numbers)
        if answers.over_budget:
            self._end_asking(f"the budget is reached ({answers.over_budget})")
        if self.learned.fitted:
            began = time.monotonic()
            relabel(self.buffer, self.model.score)
            numbers["time/relabelling"] = time.monotonic() - began
            if first:
                self._take_over(learner)
        numbers["time/waiting_for_teacher"] = waited
        return numbers

    def _take_over(self, learner: OffPolicyAlgorithm) -> None:
        """From novelty to the learned reward: old values mean nothing now."""
        if self.config.reset_critic:
            reset_critic(learner)
        if self.config.reset_updates:
            learner.train(gradient_steps=self.config.reset_updates, batch_size=learner.batch_size)

    def _report(self, answers: Answers, numbers: Numbers) -> None:
        spent = self._store.spent(self._labelling.run)
        numbers |= {"labels/remembered": answers.remembered, "labels/requests": spent.requests}
        numbers |= {"labels/tokens": spent.tokens, "labels/cost": spent.money}
        if self._lessons.kept == 0:
            raise RunFailed(_nothing_usable(answers))
        failed = [a.reason for a in answers.answers if a is not None and a.outcome is Outcome.FAILED]
        if failed:
            self._say(f"{len(failed)} of {len(answers.answers)} questions failed ({_most_frequent(failed)})")
        parts = [f"labels {numbers['labels/kept']:.0f} of {numbers['labels/asked']:.0f}"]
        for name, text in (("labels/accuracy", "as ground truth"), ("reward/held_out_accuracy", "held out")):
            value = numbers.get(name)
            if value is not None:
                parts.append(f"{text} {100 * value:.0f} %")
        correlation = numbers.get("reward/rank_correlation")
        if correlation is not None:
            parts.append(f"reward's rank correlation with ground truth {correlation:.2f}")
        self._say(", ".join(parts))

    def _end_asking(self, why: str) -> None:
        self._finished = True
        self._say(f"{why}; training goes on with {self._lessons.kept} labels")

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self, archives: Archives) -> dict[str, Any]:
        self._store.back_up()
        novelty = self._novelty
        return {
            "lessons": self._lessons.state(archives),
            "novelty": (novelty.count, novelty.mean, novelty.squares),
            "round": None if self._round is None else self._round.state(),
            "scales": self._scales,
            "asked_at": self._asked_at,
            "next_round": self._next_round,
            "chunks": self._chunks,
            "finished": self._finished,
        }

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave; a round that was under way is asked again, of which the store knows most."""
        self._lessons.restore(state["lessons"], archives)
        self._novelty.count, self._novelty.mean, self._novelty.squares = state["novelty"]
        self._round = None if state["round"] is None else QueryRound.of(state["round"])
        self._next_round, self._asked_at = int(state["next_round"]), int(state["asked_at"])
        self._chunks, self._finished = int(state["chunks"]), bool(state["finished"])
        self._set_scales(state["scales"])
        if self._round is not None:
            self._labelling.ask(self._round.questions, self._asked_at)


def _nothing_usable(answers: Answers) -> str:
    """Why a run cannot go on, in one line."""
    told = [answer for answer in answers.answers if answer is not None]
    reasons = [answer.reason for answer in told if answer.reason]
    why = f" ({_most_frequent(reasons)})" if reasons else ""
    if answers.over_budget:
        why += f", and the budget is reached: {answers.over_budget}"
    if all(answer.outcome is Outcome.FAILED for answer in told):
        mend = "mend it and go on with --resume"
    else:
        mend = "what was said is kept: start a new run with another teacher, prompt or goal"
    return f"the teacher gave no usable answer to {len(told)} questions{why}; {mend}"


def _most_frequent(reasons: list[str]) -> str:
    return max(sorted(set(reasons)), key=reasons.count)


def _size_of_round(config: LearnedConfig, step: int, steps: int) -> int:
    """Questions at this step of a run; the schedules are PEBBLE's."""
    share = {"constant": 1.0, "falling": (steps - step) / steps, "rising": steps / (steps - step + 1)}
    return max(1, int(config.questions * share[config.schedule]))
