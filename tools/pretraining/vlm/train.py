"""Train the bundled vision-language model from scratch and write it as Hugging Face writes any model.

    PYTHONPATH=tools python -m pretraining.vlm.train --out FOLDER --seed 0

Supervised learning on states of our games (see `curriculum`): the loss is the cross-entropy of the reply's tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from pretraining.vlm.building import IMAGE, IMAGE_SIZE, PATCH, build_model, build_processor
from pretraining.vlm.curriculum import Exercise, exercises, phrases

HELD_OUT_SEED = 10_000_019
"""Of the states on which the model card's numbers are measured; no training seed comes near it."""
PICTURE_TOKENS = (IMAGE_SIZE // PATCH) ** 2
IGNORED = -100


class Batches:
    """Turns lessons into tensors; token ids of texts are kept, for prompts recur."""

    def __init__(self, processor: Any) -> None:
        self._tokenizer, self._template = processor.tokenizer, processor
        self._ids: dict[str, list[int]] = {}

    def _encode(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._ids[text]

    def __call__(self, batch: Sequence[Exercise]) -> dict[str, torch.Tensor]:
        """Inputs of the model, with labels on the replies and their ends only."""
        rows = []
        for lesson in batch:
            prompt = self._encode(f"{IMAGE * PICTURE_TOKENS}{lesson.prompt}<|reply|>")
            rows.append((prompt, [*self._encode(lesson.reply), self._tokenizer.eos_token_id]))
        width = max(len(prompt) + len(reply) for prompt, reply in rows)
        ids = torch.full((len(rows), width), self._tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), IGNORED)
        for row, (prompt, reply) in enumerate(rows):
            end = len(prompt) + len(reply)
            ids[row, :end] = torch.tensor(prompt + reply)
            labels[row, len(prompt) : end] = torch.tensor(reply)
        pixels = torch.from_numpy(np.stack([lesson.pixels for lesson in batch])).permute(0, 3, 1, 2)
        return {
            "input_ids": ids,
            "attention_mask": (ids != self._tokenizer.pad_token_id).long(),
            "pixel_values": pixels.float() / 127.5 - 1,
            "labels": labels,
        }


def reply_losses(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy of each labelled token in nats: float32[B, L - 1], 0 elsewhere."""
    labels = batch["labels"][:, 1:]
    first = int((labels != IGNORED).any(0).nonzero()[0])
    keep = torch.arange(first, labels.shape[1])
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits = model(**inputs, logits_to_keep=keep).logits.float()
    kept = functional.cross_entropy(
        logits.flatten(0, 1), labels[:, keep].flatten(), ignore_index=IGNORED, reduction="none"
    )
    losses = torch.zeros(labels.shape)
    losses[:, keep] = kept.reshape(len(labels), len(keep))
    return losses


def train(out: Path, updates: int, batch: int, learning_rate: float, seed: int, say: Any = print) -> None:
    """Make, teach and save the model."""
    torch.manual_seed(seed)
    stream = exercises(seed)
    examples = list(islice(stream, 4000))
    texts = [example.reply for example in examples] + [example.prompt for example in examples[:100]]
    processor = build_processor(texts, phrases(examples))
    model = build_model(processor)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(processor.tokenizer)} tokens")
    batches = Batches(processor)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, updates, pct_start=0.05)
    began, recent = time.monotonic(), []
    for update in range(1, updates + 1):
        inputs = batches(list(islice(stream, batch)))
        losses = reply_losses(model, inputs)
        loss = losses.sum() / (inputs["labels"] != IGNORED).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        recent.append(loss.item())
        if update % 100 == 0 or update == updates:
            seconds = time.monotonic() - began
            say(f"update {update}/{updates}: loss {np.mean(recent):.4f}, {update * batch / seconds:.0f} samples/s")
            recent.clear()
        if update % 500 == 0:
            say(json.dumps(read_accuracy(model, batches)))
            save(model, processor, out)
    save(model, processor, out)


def read_accuracy(model: Any, batches: Batches, samples: int = 512) -> dict[str, float]:
    """Share of held-out replies of each game of which every token but the action's would be said right, one by one."""
    held_out = list(islice(exercises(HELD_OUT_SEED), samples))
    right: dict[str, list[bool]] = {}
    model.eval()
    for start in range(0, samples, 128):
        some = held_out[start : start + 128]
        inputs = batches(some)
        with torch.inference_mode():
            logits = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"}).logits
        hits = logits[:, :-1].argmax(-1) == inputs["labels"][:, 1:]
        labelled = inputs["labels"][:, 1:] != IGNORED
        for row, lesson in enumerate(some):
            of_reply = hits[row][labelled[row]]
            right.setdefault(lesson.game, []).append(bool(of_reply[:-3].all()))
    model.train()
    return {game: round(float(np.mean(values)), 3) for game, values in sorted(right.items())}


def save(model: Any, processor: Any, out: Path) -> None:
    """Write weights (float16), configuration, tokenizer and chat template."""
    half = {name: tensor.half() for name, tensor in model.state_dict().items()}
    model.save_pretrained(out, state_dict=half)
    processor.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=3200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train(arguments.out, arguments.updates, arguments.batch, arguments.learning_rate, arguments.seed)


if __name__ == "__main__":
    main()
