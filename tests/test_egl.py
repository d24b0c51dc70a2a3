"""Of several GPUs each worker process draws with one, the user's own choice is obeyed, and a GPU that cannot be drawn
with is one line of advice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sightline.control import control_setup
from sightline.envs import egl, rendering
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.games import processes
from sightline.envs.making import EnvMaker
from sightline.envs.rendering import drawing_advice, prepare_rendering
from sightline.errors import BadInput, RunFailed
from sightline.models.device import SLOT
from sightline_tasks import mujoco_rendering
from small_envs import Clock

REVERSED = {0: 1, 1: 0, 3: 2}
"""EGL's numbers of three GPUs, the first two in the other order than CUDA's, and one of software between: CUDA's."""


@pytest.fixture
def _gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two GPUs and what EGL says of them; none of them chosen by the user."""
    for name in (*egl.VARIABLES, "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", SLOT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # what is set for this process is forgotten
    monkeypatch.setattr(egl, "gpus_here", lambda: 2)
    monkeypatch.setattr(egl, "_asked_of_egl", lambda: {0: 0, 1: 1})
    egl.drawing_gpus.cache_clear()
    yield
    egl.drawing_gpus.cache_clear()


def shades(workers: str, count: int = 3) -> list[int]:
    """Of the first frames of environments."""
    envs = FrameVectorEnv(EnvMaker("small_envs:Telling"), count, episode_seeds(0), workers=workers)  # type: ignore[arg-type]
    try:
        envs.reset()
        frames = envs.step(np.zeros(count, np.int64)).frames
        assert frames is not None
        return [int(frame.max()) for frame in frames]
    finally:
        envs.close()


@pytest.mark.usefixtures("_gpus")
def test_worker_processes_take_the_gpus_in_turn() -> None:
    assert shades("processes") == [1, 2, 1]
    assert shades("inline", 1) == [0]


@pytest.mark.usefixtures("_gpus")
def test_processes_of_games_take_them_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    class Watched:
        """Stands in for a worker process."""

        alive = True

        def __init__(self, make: object, variables: dict[str, str]) -> None:
            chosen.append(variables["MUJOCO_EGL_DEVICE_ID"])

        def begin(self, *_: Any, **__: Any) -> Callable[[], Any]:
            return lambda: SimpleNamespace(action_names=(), asked=(), action_space=None, metadata={}, has_oracle=False)

    monkeypatch.setattr(processes, "Worker", Watched)
    pool = processes.GamePool(Clock, processes=3)
    for slot in range(5):
        assert pool[slot] is not None
    assert chosen == ["0", "1", "0"]


def test_without_a_gpu_nothing_changes() -> None:
    assert egl.drawing_gpus() == () and egl.drawing_variables(0) == {} and egl.drawing_in_words() is None


@pytest.mark.usefixtures("_gpus")
def test_gpus_are_taken_in_the_order_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in which EGL lists them, and whatever else it lists."""
    monkeypatch.setattr(egl, "_asked_of_egl", lambda: REVERSED)
    assert [egl.drawing_variables(worker)["MUJOCO_EGL_DEVICE_ID"] for worker in range(4)] == ["1", "0", "3", "1"]
    assert egl.drawing_variables(1)["EGL_DEVICE_ID"] == "0"
    assert egl.drawing_variables() == {}, "MuJoCo takes the first that starts"
    line = egl.drawing_in_words()
    assert line is not None and "0, 1, 3 (MUJOCO_EGL_DEVICE_ID)" in line


@pytest.mark.usefixtures("_gpus")
@pytest.mark.parametrize("name", egl.VARIABLES)
def test_a_device_of_the_users_is_obeyed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, name, "1")
    assert egl.drawing_variables(0) == {} and egl.drawing_in_words() is None


@pytest.mark.usefixtures("_gpus")
def test_hidden_gpus_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setattr(egl, "_asked_of_egl", lambda: {5: 0})
    assert egl.drawing_variables(3)["MUJOCO_EGL_DEVICE_ID"] == "5"
    prepare_rendering()
    assert os.environ["MUJOCO_EGL_DEVICE_ID"] == "5", "this process draws with it, too"


@pytest.mark.usefixtures("_gpus")
def test_a_driver_that_shows_hidden_gpus_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "1")
    assert egl.drawing_gpus() == ()


