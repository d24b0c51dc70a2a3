"""Image-text encoders: their interface, and what those of all libraries have in common."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from sightline.config.basics import Aspect, Resizing
from sightline.errors import BadInput, RunFailed
from sightline.models.encoder_files import BUNDLED, encoder_folder
from sightline.models.familiarity import EARLY_LAYER, TaughtPictures
from sightline.models.hub import means_folder
from sightline.models.memory import BatchSize
from sightline.models.resizing import on_the_host, padded, resized_by_pillow, resized_by_torch, shortest_side_cut
from sightline.models.sentences import check_length, words_of
from sightline.models.sharing_out import shared_out
from sightline.models.shrinking import Shrinker, equal_inputs
from sightline.models.uploads import Uploads, as_tensor

if TYPE_CHECKING:
    import torch


class Encoder(Protocol):
    """Image-text encoder: an image tower and a text tower with a common embedding space.

    Those that Sightline loads read frames of torch, too, which they say by `reads_tensors = True`. They embed them as a
    tensor on their own device, and frames of a GPU do not pass the host.
    """

    name: str
    image_size: int
    """Side of the square picture that the image tower reads, in pixels."""
    aspect: Aspect

    def cut_off(self, height: int, width: int) -> tuple[float, float]:
        """Rows at the top and at the bottom each, and columns on the left and on the right each, that the image tower
        never sees of frames of this size."""

    def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
        """Make frames smaller, by the first part of the model's own preprocessing: uint8[N, H, W, 3] -> uint8[N, h, w,
        3]. Their embeddings stay the same, bit for bit; frames that would not become smaller stay as they are."""

    def embed_frames(self, frames: np.ndarray) -> np.ndarray:
        """Embed frames: uint8[N, H, W, 3] -> float32[N, D] of unit norm; N may be 0."""

    def embed_texts(self, sentences: Sequence[str]) -> np.ndarray:
        """Embed N sentences: -> float32[N, D] of unit norm. Not available after `free_text_tower`.

        Raises:
            BadInput: a sentence is longer than the text tower reads.
        """

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        """Words that the tokenizer maps to its unknown token; none for byte-level tokenizers."""

    def free_text_tower(self) -> None:
        """Free the memory of the text tower, once all sentences are embedded."""


class TowerPair:
    """Base class of encoders: batching over frames, and normalised float32 embeddings."""

    name: str
    image_size: int
    aspect: Aspect
    settings: tuple[Any, ...] = ()
    """Arguments of `load_encoder` by which another process loads the same one."""
    where: str
    """The devices that read frames, and why they were chosen."""
    reads_tensors = True
    keeps_text_tower = False
    """Whether `free_text_tower` leaves it alone, since the encoder is shared."""
    _batch_size: BatchSize
    _device: torch.device
    _copies: tuple[TowerPair, ...] = ()
    """Copies of the image tower on further devices."""
    _context_length: int
    """Tokens of a sentence that the text tower reads, special ones included."""
    _resample: int
    """Pillow's number of the model's own interpolation."""
    _resizing: Resizing = "torch"
    _reads_uploads = True
    """Whether the model's preprocessing reads frames on the device."""

    @property
    def device(self) -> torch.device:
        """The device of the text tower, and the first of those that read frames."""
        return self._device

    @property
    def batch_frames(self) -> int:
        """Frames that are computed together."""
        return self._batch_size.frames

    def cut_off(self, height: int, width: int) -> tuple[float, float]:
        if self.aspect != "crop":
            return 0.0, 0.0
        edge, crop = self._resize_and_crop_sides()
        if edge is None:
            return 0.0, 0.0
        visible = crop * min(height, width) / edge  # side of the cut square, in pixels of the frame
        return max(0.0, (height - visible) / 2), max(0.0, (width - visible) / 2)

    def shrink_frames(self, frames: Any) -> Any:
        return self._shrinker(frames)

    @cached_property
    def _shrinker(self) -> Shrinker:
        return Shrinker(self._resized, lambda full, small: equal_inputs(self._inputs(full), self._inputs(small)))

    def _resized(self, frames: Any) -> Any:
        """uint8[N, H, W, 3] -> uint8[N, h, w, 3], of numpy or torch: frames that `aspect` has made square, resized and
        cut as the model's own transform does."""
        raise NotImplementedError

    def _inputs(self, frames: Any) -> dict[str, torch.Tensor]:
        """What the image tower is given of frames uint8[N, H, W, 3], by the names of its arguments."""
        raise NotImplementedError

    def _square(self, frames: Any) -> Any:
        """uint8[N, H, W, 3], of numpy or torch, as the model's own transform is given them, according to `aspect`."""
        height, width = frames.shape[1:3]
        if self.aspect == "crop" or height == width:
            return frames
        if self.aspect == "pad":
            side = max(height, width)
            top = (side - height) // 2
            left = (side - width) // 2
            bottom = side - height - top
            right = side - width - left
            return padded(frames, (top, bottom), (left, right))
        # With the model's own interpolation, and to the size that its transform begins with: there is nothing left for
        # it to resize.
        edge, _ = self._resize_and_crop_sides()
        side = edge or self.image_size
        resize = resized_by_pillow if self._resizing == "pillow" else resized_by_torch
        return resize(frames, (side, side), self._resample)

    def _resize_and_crop_sides(self) -> tuple[int | None, int]:
        """What the model's own transform makes of the shorter side, and the side of the square that it cuts out then;
        None if it cuts nothing off."""
        raise NotImplementedError

    def spread(self, devices: Sequence[torch.device]) -> None:
        """Share frames out among further devices, each of which gets a copy of the image tower."""
        copies = []
        for device in devices:
            tower = copy.copy(self)
            tower.take_to(device)
            copies.append(tower)
        self._copies = tuple(copies)

    def take_to(self, device: torch.device) -> None:
        """Replace the image tower by a copy on another device, and give up the text tower."""
        raise NotImplementedError

    def embed_frames(self, frames: Any) -> Any:
        return self._embed_on([self, *self._copies], frames)

    def _embed_on(self, towers: Sequence[TowerPair], frames: Any) -> Any:
        if frames.ndim != 4 or frames.shape[3] != 3 or not str(frames.dtype).endswith("uint8"):
            raise ValueError(f"frames must be uint8[N, H, W, 3], not {frames.dtype}{list(frames.shape)}")
        if not len(frames):
            return self.embed_frames(_one_black_frame(frames))[:0]
        return self._batch_size.fitting(lambda size: self._embed_batches(towers, frames, size))

    def _embed_batches(self, towers: Sequence[TowerPair], frames: Any, size: int) -> Any:
        import torch

        # The same batches on however many devices: the rounding of a product depends on their size.
        batches = [frames[start : start + size] for start in range(0, len(frames), size)]
        workers = [tower.worker() for tower in towers]
        embedded = shared_out(lambda worker, batch: worker(batch), workers, batches)
        # Left on their devices until all are there: each copy to the host would wait for the device.
        embeddings = torch.cat([batch.to(self._device) for batch in embedded])
        return embeddings if isinstance(frames, torch.Tensor) else embeddings.cpu().numpy()

    def worker(self) -> Callable[[Any], torch.Tensor]:
        """What embeds the batches of one call on this device: uint8[N, H, W, 3] -> float32[N, D] there."""
        import torch

        uploads = Uploads(self._device)

        def embed(frames: Any) -> torch.Tensor:
            # In each thread anew: the mode is a thread's own.
            with torch.inference_mode():
                frames = self._before_upload(frames)
                if self._reads_uploads:
                    frames = uploads.upload(frames)
                embeddings = self._image_tower(frames)
                # Normalised in float32, whatever the towers compute in.
                unit = torch.nn.functional.normalize(embeddings.float(), dim=-1)
                uploads.computed()
                return unit

        return embed

    def _before_upload(self, frames: Any) -> Any:
        """Frames after what only the host can do with them."""
        return frames

    def embed_texts(self, sentences: Sequence[str]) -> np.ndarray:
        import torch

        check_length(sentences, self._reads_all, self._context_length, f"encoder '{self.name}'")
        with torch.inference_mode():
            embeddings = self._text_tower(list(sentences))
            return torch.nn.functional.normalize(embeddings.float(), dim=-1).cpu().numpy()

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        raise NotImplementedError

    def free_text_tower(self) -> None:
        if not self.keeps_text_tower:
            self._drop_text_tower()

    def _drop_text_tower(self) -> None:
        raise NotImplementedError

    def _image_tower(self, frames: Any) -> torch.Tensor:
        """float[N, D] of frames uint8[N, H, W, 3], of numpy or on the device."""
        raise NotImplementedError

    def _text_tower(self, sentences: list[str]) -> torch.Tensor:
        raise NotImplementedError

    def _reads_all(self, sentence: str) -> bool:
        """Whether the text tower is given all tokens of a sentence."""
        raise NotImplementedError


