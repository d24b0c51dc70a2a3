"""Safe reading of numpy arrays from untrusted pickles: a hostile file can neither run code nor fill the memory.

A pickle is a program that may call anything. Here its opcodes are checked before any is executed, and the calls go to
stand-ins that accept numbers only; numpy itself gets nothing but buffers whose size was checked.
"""

from __future__ import annotations

import math
import mmap
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import BadInput

MAX_INSTRUCTIONS = 10_000
"""Limit on opcodes: seven arrays take about 150; deeply nested or endlessly repeating files take more than this."""
MAX_AXES = 8

_HARMLESS = """
PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET BINPUT LONG_BINPUT EMPTY_LIST APPEND APPENDS EMPTY_TUPLE
TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE
BINUNICODE SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 GLOBAL STACK_GLOBAL REDUCE BUILD
"""
_NUMBERS = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})


class _Unsafe(Exception):
    """Raised for a pickle that uses something that arrays do not need."""


def read_arrays(file: Path) -> list[np.ndarray]:
    """Read a pickled list (or tuple) of numpy arrays of numbers, written by numpy 1 or 2, protocol 3 to 5.

    Args:
        file: claims about sizes are checked against its own size.

    Raises:
        BadInput: it cannot be read, is no pickle, is cut off, or holds or does anything else.
    """
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Looked through first: from here on the pickle is executed.
            _look_through(content)
            content.seek(0)
            items = _Unpickler(content).load()
    except OSError as error:
        raise BadInput(f"'{file}' cannot be read: {error.strerror or error}") from error
    except _Unsafe as error:
        raise BadInput(f"'{file}' is not a file of cached labels: {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"'{file}' is not a pickle of arrays, or damaged: {reason}") from error
    if not isinstance(items, list | tuple) or not all(isinstance(item, _Array | np.ndarray) for item in items):
        raise BadInput(f"'{file}' is not a file of cached labels: it is no list of arrays")
    arrays: list[np.ndarray] = []
    for item in items:
        array = item
        if isinstance(item, _Array):
            array = item.array
        if array is None:
            raise BadInput(f"'{file}' is not a file of cached labels: it names an array without content")
        arrays.append(array)
    return arrays


def _look_through(content: mmap.mmap) -> None:
    """Refuse opcodes that arrays do not need, before any is executed.

    Reading from mapped memory gives what is there, however much a length field claims, and complains if that is less.
    """
    size = len(content)
    harmless = set(_HARMLESS.split())
    for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):  # type: ignore[arg-type]
        if instruction.name not in harmless:
            raise _Unsafe(f"it uses the pickle instruction {instruction.name}")
        if count >= MAX_INSTRUCTIONS:
            raise _Unsafe(f"it has more than {MAX_INSTRUCTIONS} pickle instructions")
        if instruction.name.endswith("BINPUT") and int(argument or 0) > MAX_INSTRUCTIONS:
            raise _Unsafe("it asks for an absurd amount of memory")
        if instruction.name == "FRAME" and int(argument or 0) > size:
            raise _Unsafe("it claims to be longer than it is")


class _Unpickler(pickle.Unpickler):
    """Restricted unpickler: resolves the five names that an array's pickle uses, each to a stand-in."""

    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {
            ("numpy", "ndarray"): _NDARRAY,
            ("numpy", "dtype"): _Dtype,
            ("numeric", "_frombuffer"): _from_buffer,
            ("multiarray", "_reconstruct"): _reconstruct,
            ("multiarray", "scalar"): _scalar,
        }
        # numpy 1 and numpy 2 have the same functions in packages of different names.
        for package in ("numpy.core.", "numpy._core."):
            module = module.removeprefix(package)
        try:
            return stand_ins[module, name]
        except KeyError:
            called = " ".join(f"{module}.{name}".split())  # of a damaged file, a name may hold anything
            raise _Unsafe(f"it wants to call {called}"[:120]) from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Unsafe("it refers to something outside itself")


_NDARRAY = object()
"""Stand-in for `numpy.ndarray`, which in a pickle is only ever an argument."""


class _Dtype:
    """Stand-in for `numpy.dtype`: a kind and size of number, then its byte order."""

    __slots__ = ("dtype",)

    def __init__(self, name: str, align: bool = False, copy: bool = True) -> None:
        if name not in _NUMBERS:
            raise _Unsafe(f"it holds something else than numbers (dtype {str(name)[:20]!r})")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Sequence[Any]) -> None:
        version, order, *rest = state
        # Version 3 without subtypes, fields or names: plain numbers, in either byte order.
        if version != 3 or order not in ("<", ">", "|", "=") or list(rest[:3]) != [None, None, None]:
            raise _Unsafe("it holds something else than numbers")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Array made by `_reconstruct`; its shape and content come with its state."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, is_column_major, content = state
        order = "F" if is_column_major else "C"
        self.array = _from_buffer(content, dtype, shape, order)


def _reconstruct(kind: object, shape: object, typecode: object) -> _Array:
    """Stand-in for numpy's `_reconstruct`; the shape given here is a placeholder and is ignored."""
    if kind is not _NDARRAY:
        raise _Unsafe("it holds something else than arrays")
    return _Array()


def _from_buffer(content: bytes | bytearray, dtype: _Dtype, shape: Sequence[int], order: str) -> np.ndarray:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray) or order not in ("C", "F"):
        raise _Unsafe("it holds something else than numbers")
    lengths = shape if isinstance(shape, tuple) else (shape,)
    is_sensible = all(type(length) is int and length >= 0 for length in lengths) and len(lengths) <= MAX_AXES
    # Counted in Python's whole numbers, which do not overflow, before numpy sees them.
    if not is_sensible or math.prod(lengths) * dtype.dtype.itemsize != len(content):
        raise _Unsafe("an array's shape does not fit its content")
    return np.frombuffer(content, dtype.dtype).reshape(lengths, order=order)  # type: ignore[call-overload,no-any-return]


def _scalar(dtype: _Dtype, content: bytes) -> np.ndarray:
    return _from_buffer(content, dtype, (), "C")
