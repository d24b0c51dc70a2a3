"""The label store: what was answered is there afterwards, whatever happens in between."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sightline.errors import BadInput, RunFailed
from sightline.images import PictureFiles, read_png
from sightline.labels.store import BACKUP, DATABASE, Context, LabelStore, Spent, existing_store
from sightline.labels.types import PREFERENCES, Answer, ModelCall, Outcome, Question, Segment, preference


@dataclass
class Judge:
    """A teacher in name only."""

    name: str = "judge"
    signature: str = "judge v1"

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Answer]]:
        raise NotImplementedError


HERE = Context("a run", "a task", 7)


def segment(seed: int, length: int = 1, rewards: Sequence[float] | None = None) -> Segment:
    frames = np.random.default_rng(seed).integers(0, 256, (length, 6, 5, 3), np.uint8)
    return Segment(frames, np.array(rewards or [float(seed)] * length, np.float32))


def pair(seed: int, goal: str = "a goal") -> Question:
    return Question("compare", (segment(2 * seed), segment(2 * seed + 1)), (goal,))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LabelStore]:
    with LabelStore(tmp_path / "labels") as opened:
        yield opened


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
amounts = st.floats(0, 1e6)
exchanges = st.builds(
    ModelCall, texts, st.booleans(), texts, texts, st.integers(0, 10**9), st.integers(0, 10**9), amounts, amounts, texts
)
outcomes = [outcome for outcome in Outcome if outcome not in (Outcome.FAILED, Outcome.VALUE)]
answers = st.builds(
    lambda outcome, *rest: Answer(outcome, PREFERENCES.get(outcome), *rest),
    st.sampled_from(outcomes),
    st.none() | st.floats(0, 1),
    texts,
    st.lists(exchanges, max_size=3).map(tuple),
    amounts,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=answers,
    goal=st.lists(texts, min_size=1, max_size=3).map(tuple),
    levels=st.integers(0, 5),
    name=texts,
    step=st.none() | st.integers(0, 10**12),
    origin=st.dictionaries(texts, st.integers() | texts | st.lists(st.booleans(), max_size=2), max_size=3),
    seed=st.integers(0, 10**6),
)
def test_answers_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory,
    answer: Answer,
    goal: tuple[str, ...],
    levels: int,
    name: str,
    step: int | None,
    origin: dict[str, Any],
    seed: int,
) -> None:
    question = Question("compare", (segment(seed, 2), segment(seed + 1, 2)), goal, levels)
    folder, teacher, context = (
        tmp_path_factory.mktemp("store"),
        Judge(name, name + "!"),
        Context(name, "t", step, origin),
    )
    with LabelStore(folder) as store:
        label = store.record(question, teacher, answer, context)
    with LabelStore(folder) as store:
        assert store.find(question, teacher.signature) == answer
        (stored,) = store.labels()
        assert (stored.id, stored.key) == (label, question.key(teacher.signature))
        assert (stored.context, stored.teacher, stored.signature) == (context, teacher.name, teacher.signature)
        assert (stored.kind, stored.goal, stored.levels, stored.answer) == ("compare", goal, levels, answer)
        assert stored.true_returns == (2.0 * seed, 2.0 * (seed + 1))
        for digest, asked in zip(stored.segments, question.segments, strict=True):
            np.testing.assert_array_equal(store.segment(digest).frames, asked.frames)
            np.testing.assert_array_equal(store.segment(digest).true_rewards, asked.true_rewards)


def test_unknown_rewards_stay_unknown(store: LabelStore) -> None:
    store.record(Question("score", (segment(1, 2, [1.0, np.nan]),), ("g",)), Judge(), Answer(Outcome.VALUE, 0.5), HERE)
    (label,) = store.labels()
    assert np.isnan(label.true_returns[0])
    np.testing.assert_array_equal(store.true_rewards(label.segments[0]), np.array([1, np.nan], np.float32))


def test_the_same_question_is_remembered_by_signature(store: LabelStore) -> None:
    store.record(pair(1), Judge(), preference(1.0), HERE)
    assert store.find(pair(1), "judge v1") == preference(1.0)
    first, second = pair(1).segments
    others = [
        (pair(1), "judge v2"),
        (pair(1, "another goal"), "judge v1"),
        (pair(2), "judge v1"),
        (Question("compare", (second, first), ("a goal",)), "judge v1"),
        (Question("rate", (first,), ("a goal",), 3), "judge v1"),
    ]
    assert [store.find(question, signature) for question, signature in others] == [None] * len(others)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_failures_are_asked_again(store: LabelStore, outcome: Outcome) -> None:
    question, later = pair(1), preference(0.0)
    answer = Answer(outcome, PREFERENCES.get(outcome))
    if outcome is Outcome.VALUE:
        question = Question("score", (segment(1),), ("a goal",))
        answer, later = Answer(outcome, 0.75), Answer(outcome, 0.25)
    store.record(question, Judge(), answer, HERE)
    found = store.find(question, "judge v1")
    assert (found is None) == (outcome == Outcome.FAILED)
    store.record(question, Judge(), later, HERE)
    assert store.find(question, "judge v1") == later
    assert [label.answer.outcome for label in store.labels()] == [outcome, later.outcome]


def test_retracted_answers_count_no_longer_but_were_paid_for(store: LabelStore) -> None:
    paid = (
        ModelCall("compare", False, "", "1", 10, 5, 1.0, 0.25),
        ModelCall("compare", True, "", "0", 20, 5, 1.0, 0.5),
    )
    wrong = store.record(pair(1), Judge(), Answer(Outcome.SECOND, 1.0, exchanges=paid), HERE)
    store.record(pair(2), Judge(), Answer(Outcome.SECOND, 1.0, exchanges=paid[:1]), HERE)
    store.record(pair(3), Judge(), Answer(Outcome.SECOND, 1.0, exchanges=paid), Context("another run", "t"))
    store.retract(wrong)
    assert store.find(pair(1), "judge v1") is None
    assert [label.segments[0] for label in store.labels("a run")] == [pair(2).segments[0].digest]
    assert len(store.labels()) == 2
    assert store.spent("a run") == Spent(2, 3, 55, 1.0, replies=3)
    assert store.spent("no run") == Spent()


def test_versions_that_answered_are_kept(tmp_path: Path) -> None:
    calls = [ModelCall("compare", swapped, "", "1", model="m-1") for swapped in (False, True)]
    newer = ModelCall("compare", False, "", "1", model="m-2")
    silent = ModelCall("compare", False, "", "1")
    with LabelStore(tmp_path) as store:
        for number, exchanges in enumerate((calls, (silent,), (newer,), (newer,))):
            store.record(pair(number), Judge(), Answer(Outcome.SECOND, 1.0, exchanges=tuple(exchanges)), HERE)
        assert store.models("judge v1") == {"m-1": 1, "m-2": 2}
        assert store.models("another judge") == {}
        versions = [[call.model for call in label.answer.exchanges] for label in store.labels()]
    assert versions == [["m-1", "m-1"], [""], ["m-2"], ["m-2"]]


def test_a_store_from_before_versions_were_kept_is_read(tmp_path: Path) -> None:
    call = ModelCall("compare", False, "", "1")
    with LabelStore(tmp_path) as store:
        store.record(pair(1), Judge(), Answer(Outcome.SECOND, 1.0, exchanges=(call,)), HERE)
        store._database.execute("DROP TABLE models")
    with LabelStore(tmp_path, read_only=True) as store:
        assert store.models("judge v1") == {}
        assert store.labels()[0].answer.exchanges == (call,)


def test_all_labels_are_read_by_as_many_queries_as_one(store: LabelStore) -> None:
    calls = tuple(ModelCall("compare", swapped, "in these words", "1") for swapped in (False, True))
    counts = []
    for number in range(5):
        store.record(pair(number), Judge(), Answer(Outcome.SECOND, 1.0, exchanges=calls), HERE)
        queries: list[str] = []
        store._database.set_trace_callback(queries.append)
        assert [label.answer.exchanges for label in store.labels()] == [calls] * (number + 1)
        store._database.set_trace_callback(None)
        counts.append(len(queries))
    assert counts[-1] == counts[0] > 0


def test_frames_are_kept_once(store: LabelStore) -> None:
    both = Segment(np.concatenate([segment(1).frames] * 2), np.zeros(2, np.float32))
    store.add_segment(both)
    store.add_segment(segment(1))
    assert len(list((store.folder / "frames").rglob("*.png"))) == 1
    assert len(store.frame_files(both.digest)) == 2


def test_waiting_questions_keep_their_place_until_answered_or_withdrawn(store: LabelStore) -> None:
    store.wait_for([pair(1), pair(2)], Judge(), HERE)
    store.wait_for([pair(3), pair(1)], Judge(), HERE)
    keys = [pair(i).key("judge v1") for i in (1, 2, 3)]
    assert [waiting.key for waiting in store.waiting()] == keys
    assert store.waiting()[0].context == HERE
    assert store.load_question(store.waiting()[0]).key("judge v1") == keys[0]
    store.record(pair(1), Judge("somebody else", "else"), preference(0.0), HERE)
    assert len(store.waiting()) == 3
    store.record(pair(1), Judge(), preference(0.0), HERE)
    store.withdraw([pair(3)], "judge v1")
    assert [waiting.key for waiting in store.waiting()] == keys[1:2]


def frames(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.ones(shape, dtype)


UNREADABLE_SEGMENTS = {
    "grey": (Segment(frames(1, 6, 5), np.zeros(1)), r"frames must be uint8\[L, H, W, 3\], not uint8\[1, 6, 5\]"),
    "transparent": (Segment(frames(1, 6, 5, 4), np.zeros(1)), "frames must be"),
    "floats": (Segment(frames(1, 6, 5, 3, dtype=np.float64), np.zeros(1)), "not float64"),
    "no steps": (Segment(frames(0, 6, 5, 3), np.zeros(0)), "frames must be"),
    "too few rewards": (Segment(frames(3, 6, 5, 3), np.zeros(2)), "3 frames must have as many true rewards"),
    "no rewards": (Segment(frames(1, 6, 5, 3), np.array([None])), "as many true rewards"),
}


@pytest.mark.parametrize(("wrong", "why"), UNREADABLE_SEGMENTS.values(), ids=UNREADABLE_SEGMENTS)
def test_segments_that_could_not_be_read_back_are_refused(store: LabelStore, wrong: Segment, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        store.add_segment(wrong)
    question = Question("score", (wrong,), ("a goal",))
    with pytest.raises(BadInput, match=why):
        store.record(question, Judge(), Answer(Outcome.VALUE, 0.5), HERE)
    with pytest.raises(BadInput, match=why):
        store.wait_for([question], Judge(), HERE)
    assert not store.labels() and not store.waiting() and not list((store.folder / "frames").iterdir())


def test_what_is_stored_of_a_large_segment_can_be_read(store: LabelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.images.MAX_PIXELS", 4_000)
    large = [Segment(frames(length, 50, 40, 3), np.zeros(length, np.float32)) for length in (2, 3)]
    assert store.segment(store.add_segment(large[0])).frames.shape == (2, 50, 40, 3)
    with pytest.raises(BadInput, match="3 frames of 40x50 are too large a segment"):
        store.add_segment(large[1])


def rating(levels: int) -> Question:
    return Question("rate", (segment(1),), ("a goal",), levels)


WRONG_LABELS: dict[str, tuple[Question, Answer, str]] = {
    "unknown kind": (
        Question("comp", pair(1).segments, ("g",)),
        preference(1.0),
        "must be one of compare, rate, score",
    ),  # type: ignore[arg-type]
    "one segment": (Question("compare", (segment(1),), ("g",)), preference(1.0), "about two segments, .*, not 1"),
    "two segments": (Question("score", pair(1).segments, ("g",)), Answer(Outcome.VALUE, 1.0), "about one segment"),
    "a goal of letters": (
        Question("compare", pair(1).segments, "text"),
        preference(1.0),
        "a tuple of sentences, not 'text'",
    ),  # type: ignore[arg-type]
    "no levels": (rating(0), Answer(Outcome.UNSURE), "two levels at least"),
    "first without a value": (pair(1), Answer(Outcome.FIRST), "outcome 'first' with value None is no answer"),
    "first with the value of the second": (pair(1), Answer(Outcome.FIRST, 1.0), "no answer to 'compare'"),
    "a value where there is none": (pair(1), Answer(Outcome.UNSURE, 0.5), "no answer"),
    "a level beyond": (rating(3), Answer(Outcome.VALUE, 3.0), "no answer to 'rate' on 3 levels"),
    "not a number": (Question("score", (segment(1),), ("g",)), Answer(Outcome.VALUE, float("nan")), "no answer"),
}


@pytest.mark.parametrize(("question", "answer", "why"), WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_labels_that_are_none_are_refused(store: LabelStore, question: Question, answer: Answer, why: str) -> None:
    with pytest.raises(BadInput, match=why) as refusal:
        store.record(question, Judge(), answer, HERE)
    assert "\n" not in str(refusal.value)
    assert not store.labels()


def test_only_what_is_there_is_retracted(store: LabelStore) -> None:
    store.record(pair(1), Judge(), preference(1.0), HERE)
    with pytest.raises(BadInput, match="has no label 9999"):
        store.retract(9999)
    assert len(store.labels()) == 1


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = LabelStore(tmp_path)
    digest = store.add_segment(segment(1))
    store.close()
    uses: list[Callable[[], Any]] = [
        store.labels,
        store.recorded,
        store.waiting,
        store.back_up,
        lambda: store.find(pair(1), "judge v1"),
        lambda: store.record(pair(1), Judge(), preference(1.0), HERE),
        lambda: store.segment(digest),
        lambda: store.true_rewards(digest),
        lambda: store.frame_files(digest),
        lambda: store.spent("a run"),
        lambda: store.retract(1),
    ]
    for use in uses:
        with pytest.raises(BadInput, match="is closed; open it again"):
            use()
    store.close()


# -- several at once -------------------------------------------------------------------------------------------------

LABELLER = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_label_store import HERE, Judge, LabelStore, pair, preference
folder, begin, count, teacher = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Judge("j", sys.argv[4])
for i in range(begin, begin + count):
    if i % 10 == begin % 10:
        store = LabelStore(folder)
    label = store.record(pair(i), teacher, preference(float(i % 2)), HERE)
    print(i, label, flush=True)
"""


