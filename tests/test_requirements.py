"""Libraries that are too old, too new or missing are named in one line, with the command that mends it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import pytest
from packaging.requirements import Requirement

from sightline import doctor, requirements
from sightline.envs.rendering import prepare_rendering
from sightline.envs.workers import WORKER
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


@pytest.mark.parametrize("package", ["gymnasium", "imageio_ffmpeg", "tokenizers", "psutil"])
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


@pytest.mark.parametrize(
    ("module", "wheel"),
    [("cv2.gapi", "opencv-python"), ("pkg_resources", "'setuptools<81'"), ("PIL", "pillow"), ("jax.numpy", "jax")],
)
def test_what_pip_installs_for_a_module(module: str, wheel: str) -> None:
    """NLE needs pkg_resources, which is in no newer setuptools, and does not say so."""
    assert requirements.wheel_of(module) == wheel


# -- two packages that cannot share a process in any order ------------------------------------------------------------

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="torch comes without Triton here")

DRAWS_FIRST = """
import os
os.environ.setdefault("MUJOCO_GL", "egl")
import gymnasium
env = gymnasium.make("InvertedPendulum-v5", render_mode="rgb_array", width=64, height=64)
env.reset(seed=0)
env.render()
import sightline as sl
sl.wrap(env, "an upright pole")
import torch._dynamo
print("alive")
"""

DRAWS_WITHOUT_TORCH = """
import sys
from sightline.envs.making import EnvMaker
maker = EnvMaker("InvertedPendulum-v5", frame_size=(64, 64))
env = maker()
env.reset(seed=0)
env.render()
assert "torch" not in sys.modules and "triton" not in sys.modules
import torch._dynamo
print("alive")
"""


@needs_triton
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("program", [DRAWS_FIRST, DRAWS_WITHOUT_TORCH])
def test_an_environment_that_has_drawn_before_does_not_end_the_process(program: str) -> None:
    """Software OpenGL, then Triton, was a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@needs_triton
@pytest.mark.parametrize(("name", "loaded"), [("somebody's", True), (WORKER, False)])
def test_triton_comes_before_drawing_but_for_workers(name: str, loaded: bool) -> None:
    """A process of somebody's sweep trains as a whole; our workers only simulate."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_tell_triton, args=(there,), name=name)
    process.start()
    assert here.poll(60) and here.recv() is loaded
    process.join()


def _tell_triton(pipe: Connection) -> None:
    import torch  # noqa: F401

    prepare_rendering()
    pipe.send(sys.modules.get("triton") is not None)


@needs_triton
def test_triton_is_not_loaded_after_software_opengl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(requirements, "_has_loaded", lambda library: library == "libLLVM")
    requirements.keep_llvms_apart()
    assert sys.modules["triton"] is None
    assert find_spec("triton") is None, "torch looks for it so, and does without"
    monkeypatch.delitem(sys.modules, "triton")
