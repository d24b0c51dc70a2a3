"""Encoders from Hugging Face: the families of CLIP, SigLIP and SigLIP 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.config.basics import Aspect
from sightline.errors import BadInput
from sightline.models.encoder_base import TowerPair, cannot_load, unknown_words
from sightline.models.shrinking import resized_by

if TYPE_CHECKING:
    import torch


class HuggingFaceEncoder(TowerPair):
    """Encoder from Hugging Face: any model with `get_image_features` and `get_text_features`."""

    def __init__(
        self, name: str, device: torch.device, dtype: torch.dtype, batch_size: int, aspect: Aspect = "crop"
    ) -> None:
        from PIL import Image
        from transformers import AutoModel, AutoProcessor

        self.name, self.aspect = name, aspect
        self._device, self._dtype, self._batch_size = device, dtype, batch_size
        source = name.removeprefix("hf:")
        try:
            # Unless told, the library asks on the terminal whether it may run code that lies beside the weights.
            self._processor = AutoProcessor.from_pretrained(source, trust_remote_code=False)  # type: ignore[no-untyped-call]
            model = AutoModel.from_pretrained(source, dtype=dtype, trust_remote_code=False)
        except Exception as error:
            raise cannot_load(name, error) from error
        if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
            raise BadInput(f"'{name}' is a {type(model).__name__}, which has no image and text towers to compare")
        self._model = model.to(device).eval().requires_grad_(False)
        self._context_length = int(model.config.text_config.max_position_embeddings)
        self._has_text_tower = True
        size = image_processor_size(self._processor.image_processor)
        self.image_size = size or _vision_size(model.config.vision_config)
        resample = getattr(self._processor.image_processor, "resample", None)
        # Pillow's numbers, or torchvision's words.
        word = str(getattr(resample, "value", "bicubic")).upper()
        self._resample = resample if isinstance(resample, int) else getattr(Image.Resampling, word, 3)

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        return unknown_words(self._processor.tokenizer, sentences)

    def free_text_tower(self) -> None:
        import torch

        self._model.text_model = torch.nn.Identity()
        self._has_text_tower = False

    def _resized_and_kept(self) -> tuple[int | None, int]:
        images = self._processor.image_processor
        size = getattr(images, "size", None)
        edge: Any = size.get("shortest_edge") if isinstance(size, dict) else getattr(size, "shortest_edge", None)
        # Without a shortest edge both sides are resized to what is read, each by itself.
        cuts = edge is not None and getattr(images, "do_center_crop", False)
        return (int(edge) if cuts else None), self.image_size

    def _image_tower(self, frames: np.ndarray) -> torch.Tensor:
        inputs = {name: value.to(self._device) for name, value in self._inputs(frames).items()}
        # One layout in memory, whatever the processor had to do: convolutions round by it.
        inputs["pixel_values"] = inputs["pixel_values"].to(self._dtype).contiguous()
        return _pooled(self._model.get_image_features(**inputs))

    def _inputs(self, frames: np.ndarray) -> dict[str, torch.Tensor]:
        # Of read-only frames, as renderers give them, torch would warn.
        pictures = list(self._square(frames if frames.flags.writeable else frames.copy()))
        return dict(self._processor.image_processor(images=pictures, return_tensors="pt"))

    def _resized(self, frames: np.ndarray) -> np.ndarray:
        frames = self._square(frames if frames.flags.writeable else frames.copy())
        return resized_by(self._processor.image_processor, frames)

    def _text_tower(self, sentences: list[str]) -> torch.Tensor:
        if not self._has_text_tower:
            raise RuntimeError("the text tower was freed; load the encoder again to embed other words")
        tokens = self._processor.tokenizer(
            sentences, padding="max_length", max_length=self._context_length, truncation=True, return_tensors="pt"
        )
        accepted = {k: v for k, v in tokens.items() if k in ("input_ids", "attention_mask")}
        return _pooled(self._model.get_text_features(**{k: v.to(self._device) for k, v in accepted.items()}))

    def _reads_all(self, sentence: str) -> bool:
        return len(self._processor.tokenizer(sentence, verbose=False)["input_ids"]) <= self._context_length


def _pooled(output: Any) -> torch.Tensor:
    pooled: torch.Tensor = getattr(output, "pooler_output", output)
    return pooled


def image_processor_size(image_processor: Any) -> int | None:
    size = getattr(image_processor, "crop_size", None) or getattr(image_processor, "size", None) or {}
    for key in ("height", "shortest_edge"):
        value = size.get(key) if isinstance(size, dict) else getattr(size, key, None)
        if value:
            return int(value)
    return None


def _vision_size(config: Any) -> int:
    """Side in pixels of the picture that a vision tower reads; SigLIP 2's NaFlex towers state patches instead."""
    if getattr(config, "image_size", None):
        return int(config.image_size)
    return int(config.num_patches**0.5) * int(config.patch_size)
