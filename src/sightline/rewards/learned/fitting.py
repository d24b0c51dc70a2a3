"""Fit the reward networks to all labels that there are, and stop when held-out labels say so."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RunFailed
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

    def segments(self, place: int, chosen: np.ndarray) -> np.ndarray:
        """[B, L, …]: the first (0) or second (1) segments of chosen labels."""
        return np.stack([self.features[i][place] for i in chosen])

    def steps(self) -> np.ndarray:
        """[N, …]: the features of every step of every labelled segment."""
        return np.concatenate([segment for segments in self.features for segment in segments])

    def archive_to(self, archive: Archive) -> None:
        """Append the labels that are not archived yet."""
        new = slice(archive.end, None)
        columns = {f"segment_{i}": np.stack(column) for i, column in enumerate(zip(*self.features[new], strict=True))}
        archive.append(archive.end, columns | {"values": np.array(self.values[new], np.float64)})

    def restore(self, archive: Archive) -> None:
        """Take over what was archived.

        Raises:
            KeyError: it holds no labels.
            Damaged: a file of the archive is.
        """
        self.features, self.values = [], []
        for _, rows in archive.read():
            values = rows.pop("values").tolist()
            self.features += zip(*(rows[name] for name in sorted(rows)), strict=True)
            self.values += values


class LabelLoss(Protocol):
    """Interface of a kind of feedback to fitting; see `sightline.preferences.feedback.base.FeedbackConfig`."""

    @property
    def orders(self) -> bool:
        """True if a label orders two segments (a preference)."""
        ...

    def batches(
        self, values: np.ndarray, chosen: np.ndarray, size: int, rng: np.random.Generator
    ) -> list[np.ndarray]: ...

    def strata(self, values: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]: ...

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
    config, labels = reward.fitting, Labels(reward, examples, feedback, segment)
    apart = held_out(len(examples), config.held_out)
    train, test = np.flatnonzero(~apart), np.flatnonzero(apart)
    if config.reset_weights:
        reward.reset_weights()
    ensemble = reward.ensemble
    optimiser = torch.optim.AdamW(ensemble.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    rng = np.random.default_rng(seed)
    best, best_weights, best_epoch = np.inf, copy.deepcopy(ensemble.state_dict()), 0
    for epoch in range(1, config.epochs + 1):
        ensemble.train()
        for batch in feedback.batches(labels.values, train, config.batch_size, rng):
            loss = labels.loss(batch).sum()
            if not torch.isfinite(loss):
                raise RunFailed(f"the reward model's loss is {loss.item()}; lower reward.fitting.learning_rate")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        ensemble.eval()
        if len(test) == 0:
            best_epoch = epoch
            continue
        score = labels.mean_loss(test)
        if score < best:
            best, best_weights, best_epoch = score, copy.deepcopy(ensemble.state_dict()), epoch
        elif epoch - best_epoch >= config.patience:
            break
    if len(test):
        ensemble.load_state_dict(best_weights)
    return Fit(
        len(examples),
        best_epoch,
        labels.mean_loss(train),
        labels.mean_loss(test),
        labels.accuracy(train),
        labels.accuracy(test),
    )


def held_out(count: int, share: float) -> np.ndarray:
    """bool[count], the labels held out; growing `count` never changes what was decided before. The first is never."""
    drawn = np.random.default_rng(0).random(count)
    if count:
        drawn[0] = 1.0
    chosen: np.ndarray = drawn < share
    return chosen


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
    for _ in range(-(-len(levels) // batch_size)):
        batch = np.array([next(strata[(turn + place) % len(strata)]) for place in range(size)], np.int64)
        turn += size
        yield rng.permutation(batch)


def _endless(indices: np.ndarray, rng: np.random.Generator) -> Iterator[int]:
    """All indices in random order, then all again in another."""
    while True:
        yield from rng.permutation(indices)


class Labels:
    """Loss and accuracy of the reward networks on labelled segments."""

    def __init__(self, reward: EnsembleReward, examples: Examples, feedback: LabelLoss, segment: int) -> None:
        self.values = np.asarray(examples.values)
        self._reward, self._examples, self._feedback, self._segment = reward, examples, feedback, segment

    def loss(self, batch: np.ndarray) -> Tensor:
        """float[M]: each network's mean loss over some labels."""
        values = torch.tensor(self.values[batch], dtype=torch.float32, device=self._reward.device)
        # The segments of all places of a question go through the networks together.
        count, places = len(batch), self._examples.places
        segments = np.concatenate([self._examples.segments(place, batch) for place in range(places)])
        returns = self._returns(segments)
        parts = [returns[:, place * count : (place + 1) * count] for place in range(places)]
        return self._feedback.label_loss(parts, values, self._segment)

    def mean_loss(self, chosen: np.ndarray) -> float:
        """Mean loss; NaN without labels. Of ratings it is the mean over levels, which are equally frequent in training
        too: if rare levels counted less here, fitting would stop as soon as it began to see them."""
        if len(chosen) == 0:
            return float("nan")
        means = []
        with torch.inference_mode():
            for stratum in self._feedback.strata(self.values, chosen):
                parts = [(self.loss(part), len(part)) for part in _parts(stratum)]
                means.append(float(sum(loss.mean().item() * count for loss, count in parts) / len(stratum)))
        return float(np.mean(means))

    def accuracy(self, chosen: np.ndarray) -> float:
        """Share of decided pairs that the ensemble's mean orders as the label; NaN without any."""
        chosen = chosen[self.values[chosen] != 0.5] if len(chosen) else chosen
        if not self._feedback.orders or len(chosen) == 0:
            return float("nan")
        right = 0
        with torch.inference_mode():
            for part in _parts(chosen):
                first, second = (
                    self._returns(self._examples.segments(place, part)).mean(0).cpu().numpy() for place in (0, 1)
                )
                right += int(((second > first) == (self.values[part] > 0.5)).sum())
        return right / len(chosen)

    def _returns(self, segments: np.ndarray) -> Tensor:
        """[B, L, …] features -> float[M, B] sums of what each network says of the steps."""
        count, length = segments.shape[:2]
        steps = self._reward.forward(segments.reshape(count * length, *segments.shape[2:]))
        return steps.reshape(-1, count, length).sum(dim=2)


def _parts(chosen: np.ndarray) -> list[np.ndarray]:
    return [chosen[i : i + 256] for i in range(0, len(chosen), 256)]
