"""One update: from the episodes of a rollout to changed weights.

rollout -- values -- advantages -- reference log-probs -- epochs of optimiser steps -- changed weights
           (no gradient)           (no gradient)          |
                                                          step = microbatches of all processes:
                                                          score -> loss / global turns -> backward, summed
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch

from sightline.agents.algorithms.base import AlgorithmConfig
from sightline.agents.algorithms.returns import is_complete
from sightline.agents.engines.engine import Engine, padded_microbatches
from sightline.agents.losses import NonFiniteLoss, Sums, policy_loss, sampler_mismatch
from sightline.agents.metrics import MetricValues, merge_sums, update_metrics
from sightline.agents.sequences import (
    TrainingSequence,
    build_sequences,
    build_targets,
    microbatches,
    minibatches,
)
from sightline.agents.types import Advantages, Group, Trajectory, Turn
from sightline.config.agents import Update
from sightline.errors import RunFailed
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import TokenSequence, TokenStats, TurnSpan

OUT_OF_MEMORY = "out of memory"
Result = TypeVar("Result")


class PolicyLearner:
    """Trains a vision-language model on its own episodes.

    Args:
        vlm: the policy, prepared by the engine.
        engine: the processes to train on.
        algorithm: computes the advantages.
        settings: optimiser, loss and batch sizes.
        temperature: temperature that the episodes were sampled with.
        seed: of the order of minibatches.
        say: receives messages for people.
    """

    def __init__(
        self,
        vlm: VLM,
        engine: Engine,
        algorithm: AlgorithmConfig,
        settings: Update | None = None,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._vlm, self._engine, self._say = vlm, engine, say
        self._algorithm, self._settings = algorithm, settings or Update()
        self._temperature, self._seed = temperature, seed
        self._micro_batch = self._settings.micro_batch
        parameters = [parameter for parameter in vlm.scorer.parameters() if parameter.requires_grad]
        if not parameters:
            raise RunFailed("nothing is left to learn: policy.freeze names all parts")
        self.optimiser = torch.optim.AdamW(
            parameters, self._settings.learning_rate, betas=(0.9, 0.95), weight_decay=self._settings.weight_decay
        )

    def compute_values(self, trajectories: Sequence[Trajectory]) -> Sums:
        """Compute the values of this process's turns, before the weights change.

        They are written into the turns; truncated episodes get their bootstrap value. Where the model computes in
        bfloat16, so are the log-probs of the policy itself: those of sampling, token by token from a cache, are rounded
        in other places, and the importance ratio of a reply would be 0.93 to 1.08 before any weight has changed. An
        algorithm without values needs none of this in float32: then one forward pass is all, to compare sampler and
        trainer.

        Returns:
            Difference between sampler and trainer in the probabilities of the same tokens
            (`losses.sampler_mismatch`), of the turns that were scored.
        """
        complete = [episode for episode in trajectories if episode.error is None]

        def compute() -> Sums:
            sums = self._score_turns(complete)
            if self._algorithm.needs_values:
                self._bootstrap_values([episode for episode in complete if episode.end is not None])
            return sums

        return self._with_smaller_passes(compute)

    def _with_smaller_passes(self, compute: Callable[[], Result]) -> Result:
        """Result of a computation without gradient, which is begun again with smaller passes if memory runs out."""
        while True:
            try:
                with torch.no_grad():
                    return compute()
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self._micro_batch == 1:
                    raise RunFailed("out of memory while scoring a single turn; take a smaller model") from error
            self._halve_micro_batch()

    def _score_turns(self, trajectories: Sequence[Trajectory]) -> Sums:
        """Score turns with the present weights, which have sampled them unless rollouts are asynchronous."""
        sums: list[Sums] = []
        batches = microbatches(build_sequences(trajectories), self._micro_batch)
        rounds = not self._vlm.exact
        # The correction for the sampler compares its log-probs with the learner's own.
        rounds = rounds or self._settings.importance_cap is not None
        for batch in batches if rounds or self._algorithm.needs_values else batches[:1]:
            turns = _turns_of(batch)
            for turn in turns:
                turn.old_logprobs = None  # compared below are those of sampling, also in a second attempt
            scores = self._vlm.score([sequence.tokens for sequence in batch], self._temperature)
            sums.append(sampler_mismatch(scores, build_targets(batch, self._vlm.device)))
            logprobs = _split(scores.logprobs, turns) if rounds else [None] * len(turns)
            for turn, value, old in zip(turns, scores.values.tolist(), logprobs, strict=True):
                turn.value, turn.old_logprobs = value, old
        return merge_sums(sums)

    def _score_with_reference(self, sequences: Sequence[TrainingSequence]) -> None:
        """Write the reference model's log-probs into turns that are learned from; others need none."""
        for batch in microbatches(sequences, self._micro_batch):
            turns, tokens = _turns_of(batch), [sequence.tokens for sequence in batch]
            logprobs = _split(self._vlm.reference_logprobs(tokens, self._temperature), turns)
            for turn, of_turn in zip(turns, logprobs, strict=True):
                turn.ref_logprobs = of_turn

    def _bootstrap_values(self, truncated: Sequence[Trajectory]) -> None:
        """Compute the value of the state in which each truncated episode was cut off."""
        for batch in _chunks(truncated, self._micro_batch):
            sequences = []
            for episode in batch:
                assert episode.end is not None
                end = len(episode.end.ids)
                # An empty span at the end of the prompt: the value there is that before the reply that never came.
                sequences.append(TokenSequence(episode.end, np.zeros(0, np.int64), (TurnSpan(end, end),)))
            values = self._vlm.score(sequences, self._temperature).values.tolist()
            for episode, value in zip(batch, values, strict=True):
                episode.last_value = value

    def compute_advantages(self, trajectories: Sequence[Trajectory]) -> list[Advantages | None]:
        """Compute the advantages of each episode.

        Args:
            trajectories: of all processes, with values; episodes of a group beside each other.
        """
        groups: list[Group] = [list(group) for _, group in groupby(trajectories, key=lambda episode: episode.seed)]
        advantages = self._algorithm.compute_advantages(groups)
        return [one for of_group in advantages for one in of_group]

    def learn(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Advantages | None],
        update: int,
        progress: float,
    ) -> MetricValues:
        """Train on the episodes of all processes, each process on those that it has played.

        Args:
            trajectories: of all processes, in the same order on each, with values.
            advantages: of each episode.
            update: its number, from 0: seed of the order of the minibatches.
            progress: share of the run that is over, 0 to 1, for the learning rate schedule.

        Raises:
            RunFailed: a loss or gradient is not finite; the weights are those of the last good step.
        """
        if self._settings.all_turns:
            advantages = [
                Advantages(np.zeros(len(one.turns))) if found is None and is_complete(one) else found
                for one, found in zip(trajectories, advantages, strict=True)
            ]
        turns, sequences = self._sequences(trajectories, advantages)
        own = [sequence for sequence in sequences if sequence is not None]
        padding = self._padding(own)
        if self._settings.needs_reference:
            with self._engine.full_params():
                self._with_smaller_passes(lambda: self._score_with_reference(own))
        progress = min(max(progress, 0.0), 1.0)
        factor = {"linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
        learning_rate = self._settings.learning_rate * factor.get(self._settings.schedule, 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        sums: list[Sums] = []
        norms: list[float] = []
        # Several epochs over the same rollout: it is off-policy from the second step on, hence ratios and clipping.
        for epoch in range(self._settings.epochs):
            steps = minibatches(turns, self._settings.minibatch, self._seed, update, epoch)
            for number, step in enumerate(steps):
                place = f"update {update}, epoch {epoch + 1}, step {number + 1} of {len(steps)}"
                local = [sequence for i in step if (sequence := sequences[i]) is not None]
                step_sums, norm = self._step(local, padding, sum(turns[i] for i in step), place)
                sums.append(step_sums)
                norms.append(norm)
        total = merge_sums(self._engine.gather(merge_sums(sums)))
        return update_metrics(total) | {
            "update/gradient_norm": float(np.mean(norms)) if norms else None,
            "update/steps": float(len(norms)),
            "update/learning_rate": learning_rate,
            "update/turns": float(sum(turns)),
        }

    def _sequences(
        self, trajectories: Sequence[Trajectory], advantages: Sequence[Advantages | None]
    ) -> tuple[list[int], list[TrainingSequence | None]]:
        """Number of turns of the sequences of all processes, in the order of their episodes, and those of this process.

        The others' are None: their prompts are not here. So the steps are those of one process, whoever has played.
        """
        # Built again, not kept from scoring: advantages depend on the episodes of all processes.
        local = {
            i: build_sequences([trajectory], [credit])
            for i, (trajectory, credit) in enumerate(zip(trajectories, advantages, strict=True))
            if not trajectory.elsewhere
        }
        counts: dict[int, list[int]] = {}
        for part in self._engine.gather({i: [len(one.turns) for one in found] for i, found in local.items()}):
            counts |= part
        turns, sequences = list[int](), list[TrainingSequence | None]()
        for i in sorted(counts):
            turns += counts[i]
            sequences += local.get(i, [None] * len(counts[i]))
        return turns, sequences

    def _padding(self, local: Sequence[TrainingSequence]) -> list[TrainingSequence]:
        """The shortest sequence of this process, or of another if it has none and has to keep up."""
        shortest = sorted(local, key=lambda sequence: sequence.tokens.length)[:1]
        if self._engine.uniform_steps and not all(self._engine.gather(bool(shortest))):
            known = self._engine.gather(shortest)  # by all of them, the only time that pictures are sent
            return shortest or next(filter(None, known), [])
        return shortest

    def _step(
        self, local: Sequence[TrainingSequence], padding: list[TrainingSequence], total_turns: int, place: str
    ) -> tuple[Sums, float]:
        """Run one optimiser step; with smaller microbatches if memory runs out.

        Args:
            local: sequences of this process; may be empty.
            padding: see `padded_microbatches`.
            total_turns: of all processes.
        """
        while True:
            sums: Sums = {}
            trouble: str | None = None
            try:
                sums = self._backward(local, padding, total_turns)
            except NonFiniteLoss as error:
                trouble = f"{place}: {error}; the last checkpoint is good"
            except (torch.OutOfMemoryError, MemoryError) as error:
                trouble = OUT_OF_MEMORY
                if self._micro_batch == 1:
                    trouble = (
                        f"{place}: out of memory with a single turn in a pass; try policy.gradient_checkpointing=true, "
                        "policy.lora or a smaller model"
                    )
                if self._engine.uniform_steps:  # the others wait in the middle of a pass and cannot be told
                    raise RunFailed(
                        f"{place}: out of memory; lower update.micro_batch (it is {self._micro_batch})"
                    ) from error
            # A problem of one process must be known to all of them: they retry together or end together.
            troubles = {one for one in self._engine.gather(trouble) if one is not None}
            if not troubles:
                break
            for one in sorted(troubles - {OUT_OF_MEMORY}):
                raise RunFailed(one)
            self.optimiser.zero_grad(set_to_none=True)  # gradients of the passes before the one that failed
            self._halve_micro_batch()
        norm = self._engine.step(self.optimiser, self._settings.max_grad_norm)
        if not math.isfinite(norm):
            raise RunFailed(
                f"{place}: the gradient is not finite; the last checkpoint is good; lower update.learning_rate"
            )
        return sums, norm

    def _halve_micro_batch(self) -> None:
        """After running out of memory: use smaller forward passes from now on."""
        self._micro_batch = max(1, self._micro_batch // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._say(f"out of memory: going on with {self._micro_batch} turns in a pass, to the same effect")

    def _backward(self, local: Sequence[TrainingSequence], padding: list[TrainingSequence], total_turns: int) -> Sums:
        """Accumulate the gradients of this process's share of an optimiser step."""
        passes = microbatches(local, self._micro_batch)
        sums: list[Sums] = []
        non_finite: NonFiniteLoss | None = None
        for sequences, counts in padded_microbatches(self._engine, passes, padding):
            scores = self._vlm.score([sequence.tokens for sequence in sequences], self._temperature)
            if not counts:
                _backward_nothing(scores)
                continue
            ref_logprobs: torch.Tensor | None = None
            if self._settings.needs_reference:
                known = [turn.ref_logprobs for turn in _turns_of(sequences)]
                assert all(one is not None for one in known), "they are computed before the first step"
                ref_logprobs = torch.from_numpy(np.concatenate(known)).to(self._vlm.device)  # type: ignore[arg-type]
            try:
                output = policy_loss(
                    scores,
                    build_targets(sequences, self._vlm.device),
                    ref_logprobs,
                    self._settings,
                    self._algorithm,
                    total_turns=total_turns,  # of all processes, so that gradients can be summed
                )
            except NonFiniteLoss as error:
                non_finite = non_finite or error
                if not self._engine.uniform_steps:
                    break
                _backward_nothing(scores)
                continue
            torch.autograd.backward(output.loss)
            sums.append(output.metrics)
        if non_finite is not None:
            raise non_finite
        return merge_sums(sums)


def _backward_nothing(scores: TokenStats) -> None:
    """Backward pass of no effect: the other processes wait for it, and for a gradient of every weight."""
    torch.autograd.backward(0.0 * (scores.logprobs.sum() + scores.values.sum()))


def _turns_of(batch: Sequence[TrainingSequence]) -> list[Turn]:
    return [each.turn for sequence in batch for each in sequence.turns]


def _split(logprobs: torch.Tensor, turns: Sequence[Turn]) -> list[np.ndarray]:
    """Log-probs of each turn; scores are flat, those of all turns one after the other."""
    return np.split(logprobs.float().cpu().numpy(), np.cumsum([len(turn.sample.ids) for turn in turns])[:-1])


def _chunks(items: Sequence[Any], size: int) -> list[Any]:
    return [items[start : start + size] for start in range(0, len(items), size)]