class OpenClipFormat(TowerPair):
    """Base class of encoders in open_clip's format: frames are resized, and a mean and a deviation scale them.

    Args:
        name: of the encoder.
        preprocessing: `preprocess_cfg` of its files.
        image_tower: float[N, 3, S, S] -> float[N, D].
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        batch_size: int,
        aspect: Aspect,
        resizing: Resizing,
        preprocessing: Mapping[str, Any],
        image_tower: torch.nn.Module,
    ) -> None:
        self.name = name
        self.aspect = aspect
        self._resizing = resizing
        self._device = device
        self._dtype = dtype
        self._batch_size = BatchSize(batch_size, f"encoder '{name}'")
        self._visual = image_tower.to(device=device, dtype=dtype)
        self._resize_mode = preprocessing.get("resize_mode", "shortest")
        self._resample = int(Image.Resampling.BICUBIC)
        if preprocessing.get("interpolation") == "bilinear":
            self._resample = int(Image.Resampling.BILINEAR)
        self._mean = _channels(preprocessing["mean"], device)
        self._std = _channels(preprocessing["std"], device)
        self._taught_pictures: TaughtPictures | None = None
        if name in BUNDLED or name.startswith("local-dir:"):
            self._taught_pictures = TaughtPictures.load(encoder_folder(name))

    def take_to(self, device: torch.device) -> None:
        self._device = device
        self._visual = copy.deepcopy(self._visual).to(device)
        self._mean = self._mean.to(device)
        self._std = self._std.to(device)
        self._drop_text_tower()

    def unfamiliarity(self, frames: Any) -> np.ndarray | None:
        """How far frames are from the pictures that the encoder was taught: uint8[N, H, W, 3] -> float64[N], where 1 is
        farther than nearly all of those. None where its folder does not say."""
        if self._taught_pictures is None:
            return None
        return self._taught_pictures.distance(self.features(frames))

    def features(self, frames: Any) -> np.ndarray:
        """Features by which `TaughtPictures` compares frames: uint8[N, H, W, 3] -> float32[N, channels + D].

        Raises:
            AttributeError: the image tower has no such layer.
        """
        import torch

        channels: list[torch.Tensor] = []

        def average(_: Any, __: Any, output: torch.Tensor) -> None:
            channels.append(output.float().mean((2, 3)))

        # The layer's output is caught on its way: the tower itself gives the embedding only.
        handle = self._visual.get_submodule(EARLY_LAYER).register_forward_hook(average)
        try:
            embeddings = torch.as_tensor(self._embed_batches([self], frames, self._batch_size.frames))
        finally:
            handle.remove()
        return np.concatenate([torch.cat(channels).cpu().numpy(), embeddings.cpu().numpy()], axis=1)

    def preprocess(self, frames: Any) -> torch.Tensor:
        """uint8[N, H, W, 3], of numpy or torch, -> float32[N, 3, S, S] on the model's device: open_clip's own transform
        of frames that `aspect` has made square, equal to the bit if `resizing` is `pillow`."""
        frames = self._resized(frames)
        pixels = as_tensor(frames) if isinstance(frames, np.ndarray) else frames
        pixels = pixels.to(self._device)
        return pixels.permute(0, 3, 1, 2).float().div_(255).sub_(self._mean).div_(self._std)

    def _before_upload(self, frames: Any) -> Any:
        # Pillow's part comes first, so that they need not come back for it.
        by_torch = self._resizing == "torch" and self._resize_mode in ("squash", "shortest")
        return frames if by_torch else self._resized(frames)

    def _resized(self, frames: Any) -> Any:
        frames = self._square(frames)
        if frames.shape[1:3] == (self.image_size, self.image_size):
            return frames  # resizing would leave them as they are
        side = self.image_size
        if self._resizing == "torch" and self._resize_mode == "squash":
            return resized_by_torch(frames, (side, side), self._resample)
        if self._resizing == "torch" and self._resize_mode == "shortest":
            return shortest_side_cut(frames, side, self._resample)
        return on_the_host(self._resized_exactly, frames)

    def _resized_exactly(self, frames: np.ndarray) -> np.ndarray:
        """uint8[N, H, W, 3] -> uint8[N, S, S, 3], as the model's own transform does it with Pillow."""
        raise NotImplementedError

    def _inputs(self, frames: Any) -> dict[str, torch.Tensor]:
        return {"x": self.preprocess(frames)}

    def _resize_and_crop_sides(self) -> tuple[int | None, int]:
        # open_clip's other modes, `squash` and `longest`, show the whole frame.
        edge = self.image_size if self._resize_mode == "shortest" else None
        return edge, self.image_size

    def _image_tower(self, frames: Any) -> torch.Tensor:
        features = self._visual(self.preprocess(frames).to(self._dtype))
        pooled: torch.Tensor = features[0] if isinstance(features, tuple) else features
        return pooled


