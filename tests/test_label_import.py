"""Import of RL-VLM-F's cached labels, whose files come from strangers."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import BadInput
from sightline.labels.importing import import_labels
from sightline.labels.pickles import MAX_INSTRUCTIONS, read_arrays
from sightline.labels.store import LabelStore
from sightline.labels.types import Outcome

GOAL = ("to open the drawer",)
H, W = 4, 6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LabelStore]:
    with LabelStore(tmp_path / "labels") as opened:
        yield opened


def arrays(n: int, seed: int = 0, labels: Any = None, oracle: Any = None, length: int = 1) -> list[np.ndarray]:
    """What one file holds: `n` pairs of random pictures with random labels."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 256, (n, H, 2 * W, 3), np.uint8),
        np.array(rng.integers(0, 2, n) if oracle is None else oracle, np.int64).reshape(n, 1),
        np.array(rng.integers(0, 2, n) if labels is None else labels).reshape(n, 1),
        rng.normal(size=(n, length, 5)),
        rng.normal(size=(n, length, 5)).astype(np.float32),
        rng.normal(size=(n, length, 1)),
        rng.normal(size=(n, length, 1)),
    ]


def write(file: Path, content: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=5))
    return file


# -- what files hold -------------------------------------------------------------------------------------------------


def test_pairs_arrive_with_everything_that_is_known(tmp_path: Path, store: LabelStore) -> None:
    content = arrays(3, labels=[0, 1, -1], oracle=[0, 0, 1], length=2)
    file = write(tmp_path / "cache" / "Drawer" / "seed_4" / "2024-01-22-14-03-59.pkl", content)
    imported = import_labels([tmp_path / "cache"], store, GOAL, "metaworld_drawer")
    assert (imported.files, imported.pairs, imported.skipped) == (1, 3, 0)
    assert (imported.compared, imported.agreement) == (2, 0.5)
    labels = store.labels()
    assert [label.answer.outcome for label in labels] == [Outcome.FIRST, Outcome.SECOND, Outcome.UNSURE]
    assert [label.answer.value for label in labels] == [0.0, 1.0, None]
    for i, label in enumerate(labels):
        left, right = (store.segment(digest) for digest in label.segments)
        np.testing.assert_array_equal(left.frames[0], content[0][i, :, :W])
        np.testing.assert_array_equal(right.frames[0], content[0][i, :, W:])
        assert label.true_returns == pytest.approx((content[5][i].sum(), content[6][i].sum()))
        assert (label.kind, label.goal, label.teacher) == ("compare", GOAL, "imported rl-vlm-f")
        assert "Drawer/seed_4" in label.signature
        assert label.context.task == "metaworld_drawer"
        origin = label.context.origin
        assert (origin["file"], origin["row"], origin["steps"]) == (file.name, i, 2)
        assert (origin["task"], origin["seed"], origin["time"]) == ("Drawer", "seed_4", "2024-01-22T14:03:59")
        assert origin["oracle"] == [0, 0, 1][i]
        for segment, states in ((left, content[3][i]), (right, content[4][i])):
            assert segment.states is not None and segment.states.shape == (2, 5)
            np.testing.assert_array_equal(segment.states, states.astype(np.float32))


def test_importing_twice_adds_nothing(tmp_path: Path, store: LabelStore) -> None:
    for i in (2, 1, 3):
        write(tmp_path / "Soccer" / "seed_1" / f"round {i}.pkl", arrays(2, seed=i))
    first = import_labels([tmp_path / "Soccer"], store, GOAL)
    again = import_labels([tmp_path / "Soccer" / "seed_1" / "round 2.pkl", tmp_path / "Soccer"], store, GOAL)
    assert (first.pairs, first.skipped) == (6, 0)
    assert (again.files, again.pairs, again.skipped) == (4, 0, 8)
    assert first.agreement == pytest.approx(np.mean([(x := arrays(2, seed=i))[1] == x[2] for i in (1, 2, 3)]))
    assert [label.context.origin["file"][6] for label in store.labels()] == list("112233")
    assert {label.context.task for label in store.labels()} == {"Soccer"}