def start_labeller(folder: Path, begin: int, count: int, signature: str = "s") -> subprocess.Popen[str]:
    """A process that records one answer after another, and prints each question's number once it is recorded."""
    script = LABELLER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(folder), str(begin), str(count), signature]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_can_write_the_same_frames_at_once(tmp_path: Path) -> None:
    labellers = [start_labeller(tmp_path, 0, 25, signature) for signature in ("one", "two")]
    for labeller in labellers:
        _, complaints = labeller.communicate(timeout=120)
        assert labeller.returncode == 0, complaints
    with LabelStore(tmp_path) as store:
        assert sorted(label.signature for label in store.labels()) == ["one"] * 25 + ["two"] * 25
        assert store.find(pair(24), "one") == store.find(pair(24), "two") == preference(0.0)
        for file in (tmp_path / "frames").rglob("*"):
            assert file.is_dir() or (file.suffix == ".png" and not file.name.startswith("."))


def test_threads_can_share_a_store(store: LabelStore) -> None:
    failures: list[BaseException] = []

    def label_some(thread: int) -> None:
        try:
            for i in range(8):
                store.record(pair(i), Judge("j", f"thread {thread}"), preference(0.0), HERE)
                store.labels()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=label_some, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.labels()) == 32


def test_two_who_write_the_same_frame_do_not_share_a_file(store: LabelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline import images as module

    both_are_there = threading.Barrier(2, timeout=30)

    def together(path: Path, content: bytes) -> None:
        both_are_there.wait()
        original(path, content)

    original = module.write_atomically
    monkeypatch.setattr(module, "write_atomically", together)
    threads = [threading.Thread(target=PictureFiles(store.folder / "frames").add, args=(FRAME,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (file,) = [file for file in (store.folder / "frames").rglob("*") if file.is_file()]
    np.testing.assert_array_equal(read_png(file), FRAME)


def test_kill_9_loses_no_answer_that_was_recorded(tmp_path: Path) -> None:
    labeller = start_labeller(tmp_path, 0, 10_000)
    assert labeller.stdout is not None
    lines = [labeller.stdout.readline() for _ in range(23)]
    labeller.send_signal(signal.SIGKILL)
    # `communicate` would read past what `readline` has fetched already, and lose it.
    lines += labeller.stdout.read().splitlines()
    labeller.communicate()
    recorded = [tuple(map(int, line.split())) for line in lines if line.count(" ") == 1]
    assert labeller.returncode == -signal.SIGKILL
    assert len(recorded) >= 23
    with LabelStore(tmp_path) as store:
        stored = {label.id: label.segments[0] for label in store.labels()}
        for number, label in recorded:
            assert stored[label] == pair(number).segments[0].digest
            assert store.find(pair(number), "s") == preference(float(number % 2))
            np.testing.assert_array_equal(store.segment(stored[label]).frames, pair(number).segments[0].frames)
        assert len(stored) <= len(recorded) + 1  # the one that was recorded but not yet printed


# -- damage ----------------------------------------------------------------------------------------------------------


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    damaged = {
        "not a database": b"hello" * 1000,
        "overwritten in the middle": content[:4096] + b"\xa5" * (len(content) - 4096),
        "cut off": content[: len(content) // 2],
        "empty": b"",
    }
    file.write_bytes(damaged[how])


@pytest.mark.parametrize("how", ["not a database", "overwritten in the middle", "cut off", "empty", "gone"])
def test_a_damaged_database_is_refused_and_its_backup_restores_it(tmp_path: Path, how: str) -> None:
    with LabelStore(tmp_path) as store:
        for i in range(20):
            store.record(pair(i), Judge(), preference(1.0), HERE)
    LabelStore(tmp_path).close()  # opening makes the backup
    backup = (tmp_path / BACKUP).read_bytes()
    if how == "gone":
        (tmp_path / DATABASE).unlink()
    else:
        damage(tmp_path / DATABASE, how)
    for _ in range(2):  # the second attempt finds the same: nothing was written over
        with pytest.raises(BadInput, match=r"labels\.backup\.sqlite") as refusal:
            LabelStore(tmp_path)
        assert "\n" not in str(refusal.value)
        assert (tmp_path / BACKUP).read_bytes() == backup
    # as the message says: move labels.sqlite* away and copy labels.backup.sqlite to labels.sqlite
    (tmp_path / "away").mkdir()
    for file in tmp_path.glob(DATABASE + "*"):
        shutil.move(file, tmp_path / "away")
    shutil.copy(tmp_path / BACKUP, tmp_path / DATABASE)
    with LabelStore(tmp_path) as store:
        assert len(store.labels()) == 20
        assert store.find(pair(19), "judge v1") == preference(1.0)
        store.record(pair(20), Judge(), preference(0.0), HERE)
    with LabelStore(tmp_path) as store:
        assert len(store.labels()) == 21


def test_a_damaged_database_does_not_replace_its_backup(tmp_path: Path) -> None:
    LabelStore(tmp_path).close()
    whole = (tmp_path / BACKUP).read_bytes()
    damage(tmp_path / DATABASE, "overwritten in the middle")
    with pytest.raises(BadInput):
        LabelStore(tmp_path)
    assert (tmp_path / BACKUP).read_bytes() == whole


def test_a_store_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / DATABASE).mkdir()
    with pytest.raises(RunFailed, match="cannot be opened"):
        LabelStore(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        LabelStore(tmp_path / "file")


def png(picture: np.ndarray, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(picture).save(content, kind)
    return content.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


FRAME = segment(1).frames[0]
BAD_FRAMES = {
    "cut off": png(FRAME)[:-30],
    "not a picture": b"hello",
    "empty": b"",
    "another picture": png(255 - FRAME),
    "another size": png(FRAME[:3]),
    "another format": png(FRAME, "BMP"),
    "bomb": bomb(100_000, 100_000),
    "smaller bomb": bomb(9_000, 9_000),
    "below Pillow's own limit": bomb(8_100, 8_100),
}


@pytest.mark.parametrize("content", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_damaged_frame_is_named(store: LabelStore, content: bytes) -> None:
    digest = store.add_segment(segment(1))
    (file,) = store.frame_files(digest)
    file.write_bytes(content)
    with pytest.raises(BadInput, match=file.name) as refusal:
        store.segment(digest)
    assert "\n" not in str(refusal.value)


def test_a_picture_may_not_claim_more_than_a_frame_has(tmp_path: Path) -> None:
    (tmp_path / "it.png").write_bytes(bomb(8_100, 8_100))
    with pytest.raises(BadInput, match="claims 8100x8100 pixels"):
        read_png(tmp_path / "it.png")


def test_a_missing_frame_or_segment_is_named(store: LabelStore) -> None:
    digest = store.add_segment(segment(1))
    store.frame_files(digest)[0].unlink()
    with pytest.raises(BadInput, match=digest[:0] + r"\.png' is missing"):
        store.segment(digest)
    with pytest.raises(BadInput, match="has no segment 0123"):
        store.segment("0123" * 16)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "", 5, None, ["a"]])
def test_only_hashes_are_names_of_frames(store: LabelStore, name: Any) -> None:
    """The database may be a stranger's."""
    digest = store.add_segment(segment(1))
    with sqlite3.connect(store.folder / DATABASE) as database:
        database.execute("UPDATE segments SET frames = ?", (json.dumps([name]),))
    for read in (store.segment, store.frame_files):
        with pytest.raises(BadInput, match="no name of a picture") as refusal:
            read(digest)
        assert "\n" not in str(refusal.value)


def test_the_frames_of_a_segment_are_of_one_size_and_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PictureFiles(tmp_path)
    names = [files.add(np.full((40, 50, 3), shade, np.uint8)) for shade in range(4)]
    np.testing.assert_array_equal(files.read_all(names)[:, 0, 0, 0], range(4))
    with pytest.raises(BadInput, match="several sizes"):
        files.read_all([names[0], files.add(np.zeros((50, 40, 3), np.uint8))])
    with pytest.raises(BadInput, match="has no frames"):
        files.read_all([])
    monkeypatch.setattr("sightline.images.MAX_PIXELS", 7_999)
    with pytest.raises(BadInput, match="claims 50x40 pixels; with those before it, that is no segment"):
        files.read_all(names)
    assert len(files.read_all(names[:3])) == 3


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.booleans())
def test_no_damage_to_a_picture_makes_more_than_bad_input(place: int, value: int, cut: bool) -> None:
    content = bytearray(png(np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)))
    content[place % len(content)] = value
    if cut:
        del content[place % len(content) :]
    message = ""
    try:
        assert read_png(io.BytesIO(bytes(content)), "it").dtype == np.uint8
    except BadInput as refusal:
        message = str(refusal)
    assert "\n" not in message


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_label_store import HERE, Judge, LabelStore, RunFailed, pair, preference
store = LabelStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
for i in range(10_000):
    try:
        store.record(pair(i), Judge("j", "s" * 2000), preference(1.0), HERE)
    except RunFailed as error:
        sys.exit(str(error))
    print(i, flush=True)
"""


@pytest.mark.parametrize("limit", [10, 300_000], ids=["for frames", "for the database"])
def test_a_full_disk_is_said_in_one_line_and_the_store_stays_whole(tmp_path: Path, limit: int) -> None:
    script = FULL_DISK.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("the label store")
    recorded = len(done.stdout.splitlines())
    assert (recorded > 0) == (limit > 1000)
    with LabelStore(tmp_path) as store:
        assert len(store.labels()) == recorded
        store.record(pair(recorded), Judge(), preference(0.0), HERE)
        for label in store.labels():
            assert store.segment(label.segments[0]).frames.shape == (1, 6, 5, 3)


def test_which_store_a_path_names(tmp_path: Path) -> None:
    run, shared = tmp_path / "run", tmp_path / "shared"
    for folder in (run / "labels", shared):
        LabelStore(folder).close()
    assert existing_store(run) == existing_store(run / "labels") == run / "labels"
    assert existing_store(shared) == shared
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BadInput, match="neither a run nor a label store"):
        existing_store(other)
    recipe = "{{format: 1, env: cartpole, goal: [g], reward: {{kind: learned{labels}}}}}"
    (other / "recipe.yaml").write_text(recipe.format(labels=""))
    with pytest.raises(BadInput, match="has no labels yet"):
        existing_store(other)
    (other / "recipe.yaml").write_text(recipe.format(labels=f", labels: {shared}"))
    with pytest.raises(BadInput, match="name that store itself"):
        existing_store(other)
    assert existing_store(other, trust=True) == shared


def test_the_database_is_an_ordinary_one(tmp_path: Path) -> None:
    """So that people can look into it with any tool."""
    with LabelStore(tmp_path) as store:
        store.record(pair(1), Judge(), preference(1.0), HERE)
    with sqlite3.connect(tmp_path / DATABASE) as database:
        assert database.execute("SELECT outcome, teacher FROM labels").fetchall() == [("second", "judge")]