def unknown_words(tokenizer: Any, sentences: Sequence[str]) -> list[str]:
    """Words that a tokenizer of Hugging Face maps to its unknown token; none if there is no such tokenizer or token."""
    if tokenizer is None or tokenizer.unk_token_id is None:
        return []
    ids = {word: tokenizer(word, add_special_tokens=False)["input_ids"] for word in words_of(sentences)}
    return [word for word in ids if tokenizer.unk_token_id in ids[word]]


def _one_black_frame(like: Any) -> Any:
    """A frame uint8[1, 8, 8, 3] of the kind of an empty array or tensor."""
    black = np.zeros((1, 8, 8, 3), np.uint8)
    return black if isinstance(like, np.ndarray) else as_tensor(black).to(like.device)


def _channels(values: Sequence[float], device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.float32, device=device).view(1, 3, 1, 1)


def cannot_load(name: str, error: Exception) -> Exception:
    """Error for a failed load: missing folder or code of its own (`BadInput`), damaged files or no network
    (`RunFailed`)."""
    from huggingface_hub.constants import HF_HUB_CACHE

    # In one line, whatever the library wrote; some exceptions hold no words that a reader could use.
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, KeyError):
        reason = f"{reason} is missing in its configuration"
    elif isinstance(error, TypeError | AttributeError | IndexError):
        reason = "its configuration has another form than those of its library"
    source = name.removeprefix("hf:").removeprefix("local-dir:")
    if "trust_remote_code" in str(error):
        return BadInput(
            f"encoder '{name}' needs code of its own to be run, which is never done; take one that open_clip or "
            "transformers knows"
        )
    if name in BUNDLED or os.path.exists(os.path.expanduser(source)):
        return RunFailed(f"the files of encoder '{name}' cannot be read: {reason}")
    if name.startswith("hf:") and means_folder(source):
        return BadInput(f"there is no folder '{source}'")
    # Only words tell a missing network: each library raises errors of its own.
    if not any(word in reason.lower() for word in ("connect", "download", "offline", "cache", "resolve", "locate")):
        return RunFailed(f"encoder '{name}' could not be loaded: {type(error).__name__}: {reason}")
    return RunFailed(
        f"encoder '{name}' is not in the cache {HF_HUB_CACHE} and could not be downloaded; on a machine with network "
        f"access, run 'sightline models --fetch {name}' and copy that folder here (or point HF_HOME to it)"
    )
