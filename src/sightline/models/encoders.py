"""Image-text encoders by name: the bundled ones, any of open_clip, and Hugging Face's CLIP and SigLIP families.

Image size, mean and standard deviation, interpolation and tokenizer all come from the model's own files. Each library
is imported only for its own encoders.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from sightline.config.basics import Aspect, Resizing
from sightline.config.blocks import Dtype
from sightline.errors import BadInput
from sightline.models.device import choose_devices, devices_in_words, dtype_for
from sightline.models.encoder_base import Encoder, TowerPair
from sightline.models.encoder_files import BUNDLED, encoder_weights
from sightline.models.hub import means_folder, quiet_hub
from sightline.models.memory import room_on
from sightline.requirements import keep_llvms_apart

if TYPE_CHECKING:
    import torch

_shared: ContextVar[dict[Any, TowerPair] | None] = ContextVar("shared encoders", default=None)


@contextlib.contextmanager
def shared_encoders() -> Iterator[None]:
    """Within it, encoders that are loaded with equal arguments are one: many rewards can be made with it."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def load_encoder(
    name: str,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int = 128,
    aspect: Aspect = "crop",
    resizing: Resizing = "torch",
) -> Encoder:
    """Load an encoder.

    Args:
        name: `bundled` or `bundled-deformables`; `Architecture/tag` of open_clip, e.g.
            `ViT-B-32/laion2b_s34b_b79k`; `hf:owner/name` or `hf:/folder` for Hugging Face's CLIP, SigLIP and SigLIP 2;
            `local-dir:/folder` in open_clip's format.
        device: a torch device, `auto` for a GPU if there is one and the encoder is not small, `cuda:all`, or several
            devices separated by commas, among which the frames are shared out; see `choose_devices`.
        dtype: `float32`, `float16`, `bfloat16`, or `auto` for bfloat16 on CUDA and float32 elsewhere.
        batch_size: frames per forward pass.
        aspect: what becomes of frames that are not square; see `Aspect`.
        resizing: `torch` for frames in batches, or `pillow` for open_clip's own way, one by one; see `Resizing`.

    Raises:
        BadInput: there is no model of that name, it does not fit into the device's memory, or another argument is not
            valid.
        RunFailed: the model cannot be downloaded, or its files are damaged.
    """
    keep_llvms_apart()  # an environment may have drawn before
    if not isinstance(name, str):
        raise BadInput(f"an encoder is loaded by its name, such as 'bundled', not by {type(name).__name__}")
    for key, value, kind in (("dtype", dtype, Dtype), ("aspect", aspect, Aspect), ("resizing", resizing, Resizing)):
        choices = get_args(kind)
        if value not in choices:
            raise BadInput(f"{key} must be one of {', '.join(choices)}, not {value!r:.80}")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise BadInput(f"batch_size must be a whole number of frames from 1, not {batch_size!r:.80}")
    shared = _shared.get()
    settings = (name, device, dtype, int(batch_size), aspect, resizing)
    if shared is not None and settings in shared:
        return shared[settings]
    weights = encoder_weights(name)
    devices = choose_devices(device, weights)
    with room_on(device, f"encoder '{name}'"):
        encoder = _load(name, devices[0], dtype_for(dtype, devices[0]), int(batch_size), aspect, resizing)
        encoder.spread(devices[1:])
    encoder.settings = settings
    encoder.where = devices_in_words(device, devices, weights)
    if shared is not None:
        # Whoever shares it may have further words.
        encoder.keeps_text_tower = True
        shared[settings] = encoder
    return encoder


def _load(
    name: str, device: torch.device, dtype: torch.dtype, batch_size: int, aspect: Aspect, resizing: Resizing
) -> TowerPair:
    """An encoder on one device."""
    # Each branch imports only its own library: open_clip and transformers take seconds.
    if name.startswith("hf:"):
        source = name.removeprefix("hf:")
        if not source or not (means_folder(source) or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source)):
            raise BadInput(f"'{name}' names no model of Hugging Face's; say hf:owner/name, or hf:/folder")
        with quiet_hub(offline=means_folder(source)):
            from sightline.models.hugging_face_encoder import HuggingFaceEncoder

            return HuggingFaceEncoder(name, device, dtype, batch_size, aspect, resizing)
    if name in BUNDLED:
        from sightline.models.bundled_encoder import BundledEncoder

        return BundledEncoder(name, device, dtype, batch_size, aspect, resizing)
    with quiet_hub(offline=name.startswith("local-dir:")):
        from sightline.models.open_clip_encoder import OpenClipEncoder

        return OpenClipEncoder(name, device, dtype, batch_size, aspect, resizing)


def warn_of_cropping(encoder: Encoder, height: int, width: int, key: str) -> str | None:
    """One line if an encoder does not see all of frames that are not square, else None.

    Args:
        key: where another `aspect` is chosen, such as `reward.aspect`.
    """
    rows, columns = encoder.cut_off(height, width)
    if height == width or not (rows or columns):
        return None
    sides = []
    if rows:
        sides.append(f"{rows:.3g} rows at the top and as many at the bottom")
    if columns:
        sides.append(f"{columns:.3g} columns at the left and as many at the right")
    return (
        f"frames of {height}x{width} (height x width) are not square, and encoder '{encoder.name}' never sees "
        f"{', '.join(sides)}; say {key}=pad for black bars instead, or {key}=squash to squeeze the whole frame into a "
        "square"
    )
