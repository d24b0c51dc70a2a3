"""Supervised learning from demonstrations, before reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from sightline.agents.building import AgentSetup, game_maker
from sightline.agents.demos import Demo, demonstrations, read_demos
from sightline.agents.engines.engine import passes
from sightline.agents.parsing import read_reply
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.types import same_text
from sightline.config.agents import WarmStart
from sightline.errors import BadInput, RunFailed
from sightline.models.vlm.types import ChatTurn, Sample, TokenSequence, TurnSpan

HELD_OUT = 128
"""Demonstrations that are not learned from, on which truthfulness is measured."""
CHECK_EVERY = 50
"""Updates between two measurements."""


def warm_start(
    setup: AgentSetup,
    settings: WarmStart,
    tell: Callable[[int, dict[str, float | None]], None],
    look: Callable[[], None] = lambda: None,
) -> dict[str, float | None]:
    """Teach the model to reply as demonstrated.

    Args:
        setup: model, game, processes.
        settings: how much, how fast, and when it is enough.
        tell: is told now and then: samples seen, and numbers.
        look: called before every update; ends it all by raising.

    Returns:
        The last numbers: `warm_start/loss` (mean negative log-probability of a token) and `warm_start/truthful` (share
        of the facts in held-out replies that are true).

    Raises:
        BadInput: the demonstrations cannot be read, there are too few, or the game cannot demonstrate itself.
    """
    engine, vlm = setup.engine, setup.vlm
    held_out, stream = _demos(setup, settings)
    parameters = [parameter for parameter in vlm.scorer.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, settings.learning_rate, betas=(0.9, 0.98))
    updates = max(settings.samples // settings.batch, 1)
    rise = 0.06 if updates == 20 else 0.05  # the schedule divides by rise * updates - 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, updates, pct_start=rise)
    numbers: dict[str, float | None] = {}
    for update in range(1, updates + 1):
        look()
        batch = list(islice(stream, settings.batch))
        passages = [_passage(setup, demo) for demo in batch]
        tokens = sum(len(passage.reply) for passage in passages)
        loss = 0.0
        for few, counts in passes(engine, _share(setup, passages), passages[:1]):
            of_few = -vlm.score(few).logprobs.sum() / tokens
            torch.autograd.backward(of_few if counts else 0.0 * of_few)
            loss += float(of_few.detach()) if counts else 0.0
        if not math.isfinite(engine.step(optimiser, setup.recipe.update.max_grad_norm)):
            raise RunFailed(f"warm start, update {update}: the gradient is not finite; lower warm_start.learning_rate")
        schedule.step()
        if update % CHECK_EVERY == 0 or update == updates:
            truthful = engine.gather(_truthful(setup, held_out))[0]
            numbers = {"warm_start/loss": sum(engine.gather(loss)), "warm_start/truthful": truthful}
            tell(update * settings.batch, numbers)
            if settings.truthful is not None and truthful is not None and truthful >= settings.truthful:
                break
    return numbers


def _demos(setup: AgentSetup, settings: WarmStart) -> tuple[list[Demo], Iterator[Demo]]:
    """Demonstrations that are held out, and those to learn from, without end."""
    recipe = setup.recipe
    if settings.demos is None:
        make = game_maker(recipe, practice=True)
        stream = demonstrations(make, recipe.replies, settings.samples + HELD_OUT, recipe.seed, settings.explore)
        return list(islice(stream, HELD_OUT)), stream
    found = list(read_demos(Path(settings.demos)))
    if len(found) < 2 * HELD_OUT:
        raise BadInput(f"'{settings.demos}' holds {len(found)} demonstrations; {2 * HELD_OUT} are the least")
    return found[:HELD_OUT], _shuffled(found[HELD_OUT:], recipe.seed)


def _shuffled(demos: Sequence[Demo], seed: int) -> Iterator[Demo]:
    rng = np.random.default_rng(seed)
    while True:
        for place in rng.permutation(len(demos)):
            yield demos[place]


def _passage(setup: AgentSetup, demo: Demo) -> TokenSequence:
    """A demonstration as the model would have sampled it: its reply, ended."""
    prompt = setup.vlm.encode([ChatTurn(demo.text, demo.pictures)])
    reply = np.array([*setup.vlm.tokens.encode(demo.reply), setup.vlm.tokens.stop], np.int64)
    start = len(prompt.ids)
    return TokenSequence(prompt, reply, (TurnSpan(start, start + len(reply)),))


def _share(setup: AgentSetup, passages: Sequence[TokenSequence]) -> list[Sequence[TokenSequence]]:
    """This process's share of a step, in forward passes."""
    size, engine = setup.recipe.update.micro_batch, setup.engine
    mine = list(passages[engine.rank :: engine.world])
    return [mine[start : start + size] for start in range(0, len(mine), size)]


def _truthful(setup: AgentSetup, demos: Sequence[Demo]) -> float | None:
    """Share of the facts that the model states truly of held-out pictures; None for games without facts."""
    recipe, true, of = setup.recipe, 0, 0
    if not recipe.replies.facts:
        return None
    conversations = [[ChatTurn(demo.text, demo.pictures)] for demo in demos]
    samples: list[Sample] = []
    with setup.engine.whole():
        sampler = PolicySampler(setup.vlm, 0.0, recipe.replies.max_tokens)
        for start in range(0, len(demos), recipe.evaluation.parallel):
            some = conversations[start : start + recipe.evaluation.parallel]
            samples += [asked.sample for asked in sampler.ask(some, [()] * len(some))]
    for demo, sample in zip(demos, samples, strict=True):
        stated = read_reply(sample.text, recipe.replies, (), tuple(demo.facts)).stated
        true += sum(same_text(stated.get(name, ""), fact) for name, fact in demo.facts.items())
        of += len(demo.facts)
    return true / of if of else None
