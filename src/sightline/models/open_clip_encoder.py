"""Encoders that open_clip builds: its own models and weights, and folders in its format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sightline.config.basics import Aspect, Resizing
from sightline.errors import BadInput, nearest
from sightline.models.encoder_base import OpenClipFormat, cannot_load, unknown_words
from sightline.models.encoder_files import BUNDLED, CONFIG, encoder_folder, model_config

if TYPE_CHECKING:
    import torch


class OpenClipEncoder(OpenClipFormat):
    """Encoder built by open_clip.

    Args:
        name: `Architecture/tag`, or `local-dir:/folder`.

    Raises:
        BadInput: open_clip has no such model, or it needs code of its own.
        RunFailed: it cannot be downloaded, or its files are damaged.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        batch_size: int,
        aspect: Aspect = "crop",
        resizing: Resizing = "torch",
    ) -> None:
        import open_clip

        model_name, tag = _open_clip_name(name)
        try:
            text_config = (model_config(name) or {}).get("text_cfg")
            tokenizer_options = {}
            if isinstance(text_config, dict) and text_config.get("hf_tokenizer_name"):
                tokenizer_options["trust_remote_code"] = False
            with _without_code_of_models():
                model, _, transform = open_clip.create_model_and_transforms(
                    model_name, pretrained=tag, device="cpu", require_pretrained=True
                )
                self._tokenizer = open_clip.get_tokenizer(model_name, **tokenizer_options)
        except Exception as error:
            raise cannot_load(name, error) from error
        model = model.eval().requires_grad_(False)
        preprocessing = model.visual.preprocess_cfg
        size = preprocessing["size"]
        self.image_size = int(size if isinstance(size, int) else size[0])
        model.visual = _folded(model.visual)
        super().__init__(name, device, dtype, batch_size, aspect, resizing, preprocessing, model.visual)
        self._model = model.to(device=device, dtype=dtype)
        self._context_length = int(self._tokenizer.context_length)
        # All but the last two steps work on pictures: what comes after makes numbers of them.
        self._steps = transform.transforms[:-2]

    def _drop_text_tower(self) -> None:
        self._model = None

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        return unknown_words(getattr(self._tokenizer, "tokenizer", None), sentences)

    def _resized_exactly(self, frames: np.ndarray) -> np.ndarray:
        pictures: list[Any] = [Image.fromarray(frame) for frame in frames]
        for step in self._steps:
            pictures = [step(picture) for picture in pictures]
        return np.stack([np.asarray(picture) for picture in pictures])

    def _text_tower(self, sentences: list[str]) -> torch.Tensor:
        if self._model is None:
            raise RuntimeError("the text tower was freed; load the encoder again to embed other words")
        features: torch.Tensor = self._model.encode_text(self._tokenizer(sentences).to(self._device))
        return features

    def _reads_all(self, sentence: str) -> bool:
        # open_clip's tokenizers have several ways to cut and to pad; all of them take another length.
        length = self._context_length + 4 * len(sentence.encode()) + 8
        padding = self._tokenizer([""], context_length=length)[0].mode().values
        ids = self._tokenizer([sentence])[0]
        all_ids = self._tokenizer([sentence], context_length=length)[0]
        return bool((ids != padding).sum() == (all_ids != padding).sum())


@contextlib.contextmanager
def _without_code_of_models() -> Iterator[None]:
    """Refuse code that a model's files ask to be run.

    open_clip leaves it to transformers, which asks whoever sits at the terminal, unless there is no time to answer.
    """
    from transformers import dynamic_module_utils

    before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = before


def _folded(tower: torch.nn.Module) -> torch.nn.Module:
    """Tower with its batch norms folded into the convolutions before them: the same function, to rounding."""
    import torch
    from torch.fx.experimental.optimization import fuse

    if not any(isinstance(module, torch.nn.BatchNorm2d) for module in tower.modules()):
        return tower
    try:
        return fuse(tower)
    except Exception:  # whatever tracing meets in a stranger's architecture; unfolded it works as well
        return tower


def _open_clip_name(name: str) -> tuple[str, str | None]:
    """Translate an encoder name to open_clip's model name and pretrained tag.

    Raises:
        BadInput: open_clip has no such model, architecture or tag.
    """
    import open_clip

    if name.startswith("local-dir:"):
        folder = encoder_folder(name)
        if not (folder / CONFIG).is_file():
            raise BadInput(f"there is no {CONFIG} in '{folder}'; for a Hugging Face folder use hf:{folder}")
        return f"local-dir:{folder}", None
    architecture, slash, tag = name.partition("/")
    models = open_clip.list_models()
    if not slash:
        hint = nearest(name, [*BUNDLED, *models])
        raise BadInput(
            f"'{name}' is not an encoder; use bundled, Architecture/tag, hf:owner/name or local-dir:/path{hint}"
        )
    if architecture not in models:
        raise BadInput(f"open_clip has no architecture '{architecture}'{nearest(architecture, models)}")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tag not in tags:
        raise BadInput(f"open_clip has no weights '{tag}' for {architecture}{nearest(tag, tags)}")
    return architecture, tag
