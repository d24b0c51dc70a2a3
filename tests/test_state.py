"""State as files: what is read equals what was written, and a file that is none is refused in one line."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sightline.errors import BadInput, Damaged
from sightline.runs.archive import Archive, Archives
from sightline.runs.files import read_bytes, read_document, write_document
from sightline.runs.state import read_state, restoring, write_state


def same(mine: Any, theirs: Any) -> bool:
    """Whether two nested values are equal in every type and bit."""
    if isinstance(theirs, np.ndarray):
        return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
    if isinstance(theirs, torch.Tensor):
        return mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs)
    if type(mine) is not type(theirs):
        return False
    if isinstance(theirs, dict):
        return list(mine) == list(theirs) and all(same(mine[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    return bool(mine == theirs) or (isinstance(theirs, float) and math.isnan(mine) and math.isnan(theirs))


arrays = st.sampled_from([np.uint8, np.int64, np.float16, np.float32, np.float64, np.bool_]).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: np.ones(shape, dtype))
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | arrays
keys = st.text(max_size=4) | st.integers(0, 9) | st.sampled_from(["$array", "a/b", "a"])
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(trees)
def test_describe_observations_equals_what_was_written(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder) / "state.safetensors", tree)
        assert same(read_state(Path(folder) / "state.safetensors"), tree)


def test_optimisers_and_random_numbers_go_on_alike(tmp_path: Path) -> None:
    torch.manual_seed(3)
    layer = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    state = {
        "optimiser": optimiser.state_dict(),
        "half": torch.randn(4).bfloat16(),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "random": (random.getstate(), np.random.get_state(), torch.get_rng_state()),
    }
    file = tmp_path / "state.safetensors"
    write_state(file, state)
    read = read_state(file)
    assert same(read, state)
    again = tmp_path / "again.safetensors"
    write_state(again, state)
    assert again.read_bytes() == file.read_bytes(), "equal states are equal files"
    assert file.stat().st_mode & 0o666 == tmp_path.stat().st_mode & 0o666, "who may read the folder may read it"
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    random.setstate(read["random"][0])
    np.random.set_state(read["random"][1])
    torch.set_rng_state(read["random"][2])
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn
    optimiser.load_state_dict(read["optimiser"])


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["text"]), np.array([None]), b"bytes", 1j])
def test_only_plain_data_is_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError):
        write_state(tmp_path / "state.safetensors", {"deep": [value]})
    assert not (tmp_path / "state.safetensors").exists()


def hostile_states() -> dict[str, bytes]:
    return {
        "empty": b"",
        "pickle": pickle.dumps({"a": 1}),
        "header of nothing": (2**63).to_bytes(8, "little"),
        "no JSON": b"\x08\0\0\0\0\0\0\0notjson!",
    }


@pytest.mark.parametrize("name", list(hostile_states()))
def test_a_file_that_is_no_state_is_damage(tmp_path: Path, name: str) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(hostile_states()[name])
    with pytest.raises(Damaged) as caught:
        read_state(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "error", "expected"),
    [
        ('{"format": 1, "state": {"$array": "missing"}}', Damaged, "missing"),
        ('{"format": 1, "state": {"$float": "three"}}', Damaged, "damaged"),
        ('{"format": 1, "state": {"$dict": [[1]]}}', Damaged, "damaged"),
        ('{"format": 1, "state": {"$dict": [[{}, 1]]}}', Damaged, "damaged"),
        ('{"format": 1, "state": ' + "[" * 100_000, Damaged, "damaged"),
        ('{"format": 1}', Damaged, "damaged"),
        ('{"format": 1, "state": [{"$array": "there"}, {"$array": "there"}]}', Damaged, "twice"),
        ("[]", Damaged, "damaged"),
        ('{"format": 2, "state": {}}', BadInput, "format 2"),
        ('{"format": "one", "state": {}}', BadInput, "format one"),
        ("{}", BadInput, "no format number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_state_that_says_something_else_is_refused(
    tmp_path: Path, metadata: str, error: type[BadInput], expected: str
) -> None:
    file = tmp_path / "state.safetensors"
    save_file({"there": np.ones(2)}, file, {"sightline": metadata})
    with pytest.raises(error, match=expected) as caught:
        read_state(file)
    assert "\n" not in str(caught.value)


def test_a_state_behind_a_link_is_not_read(tmp_path: Path) -> None:
    write_state(tmp_path / "elsewhere", 1)
    (tmp_path / "state.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged, match="not a regular file"):
        read_state(tmp_path / "state.safetensors")


def test_a_state_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"does not fit its run's recipe.*'missing'"), restoring(tmp_path):
        {}["missing"]


# -- rows that are written once ----------------------------------------------------------------------------------------


def test_rows_are_written_once_and_let_go_when_nobody_needs_them(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "rows")
    archive.append(0, {"a": np.arange(4)})
    archive.append(4, {"a": np.arange(4, 6)}, oldest=1)
    archive.append(6, {"a": np.arange(0)}, oldest=1)
    assert [(part.start, part.end) for part in archive.parts] == [(0, 4), (4, 6)]
    assert archive.end == 6
    first = tmp_path / archive.parts[0].name
    before = first.stat().st_mtime_ns
    archive.append(9, {"a": np.arange(9, 12)}, oldest=5)  # rows 6 to 8 were overwritten meanwhile
    assert [(part.start, part.end) for part in archive.parts] == [(4, 6), (9, 12)]
    assert first.stat().st_mtime_ns == before
    again = Archives(tmp_path)
    again.restore({"rows": archive.state()})
    assert [(start, rows["a"].tolist()) for start, rows in again["rows"].read()] == [(4, [4, 5]), (9, [9, 10, 11])]
    assert again.digests() == archive.digests()


@pytest.mark.parametrize("name", ["../rows-000000000000-000000000002.safetensors", "/etc/passwd", "rows", ""])
def test_an_archive_names_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(Damaged, match="not the name of an archive file"):
        Archive(tmp_path, "rows").restore([{"name": name, "start": 0, "end": 2, "digest": "0" * 64}])


def test_an_archive_with_other_rows_than_its_name_says_is_damage(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "rows")
    archive.append(0, {"a": np.arange(4)})
    write_state(tmp_path / archive.parts[0].name, {"a": np.arange(3)})
    with pytest.raises(Damaged, match="its rows are not those"):
        list(archive.read())


# -- documents ---------------------------------------------------------------------------------------------------------


def test_documents_carry_a_format_number(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_document(file, {"a": [1, None]})
    assert json.loads(file.read_text()) == {"format": 1, "a": [1, None]}
    assert read_document(file) == {"a": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_document(file, {"a": float("nan")})
    assert read_document(file) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is damaged"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "is damaged"),
        ("9" * 10_000, "is damaged"),
        ('{"a": 1}', "no format number"),
        ('{"format": 2}', "format 2"),
        ('{"format": true}', "format True"),
    ],
    ids=lambda value: value[:20],
)
def test_a_document_that_is_none_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=expected) as caught:
        read_document(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    link, pipe, large = tmp_path / "link", tmp_path / "pipe", tmp_path / "large"
    link.symlink_to("/etc/hostname")
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(10**12)
    for path, expected in (
        (link, "a link"),
        (pipe, "not a regular file"),
        (large, "damaged"),
        (tmp_path, "regular file"),
    ):
        with pytest.raises(Damaged, match=expected):
            read_bytes(path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "missing")