def test_what_was_retracted_does_not_come_back(tmp_path: Path, store: LabelStore) -> None:
    file = write(tmp_path / "Soccer" / "seed_1" / "round.pkl", arrays(3))
    import_labels([file], store, GOAL)
    store.retract(store.labels()[1].id)
    again = import_labels([file], store, GOAL)
    assert (again.pairs, again.skipped) == (0, 3)
    assert [label.context.origin["row"] for label in store.labels()] == [0, 2]


def test_equal_pairs_of_different_states_or_rounds_are_all_kept(tmp_path: Path, store: LabelStore) -> None:
    """A picture may hide the robot, and the same pair be asked twice and judged otherwise."""
    first, second = arrays(2, labels=[0, 1]), arrays(2, seed=1, labels=[1, 1])
    first[0][1], second[0][:] = first[0][0], first[0][0]  # all pictures are those of one pair
    second[3][0], second[4][0] = first[3][0], first[4][0]
    for folder, content in (("a", first), ("b", second)):
        write(tmp_path / folder / "Drawer" / "seed_0" / f"{folder}.pkl", content)
    imported = import_labels([tmp_path / "a", tmp_path / "b"], store, GOAL)
    assert (imported.pairs, imported.skipped) == (4, 0)
    labels = store.labels()
    assert [label.answer.value for label in labels] == [0, 1, 1, 1]
    assert labels[0].segments == labels[2].segments, "a contradiction, which learners are told of"
    for label, states in zip(labels, [*first[3], *second[3]], strict=True):
        kept = store.segment(label.segments[0]).states
        assert kept is not None
        np.testing.assert_array_equal(kept, states.astype(np.float32))
    again = import_labels([tmp_path / "a", tmp_path / "b"], store, GOAL)
    assert (again.pairs, again.skipped) == (0, 4)


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("numpy_1", [False, True])
def test_files_of_both_numpys_can_be_read(tmp_path: Path, protocol: int, numpy_1: bool) -> None:
    content = pickle.dumps(arrays(2), protocol=protocol)
    if numpy_1:  # its modules had no underscore; lengths of names stand before them, frames before everything
        content = b"".join(unframed(content)).replace(b"numpy._core.", b"numpy.core.")
        for name in (b"numpy.core.numeric", b"numpy.core.multiarray"):
            content = content.replace(b"\x8c" + bytes([len(name) + 1]) + name, b"\x8c" + bytes([len(name)]) + name)
    for found, expected in zip(read_arrays(write(tmp_path / "x.pkl", content)), arrays(2), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def unframed(content: bytes) -> Iterator[bytes]:
    """A pickle without the instructions that announce how long its parts are."""
    import pickletools

    positions = [(name.name, at) for name, _, at in pickletools.genops(content)] + [("", len(content))]
    for (name, begin), (_, end) in itertools.pairwise(positions):
        if name != "FRAME":
            yield content[begin:end]


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from(["u1", "<i8", ">i4", "<f4", ">f8", "?", "f2", "u2"]),
    order=st.sampled_from(["C", "F", "strided"]),
    protocol=st.integers(3, 5),
)
def test_arrays_of_numbers_come_back(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: str, order: str, protocol: int
) -> None:
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    array = np.asfortranarray(array) if order == "F" else array[..., ::2] if order == "strided" and shape else array
    file = tmp_path_factory.mktemp("arrays") / "a.pkl"
    found = read_arrays(write(file, pickle.dumps([array, array.dtype.type(3)], protocol=protocol)))
    assert found[0].dtype == array.dtype
    np.testing.assert_array_equal(found[0], array)
    assert found[1] == array.dtype.type(3)


def test_empty_rounds_are_passed_over(tmp_path: Path, store: LabelStore) -> None:
    write(tmp_path / "a" / "1.pkl", arrays(0))
    write(tmp_path / "a" / "2.pkl", [np.array([])] * 7)
    imported = import_labels([tmp_path / "a"], store, GOAL)
    assert (imported.files, imported.pairs, imported.agreement) == (2, 0, None)


def scores(folder: Path, *rounds: list[float]) -> None:
    for i, values in enumerate(rounds):
        write(folder / f"{i}.pkl", arrays(len(values), seed=i, labels=np.array(values, np.float64)))


