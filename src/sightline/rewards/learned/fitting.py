"""Fit the reward networks to all labels that there are, and stop when held-out labels say so."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RunFailed, blamed
from sightline.rewards.learned.reward import EnsembleReward
from sightline.runs.archive import Archive


class Examples:
    """Training examples: labelled segments."""

    def __init__(self) -> None:
        self.features: list[tuple[np.ndarray, ...]] = []
        self.values: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    @property
    def places(self) -> int:
        """Segments in a question."""
        return len(self.features[0]) if self.features else 1

    def add(self, features: tuple[np.ndarray, ...], value: float) -> None:
        """Add a label: the features [L, …] of the one or two segments that it is about, and the answer's value."""
        self.features.append(features)
        self.values.append(value)

    def segments(self, place: int, indices: np.ndarray) -> np.ndarray:
        """[B, L, …]: the first (0) or second (1) segments of some labels."""
        return np.stack([self.features[i][place] for i in indices])

    def steps(self) -> np.ndarray:
        """[N, …]: the features of every step of every labelled segment."""
        return np.concatenate(list(itertools.chain.from_iterable(self.features)))

    def archive_to(self, archive: Archive) -> None:
        """Append the labels that are not archived yet."""
        # One array for each place of a question: all segments have one shape.
        columns = {}
        for place, segments in enumerate(zip(*self.features[archive.end :], strict=True)):
            columns[f"segment_{place}"] = np.stack(segments)
        columns["values"] = np.array(self.values[archive.end :], np.float64)
        archive.append(archive.end, columns)

    def restore(self, archive: Archive) -> None:
        """Take over what was archived.

        Raises:
            KeyError: it holds no labels.
            Damaged: a file of the archive is.
        """
        self.features = []
        self.values = []
        for _, rows in archive.read():
            values = rows.pop("values").tolist()
            places = [rows[name] for name in sorted(rows)]  # segment_0, segment_1
            self.features += zip(*places, strict=True)
            self.values += values


class LabelLoss(Protocol):
    """Interface of a kind of feedback to fitting; see `sightline.preferences.feedback.base.FeedbackConfig`."""

    @property
    def orders(self) -> bool:
        """True if a label orders two segments (a preference)."""
        ...

    def batches(
        self, values: np.ndarray, indices: np.ndarray, size: int, rng: np.random.Generator
    ) -> list[np.ndarray]: ...

    def strata(self, values: np.ndarray, indices: np.ndarray) -> list[np.ndarray]: ...

    def label_loss(self, returns: Sequence[Tensor], values: Tensor, segment: int) -> Tensor: ...


@dataclass(frozen=True)
class Fit:
    """Result of fitting: the agreement of the networks with the labels.

    Attributes:
        labels: how many there were.
        epochs: passes until the best held-out loss.
        loss, held_out_loss: means over members, of the labels trained on and held out; NaN if none were held out.
        accuracy, held_out_accuracy: of decided pairs, the share that the ensemble's mean orders as the label; NaN for
            ratings and scores.
    """

    labels: int
    epochs: int
    loss: float
    held_out_loss: float
    accuracy: float
    held_out_accuracy: float


