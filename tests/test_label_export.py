"""Export of labels to Parquet and to a data set, and the way back."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.errors import BadInput
from sightline.labels.exporting import DATA, export_labels
from sightline.labels.importing import import_labels
from sightline.labels.parquet import read_parquet
from sightline.labels.store import Context, LabelStore, StoredLabel
from sightline.labels.types import Answer, ModelCall, Outcome, Question, Segment, preference
from test_label_store import HERE, Judge, bomb, pair, segment

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

EXCHANGES = (
    ModelCall("describe", False, "what?", "two “poles”", 100, 20, 0.5, 0.01),
    ModelCall("label", True, "which?", "", error="no reply"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LabelStore]:
    """Labels of all kinds, by two teachers, from two runs; one was taken back."""
    with LabelStore(tmp_path / "labels") as opened:
        opened.record(pair(1), Judge(), Answer(Outcome.SECOND, 1.0, 0.75, "well", EXCHANGES, 1.5), HERE)
        opened.record(pair(1), Judge(), Answer(Outcome.FAILED, reason="no network"), HERE)
        opened.record(pair(2, "another goal"), Judge("b", "b v2"), Answer(Outcome.EQUAL, 0.5), Context("run 2", "t"))
        rated = Question("rate", (segment(8, 3, [1.0, np.nan, 2.0]),), ("a goal", "the same"), 4)
        opened.record(rated, Judge(), Answer(Outcome.VALUE, 2.0), replace(HERE, origin={"who": "Änne", "n": [1]}))
        opened.record(Question("score", (segment(9),), ("a goal",)), Judge(), Answer(Outcome.UNSURE), HERE)
        opened.retract(opened.record(pair(3), Judge(), preference(0.0), HERE))
        yield opened


def without_ids(labels: list[StoredLabel]) -> list[str]:
    """Everything else of them, as text, because NaN equals nothing."""
    return [repr(replace(label, id=0)) for label in labels]


def test_an_export_can_be_imported_elsewhere(store: LabelStore, tmp_path: Path) -> None:
    exported = export_labels(store, tmp_path / "some" / "labels.parquet")
    assert (exported.labels, exported.bytes) == (5, exported.path.stat().st_size)
    with LabelStore(tmp_path / "other") as other:
        imported = import_labels([exported.path], other)
        assert (imported.pairs, imported.skipped, imported.agreement) == (5, 0, None)
        assert without_ids(other.labels()) == without_ids(store.labels())
        for label in other.labels():
            for digest in label.segments:
                np.testing.assert_array_equal(other.segment(digest).frames, store.segment(digest).frames)
                np.testing.assert_array_equal(other.true_rewards(digest), store.true_rewards(digest))
        assert other.find(pair(1), "judge v1") == store.find(pair(1), "judge v1")
        assert other.spent("a run") == store.spent("a run")
        again = import_labels([exported.path], other)
        assert (again.pairs, again.skipped) == (0, 5)
    assert import_labels([exported.path], store).pairs == 0


def test_states_travel_too_and_older_exports_have_none(tmp_path: Path) -> None:
    states = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = pair(1).segments
    question = replace(pair(1), segments=(replace(first, states=states), second))
    with LabelStore(tmp_path / "labels") as store, LabelStore(tmp_path / "other") as other:
        store.record(question, Judge(), preference(1.0), HERE)
        exported = export_labels(store, tmp_path / "labels.parquet")
        import_labels([exported.path], other)
        kept, none = (other.segment(digest).states for digest in other.labels()[0].segments)
        assert kept is not None and none is None
        np.testing.assert_array_equal(kept, states)
    table = parquet.read_table(exported.path).drop_columns(["first_states", "second_states"])
    parquet.write_table(table, tmp_path / "older.parquet")
    with LabelStore(tmp_path / "third") as third:
        assert import_labels([tmp_path / "older.parquet"], third).pairs == 1
        assert third.segment(third.labels()[0].segments[0]).states is None


@pytest.mark.parametrize(
    "states",
    [np.zeros((1, 3)), np.zeros(3, np.float32), np.full((1, 3), np.nan, np.float32), np.zeros((1, 0), np.float32)],
)
def test_states_of_another_form_are_not_stored(store: LabelStore, states: np.ndarray) -> None:
    with pytest.raises(BadInput, match="the states of a segment of 1 frames must be finite float32"):
        store.add_segment(Segment(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.float32), states))


def test_two_answers_of_one_moment_are_two(tmp_path: Path) -> None:
    now = "2026-01-02T03:04:05.678+00:00"
    with LabelStore(tmp_path / "labels") as store:
        for reason in ("no network", "no network still"):
            store.record(pair(1), Judge(), Answer(Outcome.FAILED, reason=reason), HERE, now)
        file = export_labels(store, tmp_path / "a.parquet").path
    with LabelStore(tmp_path / "other") as other:
        assert [import_labels([file], other).pairs for _ in range(2)] == [2, 0]
        assert [label.time for label in other.labels()] == [now, now]


def test_the_labels_of_one_run(store: LabelStore, tmp_path: Path) -> None:
    assert export_labels(store, tmp_path / "a.parquet", "run 2").labels == 1
    assert parquet.read_table(tmp_path / "a.parquet")["teacher"].to_pylist() == ["b"]
    with pytest.raises(BadInput, match="no labels to export of run 'run 3'"):
        export_labels(store, tmp_path / "b.parquet", "run 3")


def test_the_rows_say_it_all(store: LabelStore, tmp_path: Path) -> None:
    first, *_, rated, scored = parquet.read_table(export_labels(store, tmp_path / "a.parquet").path).to_pylist()
    assert (first["kind"], first["outcome"], first["value"], first["confidence"]) == ("compare", "second", 1.0, 0.75)
    assert first["exchanges"][0] | {"reused": False} == asdict(EXCHANGES[0])
    assert (first["first_rewards"], first["second_rewards"]) == ([2.0], [3.0])
    assert (first["run"], first["task"], first["step"]) == ("a run", "a task", 7)
    picture = np.asarray(Image.open(io.BytesIO(first["second_frames"][0]["bytes"])))
    np.testing.assert_array_equal(picture, pair(1).segments[1].frames[0])
    assert (rated["levels"], len(rated["first_frames"]), rated["second_frames"]) == (4, 3, [])
    assert rated["goal"] == ["a goal", "the same"]
    assert json.loads(rated["origin"]) == {"who": "Änne", "n": [1]}
    assert (scored["outcome"], scored["value"]) == ("unsure", None)


def test_many_labels_take_many_groups_of_rows(tmp_path: Path) -> None:
    with LabelStore(tmp_path / "labels") as store:
        for i in range(70):
            store.record(pair(i), Judge(), preference(float(i % 2)), HERE)
        exported = export_labels(store, tmp_path / "a.parquet")
    assert parquet.ParquetFile(exported.path).num_row_groups == 3
    assert parquet.read_table(exported.path)["value"].to_pylist() == [float(i % 2) for i in range(70)]


def test_hugging_face_shows_the_frames(store: LabelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    folder = export_labels(store, tmp_path / "data set").path
    for source in (("parquet", {"data_files": str(folder / DATA)}), (str(folder), {})):
        loaded = datasets.load_dataset(source[0], split="train", cache_dir=str(tmp_path / "cache"), **source[1])
        assert loaded.features["first_frames"] == datasets.List(datasets.Image())
        assert loaded.num_rows == 5
        picture = loaded[0]["first_frames"][-1]
        np.testing.assert_array_equal(np.asarray(picture), pair(1).segments[0].frames[0])
        assert loaded[0]["exchanges"][1]["swapped"] is True
        assert loaded[0]["goal"] == ["a goal"]


def test_the_card_names_goals_and_teachers_and_cannot_be_broken_out_of(tmp_path: Path) -> None:
    import yaml

    with LabelStore(tmp_path / "labels") as store:
        store.record(pair(1, "a goal\n---\nlicense: mine"), Judge("j"), preference(1.0), HERE)
        card = (export_labels(store, tmp_path / "set").path / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["configs"][0]["data_files"] == [{"split": "train", "path": "data/*.parquet"}]
    assert "- a goal --- license: mine\n" in card
    assert "- j: 1 labels\n" in card and "- second: 1\n" in card


def test_what_is_there_is_not_overwritten(store: LabelStore, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("precious")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file").write_text("precious")
    for target in ("a.parquet", "set", "set/file"):
        with pytest.raises(BadInput, match="exists already"):
            export_labels(store, tmp_path / target)
    assert (tmp_path / "a.parquet").read_text() == "precious"


def test_an_export_that_fails_leaves_nothing(store: LabelStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="leads through a file that is no folder"):
        export_labels(store, tmp_path / "file" / "a.parquet")
    for file in (store.folder / "frames").rglob("*.png"):
        file.unlink()
    with pytest.raises(BadInput, match=r"\.png' is missing"):
        export_labels(store, tmp_path / "out" / "a.parquet")
    assert list((tmp_path / "out").iterdir()) == []


def test_labels_whose_frames_are_damaged_stay_behind_and_are_counted(
    store: LabelStore, sightline: Callable[..., Any], tmp_path: Path
) -> None:
    (missing,) = store.frame_files(pair(2).segments[0].digest)
    (other,) = store.frame_files(segment(9).digest)
    missing.unlink()
    swapped = Image.fromarray(255 - segment(9).frames[0])
    swapped.save(other)  # a sound picture, but not the one that was judged
    exported = export_labels(store, tmp_path / "set")
    assert (exported.labels, exported.left_out) == (3, 2)
    assert missing.name in exported.why
    rows = parquet.read_table(exported.path / DATA).to_pylist()
    assert [row["goal"][0] for row in rows] == ["a goal"] * 3 and rows[-1]["kind"] == "rate"
    assert "\n3 answers to questions" in (exported.path / "README.md").read_text()
    done = sightline("label", "export", store.folder, tmp_path / "a.parquet")
    assert done.code == 0 and done.out.startswith("exported    3 labels")
    assert len(done.lines) == 1 and "warning: 2 labels stay behind" in done.lines[0]
    with pytest.raises(BadInput, match="is missing"):
        export_labels(store, tmp_path / "none.parquet", "run 2")


def test_what_was_retracted_does_not_come_back(store: LabelStore, tmp_path: Path) -> None:
    file = export_labels(store, tmp_path / "a.parquet").path
    with LabelStore(tmp_path / "other") as other:
        import_labels([file], other)
        taken_back = other.labels()[1]
        other.retract(taken_back.id)
        again = import_labels([file], other)
        assert (again.pairs, again.skipped) == (0, 5)
        assert len(other.labels()) == 4


def test_without_pyarrow_it_says_what_to_install(
    store: LabelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=r"pip install 'sightline\[labels\]'"):
        export_labels(store, tmp_path / "a.parquet")


def test_files_that_are_no_export_are_refused(store: LabelStore, tmp_path: Path) -> None:
    good = parquet.read_table(export_labels(store, tmp_path / "good.parquet").path)
    row = good.slice(0, 1).to_pylist()[0]

    def refused(reason: str, content: bytes | None = None, **changes: Any) -> None:
        file = tmp_path / "bad.parquet"
        if content is None:
            parquet.write_table(pyarrow.Table.from_pylist([row | changes], good.schema), file)
        else:
            file.write_bytes(content)
        with LabelStore(tmp_path / "other") as other:
            with pytest.raises(BadInput, match=reason) as refusal:
                import_labels([file], other)
            assert "bad.parquet" in str(refusal.value) and "\n" not in str(refusal.value)
            assert other.labels() == []

    whole = (tmp_path / "good.parquet").read_bytes()
    refused("no Parquet file", b"hello")
    refused("no Parquet file", b"")
    refused("no Parquet file", whole[:-100])
    other_columns = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": [1]}), other_columns)
    refused("no export of labels", other_columns.getvalue())
    refused("a frame in row 1 of '.*' claims", first_frames=[{"bytes": bomb(8_100, 8_100), "path": None}])
    refused("is missing or damaged", first_frames=[{"bytes": bomb(100_000, 100_000), "path": None}])
    refused("it is no PNG", first_frames=[{"bytes": None, "path": "/etc/hostname"}])
    refused("row 1 of '.*' is no label", first_frames=[])
    refused("not one reward for each", first_rewards=[1.0, 2.0])
    refused("'guess' is no kind", kind="guess")
    refused("not a valid Outcome", outcome="perhaps")
    refused("not in", confidence=-0.1)
    refused("origin is no mapping", origin="[]")
    refused("row 1 of '.*' is no label", origin="{")
    refused("row 1 of '.*' is no label", time=None)


def test_rows_may_not_contradict_themselves(store: LabelStore, tmp_path: Path) -> None:
    """Whatever stands in a row is either refused or means what it says."""
    good = parquet.read_table(export_labels(store, tmp_path / "good.parquet").path)
    rows = good.to_pylist()
    by_kind = {"compare": rows[0], "rate": rows[3], "score": rows[4]}
    meant = {
        "compare": {"first": [0.0], "second": [1.0], "equal": [0.5], "value": []},
        "rate": {"first": [], "second": [], "equal": [], "value": [0.0, 1.0, 2.0, 3.0]},  # there are four levels
        "score": {"first": [], "second": [], "equal": [], "value": [0.0, 0.37, 0.5, 1.0]},
    }
    values = [None, -1.0, 0.0, 0.37, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, float("nan"), float("inf"), -0.0]
    for kind, row in by_kind.items():
        for outcome in Outcome:
            for value in values:
                file = tmp_path / "row.parquet"
                changed = row | {"outcome": outcome.value, "value": value}
                parquet.write_table(pyarrow.Table.from_pylist([rows[1], changed], good.schema), file)
                expected = meant[kind].get(outcome.value, [None])
                if any(value == fine for fine in expected):
                    assert [found.answer.value for found in read_parquet(file)][1] == value
                else:
                    with pytest.raises(BadInput, match=r"^row 2 of '.*row\.parquet' is no label") as refusal:
                        list(read_parquet(file))
                    assert "\n" not in str(refusal.value)


def test_many_frames_are_refused_before_they_fill_the_memory(
    store: LabelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline import images

    good = parquet.read_table(export_labels(store, tmp_path / "good.parquet").path)
    row = good.slice(0, 1).to_pylist()[0]
    content = io.BytesIO()
    Image.new("RGB", (2000, 2000)).save(content, "PNG")
    row["first_frames"] = [{"bytes": content.getvalue(), "path": None}] * 3_000  # 36 GB, written once
    row["first_rewards"] = [0.0] * 3_000
    parquet.write_table(pyarrow.Table.from_pylist([row], good.schema), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 200_000
    opened: list[int] = []
    whole = images.read_png
    monkeypatch.setattr(images, "MAX_PIXELS", 9_000_000)
    monkeypatch.setattr(images, "read_png", lambda *given: opened.append(given[2]) or whole(*given))
    with pytest.raises(BadInput, match="claims 2000x2000 pixels; with those before it, that is no segment"):
        list(read_parquet(tmp_path / "bomb.parquet"))
    assert opened == [9_000_000, 5_000_000, 1_000_000]


def test_a_picture_that_does_not_fit_into_memory_is_said_in_one_line(
    store: LabelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = export_labels(store, tmp_path / "a.parquet").path

    def full(*unused: object) -> None:
        raise MemoryError

    for where, what in ((Image.Image, "convert"), (np, "stack")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, full)
            with pytest.raises(BadInput, match="does not fit into memory"):
                list(read_parquet(file))
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "convert", full)
        with pytest.raises(BadInput, match="does not fit into memory"):
            store.segment(segment(8, 3).digest)


def test_columns_of_other_types_are_refused(store: LabelStore, tmp_path: Path) -> None:
    good = parquet.read_table(export_labels(store, tmp_path / "good.parquet").path)
    for name in ("first_frames", "value", "goal", "exchanges", "first_rewards", "levels"):
        column = pyarrow.array(["text"] * good.num_rows)
        changed = good.set_column(good.column_names.index(name), name, column)
        parquet.write_table(changed, tmp_path / "bad.parquet")
        with pytest.raises(BadInput, match=r"bad\.parquet") as refusal:
            list(read_parquet(tmp_path / "bad.parquet"))
        assert "\n" not in str(refusal.value)


def test_the_command_exports(store: LabelStore, sightline: Callable[..., Any], tmp_path: Path) -> None:
    done = sightline("label", "export", store.folder, tmp_path / "a.parquet", "--run", "a run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["labels"] == 4
    done = sightline("label", "export", tmp_path, tmp_path / "set")
    assert (done.code, done.out.split()[:2]) == (0, ["exported", "5"]), done.err
    assert (tmp_path / "set" / DATA).is_file() and (tmp_path / "set" / "README.md").is_file()
    done = sightline("label", "import", tmp_path / "set" / DATA, "--into", "new")
    assert (done.code, done.out) == (0, "imported    5 labels from 1 files\n"), done.err
    done = sightline("label", "export", store.folder, tmp_path / "set")
    assert (done.code, len(done.lines)) == (2, 1)
    done = sightline("label", "export", tmp_path / "nothing", tmp_path / "b.parquet")
    assert (done.code, len(done.lines)) == (2, 1)
