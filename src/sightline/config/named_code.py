"""Code that users name: `module:attribute`, or `file.py:attribute` for a file that is no module.

A recipe names code in words, so that another process, and a later one, finds it again. What a run folder names may be a
stranger's: blocks of recipes are imported only if the user has named them, or trusts the folder (`allow`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sightline.errors import LIBRARIES, BadInput, line_of
from sightline.requirements import wheel_of

_allowed: set[str] = set()
_importing = threading.local()
_WHERE = (
    "import importlib.util, os, sys; sys.path.append(os.getcwd()); spec = importlib.util.find_spec(sys.argv[1]); "
    "print(spec.origin or spec.submodule_search_locations[0] if spec else '')"
)
"""Program of a fresh Python that says where it finds a module."""


class NoSuchModule(BadInput):
    """Name of a module that is neither installed nor in the working folder. Exit code 2."""


class TrainingReached(BaseException):
    """Raised where a file that is imported for a class of its own would train: what trains comes after the class."""


# -- from a name to code -----------------------------------------------------------------------------------------------


def is_place(name: str) -> bool:
    """True for `module:attribute` and `file.py:attribute`."""
    return all(split_place(name))


def split_place(name: str) -> tuple[str, str]:
    """Module, or file, and attribute of a name; the attribute is empty if it has none."""
    file = re.fullmatch(r"(.*\.py)(?::(.*))?", name)  # the path of a file may have colons of its own
    if file is not None:
        return file[1], file[2] or ""  # None where there is no colon
    module, _, attribute = name.partition(":")
    return module, attribute


def code_at(place: str) -> Any:
    """The attribute at `module:attribute` or `file.py:attribute`.

    Raises:
        BadInput: there is none, or it cannot be imported.
    """
    name, attribute = split_place(place)
    if not attribute:
        raise BadInput(f"'{place}' names no function or class; say which: {name}:NAME")
    module = import_code(name)
    code = attribute_of(module, attribute)
    if code is None:
        raise BadInput(f"'{name}' has no '{attribute}'")
    return code


def attribute_of(module: ModuleType, attribute: str) -> Any:
    """An attribute of a module, also one of a class in it (`Outer.Inner`); None if there is none."""
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        return None


def import_code(name: str) -> ModuleType:
    """Import a module, the working folder's behind all others, or a file of code.

    Raises:
        NoSuchModule: there is no such module.
        BadInput: there is no such file, it needs a module that is missing, it trains when it is imported, or it fails.
    """
    search_it_last()
    is_file = name.endswith(".py")
    if not is_file and "/" in name:
        raise BadInput(f"'{name}' is neither a module nor a Python file; name it as package.module, or as {name}.py")
    # Names of wheels have hyphens where those of modules have underscores.
    if not is_file:
        name = name.replace("-", "_")
    try:
        if is_file:
            return _import_file(name)
        return importlib.import_module(name)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        # The module itself or a package around it, or one that it imports.
        absent = error.name or name
        if name == absent or name.startswith(f"{absent}."):
            raise NoSuchModule(
                f"cannot import '{name}': there is no such module, neither installed nor in the working folder"
            ) from error
        what = "file" if is_file else "module"
        raise BadInput(
            f"the {what} '{name}' needs '{absent}', which is not installed: pip install {wheel_of(absent)}"
        ) from error
    except TrainingReached:
        raise BadInput(
            f"cannot import '{name}': it trains when it is imported; put that under if __name__ == \"__main__\":"
        ) from None
    except (Exception, SystemExit) as error:
        advice = ""
        if is_file and isinstance(error, ImportError) and "relative import" in str(error):
            advice = "; it belongs to a package: name it as package.module"
        raise BadInput(f"cannot import '{name}': {line_of(error)}{advice}") from error


def _import_file(name: str) -> ModuleType:
    """Import a file under a name of its own, which no other module has; once, however often it is asked for."""
    file = Path(os.path.expanduser(name))
    if not file.is_file():
        raise BadInput(f"there is no file '{name}'")
    place = os.path.realpath(file)
    for module in list(sys.modules.values()):
        # The running script, for one: a class must not be there twice. Some modules load others when they are asked.
        origin = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(origin, str) and os.path.basename(origin) == file.name and os.path.realpath(origin) == place:
            return module
    sys.path.append(os.path.dirname(place))  # it may import its neighbours
    # Files of one name, in two folders, are two modules.
    digest = hashlib.sha256(place.encode()).hexdigest()
    spec = importlib.util.spec_from_file_location(f"{file.stem}_{digest[:8]}", place)
    assert spec is not None and spec.loader is not None, "a file of Python has a loader"
    module = importlib.util.module_from_spec(spec)
    # Before it is executed, as Python does: pickling and dataclasses look their module up there.
    sys.modules[spec.name] = module
    _importing.depth = getattr(_importing, "depth", 0) + 1
    try:
        with contextlib.suppress(TrainingReached):  # all that the class needs came before
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    finally:
        _importing.depth -= 1
    return module


def stop_importing() -> None:
    """End the import of a file that would train while it is imported for one of its classes.

    A script that trains with a class of its own need not guard that: the processes that it starts, and the commands
    that read its run later, import it up to there.

    Raises:
        TrainingReached: such a file is being imported.
    """
    if getattr(_importing, "depth", 0):
        raise TrainingReached


def search_it_last() -> None:
    """Let modules be found in the working folder, behind Python's own and those that are installed."""
    with contextlib.suppress(OSError):  # it was deleted
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


