"""The bundled encoders: a small CLIP in open_clip's format, read without open_clip, which takes seconds to import.

Towers and weights are those of open_clip's `ModifiedResNet` and `CLIP`, whose numbers they reproduce: a test compares
the two. An encoder of any other architecture is built by open_clip itself (`open_clip_encoder.py`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from sightline.config.basics import Aspect, Resizing
from sightline.models.encoder_base import OpenClipFormat, cannot_load
from sightline.models.encoder_files import CONFIG, encoder_folder
from sightline.models.resizing import resized_by_pillow
from sightline.models.sentences import words_of

WEIGHTS = "open_clip_model.safetensors"
TOKENIZER = "tokenizer.json"
"""Files of the encoder's folder."""
NORM_EPSILON = 1e-5
"""Added to the variances of batch norms, as in torch's default."""
EXPANSION = 4
"""Output channels of a bottleneck, in units of its inner ones."""


class Bottleneck(nn.Module):
    """Residual block of three convolutions; the stride is an average pool after the second one."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.conv1 = nn.Conv2d(inputs, channels, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv3 = nn.Conv2d(channels, outputs, 1)
        self.act3 = nn.ReLU(inplace=True)
        self.stride = stride
        self.downsample = nn.ModuleList([nn.Conv2d(inputs, outputs, 1)])

    def forward(self, x: Tensor) -> Tensor:
        """float[N, inputs, H, W] -> float[N, 4 channels, H / stride, W / stride]."""
        out = functional.relu_(self.conv1(x))
        out = functional.relu_(self.conv2(out))
        # open_clip pools instead of taking every other place, so that no place is left out.
        if self.stride > 1:
            out = functional.avg_pool2d(out, self.stride)
            x = functional.avg_pool2d(x, self.stride)
        out = self.conv3(out)
        out += self.downsample[0](x)
        activated: Tensor = self.act3(out)
        return activated


class AttentionPool(nn.Module):
    """Multi-head attention of the mean of all places to them and to itself; what it gets is the output."""

    def __init__(self, places: int, width: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.empty(places + 1, width))
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, outputs)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """float[N, width, H, W] -> float[N, outputs]."""
        x = x.flatten(2).permute(2, 0, 1)  # [H W, N, width]
        x = torch.cat([x.mean(dim=0, keepdim=True), x])
        x = x + self.positional_embedding[:, None, :].to(x.dtype)
        # The mean is the first place, and the only one that asks. In open_clip all do, and nobody hears the others.
        biases = torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias])
        pooled, _ = functional.multi_head_attention_forward(
            query=x[:1],
            key=x,
            value=x,
            embed_dim_to_check=x.shape[-1],
            num_heads=self.heads,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
            in_proj_weight=None,
            in_proj_bias=biases,
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.c_proj.weight,
            out_proj_bias=self.c_proj.bias,
            use_separate_proj_weight=True,
            training=False,
            need_weights=False,
        )
        return pooled[0]


class ImageTower(nn.Module):
    """Residual network with attention pooling; its batch norms are folded into the convolutions before them.

    Args:
        config: `vision_cfg` of the model's file.
        outputs: dimension of the embedding.
    """

    def __init__(self, config: dict[str, Any], outputs: int) -> None:
        super().__init__()
        width = config["width"]
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1)
        self.layer1 = nn.Sequential(Bottleneck(width, width, stride=1))
        self.layer2 = nn.Sequential(Bottleneck(width * 4, width * 2, stride=2))
        self.layer3 = nn.Sequential(Bottleneck(width * 8, width * 4, stride=2))
        self.layer4 = nn.Sequential(Bottleneck(width * 16, width * 8, stride=2))
        # The strides and pools halve the picture five times.
        places = (config["image_size"] // 32) ** 2
        features = width * 32
        heads = features // config["head_width"]
        self.attnpool = AttentionPool(places, features, heads, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """float[N, 3, S, S] -> float[N, outputs]."""
        x = functional.relu_(self.conv1(x))
        x = functional.relu_(self.conv2(x))
        x = functional.relu_(self.conv3(x))
        x = functional.avg_pool2d(x, 2)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        pooled: Tensor = self.attnpool(x)
        return pooled


class TextBlock(nn.Module):
    """Transformer block with norms before attention and before the perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        inner = 4 * width
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, inner), "c_proj": nn.Linear(inner, width)})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """float[N, T, width] -> the same."""
        normed = self.ln_1(x)
        attended, _ = self.attn(normed, normed, normed, need_weights=False, attn_mask=mask)
        x = x + attended
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)))
        out: Tensor = x + self.mlp["c_proj"](hidden)
        return out


