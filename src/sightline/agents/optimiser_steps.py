"""Optimiser steps of warm start (SFT) and RL: gradients accumulated over micro-batches, which are halved when memory
runs out.

    micro_batch 4    [ a b c d ] [ e f g h ]              out of memory in the second pass:
    micro_batch 2    [ a b ] [ c d ] [ e f ] [ g h ]      the step begins again, and later steps begin with 2

Losses are divided by what the whole step holds on all processes, never by what a pass holds. So smaller passes sum up
to the same gradient, and nobody has to restart a run because one update had longer replies than those before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch

from sightline.agents.engines.engine import Engine
from sightline.agents.losses import NonFiniteLoss
from sightline.errors import RunFailed

OUT_OF_MEMORY = "out of memory"
Result = TypeVar("Result")


def decay(schedule: str, progress: float) -> float:
    """Factor of the learning rate after a share of the work, from 1 to 0.

    Args:
        schedule: `constant`, `linear` or `cosine`; the last two end at zero.
        progress: from 0 to 1; what is beyond counts as the nearest of them.
    """
    progress = min(max(progress, 0.0), 1.0)
    if schedule == "linear":
        return 1.0 - progress
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


class OptimiserSteps:
    """Optimiser steps of all processes, and scoring, in passes of as many turns as memory suffices for.

    Args:
        engine: the processes.
        optimiser: of the weights that learn.
        micro_batch: turns in a forward pass, at first.
        max_grad_norm: the global norm that gradients are clipped to.
        remedy: what helps if a gradient is not finite, for the error line.
        say: receives messages for people.
    """

    def __init__(
        self,
        engine: Engine,
        optimiser: torch.optim.Optimizer,
        micro_batch: int,
        max_grad_norm: float,
        remedy: str,
        say: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._optimiser = optimiser
        self._micro_batch = micro_batch
        self._max_grad_norm = max_grad_norm
        self._remedy = remedy
        self._say = say

    def step(self, backward: Callable[[int], Result], place: str) -> tuple[Result, float]:
        """Run one optimiser step; again with smaller micro-batches if memory runs out on any process.

        Args:
            backward: adds up the gradient of this process's share of the step, in passes of at most so many turns.
            place: where in the run the step is, for error lines.

        Returns:
            What `backward` gave, and the norm of the gradient before clipping.

        Raises:
            RunFailed: a loss or the gradient is not finite, with the weights of the last good step; or memory does not
                suffice for a single turn.
        """
        while True:
            result: Result | None = None
            trouble: str | None = None
            try:
                result = backward(self._micro_batch)
            except NonFiniteLoss as error:
                trouble = f"{place}: {error}; the last checkpoint is good"
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self._engine.uniform_steps:
                    # The others wait in the middle of a pass and cannot be told.
                    raise RunFailed(
                        f"{place}: out of memory; lower update.micro_batch (it is {self._micro_batch})"
                    ) from error
                trouble = OUT_OF_MEMORY
                if self._micro_batch == 1:
                    trouble = (
                        f"{place}: out of memory with a single turn in a pass; try policy.gradient_checkpointing=true, "
                        "policy.lora or a smaller model"
                    )
            # A problem of one process must be known to all of them: they retry together or end together.
            troubles = {reason for reason in self._engine.gather(trouble) if reason is not None}
            if not troubles:
                break
            fatal = sorted(troubles - {OUT_OF_MEMORY})
            if fatal:
                raise RunFailed(fatal[0])
            # Gradients of the passes before the one that failed would count twice.
            self._optimiser.zero_grad(set_to_none=True)
            self._halve()
        norm = self._engine.step(self._optimiser, self._max_grad_norm)
        if not math.isfinite(norm):
            raise RunFailed(f"{place}: the gradient is not finite; {self._remedy}")
        return result, norm  # type: ignore[return-value]

    def score(self, compute: Callable[[int], Result]) -> Result:
        """Result of a computation without gradient, which is begun again with smaller passes if memory runs out.

        Args:
            compute: passes at most so many turns through the model at a time.
        """
        while True:
            try:
                with torch.no_grad():
                    return compute(self._micro_batch)
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self._micro_batch == 1:
                    raise RunFailed("out of memory while scoring a single turn; take a smaller model") from error
            # Outside of `except`: the error's traceback holds the tensors that filled the memory.
            self._halve()

    def _halve(self) -> None:
        """Use smaller passes from now on."""
        self._micro_batch = max(1, self._micro_batch // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._say(f"out of memory: going on with {self._micro_batch} turns in a pass, to the same effect")
