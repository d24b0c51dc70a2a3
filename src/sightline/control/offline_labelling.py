"""Ask a teacher outside of training: about pairs that others have judged, or about frames of random play or a data set.

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
from sightline.datasets.reading import read_dataset
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
from sightline.teachers.base import TeacherContext, TeacherRunContext, build_teacher, teacher_in_run

ENVS = 8
PLAY = "random play"
"""Key of a label's origin: which random play its question is about."""
OF_DATASET = "dataset"
"""Task of labels that are of a data set, where no environment is said."""
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

    def __init__(self, signal_number: int, recorded: int, questions: int, store: Path) -> None:
        super().__init__(signal_number, None)
        self._recorded = recorded
        self._questions = questions
        self._store = store

    @property
    def saved(self) -> str:
        return f"{self._recorded} of {self._questions} answers are in {self._store}"

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
    dataset: Path | None = None,
    camera: str | None = None,
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
        dataset: ask about frames of this data set; then no environment is needed.
        camera: which of several cameras of the data set.

    Raises:
        BadInput: there is no such store; words or levels that differ from those of the questions; the recipe, the
            environment or the teacher cannot be. A store that was not there is not made then.
        RunFailed: the teacher cannot be reached, the store not be written.
        LabellingStopped: a signal asked for it.
    """
    if RunFolder(path).recipe_file.is_file():
        RunFolder(path).trusted_recipe(trust, sorted(_keys_of(overrides)))  # before anything of it is opened
    if dataset is not None and "env" not in _keys_of(overrides) and not RunFolder(path).recipe_file.is_file():
        overrides = [f"env={OF_DATASET}", *overrides]
    folder = _folder(path, overrides)
    labels = _labels(folder)
    if dataset is not None:
        plan = _plan_of_dataset(path, overrides, dataset, camera, count, trust)
    else:
        plan = _plan(path, overrides, labels, folder, count, fresh or not labels, trust)
    recipe = plan.recipe
    config = plan.config
    # A teacher that needs no store is reached before one is opened, so that a refusal makes none.
    warnings: list[str] = []
    context = TeacherContext(recipe.goal, recipe.baseline, recipe.seed, config.device, None, warnings.append)
    ready_teacher = build_teacher(config.teacher, context)
    if ready_teacher is not None and plan.questions:
        first_frame = plan.questions[0].segments[0].frames[0]
        ready_teacher.check_frames(first_frame, warnings.append)
    run = f"label run {datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}"
    with LabelStore(folder) as store, show(len(plan.questions)) as progress:
        for warning in warnings:
            progress.say(f"warning: {warning}")
        teacher = ready_teacher or teacher_in_run(
            config.teacher, TeacherRunContext(store, lambda: labelling.context, progress.say)
        )
        teacher.say = progress.say
        labelling = BackgroundLabeller(
            teacher,
            store,
            config.budget,
            run,
            recipe.env,
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
        if "env" not in _keys_of(overrides):
            raise BadInput(f"there are no labels in '{path}'; say env=… to ask about random play of an environment")
        return path
    return existing_store(path, trust=True)  # `label_offline` has checked it


def _labels(folder: Path) -> list[StoredLabel]:
    if not folder.exists() or not any(folder.iterdir()):
        return []
    with LabelStore(folder, read_only=True) as store:
        return store.labels()


def _keys_of(overrides: Sequence[str]) -> set[str]:
    return {override.partition("=")[0] for override in overrides}


# -- what to ask -------------------------------------------------------------------------------------------------------


def _plan(
    path: Path, overrides: Sequence[str], labels: list[StoredLabel], folder: Path, count: int, fresh: bool, trust: bool
) -> _Plan:
    stated_keys = _keys_of(overrides)
    own: ControlRecipe | None = None
    if RunFolder(path).recipe_file.is_file():
        own = for_control(RunFolder(path).recipe())
    recipe = _recipe(path, own, overrides, labels)
    if not trust:
        check_plain(path)
        check_trusted(recipe, path, [*stated_keys])
    config = recipe.reward.teaching
    if config is None:
        raise BadInput(f"reward.kind={recipe.reward.kind} asks nobody; say reward.kind=learned")
    # What the user says of questions bounds this call as well; what a run's recipe says of its own rounds does not.
    if stated_keys & {"reward", "reward.questions"} and "questions" in config.model_fields_set:
        count = min(count, config.questions)
    states_budget = stated_keys & {"reward", "reward.budget", "reward.budget.questions"}
    if states_budget and "questions" in config.budget.model_fields_set:
        count = min(count, config.budget.questions)
    origin = {PLAY: _play(recipe, config, count)}
    # The same command as before, which was cut off: it goes on with its questions, though some have labels by now.
    names_play = "env" in stated_keys or own is not None
    goes_on = names_play and any(label.context.origin.get(PLAY) == origin[PLAY] for label in labels)
    if fresh or goes_on:
        recipe = resolve(recipe)
        config = recipe.reward.teaching
        assert config is not None, "completing changes no kinds"
        return _Plan(recipe, config, fresh_questions(recipe, config, count), True, origin)
    earlier_labels = _labels_to_ask_again(labels, recipe, config, own, stated_keys, folder)
    recipe = _with_the_words_of(earlier_labels[0], recipe, config, own, stated_keys)
    with LabelStore(folder, read_only=True) as store:
        questions = _distinct_questions(earlier_labels, store, count)
    return _Plan(recipe, config, questions, False, {})


def _plan_of_dataset(
    path: Path, overrides: Sequence[str], dataset: Path, camera: str | None, count: int, trust: bool
) -> _Plan:
    """Plan of a labelling of a data set, whose own sentence is the goal where the user says none."""
    own: ControlRecipe | None = None
    if RunFolder(path).recipe_file.is_file():
        own = for_control(RunFolder(path).recipe())
    recipe = _recipe(path, own, overrides, [])
    if not trust:
        check_plain(path)
        check_trusted(recipe, path, [*_keys_of(overrides)])
    config = recipe.reward.teaching
    if config is None:
        raise BadInput(f"reward.kind={recipe.reward.kind} asks nobody; say reward.kind=learned")
    if not recipe.goal:
        recipe = recipe.model_copy(update={"goal": (_sentence_of(dataset),)})
    rng = np.random.default_rng(recipe.seed)
    segments = dataset_segments(dataset, camera, config.segment, 2 * count, rng)
    questions = _questions_about(segments, recipe, config, count, rng, f"'{dataset}'")
    return _Plan(recipe, config, questions, True, {})


def _sentence_of(dataset: Path) -> str:
    """The one sentence of a data set.

    Raises:
        BadInput: it has none, or several.
    """
    sentences = {episode.instruction for episode in read_dataset(dataset, frames=False)}
    sentence = sentences.pop() if len(sentences) == 1 else None
    if sentence is None:
        raise BadInput(f"the episodes of '{dataset}' have no sentence, or several; say what to ask about: goal=…")
    return sentence


def dataset_segments(
    dataset: Path, camera: str | None, length: int, count: int, rng: np.random.Generator
) -> list[Segment]:
    """Segments of a data set at random places, with the environment's own rewards where they are known.

    Raises:
        BadInput: no episode is as long as a segment.
    """
    starts: list[tuple[int, int]] = []
    for episode in read_dataset(dataset, frames=False):
        starts += [(episode.index, start) for start in range(episode.steps - length + 1)]
    if not starts:
        raise BadInput(f"no episode of '{dataset}' has {length} steps, as a segment has; say reward.segment=…")
    chosen: dict[int, list[int]] = {}
    for place in rng.choice(len(starts), min(count, len(starts)), replace=False):
        index, start = starts[place]
        chosen.setdefault(index, []).append(start)
    segments: list[Segment] = []
    for episode in read_dataset(dataset, camera):
        for start in chosen.get(episode.index, ()):
            steps = slice(start, start + length)
            assert episode.frames is not None, "frames are read"
            rewards = np.full(length, np.nan, np.float32)
            if episode.env_reward is not None:
                rewards = episode.env_reward[steps]
            segments.append(Segment(episode.frames[steps].copy(), rewards))
    # Pairs are chosen by their places: those of one episode shall not stand together.
    return [segments[place] for place in rng.permutation(len(segments))]


def _play(recipe: ControlRecipe, config: LearnedConfig, count: int) -> str:
    """Hexadecimal SHA-256 of all that questions about random play depend on."""
    document = recipe.model_dump(mode="json")
    keys = ("env", "env_options", "training_options", "episode_steps", "goal", "seed")
    play = [document[key] for key in keys]
    questions = [config.feedback.model_dump(mode="json"), config.segment, config.shown_size(None), count]
    return hashlib.sha256(json.dumps(play + questions, sort_keys=True).encode()).hexdigest()


def _recipe(
    path: Path, own: ControlRecipe | None, overrides: Sequence[str], labels: list[StoredLabel]
) -> ControlRecipe:
    """The run's own recipe, or one for the environment that a store's labels are of; with what the user says."""
    stated_keys = _keys_of(overrides)
    teaching_overrides = list(overrides)
    if "reward.kind" not in stated_keys:
        # How answers would come in during training says nothing here, nor may it be refused.
        teaching_overrides = ["reward.lag=false", *teaching_overrides]
    if own is not None:
        own_overrides = overrides if own.reward.teaching is None else teaching_overrides
        return for_control(load_recipe(RunFolder(path).document(), own_overrides, own=False))
    if "env" not in stated_keys:
        tasks = sorted({label.context.task for label in labels})
        if len(tasks) != 1:
            which = f"are of {', '.join(tasks)}" if tasks else "are none"
            raise BadInput(f"the labels in '{path}' {which}; say env=…")
        teaching_overrides = [f"env={tasks[0]}", *teaching_overrides]
    return for_control(load_recipe(None, ["reward.kind=learned", *teaching_overrides]))


def _labels_to_ask_again(
    labels: list[StoredLabel],
    recipe: ControlRecipe,
    config: LearnedConfig,
    own: ControlRecipe | None,
    stated_keys: set[str],
    folder: Path,
) -> list[StoredLabel]:
    """The labels whose questions the recipe's teacher can be asked, at least one.

    Raises:
        BadInput: there are none of that environment or kind, or in those words, or on that number of levels.
    """
    noun = config.feedback.noun
    of_env = [label for label in labels if label.context.task == recipe.env]
    if not of_env:
        tasks = ", ".join(sorted({f"'{label.context.task}'" for label in labels}))
        raise BadInput(
            f"the labels in '{folder}' are of {tasks}, not of '{recipe.env}'; add --fresh to ask about its random play"
        )
    of_kind = [label for label in of_env if label.kind == config.feedback.question]
    if not of_kind:
        raise BadInput(f"there are no {noun} in '{folder}' yet; add --fresh to ask about random play")
    goals = list(dict.fromkeys(label.goal for label in of_kind))
    if "goal" in stated_keys and recipe.goal not in goals:
        raise BadInput(_other_words(noun, "goal", goals[0]))
    fitting = of_kind
    if "goal" in stated_keys or (own is not None and own.goal in goals):
        fitting = [label for label in of_kind if label.goal == recipe.goal]
    elif config.teacher.judges_by_own_words and len(goals) > 1:
        listed = ", ".join(f"'{_in_words(goal)}'" for goal in goals)
        raise BadInput(f"these {noun} were asked with several goals, {listed}; say which: goal=…")
    if "reward.feedback.levels" in stated_keys:
        levels = fitting[0].levels
        fitting = [label for label in fitting if label.levels == config.feedback.question_levels]
        if not fitting:
            raise BadInput(f"these {noun} were asked on {levels} levels; add --fresh to ask about new ones on others")
    return fitting


def _with_the_words_of(
    label: StoredLabel, recipe: ControlRecipe, config: LearnedConfig, own: ControlRecipe | None, stated_keys: set[str]
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
    if "baseline" in stated_keys and baseline is not None and recipe.baseline != baseline:
        raise BadInput(_other_words(config.feedback.noun, "baseline", baseline))
    if baseline is None:
        baseline = recipe.baseline if "baseline" in stated_keys else ()
    words = {"goal": list(label.goal), "baseline": list(baseline)}
    if config.teacher.needs_words:
        try:
            check_words(label.goal, baseline, config.teacher.words_alpha)
        except ValueError as error:
            raise BadInput(str(error)) from error
    return for_control(validate_recipe(recipe.model_dump(mode="json") | words))


def _other_words(noun: str, key: str, words: tuple[str, ...]) -> str:
    """Complaint that questions were asked with other words than the user's."""
    before = f"{key} '{_in_words(words)}'" if words else f"no {key}"
    return f"these {noun} were asked with {before}; add --fresh to ask about new ones with other words"


