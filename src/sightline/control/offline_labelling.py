"""Ask a teacher outside of training: about pairs that others have judged, or about frames of random play.

Questions that were asked before are asked again with the same words and levels. A teacher that judges by words of its
own, an encoder, has to have the same; so no answer is recorded under a goal that it was not judged by.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from sightline.config.basics import check_words
from sightline.config.loading import for_control, load_recipe, validate_recipe
from sightline.config.recipe import ControlRecipe
from sightline.control.resolving import env_maker, resolve
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.labels.store import LabelStore, StoredLabel, existing_store
from sightline.labels.types import Question, Segment
from sightline.preferences.config import LearnedConfig
from sightline.preferences.labelling import Answers, BackgroundLabeller
from sightline.preferences.pool import whole_segments
from sightline.preferences.sampling import PoolView, choose_pairs, choose_singles
from sightline.runs.folder import RunFolder, check_plain
from sightline.runs.progress import Progress
from sightline.runs.stopping import Stopped, StopRequests
from sightline.runs.trust import check_trusted
from sightline.teachers.base import TeacherContext, TeacherRunContext

ENVS = 8
PLAY = "random play"
"""Key of a label's origin: which random play its question is about."""
STEPS_PER_SEGMENT = 4
"""Length of random play per length of the segments that are taken from it."""


@dataclass(frozen=True)
class OfflineLabels:
    """Labels collected outside of training.

    Attributes:
        questions: what was asked.
        answers: to each of them.
        teacher: name of who was asked.
        fresh: whether the questions are about random play.
        run: under which name the answers are recorded.
    """

    questions: list[Question]
    answers: Answers
    teacher: str
    fresh: bool
    run: str


class LabellingStopped(Stopped):
    """Raised when asking has stopped on request; what was answered by then is in the store."""

    def __init__(self, signal_number: int, recorded: int, asked: int, store: Path) -> None:
        super().__init__(signal_number, None)
        self._recorded, self._asked, self._store = recorded, asked, store

    @property
    def saved(self) -> str:
        return f"{self._recorded} of {self._asked} answers are in {self._store}"

    @property
    def advice(self) -> str:
        return "go on with the same command"


@dataclass(frozen=True)
class _Plan:
    """Plan of a labelling: the recipe, completed as far as asking needs, and what to ask."""

    recipe: ControlRecipe
    config: LearnedConfig
    questions: list[Question]
    fresh: bool
    origin: dict[str, str]


def label_offline(
    path: Path,
    overrides: Sequence[str],
    count: int,
    fresh: bool,
    show: Callable[[int], AbstractContextManager[Progress]],
    trust: bool = False,
) -> OfflineLabels:
    """Ask the teacher of a run's recipe, or of one made up for a label store; every answer is in the store at once.

    Args:
        path: a run, or a label store; one that is not there yet, or an empty folder, becomes a store if the overrides
            name an environment.
        overrides: of the recipe.
        count: questions at most.
        fresh: ask about random play, though there are questions that were asked before.
        show: number of questions -> what is shown while they are asked.
        trust: whether code and servers that a run's recipe, or a store, names may be used.

    Raises:
        BadInput: there is no such store; words or levels that differ from those of the questions; the recipe, the
            environment or the teacher cannot be. A store that was not there is not made then.
        RunFailed: the teacher cannot be reached, the store not be written.
        LabellingStopped: a signal asked for it.
    """
    if RunFolder(path).recipe_file.is_file():
        RunFolder(path).trusted_recipe(trust, sorted(_stated(overrides)))  # before anything of it is opened
    folder = _folder(path, overrides)
    labels = _labels(folder)
    plan = _plan(path, overrides, labels, folder, count, fresh or not labels, trust)
    warnings: list[str] = []
    wanted = TeacherContext(
        plan.recipe.goal, plan.recipe.baseline, plan.recipe.seed, plan.config.device, None, warnings.append
    )
    reached = plan.config.teacher.build(wanted)
    if reached is not None and plan.questions:
        reached.check_frames(plan.questions[0].segments[0].frames[0], warnings.append)
    run = f"label run {datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}"
    with LabelStore(folder) as store, show(len(plan.questions)) as progress:
        for warning in warnings:
            progress.say(f"warning: {warning}")
        teacher = reached or plan.config.teacher.in_run(
            TeacherRunContext(store, lambda: labelling.context, progress.say)
        )
        teacher.say = progress.say
        labelling = BackgroundLabeller(
            *(teacher, store, plan.config.budget, run, plan.recipe.env),
            arrived=lambda arrived: progress.update(arrived, {}),
            origin=plan.origin,
        )
        with StopRequests() as stop:
            try:
                labelling.ask(plan.questions, step=0)
                answers = labelling.collect(stop.requested)
            finally:
                labelling.close()
        recorded = len(store.labels(run))
    if answers is None:
        raise LabellingStopped(stop.signal_number or signal.SIGINT, recorded, len(plan.questions), folder)
    return OfflineLabels(plan.questions, answers, teacher.name, plan.fresh, run)


