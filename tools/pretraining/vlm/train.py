"""Train the bundled vision-language model and write it as Hugging Face writes any model.

    PYTHONPATH=tools python -m pretraining.vlm.train --out FOLDER                            from scratch
    PYTHONPATH=tools python -m pretraining.vlm.train --out FOLDER --start-from BEFORE \
        --shares cartpole=3 --updates 2600                            with one more environment
    PYTHONPATH=tools python -m pretraining.vlm.train --out FOLDER --model bundled-rooms
                                                                      the second one: households and grids
    PYTHONPATH=tools torchrun --standalone --nproc-per-node 2 -m pretraining.vlm.train …
                                                                      the same lessons, shared among two processes

Supervised learning on states of our games (see `curriculum`): the loss is the cross-entropy of the reply's tokens.
Where an environment moves by fractions of a pixel between two pictures (CartPole), facts alone teach the eyes too
slowly: 56 % of leaning poles were named after 19 000 samples. There the model also regresses the quantities that the
pictures show, and their differences. In rooms and grids each token of the picture learns what is in its cell.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from pretraining.vlm.building import (
    IMAGE,
    IMAGE_SIZE,
    PATCH,
    WORDS,
    build_model,
    build_processor,
    with_a_matching_layer,
)
from pretraining.vlm.curriculum import CURRICULA, GAMES, ROOMS, exercises, phrases
from pretraining.vlm.exercise import Exercise
from pretraining.vlm.rooms import CELLS, EMPTY, KINDS, LOOKS

HELD_OUT_SEED = 10_000_019
"""Of the states on which the model card's numbers are measured; no training seed comes near it."""
IGNORED = -100
PARTS = 8
"""Parts of a batch, each of lessons of like length: little is padded."""
VOCABULARIES = (KINDS, LOOKS, *([f"{blank}{i}" for i in range(1, CELLS + 1)] for blank in (" ", "")))
"""Words for what a cell shows, for its look, its column and its row (in replies, columns have a blank before them). No
word stands for two things: one token cannot look like both."""
ROOMS_PATCH, ROOMS_WORDS = 12, 2000
"""Pixels of a side of a patch, which is a cell of an 8 x 8 grid, and words of the second model."""


