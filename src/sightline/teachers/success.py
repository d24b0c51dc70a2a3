"""People say of frames or episodes of a data set whether the goal is reached, without seeing any reward.

What is asked is spread evenly over the deciles of the reward and the thirds of the episodes, in an order drawn at
random; a tenth comes twice, so that it is seen whether a person says the same again. Equal pictures are asked about
once. Answers are kept in the data set's label store, under each person's name, and written as a table beside it
(`datasets/human_labels.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.datasets.human_labels import FILE, HumanLabel, labels_by_frame, write_human_labels
from sightline.datasets.pictures import LABELLED, UNLABELLED, write_labelled_table
from sightline.datasets.reading import LABELS, read_dataset
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Outcome, Question, RecordedTeacher, Segment
from sightline.teachers.page import check_person, serve_store
from sightline.teachers.queue import SUCCESS

DECILES, THIRDS = 10, 3
REPEATED = 10
"""One question in so many is asked again."""
FRAMES_SHOWN = 16
"""Frames of an episode that are shown, the last of them at its end."""


@dataclass(frozen=True)
class _Row:
    """A state of a data set, by its episode and step; whether the environment calls it a success, and the episode."""

    source: str
    episode: int
    step: int
    steps: int
    reward: float
    goal: str
    success: bool | None = None
    succeeded: bool | None = None


def serve_success(
    folder: Path,
    who: str,
    port: int,
    say: Callable[[str], None],
    count: int,
    episodes: bool = False,
    goal: str | None = None,
    camera: str | None = None,
    seed: int = 0,
) -> None:
    """Serve the label page with questions about a data set until Ctrl-C, and write what was answered.

    Args:
        who: the person's name; several people answer the same questions, each under a name of their own.
        count: questions, besides those that come twice; at most one for each frame or episode.
        episodes: ask about whole episodes instead of frames.
        goal: in words; None: each episode's own sentence.
        seed: of the choice and order.

    Raises:
        BadInput: there is no such data set, or no goal.
    """
    check_person(who)
    rows = list(_rows(folder, goal))
    chosen = choose([row for row in rows if row.step == row.steps - 1] if episodes else rows, count, seed)
    with LabelStore(folder / LABELS) as store:
        asked = _ask(store, folder, who, chosen, episodes, camera, seed)
        say(f"{len(chosen)} questions, of which {asked - len(chosen)} come twice")
        try:
            serve_store(store, who, port, say, [_signature(who, again) for again in (False, True)])
        finally:
            say(f"answers are in {write_answers(folder, store, rows)}")


def _rows(folder: Path, goal: str | None) -> Iterator[_Row]:
    """The states of a data set, with the reward by which they are spread: that of the first reward model, or else the
    environment's own."""
    for episode in read_dataset(folder, frames=False):
        rewards = next(iter(episode.rewards.values()), episode.env_reward)
        words = goal or episode.instruction
        if not words:
            raise BadInput(f"episode {episode.index} of '{folder}' has no sentence; say the goal: --goal \"…\"")
        for step in range(episode.steps):
            reward = math.nan if rewards is None else float(rewards[step])
            success = None if episode.success is None else bool(episode.success[step])
            place = (episode.source, episode.index, step, episode.steps)
            yield _Row(*place, reward, words, success, episode.succeeded)


