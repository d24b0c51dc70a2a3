"""One update: from the episodes of a rollout to changed weights.

rollout -- values -- advantages -- reference log-probs -- epochs of optimiser steps -- changed weights
           (no gradient)           (no gradient)          |
                                                          step = microbatches of all processes:
                                                          score -> loss / global turns -> backward, summed

Which tokens are in the loss (the loss mask): `sequences`. What happens when memory runs out: `optimiser_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import torch

from sightline.agents.algorithms.base import AlgorithmConfig, checked_advantages
from sightline.agents.algorithms.returns import is_complete
from sightline.agents.engines.engine import Engine, padded_microbatches
from sightline.agents.losses import NonFiniteLoss, Sums, policy_loss, sampler_mismatch
from sightline.agents.metrics import MetricValues, merge_sums, update_metrics
from sightline.agents.optimiser_steps import OptimiserSteps, decay
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
        self._vlm = vlm
        self._engine = engine
        self._algorithm = algorithm
        self._settings = settings = settings or Update()
        self._temperature = temperature
        self._seed = seed
        parameters = [parameter for parameter in vlm.scorer.parameters() if parameter.requires_grad]
        if not parameters:
            raise RunFailed("nothing is left to learn: policy.freeze names all parts")
        self.optimiser = torch.optim.AdamW(
            parameters, settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
        )
        self._optimiser_steps = OptimiserSteps(
            engine,
            self.optimiser,
            settings.micro_batch,
            settings.max_grad_norm,
            "the last checkpoint is good; lower update.learning_rate",
            say,
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
        # Those alone have a state after their last turn that is worth something.
        cut_off = [episode for episode in complete if episode.end is not None]

        def compute(micro_batch: int) -> Sums:
            sums = self._score_turns(complete, micro_batch)
            if self._algorithm.needs_values:
                self._bootstrap_values(cut_off, micro_batch)
            return sums

        return self._optimiser_steps.score(compute)

    def _score_turns(self, trajectories: Sequence[Trajectory], micro_batch: int) -> Sums:
        """Score turns with the present weights, which have sampled them unless rollouts are asynchronous."""
        # Importance ratios compare with what the learner computes before the weights change. In float32 that is what
        # the sampler has computed, but for rounding; a correction for the sampler needs both all the same.
        needs_old_logprobs = not self._vlm.exact or self._settings.importance_cap is not None
        batches = microbatches(build_sequences(trajectories), micro_batch)
        if not needs_old_logprobs and not self._algorithm.needs_values:
            batches = batches[:1]  # only to compare sampler and trainer
        sums: list[Sums] = []
        for batch in batches:
            turns = _turns_of(batch)
            for turn in turns:
                turn.old_logprobs = None  # compared below are those of sampling, also in a second attempt
            scores = self._vlm.score([sequence.tokens for sequence in batch], self._temperature)
            sums.append(sampler_mismatch(scores, build_targets(batch, self._vlm.device)))
            for turn, value in zip(turns, scores.values.tolist(), strict=True):
                turn.value = value
            if needs_old_logprobs:
                for turn, old_logprobs in zip(turns, _split_by_turn(scores.logprobs, turns), strict=True):
                    turn.old_logprobs = old_logprobs
        return merge_sums(sums)

    def _score_with_reference(self, sequences: Sequence[TrainingSequence], micro_batch: int) -> None:
        """Write the reference model's log-probs into turns that are learned from; others need none."""
        for batch in microbatches(sequences, micro_batch):
            turns = _turns_of(batch)
            tokens = [sequence.tokens for sequence in batch]
            logprobs = self._vlm.reference_logprobs(tokens, self._temperature)
            for turn, ref_logprobs in zip(turns, _split_by_turn(logprobs, turns), strict=True):
                turn.ref_logprobs = ref_logprobs

    def _bootstrap_values(self, cut_off: Sequence[Trajectory], micro_batch: int) -> None:
        """Compute the value of the state in which each truncated episode was cut off."""
        for start in range(0, len(cut_off), micro_batch):
            batch = cut_off[start : start + micro_batch]
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

        Raises:
            RunFailed: the algorithm raises, or returns something else.
        """
        groups: list[Group] = [list(group) for _, group in groupby(trajectories, key=lambda episode: episode.seed)]
        # Group by group, and flat again: the learner goes on by episodes.
        by_group = checked_advantages(self._algorithm, groups)
        return [advantages for group_advantages in by_group for advantages in group_advantages]

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
            advantages = _zeros_for_none(trajectories, advantages)
        # Lay the turns out as sequences: optimiser steps are drawn from those of all processes, and each process passes
        # its own through the model.
        turns, sequences = self._sequences(trajectories, advantages)
        own = [sequence for sequence in sequences if sequence is not None]
        padding = self._padding(own)
        # The reference model does not change, so all epochs can do with its log-probs of now.
        if self._settings.needs_reference:
            with self._engine.full_params():
                self._optimiser_steps.score(lambda micro_batch: self._score_with_reference(own, micro_batch))
        learning_rate = self._settings.learning_rate * decay(self._settings.schedule, progress)
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
                total_turns = sum(turns[i] for i in step)
                step_sums, norm = self._step(local, padding, total_turns, place)
                sums.append(step_sums)
                norms.append(norm)
        # Metrics of all processes: sums of sums, divided at the very end.
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
        local: dict[int, list[TrainingSequence]] = {}
        local_turns: dict[int, list[int]] = {}
        for i, (trajectory, episode_advantages) in enumerate(zip(trajectories, advantages, strict=True)):
            if not trajectory.elsewhere:
                local[i] = build_sequences([trajectory], [episode_advantages])
                local_turns[i] = [len(sequence.turns) for sequence in local[i]]
        # Index of an episode -> turns of each of its sequences, whoever has played it.
        all_turns: dict[int, list[int]] = {}
        for part in self._engine.gather(local_turns):
            all_turns |= part
        turns: list[int] = []
        sequences: list[TrainingSequence | None] = []
        for i in sorted(all_turns):
            turns += all_turns[i]
            sequences += local.get(i, [None] * len(all_turns[i]))
        return turns, sequences

    def _padding(self, local: Sequence[TrainingSequence]) -> list[TrainingSequence]:
        """The shortest sequence of this process, or of another if it has none and has to keep up."""
        shortest = sorted(local, key=lambda sequence: sequence.tokens.length)[:1]
        if self._engine.uniform_steps and not all(self._engine.gather(bool(shortest))):
            # The only time that pictures are sent.
            candidates = self._engine.gather(shortest)
            if not shortest:
                return next(filter(None, candidates), [])
        return shortest

    def _step(
        self, local: Sequence[TrainingSequence], padding: list[TrainingSequence], total_turns: int, place: str
    ) -> tuple[Sums, float]:
        """Run one optimiser step.

        Args:
            local: sequences of this process; may be empty.
            padding: see `padded_microbatches`.
            total_turns: of all processes.

        Returns:
            Measurements of this process's passes, and the norm of the gradient.
        """
        return self._optimiser_steps.step(
            lambda micro_batch: self._backward(local, padding, total_turns, micro_batch), place
        )

    def _backward(
        self, local: Sequence[TrainingSequence], padding: list[TrainingSequence], total_turns: int, micro_batch: int
    ) -> Sums:
        """Accumulate the gradients of this process's share of an optimiser step."""
        passes = microbatches(local, micro_batch)
        sums: list[Sums] = []
        non_finite: NonFiniteLoss | None = None
        for sequences, counts in padded_microbatches(self._engine, passes, padding):
            # The one forward pass with gradient: log-probs of sampled tokens, values, entropies.
            scores = self._vlm.score([sequence.tokens for sequence in sequences], self._temperature)
            if not counts:
                _backward_nothing(scores)
                continue
            try:
                output = policy_loss(
                    scores,
                    build_targets(sequences, self._vlm.device),
                    self._reference_logprobs(sequences),
                    self._settings,
                    self._algorithm,
                    total_turns=total_turns,  # of all processes, so that gradients can be summed
                )
            except NonFiniteLoss as error:
                non_finite = non_finite or error
                if not self._engine.uniform_steps:
                    break
                # The others are in the same pass: go on to the end, and complain then.
                _backward_nothing(scores)
                continue
            torch.autograd.backward(output.loss)
            sums.append(output.metrics)
        if non_finite is not None:
            raise non_finite
        return merge_sums(sums)

    def _reference_logprobs(self, sequences: Sequence[TrainingSequence]) -> torch.Tensor | None:
        """float32[T] of a microbatch, in the order of its tokens; None if the loss has no KL term."""
        if not self._settings.needs_reference:
            return None
        logprobs: list[np.ndarray] = []
        for turn in _turns_of(sequences):
            assert turn.ref_logprobs is not None, "they are computed before the first step"
            logprobs.append(turn.ref_logprobs)
        return torch.from_numpy(np.concatenate(logprobs)).to(self._vlm.device)


