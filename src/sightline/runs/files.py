"""Read and write single files of a run: written whole or not at all, read as data and never further than is sensible.

Whoever sends a run folder may have put anything into it. So a file is opened without following links, only if it is a
regular file (a pipe or a device would never end), and only up to a size; its content is JSON or an array, never a
pickle.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sightline.errors import BadInput, Damaged

FORMAT = 1
"""Number of the format of all files of a run, a checkpoint or a label store. It is raised when a reader of the old form
would misread the new one."""
MAX_PICTURE = 64 * 2**20
"""Bytes of a picture's file, at most."""
MAX_TEXT = 64 * 2**20
"""Bytes of a JSON, YAML or text file, at most; only metrics and recorded episodes come near it."""


def read_bytes(path: Path, limit: int = MAX_TEXT) -> bytes:
    """Read a regular file.

    Raises:
        FileNotFoundError: it is not there.
        Damaged: it is a link, no regular file, unreadable, or larger than `limit` bytes.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise Damaged(f"'{path}' cannot be read: {reason}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise Damaged(f"'{path}' cannot be read: it is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > limit:
            raise Damaged(
                f"'{path}' has {found.st_size / 2**20:.0f} MB, more than {limit / 2**20:.0f} MB; it is damaged"
            )
        return file.read(limit)


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """Read a text file; bytes that are no UTF-8 are replaced.

    Raises:
        FileNotFoundError, Damaged: as `read_bytes`.
    """
    return read_bytes(path, limit).decode("utf-8", "replace")


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse JSON of unknown origin.

    Args:
        name: what to call it in a complaint.

    Raises:
        Damaged: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is damaged: it is no JSON ({' '.join(str(error).split())[:100]})") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read what `write_document` wrote, without its format number.

    Raises:
        FileNotFoundError: it is not there.
        Damaged: it is no JSON object.
        BadInput: it is of another format.
    """
    document = parse_json(read_bytes(path), f"'{path}'")
    if not isinstance(document, dict):
        raise Damaged(f"'{path}' is damaged: it is no JSON object")
    check_format(document.pop("format", None), f"'{path}'")
    return document


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object with a format number, atomically.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot say.
    """
    text = json.dumps({"format": FORMAT, **document}, indent=2, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def check_format(found: Any, name: str) -> None:
    """Refuse what another version has written.

    Args:
        found: the format number that stands in the file, None if there is none.
        name: what to call the file in a complaint.

    Raises:
        BadInput: it is not this version's.
    """
    if found == FORMAT and not isinstance(found, bool):
        return
    if found is None:
        raise BadInput(
            f"{name} has no format number: an older Sightline wrote it, before formats were kept; open it with that "
            "version (versions.json says which), or train again"
        )
    raise BadInput(f"{name} is of format {str(found)[:20]} and this Sightline reads format {FORMAT}; upgrade Sightline")


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
