"""Checkpoints: folders that are whole or not there, with a manifest by which damage is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import RunFailed

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A saved state: `path` is its folder, `step` the number of transitions before it."""

    path: Path
    step: int

    def damage(self) -> str | None:
        """What is wrong with its files, None if they are as they were written."""
        try:
            manifest = json.loads((self.path / MANIFEST).read_text())
        except (OSError, ValueError):
            return "its manifest cannot be read"
        for name, digest in manifest.items():
            file = self.path / name
            if not file.is_file():
                return f"{name} is missing"
            if _digest(file) != digest:
                return f"{name} is not as it was written"
        return None

    def remove(self) -> None:
        """Remove it, if it is there."""
        shutil.rmtree(self.path, ignore_errors=True)


class CheckpointStore:
    """Numbered checkpoints of one kind in a folder.

    Args:
        folder: where they live.
        kind: prefix of their names, such as `step` or `best`.
        keep: how many of the latest to keep.
    """

    def __init__(self, folder: Path, kind: str, keep: int) -> None:
        self._folder, self._kind, self._keep = folder, kind, keep

    def save(self, step: int, write: Callable[[Path], None]) -> Checkpoint:
        """Write a checkpoint, then remove those that are too old.

        Args:
            step: its number.
            write: fills a folder that it is given.

        Raises:
            RunFailed: the files could not be written (a full disk, say); earlier checkpoints are untouched.
        """
        final = self._folder / f"{self._kind}-{step:012d}"
        temporary = self._folder / f".writing-{final.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            write(temporary)
            files = sorted(file for file in temporary.rglob("*") if file.is_file())
            for file in files:
                _flush(file)
            (temporary / MANIFEST).write_text(
                json.dumps({str(file.relative_to(temporary)): _digest(file) for file in files})
            )
            _flush(temporary / MANIFEST)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise RunFailed(
                f"checkpoint {step} could not be written ({error.strerror or error}); earlier checkpoints in "
                f"{self._folder} are whole: make room, then go on with --resume"
            ) from error
        for old in list(self._all())[self._keep :]:
            old.remove()
        return Checkpoint(final, step)

    def latest(self, warn: Callable[[str], None] = lambda message: None) -> Checkpoint | None:
        """The newest undamaged checkpoint; says which newer ones were passed over."""
        for checkpoint in self._all():
            damage = checkpoint.damage()
            if damage is None:
                return checkpoint
            warn(f"checkpoint {checkpoint.path.name} is damaged ({damage}); falling back to the one before")
        return None

    def clear(self) -> None:
        """Remove all of them."""
        for checkpoint in self._all():
            checkpoint.remove()

    def _all(self) -> Iterator[Checkpoint]:
        """Newest first."""
        for path in sorted(self._folder.glob(f"{self._kind}-*"), reverse=True):
            yield Checkpoint(path, int(path.name.rpartition("-")[2]))


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
