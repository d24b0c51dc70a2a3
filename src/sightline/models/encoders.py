"""Image-text encoders by name: the bundled one, any of open_clip, and Hugging Face's CLIP and SigLIP families.

Image size, mean and standard deviation, interpolation and tokenizer all come from the model's own files.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from sightline.config.basics import Aspect
from sightline.config.blocks import Dtype
from sightline.errors import BadInput, RunFailed, nearest
from sightline.models.device import choose_device
from sightline.models.familiarity import EARLY_LAYER, TaughtPictures
from sightline.models.hub import means_folder, quiet_hub
from sightline.models.sentences import check_length
from sightline.models.shrinking import Shrinker, equal_inputs, resized_by
from sightline.requirements import keep_llvms_apart
from sightline.runs.files import parse_json, read_bytes

if TYPE_CHECKING:
    import torch

BUNDLED = {"bundled": "encoder", "bundled-deformables": "deformables_encoder"}
"""Encoders of ours -> their folders: the worlds of most bundled recipes; cloth, rope and water."""


class Encoder(Protocol):
    """Image-text encoder: an image tower and a text tower with a common embedding space."""

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


def bundled_folder(name: str = "bundled") -> Path:
    """Folder of a bundled encoder, in open_clip's format, with its model card."""
    return Path(str(resources.files("sightline.models") / "bundled" / BUNDLED[name]))


def load_encoder(
    name: str, device: str = "auto", dtype: str = "auto", batch_size: int = 128, aspect: Aspect = "crop"
) -> Encoder:
    """Load an encoder.

    Args:
        name: `bundled` or `bundled-deformables`; `Architecture/tag` of open_clip, e.g.
            `ViT-B-32/laion2b_s34b_b79k`; `hf:owner/name` or `hf:/folder` for Hugging Face's CLIP, SigLIP and SigLIP 2;
            `local-dir:/folder` in open_clip's format.
        device: a torch device, or `auto` for the first available of CUDA, MPS and CPU.
        dtype: `float32`, `float16`, `bfloat16`, or `auto` for bfloat16 on CUDA and float32 elsewhere.
        batch_size: frames per forward pass.
        aspect: what becomes of frames that are not square; see `Aspect`.

    Raises:
        BadInput: there is no model of that name, or another argument is not valid.
        RunFailed: the model cannot be downloaded, or its files are damaged.
    """
    keep_llvms_apart()  # an environment may have drawn before
    if not isinstance(name, str):
        raise BadInput(f"an encoder is loaded by its name, such as 'bundled', not by {type(name).__name__}")
    for key, value, known in (("dtype", dtype, get_args(Dtype)), ("aspect", aspect, get_args(Aspect))):
        if value not in known:
            raise BadInput(f"{key} must be one of {', '.join(known)}, not {value!r:.80}")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise BadInput(f"batch_size must be a whole number of frames from 1, not {batch_size!r:.80}")
    torch_device = choose_device(device)
    torch_dtype = dtype_for(dtype, torch_device)
    if name.startswith("hf:"):
        source = name.removeprefix("hf:")
        if not source or not (means_folder(source) or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source)):
            raise BadInput(f"'{name}' names no model of Hugging Face's; say hf:owner/name, or hf:/folder")
        with quiet_hub(offline=means_folder(source)):
            return HuggingFaceEncoder(name, torch_device, torch_dtype, batch_size, aspect)
    with quiet_hub(offline=name in BUNDLED or name.startswith("local-dir:")):
        return OpenClipEncoder(name, torch_device, torch_dtype, batch_size, aspect)


def embedding_size(name: str) -> int | None:
    """Embedding dimension of an encoder, without loading it; None if its files would have to be downloaded."""
    size = (_model_config(name) or {}).get("embed_dim")
    return size if isinstance(size, int) else None


def picture_side(name: str) -> int | None:
    """Side in pixels of the picture that an encoder reads, without loading it; None if its files would have to be
    downloaded."""
    tower = (_model_config(name) or {}).get("vision_cfg")
    size = tower.get("image_size") if isinstance(tower, dict) else None
    return size if isinstance(size, int) else None


def _model_config(name: str) -> dict[str, Any] | None:
    """Model configuration that open_clip has for a name or a folder; None if it has none."""
    if name in BUNDLED or name.startswith("local-dir:"):
        file = _folder(name) / "open_clip_config.json"
        document = parse_json(read_bytes(file), f"'{file}'") if file.is_file() else {}
        config = document.get("model_cfg") if isinstance(document, dict) else None
    else:
        import open_clip

        config = open_clip.get_model_config(name.partition("/")[0])
    return config if isinstance(config, dict) else None


