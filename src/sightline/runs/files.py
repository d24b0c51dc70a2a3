"""Files of a run: atomic writes, and safe reads of data from strangers.

A run folder may come from a stranger. So files are opened without following links, only if they are regular (a pipe or
a device would never end), and only up to a size limit; their content is JSON or arrays, never pickles.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from sightline.errors import BadInput, Damaged

FORMAT = 1
"""Format number of all files of a run, a checkpoint or a label store; increased when an old reader would misread new
files."""
MAX_PICTURE = 64 * 2**20
"""Size limit of a picture file in bytes."""
MAX_TEXT = 64 * 2**20
"""Size limit of a JSON, YAML or text file in bytes; only recorded episodes come near it."""


def open_regular(path: Path, writes: bool = False) -> IO[bytes]:
    """Open a regular file that is there already.

    Args:
        writes: for reading and writing; else for reading.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it is a link, not a regular file, or cannot be opened.
    """
    flags = os.O_RDWR if writes else os.O_RDONLY
    # Windows has neither. Without O_NONBLOCK, opening a pipe would wait for its other end.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise Damaged(f"'{path}' cannot be read: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(f"'{path}' cannot be read: it is not a regular file")
    return os.fdopen(descriptor, "r+b" if writes else "rb")


def read_bytes(path: Path, limit: int = MAX_TEXT) -> bytes:
    """Read a regular file.

    Raises:
        FileNotFoundError, Damaged: as `open_regular`; or the file is larger than `limit` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Damaged(f"'{path}' has {size / 2**20:.0f} MB, more than {limit / 2**20:.0f} MB; it is damaged")
        return file.read(limit)


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """Read a text file; invalid UTF-8 is replaced.

    Raises:
        FileNotFoundError, Damaged: as `read_bytes`.
    """
    return read_bytes(path, limit).decode("utf-8", "replace")


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse JSON from an untrusted source.

    Args:
        text: the document.
        name: name of the document in error messages.

    Raises:
        Damaged: it is not valid JSON, or nested too deeply.
    """
    if isinstance(text, str):
        text = text.removeprefix("\ufeff")  # which some editors put before UTF-8
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is damaged: it is not valid JSON ({' '.join(str(error).split())[:100]})") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_document` wrote, without its format number.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it is not a JSON object.
        BadInput: it has another format number.
    """
    document = parse_json(read_bytes(path), f"'{path}'")
    if not isinstance(document, dict):
        raise Damaged(f"'{path}' is damaged: it is not a JSON object")
    check_format(document.pop("format", None), f"'{path}'")
    return document


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object with a format number, atomically.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot represent.
    """
    text = json.dumps({"format": FORMAT, **document}, indent=2, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def check_format(number: Any, name: str) -> None:
    """Refuse a file with another format number.

    Args:
        number: the format number in the file, None if there is none.
        name: name of the file in error messages.

    Raises:
        BadInput: it is not the number of this version.
    """
    if number == FORMAT and not isinstance(number, bool):
        return
    if number is None:
        raise BadInput(
            f"{name} has no format number: it was written by an older version of Sightline; open it with that version "
            "(see versions.json), or train again"
        )
    raise BadInput(f"{name} has format {str(number)[:20]} and this Sightline reads format {FORMAT}; upgrade Sightline")


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically: readers see the old content or the new one, also after a crash.

    It is written beside the target, flushed to disk, and renamed.

    Args:
        content: all of it, or its parts one after the other.
    """
    parts = [content] if isinstance(content, bytes) else content
    # The name holds process and thread, so that no two writers of the same file meet.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
