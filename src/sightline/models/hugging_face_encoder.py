"""Encoders from Hugging Face: the families of CLIP, SigLIP and SigLIP 2."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.config.basics import Aspect, Resizing
from sightline.errors import BadInput
from sightline.models.encoder_base import TowerPair, cannot_load, unknown_words
from sightline.models.memory import BatchSize
from sightline.models.shrinking import resized_by, takes_tensors

if TYPE_CHECKING:
    import torch


class HuggingFaceEncoder(TowerPair):
    """Encoder from Hugging Face: any model with `get_image_features` and `get_text_features`."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        batch_size: int,
        aspect: Aspect = "crop",
        resizing: Resizing = "torch",
    ) -> None:
        if resizing == "pillow":
            raise BadInput(f"encoder '{name}' resizes frames by its own processor; leave resizing=pillow out")
        from PIL import Image
        from transformers import AutoModel, AutoProcessor

        self.name = name
        self.aspect = aspect
        self._device = device
        self._dtype = dtype
        self._batch_size = BatchSize(batch_size, f"encoder '{name}'")
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
        images = self._processor.image_processor
        self._reads_uploads = takes_tensors(images)
        self.image_size = image_processor_size(images) or _vision_size(model.config.vision_config)
        # The interpolation is one of Pillow's numbers, or of torchvision's words.
        resample: Any = getattr(images, "resample", None)
        if not isinstance(resample, int):
            word = str(getattr(resample, "value", "bicubic")).upper()
            resample = getattr(Image.Resampling, word, Image.Resampling.BICUBIC)
        self._resample = resample

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        return unknown_words(self._processor.tokenizer, sentences)

    def _drop_text_tower(self) -> None:
        import torch

        self._model.text_model = torch.nn.Identity()
        self._has_text_tower = False

    def take_to(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._has_text_tower = False
        # Taken out of the whole model while it is copied, and put back.
        whole = self._model
        text_tower = whole.text_model
        whole.text_model = torch.nn.Identity()
        self._model = copy.deepcopy(whole).to(device)
        whole.text_model = text_tower

    def _resize_and_crop_sides(self) -> tuple[int | None, int]:
        images = self._processor.image_processor
        edge = _field(getattr(images, "size", None), "shortest_edge")
        # Without a shortest edge both sides are resized to what is read, each by itself.
        if edge is None or not getattr(images, "do_center_crop", False):
            return None, self.image_size
        return int(edge), self.image_size

    def _image_tower(self, frames: Any) -> torch.Tensor:
        inputs = self._to_device(self._inputs(frames))
        # One layout in memory, whatever the processor had to do: convolutions round by it.
        inputs["pixel_values"] = inputs["pixel_values"].to(self._dtype).contiguous()
        return _pooled(self._model.get_image_features(**inputs))

    def _inputs(self, frames: Any) -> dict[str, torch.Tensor]:
        """Preprocessing: the model's own image processor, where the frames are."""
        return dict(self._processor.image_processor(images=list(self._pictures(frames)), return_tensors="pt"))

    def _resized(self, frames: Any) -> Any:
        return resized_by(self._processor.image_processor, self._pictures(frames))

    def _pictures(self, frames: Any) -> Any:
        """Frames that `aspect` has made square, in a form that the processor takes."""
        if isinstance(frames, np.ndarray):
            return self._square(writeable(frames))
        if self._reads_uploads:
            return self._square(frames)
        return self._square(frames.cpu().numpy())

    def _text_tower(self, sentences: list[str]) -> torch.Tensor:
        if not self._has_text_tower:
            raise RuntimeError("the text tower was freed; load the encoder again to embed other words")
        tokens = self._processor.tokenizer(
            sentences, padding="max_length", max_length=self._context_length, truncation=True, return_tensors="pt"
        )
        # Tokenizers make further tensors that not every model reads.
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}
        return _pooled(self._model.get_text_features(**self._to_device(inputs)))

    def _to_device(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self._device) for name, tensor in inputs.items()}

    def _reads_all(self, sentence: str) -> bool:
        return len(self._processor.tokenizer(sentence, verbose=False)["input_ids"]) <= self._context_length


def writeable(frames: np.ndarray) -> np.ndarray:
    """Frames, copied if they are read-only, as renderers give them: of such torch would warn."""
    if frames.flags.writeable:
        return frames
    return frames.copy()


def _pooled(output: Any) -> torch.Tensor:
    pooled: torch.Tensor = getattr(output, "pooler_output", output)
    return pooled


def image_processor_size(image_processor: Any) -> int | None:
    """Side in pixels of the pictures that a processor makes; None if it does not say."""
    size = getattr(image_processor, "crop_size", None) or getattr(image_processor, "size", None) or {}
    side = _field(size, "height") or _field(size, "shortest_edge")
    return int(side) if side else None


def _field(size: Any, name: str) -> Any:
    """Field of a processor's size, which is a dictionary or a record; None if it has no such field."""
    if isinstance(size, dict):
        return size.get(name)
    return getattr(size, name, None)


def _vision_size(config: Any) -> int:
    """Side in pixels of the picture that a vision tower reads; SigLIP 2's NaFlex towers state patches instead."""
    if getattr(config, "image_size", None):
        return int(config.image_size)
    return int(config.num_patches**0.5) * int(config.patch_size)
