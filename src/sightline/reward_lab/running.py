"""The lab: rewards side by side on one set of episodes, before any of them is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.config.decoding import decoded
from sightline.datasets.human_labels import read_human_labels
from sightline.datasets.pictures import has_episodes
from sightline.envs.tasks import find_task
from sightline.errors import BadInput, one_of, why_unreadable
from sightline.evaluation.human_success import human_success
from sightline.reports.lab_page import write_lab_page
from sightline.reward_lab.alterations import Alteration, paraphrased, seen_otherwise, sensitivity_to
from sightline.reward_lab.contenders import Contender, contenders, load_task
from sightline.reward_lab.features import FeatureStore
from sightline.reward_lab.figures import figures, frame_rows
from sightline.reward_lab.frame_file import FrameFile
from sightline.reward_lab.gate import NONSENSE
from sightline.reward_lab.instructions import Instructions
from sightline.reward_lab.measures import OF_FRAMES
from sightline.reward_lab.measures.controls import control_difference
from sightline.reward_lab.measures.epic import TransitionReward
from sightline.reward_lab.measures.resampling import RESAMPLES
from sightline.reward_lab.measures.sensitivity import relative_change
from sightline.reward_lab.measures.success_detection import auroc
from sightline.reward_lab.measures.table import ScoredFrames
from sightline.reward_lab.pictures import labelled_pictures, sorted_pictures, video
from sightline.reward_lab.scoring import LabScores, ReadyReward, build_rewards, control_name, score
from sightline.reward_lab.sources import (
    Source,
    beside_the_goal,
    random_play,
    ranked,
    scripted_play,
    shown_goals,
    state_sweep,
    states_of_file,
    trained_play,
)
from sightline.reward_lab.stored_episodes import stored_sources
from sightline.reward_lab.stored_pairs import StoredPairs, preference_accuracy, read_pairs
from sightline.reward_lab.transitions import TrueReward, check_against_own, epic_by_transitions
from sightline.rewards.base import RewardModel
from sightline.runs.files import write_document
from sightline.runs.folder import open_run
from sightline.runs.temporary import TemporaryFolder

MOST_IN_FULL = 12
"""Rewards beyond which only the chief measures are taken, and no controls: a sweep has many rewards, and wants the best
of them."""
DRAWS_OF_SWEEP = 300
"""Draws of episodes for the intervals of so many rewards; those of few have `RESAMPLES`."""
CONTROLS = ("shuffled", "blank")
SMALL_CHANGES = ("same", "jpeg", "halved")
"""Changes of frames by which a reward should hardly change, beside the shift by one pixel."""
CHIEF_MEASURES = {name: OF_FRAMES[name] for name in ("spearman", "epic", "auroc")}
PLAY = ("random", "scripted", "states", "goal")
"""Kinds of play: at random, by the environment's own script, states of the task's grid, those that show its goal."""
WHAT_LACKS = {
    "scripted": "no script that plays it (oracle() or solution())",
    "states": "no grid of its states (--states FILE names some)",
    "goal": "no states that show its goal (--goal-pictures DIR shows some)",
}
"""What an environment does not have without a kind of play."""
SHOWN_GOALS = 64
"""States that show the goal."""
EPISODES = 10
"""Episodes of each kind of play."""
HALF = 0.5
"""Share of random actions in play that is to be half done."""
FEATURES = "features"
FRAMES = "frames"
RESULT = "lab.json"
PAGE = "lab.html"

Show = Callable[[str, int], None]


@dataclass(frozen=True)
class LabData:
    """What rewards are judged on.

    Attributes:
        episodes: of each kind of play; None: ten, or none where there are files.
        play: kinds of play, of `PLAY`.
        seed: of all chance.
        runs: run folders, whose policies play too, and once more with half of their actions drawn at random.
        pictures: folder of pictures with a CSV file; a data set of pictures, too.
        goal_pictures, other_pictures: folders of pictures that show the goal, and that do not.
        video: a file, whose ground truth is progress.
        labels: a label store, or a run that has one, whose pairs were judged by somebody.
        dataset: a data set of episodes, such as `sightline collect` writes.
        camera: which of several cameras of the data set.
        states: a file of states that the environment is put into.
        trust: whether code that the runs' recipes name may be imported.

    Raises:
        BadInput: a camera without a data set, or goal and other pictures in one folder.
    """

    episodes: int | None = None
    play: tuple[str, ...] = PLAY
    seed: int = 0
    runs: tuple[Path, ...] = ()
    pictures: Path | None = None
    goal_pictures: Path | None = None
    other_pictures: Path | None = None
    video: Path | None = None
    labels: Path | None = None
    dataset: Path | None = None
    camera: str | None = None
    states: Path | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        if self.camera is not None and self.dataset is None:
            raise BadInput("--camera chooses one of the cameras of --dataset, and no data set is named")
        folders = [folder.resolve() for folder in (self.goal_pictures, self.other_pictures) if folder is not None]
        if len(folders) == 2 and folders[0] == folders[1]:
            raise BadInput("--goal-pictures and --other-pictures are the same folder; a picture is one or the other")

    def sources(self, reward: ReadyReward, pairs: StoredPairs | None, warn: Callable[[str], None]) -> list[Source]:
        """Where the episodes come from.

        Args:
            reward: one of those that are judged, which says the environment.
            pairs: those of `labels`.
        """
        env = reward.contender.recipe.env
        task = find_task(env)
        sources: list[Source] = []
        if self.pictures is not None:
            # What `sightline collect --format pictures` writes, and vlmrm, is a data set as well.
            if has_episodes(self.pictures):
                sources += stored_sources(self.pictures, None, warn)
            else:
                sources.append(labelled_pictures(self.pictures, warn))
        if self.goal_pictures is not None:
            sources.append(sorted_pictures(self.goal_pictures, "--goal-pictures", True, warn))
        if self.other_pictures is not None:
            sources.append(sorted_pictures(self.other_pictures, "--other-pictures", False, warn))
        if self.video is not None:
            sources.append(video(self.video))
        if pairs is not None:
            sources.append(pairs.source)
        if self.dataset is not None:
            sources += stored_sources(self.dataset, self.camera, warn)
        # Pictures of the goal alone need others, which are those of play.
        has_files = bool(sources) and (self.goal_pictures is None or self.other_pictures is not None)
        episodes = self.episodes
        if episodes is None:
            episodes = 0 if has_files else EPISODES
        if episodes:
            played = [ranked(source, task) for source in play_sources(reward, self.play, episodes, self.seed)]
            # Beside pictures of the goal, what play shows is none unless the environment says so.
            takes_place_of_others = self.goal_pictures is not None and self.other_pictures is None
            sources += [beside_the_goal(source) for source in played] if takes_place_of_others else played
        elif self.episodes is None and set(self.play) != set(PLAY):
            warn("nothing is played, since files are judged: --play is for --episodes N beside them")
        if self.states is not None:
            sources.append(states_of_file(task, self.states, self.seed, warn))
        for folder in self.runs:
            run = open_run(folder)
            count = episodes or EPISODES
            sources.append(ranked(trained_play(run, env, count, self.seed, self.trust), task))
            half_random = trained_play(run, env, count, self.seed, self.trust, HALF)
            sources.append(ranked(half_random, task, "suboptimal"))
        return sources


def run_lab(
    task: str,
    overrides: Sequence[str],
    rewards: Mapping[str, Sequence[str]],
    sentences: Sequence[str] = (),
    data: LabData | None = None,
    models: Mapping[str, RewardModel] | None = None,
    out: Path | None = None,
    show: Show = lambda source, frames: None,
    paraphrases: Sequence[str] = (),
    views: Mapping[str, Sequence[str]] | None = None,
    true_reward: str | TransitionReward | None = None,
) -> dict[str, Any]:
    """Judge rewards on episodes of a task; the result is plain data.

    Args:
        task, overrides, rewards, sentences: see `contenders`.
        data: what they are judged on.
        models: name -> a reward model that is compared with them, as it is.
        out: folder that keeps the result, and the features for the next call; None keeps nothing.
        show: see `score`.
        paraphrases: other words for the goal, by which the rewards in words should hardly change.
        views: name -> `key=value` of env_options, such as another camera, by which rewards should hardly change.
        true_reward: the ground truth of any transition; see `TrueReward`.

    Raises:
        BadInput, RunFailed: in one line.
    """
    truth = None
    if true_reward is not None:
        truth = TrueReward.of(true_reward)
    compared = compared_rewards(task, overrides, rewards, sentences, models or {})
    warnings: list[str] = []
    with _folder(out) as folder:
        in_full = len(compared) <= MOST_IN_FULL
        ready = build_rewards(compared, NONSENSE[0] if in_full else "")
        store = FeatureStore(folder / FEATURES)
        data = data or LabData()
        pairs = None
        if data.labels is not None:
            pairs = read_pairs(data.labels, data.trust, warnings.append)
        sources = data.sources(ready[0], pairs, warnings.append)
        instructions = None
        if data.dataset is not None and in_full:
            of_recipes = {contender.name for contender in compared if contender.model is None}
            in_words = [reward for reward in ready if reward.name in of_recipes]
            instructions = Instructions(data.dataset, in_words, warnings.append)
            ready += instructions.rewards
        alterations: list[Alteration] = []
        if in_full:
            alterations = _alterations(compared, ready, paraphrases, views or {})
        elif paraphrases or views:
            warnings.append(f"paraphrases and views are for {MOST_IN_FULL} rewards at most, and were left out")
        ready += [alteration.reward for alteration in alterations]
        frame_file = FrameFile(folder / FRAMES)
        (folder / FRAMES).unlink()  # it has no name any more, and is gone once it is closed, or this process is
        scores = score(ready, sources, store, show, in_full, frame_file if out is not None else None, truth is not None)
        document = _document(compared, scores, store, in_full)
        if pairs is not None:
            for name in document["rewards"]:
                accuracy = preference_accuracy(scores.of(name), pairs)
                document["rewards"][name]["preference_accuracy"] = accuracy.document()
        for name in document["rewards"]:
            margin = None if instructions is None else instructions.margin(name, scores)
            if margin is not None:
                document["rewards"][name]["confusion_margin"] = margin.document()
        for name in document["rewards"]:
            for kind in ("paraphrases", "views"):
                document["rewards"][name] |= {kind: sensitivity_to(kind, name, alterations, scores)}
        if truth is not None:
            check_against_own(truth, scores, warnings.append)
            for reward in ready:
                if reward.name in document["rewards"]:
                    discount = reward.contender.recipe.learner.gamma
                    distance = epic_by_transitions(reward.model, reward.name, scores, truth, discount)
                    document["rewards"][reward.name]["epic_of_transitions"] = distance.document()
        if data.dataset is not None and (said := read_human_labels(data.dataset)):
            document["people"] = asdict(human_success(said))
        document["warnings"] = list(dict.fromkeys([*warnings, *scores.warnings]))
        if sentences:
            document["ranking"] = ranking([contender.name for contender in compared], scores)
        # What is asked of one reward is found at once.
        if len(compared) == 1:
            document |= document["rewards"][compared[0].name]
        if out is not None:
            names = [contender.name for contender in compared]
            plots = figures(scores, names, find_task(ready[0].contender.recipe.env), sources)
            pictures = {}
            # Of rewards that read states alone there are none.
            if len(frame_file) == len(scores.frames.rewards):
                pictures = {row: frame_file[row] for row in frame_rows(plots)}
            document["page"] = str(write_lab_page(out / PAGE, task, document, plots, pictures))
            write_document(out / RESULT, document)
        frame_file.close()
    return document


def _alterations(
    compared: Sequence[Contender],
    ready: Sequence[ReadyReward],
    sentences: Sequence[str],
    views: Mapping[str, Sequence[str]],
) -> list[Alteration]:
    """Each reward that is compared, but not its controls, in other words and in other views."""
    names = {contender.name for contender in compared}
    own = [reward for reward in ready if reward.name in names]
    in_words = [reward for reward in own if reward.contender.model is None]
    return [*paraphrased(in_words, sentences), *seen_otherwise(own, views)]


def compared_rewards(
    task: str,
    overrides: Sequence[str],
    rewards: Mapping[str, Sequence[str]],
    sentences: Sequence[str],
    models: Mapping[str, RewardModel],
) -> list[Contender]:
    """All rewards that are compared: those of recipes, and models that are there already."""
    compared: list[Contender] = []
    if rewards or not models:
        compared = contenders(task, overrides, rewards, sentences)
    if not models:
        return compared
    recipe = load_task(task, overrides)
    taken = {contender.name for contender in compared}
    for name, model in models.items():
        if name in taken:
            raise BadInput(f"two rewards are called '{name}'; give each a name of its own")
        compared.append(Contender(name, recipe, model))
    return compared


def read_sentences(file: Path, option: str = "--sentences") -> tuple[str, ...]:
    """The lines of a text file, without empty ones.

    Args:
        option: that names it, for messages.

    Raises:
        BadInput: it cannot be read, or has none.
    """
    try:
        lines = decoded(file.read_bytes()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{option}: '{file}' cannot be read as text: {why_unreadable(error)}") from error
    sentences = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not sentences:
        raise BadInput(f"{option}: '{file}' holds no sentence; write one on each line")
    return sentences


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder of the call, which is removed if nobody wants it."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise BadInput(f"--out: '{out}' is a file; name a folder")
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    temporary = TemporaryFolder("lab")
    try:
        yield temporary.path
    finally:
        temporary.remove()


def play_sources(reward: ReadyReward, kinds: Sequence[str], episodes: int, seed: int) -> list[Source]:
    """What there is to play of a reward's environment, of the kinds that are wanted.

    Raises:
        BadInput: there is no such kind; or one was chosen, and the environment does not have it.
    """
    task = find_task(reward.contender.recipe.env)
    makers: dict[str, Callable[[], Source | None]] = {
        "random": lambda: random_play(task, episodes, seed),
        "scripted": lambda: scripted_play(task, reward.make, episodes, seed),
        "states": lambda: state_sweep(task, seed),
        "goal": lambda: shown_goals(task, SHOWN_GOALS, seed),
    }
    candidates = {kind: makers[one_of("--play", kind, makers)]() for kind in kinds}
    absent = [kind for kind, source in candidates.items() if source is None]
    # Of all kinds there is what there is.
    if absent and set(kinds) != set(PLAY):
        raise BadInput(f"--play {absent[0]}: '{task.name}' has {WHAT_LACKS[absent[0]]}; leave it out")
    return [source for source in candidates.values() if source is not None]


def _document(compared: Sequence[Contender], scores: LabScores, store: FeatureStore, in_full: bool) -> dict[str, Any]:
    frames = scores.frames
    rewards = {contender.name: _measures(contender, scores, in_full) for contender in compared}
    return {
        "frames": len(frames.rewards),
        "episodes": len(frames.sources),
        "embedded": store.embedded,
        "sources": {name: frames.sources.count(name) for name in dict.fromkeys(frames.sources)},
        "rewards": rewards,
    }


def ranking(names: Sequence[str], scores: LabScores) -> list[dict[str, Any]]:
    """Rewards by their AUROC on one half of the frames, best first, each with its AUROC on the other half.

    That is held out, since the best of many looks better than it is on the frames that it was chosen by.
    """
    frames = scores.frames
    # Every other episode of those with and without the goal is held out.
    is_held_out = np.zeros(len(frames.sources), bool)
    for reached in (True, False):
        is_held_out[np.flatnonzero(frames.successful == reached)[1::2]] = True
    rows = is_held_out[frames.episode]
    places = []
    for name in names:
        chosen_by = auroc(scores.of(name).select(~rows), resamples=0)
        held_out = auroc(scores.of(name).select(rows))
        places.append({"reward": name, "chosen_by": chosen_by.document(), "held_out": held_out.document()})
    return sorted(places, key=lambda row: -1.0 if row["chosen_by"]["value"] is None else -row["chosen_by"]["value"] - 1)


def _measures(contender: Contender, scores: LabScores, in_full: bool) -> dict[str, Any]:
    """What a reward is, and its measures: the chief ones, or all of them with its controls."""
    recipe = contender.recipe
    about: dict[str, Any] = {
        "kind": recipe.reward.kind if contender.model is None else type(contender.model).__name__,
        "goal": list(recipe.goal),
        "baseline": list(recipe.baseline),
        "failure": scores.failures.get(contender.name),
    }
    frames = scores.of(contender.name)
    rewards = frames.rewards[frames.answered]
    about["range"] = [float(rewards.min()), float(rewards.max())] if len(rewards) else None
    draws = RESAMPLES if in_full else DRAWS_OF_SWEEP
    measures = OF_FRAMES if in_full else CHIEF_MEASURES
    about |= {name: measure(frames, draws).document() for name, measure in measures.items()}
    if not in_full:
        return about
    changed = scores.changed[contender.name]
    about["noise"] = relative_change(frames, changed["shifted"]).document()
    about["sensitivity"] = {name: relative_change(frames, changed[name]).document() for name in SMALL_CHANGES}
    about["controls"] = _controls(contender.name, scores)
    about["by_source"] = {source: _in_short(frames.of_source(source)) for source in dict.fromkeys(frames.sources)}
    return about


def _controls(name: str, scores: LabScores) -> dict[str, Any]:
    """Measures of a reward that is shown other frames than it should, and of one with a goal that means nothing, and by
    how much the AUROC of the reward itself is higher."""
    rewards = {variant: scores.changed[name][variant] for variant in CONTROLS}
    if control_name(name) in scores.rewards:
        rewards["nonsense"] = scores.rewards[control_name(name)]
    frames = scores.of(name)
    controls = {}
    for control, values in rewards.items():
        difference = control_difference(frames, values).document()
        controls[control] = _in_short(frames.with_rewards(values)) | {"difference": difference}
    return controls


def _in_short(frames: ScoredFrames) -> dict[str, Any]:
    """The chief measures, without intervals."""
    return {name: measure(frames, 0).document() for name, measure in CHIEF_MEASURES.items()}
