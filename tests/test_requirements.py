"""Libraries that are too old, too new or missing are named in one line, with the command that mends it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
from packaging.requirements import Requirement

from sightline import doctor, requirements
from sightline.errors import BadInput
from sightline.requirements import fitting_versions as fitting


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`installed(numpy="1.20")`: as if these versions were installed; None for none."""
    requirements.check_versions.cache_clear()
    real = metadata.version

    def pretend(**versions: str | None) -> None:
        def version(name: str) -> str:
            if name not in versions:
                return real(name)
            wanted = versions[name]
            if wanted is None:
                raise metadata.PackageNotFoundError(name)
            return wanted

        monkeypatch.setattr(metadata, "version", version)

    yield pretend
    requirements.check_versions.cache_clear()


def test_what_is_installed_here_fits() -> None:
    assert requirements.advice() == ""
    assert {"gymnasium", "numpy", "torch"} <= {one.name for one in requirements.requirements()}


def test_extras_are_told_from_what_is_always_needed() -> None:
    assert [one.name for one in requirements.requirements("contrib")] == ["sb3-contrib"]


@pytest.mark.parametrize(
    ("wanted", "version", "said"),
    [
        ("numpy>=1.26,<3", "1.25.2", "numpy 1.25.2 is too old"),
        ("numpy>=1.26,<3", "3.0.0", "numpy 3.0.0 is too new"),
        ("numpy>=1.26,<3", None, "numpy is not installed"),
        ("numpy>=1.26,<3", "2.4.0rc1", None),
        ("metaworld==3.1.1", "3.0.0", "metaworld 3.0.0 is too old"),
    ],
)
def test_a_version_that_does_not_fit_is_said_to_be_too_old_or_too_new(
    wanted: str, version: str | None, said: str | None, installed: Any
) -> None:
    needed = Requirement(wanted)
    installed(**{needed.name: version})
    wrong = requirements.misfit(needed)
    assert said == (None if wrong is None else str(wrong))


def test_a_command_refuses_libraries_that_are_too_old_in_one_line(installed: Any, sightline: Any) -> None:
    installed(gymnasium="0.29.1")
    done = sightline("recipes")
    assert done.code == 2
    assert done.err.startswith("sightline: gymnasium 0.29.1 is too old for Sightline; pip install 'gymnasium")
    assert len(done.lines) == 1


def test_an_import_that_fails_names_the_library_that_does_not_fit(installed: Any) -> None:
    installed(pillow="99.0")
    installed(jinja2="1.0")
    with pytest.raises(BadInput, match=r"jinja2 1.0 is too old .*ImportError: cannot import name"), fitting():
        raise ImportError("cannot import name 'pass_context'")


def test_an_import_that_fails_for_another_reason_stays_what_it_is() -> None:
    with pytest.raises(ImportError, match="no such thing"), fitting():
        raise ImportError("no such thing")


def test_doctor_names_what_does_not_fit_and_what_installs_it(installed: Any) -> None:
    installed(transformers="4.40.0", jinja2=None)
    found = {check.name: check for check in doctor._packages()}
    assert found["transformers"].detail.startswith("transformers 4.40.0 is too old")
    assert found["jinja2"].detail.startswith("jinja2 is not installed")
    assert found["jinja2"].fix.startswith("pip install 'jinja2>=")


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> doctor.Check:
        raise ModuleNotFoundError("No module named 'imageio_ffmpeg'")

    check = doctor._tried("videos", broken)
    assert not check.works
    assert check.detail == "ModuleNotFoundError: No module named 'imageio_ffmpeg'"


@pytest.mark.parametrize("package", ["gymnasium", "imageio_ffmpeg", "open_clip", "psutil"])
def test_doctor_looks_at_the_rest_where_a_package_is_missing(package: str) -> None:
    """In a process of its own, so that nothing is imported yet; MuJoCo's and pyglet's pictures take too long here."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sightline import doctor\n"
        "doctor._GL_PACKAGES.clear()\n"
        "print(*(f'{check.name}: {check.detail}' for check in doctor.examine()), sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert package in done.stdout
    assert "\nkeys: " in done.stdout