def _zeros_for_none(
    trajectories: Sequence[Trajectory], advantages: Sequence[Advantages | None]
) -> list[Advantages | None]:
    """Give complete episodes without advantages those of 0: the KL and the entropy of their turns count then."""
    filled = list(advantages)
    for i, (episode, episode_advantages) in enumerate(zip(trajectories, advantages, strict=True)):
        if episode_advantages is None and is_complete(episode):
            filled[i] = Advantages(np.zeros(len(episode.turns)))
    return filled


def _backward_nothing(scores: TokenStats) -> None:
    """Backward pass of no effect: the other processes wait for it, and for a gradient of every weight."""
    torch.autograd.backward(0.0 * (scores.logprobs.sum() + scores.values.sum()))


def _turns_of(sequences: Sequence[TrainingSequence]) -> list[Turn]:
    turns: list[Turn] = []
    for sequence in sequences:
        turns += [sequence_turn.turn for sequence_turn in sequence.turns]
    return turns


def _split_by_turn(logprobs: torch.Tensor, turns: Sequence[Turn]) -> list[np.ndarray]:
    """Log-probs of each turn; scores are flat, those of all turns one after the other."""
    ends = np.cumsum([len(turn.sample.ids) for turn in turns])
    return np.split(logprobs.float().cpu().numpy(), ends[:-1])
