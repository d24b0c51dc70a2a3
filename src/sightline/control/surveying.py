"""Ask a teacher outside of training: about pairs that others have judged, or about frames of random play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sightline.config import LearnedConfig, RatingsConfig, Recipe
from sightline.control.preparing import reach_teacher, shown_size
from sightline.envs.vector import FrameVectorEnv, episode_seeds
from sightline.errors import BadInput
from sightline.labels.store import LabelStore
from sightline.labels.types import Kind, Question, Segment
from sightline.preferences.labelling import Answers, Labelling
from sightline.preferences.pool import whole_segments
from sightline.preferences.sampling import PoolView, choose_pairs, choose_singles
from sightline.runs.stopping import StopRequests
from sightline.tasks.completing import env_maker
from sightline.teachers.human import people

KINDS: dict[str, Kind] = {"pairs": "compare", "ladder": "compare", "ratings": "rate", "scores": "score"}
"""What is asked for each kind of feedback."""
ENVS = 8
STEPS_PER_SEGMENT = 4
"""Random play is so many times as long as the segments that are taken from it."""


@dataclass(frozen=True)
class Survey:
    """What came of it: the questions, their answers, and who gave them."""

    questions: list[Question]
    answers: Answers
    teacher: str


def known_questions(store: LabelStore, feedback: str, count: int) -> list[Question]:
    """Distinct questions of a kind that somebody was asked before, oldest first, at most `count`."""
    questions: dict[str, Question] = {}
    for label in store.labels():
        if label.kind == KINDS[feedback] and len(questions) < count:
            segments = tuple(store.segment(digest) for digest in label.segments)
            question = Question(label.kind, segments, label.goal, label.levels)
            questions.setdefault(question.key(""), question)
    return list(questions.values())


def fresh_questions(recipe: Recipe, config: LearnedConfig, count: int) -> list[Question]:
    """Questions about random play, with the environment's own rewards known.

    Raises:
        BadInput: the play shows too few different frames.
    """
    rng = np.random.default_rng(recipe.seed)
    segments = _random_play(recipe, config, 2 * count, rng)
    pool = PoolView([segment.digest for segment in segments], np.zeros((len(segments), 1)))
    if KINDS[config.feedback.kind] == "compare":
        chosen = choose_pairs("uniform", count, pool, rng)
    else:
        chosen = choose_singles(count, pool, rng)[:, None]
    if len(chosen) < count:
        raise BadInput(f"random play of '{recipe.env}' gives only {len(chosen)} different questions; ask fewer")
    levels = config.feedback.levels if isinstance(config.feedback, RatingsConfig) else 0
    kind = KINDS[config.feedback.kind]
    return [Question(kind, tuple(segments[i] for i in places), recipe.goal, levels) for places in chosen]


def survey(
    recipe: Recipe,
    questions: list[Question],
    store: LabelStore,
    run: str,
    say: Callable[[str], None],
    arrived: Callable[[int], None],
) -> Survey | None:
    """Ask the recipe's teacher; every answer is in the store at once.

    Args:
        recipe: completed, with a learned reward; its teacher, budget and seed are read.
        run: under which name answers are recorded.
        arrived: told how many answers there are.

    Returns:
        What came of it; None if interrupted, with what was answered in the store.

    Raises:
        BadInput, RunFailed: the teacher cannot be reached.
    """
    config = recipe.reward
    assert isinstance(config, LearnedConfig)
    found, warnings = reach_teacher(recipe, config)
    for warning in warnings:
        say(f"warning: {warning}")
    teacher = found or people(config, store, lambda: labelling.context, say)
    labelling = Labelling(teacher, store, config.budget, run, recipe.env, arrived)
    with StopRequests() as stop:
        try:
            labelling.ask(questions, step=0)
            answers = labelling.collect(stop.requested)
        finally:
            labelling.close()
    return None if answers is None else Survey(questions, answers, teacher.name)


def _random_play(recipe: Recipe, config: LearnedConfig, count: int, rng: np.random.Generator) -> list[Segment]:
    make = env_maker(recipe, shown_size(config, None))
    envs = FrameVectorEnv(make, ENVS, episode_seeds(recipe.seed), frames=True)
    length = config.segment
    envs.action_space.seed(recipe.seed)
    try:
        envs.reset()
        segments: list[Segment] = []
        while len(segments) < count:
            frames, rewards, ended = [], [], []
            for _ in range(STEPS_PER_SEGMENT * length):
                step = envs.step(np.stack([envs.action_space.sample() for _ in range(ENVS)]))
                assert step.frames is not None, "asked for"
                frames.append(step.frames.copy())
                rewards.append(step.rewards)
                ended.append(step.ended)
            for start, env in whole_segments(np.stack(ended), length, ENVS // 2, rng):
                shown = np.stack([frames[t][env] for t in range(start, start + length)])
                earned = np.array([rewards[t][env] for t in range(start, start + length)], np.float32)
                segments.append(Segment(shown, earned))
        return segments[:count]
    finally:
        envs.close()
