"""MuJoCo and its OpenGL renderer: set up for machines without a display, and pictures from any of our cameras."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from sightline.envs.cameras import View
from sightline.envs.drawing import Size
from sightline.envs.workers import WORKER
from sightline.errors import RunFailed, reason_of
from sightline.requirements import keep_llvms_apart

if TYPE_CHECKING:
    import mujoco


NO_OPENGL = (
    "there is no OpenGL here: 'sightline doctor' says what to install, or set MUJOCO_GL=egl (or osmesa) before it is "
    "imported"
)
ALONE = (
    "another environment of this process may have closed what it needs, or there can be one in a process only: "
    "workers=processes gives each a process of its own"
)
CONTRADICTION = (
    "MUJOCO_GL and PYOPENGL_PLATFORM contradict each other: unset PYOPENGL_PLATFORM, or set both to egl or to osmesa"
)
DRAWING_TROUBLE = {
    r"PYOPENGL_PLATFORM": CONTRADICTION,
    r"(system|font|mixer|pygame) not initialized|Surface quit|(per|one|same) process": ALONE,
    r"NoSuchDisplay|pyglet": "set PYGLET_HEADLESS=1 before it is imported (it needs EGL: apt-get install libegl1)",
    r"[Vv]ideo device|SDL|[Vv]ideo system": "set SDL_VIDEODRIVER=offscreen before it is imported",
    r"OpenGL|EGL|GLX|GLFW|OSMesa|libGL|\bgl[A-Z]\w+|\b[Dd]isplay\b": NO_OPENGL,
}
"""Words of an error (a regular expression) -> what to do about it; the first that fits counts."""


def variables_contradict() -> bool:
    """Whether MuJoCo cannot be loaded since PyOpenGL was told of another renderer than MuJoCo."""
    chosen, of_pyopengl = os.environ.get("MUJOCO_GL", "").lower(), os.environ.get("PYOPENGL_PLATFORM", "").lower()
    return chosen in ("egl", "osmesa") and of_pyopengl not in ("", chosen)


def drawing_advice(error: BaseException) -> str:
    """Advice on an exception of a renderer, as `"; do this"`; empty if it is not about displays or OpenGL.

    The exceptions that led to this one are read, too: libraries often hide the cause behind an error of their own.
    """
    words = ""
    cause: BaseException | None = error
    while cause is not None:
        words += f" {type(cause).__name__} {cause}"
        cause = cause.__cause__ or cause.__context__
    for signs, advice in DRAWING_TROUBLE.items():
        if re.search(signs, words):
            return f"; {advice}"
    return ""


SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swiftshader")


def prepare_rendering(render: bool = True) -> None:
    """Set up MuJoCo, pyglet and pygame for machines without a display, before they are imported.

    Nothing is set that changes what is drawn: some packages draw nothing once SDL's video driver is `dummy`.

    Args:
        render: whether this process will render.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # no simulator has to be heard, and most machines have no sound
    # Without these, they look for a display, and fail or complain where there is none although they could draw.
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        asked = os.environ.get("PYOPENGL_PLATFORM", "")
        os.environ.setdefault("MUJOCO_GL", asked if asked in ("egl", "osmesa") else "egl")
        os.environ.setdefault("PYGLET_HEADLESS", "1")
        if not os.environ.get("WAYLAND_DISPLAY"):
            os.environ.setdefault("SDL_VIDEODRIVER", "offscreen")
    # Our worker processes only simulate, and never load torch.
    if render and multiprocessing.current_process().name != WORKER:
        keep_llvms_apart()


