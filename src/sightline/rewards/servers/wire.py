"""What travels between a run and a reward server: forms of several parts (multipart/form-data, RFC 7578), and arrays as
`.npy` files.

Both ends use this module, and neither trusts the other: an array is read without pickle, and takes no more memory than
the bytes that came.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any

import numpy as np

LONGEST_HEADER = 10_000
"""Bytes of the header of an array, or of a part."""
MOST_PARTS = 20_000
"""Parts of a form."""
NPY = "application/octet-stream"
JSON = "application/json"


class Malformed(ValueError):
    """What came is not in the form that was agreed on; the message says why, in a few words."""


@dataclass(frozen=True, eq=False)
class FormPart:
    """A part of a form.

    Attributes:
        name: of the field.
        content: its bytes.
        file_name: empty for a field that is no file.
        kind: its media type; empty for plain text.
    """

    name: str
    content: bytes
    file_name: str = ""
    kind: str = ""


def form(parts: Sequence[FormPart]) -> tuple[bytes, str]:
    """The body of a request with these parts, and its Content-Type."""
    # Drawn anew each time: in none of the parts, but for a chance of 2^-128.
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for part in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part.name}"'
        if part.file_name:
            head += f'; filename="{part.file_name}"'
        if part.kind:
            head += f"\r\nContent-Type: {part.kind}"
        pieces += [f"{head}\r\n\r\n".encode(), part.content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces), f"multipart/form-data; boundary={boundary}"


def parts_of(body: bytes, content_type: str) -> dict[str, FormPart]:
    """The parts of a form by their names.

    Raises:
        Malformed: it is no form, or has two parts of a name.
    """
    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
        raise Malformed("the body must be multipart/form-data")
    delimiter = b"\r\n--" + boundary.encode()
    places = _places(body, delimiter)
    if not places or not body.startswith(b"--", places[-1] + len(delimiter)):
        raise Malformed("the form ends in the middle")
    if len(places) > MOST_PARTS:
        raise Malformed(f"the form has more than {MOST_PARTS} parts")
    parts: dict[str, FormPart] = {}
    for place, next_place in itertools.pairwise(places):
        part = _part(body, place + len(delimiter), next_place)
        if part.name in parts:
            raise Malformed(f"the form has two parts '{part.name[:80]}'")
        parts[part.name] = part
    return parts


def _places(body: bytes, delimiter: bytes) -> list[int]:
    """Where each delimiter begins. A body is long, so it is searched in place and not split."""
    places = []
    # Every delimiter begins a line; the first one may begin the body.
    if body.startswith(delimiter[2:]):
        places.append(-2)
    place = body.find(delimiter)
    while place >= 0:
        places.append(place)
        place = body.find(delimiter, place + len(delimiter))
    return places


def _part(body: bytes, begins: int, ends: int) -> FormPart:
    """A part from what stands between two delimiters: the rest of a line, headers, an empty line, the content."""
    head_ends = body.find(b"\r\n\r\n", begins, min(ends, begins + LONGEST_HEADER))
    if head_ends < 0:
        raise Malformed("a part of the form has no header that can be read")
    text = body[begins:head_ends].decode("utf-8", "replace")
    name = re.search(r'[;\s]name="([^"\r\n]*)"', text)
    if name is None:
        raise Malformed("a part of the form has no name")
    file_name = re.search(r'filename="([^"\r\n]*)"', text)
    kind = re.search(r"^content-type:\s*([^\r\n;]+)", text, re.IGNORECASE | re.MULTILINE)
    return FormPart(
        name[1],
        body[head_ends + 4 : ends],
        "" if file_name is None else file_name[1],
        "" if kind is None else kind[1].strip(),
    )


def npy(array: np.ndarray) -> bytes:
    """An array as the bytes of a `.npy` file."""
    whole = np.ascontiguousarray(array)
    header = io.BytesIO()
    fields: Any = np.lib.format.header_data_from_array_1_0(whole)
    np.lib.format.write_array_header_1_0(header, fields)
    return b"".join([header.getvalue(), whole.data])


def array_of(content: bytes, dtype: type[np.generic], what: str) -> np.ndarray:
    """The array in the bytes of a `.npy` file, read-only, without a copy.

    Args:
        dtype: which it must have, in any order of bytes.
        what: it is, in a few words, for the error.

    Raises:
        Malformed: it is none, of another dtype, or of another size than its header says.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, in_columns, npy_dtype = np.lib.format.read_array_header_1_0(stream, LONGEST_HEADER)
        elif version == (2, 0):
            shape, in_columns, npy_dtype = np.lib.format.read_array_header_2_0(stream, LONGEST_HEADER)
        else:
            raise ValueError("of an unknown version")
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError) as error:
        raise Malformed(f"{what} is no .npy file") from error
    if npy_dtype.hasobject or npy_dtype.newbyteorder("=") != np.dtype(dtype):
        raise Malformed(f"{what} must be {np.dtype(dtype)}, not {npy_dtype}")
    # Compared before anything is allocated: a header may claim any size.
    begins = stream.tell()
    if any(length < 0 for length in shape) or math.prod(shape) * npy_dtype.itemsize != len(content) - begins:
        raise Malformed(f"{what} says {npy_dtype}{list(shape)}, and its file is of another size")
    numbers = np.frombuffer(content, npy_dtype, offset=begins)
    return numbers.reshape(shape, order="F" if in_columns else "C").astype(dtype, copy=False)


def field_of(document: Any, name: str, kinds: type | tuple[type, ...], where: str = "") -> Any:
    """A field of a JSON object.

    Raises:
        Malformed: the document is no object, or the field is missing or of another kind.
    """
    value = document.get(name) if isinstance(document, Mapping) else None
    # For Python, true is the number 1.
    is_wrong_number = isinstance(value, bool) and kinds is not bool
    if not isinstance(value, kinds) or is_wrong_number:
        raise Malformed(f"{where or 'the document'} has no '{name}' that can be read")
    return value
