"""Checkpoints: folders that are written atomically, with a manifest of checksums to detect damage.

checkpoints/step-000000000640/     state that changes as a whole: weights, optimisers, counters
  manifest.json                    {"format": 1, "files": {name: SHA-256}, "shared": {name: SHA-256}}
replay/transitions-….safetensors   state that only grows (see `runs/archive.py`): written once, listed by every
                                   checkpoint that needs it, removed when none does
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sightline.errors import BadInput, Damaged, RunFailed
from sightline.runs.files import read_document, write_document
from sightline.runs.folder import REPLACED, RunFolder

MANIFEST = "manifest.json"
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*){0,3}")
"""File names allowed in a manifest: relative paths inside its folder."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint of a run.

    Attributes:
        path: its folder.
        step: number of transitions or turns before it.
        shared: folder of the files that checkpoints share.
    """

    path: Path
    step: int
    shared: Path

    def damage(self) -> str | None:
        """Compare all files with the manifest; returns the first damage in words, None if there is none."""
        try:
            files, shared = self._manifest()
            for name, digest in files.items():
                _check_file(self.path / name, digest, self.path)
            for name, digest in shared.items():
                _check_file(self.shared / name, digest, self.path)
        except Damaged as error:
            return str(error)
        return None

    def needs(self) -> set[str]:
        """Names of the shared files that it needs; none if its manifest is damaged, which makes it useless."""
        try:
            _, shared = self._manifest()
        except BadInput:
            return set()
        return set(shared)

    def remove(self) -> None:
        """Remove the checkpoint, if it exists."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _manifest(self) -> tuple[dict[str, str], dict[str, str]]:
        """Read the manifest: (name -> SHA-256 of its own files, the same of the shared files).

        Raises:
            Damaged: it cannot be read, or names files outside of the checkpoint.
            BadInput: it has another format number.
        """
        try:
            document = read_document(self.path / MANIFEST)
        except FileNotFoundError as error:
            raise Damaged("its manifest is missing") from error
        except Damaged as error:
            raise Damaged("its manifest cannot be read") from error
        return _checked_list(document.get("files")), _checked_list(document.get("shared"))