def import_mujoco() -> Any:
    """The package `mujoco`.

    Raises:
        gymnasium.error.DependencyNotInstalled: it is missing.
    """
    prepare_rendering(render=False)
    try:
        import mujoco
    except ModuleNotFoundError as error:
        raise gymnasium.error.DependencyNotInstalled(f"{error}; pip install 'sightline[mujoco]'") from error
    except (ImportError, RuntimeError) as error:  # it is there, and cannot draw as the environment's variables say
        if variables_contradict():
            raise RunFailed(f"MuJoCo cannot be loaded: {CONTRADICTION}") from error
        raise RunFailed(f"MuJoCo cannot be loaded: {reason_of(error)}{drawing_advice(error)}") from error
    if mujoco.get_mju_user_warning() is None:
        # MuJoCo would write each into MUJOCO_LOG.TXT in the working directory. Whoever steps it looks at its counters.
        mujoco.set_mju_user_warning(lambda text: None)
    return mujoco


def opengl_renderer() -> str | None:
    """What draws in this process's OpenGL context, such as `llvmpipe (LLVM 15.0.6, 256 bits)`; None without a context
    that MuJoCo has made."""
    if not {"mujoco.egl", "mujoco.osmesa", "mujoco.glfw"} & sys.modules.keys():
        return None
    with contextlib.suppress(Exception):  # PyOpenGL has many ways to say that there is no context
        from OpenGL import GL

        name = GL.glGetString(GL.GL_RENDERER)
        return name.decode() if name else None
    return None


def opengl_context() -> int | None:
    """Handle of this thread's OpenGL context; None without one that MuJoCo has made."""
    if opengl_renderer() is None:
        return None
    from OpenGL import platform

    handle: int | None = platform.GetCurrentContext()
    return handle


def is_software(renderer: str) -> bool:
    """Whether an OpenGL renderer is known to run on the processor."""
    return any(name in renderer.lower() for name in SOFTWARE)


class OffscreenRenderer:
    """MuJoCo's renderer with one OpenGL context, made with the first picture.

    Args:
        model: what is rendered; its size of the picture, field of view and samples are set.
        size: height and width of the pictures in pixels.
        shadows, reflections: draw them, which takes several times as long.
        samples: samples per pixel that smooth edges, 0 for none; default: the model's own number.
        slices: sides of the polygons that round shapes are drawn with; default: the model's own number.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        size: Size,
        shadows: bool = False,
        reflections: bool = False,
        samples: int | None = None,
        slices: int | None = None,
    ) -> None:
        self._model, self._size = model, (int(size[0]), int(size[1]))
        self._shadows, self._reflections = shadows, reflections
        model.vis.global_.offheight, model.vis.global_.offwidth = self._size
        if samples is not None:
            model.vis.quality.offsamples = samples
        if slices is not None:
            model.vis.quality.numslices = slices
        self._renderer: Any = None

    def render(self, data: mujoco.MjData, view: View | int) -> np.ndarray:
        """uint8[height, width, 3]: upright, or from a camera of the model's (its index) as that is mounted.

        Raises:
            RunFailed: there is no OpenGL.
        """
        import mujoco

        if self._renderer is None:
            prepare_rendering()  # an environment may be made without `EnvMaker`
            self._renderer = self._begin()
            atexit.register(self.close)  # before OpenGL itself is shut down, which would print errors
            self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = self._shadows
            self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = self._reflections
        if isinstance(view, View):
            self._model.vis.global_.fovy = view.field_of_view
            camera = mujoco.MjvCamera()
            camera.lookat[:] = view.look_at
            camera.distance, camera.azimuth, camera.elevation = view.distance, view.azimuth, view.elevation
            self._renderer.update_scene(data, camera)
        else:
            self._renderer.update_scene(data, view)
        picture: np.ndarray = self._renderer.render()
        return picture

    def _begin(self) -> Any:
        import mujoco

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of GLFW, in many lines, which the error says in one
                return mujoco.Renderer(self._model, *self._size)
        except Exception as error:  # every back end fails in its own way
            tried = os.environ.get("MUJOCO_GL") or "(not set)"
            raise RunFailed(
                f"there is no OpenGL to draw with, MUJOCO_GL={tried} ({reason_of(error):.90}); "
                "'sightline doctor' says what works here"
            ) from error

    def close(self) -> None:
        """Release the OpenGL context; calling it again does nothing."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
            atexit.unregister(self.close)