class Batches:
    """Turns lessons into tensors; token ids of texts are kept, for prompts recur."""

    def __init__(self, processor: Any) -> None:
        self._tokenizer, self._template = processor.tokenizer, processor
        self._ids: dict[str, list[int]] = {}
        self._image = IMAGE * (IMAGE_SIZE // processor.patch_size) ** 2

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        if text not in self._ids:
            self._ids[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._ids[text]

    def length(self, lesson: Exercise) -> int:
        """Tokens of a lesson's texts."""
        return len(self.encode(lesson.prompt)) + len(self.encode(lesson.reply))

    def __call__(self, batch: Sequence[Exercise]) -> dict[str, torch.Tensor]:
        """Inputs of the model, with labels on the replies and their ends only."""
        rows = []
        for lesson in batch:
            prompt = self.encode(f"{self._image * len(lesson.pictures)}{lesson.prompt}<|reply|>")
            rows.append((prompt, [*self.encode(lesson.reply), self._tokenizer.eos_token_id]))
        width = max(len(prompt) + len(reply) for prompt, reply in rows)
        ids = torch.full((len(rows), width), self._tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), IGNORED)
        for row, (prompt, reply) in enumerate(rows):
            end = len(prompt) + len(reply)
            ids[row, :end] = torch.tensor(prompt + reply)
            labels[row, len(prompt) : end] = torch.tensor(reply)
        inputs = {"input_ids": ids, "attention_mask": (ids != self._tokenizer.pad_token_id).long(), "labels": labels}
        if pictures := [picture for lesson in batch for picture in lesson.pictures]:
            pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
            inputs["pixel_values"] = pixels.float() / 127.5 - 1
        return inputs


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


class QuantityHeads(torch.nn.Module):
    """Linear readouts of quantities, to be thrown away after training.

    `pictures` reads the mean of a picture's tokens, as attention could: position, sine and cosine, and the angle once
    more for differences between pictures. `turn` reads the last hidden state before the reply: how far the pole has
    turned, which the language model has to work out from two pictures.
    """

    SCALE = 10.0
    """Degrees per unit of a head's output, so that a fraction of one counts."""

    def __init__(self, model: Any, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        width = model.config.text_config.hidden_size
        self.pictures, self.turn = torch.nn.Linear(width, 4), torch.nn.Linear(width, 1)
        self._model = [model]  # in a list, or its weights would be part of this module
        self._ids = [torch.tensor([encode(word)[0] for word in words]) for words in VOCABULARIES]
        self.tokens: torch.Tensor
        self.hidden: torch.Tensor
        model.model.multi_modal_projector.register_forward_hook(self._keep_tokens)
        model.model.language_model.register_forward_hook(self._keep_hidden)

    def _keep_tokens(self, module: Any, inputs: Any, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def _keep_hidden(self, module: Any, inputs: Any, output: Any) -> None:
        self.hidden = output.last_hidden_state

    def loss(self, batch: Sequence[Exercise], labels: torch.Tensor) -> torch.Tensor:
        """Error of what is read of the pictures that just went through the model.

        Args:
            labels: int64[B, L], labelled on the replies.
        """
        starts = np.cumsum([0, *(len(one.pictures) for one in batch)])
        if not starts[-1]:
            return torch.zeros(())
        tokens = self.tokens.reshape(int(starts[-1]), -1, self.tokens.shape[-1])
        return self._of_poles(batch, labels, starts, tokens) + self._of_cells(batch, starts, tokens)

    def _of_cells(self, batch: Sequence[Exercise], starts: np.ndarray, tokens: torch.Tensor) -> torch.Tensor:
        """Error of the words for what each cell shows and where it is, read from the token of its patch by the words'
        own embeddings.

        So what a token shows looks to the language model as if it were written there, and reading is copying.
        """
        known = [(int(starts[row]), one.cells) for row, one in enumerate(batch) if one.cells]
        if not known:
            return torch.zeros(())
        shown = tokens[[row for row, _ in known]].flatten(0, 1)  # [cells, width]
        shown = shown * shown.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        words = [cell for _, cells in known for cell in cells]
        # Most cells show nothing special: they count for a tenth.
        weight = torch.tensor([0.1 if kind in (EMPTY, "wall") else 1.0 for kind, *_ in words])
        losses = []
        for said, vocabulary, ids in zip(zip(*words, strict=True), VOCABULARIES, self._ids, strict=True):
            true = torch.tensor([vocabulary.index(word) for word in said])
            logits = shown @ self._model[0].get_input_embeddings()(ids).T / 2
            losses.append(functional.cross_entropy(logits, true, reduction="none") @ weight / weight.sum())
        return torch.stack(losses).sum()

    def _of_poles(
        self, batch: Sequence[Exercise], labels: torch.Tensor, starts: np.ndarray, tokens: torch.Tensor
    ) -> torch.Tensor:
        read = self.pictures(tokens.mean(1))
        known = [(row, one.quantities) for row, one in enumerate(batch) if one.quantities is not None]
        if not known:
            return torch.zeros(())
        rows = [row for row, _ in known]
        true = torch.from_numpy(np.stack([quantities for _, quantities in known]))  # [R, P, 3]
        said = torch.stack([read[starts[row] : starts[row + 1]] for row in rows])  # [R, P, 4]
        turned = torch.rad2deg(torch.atan2(true[..., 1], true[..., 2]).diff(dim=1))  # [R, P - 1]
        turned = ((turned + 180) % 360 - 180).clamp(-3, 3)
        before_reply = (labels[rows] != IGNORED).int().argmax(1) - 1
        worked_out = self.SCALE * self.turn(self.hidden[rows, before_reply])  # [R, 1]
        return (
            10 * functional.mse_loss(said[..., :3], true)
            + functional.smooth_l1_loss(self.SCALE * said[..., 3].diff(dim=1), turned)
            + 2 * functional.smooth_l1_loss(worked_out, turned[:, -1:])
        )


def begin(
    start_from: Path | None, examples: list[Exercise], rooms: bool = False, deepen: int | None = None
) -> tuple[Any, Any]:
    """Processor and model: fresh, or those of an earlier training with the phrases that are new to them."""
    if start_from is None:
        prompts = examples if rooms else examples[:100]
        texts = [example.reply for example in examples] + [example.prompt for example in prompts]
        patch, words = (ROOMS_PATCH, ROOMS_WORDS) if rooms else (PATCH, WORDS)
        processor = build_processor(texts, phrases(examples), patch, words)
        return processor, build_model(processor)
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(start_from)  # type: ignore[no-untyped-call]
    model = AutoModelForImageTextToText.from_pretrained(start_from, dtype=torch.float32)
    known = len(processor.tokenizer)
    encode = processor.tokenizer.encode
    processor.tokenizer.add_tokens([p for p in phrases(examples) if len(encode(p, add_special_tokens=False)) > 1])
    rows: Any = model.resize_token_embeddings(len(processor.tokenizer), mean_resizing=False)
    with torch.no_grad():
        torch.nn.init.normal_(rows.weight[known:], std=0.5)
    return processor, model if deepen is None else with_a_matching_layer(model, deepen)


def train(
    out: Path,
    updates: int,
    batch: int,
    learning_rate: float,
    seed: int,
    say: Any = print,
    start_from: Path | None = None,
    shares: dict[str, float] = GAMES,
    deepen: int | None = None,
) -> None:
    """Make, teach and save the model; under torchrun each process teaches its share of the parts of each batch."""
    if processes := "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if processes else (0, 1)
    say = say if rank == 0 else lambda line: None
    torch.manual_seed(seed)
    stream = exercises(seed, shares)
    processor, model = begin(start_from, list(islice(stream, 4000)), shares.keys() == ROOMS.keys(), deepen)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(processor.tokenizer)} tokens")
    batches = Batches(processor)
    heads = QuantityHeads(model, batches.encode)
    learned = [*model.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(learned, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, updates, pct_start=0.05)
    began, recent = time.monotonic(), list[list[float]]()
    for update in range(1, updates + 1):
        lessons = sorted(islice(stream, batch), key=batches.length)
        ends = np.linspace(0, batch, PARTS + 1).astype(int).tolist()
        optimiser.zero_grad(set_to_none=True)
        losses = torch.zeros(2)
        for start, end in share_of(list(pairwise(ends)), rank, world):
            inputs = batches(lessons[start:end])
            loss = reply_losses(model, inputs).sum() / (inputs["labels"] != IGNORED).sum()
            aside = heads.loss(lessons[start:end], inputs["labels"])
            ((loss + aside) / PARTS).backward()  # type: ignore[no-untyped-call]
            losses += torch.stack([loss, aside]).detach() / PARTS
        if world > 1:
            _add_up(learned, losses)
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimiser.step()
        schedule.step()
        recent.append(losses.tolist())
        if update % 100 == 0 or update == updates:
            seconds = time.monotonic() - began
            losses_of = "loss {:.4f}, of quantities {:.4f}".format(*np.mean(recent, axis=0))
            say(f"update {update}/{updates}: {losses_of}, {update * batch / seconds:.0f} samples/s")
            recent.clear()
        if update % 250 == 0 and rank == 0:
            say(json.dumps(read_accuracy(model, batches, shares)))
            save(model, processor, out)
    if rank == 0:
        save(model, processor, out)
    if processes:
        torch.distributed.destroy_process_group()


def share_of(parts: Sequence[tuple[int, int]], rank: int, world: int) -> list[tuple[int, int]]:
    """A process's parts: dealt to and fro, for the later ones are the longer ones."""
    rounds = (parts[start : start + world][:: -1 if start // world % 2 else 1] for start in range(0, len(parts), world))
    return [one[rank] for one in rounds if rank < len(one)]


def _add_up(parameters: Sequence[torch.nn.Parameter], losses: torch.Tensor) -> None:
    """Replace gradients and losses by their sums over all processes."""
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    everything = torch.cat([losses, *(one.flatten() for one in gradients)])
    torch.distributed.all_reduce(everything)
    sums = torch.split(everything, [len(losses), *(one.numel() for one in gradients)])
    losses.copy_(sums[0])
    for one, total in zip(parameters, sums[1:], strict=True):
        one.grad = total.view_as(one)


def read_accuracy(
    model: Any, batches: Batches, shares: dict[str, float] = GAMES, samples: int = 512
) -> dict[str, float]:
    """Share of held-out replies of each game of which every token of the facts would be said right, one by one."""
    held_out = list(islice(exercises(HELD_OUT_SEED, shares), samples))
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
            facts = len(lesson.told_facts(batches.encode))
            right.setdefault(lesson.game, []).append(bool(of_reply[:facts].all()))
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
    parser.add_argument("--start-from", type=Path)
    parser.add_argument("--shares", nargs="*", default=[], help="GAME=SHARE, over those of the curriculum")
    parser.add_argument("--model", choices=CURRICULA, default="bundled", help="whose lessons")
    parser.add_argument("--deepen", type=int, metavar="N", help="with one more layer, after N, which looks for equals")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shares = CURRICULA[given.model] | {
        game: float(share) for game, _, share in (one.partition("=") for one in given.shares)
    }
    steps = given.updates, given.batch, given.learning_rate
    train(given.out, *steps, given.seed, print, given.start_from, shares, given.deepen)


if __name__ == "__main__":
    main()
