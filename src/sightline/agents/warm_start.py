"""Warm start: supervised fine-tuning (SFT) on demonstrations, before reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from sightline.agents.agent_setup import AgentSetup
from sightline.agents.demos import Demo, read_demos
from sightline.agents.engines.engine import padded_microbatches
from sightline.agents.optimiser_steps import OptimiserSteps, decay
from sightline.agents.parsing import read_reply
from sightline.agents.resolving import best_play
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.types import same_text
from sightline.config.agents import WarmStart
from sightline.errors import BadInput
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import ChatTurn, Sample, TokenSequence

HELD_OUT = 128
"""Demonstrations that are not trained on, on which perception accuracy is measured."""
LEAST_CHECKED = 32
"""Of these, the number that is measured at least: a quarter of those that are trained on, where that is less."""
CHECK_EVERY = 50
"""Updates between two measurements."""


def warm_start(
    setup: AgentSetup,
    settings: WarmStart,
    report: Callable[[int, dict[str, float | None]], None],
    before_update: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> dict[str, float | None]:
    """Fine-tune the policy on demonstrations, by cross-entropy on the tokens of their replies.

    Args:
        setup: policy, environment, engine.
        settings: samples, learning rate, and the perception accuracy that is enough.
        report: called with the samples seen so far, and metrics.
        before_update: called before every update; ends the warm start by raising.
        say: receives messages for people.

    Returns:
        The last metrics: `warm_start/loss` (mean negative log-probability of a token) and `warm_start/truthful`
        (perception accuracy of replies to held-out prompts).

    Raises:
        BadInput: the demonstrations cannot be read, there are too few, or the environment has no oracle.
        RunFailed: see `OptimiserSteps.step`.
    """
    engine = setup.engine
    vlm = setup.vlm
    held_out, stream, samples = _demos(setup, settings)
    parameters = [parameter for parameter in vlm.scorer.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters, settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    updates = max(samples // settings.batch, 1)
    schedule = schedule_of(optimiser, settings, updates)
    checked = held_out[: _number_checked(samples)]
    numbers: dict[str, float | None] = {}
    steps = OptimiserSteps(
        engine,
        optimiser,
        setup.recipe.update.micro_batch,
        setup.recipe.update.max_grad_norm,
        "lower warm_start.learning_rate",
        say,
    )
    for update in range(1, updates + 1):
        before_update()
        batch = list(islice(stream, settings.batch))
        # As if the policy had sampled the demonstrations: prompt, reply, and the token that ends it.
        replies = [np.array([*vlm.tokens.encode(demo.reply), vlm.tokens.stop], np.int64) for demo in batch]
        # As in `losses`: divided by the tokens of the whole step, so that gradients can be summed over processes.
        tokens = sum(map(len, replies))
        share = range(engine.rank, len(batch), engine.world)
        # Similar lengths are passed together, to waste little on padding.
        sequences = [_sequence(vlm, batch[i], replies[i]) for i in share]
        sequences.sort(key=lambda sequence: sequence.length)
        padding = sequences[:1] or [_sequence(vlm, batch[0], replies[0])]
        loss, _ = steps.step(partial(_backward, setup, sequences, padding, tokens), f"warm start, update {update}")
        schedule.step()
        if update % CHECK_EVERY == 0 or update == updates:
            accuracy = engine.gather(_perception_accuracy(setup, checked))[0]
            numbers = {"warm_start/loss": sum(engine.gather(loss)), "warm_start/truthful": accuracy}
            report(update * settings.batch, numbers)
            if settings.stop_at is not None and accuracy is not None and accuracy >= settings.stop_at:
                break
    return numbers


def schedule_of(optimiser: torch.optim.Optimizer, settings: WarmStart, updates: int) -> LRScheduler:
    """Learning rate schedule of a warm start.

    Args:
        settings: the schedule's name, the peak, and the share of updates in which the rate rises to it.
        updates: of the whole warm start, at least 1.
    """
    rise = settings.warm_up
    if settings.schedule == "one_cycle":
        if math.isclose(rise * updates, 1):
            rise *= 1.2  # the schedule divides by rise * updates - 1
        # It also takes the first beta from 0.95 to 0.85 and back, its default.
        return OneCycleLR(optimiser, settings.learning_rate, updates, pct_start=rise)

    rising = int(rise * updates)
    falling = max(updates - rising, 1)

    def factor(update: int) -> float:
        if update < rising:
            return (update + 1) / (rising + 1)
        return decay(settings.schedule, (update - rising) / falling)

    return LambdaLR(optimiser, factor)


def _number_checked(samples: int) -> int:
    """Held-out replies that each measurement samples: fewer of a short warm start, which they would outlast."""
    return min(max(samples // 4, LEAST_CHECKED), HELD_OUT)


def _sequence(vlm: VLM, demo: Demo, reply: np.ndarray) -> TokenSequence:
    return TokenSequence.of_reply(vlm.encode([ChatTurn(demo.text, demo.pictures)]), reply)


def _backward(
    setup: AgentSetup,
    sequences: Sequence[TokenSequence],
    padding: Sequence[TokenSequence],
    tokens: int,
    micro_batch: int,
) -> float:
    """Add up the gradient of this process's share of a step, and return its share of the loss.

    Args:
        sequences: this process's share; may be empty.
        padding: what a process with less work passes through the model meanwhile.
        tokens: of the replies of all shares.
        micro_batch: demonstrations in a pass.
    """
    microbatches = [sequences[start : start + micro_batch] for start in range(0, len(sequences), micro_batch)]
    total = 0.0
    for microbatch, counts in padded_microbatches(setup.engine, microbatches, padding):
        loss = -setup.vlm.score(microbatch).logprobs.sum() / tokens
        if not counts:
            # Only to keep up with the other processes.
            torch.autograd.backward(0.0 * loss)
            continue
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total


def _demos(setup: AgentSetup, settings: WarmStart) -> tuple[list[Demo], Iterator[Demo], int]:
    """Held-out demonstrations, an endless stream of those to train on, and how many of it to take."""
    recipe = setup.recipe
    if settings.demos is None:
        stream = best_play(recipe, settings, settings.samples + HELD_OUT)
        return list(islice(stream, HELD_OUT)), stream, settings.samples
    demos = list(read_demos(settings.demos, settings.image_folder))
    if len(demos) < 2 * HELD_OUT:
        raise BadInput(f"'{settings.demos}' holds {len(demos)} demonstrations; {2 * HELD_OUT} are the least")
    held_out = demos[:HELD_OUT]
    training = demos[HELD_OUT:]
    samples = settings.samples
    if settings.epochs is not None:
        samples = settings.epochs * len(training)
    return held_out, _shuffled(training, recipe.seed), samples


def _shuffled(demos: Sequence[Demo], seed: int) -> Iterator[Demo]:
    """Repeat demonstrations without end, in a new order in every epoch."""
    rng = np.random.default_rng(seed)
    while True:
        for index in rng.permutation(len(demos)):
            yield demos[index]


def _perception_accuracy(setup: AgentSetup, demos: Sequence[Demo]) -> float | None:
    """Share of the visible facts that greedy replies state correctly; None for environments without facts."""
    recipe = setup.recipe
    if not any(recipe.replies.asks(demo.facts) for demo in demos):
        return None

    # Sampled in batches like those of an evaluation, which are known to fit into memory.
    conversations = [[ChatTurn(demo.text, demo.pictures)] for demo in demos]
    samples: list[Sample] = []
    with setup.engine.full_params():
        sampler = PolicySampler(setup.vlm, 0.0, recipe.replies.max_tokens)
        for start in range(0, len(demos), recipe.evaluation.parallel):
            batch = conversations[start : start + recipe.evaluation.parallel]
            samples += [completion.sample for completion in sampler.generate(batch, [()] * len(batch))]

    correct = 0
    total = 0
    thinking = setup.vlm.tokens.thinking
    for demo, sample in zip(demos, samples, strict=True):
        queried_facts = recipe.replies.asks(demo.facts)
        reply = read_reply(sample.text, recipe.replies, (), queried_facts, sample.finished, thinking)
        for name in queried_facts:
            correct += same_text(reply.stated.get(name, ""), demo.facts[name])
        total += len(queried_facts)
    if total == 0:
        return None
    return correct / total