def dtype_for(dtype: str, device: torch.device) -> torch.dtype:
    import torch

    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    found: torch.dtype = getattr(torch, dtype)
    return found


class _TowerPair:
    """Base class of encoders: batching over frames, and normalised float32 embeddings."""

    name: str
    image_size: int
    aspect: Aspect
    _batch_size: int
    _context_length: int
    """Tokens of a sentence that the text tower reads, special ones included."""
    _resample: int
    """Pillow's number of the model's own interpolation."""

    def cut_off(self, height: int, width: int) -> tuple[float, float]:
        if self.aspect != "crop":
            return 0.0, 0.0
        edge, kept = self._resized_and_kept()
        if edge is None:
            return 0.0, 0.0
        seen = kept * min(height, width) / edge  # side of the square, in pixels of the frame, that is left in the end
        return max(0.0, (height - seen) / 2), max(0.0, (width - seen) / 2)

    def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
        return self._shrinker(frames)

    @cached_property
    def _shrinker(self) -> Shrinker:
        return Shrinker(self._resized, lambda full, small: equal_inputs(self._inputs(full), self._inputs(small)))

    def _resized(self, frames: np.ndarray) -> np.ndarray:
        """uint8[N, H, W, 3] -> uint8[N, h, w, 3]: frames that `aspect` has made square, resized and cut as the model's
        own transform does."""
        raise NotImplementedError

    def _inputs(self, frames: np.ndarray) -> dict[str, torch.Tensor]:
        """What the image tower is given of frames uint8[N, H, W, 3], by the names of its arguments."""
        raise NotImplementedError

    def _square(self, frames: np.ndarray) -> np.ndarray:
        """uint8[N, H, W, 3] as the model's own transform is given them, according to `aspect`."""
        height, width = frames.shape[1:3]
        if self.aspect == "crop" or height == width:
            return frames
        if self.aspect == "pad":
            side = max(height, width)
            top, left = (side - height) // 2, (side - width) // 2
            bars = ((0, 0), (top, side - height - top), (left, side - width - left), (0, 0))
            return np.pad(frames, bars)
        from PIL import Image

        # With the model's own interpolation, and to the size that its transform begins with: there is nothing left for
        # it to resize.
        side = self._resized_and_kept()[0] or self.image_size
        size = (side, side)
        kind = Image.Resampling(self._resample)
        return np.stack([np.asarray(Image.fromarray(frame).resize(size, kind)) for frame in frames])

    def _resized_and_kept(self) -> tuple[int | None, int]:
        """What the model's own transform makes of the shorter side, and the side of the square that it cuts out then;
        None if it cuts nothing off."""
        raise NotImplementedError

    def embed_frames(self, frames: np.ndarray) -> np.ndarray:
        import torch

        if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
            raise ValueError(f"frames must be uint8[N, H, W, 3], not {frames.dtype}{list(frames.shape)}")
        parts = []
        with torch.inference_mode():
            for start in range(0, len(frames), self._batch_size):
                embedded = self._image_tower(frames[start : start + self._batch_size])
                parts.append(torch.nn.functional.normalize(embedded.float(), dim=-1).cpu().numpy())
        return np.concatenate(parts) if parts else np.empty((0, self._dim()), np.float32)

    def embed_texts(self, sentences: Sequence[str]) -> np.ndarray:
        import torch

        check_length(sentences, self._reads_all, self._context_length, f"encoder '{self.name}'")
        with torch.inference_mode():
            embedded = self._text_tower(list(sentences))
            return torch.nn.functional.normalize(embedded.float(), dim=-1).cpu().numpy()

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        tokenizer = self._hf_tokenizer()
        if tokenizer is None or tokenizer.unk_token_id is None:
            return []
        words = dict.fromkeys(re.findall(r"\w+", " ".join(sentences)))
        return [w for w in words if tokenizer.unk_token_id in tokenizer(w, add_special_tokens=False)["input_ids"]]

    def _dim(self) -> int:
        return int(self.embed_frames(np.zeros((1, 8, 8, 3), np.uint8)).shape[1])

    def _image_tower(self, frames: np.ndarray) -> torch.Tensor:
        raise NotImplementedError

    def _text_tower(self, sentences: list[str]) -> torch.Tensor:
        raise NotImplementedError

    def _reads_all(self, sentence: str) -> bool:
        """Whether the text tower is given all tokens of a sentence."""
        raise NotImplementedError

    def _hf_tokenizer(self) -> Any:
        raise NotImplementedError