# -- from code to a name -----------------------------------------------------------------------------------------------


def place_of(code: Any, key: str) -> str:
    """The name by which a class or function is found again, by another process and later.

    Args:
        code: the class or function.
        key: the recipe's key that it was given for, for the line.

    Raises:
        BadInput: it has no such name; the line says what to do instead.
    """
    if isinstance(code, functools.partial):
        raise BadInput(f"{key}: a functools.partial has no name; give what it calls, and its arguments as options")
    attribute = getattr(code, "__qualname__", None)
    if not isinstance(attribute, str) or not callable(code):
        raise BadInput(_no_code(code, key))
    kind = "class" if inspect.isclass(code) else "function"
    subject = f"{key}: {kind} '{attribute.rpartition('.')[2]}'"
    if "<lambda>" in attribute:
        raise BadInput(f"{key}: a lambda has no name by which a later process could find it; write a function (def)")
    if "<locals>" in attribute:
        raise BadInput(
            f"{subject} is defined inside a function, where no other process finds it; move it to the top of its file"
        )
    module = sys.modules.get(code.__module__)
    if module is None or attribute_of(module, attribute) != code:
        raise BadInput(f"{subject} is not what '{code.__module__}:{attribute}' names; give it under its own name")
    return f"{_lasting_name(module, subject)}:{attribute}"


def _no_code(value: Any, key: str) -> str:
    """Complaint about an object that stands where a name, a class or a function should."""
    kind = type(value).__name__
    # An environment of Gymnasium, or its specification, knows its id.
    spec = getattr(value, "spec", value)
    env_id = getattr(spec, "id", None)
    if isinstance(env_id, str):
        return f"{key} must name what makes an environment, and not be a {kind}: say {key}={env_id!r}"
    return f"{key} must be a name, or a class or function that can be imported again, not an object of type {kind}"


def _lasting_name(module: ModuleType, subject: str) -> str:
    """The name, of a module or of its file, under which other processes find a module.

    Args:
        subject: what is looked for in it, to begin the line of an error.

    Raises:
        BadInput: there is none.
    """
    name = module.__name__
    file = str(getattr(module, "__file__", None) or "")
    if name == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None:  # python -m
            return str(spec.name)
        if not (file.endswith(".py") and os.path.isfile(file)):
            raise BadInput(
                f"{subject} was typed in a notebook or at a prompt, where no other process finds it; save it to a "
                "file, such as mine.py, and import it from there"
            )
        return _from_here(file)
    root = name.partition(".")[0]
    package = sys.modules.get(root, module)
    # A package without an __init__.py has no file, but folders.
    folders = getattr(package, "__path__", [""])
    origin = os.path.realpath(getattr(package, "__file__", None) or next(iter(folders)))
    # Installed, or found by a Python that is started here.
    if any(map(Path(origin).is_relative_to, LIBRARIES)) or _fresh_origin(root) == origin:
        return name
    # It is beside the running script, say, or was found by a path that was put into sys.path.
    if "." not in name and file.endswith(".py"):
        return _from_here(file)
    raise BadInput(
        f"{subject} is in '{name}', which no other process finds; install that package, or run from "
        f"'{Path(origin).parents[1]}'"
    )


def _fresh_origin(module: str) -> str:
    """File that a fresh Python imports under a name, the working folder searched last; empty without one."""
    process = subprocess.run(
        [sys.executable, "-P", "-c", _WHERE, module], capture_output=True, text=True, timeout=60, check=False
    )
    origin = process.stdout.strip()
    if not origin:
        return ""
    return os.path.realpath(origin)


def _from_here(file: str) -> str:
    """A file's path, from the working folder if it is in there."""
    path = Path(file).resolve()
    here = Path.cwd().resolve()
    if path.is_relative_to(here):
        path = path.relative_to(here)
    return str(path)


# -- what a document names ---------------------------------------------------------------------------------------------


def places_in(document: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys of plain data that name the code of a block, and what they name: `reward.kind`, `my_module:MyReward`.

    Options, which are somebody else's arguments, hold no blocks.
    """
    if isinstance(document, Mapping):
        for key, value in document.items():
            if str(key).endswith("options"):
                continue
            path = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(value, str) and path.rpartition(".")[2] == "kind" and is_place(value):
                yield path, value
            yield from places_in(value, path)
    elif isinstance(document, list | tuple):
        for number, value in enumerate(document):
            yield from places_in(value, f"{prefix}.{number}")


def allow(places: Iterable[str]) -> None:
    """Let blocks of recipes be imported from places that the user has named, or from a folder that is trusted."""
    _allowed.update(places)


def is_allowed(place: str) -> bool:
    """Whether a block may be imported from a place in this process."""
    return place in _allowed
