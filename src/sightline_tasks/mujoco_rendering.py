"""Pictures of MuJoCo's models from any of our cameras."""

from __future__ import annotations

import atexit
import os
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from sightline.envs.egl import gpus_here
from sightline.envs.frames import Size
from sightline.envs.rendering import CONTRADICTION, drawing_advice, prepare_rendering, variables_contradict
from sightline.errors import RunFailed, reason_of
from sightline_tasks.cameras import View

if TYPE_CHECKING:
    import mujoco


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
            advice = "; 'sightline doctor' says what works here"
            if tried == "egl" and gpus_here():
                advice = drawing_advice(error) or advice
            raise RunFailed(
                f"there is no OpenGL to draw with, MUJOCO_GL={tried} ({reason_of(error):.90}){advice}"
            ) from error

    def close(self) -> None:
        """Release the OpenGL context; calling it again does nothing."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
            atexit.unregister(self.close)