class OpenClipEncoder(_TowerPair):
    """Encoder built by open_clip."""

    def __init__(
        self, name: str, device: torch.device, dtype: torch.dtype, batch_size: int, aspect: Aspect = "crop"
    ) -> None:
        import open_clip
        from PIL import Image

        self.name, self.aspect = name, aspect
        self._device, self._dtype, self._batch_size = device, dtype, batch_size
        model_name, tag = _open_clip_name(name)
        try:
            named = (_model_config(name) or {}).get("text_cfg")
            is_hugging_face = isinstance(named, dict) and bool(named.get("hf_tokenizer_name"))
            plain = {"trust_remote_code": False} if is_hugging_face else {}
            with _without_code_of_models():
                self._model, _, transform = open_clip.create_model_and_transforms(
                    model_name, pretrained=tag, device="cpu", require_pretrained=True
                )
                self._tokenizer = open_clip.get_tokenizer(model_name, **plain)
        except Exception as error:
            raise cannot_load(name, error) from error
        self._context_length = int(self._tokenizer.context_length)
        self._model = self._model.eval().requires_grad_(False)
        preprocessing = self._model.visual.preprocess_cfg
        self._model.visual = _folded(self._model.visual)
        self._model = self._model.to(device=device, dtype=dtype)
        self._visual = self._model.visual
        # All but the last two steps work on pictures: what comes after makes numbers of them.
        self._resize = transform.transforms[:-2]
        size = preprocessing["size"]
        self.image_size = int(size if isinstance(size, int) else size[0])
        self._resize_mode = preprocessing.get("resize_mode", "shortest")
        bilinear = preprocessing.get("interpolation") == "bilinear"
        self._resample = int(Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC)
        self._mean = _channels(preprocessing["mean"], device)
        self._std = _channels(preprocessing["std"], device)
        has_folder = name in BUNDLED or name.startswith("local-dir:")
        self._taught = TaughtPictures.load(_folder(name)) if has_folder else None

    def unfamiliarity(self, frames: np.ndarray) -> np.ndarray | None:
        """How far frames are from the pictures that the encoder was taught: uint8[N, H, W, 3] -> float64[N], where 1 is
        farther than nearly all of those. None where its folder does not say."""
        return None if self._taught is None else self._taught.distance(self.features(frames))

    def features(self, frames: np.ndarray) -> np.ndarray:
        """Features by which `TaughtPictures` knows frames: uint8[N, H, W, 3] -> float32[N, channels + D].

        Raises:
            AttributeError: the image tower has no such layer.
        """
        channels: list[np.ndarray] = []

        def average(_: Any, __: Any, output: torch.Tensor) -> None:
            channels.append(output.float().mean((2, 3)).cpu().numpy())

        handle = self._visual.get_submodule(EARLY_LAYER).register_forward_hook(average)
        try:
            embeddings = self.embed_frames(frames)
        finally:
            handle.remove()
        return np.concatenate([np.concatenate(channels), embeddings], axis=1)

    def preprocess(self, frames: np.ndarray) -> torch.Tensor:
        """uint8[N, H, W, 3] -> float32[N, 3, S, S] on the model's device, equal to open_clip's own transform of
        frames that `aspect` has made square."""
        import torch

        frames = self._resized(frames)
        # A renderer's frames may be read-only, of which torch would warn; nothing here writes into them.
        pixels = torch.from_numpy(np.require(frames, requirements=["C", "W"])).to(self._device)
        return pixels.permute(0, 3, 1, 2).float().div_(255).sub_(self._mean).div_(self._std)

    def _resized(self, frames: np.ndarray) -> np.ndarray:
        from PIL import Image

        frames = self._square(frames)
        if frames.shape[1:3] == (self.image_size, self.image_size):
            return frames  # resizing would leave them as they are
        pictures: list[Any] = [Image.fromarray(frame) for frame in frames]
        for step in self._resize:
            pictures = [step(picture) for picture in pictures]
        return np.stack([np.asarray(picture) for picture in pictures])

    def _inputs(self, frames: np.ndarray) -> dict[str, torch.Tensor]:
        return {"x": self.preprocess(frames)}

    def free_text_tower(self) -> None:
        self._model = None

    def _resized_and_kept(self) -> tuple[int | None, int]:
        # open_clip's other modes, `squash` and `longest`, show the whole frame.
        return (self.image_size if self._resize_mode == "shortest" else None), self.image_size

    def _image_tower(self, frames: np.ndarray) -> torch.Tensor:
        features = self._visual(self.preprocess(frames).to(self._dtype))
        pooled: torch.Tensor = features[0] if isinstance(features, tuple) else features
        return pooled

    def _text_tower(self, sentences: list[str]) -> torch.Tensor:
        if self._model is None:
            raise RuntimeError("the text tower was freed; load the encoder again to embed other words")
        features: torch.Tensor = self._model.encode_text(self._tokenizer(sentences).to(self._device))
        return features

    def _reads_all(self, sentence: str) -> bool:
        # open_clip's tokenizers have several ways to cut and to pad; all of them take another length.
        length = self._context_length + 4 * len(sentence.encode()) + 8
        padding = self._tokenizer([""], context_length=length)[0].mode().values
        read, whole = self._tokenizer([sentence])[0], self._tokenizer([sentence], context_length=length)[0]
        return bool((read != padding).sum() == (whole != padding).sum())

    def _hf_tokenizer(self) -> Any:
        return getattr(self._tokenizer, "tokenizer", None)


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
    """Tower with its batch norms folded into the convolutions before them: the same function, to rounding.

    On a CPU the bundled encoder takes two thirds of the time so.
    """
    import torch
    from torch.fx.experimental.optimization import fuse

    if not any(isinstance(module, torch.nn.BatchNorm2d) for module in tower.modules()):
        return tower
    try:
        return fuse(tower)
    except Exception:  # whatever tracing meets in a stranger's architecture; unfolded it works as well
        return tower


