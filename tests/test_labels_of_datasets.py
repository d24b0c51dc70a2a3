"""A teacher is asked about the frames of a data set, and a reward is fitted to its answers: no environment is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Finished
from sightline.control.offline_labelling import dataset_segments
from sightline.datasets.pictures import PictureWriter
from sightline.errors import BadInput
from sightline.labels.store import LabelStore
from sightline.labels.types import Outcome
from small_datasets import small_episode

TEACHER = ("reward.teacher.kind=scripted", "reward.segment=1", "reward.device=cpu")
Command = Callable[..., Finished]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with PictureWriter(tmp_path / "set") as writer:
        for number in range(6):
            writer.add(small_episode(number, 5, instruction="stand up"))
    return tmp_path / "set"


def test_pairs_of_a_data_set_are_judged(folder: Path, tmp_path: Path, sightline: Command) -> None:
    line = ("label", "run", tmp_path / "labels", "--dataset", folder, *TEACHER, "--questions", 12)
    done = sightline(*line)
    assert done.code == 0, done.err
    assert f"questions   12 of {folder}, 0 of them answered" in done.out
    with LabelStore(tmp_path / "labels", read_only=True) as store:
        labels = store.labels()
        frames = [store.segment(digest).frames for label in labels for digest in label.segments]
    assert len(labels) == 12 and {label.goal for label in labels} == {("stand up",)}
    assert {label.context.task for label in labels} == {"dataset"}
    for label in labels:  # the script knows the environment's own rewards, which the data set keeps
        first, second = label.true_returns
        assert label.answer.outcome is (Outcome.FIRST if first > second else Outcome.SECOND)
    pictures = [frame for number in range(6) for frame in small_episode(number, 5).frames]
    assert all(any(np.array_equal(shown[0], picture) for picture in pictures) for shown in frames)
    # The same command asks nothing twice, and a reward is fitted to what was said.
    assert "12 of them answered by this teacher already" in sightline(*line).out
    fitted = sightline("label", "fit", tmp_path / "labels", "goal=stand up", *TEACHER[1:], "--json")
    assert fitted.code == 0, fitted.err
    assert json.loads(fitted.out)["labels"] == 12


def test_segments_stay_within_an_episode(folder: Path) -> None:
    segments = dataset_segments(folder, None, 4, 100, np.random.default_rng(0))
    assert len(segments) == 6 * 2  # of five steps two segments of four begin
    expected = {small_episode(number, 5).frames[start : start + 4].tobytes() for number in range(6) for start in (0, 1)}
    assert {segment.frames.tobytes() for segment in segments} == expected
    with pytest.raises(BadInput, match=r"no episode of .* has 6 steps"):
        dataset_segments(folder, None, 6, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--questions", "500"], "different questions; ask fewer"),
        (["--dataset", "nowhere"], "there is no folder 'nowhere'"),
    ],
)
def test_bad_input(folder: Path, tmp_path: Path, sightline: Command, words: list[str], reason: str) -> None:
    done = sightline("label", "run", tmp_path / "labels", "--dataset", folder, *TEACHER, *words)
    assert (done.code, len(done.lines)) == (2, 1) and reason in done.err
    assert not (tmp_path / "labels").exists()


def test_several_sentences(tmp_path: Path, sightline: Command) -> None:
    with PictureWriter(tmp_path / "set") as writer:
        for number in range(2):
            writer.add(small_episode(number, 5))
    line = ("label", "run", tmp_path / "labels", "--dataset", tmp_path / "set", *TEACHER, "--questions", 2)
    assert "have no sentence, or several; say what to ask about: goal=…" in sightline(*line).err
    assert sightline(*line, "goal=stand").code == 0


def test_a_data_set_that_nobody_has_labelled(folder: Path, sightline: Command) -> None:
    done = sightline("label", "stats", folder)
    assert done.code == 2 and f"nobody has labelled '{folder}': sightline label serve {folder} --ask" in done.err
    done = sightline("label", "run", folder / "labels", "env=cartpole", "--camera", "side")
    assert done.code == 2 and "no data set is named" in done.err
