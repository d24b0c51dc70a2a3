"""Models of published shapes whose weights are drawn at random on the device, as folders that Sightline loads.

What they say means nothing, and they are as fast as the trained ones. Nothing is fetched."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from running import sized

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tiny_families import IDS, byte_level, qwen3_vl

_LIBRARY: Any = transformers  # its types change with its version
_LIBRARY.utils.logging.disable_progress_bar()

Tower = Callable[[torch.Tensor], torch.Tensor]
"""Image tower with float32 weights: float32[N, 3, S, S] -> [N, D]."""

# -- encoders ----------------------------------------------------------------------------------------------------------

OPEN_CLIP = sized(("ViT-B-32", "ViT-L-14", "ViT-H-14", "ViT-bigG-14"), ("ViT-B-32",))
LARGE = OPEN_CLIP[min(2, len(OPEN_CLIP) - 1)]
"""The published humanoids' encoder."""
SIGLIP = "SigLIP2-SO400M"
_TOWER: dict[str, Any] = sized({}, {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8})
"""Changes of the image tower of any of `OPEN_CLIP`."""
_TEXT = {"width": 64, "heads": 1, "layers": 1}
"""Text towers are small: a run reads its sentences once."""
_PREPROCESSING = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "interpolation": "bicubic"}
_SO400M: dict[str, Any] = sized(
    {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    },
    {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    },
)


@dataclass(frozen=True)
class DrawnEncoder:
    """An encoder whose weights were drawn.

    Attributes:
        name: what `load_encoder` is told.
        tower: its image tower on the device.
        side: of the pictures that the tower reads.
    """

    name: str
    tower: Tower
    side: int


def draw_encoder(shape: str, folder: Path, device: str) -> DrawnEncoder:
    """Draw an encoder's weights, one of `OPEN_CLIP` or `SIGLIP`, and write its folder unless it is there."""
    if shape == SIGLIP:
        return _draw_siglip(folder / shape, device)
    return _draw_open_clip(shape, folder / shape, device)


def _draw_open_clip(shape: str, target: Path, device: str) -> DrawnEncoder:
    import open_clip
    from open_clip.model import CLIP
    from safetensors.torch import save_file

    config: dict[str, Any] = open_clip.get_model_config(shape)
    config["vision_cfg"] |= _TOWER
    config["text_cfg"] |= _TEXT
    with torch.device(device):
        model = CLIP(**config)
    model.eval()
    if not target.exists():
        being_written = target.with_suffix(".part")
        being_written.mkdir()
        weights = {name: value.detach().bfloat16().contiguous() for name, value in model.state_dict().items()}
        save_file(weights, being_written / "open_clip_model.safetensors")
        document = {"model_cfg": config, "preprocess_cfg": _PREPROCESSING}
        (being_written / "open_clip_config.json").write_text(json.dumps(document))
        os.rename(being_written, target)
    return DrawnEncoder(f"local-dir:{target}", model.visual, int(config["vision_cfg"]["image_size"]))


def _draw_siglip(target: Path, device: str) -> DrawnEncoder:
    tokenizer = byte_level()
    side, width = _SO400M["image_size"], _SO400M["hidden_size"]
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 64,
        "projection_size": width,
        **IDS,
    }
    with torch.device(device):
        model = _LIBRARY.SiglipModel(_LIBRARY.SiglipConfig(vision_config=_SO400M, text_config=text))
    model.eval()
    if not target.exists():
        being_written = target.with_suffix(".part")
        images = _LIBRARY.SiglipImageProcessor(size={"height": side, "width": side})
        _LIBRARY.SiglipProcessor(images, tokenizer).save_pretrained(being_written)
        model.bfloat16().save_pretrained(being_written)
        model.float()
        os.rename(being_written, target)
    return DrawnEncoder(f"hf:{target}", lambda pixels: model.vision_model(pixels).pooler_output, side)


# -- vision-language models --------------------------------------------------------------------------------------------

_PICTURES = sized(
    {"patch_size": 16, "merge_size": 2, "min_pixels": 256 * 256, "max_pixels": 1024 * 1024},
    {"patch_size": 8, "merge_size": 2, "min_pixels": 16 * 16, "max_pixels": 64 * 64},
)
_EYES: dict[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "patch_size": 16,
    "deepstack_visual_indexes": [5, 11, 17],
    "num_position_embeddings": 2304,
}
_HEADS: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_TINY_EYES = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 8}
_TINY: tuple[dict[str, Any], dict[str, Any]] = (
    _TINY_EYES | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
)
_SIZES: dict[str, dict[str, Any]] = {
    "Qwen3-VL-2B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "Qwen3-VL-4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
}


def draw_vlm(shape: str, folder: Path, device: str) -> Path:
    """Folder of a vision-language model of a shape, whose weights are drawn unless it is there. Its tokenizer knows few
    words, so most rows of its output layer stand for no token, and are computed all the same."""
    target = folder / shape
    if target.exists():
        return target
    eyes, language = sized((_EYES, _HEADS | _SIZES[shape]), _TINY)
    sections = sized([24, 20, 20], [2, 1, 1])
    with torch.device(device):
        processor, model = qwen3_vl(_PICTURES, eyes | {"out_hidden_size": language["hidden_size"]}, language, sections)
    being_written = target.with_suffix(".part")
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.bfloat16().eval().save_pretrained(being_written)
    processor.save_pretrained(being_written)
    os.rename(being_written, target)
    return target
