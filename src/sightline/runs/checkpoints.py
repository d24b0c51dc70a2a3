"""Checkpoints: folders that are whole or not there, with a manifest by which damage is noticed.

checkpoints/step-000000000640/     what changes as a whole: weights, optimisers, counters
  manifest.json                    {"format": 1, "files": {name: SHA-256}, "shared": {name: SHA-256}}
replay/transitions-….safetensors   what only grows (see `runs/archive.py`): written once, named by every checkpoint
                                   that needs it, removed when none does
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from sightline.errors import BadInput, Damaged, RunFailed
from sightline.runs.files import read_document, write_document
from sightline.runs.folder import RunFolder

MANIFEST = "manifest.json"
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*){0,3}")
"""Files that a manifest may name: inside of its folder, never above it."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """A saved state: `path` is its folder, `step` the number of transitions before it, `shared` where files lie that it
    has in common with other checkpoints."""

    path: Path
    step: int
    shared: Path

    def damage(self) -> str | None:
        """Compare all files with the manifest; gives what is wrong, None if they are as they were written."""
        try:
            files, shared = self._manifest()
            expected = {self.path / name: digest for name, digest in files.items()}
            expected |= {self.shared / name: digest for name, digest in shared.items()}
            for file, digest in expected.items():
                _check_file(file, digest, self.path)
        except Damaged as error:
            return str(error)
        return None

    def needs(self) -> set[str]:
        """Names of the shared files that it cannot do without; none if its manifest is damaged, and so it is lost."""
        try:
            return set(self._manifest()[1])
        except BadInput:
            return set()

    def remove(self) -> None:
        """Remove it, if it is there."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _manifest(self) -> tuple[dict[str, str], dict[str, str]]:
        """Name -> SHA-256 of its own files and of the shared ones.

        Raises:
            Damaged: it cannot be read, or names files elsewhere.
            BadInput: it is of another format.
        """
        try:
            document = read_document(self.path / MANIFEST)
        except FileNotFoundError as error:
            raise Damaged("its manifest is missing") from error
        except Damaged as error:
            raise Damaged("its manifest cannot be read") from error
        found = (document.get("files"), document.get("shared"))
        for listed in found:
            if not isinstance(listed, dict) or not all(
                _NAME.fullmatch(name) and isinstance(digest, str) and _DIGEST.fullmatch(digest)
                for name, digest in listed.items()
            ):
                raise Damaged("its manifest is none")
        return found  # type: ignore[return-value]


class CheckpointStore:
    """Numbered checkpoints of one kind.

    Args:
        run: whose they are; nothing is written unless this process owns it.
        kind: prefix of their names, such as `step` or `best`.
        keep: how many of the latest to keep.
    """

    def __init__(self, run: RunFolder, kind: str, keep: int) -> None:
        self._run, self._folder, self._kind, self._keep = run, run.checkpoints, kind, keep

    def save(self, step: int, write: Callable[[Path], Mapping[str, str] | None]) -> Checkpoint:
        """Write a checkpoint, then remove those that are too old, and shared files that no checkpoint needs any more.

        Args:
            step: its number.
            write: fills a folder that it is given; may return shared files that it needs as well, name -> SHA-256.

        Raises:
            RunFailed: the files could not be written (a full disk, say), or the run has another owner by now; earlier
                checkpoints are untouched.
        """
        final = self._folder / f"{self._kind}-{step:012d}"
        temporary = self._folder / f".writing-{final.name}"
        with self._run.writing():
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir(parents=True)
                shared = write(temporary) or {}
                files = sorted(file for file in temporary.rglob("*") if file.is_file())
                for file in files:
                    flush(file)
                digests = {str(file.relative_to(temporary)): digest(file) for file in files}
                write_document(temporary / MANIFEST, {"files": digests, "shared": dict(shared)})
                shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
                flush_folder(self._folder)
            except BaseException as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if not isinstance(error, OSError):
                    raise
                raise RunFailed(
                    f"checkpoint {step} could not be written ({error.strerror or error}); earlier checkpoints in "
                    f"{self._folder} are whole: make room, then go on with --resume"
                ) from error
            # Those with higher numbers were passed over as damaged, or belong to a future that is made again.
            others = [one for one in self.all() if one.path != final]
            older = [one for one in others if one.step < step]
            for one in others:
                if one not in older[: self._keep - 1]:
                    one.remove()
            if shared:
                self._sweep()
        return Checkpoint(final, step, self._run.replay)

    def latest(self, warn: Callable[[str], None] = lambda message: None) -> Checkpoint | None:
        """The newest undamaged checkpoint; says which newer ones were passed over.

        Raises:
            BadInput: one is of another format.
        """
        for checkpoint in self.all():
            damage = checkpoint.damage()
            if damage is None:
                return checkpoint
            warn(f"checkpoint {checkpoint.path.name} is damaged ({damage}); falling back to the one before")
        return None

    def clear(self) -> None:
        """Remove all of them."""
        with self._run.writing():
            for checkpoint in self.all():
                checkpoint.remove()

    def all(self) -> Iterator[Checkpoint]:
        """Newest first, whole or not."""
        named = re.compile(re.escape(self._kind) + r"-(\d{12})")
        for path in sorted(self._folder.glob(f"{self._kind}-*"), reverse=True):
            match = named.fullmatch(path.name)
            if match is not None and path.is_dir() and not path.is_symlink():
                yield Checkpoint(path, int(match[1]), self._run.replay)

    def _sweep(self) -> None:
        """Remove shared files that no checkpoint of this kind names: of transitions that the ring has overwritten, and
        of checkpoints that were never finished."""
        needed = set().union(*(checkpoint.needs() for checkpoint in self.all()))
        for file in self._run.replay.iterdir():
            if file.name not in needed:
                file.unlink(missing_ok=True)


def digest(file: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush(file: Path) -> None:
    """Make sure that a file is on the disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_file(file: Path, expected: str, owner: Path) -> None:
    name = file.relative_to(owner) if file.is_relative_to(owner) else file.name
    if file.is_symlink() or not file.is_file():
        raise Damaged(f"{name} is {'a link' if file.is_symlink() else 'missing'}")
    size = file.stat().st_size
    if size > psutil.virtual_memory().total:  # it is read into memory later; a sparse file may claim any size
        raise Damaged(f"{name} has {size / 2**30:.0f} GiB, more than fits into memory")
    if digest(file) != expected:
        raise Damaged(f"{name} is not as it was written")