def _in_words(sentences: tuple[str, ...]) -> str:
    return " / ".join(" ".join(sentence.split()) for sentence in sentences)


def _distinct_questions(labels: list[StoredLabel], store: LabelStore, count: int) -> list[Question]:
    """Each question once, oldest first, at most `count`."""
    distinct: dict[object, StoredLabel] = {}
    for label in labels:
        distinct.setdefault((label.segments, label.goal, label.levels), label)
    questions = []
    for label in list(distinct.values())[:count]:
        segments = tuple(store.segment(digest) for digest in label.segments)
        questions.append(Question(label.kind, segments, label.goal, label.levels))
    return questions


def fresh_questions(recipe: ControlRecipe, config: LearnedConfig, count: int) -> list[Question]:
    """Questions about random play, with the environment's own rewards known.

    Raises:
        BadInput: the play shows too few different frames.
    """
    rng = np.random.default_rng(recipe.seed)
    # Twice as many segments as questions, so that no two pairs need share one.
    segments = _random_play(recipe, config, 2 * count, rng)
    return _questions_about(segments, recipe, config, count, rng, f"random play of '{recipe.env}'")


def _questions_about(
    segments: Sequence[Segment],
    recipe: ControlRecipe,
    config: LearnedConfig,
    count: int,
    rng: np.random.Generator,
    name: str,
) -> list[Question]:
    """Questions about some of these segments.

    Args:
        name: where they are from, for complaints.

    Raises:
        BadInput: they are too few.
    """
    pool = PoolView([segment.digest for segment in segments], np.zeros((len(segments), 1)))
    # int[Q, 2] or int[Q, 1]: the numbers of each question's segments.
    if config.feedback.question == "compare":
        numbers = choose_pairs("uniform", count, pool, rng)
    else:
        numbers = choose_singles(count, pool, rng)[:, None]
    if len(numbers) < count:
        raise BadInput(f"{name} gives only {len(numbers)} different questions; ask fewer")
    questions = []
    for segment_numbers in numbers:
        of_question = tuple(segments[number] for number in segment_numbers)
        questions.append(Question(config.feedback.question, of_question, recipe.goal, config.feedback.question_levels))
    return questions