def fit(reward: EnsembleReward, examples: Examples, feedback: LabelLoss, segment: int, seed: int) -> Fit:
    """Fit a reward's networks to labels, in place.

    Whether a label is held out depends on its number alone, so it is never trained on in any round. Training stops when
    the held-out loss has not fallen for `patience` epochs, and the best weights come back.

    Args:
        feedback: which loss the labels call for.
        segment: steps in a segment.
        seed: of the order of the minibatches.

    Raises:
        RunFailed: the loss is not a finite number.
    """
    config = reward.fitting
    labels = Labels(reward, examples, feedback, segment)
    is_held_out = held_out(len(examples), config.held_out)
    train = np.flatnonzero(~is_held_out)
    test = np.flatnonzero(is_held_out)

    # From the first weights again, unless the recipe says otherwise: networks that were fitted to few labels learn
    # less from many than fresh ones.
    if config.reset_weights:
        reward.reset_weights()
    ensemble = reward.ensemble
    optimiser = torch.optim.AdamW(ensemble.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    rng = np.random.default_rng(seed)

    best_loss = np.inf
    best_weights = copy.deepcopy(ensemble.state_dict())
    best_epoch = 0
    for epoch in range(1, config.epochs + 1):
        ensemble.train()
        for batch in feedback.batches(labels.values, train, config.batch_size, rng):
            # A sum over members: no weight is shared, so each gets its own gradient.
            loss = labels.loss(batch).sum()
            if not torch.isfinite(loss):
                raise RunFailed(f"the reward model's loss is {loss.item()}; lower reward.fitting.learning_rate")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        ensemble.eval()
        # Without held-out labels nothing says when to stop, and the last weights are taken.
        if len(test) == 0:
            best_epoch = epoch
            continue
        held_out_loss = labels.mean_loss(test)
        if held_out_loss < best_loss:
            best_loss = held_out_loss
            best_weights = copy.deepcopy(ensemble.state_dict())
            best_epoch = epoch
        elif epoch - best_epoch >= config.patience:
            break
    if len(test):
        ensemble.load_state_dict(best_weights)
    return Fit(
        labels=len(examples),
        epochs=best_epoch,
        loss=labels.mean_loss(train),
        held_out_loss=labels.mean_loss(test),
        accuracy=labels.accuracy(train),
        held_out_accuracy=labels.accuracy(test),
    )


def held_out(count: int, share: float) -> np.ndarray:
    """bool[count], the labels held out; growing `count` never changes what was decided before. The first is never."""
    # The n-th draw of a fixed seed decides on the n-th label, however many there are.
    draws = np.random.default_rng(0).random(count)
    if count:
        draws[0] = 1.0  # the only label of a first round is to be learned from
    is_held_out: np.ndarray = draws < share
    return is_held_out


def stratified_batches(levels: np.ndarray, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Minibatches for one pass over rated segments, in which all levels that occur are equally frequent.

    Ratings are seldom balanced, least of all early in training, when hardly anything is good (ERL-VLM, Luu et al.,
    ICML 2025). So a rare level is repeated, and of a frequent one each pass sees another part.

    Args:
        levels: int[n], each segment's level (round what is between two).
        batch_size: segments in a minibatch.

    Yields:
        ceil(n / batch_size) arrays of int64[min(batch_size, n)], indices into `levels`. Where the levels do not divide
        a minibatch, those with one segment more take turns.
    """
    size = min(batch_size, len(levels))
    strata = [_endless(np.flatnonzero(levels == level), rng) for level in rng.permutation(np.unique(levels))]
    turn = 0
    for _ in range(math.ceil(len(levels) / batch_size)):
        # The levels take turns, and go on in the next batch where this one stopped.
        batch = []
        for _ in range(size):
            batch.append(next(strata[turn % len(strata)]))
            turn += 1
        yield rng.permutation(np.array(batch, np.int64))


def _endless(indices: np.ndarray, rng: np.random.Generator) -> Iterator[int]:
    """All indices in random order, then all again in another."""
    while True:
        yield from rng.permutation(indices)


class Labels:
    """Loss and accuracy of the reward networks on labelled segments."""

    def __init__(self, reward: EnsembleReward, examples: Examples, feedback: LabelLoss, segment: int) -> None:
        self.values = np.asarray(examples.values)
        self._reward = reward
        self._examples = examples
        self._feedback = feedback
        self._segment = segment

    def loss(self, batch: np.ndarray) -> Tensor:
        """float[M]: each network's mean loss over some labels."""
        values = torch.tensor(self.values[batch], dtype=torch.float32, device=self._reward.device)
        # The segments of all places of a question go through the networks together: of pairs, all the first ones, and
        # behind them all the second ones, [2 * B, L, …] -> [M, 2 * B].
        places = range(self._examples.places)
        segments = np.concatenate([self._examples.segments(place, batch) for place in places])
        returns = self._returns(segments)
        by_place = torch.split(returns, len(batch), dim=1)
        with blamed(self._feedback, "label_loss"):
            return self._feedback.label_loss(by_place, values, self._segment)

    def mean_loss(self, indices: np.ndarray) -> float:
        """Mean loss; NaN without labels. Of ratings it is the mean over levels, which are equally frequent in training
        too: if rare levels counted less here, fitting would stop as soon as it began to see them."""
        if len(indices) == 0:
            return float("nan")
        means = []
        with torch.inference_mode():
            for stratum in self._feedback.strata(self.values, indices):
                # A sum over labels, since the last batch may be smaller than the others.
                total = 0.0
                for batch in _batches(stratum):
                    total += self.loss(batch).mean().item() * len(batch)
                means.append(float(total / len(stratum)))
        return float(np.mean(means))

    def accuracy(self, indices: np.ndarray) -> float:
        """Share of decided pairs that the ensemble's mean orders as the label; NaN without any."""
        if not self._feedback.orders or len(indices) == 0:
            return float("nan")
        decided = indices[self.values[indices] != 0.5]
        if len(decided) == 0:
            return float("nan")
        correct = 0
        with torch.inference_mode():
            for batch in _batches(decided):
                # The mean over members is the reward that policies learn from.
                first = self._returns(self._examples.segments(0, batch)).mean(0).cpu().numpy()
                second = self._returns(self._examples.segments(1, batch)).mean(0).cpu().numpy()
                agrees = (second > first) == (self.values[batch] > 0.5)
                correct += int(agrees.sum())
        return correct / len(decided)

    def _returns(self, segments: np.ndarray) -> Tensor:
        """Features [B, L, …] -> float[M, B]: each network's rewards, summed over the steps of a segment."""
        # All steps of all segments in one pass, [B * L, …].
        count, length = segments.shape[:2]
        rewards = self._reward.forward(segments.reshape(count * length, *segments.shape[2:]))
        return rewards.reshape(-1, count, length).sum(dim=2)


def _batches(indices: np.ndarray) -> list[np.ndarray]:
    return [indices[start : start + 256] for start in range(0, len(indices), 256)]
