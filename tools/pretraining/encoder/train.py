"""Train the bundled image-text encoder from scratch and write it in open_clip's format.

    PYTHONPATH=tools python -m pretraining.encoder.train --out FOLDER --seed 0

The loss is the sigmoid loss of SigLIP (Zhai et al., 2023), with one change: the label of a pair is whether the
sentence is *true* of the picture, for every sentence and every picture of the batch; of a vague word, how true. With
captions made from states that is known exactly, so there are no false negatives.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pretraining.encoder import captions, deformables, scenes
from pretraining.encoder.language import UNKNOWN, Language, Scenes

PAD, END = "[PAD]", "[END]"
IMAGE_SIZE, CONTEXT_LENGTH = 64, 20
WIDTH = 12
"""Channels of the image tower's first layer. Eight do not see a humanoid's limbs, which are two pixels wide."""
POOL, SHOWN = 4096, 4
"""Scenes that batches are drawn from, and how often each is shown."""


@dataclass(frozen=True)
class Worlds:
    """What an encoder is taught.

    Attributes:
        language: what is said.
        sample: draw scenes: (count, size in pixels, generator, shares=of the worlds among them).
        shares: of the worlds among the pictures, unless the caller says otherwise.
        names: of the worlds.
    """

    language: Language
    sample: Callable[..., Scenes]
    shares: tuple[float, ...]
    names: str


WORLDS = {
    "bundled": Worlds(
        captions.LANGUAGE, scenes.sample_scenes, scenes.SHARES, "the cart with a pole, the car, the rod, the humanoid"
    ),
    "deformables": Worlds(deformables.LANGUAGE, deformables.sample_scenes, deformables.SHARES, "cloth, rope, water"),
}
"""Encoder -> its worlds."""


def model_config(vocabulary_size: int, width: int = WIDTH) -> dict[str, object]:
    """The `model_cfg` of open_clip: a small modified ResNet with attention pooling, and a small causal transformer."""
    return {
        "embed_dim": 128,
        "vision_cfg": {"image_size": IMAGE_SIZE, "layers": [1, 1, 1, 1], "width": width, "head_width": 32},
        "text_cfg": {
            "context_length": CONTEXT_LENGTH,
            "vocab_size": vocabulary_size,
            "hf_tokenizer_name": "tokenizer.json beside this file",
            "width": 96,
            "heads": 4,
            "layers": 2,
        },
        "init_logit_bias": -3.0,
    }


PREPROCESSING = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "squash"}


def save_tokenizer(folder: Path, known: Sequence[str]) -> int:
    """Write a word-level tokenizer over known words; returns the number of its tokens.

    The end token has the highest id, which is where open_clip's text tower reads its output.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [PAD, UNKNOWN, *known, END]
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behavior="removed")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, ids[END])])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, eos_token=END
    )
    fast.save_pretrained(folder)
    return len(words)


def save_encoder(model: nn.Module, config: dict[str, object], folder: Path) -> None:
    """Write weights (float16) and configuration as open_clip's `local-dir:` loader reads them."""
    from safetensors.torch import save_file

    weights = {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(weights, str(folder / "open_clip_model.safetensors"))
    document = {"model_cfg": config, "preprocess_cfg": PREPROCESSING}
    (folder / "open_clip_config.json").write_text(json.dumps(document, indent=2) + "\n")


def to_pixels(frames: np.ndarray) -> torch.Tensor:
    """uint8[N, S, S, 3] to the float32[N, 3, S, S] in [-1, 1] that the image tower reads."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def batches(
    worlds: Worlds,
    count: int,
    batch_size: int,
    seed: int,
    shares: tuple[float, ...] | None,
    caption_shares: tuple[float, ...] | None,
) -> Iterator[tuple[Scenes, list[str], np.ndarray]]:
    """Scenes and sentences with how true each is of each, float[sentences, pictures].

    To draw a scene takes longer than to learn from it, so each is shown about four times, beside other sentences and
    other scenes: batches are drawn from a pool, a part of which is replaced by fresh scenes each time.
    """
    rng = np.random.default_rng(seed)
    fresh, shares = batch_size // SHOWN, shares or worlds.shares
    pool = worlds.sample(POOL, IMAGE_SIZE, rng, shares=shares)
    for _ in range(count):
        replaced = rng.choice(POOL, fresh, replace=False)
        pool.replace(replaced, worlds.sample(fresh, IMAGE_SIZE, rng, shares=shares))
        shown = pool.chosen(rng.choice(POOL, batch_size, replace=False))
        said = worlds.language.sample(batch_size, rng, caption_shares)
        yield shown, [c.text for c in said], np.stack([c.truth(shown) for c in said])


def train(
    out: Path,
    seed: int,
    updates: int,
    width: int = WIDTH,
    start: Path | None = None,
    learning_rate: float = 2e-3,
    batch_size: int = 256,
    worlds: Worlds = WORLDS["bundled"],
    shares: tuple[float, ...] | None = None,
    caption_shares: tuple[float, ...] | None = None,
) -> None:
    """Train an encoder, or go on with the one in the folder `start`, and write it into the folder `out`."""
    import open_clip
    from open_clip.model import CLIP
    from rich.progress import track

    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    config = model_config(save_tokenizer(out, worlds.language.vocabulary()), width)
    model = CLIP(**config)
    if start is not None:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(start / "open_clip_model.safetensors"))
    save_encoder(model, config, out)
    model.visual.to(memory_format=torch.channels_last)  # convolutions take two thirds of the time so
    tokenizer = open_clip.get_tokenizer(f"local-dir:{out}")
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=max(updates, 1), pct_start=0.1)
    started, losses = time.monotonic(), []
    lessons = batches(worlds, updates, batch_size, seed + 1, shares, caption_shares)
    for step, (shown, sentences, truth) in enumerate(track(lessons, description="encoder", total=updates)):
        images = model.encode_image(to_pixels(shown.frames), normalize=True)
        texts = model.encode_text(tokenizer(sentences), normalize=True)
        logits = model.logit_scale.exp() * texts @ images.T + model.logit_bias
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(truth).float())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, np.log(100))
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(
                f"update {step + 1}: loss {np.mean(losses[-100:]):.4f}, {time.monotonic() - started:.0f} s", flush=True
            )
    model.eval()
    save_encoder(model, config, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--width", type=int, default=WIDTH, help="a multiple of 4")
    parser.add_argument("--start", type=Path, help="folder of an encoder to go on with")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--worlds", choices=WORLDS, default="bundled", help="which encoder to train")
    order = "; ".join(f"{name}: {worlds.names}" for name, worlds in WORLDS.items())
    parser.add_argument("--shares", type=float, nargs="+", help=f"of the worlds among pictures ({order})")
    parser.add_argument("--caption-shares", type=float, nargs="+", help="of the worlds among sentences")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    for given in (arguments.shares, arguments.caption_shares):
        if given and len(given) != len(WORLDS[arguments.worlds].shares):
            parser.error(f"shares are needed of {WORLDS[arguments.worlds].names}")
    torch.set_num_threads(arguments.threads)
    train(
        arguments.out,
        arguments.seed,
        arguments.updates,
        arguments.width,
        arguments.start,
        arguments.learning_rate,
        worlds=WORLDS[arguments.worlds],
        shares=arguments.shares and tuple(arguments.shares),
        caption_shares=arguments.caption_shares and tuple(arguments.caption_shares),
    )