def _random_play(recipe: ControlRecipe, config: LearnedConfig, count: int, rng: np.random.Generator) -> list[Segment]:
    """Segments of random actions, with the environment's own rewards."""
    make = env_maker(recipe, config.shown_size(None))
    envs = FrameVectorEnv(make, ENVS, episode_seeds(recipe.seed), frames=True)
    length = config.segment
    envs.action_space.seed(recipe.seed)
    try:
        envs.reset()
        segments: list[Segment] = []
        while len(segments) < count:
            frames = []
            rewards = []
            ended = []
            for _ in range(STEPS_PER_SEGMENT * length):
                actions = np.stack([envs.action_space.sample() for _ in range(ENVS)])
                step = envs.step(actions)
                assert step.frames is not None, "they are rendered at every step"
                frames.append(step.frames.copy())
                rewards.append(step.rewards)
                ended.append(step.ended)
            # A few segments of this stretch of play, at random places, none across the end of an episode.
            for start, env in whole_segments(np.stack(ended), length, ENVS // 2, rng):
                steps = range(start, start + length)
                segment_frames = np.stack([frames[step_number][env] for step_number in steps])
                segment_rewards = np.array([rewards[step_number][env] for step_number in steps], np.float32)
                segments.append(Segment(segment_frames, segment_rewards))
        return segments[:count]
    finally:
        envs.close()
