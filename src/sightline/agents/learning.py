"""One update: from what was played to changed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch

from sightline.agents.algorithms import compute_advantages
from sightline.agents.engines.engine import Engine, passes
from sightline.agents.losses import NotFinite, Sums, mismatch, policy_loss
from sightline.agents.metrics import Metrics, added, update_metrics
from sightline.agents.sequences import (
    TrainingSequence,
    build_sequences,
    is_learned_from,
    micro_batches,
    minibatches,
    share,
    targets_of,
    turns_in,
)
from sightline.agents.types import Advantages, Group, Trajectory
from sightline.config.agents import PPO
from sightline.config.recipe import AgentRecipe
from sightline.errors import RunFailed
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import TokenSequence, TurnSpan

OUT_OF_MEMORY = "out of memory"


class PolicyLearner:
    """Changes a model by what it played.

    Args:
        recipe: how.
        vlm: the model; its weights are brought into the engine's form.
        engine: the processes.
        say: is told what a person should know.
    """

    def __init__(self, recipe: AgentRecipe, vlm: VLM, engine: Engine, say: Callable[[str], None] = print) -> None:
        self._recipe, self._vlm, self._engine, self._say = recipe, vlm, engine, say
        self._settings, self._temperature = recipe.update, recipe.rollouts.temperature
        self._micro_batch = self._settings.micro_batch
        parameters = [parameter for parameter in vlm.scorer.parameters() if parameter.requires_grad]
        if not parameters:
            raise RunFailed("nothing is left to learn: policy.freeze names all parts")
        self.optimiser = torch.optim.AdamW(
            parameters, self._settings.learning_rate, betas=(0.9, 0.95), weight_decay=self._settings.weight_decay
        )

    def compute_values_and_ref_logprobs(self, played: Sequence[Trajectory]) -> Sums:
        """Ask the model, before it changes, for what credit and loss will need of these episodes of this process:
        the values of their turns, and what the model before RL would have said.

        Returns:
            How far sampling and learning disagree on the probabilities of the same tokens (`losses.mismatch`).
        """
        while True:
            try:
                return self._judged(played)
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self._micro_batch == 1:
                    raise RunFailed("out of memory while judging a single turn; take a smaller model") from error
            self._take_less()

    def _judged(self, played: Sequence[Trajectory]) -> Sums:
        whole = [episode for episode in played if episode.error is None]
        blank = [Advantages(np.zeros(len(episode.turns))) for episode in whole]
        turns = iter([turn for episode in whole for turn in episode.turns if is_learned_from(turn)])
        sums: list[Sums] = []
        for few in _chunks(build_sequences(whole, blank), self._micro_batch):
            passages = [lesson.passage for lesson in few]
            with torch.no_grad():
                scores = self._vlm.score(passages, self._temperature)
            sums.append(mismatch(scores, targets_of(few, self._vlm.device)))
            anchors: np.ndarray | None = None
            if self._settings.needs_reference:
                anchors = self._vlm.reference_logprobs(passages, self._temperature).float().cpu().numpy()
            at = 0
            for turn, value in zip(islice(turns, turns_in(few)), scores.values.tolist(), strict=True):
                length = len(turn.sample.ids)
                turn.value = value
                turn.reference = None if anchors is None else anchors[at : at + length]
                at += length
        if isinstance(self._recipe.algorithm, PPO):
            self._bootstrap_values([episode for episode in whole if episode.end is not None])
        return added(sums)

    def _bootstrap_values(self, truncated: Sequence[Trajectory]) -> None:
        """Values of the states in which episodes were cut short."""
        for few in _chunks(truncated, self._micro_batch):
            passages = []
            for episode in few:
                assert episode.end is not None
                end = len(episode.end.ids)
                passages.append(TokenSequence(episode.end, np.zeros(0, np.int64), (TurnSpan(end, end),)))
            with torch.no_grad():
                values = self._vlm.score(passages, self._temperature).values.tolist()
            for episode, value in zip(few, values, strict=True):
                episode.last_value = value

    def compute_advantages(self, played: Sequence[Trajectory]) -> list[Advantages | None]:
        """What the algorithm makes of each episode.

        Args:
            played: by all processes, judged, episodes of a group beside each other.
        """
        groups: list[Group] = [list(group) for _, group in groupby(played, key=lambda episode: episode.seed)]
        credits = compute_advantages(groups, self._recipe.algorithm, self._recipe.rollouts.reward)
        return [one for several in credits for one in several]

    def learn(
        self, played: Sequence[Trajectory], credits: Sequence[Advantages | None], update: int, progress: float
    ) -> Metrics:
        """Change the model by the episodes of all processes.

        Args:
            played: by all processes, judged.
            credits: of each episode.
            update: its number, from 0: the chance in which order things are learned.
            progress: how much of the run is over, 0 to 1, for the learning rate.

        Raises:
            RunFailed: a loss or gradient is not finite; the weights are those of the last good step.
        """
        learned = build_sequences(played, credits)
        rate = self._settings.learning_rate * _share_of_rate(self._settings.schedule, progress)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        sums: list[Sums] = []
        norms: list[float] = []
        for epoch in range(self._settings.epochs):
            batches = minibatches(learned, self._settings.minibatch, self._recipe.seed, update, epoch)
            for number, batch in enumerate(batches):
                place = f"update {update}, epoch {epoch + 1}, step {number + 1} of {len(batches)}"
                step_sums, norm = self._step(batch, place)
                sums.append(step_sums)
                norms.append(norm)
        total = added(self._engine.gather(added(sums)))
        return update_metrics(total) | {
            "update/gradient_norm": float(np.mean(norms)) if norms else None,
            "update/steps": float(len(norms)),
            "update/learning_rate": rate,
            "update/turns": float(turns_in(learned)),
        }

    def _step(self, batch: Sequence[TrainingSequence], place: str) -> tuple[Sums, float]:
        """One step of the optimiser; with smaller forward passes if memory runs out."""
        while True:
            sums: Sums = {}
            trouble: str | None = None
            try:
                sums = self._backward(batch)
            except NotFinite as error:
                trouble = f"{place}: {error}; the last checkpoint is good"
            except (torch.OutOfMemoryError, MemoryError) as error:
                trouble = OUT_OF_MEMORY
                if self._micro_batch == 1:
                    trouble = (
                        f"{place}: out of memory with a single turn in a pass; try policy.gradient_checkpointing=true, "
                        "policy.lora or a smaller model"
                    )
                if self._engine.lockstep:  # the others wait in the middle of a pass and cannot be told
                    raise RunFailed(
                        f"{place}: out of memory; lower update.micro_batch (it is {self._micro_batch})"
                    ) from error
            # What is wrong with one process all have to know: they go on together or end together.
            troubles = {one for one in self._engine.gather(trouble) if one is not None}
            if not troubles:
                break
            for one in sorted(troubles - {OUT_OF_MEMORY}):
                raise RunFailed(one)
            self.optimiser.zero_grad(set_to_none=True)
            self._take_less()
        norm = self._engine.step(self.optimiser, self._settings.max_grad_norm)
        if not math.isfinite(norm):
            raise RunFailed(
                f"{place}: the gradient is not finite; the last checkpoint is good; lower update.learning_rate"
            )
        return sums, norm

    def _take_less(self) -> None:
        """After memory ran out: make smaller forward passes from now on."""
        self._micro_batch = max(1, self._micro_batch // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._say(f"out of memory: going on with {self._micro_batch} turns in a pass, to the same effect")

    def _backward(self, batch: Sequence[TrainingSequence]) -> Sums:
        """Add up the gradients of this process's share of a step."""
        mine = micro_batches(share(batch, self._engine.rank, self._engine.world), self._micro_batch)
        spare = micro_batches(batch[:1], self._micro_batch)[0]
        sums: list[Sums] = []
        not_finite: NotFinite | None = None
        for few, counts in passes(self._engine, mine, spare):
            scores = self._vlm.score([lesson.passage for lesson in few], self._temperature)
            targets = targets_of(few, self._vlm.device)
            try:
                output = policy_loss(
                    scores, targets, self._reference(few), self._settings, self._recipe.algorithm, turns_in(batch)
                )
            except NotFinite as error:
                not_finite = not_finite or error
                if not self._engine.lockstep:
                    break
                # The others wait for this pass, and for a gradient of every weight.
                torch.autograd.backward(0.0 * (scores.logprobs.sum() + scores.values.sum()))
                continue
            torch.autograd.backward(output.loss if counts else 0.0 * output.loss)
            if counts:
                sums.append(output.metrics)
        if not_finite is not None:
            raise not_finite
        return added(sums)

    def _reference(self, few: Sequence[TrainingSequence]) -> torch.Tensor | None:
        if not self._settings.needs_reference:
            return None
        known = [turn.reference for lesson in few for turn in lesson.turns]
        assert all(one is not None for one in known), "episodes are judged before they are learned from"
        return torch.from_numpy(np.concatenate(known)).to(self._vlm.device)  # type: ignore[arg-type]


def _chunks(items: Sequence[Any], size: int) -> list[Any]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _share_of_rate(schedule: str, progress: float) -> float:
    """How much of the learning rate is left."""
    progress = min(max(progress, 0.0), 1.0)
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule == "cosine" else 1.0