def choose(rows: Sequence[_Row], count: int, seed: int) -> list[_Row]:
    """Choose rows evenly from the deciles of their reward and the thirds of their episodes, in random order.

    Equal rewards are spread over deciles by chance.
    """
    draw = np.random.default_rng([seed, 0])
    order = draw.permutation(len(rows))
    rewards = np.array([rows[place].reward for place in order])
    ranks = np.empty(len(rows), np.int64)
    ranks[np.argsort(rewards, kind="stable")] = np.arange(len(rows))
    strata: dict[tuple[int, int], list[_Row]] = {}
    for place, rank in zip(order, ranks, strict=True):
        row = rows[place]
        stratum = (int(rank * DECILES // len(rows)), row.step * THIRDS // row.steps)
        strata.setdefault(stratum, []).append(row)
    # One of each stratum after the other, until there are enough or none is left.
    chosen: list[_Row] = []
    while len(chosen) < min(count, len(rows)):
        for stratum in draw.permutation(len(strata)):
            members = list(strata.values())[stratum]
            if members and len(chosen) < count:
                chosen.append(members.pop())
    return [chosen[place] for place in draw.permutation(len(chosen))]


def _signature(who: str, again: bool) -> str:
    """Signature of a person who is asked for success, by which each has answers of their own."""
    return f"{SUCCESS}{who}{', again' if again else ''}"


def _ask(
    store: LabelStore, folder: Path, who: str, chosen: Sequence[_Row], episodes: bool, camera: str | None, seed: int
) -> int:
    """Put the questions up that this person has not answered yet; returns how many there are in all."""
    shown = _shown(folder, chosen, episodes, camera)
    draw = np.random.default_rng([seed, 1])
    order = [(place, False) for place in range(len(chosen))]
    for place in range(0, len(chosen), REPEATED):
        # Somewhere behind the first time.
        first = order.index((place, False))
        order.insert(int(draw.integers(first + 1, len(order) + 1)), (place, True))
    for place, again in order:
        teacher = RecordedTeacher(f"human {who}", _signature(who, again))
        row = chosen[place]
        question = _question(row, shown[place])
        if store.find(question, teacher.signature) is None:
            store.wait_for([question], teacher, Context(folder.resolve().name, row.source, _key(row)))
    return len(order)


def _shown(folder: Path, chosen: Sequence[_Row], episodes: bool, camera: str | None) -> list[list[Picture]]:
    """Of each row one frame, or some of its episode; as PNGs, since all are in memory until they are in order."""
    places: dict[int, list[int]] = {}
    for place, row in enumerate(chosen):
        places.setdefault(row.episode, []).append(place)
    pictures: dict[int, list[Picture]] = {}
    for episode in read_dataset(folder, camera):
        for place in places.get(episode.index, ()):
            row = chosen[place]
            assert episode.frames is not None, "frames are read"
            steps = [row.step]
            if episodes:
                steps = np.unique(np.linspace(0, row.step, FRAMES_SHOWN).round().astype(int)).tolist()
            pictures[place] = [Picture(episode.frames[step]).packed() for step in steps]
        if len(pictures) == len(chosen):
            break
    return [pictures[place] for place in range(len(chosen))]


def _question(row: _Row, pictures: Sequence[Picture]) -> Question:
    frames = np.stack([picture.pixels for picture in pictures])
    segment = Segment(frames, np.full(len(frames), np.nan, np.float32))
    return Question("rate", (segment,), (row.goal,), levels=2)


def _key(row: _Row) -> int:
    """Episode and step in one number, as a label's step."""
    return row.episode * 2**32 + row.step


def write_answers(folder: Path, store: LabelStore, rows: Sequence[_Row]) -> Path:
    """Write all answers of all people beside a data set; beside a table like vlmrm's, one with a column of them.

    Raises:
        RunFailed: it cannot be written.
    """
    by_key = {_key(row): row for row in rows}
    labels: list[HumanLabel] = []
    for stored in store.labels():
        row = by_key.get(stored.context.step or 0)
        if not stored.signature.startswith(SUCCESS) or row is None:
            continue
        outcome = stored.answer.outcome
        if outcome not in (Outcome.VALUE, Outcome.UNSURE):
            continue
        is_episode = len(store.frame_files(stored.segments[0])) > 1
        labels.append(
            HumanLabel(
                source=row.source,
                episode=row.episode,
                step=row.step,
                value=stored.answer.value if outcome is Outcome.VALUE else None,
                is_episode=is_episode,
                rater=str(stored.context.origin.get("who", "")),
                again=stored.signature.endswith(", again"),
                seconds=stored.answer.seconds,
                success=row.succeeded if is_episode else row.success,
            )
        )
    try:
        # A table of vlmrm's with labels of others is left as it is.
        is_ours = (folder / FILE).is_file() or not (folder / LABELLED).is_file()
        file = write_human_labels(folder, labels)
        if (folder / UNLABELLED).is_file() and is_ours:
            write_labelled_table(
                folder, {place: float(np.mean(said)) for place, said in labels_by_frame(labels).items()}
            )
        return file
    except OSError as error:
        raise RunFailed(f"the answers cannot be written beside '{folder}': {error.strerror or error}") from error