class HuggingFaceEncoder(_TowerPair):
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

    def _hf_tokenizer(self) -> Any:
        return self._processor.tokenizer


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


def _channels(values: Sequence[float], device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.float32, device=device).view(1, 3, 1, 1)


def _open_clip_name(name: str) -> tuple[str, str | None]:
    """Translate an encoder name to open_clip's model name and pretrained tag.

    Raises:
        BadInput: open_clip has no such model, architecture or tag.
    """
    import open_clip

    if name in BUNDLED:
        return f"local-dir:{bundled_folder(name)}", None
    if name.startswith("local-dir:"):
        folder = _folder(name)
        if not (folder / "open_clip_config.json").is_file():
            raise BadInput(
                f"there is no open_clip_config.json in '{folder}'; for a Hugging Face folder use hf:{folder}"
            )
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


def cannot_load(name: str, error: Exception) -> Exception:
    """Error for a failed load: missing folder or code of its own (`BadInput`), damaged files or no network
    (`RunFailed`)."""
    from huggingface_hub.constants import HF_HUB_CACHE

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
    if not any(word in reason.lower() for word in ("connect", "download", "offline", "cache", "resolve", "locate")):
        return RunFailed(f"encoder '{name}' could not be loaded: {type(error).__name__}: {reason}")
    return RunFailed(
        f"encoder '{name}' is not in the cache {HF_HUB_CACHE} and could not be downloaded; on a machine with network "
        f"access, run 'sightline models --fetch {name}' and copy that folder here (or point HF_HOME to it)"
    )


def warn_of_cropping(encoder: Encoder, height: int, width: int, key: str) -> str | None:
    """One line if an encoder does not see all of frames that are not square, else None.

    Args:
        key: where another `aspect` is chosen, such as `reward.aspect`.
    """
    rows, columns = encoder.cut_off(height, width)
    if height == width or not (rows or columns):
        return None
    sides = [
        f"{count:.3g} {what} at {where}"
        for count, what, where in (
            *((rows, "rows", "the top and as many at the bottom"),),
            *((columns, "columns", "the left and as many at the right"),),
        )
        if count
    ]
    return (
        f"frames of {height}x{width} (height x width) are not square, and encoder '{encoder.name}' never sees "
        f"{', '.join(sides)}; say {key}=pad for black bars instead, or {key}=squash to squeeze the whole frame into a "
        "square"
    )


def _folder(name: str) -> Path:
    """Folder of an encoder that is one."""
    # Not `Path.expanduser`, which raises where nobody knows the home of a user who is named.
    return bundled_folder(name) if name in BUNDLED else Path(os.path.expanduser(re.sub("^(local-dir|hf):", "", name)))


def model_card(name: str) -> str | None:
    """Model card of an encoder that is a folder; None if the folder has none."""
    card = _folder(name) / "README.md"
    return card.read_text() if card.is_file() else None
