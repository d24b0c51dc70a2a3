"""What this package requires of others, and what is installed.

The requirements are those of `pyproject.toml`, as they were installed beside the package, so nothing is said twice. It
takes some milliseconds: versions are read from files, and nothing is imported but their parser.

Two packages that cannot be in one process in any order are kept apart here, too.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import BadInput, reason_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "sightline"
CRITICAL = ("gymnasium", "numpy", "torch", "transformers", "stable-baselines3")
"""Packages without whose newer parts nothing works, or works otherwise than tested."""

WHEELS = {
    "OpenGL": "PyOpenGL",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "git": "GitPython",
    "pkg_resources": "'setuptools<81'",
    "sb3_contrib": "sb3-contrib",
    "sbx": "sbx-rl",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose name is not that of the package that brings them: what pip installs for each."""


def wheel_of(module: str) -> str:
    """What pip installs for a module that is missing: `opencv-python` for `cv2.gapi`."""
    name = module.split(".")[0]
    return WHEELS.get(name, name)


@dataclass(frozen=True)
class VersionMisfit:
    """A package that is missing, too old or too new.

    Attributes:
        package: its name, such as `gymnasium`.
        versions: those that fit, such as `>=1.2,<2`.
        installed: the version that is installed; None without one.
    """

    package: str
    versions: str
    installed: str | None

    def __str__(self) -> str:
        if self.installed is None:
            return f"{self.package} is not installed"
        fault = "too old" if self.is_too_old else "too new"
        return f"{self.package} {self.installed} is {fault}"

    @property
    def is_too_old(self) -> bool:
        """Whether a newer version is needed, by the lower bound."""
        from packaging.version import Version

        lower_bound = re.search(r"(?:>=|==|~=)\s*([\w.]+)", self.versions)
        if self.installed is None or lower_bound is None:
            return False
        return Version(self.installed) < Version(lower_bound[1])


def requirements(extra: str = "") -> list[Requirement]:
    """What this package requires on this machine, or what one of its extras requires beside that; nothing if it is not
    installed but imported from a folder."""
    needed = [requirement for requirement in _all_requirements() if _applies(requirement, extra)]
    if not extra:
        return needed
    always = {str(requirement) for requirement in requirements()}
    return [requirement for requirement in needed if str(requirement) not in always]


def _applies(requirement: Requirement, extra: str) -> bool:
    # A marker says on which machines, and with which extra, a package is required.
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def misfit(requirement: Requirement) -> VersionMisfit | None:
    """What is wrong with the installed version of a package; None if it fits."""
    versions = str(requirement.specifier)
    try:
        installed = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return VersionMisfit(requirement.name, versions, None)
    # A release candidate that is installed is judged by its number.
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    return VersionMisfit(requirement.name, versions, installed)


def misfits(needed: Sequence[Requirement]) -> list[VersionMisfit]:
    """Packages that are missing, too old or too new."""
    return [fault for fault in map(misfit, needed) if fault is not None]


def install_command(needed: Sequence[Requirement]) -> str:
    """The command that installs packages in versions that fit."""
    return " ".join(["pip install", *map(_pinned, needed)])


def _pinned(requirement: Requirement) -> str:
    """A requirement as one writes it after `pip install`, such as `'gymnasium[mujoco]<2,>=1.2'`."""
    name = requirement.name
    if requirement.extras:
        name += f"[{','.join(sorted(requirement.extras))}]"
    return f"'{name}{requirement.specifier}'"


@cache
def check_versions() -> None:
    """Refuse the libraries that everything stands on if they are too old.

    Too new ones are not refused, since most work; errors and `sightline doctor` name them.

    Raises:
        BadInput: one is too old; says which, and how to install another.
    """
    critical = [requirement for requirement in requirements() if requirement.name in CRITICAL]
    too_old = [fault for fault in misfits(critical) if fault.is_too_old]
    if too_old:
        raise BadInput(_sentence(too_old))


@contextlib.contextmanager
def fitting_versions() -> Iterator[None]:
    """Check versions, then turn an import that fails because of them into a line that names them.

    Raises:
        BadInput: a library is missing, too old or too new.
    """
    check_versions()
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:  # what modules raise that meet another version
        # Only if a version is to blame; any other mistake is shown as it is.
        blame = advice()
        if not blame:
            raise
        raise BadInput(f"{blame} ({reason_of(error)})") from error


def advice() -> str:
    """One line on all packages that do not fit, with the command that mends it; empty if all fit."""
    faults = misfits(requirements())
    if not faults:
        return ""
    return _sentence(faults)


def _sentence(faults: Sequence[VersionMisfit]) -> str:
    packages = " ".join(f"'{fault.package}{fault.versions}'" for fault in faults)
    return f"{', '.join(map(str, faults))} for Sightline; pip install {packages}"


def _all_requirements() -> list[Requirement]:
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    return [Requirement(line) for line in lines]


def keep_llvms_apart(load_now: bool = True) -> None:
    """Have Triton loaded before OpenGL in software, or not at all.

    Mesa's software renderer and Triton, which torch imports late, each bring an LLVM. If Mesa's comes first, the import
    of Triton ends the process by a segmentation fault. Where it has come first, imports of Triton fail from now on,
    with which torch does without it.

    Args:
        load_now: import Triton, so that it is there whatever is drawn later. Otherwise it is imported when it is asked
            for, unless something has been drawn by then; that saves 0.1 s where torch may never be used.
    """
    if "triton" in sys.modules:
        return
    # Mesa's was first: an entry of None makes every import of Triton fail, rather than the process.
    if _has_loaded("libLLVM"):
        sys.modules["triton"] = None  # type: ignore[assignment]
    elif load_now:
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
    elif not any(isinstance(finder, _TritonBeforeMesa) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TritonBeforeMesa())


class _TritonBeforeMesa(MetaPathFinder):
    """Lets Triton be imported only while OpenGL in software is not loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "triton" and _has_loaded("libLLVM"):
            raise ModuleNotFoundError("Triton cannot be loaded after OpenGL in software", name="triton")


def _has_loaded(library: str) -> bool:
    """Whether this process has a shared library in memory; known on Linux alone, as Triton is."""
    try:
        return library in Path("/proc/self/maps").read_text()
    except OSError:
        return False
