"""State files: nested plain data, arrays and tensors, without pickle.

A state is written as one safetensors file. Its arrays are the file's tensors; everything else is JSON in the file's
metadata, with a format number. So reading it runs no code and allocates no more than the file's size (to which the
safetensors header must add up), and any safetensors viewer can open it.

    {"step": 640, "noise": tensor, "pool": {"frames": array}}
       │
       ├── metadata   {"sightline": '{"format": 1, "state": {"step": 640, "noise": {"$tensor": "noise"}, "pool": {…}}}'}
       └── tensors    noise, pool/frames

Types that JSON lacks are tagged: `{"$tuple": […]}`, `{"$float": "nan"}`, `{"$dict": [[key, value], …]}` for keys that
are not strings. So a state is read back with the types that it was written with; only NumPy scalars become Python's.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import Damaged
from sightline.runs.files import FORMAT, check_format, parse_json

METADATA = "sightline"
"""Key of the state in a file's metadata."""


def write_state(file: Path, state: Any) -> None:
    """Write a state file.

    Args:
        file: path of the file.
        state: None, booleans, numbers, strings, lists, tuples and dictionaries, nested, with arrays and torch tensors.

    Raises:
        TypeError: the state holds anything else.
        OSError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray] = {}  # filled in by `_encoded`
    document = {"format": FORMAT, "state": _encoded(state, "", arrays)}
    text = json.dumps(document, allow_nan=False)
    try:
        save_file(arrays, file, {METADATA: text})  # one entry, as the library writes several in random order
    except SafetensorError as error:  # raised for a full disk, for example
        raise OSError(str(error)) from error
    file.chmod(file.parent.stat().st_mode & 0o666)  # the library makes it private; take the folder's permissions


def read_state(file: Path) -> Any:
    """Read a state file that `write_state` wrote.

    Raises:
        Damaged: the file is missing, or not a state file.
        BadInput: it has another format number.
    """
    from safetensors import SafetensorError, safe_open

    if file.is_symlink() or not file.is_file():
        raise Damaged(f"'{file}' is missing, or not a regular file")
    try:
        with safe_open(file, "np") as opened:
            metadata = opened.metadata() or {}
            document = parse_json(metadata.get(METADATA, "{}"), f"'{file}'")
            check_format(document.get("format"), f"'{file}'")
            return _decoded(document["state"], _ReadOnceTensors(opened))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"'{file}' is damaged: {' '.join(str(error).split())[:200]}") from error


@contextlib.contextmanager
def restoring(folder: Path) -> Iterator[None]:
    """Context that turns any mismatch between a state and its run's recipe into a one-line error.

    Undamaged files may still belong to another recipe, in a folder mixed from two runs or in a hostile one.

    Raises:
        Damaged: naming the folder.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise Damaged(f"the state in '{folder}' does not fit its run's recipe ({reason}); train again") from error


def _encoded(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Encode a value as JSON, collecting its arrays by their path in the state."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {"$float": str(value)}
    if isinstance(value, np.generic):
        return _encoded(value.item(), path, arrays)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"{path} is an array of {value.dtype}, which state files do not hold")
        return {"$array": _store_array(value, path, arrays)}
    if isinstance(value, tuple):
        return {"$tuple": [_encoded(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_encoded(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encoded(item, f"{path}/{key}", arrays) for key, item in value.items()}
        pairs = []
        for key, item in value.items():
            pairs.append((_encoded(key, path, arrays), _encoded(item, f"{path}/{key}", arrays)))
        return {"$dict": pairs}
    if hasattr(value, "detach"):
        return _encoded_tensor(value, path, arrays)
    raise TypeError(f"{path or 'the state'} is a {type(value).__name__}, which is not plain data")


def _encoded_tensor(tensor: Any, path: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16: store the bits as integers
        return {"$tensor": _store_array(tensor.view(torch.int16).numpy(), path, arrays), "dtype": "bfloat16"}
    return {"$tensor": _store_array(tensor.numpy(), path, arrays)}


def _store_array(array: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> str:
    name = path.lstrip("/") or "state"
    while name in arrays:  # keys may hold slashes themselves
        name += "'"
    arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    return name


class _ReadOnceTensors:
    """Reader that returns each tensor of a file once, so that a small file cannot fill the memory by repetition."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._names_read: set[str] = set()

    def get_tensor(self, name: str) -> np.ndarray:
        if name in self._names_read:
            raise ValueError(f"it names the array {name[:80]!r} twice")
        self._names_read.add(name)
        array: np.ndarray = self._file.get_tensor(name)
        return array


def _decoded(value: Any, tensors: _ReadOnceTensors) -> Any:
    """Decode what `_encoded` gave."""
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$array": str() as name}:
            return tensors.get_tensor(name)
        case {"$tensor": str() as name}:
            import torch

            tensor = torch.from_numpy(tensors.get_tensor(name))
            if value.get("dtype") == "bfloat16":
                return tensor.view(torch.bfloat16)
            return tensor
        case {"$tuple": list() as items}:
            return tuple(_decoded(item, tensors) for item in items)
        case {"$float": str() as text}:
            return float(text)
        case {"$dict": list() as items}:
            return {_decoded(key, tensors): _decoded(item, tensors) for key, item in items}
    return {key: _decoded(item, tensors) for key, item in value.items()}
