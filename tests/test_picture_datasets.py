"""Data sets of pictures: written, read, cut off, damaged, and made by vlmrm."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.datasets.human_labels import HumanLabel, read_human_labels, write_human_labels
from sightline.datasets.pictures import PictureWriter, has_episodes, read_pictures, write_labelled_table
from sightline.datasets.reading import read_dataset
from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, SightlineWarning
from small_datasets import check_same, small_episode, smooth_frames


def write(folder: Path, episodes: list[StoredEpisode]) -> Path:
    with PictureWriter(folder) as writer:
        for episode in episodes:
            writer.add(episode)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(BadInput) as caught:
        list(read_dataset(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    episodes = [small_episode(number, 3 + number) for number in range(3)]
    folder = write(tmp_path / "set", episodes)
    for read, episode in zip(read_dataset(folder), episodes, strict=True):
        check_same(read, episode)


def test_actions_of_any_width_and_what_is_unknown(tmp_path: Path) -> None:
    actions = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    bare = small_episode(
        **dict.fromkeys(("reset_frame", "states", "reset_state", "env_reward", "success", "succeeded", "seed", "fps")),
        actions=actions,
        rewards={},
        reset_rewards={},
    )
    (read,) = read_pictures(write(tmp_path / "set", [bare]))
    check_same(read, bare)
    assert read.actions is not None and read.actions.dtype == np.float32


def test_rows_are_those_of_vlmrm(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode(source="best of 4/2")])
    with (folder / "unlabelled_data.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:7] == ["checkpoint", "rollout", "step", "image_file_name", "obs_0", "obs_1", "obs_2"]
    assert [row["step"] for row in rows] == ["-1", "0", "1", "2", "3"]
    assert rows[2]["image_file_name"] == "best-of-4-2_0_1.png"
    episode = small_episode()
    assert episode.frames is not None and episode.states is not None
    assert np.array_equal(np.asarray(Image.open(folder / "img" / rows[2]["image_file_name"])), episode.frames[1])
    assert np.float32(rows[2]["obs_1"]) == episode.states[1, 1]


def test_a_table_of_vlmrm_with_labels_is_read(tmp_path: Path) -> None:
    frames = smooth_frames(4, 0)
    lines = ["checkpoint,rollout,step,image_file_name,obs_0,obs_1,human_label"]
    (tmp_path / "img").mkdir()
    for place, (rollout, step, label) in enumerate([(0, 0, "1.0"), (0, 1, ""), (1, 0, "0.0"), (1, 1, "0.5")]):
        name = f"m_{rollout}_{step}.png"
        Image.fromarray(frames[place]).save(tmp_path / "img" / name)
        lines.append(f"m,{rollout},{step},{name},{place},0.5,{label}")
    (tmp_path / "dataset.csv").write_text("\n".join(lines) + "\n")
    first, second = read_dataset(tmp_path)
    assert first.frames is not None and np.array_equal(first.frames, frames[:2])
    assert first.reset_frame is None and second.states is not None
    assert second.states.tolist() == [[2.0, 0.5], [3.0, 0.5]]
    assert first.human is not None and second.human is not None
    assert np.array_equal(first.human, [1, np.nan], equal_nan=True) and second.human.tolist() == [0.0, 0.5]
    (tmp_path / "dataset.csv").write_text("\n".join(lines).replace("0.5,1.0", "0.5,7"))
    assert "human_label is 7, and not from 0 to 1" in refusal(tmp_path)


def test_an_episode_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode(0), small_episode(1)])
    table = folder / "unlabelled_data.csv"
    whole = table.read_text().splitlines(keepends=True)
    for text in ("".join(whole[:-1]), "".join(whole)[:-60]):  # between two rows, and within one
        table.write_text(text)
        with pytest.warns(SightlineWarning, match="episode 1 .* was cut off"):
            (read,) = read_pictures(folder)
        check_same(read, small_episode(0))


@pytest.mark.parametrize("folder_of_pictures", ["", "img\\", "C:\\runs\\set\\img\\", "/home/anna/set/img/"])
@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8-sig"), (";", "utf-8"), ("\t", "utf-8-sig")])
def test_tables_that_other_programs_have_saved(
    folder_of_pictures: str, delimiter: str, encoding: str, tmp_path: Path
) -> None:
    episode = small_episode(instruction="stand up; then sit")
    folder = write(tmp_path / "set", [episode])
    table = folder / "unlabelled_data.csv"
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for row in rows[1:]:
        row[3] = folder_of_pictures + row[3]
    with table.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    (read,) = read_dataset(folder)
    check_same(read, episode)
    assert has_episodes(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("step,", "when,", 1), "has no column step, but checkpoint, rollout, when, image"),
        (lambda text: text.replace("rollout,step,", "a,b,", 1), "has no column rollout and no column step, but check"),
        (lambda text: text.replace("-1,", '"-1,5";', 1), "step is"),
        (lambda text: text.replace("random_0_2.png", "../elsewhere.png"), "there is no picture '../elsewhere.png'"),
        (lambda text: text.replace("random,0,1,", "random,0,7,"), "are not in the order of its steps"),
        (lambda text: text.replace("random,0,1,", "random,0,one,"), "step is 'one', which is no number"),
        (lambda text: text.replace("random,0,1,", "random,0,nan,"), "step is nan, which is no finite number"),
        (lambda text: text.replace("obs_1,", "obs_0,", 1), "has 2 columns 'obs_0'; rename or remove all but one"),
        (
            lambda text: text.replace("step,", "when,", 1).replace(",", ";"),
            "quality_label, reward.words (parted by semi",
        ),
        (lambda text: text.replace(",0,,stand up", ",2,,stand up", 1), "success is '2', and not 1 or 0"),
        (lambda text: text.replace(",0,,stand up", ",,,stand up", 1), "says success of 3 of its 4 steps"),
        (lambda text: text.replace("terminated", "won"), "ended as 'won', and not as terminated or truncated"),
        (lambda text: text.replace(",1,successful", ",maybe,successful"), "episode_success is 'maybe', and not 1 or 0"),
        (lambda text: text.replace("stand up,7,", "stand up,nan,"), "seed is nan"),
    ],
)
def test_damaged_tables(change: Any, reason: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode()])
    table = folder / "unlabelled_data.csv"
    table.write_text(change(table.read_text()))
    assert reason in refusal(folder)


def test_damaged_pictures(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode()])
    picture = folder / "img" / "random_0_1.png"
    Image.fromarray(smooth_frames(1, 0, 8, 8)[0]).save(picture)
    assert "has pictures of several sizes" in refusal(folder)
    picture.write_bytes(b"no picture")
    assert "cannot be read as a picture" in refusal(folder)


def test_what_makes_no_table_is_refused(tmp_path: Path) -> None:
    writer = PictureWriter(tmp_path / "set")
    with pytest.raises(BadInput, match="needs frames"):
        writer.add(small_episode(frames=None))
    writer.add(small_episode())
    with pytest.raises(BadInput, match="only some of the episodes have success"):
        writer.add(small_episode(success=None))
    with pytest.raises(BadInput, match="is there already"):
        PictureWriter(tmp_path / "set")


def test_no_data_set(tmp_path: Path) -> None:
    assert "holds neither meta/info.json (LeRobot) nor dataset.csv" in refusal(tmp_path)
    assert refusal(tmp_path / "none") == f"there is no folder '{tmp_path / 'none'}'"


def test_a_table_with_decimal_commas(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode(0, instruction="up, then down"), small_episode(1)])
    table = folder / "unlabelled_data.csv"
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    commas = [[re.sub(r"^(-?\d+)\.(\d+)$", r"\1,\2", cell) for cell in row] for row in rows]
    assert commas != rows
    with table.open("w", encoding="utf-8-sig", newline="") as file:
        file.write("sep=;\r\n")
        csv.writer(file, delimiter=";", lineterminator="\r\n").writerows(commas)
    first, second = read_dataset(folder)
    check_same(first, small_episode(0, instruction="up, then down"))
    check_same(second, small_episode(1))
    assert has_episodes(folder)
    # What people say is written beside it with commas, and so its numbers with points.
    write_labelled_table(folder, {(0, 1): 1.0})
    first, _ = read_dataset(folder)
    assert first.human is not None and first.human[1] == 1.0
    check_same(replace(first, human=None), small_episode(0, instruction="up, then down"))


def test_rewards_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    rewards = np.array([0, 1, np.nan, np.inf], np.float32)
    folder = write(tmp_path / "set", [small_episode(0), small_episode(1, env_reward=rewards)])
    with pytest.warns(SightlineWarning, match="reward of 2 of 8 steps is no finite number.* is step 2 of episode 1"):
        list(read_dataset(folder))


def test_pictures_have_no_names_of_cameras(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode(0)])
    with pytest.raises(BadInput, match="one camera, which has no name"):
        read_dataset(folder, "side")


def test_a_table_in_another_encoding(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode(instruction="größer")])
    table = folder / "unlabelled_data.csv"
    table.write_bytes(table.read_text(encoding="utf-8").encode("cp1252"))
    assert "is no text in UTF-8" in refusal(folder) and refusal(folder).endswith("save it as CSV in UTF-8")


def test_what_people_say_may_have_been_saved_by_a_spreadsheet(tmp_path: Path) -> None:
    label = HumanLabel("random", 0, 1, 0.5, False, "anna", True, 2.5)
    table = write_human_labels(tmp_path, [label])
    table.write_text("\ufeff" + table.read_text().replace(",", ";").replace(".", ","))
    assert read_human_labels(tmp_path) == [label]