# -- looking before a store is opened, for that makes one --------------------------------------------------------------


def _folder(path: Path, overrides: Sequence[str]) -> Path:
    """The folder of the store to write to, which may not be there yet."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        if "env" not in _stated(overrides):
            raise BadInput(f"there are no labels in '{path}'; say env=… to ask about random play of an environment")
        return path
    return existing_store(path, trust=True)  # looked at before


def _labels(folder: Path) -> list[StoredLabel]:
    if not folder.exists() or not any(folder.iterdir()):
        return []
    with LabelStore(folder, read_only=True) as store:
        return store.labels()


def _stated(overrides: Sequence[str]) -> set[str]:
    return {override.partition("=")[0] for override in overrides}


# -- what to ask -------------------------------------------------------------------------------------------------------


def _plan(
    path: Path, overrides: Sequence[str], labels: list[StoredLabel], folder: Path, count: int, fresh: bool, trust: bool
) -> _Plan:
    own = for_control(RunFolder(path).recipe()) if RunFolder(path).recipe_file.is_file() else None
    recipe = _recipe(path, own, overrides, labels)
    if not trust:
        check_plain(path)
        check_trusted(recipe, path, [*_stated(overrides)])
    config = recipe.reward.teaching
    if config is None:
        raise BadInput(f"reward.kind={recipe.reward.kind} asks nobody; say reward.kind=learned")
    # What the user says of questions bounds this call as well; what a run's recipe says of its own rounds does not.
    stated = _stated(overrides)
    if stated & {"reward", "reward.questions"} and "questions" in config.model_fields_set:
        count = min(count, config.questions)
    if stated & {"reward", "reward.budget", "reward.budget.questions"} and (
        "questions" in config.budget.model_fields_set
    ):
        count = min(count, config.budget.questions)
    origin = {PLAY: _play(recipe, config, count)}
    # The same command as before, which was cut off: it goes on with its questions, though some have labels by now.
    names_play = "env" in stated or own is not None
    goes_on = names_play and any(label.context.origin.get(PLAY) == origin[PLAY] for label in labels)
    if fresh or goes_on:
        recipe = resolve(recipe)
        config = recipe.reward.teaching
        assert config is not None, "completing changes no kinds"
        return _Plan(recipe, config, fresh_questions(recipe, config, count), True, origin)
    chosen = _asked_before(labels, recipe, config, own, stated, folder)
    recipe = _with_the_words_of(chosen[0], recipe, config, own, stated)
    with LabelStore(folder, read_only=True) as store:
        questions = _distinct(chosen, store, count)
    return _Plan(recipe, config, questions, False, {})


def _play(recipe: ControlRecipe, config: LearnedConfig, count: int) -> str:
    """Hexadecimal SHA-256 of all that questions about random play depend on."""
    document = recipe.model_dump(mode="json")
    depends_on = [document[key] for key in ("env", "env_options", "training_options", "episode_steps", "goal", "seed")]
    about = [config.feedback.model_dump(mode="json"), config.segment, config.shown_size(None), count]
    return hashlib.sha256(json.dumps(depends_on + about, sort_keys=True).encode()).hexdigest()


def _recipe(
    path: Path, own: ControlRecipe | None, overrides: Sequence[str], labels: list[StoredLabel]
) -> ControlRecipe:
    """The run's own recipe, or one for the environment that a store's labels are of; with what the user says."""
    before = list(overrides)
    if "reward.kind" not in _stated(overrides):
        # How answers would come in during training says nothing here, nor may it be refused.
        before = ["reward.lag=false", *before]
    if own is not None:
        known = overrides if own.reward.teaching is None else before
        return for_control(load_recipe(RunFolder(path).document(), known, own=False))
    tasks = sorted({label.context.task for label in labels})
    if "env" not in _stated(overrides):
        if len(tasks) != 1:
            which = f"are of {', '.join(tasks)}" if tasks else "are none"
            raise BadInput(f"the labels in '{path}' {which}; say env=…")
        before = [f"env={tasks[0]}", *before]
    return for_control(load_recipe(None, ["reward.kind=learned", *before]))


def _asked_before(
    labels: list[StoredLabel],
    recipe: ControlRecipe,
    config: LearnedConfig,
    own: ControlRecipe | None,
    stated: set[str],
    folder: Path,
) -> list[StoredLabel]:
    """The labels whose questions the recipe's teacher can be asked, at least one.

    Raises:
        BadInput: there are none of that environment or kind, or in those words, or on that number of levels.
    """
    kind, what = config.feedback.question, config.feedback.noun
    found = [label for label in labels if label.context.task == recipe.env]
    if not found:
        tasks = ", ".join(sorted({f"'{label.context.task}'" for label in labels}))
        raise BadInput(
            f"the labels in '{folder}' are of {tasks}, not of '{recipe.env}'; add --fresh to ask about its random play"
        )
    found = [label for label in found if label.kind == kind]
    if not found:
        raise BadInput(f"there are no {what} in '{folder}' yet; add --fresh to ask about random play")
    goals = list(dict.fromkeys(label.goal for label in found))
    if "goal" in stated and recipe.goal not in goals:
        raise BadInput(_differ(what, "goal", goals[0]))
    if "goal" in stated or (own is not None and own.goal in goals):
        found = [label for label in found if label.goal == recipe.goal]
    elif config.teacher.judges_by_own_words and len(goals) > 1:
        listed = ", ".join(f"'{_in_words(goal)}'" for goal in goals)
        raise BadInput(f"these {what} were asked with several goals, {listed}; say which: goal=…")
    if "reward.feedback.levels" in stated:
        levels = found[0].levels
        found = [label for label in found if label.levels == config.feedback.question_levels]
        if not found:
            raise BadInput(f"these {what} were asked on {levels} levels; add --fresh to ask about new ones on others")
    return found


def _with_the_words_of(
    label: StoredLabel, recipe: ControlRecipe, config: LearnedConfig, own: ControlRecipe | None, stated: set[str]
) -> ControlRecipe:
    """The recipe with the words that the label's question was asked in.

    A baseline is recorded in no question; it is that of the run, or of the task, whose goal this is.
    """
    task = find_task(recipe.env)
    baseline: tuple[str, ...] | None = None
    if own is not None and own.goal == label.goal:
        baseline = own.baseline
    elif task.goal == label.goal:
        baseline = task.baseline
    if "baseline" in stated and baseline is not None and recipe.baseline != baseline:
        raise BadInput(_differ(config.feedback.noun, "baseline", baseline))
    if baseline is None:
        baseline = recipe.baseline if "baseline" in stated else ()
    words = {"goal": list(label.goal), "baseline": list(baseline)}
    if config.teacher.needs_words:
        try:
            check_words(label.goal, baseline, config.teacher.words_alpha)
        except ValueError as error:
            raise BadInput(str(error)) from error
    return for_control(validate_recipe(recipe.model_dump(mode="json") | words))


def _differ(what: str, which: str, words: tuple[str, ...]) -> str:
    said = f"{which} '{_in_words(words)}'" if words else f"no {which}"
    return f"these {what} were asked with {said}; add --fresh to ask about new ones with other words"


def _in_words(sentences: tuple[str, ...]) -> str:
    return " / ".join(" ".join(sentence.split()) for sentence in sentences)


def _distinct(labels: list[StoredLabel], store: LabelStore, count: int) -> list[Question]:
    """Each question once, oldest first, at most `count`."""
    seen: dict[object, StoredLabel] = {}
    for label in labels:
        seen.setdefault((label.segments, label.goal, label.levels), label)
    return [
        Question(label.kind, tuple(store.segment(digest) for digest in label.segments), label.goal, label.levels)
        for label in list(seen.values())[:count]
    ]


def fresh_questions(recipe: ControlRecipe, config: LearnedConfig, count: int) -> list[Question]:
    """Questions about random play, with the environment's own rewards known.

    Raises:
        BadInput: the play shows too few different frames.
    """
    rng = np.random.default_rng(recipe.seed)
    segments = _random_play(recipe, config, 2 * count, rng)
    pool = PoolView([segment.digest for segment in segments], np.zeros((len(segments), 1)))
    if config.feedback.question == "compare":
        chosen = choose_pairs("uniform", count, pool, rng)
    else:
        chosen = choose_singles(count, pool, rng)[:, None]
    if len(chosen) < count:
        raise BadInput(f"random play of '{recipe.env}' gives only {len(chosen)} different questions; ask fewer")
    kind, levels = config.feedback.question, config.feedback.question_levels
    return [Question(kind, tuple(segments[i] for i in places), recipe.goal, levels) for places in chosen]


def _random_play(recipe: ControlRecipe, config: LearnedConfig, count: int, rng: np.random.Generator) -> list[Segment]:
    make = env_maker(recipe, config.shown_size(None))
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