class TextTower(nn.Module):
    """Causal transformer whose output at the end token is projected.

    Args:
        config: `text_cfg` of the model's file.
        outputs: dimension of the embedding.
    """

    def __init__(self, config: dict[str, Any], outputs: int) -> None:
        super().__init__()
        width = config["width"]
        length = config["context_length"]
        # Unless it is given weights it draws them, for which torch imports its compiler on the meta device.
        empty = torch.empty(config["vocab_size"], width)
        self.token_embedding = nn.Embedding(config["vocab_size"], width, _weight=empty)
        self.positional_embedding = nn.Parameter(torch.empty(length, width))
        self.resblocks = nn.ModuleList(TextBlock(width, config["heads"]) for _ in range(config["layers"]))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, outputs))

    def forward(self, ids: Tensor) -> Tensor:
        """int64[N, T] -> float[N, outputs]; the end token has the highest id."""
        x = self.token_embedding(ids) + self.positional_embedding
        # Each token attends to itself and to those before it.
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu_(1)
        for block in self.resblocks:
            x = block(x, mask)
        x = self.ln_final(x)
        rows = torch.arange(len(ids), device=ids.device)
        at_end = x[rows, ids.argmax(dim=-1)]
        projected: Tensor = at_end @ self.text_projection
        return projected


class BundledEncoder(OpenClipFormat):
    """Bundled encoder.

    Args:
        name: `bundled` or `bundled-deformables`.

    Raises:
        RunFailed: its files are damaged.
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
        folder = encoder_folder(name)
        try:
            config = json.loads((folder / CONFIG).read_text())
            image_tower, text_tower = _load_towers(folder, config["model_cfg"])
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:
            raise cannot_load(name, error) from error
        self.image_size = config["model_cfg"]["vision_cfg"]["image_size"]
        self._context_length = config["model_cfg"]["text_cfg"]["context_length"]
        super().__init__(name, device, dtype, batch_size, aspect, resizing, config["preprocess_cfg"], image_tower)
        vocabulary = self._tokenizer.get_vocab()
        self._padding = vocabulary["[PAD]"]
        self._unknown = vocabulary["[UNK]"]
        self._text: TextTower | None = text_tower.to(device=device, dtype=dtype)

    def _drop_text_tower(self) -> None:
        self._text = None

    def unknown_words(self, sentences: Sequence[str]) -> list[str]:
        encodings = {word: self._tokenizer.encode(word, add_special_tokens=False) for word in words_of(sentences)}
        return [word for word, encoding in encodings.items() if self._unknown in encoding.ids]

    def _resized_exactly(self, frames: np.ndarray) -> np.ndarray:
        return np.asarray(resized_by_pillow(frames, (self.image_size, self.image_size), self._resample))

    def _text_tower(self, sentences: list[str]) -> Tensor:
        if self._text is None:
            raise RuntimeError("the text tower was freed; load the encoder again to embed other words")
        ids = torch.full((len(sentences), self._context_length), self._padding)
        for row, sentence in zip(ids, sentences, strict=True):
            tokens = self._ids(sentence)
            row[: len(tokens)] = torch.tensor(tokens)
        features: Tensor = self._text(ids.to(self._device))
        return features

    def _reads_all(self, sentence: str) -> bool:
        return len(self._ids(sentence)) <= self._context_length

    def _ids(self, sentence: str) -> list[int]:
        """Tokens of a sentence, cleaned as open_clip does it."""
        ids: list[int] = self._tokenizer.encode(_cleaned(sentence)).ids
        return ids


def _cleaned(text: str) -> str:
    """A text without HTML entities, broken encodings and repeated white space."""
    if not text.isascii() or not text.isprintable() or "&" in text:
        import ftfy  # it changes no other text

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split())


def _load_towers(folder: Path, config: dict[str, Any]) -> tuple[ImageTower, TextTower]:
    image_weights = {}
    text_weights = {}
    for name, value in load_file(folder / WEIGHTS).items():
        if name.startswith("visual."):
            image_weights[name.removeprefix("visual.")] = value.float()
        elif name not in ("logit_scale", "logit_bias"):  # which only training reads
            text_weights[name.removeprefix("transformer.")] = value.float()

    # On the meta device nothing is allocated or initialised that the file replaces.
    with torch.device("meta"):
        image_tower = ImageTower(config["vision_cfg"], config["embed_dim"])
        text_tower = TextTower(config["text_cfg"], config["embed_dim"])
    image_tower.load_state_dict(_fold_batch_norms(image_weights), assign=True)
    text_tower.load_state_dict(text_weights, assign=True)
    for tower in (image_tower, text_tower):
        tower.eval().requires_grad_(False)
    return image_tower, text_tower


def _fold_batch_norms(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in which each batch norm is part of the convolution before it: the same function, to rounding.

    On a CPU the bundled encoder takes two thirds of the time so.
    """
    folded = dict(weights)
    for name in weights:
        if not name.endswith(".running_mean"):
            continue
        norm = name.removesuffix(".running_mean")
        # `bn2` follows `conv2`; on the side path both stand in a list.
        convolution = norm.replace("downsample.1", "downsample.0").replace("bn", "conv")
        kernel, bias = fuse_conv_bn_weights(
            conv_w=folded[f"{convolution}.weight"],
            conv_b=None,
            bn_rm=folded.pop(f"{norm}.running_mean"),
            bn_rv=folded.pop(f"{norm}.running_var"),
            bn_eps=NORM_EPSILON,
            bn_w=folded.pop(f"{norm}.weight"),
            bn_b=folded.pop(f"{norm}.bias"),
        )
        folded.pop(f"{norm}.num_batches_tracked")
        folded[f"{convolution}.weight"] = kernel.detach()
        folded[f"{convolution}.bias"] = bias.detach()
    return folded