@pytest.mark.usefixtures("_gpus")
@pytest.mark.parametrize("variables", [{"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, {SLOT: "3"}])
def test_processes_of_torchrun_and_of_sweeps_draw_where_they_compute(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)
    chosen = [egl.drawing_variables(worker)["MUJOCO_EGL_DEVICE_ID"] for worker in (None, 0, 1)]
    assert chosen == ["1", "1", "1"]


@pytest.mark.usefixtures("_gpus")
def test_one_gpu_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egl, "gpus_here", lambda: 1)
    monkeypatch.setattr(egl, "_asked_of_egl", lambda: pytest.fail("nothing to choose"))
    assert egl.drawing_gpus() == ()


@pytest.mark.parametrize("said", ["", "{", '[["first", "gpu"]]'])
def test_an_egl_that_cannot_say_is_no_trouble(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, said, ""))
    assert egl._asked_of_egl() == {}


def test_what_egl_lists_here_has_no_number_of_cuda() -> None:
    """Nor does it end the process: on machines with Mesa its software is listed."""
    done = subprocess.run([sys.executable, "-I", "-S", egl.__file__], capture_output=True, text=True, check=False)
    if "libEGL" in done.stderr:
        pytest.skip("no EGL here")
    assert done.returncode == 0, done.stderr
    if not egl.gpus_here():
        assert json.loads(done.stdout) == []


FAKE_EGL = """
#include <string.h>
#include <stdint.h>
static char first, software, second;
static unsigned list(int most, void **devices, int *count) {
    void *all[] = {&first, &software, &second};
    for (*count = 0; *count < 3 && *count < most; ++*count) devices[*count] = all[*count];
    return 1;
}
static unsigned attribute(void *device, int which, intptr_t *value) {
    if (which != 0x323A || device == &software) return 0;
    *value = device == &first;
    return 1;
}
void *eglGetProcAddress(const char *name) {
    if (!strcmp(name, "eglQueryDevicesEXT")) return list;
    return strcmp(name, "eglQueryDeviceAttribEXT") ? 0 : attribute;
}
"""
"""A library with two GPUs, in the other order than CUDA's, and software between them."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_driver_is_asked_for_cudas_numbers(tmp_path: Path) -> None:
    (tmp_path / "egl.c").write_text(FAKE_EGL)
    library = tmp_path / "libEGL.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "egl.c"], check=True)
    program = [sys.executable, "-I", "-S", egl.__file__]
    asked = subprocess.run(
        program, capture_output=True, text=True, check=True, env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    )
    assert json.loads(asked.stdout) == [[0, 1], [2, 0]]


# -- a GPU that cannot be drawn with -----------------------------------------------------------------------------------


def test_a_gpu_without_egl_is_advised_on_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("Cannot initialize a EGL device display")
    assert "NVIDIA_DRIVER_CAPABILITIES" not in drawing_advice(error)
    monkeypatch.setattr(rendering, "gpus_here", lambda: 1)
    for said in ("NVIDIA_DRIVER_CAPABILITIES=all", "MUJOCO_GL=osmesa", "libegl1"):
        assert said in drawing_advice(error)
    assert "WAYLAND" not in drawing_advice(ValueError("a negligible angle"))


def test_our_own_renderer_gives_that_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = pytest.importorskip("mujoco")

    def fail(*_: Any) -> Any:
        raise ImportError("Cannot initialize a EGL device display.")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(mujoco, "Renderer", fail)
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for count, advice in ((0, "sightline doctor"), (1, "NVIDIA_DRIVER_CAPABILITIES=all")):
        monkeypatch.setattr(rendering, "gpus_here", lambda count=count: count)
        monkeypatch.setattr(mujoco_rendering, "gpus_here", lambda count=count: count)
        with pytest.raises(RunFailed, match=advice):
            mujoco_rendering.OffscreenRenderer(model, (8, 8)).render(mujoco.MjData(model), 0)


def test_software_beside_a_gpu_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", sys.modules.get("mujoco", sys))
    contexts = iter([7, 8])
    monkeypatch.setattr(control_setup, "opengl_context", lambda: next(contexts))
    monkeypatch.setattr(control_setup, "opengl_renderer", lambda: "llvmpipe (LLVM 15.0.6, 256 bits)")
    monkeypatch.setattr(control_setup, "gpus_here", lambda: 1)
    warning = control_setup._software_opengl(Clock(render_mode="rgb_array"))
    assert warning is not None and "llvmpipe" in warning and "NVIDIA_DRIVER_CAPABILITIES=all" in warning


def test_a_device_that_does_not_exist_is_blamed_on_the_variable() -> None:
    error = RuntimeError("The MUJOCO_EGL_DEVICE_ID environment variable must be an integer between 0 and 1, got 9.")
    assert "unset MUJOCO_EGL_DEVICE_ID" in drawing_advice(error)


def test_a_device_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGL_DEVICE_ID", "cuda:1")
    prepare_rendering(render=False)
    with pytest.raises(BadInput, match=r"EGL_DEVICE_ID='cuda:1' is no number of a device; unset .* from 0$"):
        prepare_rendering()