def test_old_scores_are_from_0_to_1(tmp_path: Path, store: LabelStore) -> None:
    scores(tmp_path / "old", [0.0, 0.5], [1.0])
    import_labels([tmp_path / "old"], store, GOAL)
    labels = store.labels()
    assert [label.answer.value for label in labels] == [0.0, 0.5, 1.0]
    assert {(label.kind, len(label.segments), label.answer.outcome) for label in labels} == {
        ("score", 1, Outcome.VALUE)
    }
    np.testing.assert_array_equal(store.segment(labels[2].segments[0]).frames, arrays(1, 1, [0.0])[0][:, :, :W])


def test_a_score_below_0_tells_that_the_folder_is_from_minus_1_to_1(tmp_path: Path, store: LabelStore) -> None:
    scores(tmp_path / "new", [0.0, 0.5], [-1.0, -3.0, 1.0])
    scores(tmp_path / "old", [0.25])
    import_labels([tmp_path / "new", tmp_path / "old"], store, GOAL)
    assert [label.answer.value for label in store.labels()] == [0.5, 0.75, 0.0, None, 1.0, 0.25]
    assert store.labels()[3].answer.outcome == Outcome.UNSURE


def test_cached_labels_need_the_goals_words(tmp_path: Path, store: LabelStore) -> None:
    with pytest.raises(BadInput, match="--goal"):
        import_labels([write(tmp_path / "x.pkl", arrays(1))], store)


def test_a_goal_without_words_is_none(sightline: Callable[..., Any], tmp_path: Path, store: LabelStore) -> None:
    with pytest.raises(BadInput, match="the goal is empty"):
        import_labels([tmp_path], store, goal=["a door", " "])
    for option, said in ((("--goal", ""), "--goal is empty"), (("--goal", "a door", "--task", ""), "--task is empty")):
        done = sightline("label", "import", tmp_path, "--into", tmp_path / "store", *option)
        assert (done.code, len(done.lines)) == (2, 1) and said in done.err


def test_nothing_to_import_is_said(tmp_path: Path, store: LabelStore) -> None:
    with pytest.raises(BadInput, match="there is no file"):
        import_labels([tmp_path / "nothing"], store, GOAL)
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=r"no \*\.pkl under"):
        import_labels([tmp_path / "folder"], store, GOAL)


def changed(index: int, change: Callable[[np.ndarray], Any]) -> list[Any]:
    content: list[Any] = arrays(3)
    content[index] = change(content[index])
    return content


WRONG: dict[str, tuple[object, str]] = {
    "six arrays": (arrays(3)[:6], "6 arrays instead of seven"),
    "a list of lists": ([[1]] * 7, "no list of arrays"),
    "a number": (7, "no list of arrays"),
    "one array": (arrays(3)[0], "no list of arrays"),
    "a label too few": (changed(2, lambda labels: labels[:2]), "different lengths"),
    "a scalar": (changed(2, lambda labels: np.float64(1)), "different lengths"),
    "two labels each": (changed(2, lambda labels: np.repeat(labels, 2, axis=1)), "one label for each pair"),
    "label 2": (changed(2, lambda labels: labels + 2), "not 0, 1 or -1"),
    "oracle 7": (changed(1, lambda oracle: oracle + 7), "not 0, 1 or -1"),
    "score 1.5": (changed(2, lambda labels: labels * 0 + 1.5), "not in"),
    "score nan": (changed(2, lambda labels: labels * np.nan), "not finite"),
    "grey": (changed(0, lambda images: images[..., 0]), "not RGB"),
    "floats": (changed(0, lambda images: images / 255), "not RGB"),
    "odd width": (changed(0, lambda images: images[:, :, :5]), "two side by side"),
    "no height": (changed(0, lambda images: images[:, :0]), "two side by side"),
    "flat actions": (changed(3, lambda actions: actions[:, 0]), "three axes"),
    "no rewards": (changed(5, lambda rewards: rewards[:, :0]), "rewards"),
    "objects": (changed(5, lambda rewards: rewards.astype(object)), "something else than numbers"),
    "strings": (changed(5, lambda rewards: rewards.astype(str)), "something else than numbers"),
    "dates": (changed(5, lambda rewards: rewards.astype("M8[s]")), "something else than numbers"),
    "records": (changed(5, lambda rewards: np.zeros(3, [("a", "f4")])), "EMPTY_DICT"),
}


