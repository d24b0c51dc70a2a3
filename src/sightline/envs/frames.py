"""Frames: the pictures that environments render, converted to one form, uint8[H, W, 3].

This module imports little: worker processes load it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from sightline.errors import RunFailed, reason_and_place
from sightline.runs.stopping import asks_to_stop

Size = tuple[int, int]
"""Height and width in pixels, in numpy's order."""

FORM = "frames must be uint8[H, W, 3]; grey pictures, RGBA and floats from 0 to 1 are converted"
ROUNDING = 1e-3
"""How far floats may lie outside of 0 and 1: renderers that compute in floats round."""


def rgb_frame(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    """Render a frame of the environment's present state: uint8[H, W, 3], contiguous, and a copy.

    Many renderers draw on one canvas all the time, so what they return is overwritten by the next picture.

    Raises:
        RunFailed: the environment failed to render, or rendered something that `checked_frame` refuses.
    """
    return checked_frame(rendered_by(env)).copy()


def rendered_by(env: Any) -> Any:
    """What the `render()` of an environment, or of a vector of them, returns, in whatever form.

    Raises:
        RunFailed: it failed; the line names the exception, its place, and what to do.
    """
    try:
        return env.render()
    except RunFailed:
        raise
    except BaseException as error:
        if asks_to_stop(error):
            raise
        from sightline.envs.rendering import drawing_advice

        advice = drawing_advice(error) or "; fix its render()"
        raise RunFailed(f"the environment could not render: {reason_and_place(error)}{advice}") from error


def checked_frame(rendered: Any) -> np.ndarray:
    """A picture that an environment rendered, as uint8[H, W, 3], contiguous.

    RGBA loses its last channel, floats from 0 to 1 are scaled to 255, grey ([H, W] or [H, W, 1]) is given to all three
    channels, and a first axis of one picture ([1, H, W, 3]) is dropped. Arrays of torch and JAX, on any device, and
    pictures of Pillow are taken, too.

    Raises:
        RunFailed: it is something else.
    """
    if rendered is None:
        raise RunFailed(
            "the environment's render() returned nothing; its constructor must take render_mode='rgb_array' and keep "
            "it, and render() must return uint8[H, W, 3]"
        )
    if isinstance(rendered, str):
        raise RunFailed(f"the environment rendered the text {rendered!r:.40}; {FORM}")
    if isinstance(rendered, bool | np.bool_):
        raise RunFailed(
            f"the environment's render() returned {rendered}, as if into a window; it must heed "
            "render_mode='rgb_array', which its constructor was given, and return uint8[H, W, 3]"
        )
    picture = to_array(rendered)
    if picture.dtype == object:
        raise RunFailed(f"the environment rendered {_described(rendered)}; {FORM}")
    kind = f"{picture.dtype}{list(picture.shape)}"
    if picture.ndim == 4 and len(picture) == 1:
        picture = picture[0]
    if picture.ndim == 2:
        picture = picture[..., None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or not picture.size:
        raise RunFailed(f"the environment rendered {kind}; {FORM}")
    if picture.dtype.kind == "f":
        low = float(picture.min())
        high = float(picture.max())
        # NaN compares false with everything, and is refused so.
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            raise RunFailed(f"the environment rendered {kind} with values from {low:.4g} to {high:.4g}; {FORM}")
        picture = np.rint(picture.clip(0, 1) * 255).astype(np.uint8)
    if picture.dtype != np.uint8:
        raise RunFailed(f"the environment rendered {kind}; {FORM}")
    if picture.shape[2] == 1:
        picture = np.repeat(picture, 3, axis=2)
    return np.ascontiguousarray(picture[..., :3])


def is_tensor_of_frames(rendered: Any) -> bool:
    """Whether an environment rendered the frames of several as a tensor of torch, uint8[N, H, W, 3], on any device."""
    is_tensor = hasattr(rendered, "detach")
    return is_tensor and str(rendered.dtype) == "torch.uint8" and rendered.ndim == 4 and rendered.shape[3] == 3


def to_array(rendered: Any) -> np.ndarray:
    """What an environment rendered, as a numpy array of whatever dtype and shape it has."""
    if hasattr(rendered, "detach"):  # torch, perhaps on a GPU
        rendered = rendered.detach().cpu()
    elif hasattr(rendered, "convert"):  # Pillow, whose pictures may hold numbers of a palette
        rendered = rendered.convert("RGB")
    try:
        return np.asarray(rendered)
    except ValueError:  # a list of unequal parts
        return np.asarray(None)


def _described(rendered: Any) -> str:
    """Kind of a thing that is no array, in a few words."""
    if isinstance(rendered, dict):
        return f"a dictionary of {', '.join(map(str, rendered)) or 'nothing'}"
    return f"a {type(rendered).__name__}"
