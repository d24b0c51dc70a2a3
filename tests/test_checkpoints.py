"""Checkpoints: whole or not there, damage is noticed, nothing saved before is lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from sightline.errors import RunFailed
from sightline.runs.checkpoints import MANIFEST, CheckpointStore
from sightline.runs.files import write_atomically
from sightline.runs.folder import RunFolder
from sightline.runs.lease import LEASE, LeaseLost, take_lease


def save(store: CheckpointStore, step: int, content: str) -> None:
    with store.writing(step) as folder:
        (folder / "policy.safetensors").write_text(content)
        (folder / "session.safetensors").write_bytes(content.encode() * 1000)


def write_until(error: BaseException, store: CheckpointStore, step: int, files: int = 0) -> None:
    with store.writing(step) as folder:
        for i in range(files):
            (folder / f"file{i}").write_text("part")
        raise error


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(RunFolder(tmp_path), "step", keep=3)
    for step in (100, 200, 300):
        save(store, step, str(step))
    return store


def read(store: CheckpointStore) -> tuple[int, str] | None:
    found = store.latest()
    return None if found is None else (found.step, (found.path / "policy.safetensors").read_text())


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_the_newest_is_found(store: CheckpointStore) -> None:
    assert read(store) == (300, "300")
    save(store, 12_345_678_901, "later")
    assert read(store) == (12_345_678_901, "later")


def test_nothing_saved_yet(tmp_path: Path) -> None:
    assert CheckpointStore(RunFolder(tmp_path), "step", 2).latest() is None


def test_only_the_latest_are_kept_and_kinds_do_not_mix(store: CheckpointStore, tmp_path: Path) -> None:
    best = CheckpointStore(RunFolder(tmp_path), "best", keep=1)
    for step in (150, 250):
        save(best, step, f"best {step}")
    save(store, 400, "400")
    kept = [f"step-{step:012d}" for step in (200, 300, 400)]
    assert names(tmp_path) == ["best-000000000250", *kept]
    assert read(best) == (250, "best 250")
    assert read(store) == (400, "400")


def test_saving_the_same_step_again_replaces_it(store: CheckpointStore) -> None:
    save(store, 300, "again")
    assert read(store) == (300, "again")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_full_disk_leaves_earlier_checkpoints_whole(store: CheckpointStore, tmp_path: Path, after: int) -> None:
    with pytest.raises(RunFailed, match="No space left on device") as caught:
        write_until(OSError(errno.ENOSPC, "No space left on device"), store, 400, files=after)
    assert "\n" not in str(caught.value)
    assert "--resume" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert read(store) == (300, "300")
    assert names(tmp_path) == [f"step-{s:012d}" for s in (100, 200, 300)]
    assert all(checkpoint.damage() is None for checkpoint in store.all())


def test_a_full_disk_while_replacing_a_step_leaves_the_old_one(store: CheckpointStore) -> None:
    with pytest.raises(RunFailed):
        write_until(OSError(errno.ENOSPC, "No space left on device"), store, 300)
    assert read(store) == (300, "300")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=repr)
@pytest.mark.parametrize("renames", [0, 1])
def test_the_only_checkpoint_outlives_an_interruption_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, renames: int
) -> None:
    """Also between the moment when it gives up its name, and that when the new one has it."""
    store = CheckpointStore(RunFolder(tmp_path), "step", keep=1)
    save(store, 100, "old")
    rename, calls = Path.rename, []

    def interrupted(self: Path, target: Path) -> Path:
        if len(calls) == renames:
            raise error
        calls.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises((RunFailed, KeyboardInterrupt)):
            save(store, 100, "new")
    assert read(store) == (100, "old")
    save(store, 100, "newer")
    assert read(store) == (100, "newer")
    assert names(tmp_path) == ["step-000000000100"]


def test_a_writer_that_was_replaced_while_it_wrote_publishes_nothing(tmp_path: Path) -> None:
    """Where the file system has no locks, the lease alone tells."""
    lease = take_lease(tmp_path)
    try:
        store = CheckpointStore(RunFolder(tmp_path, lease), "step", keep=1)
        save(store, 100, "ours")

        def save_late() -> None:
            with store.writing(200) as folder:
                (folder / "policy.safetensors").write_text("late")
                document = json.loads((tmp_path / LEASE).read_text())
                (tmp_path / LEASE).write_text(json.dumps(document | {"id": "another"}))

        with pytest.raises(LeaseLost):
            save_late()
        assert names(tmp_path) == ["step-000000000100"]
    finally:
        lease.release()


def test_any_other_error_leaves_earlier_checkpoints_whole(store: CheckpointStore) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_until(KeyboardInterrupt(), store, 400, files=1)
    assert read(store) == (300, "300")
    save(store, 400, "400")
    assert read(store) == (400, "400")


@pytest.mark.parametrize("damage", ["truncated", "altered", "emptied", "missing", "no manifest", "manifest cut"])
def test_damage_falls_back_to_the_one_before_and_says_so(store: CheckpointStore, damage: str) -> None:
    newest = store.latest()
    assert newest is not None
    file = newest.path / (MANIFEST if "manifest" in damage else "session.safetensors")
    content = file.read_bytes()
    if damage in ("missing", "no manifest"):
        file.unlink()
    else:
        kinds = {"truncated": content[:-7], "altered": b"4" + content[1:], "emptied": b"", "manifest cut": content[:9]}
        file.write_bytes(kinds[damage])
    said: list[str] = []
    found = store.latest(said.append)
    assert found is not None
    assert found.step == 200
    (line,) = said
    assert "step-000000000300" in line
    assert "falling back" in line
    assert "\n" not in line
    assert file.name in line or "manifest" in line


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_just_written_is_kept_whatever_is_damaged(tmp_path: Path, keep: int) -> None:
    store = CheckpointStore(RunFolder(tmp_path), "step", keep)
    for step in (100, 200, 300):
        save(store, step, str(step))
    for damaged in store.all():
        (damaged.path / "policy.safetensors").unlink()
    save(store, 50, "50")
    assert read(store) == (50, "50")
    assert [one.step for one in store.all()] == [50], "what was passed over is made again"


def test_when_all_are_damaged_there_is_none(store: CheckpointStore, tmp_path: Path) -> None:
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "policy.safetensors").unlink()
    said: list[str] = []
    assert store.latest(said.append) is None
    assert len(said) == 3


def test_what_a_kill_left_behind_is_ignored_and_cleared(store: CheckpointStore, tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / ".writing-step-000000000400"
    left.mkdir()
    (left / "policy.safetensors").write_text("half")
    assert read(store) == (300, "300")
    save(store, 400, "400")
    found = store.latest()
    assert found is not None
    assert found.step == 400
    assert found.damage() is None
    assert not left.exists()


def test_the_manifest_names_every_file(store: CheckpointStore) -> None:
    found = store.latest()
    assert found is not None
    manifest = json.loads((found.path / MANIFEST).read_text())
    assert manifest["format"] == 1
    assert sorted(manifest["files"]) == ["policy.safetensors", "session.safetensors"]
    assert all(len(digest) == 64 for digest in manifest["files"].values())


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "result.json"
    write_atomically(target, b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, b"after")
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]