@pytest.mark.parametrize(("content", "reason"), WRONG.values(), ids=WRONG)
def test_files_that_are_something_else_are_refused(
    tmp_path: Path, store: LabelStore, content: object, reason: str
) -> None:
    file = write(tmp_path / "it.pkl", content)
    with pytest.raises(BadInput, match=reason) as refusal:
        import_labels([file], store, GOAL)
    assert "it.pkl" in str(refusal.value) and "\n" not in str(refusal.value)
    assert store.labels() == []


# -- hostile files ---------------------------------------------------------------------------------------------------


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def calling(module: str, name: str, arguments: bytes) -> bytes:
    return b"\x80\x05" + text(module) + text(name) + b"\x93" + arguments + b"R."


def nested(depth: int) -> bytes:
    return b"\x80\x05" + b"]" * depth + b"a" * (depth - 1) + b"."


U1 = text("numpy") + text("dtype") + b"\x93" + text("u1") + b"\x89\x88\x87R"
HUGE = b"\x8a\x06" + (10**12).to_bytes(6, "little")  # a whole number of six bytes


def hostile(trace: Path) -> dict[str, bytes]:
    """Files that would leave a trace if anything in them were carried out, or take memory that they do not have."""
    touch = f"touch {trace}"
    write_it = f"open({str(trace)!r}, 'w')"
    harmless = pickle.dumps(arrays(1), 5)
    return {
        "os.system": pickle.dumps([Calls(os.system, touch), *arrays(1)[1:]], 5),
        "os.system, protocol 0": pickle.dumps(Calls(os.system, touch), 0),
        "os.system, after all": harmless[:-1] + b"0" + pickle.dumps(Calls(os.system, touch), 5)[2:],
        "builtins.eval": pickle.dumps(Calls(eval, write_it), 5),
        "builtins.exec": pickle.dumps(Calls(exec, write_it), 5),
        "builtins.getattr": pickle.dumps(Calls(getattr, "a", "upper"), 5),
        "numpy's own eval": calling("numpy.testing._private.utils", "runstring", text(write_it) + b"}\x86"),
        "a name with dots": calling("numpy.core", "multiarray._reconstruct.__globals__", b")"),
        "dotted from a known one": calling("numpy", "dtype.__init__", b")"),
        "an object's instance": b"\x80\x05(" + text("os") + text("system") + b"\x93o.",
        "INST": b"(V" + touch.encode() + b"\nios\nsystem\n.",
        "an extension's code": b"\x80\x05\x82\x01.",
        "a persistent id": b"\x80\x05Phello\n.",
        "something outside": b"\x80\x05\x97.",
        "a dictionary for attributes": (
            b"\x80\x05" + text("numpy") + text("dtype") + b"\x93}" + text("dtype") + text("x") + b"sb."
        ),
        "a huge buffer": b"\x80\x05\x96" + struct.pack("<Q", 10**12) + b"12.",
        "huge bytes": b"\x80\x05\x8e" + struct.pack("<Q", 10**12) + b"12.",
        "huge text": b"\x80\x05\x8d" + struct.pack("<Q", 10**12) + b"12.",
        "a huge frame": b"\x80\x05\x95" + struct.pack("<Q", 10**12) + b"].",
        "a far place in the memo": b"\x80\x05]r" + struct.pack("<I", 2**31 - 1) + b".",
        "a huge array": calling(
            "numpy._core.numeric", "_frombuffer", b"(C\x0212" + U1 + HUGE + b"\x85" + text("C") + b"t"
        ),
        "a huge placeholder": calling(
            "numpy.core.multiarray",
            "_reconstruct",
            text("numpy") + text("ndarray") + b"\x93" + HUGE + b"\x85C\x01b\x87",
        )[:-1]
        + b"\x85.",
        "a huge empty array": calling(
            "numpy._core.numeric", "_frombuffer", b"(C\x00" + U1 + b"K\x00" + HUGE * 3 + b"t" + text("C") + b"t"
        ),
        "a negative array": calling(
            "numpy._core.numeric", "_frombuffer", b"(C\x0212" + U1 + b"J\xff\xff\xff\xff\x85" + text("C") + b"t"
        ),
        "deeply nested": nested(MAX_INSTRUCTIONS // 2 - 10),
        "too deeply nested": nested(2_000_000),
        "many instructions": b"\x80\x05" + b"N" * 100_000 + b"].",
        "a huge number": b"\x80\x05\x8b" + struct.pack("<i", 2**30) + b"1.",
        "digits without end": b"I" + b"9" * 5000 + b"\n.",
        "cut off": harmless[: len(harmless) // 2],
        "without an end": harmless[:-1],
        "empty": b"",
        "text": b"hello, this is no pickle at all\n",
        "zeros": bytes(1000),
    }


REASONS = {
    "os.system": "wants to call posix.system",
    "an object's instance": "instruction OBJ",
    "a dictionary for attributes": "instruction EMPTY_DICT",
    "a far place in the memo": "absurd amount of memory",
    "a huge frame": "longer than it is",
    "a huge array": "shape does not fit",
    "a huge placeholder": "without content",
    "a negative array": "shape does not fit",
    "deeply nested": "no list of arrays",
    "too deeply nested": "more than 10000 pickle instructions",
    "many instructions": "more than 10000 pickle instructions",
}
"""Why some are refused: before anything else could have refused them."""


@pytest.mark.parametrize("name", hostile(Path("trace")))
def test_hostile_files_are_refused_and_nothing_runs(tmp_path: Path, store: LabelStore, name: str) -> None:
    trace = tmp_path / "trace"
    file = write(tmp_path / "evil.pkl", hostile(trace)[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadInput, match=REASONS.get(name)) as refusal:
        import_labels([file], store, GOAL)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000  # kilobytes
    assert "evil.pkl" in str(refusal.value) and "\n" not in str(refusal.value)
    assert not trace.exists()
    assert store.labels() == []


def test_the_hostile_files_would_work_elsewhere(tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    trace = tmp_path / "trace"
    for name in (
        "os.system",
        "os.system, protocol 0",
        "os.system, after all",
        "builtins.eval",
        "builtins.exec",
        "INST",
    ):
        pickle.loads(hostile(trace)[name])
        assert trace.exists(), name
        trace.unlink()


def test_a_name_of_two_lines_is_told_in_one(tmp_path: Path) -> None:
    content = pickle.dumps([array[:, :1] for array in arrays(1)], 5).replace(b"numpy", b"\numpy", 1)
    with pytest.raises(BadInput, match=r"it wants to call umpy\.\S+$"):
        read_arrays(write(tmp_path / "damaged.pkl", content))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_makes_more_than_bad_input(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(pickle.dumps([array[:, :1] for array in arrays(1)], 5))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = write(tmp_path_factory.getbasetemp() / "damaged.pkl", bytes(content))
    message = ""
    try:
        assert all(isinstance(array, np.ndarray) for array in read_arrays(file))
    except BadInput as refusal:
        message = str(refusal)
    assert "\n" not in message


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_imports_and_says_how_far_the_labels_agree(sightline: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path / "CartPole" / "seed_0" / "1.pkl", arrays(4, labels=[0, 1, 1, 1], oracle=[0, 1, 1, 0]))
    command = ("label", "import", tmp_path / "CartPole", "--into", "store", "--goal", "a pole upright")
    done = sightline(*command)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "imported    4 labels from 1 files",
        "agreement   75 % of 4 with the environment's reward",
    ]
    again = json.loads(sightline(*command, "--json").out)
    assert again == {"files": 1, "pairs": 0, "skipped": 4, "compared": 4, "agreement": 0.75}


def test_the_command_refuses_in_one_line(sightline: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path / "x.pkl", pickle.dumps(Calls(os.system, "true"), 5))
    done = sightline("label", "import", tmp_path / "x.pkl", "--into", "store", "--goal", "a pole upright")
    assert (done.code, len(done.lines), done.out) == (2, 1, "")
    assert "wants to call posix.system" in done.lines[0]