class CheckpointStore:
    """Numbered checkpoints of one kind.

    Args:
        run: whose they are; nothing is written unless this process owns it.
        kind: prefix of their names, such as `step` or `best`.
        keep: how many of the latest to keep.
    """

    def __init__(self, run: RunFolder, kind: str, keep: int) -> None:
        self._run = run
        self._folder = run.checkpoints
        self._kind = kind
        self._keep = keep

    @contextlib.contextmanager
    def writing(self, step: int, shared_files: Callable[[], Mapping[str, str]] = dict) -> Iterator[Path]:
        """Context in which a checkpoint is written; at its end old ones are removed, and shared files that no
        checkpoint needs any more.

        Args:
            step: number of the checkpoint.
            shared_files: called at the end of the context; gives the shared files that the checkpoint needs,
                name -> SHA-256.

        Yields:
            The folder to write the checkpoint's files into. It takes the checkpoint's name once all of them are on
            disk, so an error within the context leaves earlier checkpoints as they were.

        Raises:
            RunFailed: the files could not be written (a full disk, for example), or another process has taken over the
                run; earlier checkpoints are unchanged.
        """
        final = self._folder / f"{self._kind}-{step:012d}"
        temporary = self._folder / f".writing-{final.name}"
        replaced = self._folder / f"{REPLACED}{final.name}"
        with self._run.writing():
            # What a process left that was killed while it wrote this checkpoint.
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir(parents=True)
                yield temporary
                shared = shared_files()
                files = sorted(file for file in temporary.rglob("*") if file.is_file())
                for file in files:
                    flush(file)
                digests = {str(file.relative_to(temporary)): digest(file) for file in files}
                write_document(temporary / MANIFEST, {"files": digests, "shared": dict(shared)})
                self._run.check_owned()
                # All is on disk by now, so after a crash the checkpoint is there whole, or not at all.
                if final.exists():
                    # The step was saved before the run was resumed: that one stays until the new one has its name.
                    shutil.rmtree(replaced, ignore_errors=True)
                    final.rename(replaced)
                temporary.rename(final)
                flush_folder(self._folder)
            except BaseException as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if not isinstance(error, OSError):
                    raise
                raise RunFailed(
                    f"checkpoint {step} could not be written ({error.strerror or error}); earlier checkpoints in "
                    f"{self._folder} are intact: free some space, then resume with --resume"
                ) from error
            shutil.rmtree(replaced, ignore_errors=True)
            # Later checkpoints were skipped as damaged, or belong to steps that are being repeated: remove them too.
            others = [checkpoint for checkpoint in self.all() if checkpoint.path != final]
            older = [checkpoint for checkpoint in others if checkpoint.step < step]
            for checkpoint in others:
                if checkpoint not in older[: self._keep - 1]:
                    checkpoint.remove()
            if shared:
                # Shared files that no checkpoint lists hold overwritten rows, or belong to an unfinished checkpoint.
                needed = set().union(*(checkpoint.needs() for checkpoint in self.all()))
                for file in self._run.replay.iterdir():
                    if file.name not in needed:
                        file.unlink(missing_ok=True)

    def latest(self, warn: Callable[[str], None] = lambda message: None) -> Checkpoint | None:
        """Newest undamaged checkpoint, None if there is none.

        Args:
            warn: called with a line about each newer checkpoint that is damaged.

        Raises:
            BadInput: a checkpoint has another format number.
        """
        for checkpoint in self.all():
            damage = checkpoint.damage()
            if damage is None:
                return checkpoint
            warn(f"checkpoint {checkpoint.path.name} is damaged ({damage}); falling back to the one before")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        with self._run.writing():
            for checkpoint in self.all():
                checkpoint.remove()

    def all(self) -> Iterator[Checkpoint]:
        """Iterate over all checkpoints, newest first, damaged or not."""
        pattern = re.compile(re.escape(self._kind) + r"-(\d{12})")
        folders = {path.name: path for path in self._folder.glob(f"{self._kind}-*")}
        for path in self._folder.glob(f"{REPLACED}{self._kind}-*"):
            # A process was killed before the new checkpoint had its name.
            folders.setdefault(path.name.removeprefix(REPLACED), path)
        for name, path in sorted(folders.items(), reverse=True):
            match = pattern.fullmatch(name)
            if match is not None and path.is_dir() and not path.is_symlink():
                yield Checkpoint(path, int(match[1]), self._run.replay)


def _checked_list(digests: Any) -> dict[str, str]:
    """One of a manifest's lists, name -> SHA-256.

    Raises:
        Damaged: it is none, or names files outside of their folder.
    """
    if not isinstance(digests, dict):
        raise Damaged("its manifest is not valid")
    for name, value in digests.items():
        if not (_NAME.fullmatch(name) and isinstance(value, str) and _DIGEST.fullmatch(value)):
            raise Damaged("its manifest is not valid")
    return digests


def digest(file: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush(file: Path) -> None:
    """Flush a file's content to disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries (the names of its files) to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_file(file: Path, expected: str, owner: Path) -> None:
    name = file.relative_to(owner) if file.is_relative_to(owner) else file.name
    if file.is_symlink():
        raise Damaged(f"{name} is a link")
    if not file.is_file():
        raise Damaged(f"{name} is missing")
    size = file.stat().st_size
    if size > psutil.virtual_memory().total:  # it is read into memory later; a sparse file may claim any size
        raise Damaged(f"{name} has {size / 2**30:.0f} GiB, more than fits into memory")
    if digest(file) != expected:
        raise Damaged(f"{name} has another checksum than when it was written")
