"""OpenGL set up for machines without a display, and what draws in this process. Taking frames: `envs/frames.py`;
preprocessing: `models/encoder_base.py`."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import sys

from sightline.envs.egl import GPU_UNUSED, VARIABLES, drawing_variables, gpus_here
from sightline.envs.workers import WORKER
from sightline.errors import BadInput
from sightline.requirements import keep_llvms_apart

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
WRONG_DEVICE = "unset MUJOCO_EGL_DEVICE_ID and EGL_DEVICE_ID, or set them to the number of a device of EGL, from 0"
DRAWING_TROUBLE = {
    r"PYOPENGL_PLATFORM": CONTRADICTION,
    r"EGL_DEVICE_ID": WRONG_DEVICE,
    r"(system|font|mixer|pygame) not initialized|Surface quit|(per|one|same) process": ALONE,
    r"NoSuchDisplay|pyglet": "set PYGLET_HEADLESS=1 before it is imported (it needs EGL: apt-get install libegl1)",
    r"[Vv]ideo device|SDL|[Vv]ideo system": "set SDL_VIDEODRIVER=offscreen before it is imported",
    r"OpenGL|EGL|GLX|GLFW|OSMesa|libGL|\bgl[A-Z]\w+|\b[Dd]isplay\b": NO_OPENGL,
}
"""Words of an error (a regular expression) -> what to do about it; the first that fits counts."""


def variables_contradict() -> bool:
    """Whether MuJoCo cannot be loaded since PyOpenGL was told of another renderer than MuJoCo."""
    of_mujoco = os.environ.get("MUJOCO_GL", "").lower()
    of_pyopengl = os.environ.get("PYOPENGL_PLATFORM", "").lower()
    return of_mujoco in ("egl", "osmesa") and of_pyopengl not in ("", of_mujoco)


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
            if advice == NO_OPENGL and gpus_here():
                advice = GPU_UNUSED
            return f"; {advice}"
    return ""


SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swiftshader")


def prepare_rendering(render: bool = True) -> None:
    """Set up MuJoCo, pyglet and pygame for machines without a display, before they are imported.

    Nothing is set that changes what is drawn: some packages draw nothing once SDL's video driver is `dummy`.

    Args:
        render: whether this process will render.

    Raises:
        BadInput: a variable that names a device holds something else than a number.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # no simulator has to be heard, and most machines have no sound
    # Without these, they look for a display, and fail or complain where there is none although they could draw.
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        platform = os.environ.get("PYOPENGL_PLATFORM", "")
        os.environ.setdefault("MUJOCO_GL", platform if platform in ("egl", "osmesa") else "egl")
        os.environ.setdefault("PYGLET_HEADLESS", "1")
        if not os.environ.get("WAYLAND_DISPLAY"):
            os.environ.setdefault("SDL_VIDEODRIVER", "offscreen")
    # Two versions of LLVM in one process crash: torch's, and that of software OpenGL.
    # Our worker processes only simulate, and never load torch; neither do commands that only describe a run.
    if render and multiprocessing.current_process().name != WORKER:
        keep_llvms_apart(load_now="torch" in sys.modules)
        # Worker processes were told theirs as they began.
        os.environ.update(drawing_variables())
    for name in VARIABLES if render else ():
        if not os.environ.get(name, "0").isdecimal():
            raise BadInput(f"{name}='{os.environ[name]:.80}' is no number of a device; {WRONG_DEVICE}")


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
