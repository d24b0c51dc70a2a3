"""LeRobot's data sets: written, read, damaged, cut off, and made by others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.datasets import lerobot_writing
from sightline.datasets.films import FilmReader, FilmWriter
from sightline.datasets.lerobot import read_lerobot
from sightline.datasets.lerobot_statistics import FeatureStatistics
from sightline.datasets.lerobot_writing import LeRobotWriter
from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, RunFailed, SightlineWarning
from sightline.evaluation.pictures import score_files
from sightline.reward_lab.stored_episodes import stored_sources
from small_datasets import check_same, small_episode, smooth_frames

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

FILM = "videos/observation.images.main/chunk-000/file-000.mp4"
ROWS = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def write(folder: Path, episodes: list[StoredEpisode], **options: Any) -> Path:
    with LeRobotWriter(folder, **options) as writer:
        for episode in episodes:
            writer.add(episode)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with films, of three episodes; tests read it."""
    episodes = [small_episode(number, 4 + number) for number in range(3)]
    return write(tmp_path_factory.mktemp("written") / "set", episodes)


@pytest.fixture
def changed(written: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    import shutil

    return Path(shutil.copytree(written, tmp_path / "changed"))


def edit_info(folder: Path, **changes: Any) -> None:
    file = folder / "meta" / "info.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_table(file: Path, change: Any) -> None:
    parquet.write_table(change(parquet.read_table(file)), file)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        list(read_lerobot(folder, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- round trips -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(written: Path) -> None:
    for number, episode in enumerate(read_lerobot(written)):
        check_same(episode, small_episode(number, 4 + number), pixels=2.0)
    assert number == 2


def test_pictures_keep_every_pixel(tmp_path: Path) -> None:
    episodes = [small_episode(number, 3) for number in range(2)]
    folder = write(tmp_path / "set", episodes, pictures=True, camera="top")
    assert not (folder / "videos").exists()
    for read, episode in zip(read_lerobot(folder, camera="observation.images.top"), episodes, strict=True):
        check_same(read, episode)


def test_frames_are_those_of_their_steps(written: Path) -> None:
    """Of every frame the nearest one is that of its own step: none is a step too early or too late."""
    for number, episode in enumerate(read_lerobot(written)):
        whole = smooth_frames(5 + number, number).astype(float)
        assert episode.frames is not None and episode.reset_frame is not None
        for step, frame in enumerate([episode.reset_frame, *episode.frames]):
            assert np.abs(whole - frame).mean(axis=(1, 2, 3)).argmin() == step


def test_steps_are_spread_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_writing, "STEPS_PER_FILE", 6)
    episodes = [small_episode(number) for number in range(5)]  # files of 2, 2 and 1 episodes
    folder = write(tmp_path / "set", episodes)
    assert len(list(folder.glob("data/*/*.parquet"))) == len(list(folder.glob("videos/*/*/*.mp4"))) == 3
    for read, episode in zip(read_lerobot(folder), episodes, strict=True):
        check_same(read, episode, pixels=2.0)
    progress = parquet.read_table(folder / "words_progress.parquet")
    assert progress["index"].to_pylist() == list(range(20))


def test_episodes_may_be_of_states_alone(tmp_path: Path) -> None:
    bare = small_episode(frames=None, reset_frame=None, success=None, succeeded=None, rewards={}, reset_rewards={})
    folder = write(tmp_path / "set", [bare])
    (read,) = read_lerobot(folder, frames=False)
    check_same(read, bare)
    assert "holds no pictures, but observation.state, action" in refusal(folder)


def test_actions_and_states_of_any_width(tmp_path: Path) -> None:
    for width in (1, 5):
        actions = np.random.default_rng(0).normal(size=(4, width)).astype(np.float32)
        folder = write(tmp_path / str(width), [small_episode(actions=actions, frames=None, reset_frame=None)])
        (read,) = read_lerobot(folder, frames=False)
        assert read.actions is not None and np.array_equal(read.actions.reshape(4, -1), actions)


def test_states_that_are_pictures_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    pixels = np.zeros((5, 8, 8, 3), np.uint8)
    with pytest.warns(SightlineWarning, match="states of 8x8x3 are left out"):
        folder = write(tmp_path / "set", [small_episode(states=pixels[1:], reset_state=pixels[0])], pictures=True)
    (read,) = read_lerobot(folder)
    assert read.states is None and read.frames is not None


# -- what LeRobot relies on --------------------------------------------------------------------------------------------


def test_rows_are_of_the_state_before_each_action(written: Path) -> None:
    first = small_episode(0)
    assert first.reset_state is not None and first.states is not None
    rows = parquet.read_table(written / ROWS).slice(0, 4).to_pydict()
    assert np.array_equal(rows["observation.state"], np.concatenate([first.reset_state[None], first.states[:-1]]))
    assert np.array_equal(rows["action"], first.actions)
    assert np.array_equal(np.float32(rows["next.reward"]), first.env_reward)
    assert np.array_equal(np.float32(rows["next.reward.words"]), first.rewards["words"])
    assert rows["next.done"] == [False, False, False, True]
    assert rows["next.truncated"] == [False] * 4
    assert rows["next.success"] == [False, False, False, True]
    assert np.float32(rows["timestamp"]).tolist() == np.float32([0, 0.05, 0.1, 0.15]).tolist()


def test_progress_is_of_the_state_of_the_row(written: Path) -> None:
    """One row later than the reward of the step that led there; the reset's comes first."""
    table = parquet.read_table(written / "words_progress.parquet")
    names = ["index", "episode_index", "frame_index", "progress_sparse"]
    assert table.schema.names == names
    assert [str(kind) for kind in table.schema.types] == ["int64", "int64", "int64", "float"]
    expected: list[float] = []
    for number in range(3):
        episode = small_episode(number, 4 + number)
        expected += [0.25 + number, *episode.rewards["words"][:-1].tolist()]
    assert table["progress_sparse"].to_pylist() == pytest.approx(expected)
    assert table["frame_index"].to_pylist() == [*range(4), *range(5), *range(6)]


def test_schema_is_lerobots(written: Path) -> None:
    """The types of its files, column by column: LeRobot refuses others, or reads None."""
    rows = parquet.read_schema(written / ROWS)
    assert {name: str(rows.field(name).type) for name in rows.names} == {
        "observation.state": "fixed_size_list<element: float>[3]",
        "action": "int64",
        "next.reward": "float",
        "next.reward.words": "float",
        "next.done": "bool",
        "next.truncated": "bool",
        "next.success": "bool",
        "timestamp": "float",
        "frame_index": "int64",
        "episode_index": "int64",
        "index": "int64",
        "task_index": "int64",
    }
    episodes = parquet.read_schema(written / EPISODES)
    kinds = {name: str(episodes.field(name).type) for name in episodes.names}
    assert {name: kinds[name] for name in kinds if not name.startswith(("final/", "reset/"))} == {
        "episode_index": "int64",
        "tasks": "list<element: string>",
        "length": "int64",
        "dataset_from_index": "int64",
        "dataset_to_index": "int64",
        "source": "string",
        "seed": "int64",
        "data/chunk_index": "int64",
        "data/file_index": "int64",
        "meta/episodes/chunk_index": "int64",
        "meta/episodes/file_index": "int64",
        "success": "bool",
        "quality_label": "string",
        "videos/observation.images.main/chunk_index": "int64",
        "videos/observation.images.main/file_index": "int64",
        "videos/observation.images.main/from_timestamp": "double",
        "videos/observation.images.main/to_timestamp": "double",
    }
    info = json.loads((written / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["splits"]) == ("v3.0", 20, {"train": "0:3"})
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 15, 3)
    # Every column is declared, and every feature that is no film has a column.
    assert set(info["features"]) - {"observation.images.main"} == set(rows.names)
    film = info["features"]["observation.images.main"]
    assert (film["dtype"], film["shape"], film["info"]["video.codec"]) == ("video", [32, 48, 3], "h264")
    assert parquet.ParquetFile(written / ROWS).num_row_groups == 3


def test_sentences_are_the_index_that_pandas_reads(written: Path) -> None:
    pandas = pytest.importorskip("pandas")
    tasks = pandas.read_parquet(written / "meta" / "tasks.parquet")
    assert tasks.index.tolist() == ["stand up", "sit down", ""] and tasks["task_index"].tolist() == [0, 1, 2]
    rows = pandas.read_parquet(written / ROWS)
    assert rows["task_index"].tolist() == [0] * 4 + [1] * 5 + [2] * 6


def test_labels_of_episodes(written: Path) -> None:
    episodes = parquet.read_table(written / EPISODES).to_pydict()
    assert episodes["success"] == [True, False, True]
    assert episodes["quality_label"] == ["successful", "suboptimal", "successful"]


@pytest.mark.parametrize(("succeeded", "word"), [(True, "successful"), (False, "failure"), (None, None)])
def test_quality_is_by_success_where_nobody_says(tmp_path: Path, succeeded: bool | None, word: str | None) -> None:
    with LeRobotWriter(tmp_path / "set") as writer:
        writer.add(small_episode(quality=None, succeeded=succeeded))
    assert [episode.quality for episode in read_lerobot(tmp_path / "set")] == [word]


def test_statistics_are_those_of_all_values(written: Path) -> None:
    statistics = json.loads((written / "meta" / "stats.json").read_text())
    rows = parquet.read_table(written / ROWS)
    states = np.array(rows["observation.state"].to_pylist())
    ours = statistics["observation.state"]
    assert ours["mean"] == pytest.approx(states.mean(axis=0)) and ours["std"] == pytest.approx(states.std(axis=0))
    assert ours["min"] == pytest.approx(states.min(axis=0)) and ours["max"] == pytest.approx(states.max(axis=0))
    assert ours["count"] == [15]
    picture = statistics["observation.images.main"]
    assert np.shape(picture["mean"]) == (3, 1, 1) and 0 < picture["mean"][0][0][0] < 1


def test_statistics_pass_over_what_is_no_number() -> None:
    statistics = FeatureStatistics()
    statistics.add(np.array([[1.0, np.nan], [3.0, np.nan]]))
    assert statistics.document(is_picture=False) is None  # of the second column nothing is known
    statistics.add(np.array([[np.nan, 4.0]]))
    document = statistics.document(is_picture=False)
    assert document is not None
    assert document["mean"] == [2.0, 4.0] and document["std"] == [1.0, 0.0] and document["q50"] == [2.0, 4.0]


# -- what cannot be written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reset_frame": None}, "the frame before the first is not known"),
        ({"reset_state": None}, "the state before the first is not known"),
        (
            {"frames": smooth_frames(4, 0, 31), "reset_frame": smooth_frames(1, 0, 31)[0]},
            "frames of 48x31 make no film",
        ),
        ({"rewards": {"a/b": np.zeros(4, np.float32)}}, "the reward 'a/b' needs a name of letters"),
        ({"rewards": {"words": np.zeros(3, np.float32)}}, "has 4 steps and 3 rows of next.reward.words"),
    ],
)
def test_what_makes_no_row_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=reason), LeRobotWriter(tmp_path / "set") as writer:
        writer.add(small_episode(**change))
    assert not (tmp_path / "set" / "meta").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"success": None}, "it has no next.success, which the episodes before have"),
        ({"rewards": {"words": np.zeros(4, np.float32), "more": np.zeros(4, np.float32)}}, "it has next.reward.more"),
        ({"states": np.zeros((4, 2)), "reset_state": np.zeros(2)}, r"its observation.state is float32\[2\], and that"),
    ],
)
def test_episodes_hold_what_the_first_one_holds(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """The episodes before are in the data set all the same."""
    writer = LeRobotWriter(tmp_path / "set", pictures=True)
    writer.add(small_episode(0))
    with pytest.raises(BadInput, match=reason):
        writer.add(small_episode(1, **change))
    writer.close()
    (read,) = read_lerobot(tmp_path / "set")
    check_same(read, small_episode(0))


def test_a_folder_that_holds_something_is_left_alone(written: Path) -> None:
    with pytest.raises(BadInput, match="is there already"):
        LeRobotWriter(written)


# -- cut off -----------------------------------------------------------------------------------------------------------

WRITES_FOR_EVER = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from sightline.datasets import lerobot_writing
from small_datasets import small_episode
lerobot_writing.STEPS_PER_FILE = {steps}
with lerobot_writing.LeRobotWriter(Path({folder!r})) as writer:
    for number in range(1000):
        writer.add(small_episode(number))
        print(number, flush=True)
"""


@pytest.mark.parametrize("steps", [8, 10_000])
def test_a_killed_process_leaves_whole_episodes(steps: int, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    paths = [str(Path(__file__).parent), str(Path(lerobot_writing.__file__).parents[2])]
    program = WRITES_FOR_EVER.format(paths=paths, folder=str(folder), steps=steps)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 4:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if steps > 1000:
        assert refusal(folder).endswith("its writing was cut off before the first were finished")
        return
    read = list(read_lerobot(folder))
    assert len(read) >= 4 and len(read) % 2 == 0  # two episodes are a file
    for number, episode in enumerate(read):
        check_same(episode, small_episode(number), pixels=2.0)


def test_an_episode_that_is_cut_off_takes_its_file_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_writing, "STEPS_PER_FILE", 8)
    writer = LeRobotWriter(tmp_path / "set")
    for number in range(3):
        writer.add(small_episode(number))
    monkeypatch.setattr(lerobot_writing.FilmWriter, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.add(small_episode(3))
    writer.close()
    assert [episode.index for episode in read_lerobot(tmp_path / "set")] == [0, 1]


def interrupt(*unused: object) -> None:
    raise KeyboardInterrupt


def test_a_film_that_was_not_written_is_no_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_writing.FilmWriter, "add", lambda *unused: None)
    with pytest.raises(RunFailed, match="holds 0 of 4 frames"), LeRobotWriter(tmp_path / "set") as writer:
        writer.add(small_episode(0))
    assert not (tmp_path / "set" / "meta").exists()


# -- damaged, or of others ---------------------------------------------------------------------------------------------


def test_no_data_set(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"'{tmp_path}' is no data set of LeRobot: it has no meta/info.json"


def test_another_version(changed: Path) -> None:
    edit_info(changed, codebase_version="v1.6")
    assert "is a LeRobotDataset v1.6, and v2.0 to v3.0 are read; LeRobot converts it" in refusal(changed)
    edit_info(changed, codebase_version="v4.0")
    assert "is a LeRobotDataset v4.0, and v2.0 to v3.0 are read; it is newer than" in refusal(changed)
    assert "converts" not in refusal(changed)
    edit_info(changed, codebase_version=None)
    assert "states no codebase_version" in refusal(changed)


@pytest.mark.parametrize("kind", ["JPEG", "bytes alone", "paths"])
def test_pictures_as_others_keep_them(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [small_episode()], pictures=True)
    (whole,) = read_lerobot(folder)
    assert whole.frames is not None and whole.reset_frame is not None
    cells: list[Any] = []
    for step, frame in enumerate([whole.reset_frame, *whole.frames[:-1]]):
        file = folder / f"{step}.png"
        Image.fromarray(frame).save(file, "JPEG" if kind == "JPEG" else "PNG", quality=95)
        of_kind = {
            "JPEG": {"bytes": file.read_bytes(), "path": "elsewhere.jpg"},
            "bytes alone": file.read_bytes(),
            "paths": {"bytes": None, "path": file.name},
        }
        cells.append(of_kind[kind])

    def replace(table: Any) -> Any:
        place = table.column_names.index("observation.images.main")
        return table.set_column(place, "observation.images.main", pyarrow.array(cells))

    edit_table(folder / ROWS, replace)
    (read,) = read_lerobot(folder)
    assert read.frames is not None
    assert np.abs(read.frames.astype(float) - whole.frames).mean() < (6 if kind == "JPEG" else 1e-9)
    (folder / "0.png").unlink()
    if kind == "paths":
        assert "frame 0 of episode 0" in refusal(folder) and "neither in its row nor in the folder" in refusal(folder)


def as_version_2(folder: Path, target: Path) -> Path:
    """A data set of ours laid out as LeRobot did before v3.0: files for each episode, which are listed as lines."""
    info = json.loads((folder / "meta" / "info.json").read_text())
    episodes = list(read_lerobot(folder))
    rows = parquet.read_table(folder / ROWS)
    lines = []
    for number, episode in enumerate(episodes):
        assert episode.frames is not None and episode.reset_frame is not None
        chunk = f"chunk-{number // 2:03d}"
        own = rows.filter(pyarrow.compute.equal(rows["episode_index"], number))
        film = target / "videos" / chunk / "observation.images.main" / f"episode_{number:06d}.mp4"
        table = target / "data" / chunk / f"episode_{number:06d}.parquet"
        for file in (film, table):
            file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(own, table)
        writer = FilmWriter(film, episode.frames.shape[1:], 20)
        writer.add(np.stack([episode.reset_frame, *episode.frames[:-1]]))
        writer.finish(episode.steps)
        lines.append({"episode_index": number, "tasks": [episode.instruction or ""], "length": episode.steps})
    (target / "meta").mkdir()
    (target / "meta" / "episodes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    info |= {
        "codebase_version": "v2.1",
        "chunks_size": 2,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (target / "meta" / "info.json").write_text(json.dumps(info))
    return target


def test_version_2_is_read(written: Path, tmp_path: Path) -> None:
    folder = as_version_2(written, tmp_path / "old")
    for old, new in zip(read_lerobot(folder), read_lerobot(written), strict=True):
        assert (old.index, old.steps, old.instruction, old.fps) == (new.index, new.steps, new.instruction, new.fps)
        for name in ("actions", "env_reward", "success", "reset_state"):
            assert np.array_equal(getattr(old, name), getattr(new, name))
        assert old.frames is not None and new.frames is not None and not old.knows_last_state
        assert np.abs(old.frames[:-1].astype(float) - new.frames[:-1]).mean() < 2
        assert np.array_equal(old.frames[-1], old.frames[-2])  # the last state is not known
    episodes = folder / "meta" / "episodes.jsonl"
    lines = episodes.read_text()
    episodes.write_text(lines.splitlines()[0])
    assert "counts 3 episodes, and there are 1" in refusal(folder)
    episodes.write_text("[]")
    assert "is no episode" in refusal(folder)
    episodes.write_text(lines)
    (folder / "data" / "chunk-001" / "episode_000002.parquet").unlink()
    assert "there is no file 'data/chunk-001/episode_000002.parquet'" in refusal(folder)
    episodes.unlink()
    assert "there is no meta/episodes.jsonl" in refusal(folder)


@pytest.mark.parametrize(
    "change", [{"fps": "fast"}, {"fps": 0}, {"features": {"action": {}}}, {"total_episodes": None}]
)
def test_damaged_info(changed: Path, change: dict[str, Any]) -> None:
    edit_info(changed, **change)
    assert "is damaged" in refusal(changed)


def test_other_cameras(changed: Path) -> None:
    assert refusal(changed, camera="wrist").endswith("has no camera 'wrist', but main")
    info = json.loads((changed / "meta" / "info.json").read_text())
    more = {"observation.images.wrist": info["features"]["observation.images.main"]}
    edit_info(changed, features=info["features"] | more)
    assert refusal(changed).endswith("has 2 cameras; say which: main, wrist")
    assert "no videos/observation.images.wrist/chunk_index" in refusal(changed, camera="wrist")
    assert len(list(read_lerobot(changed, camera="main"))) == 3
    # Scoring asks for the camera, too.
    with pytest.raises(BadInput, match="say which: main, wrist"):
        score_files([changed], ["a pole"], [], None, "bundled")
    assert len(score_files([changed], ["a pole"], [], None, "bundled", camera="main").rows) == 15
    with pytest.raises(BadInput, match="no data set is named"):
        score_files([next(changed.rglob("*.mp4"))], ["a pole"], [], None, "bundled", camera="main")


def test_a_missing_column(changed: Path) -> None:
    edit_table(changed / ROWS, lambda table: table.drop_columns(["action"]))
    assert "has no column action, which meta/info.json declares" in refusal(changed)


def test_single_numbers_may_stand_in_lists(changed: Path) -> None:
    def in_lists(table: Any) -> Any:
        for name in ("next.reward", "next.done", "next.reward.words"):
            cells = [[value] for value in table[name].to_pylist()]
            table = table.set_column(table.column_names.index(name), name, pyarrow.array(cells))
        return table

    whole = list(read_lerobot(changed))
    edit_table(changed / ROWS, in_lists)
    for read, before in zip(read_lerobot(changed), whole, strict=True):
        check_same(read, before)
        assert np.array_equal(read.rewards["words"], before.rewards["words"])


def test_rows_of_several_lengths_are_refused(changed: Path) -> None:
    """Also where all together come out even: 2, 4, 2, 4 numbers of 4 steps."""

    def ragged(table: Any) -> Any:
        cells = [[0.0] * (2 if row % 2 else 4) for row in range(len(table))]
        return table.set_column(
            table.column_names.index("observation.state"), "observation.state", pyarrow.array(cells)
        )

    edit_table(changed / ROWS, ragged)
    assert "the column observation.state of episode 0" in refusal(changed)
    assert "rows of several lengths" in refusal(changed)


def test_several_rewards_of_a_step_are_refused(changed: Path) -> None:
    def doubled(table: Any) -> Any:
        cells = [[value, value] for value in table["next.reward"].to_pylist()]
        return table.set_column(table.column_names.index("next.reward"), "next.reward", pyarrow.array(cells))

    edit_table(changed / ROWS, doubled)
    assert "holds 2 numbers a step, and one is read" in refusal(changed)


def test_frames_a_second_that_are_not_whole_are_named(tmp_path: Path) -> None:
    with pytest.warns(SightlineWarning, match=r"12\.5 frames a second are written as 12"):
        write(tmp_path / "set", [small_episode(fps=12.5)])


def test_empty_cells(changed: Path) -> None:
    nothing = pyarrow.nulls(15, pyarrow.float32())
    edit_table(changed / ROWS, lambda table: table.set_column(2, "next.reward", nothing))
    assert "has empty cells in its column next.reward" in refusal(changed)


def test_missing_rows_and_episodes(changed: Path) -> None:
    edit_table(changed / ROWS, lambda table: table.slice(0, 14))
    read = read_lerobot(changed)
    assert next(read).index == 0 and next(read).index == 1
    with pytest.raises(BadInput, match=r"episode 2 .* has 6 steps, and .* holds 5 of them"):
        next(read)
    edit_info(changed, total_episodes=4)
    edit_table(changed / EPISODES, lambda table: table.slice(0, 2))
    assert "counts 4 episodes, and there are 2" in refusal(changed)


def test_episodes_that_info_does_not_count_yet_are_left_out(changed: Path) -> None:
    """A process that is killed may have moved their files to their places."""
    edit_info(changed, total_episodes=2)
    assert [episode.index for episode in read_lerobot(changed)] == [0, 1]


def test_frames_are_skipped_and_found_again(written: Path) -> None:
    film = FilmReader(written / FILM)
    whole = film.take(0, 15)
    for first, count in ((4, 5), (12, 2), (3, 1)):  # forwards, and back
        assert np.array_equal(film.take(first, count), whole[first : first + count])
    film.close()


def test_a_film_that_is_short_or_none(changed: Path) -> None:
    film = changed / FILM
    other = lerobot_writing.FilmWriter(film, (32, 48, 3), 20)
    other.add(smooth_frames(11, 0))
    other.close()
    assert "ends after 11 frames, and 15 are wanted of it" in refusal(changed)
    film.write_bytes(b"no film")
    assert "cannot be read as a film" in refusal(changed)
    film.unlink()
    assert f"there is no file '{FILM}'" in refusal(changed)


def test_frames_of_another_size(changed: Path) -> None:
    other = lerobot_writing.FilmWriter(changed / FILM, (32, 32, 3), 20)
    other.add(smooth_frames(15, 0, 32, 32))
    other.close()
    assert "has frames of 32x32, and meta/info.json declares [32, 48, 3]" in refusal(changed)


def test_a_damaged_table(changed: Path) -> None:
    (changed / ROWS).write_bytes((changed / ROWS).read_bytes()[:300])
    assert f"'{changed / ROWS}' is no Parquet file, or damaged" in refusal(changed)


def test_a_path_that_leads_elsewhere(changed: Path, written: Path) -> None:
    edit_info(changed, data_path=f"{written}/data/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.parquet")
    assert "there is no file" in refusal(changed)


def test_a_data_set_of_others(changed: Path) -> None:
    """Without columns of ours the last state is not known: the row before stands for it, once more."""
    edit_table(
        changed / EPISODES,
        lambda table: table.drop_columns(
            [name for name in table.column_names if name.startswith(("final/", "reset/")) or name in ("source", "seed")]
        ),
    )
    ours = small_episode(0)
    read = next(read_lerobot(changed))
    assert (read.source, read.seed, read.reset_rewards) == ("dataset", None, {})
    assert read.states is not None and ours.states is not None and read.frames is not None
    assert np.array_equal(read.states[:3], ours.states[:3]) and np.array_equal(read.states[3], ours.states[2])
    assert np.array_equal(read.frames[3], read.frames[2])
    assert np.array_equal(read.rewards["words"], ours.rewards["words"])


def test_success_of_the_episode_alone_is_that_of_its_end(changed: Path) -> None:
    info = json.loads((changed / "meta" / "info.json").read_text())
    edit_info(changed, features={name: of for name, of in info["features"].items() if name != "next.success"})
    edit_table(changed / ROWS, lambda table: table.drop_columns(["next.success"]))
    read = next(read_lerobot(changed))
    assert read.success is not None and read.success.tolist() == [False, False, False, True]


def test_quality_is_the_word_of_the_data_set(changed: Path) -> None:
    assert [episode.quality for episode in read_lerobot(changed)] == ["successful", "suboptimal", "successful"]
    words = pyarrow.array(["suboptimal", None, "so-so"])
    edit_table(
        changed / EPISODES,
        lambda table: table.set_column(table.column_names.index("quality_label"), "quality_label", words),
    )
    assert [episode.quality for episode in read_lerobot(changed)] == ["suboptimal", None, "so-so"]
    lines: list[str] = []
    stored_sources(changed, None, lines.append)
    (line,) = lines
    assert line.endswith("is none of failure, suboptimal, successful, and is left out: 1 ('so-so')")


def test_sentences_by_their_numbers(changed: Path) -> None:
    edit_table(changed / EPISODES, lambda table: table.drop_columns(["tasks"]))
    assert [episode.instruction for episode in read_lerobot(changed)] == ["stand up", "sit down", None]
    (changed / "meta" / "tasks.parquet").unlink()
    with pytest.warns(SightlineWarning, match=r"no meta/tasks.parquet that can be read: .* without words"):
        assert [episode.instruction for episode in read_lerobot(changed)] == [None] * 3


def test_several_sentences_are_none(changed: Path) -> None:
    edit_table(
        changed / EPISODES,
        lambda table: table.set_column(1, "tasks", pyarrow.array([["reach", "lift"], ["sit down"], [""]])),
    )
    with pytest.warns(SightlineWarning, match="has 2 tasks; it is read without words"):
        assert [episode.instruction for episode in read_lerobot(changed)] == [None, "sit down", None]
