"""Fit the reward networks to all labels that there are, and stop when held-out labels say so."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sightline.config import FeedbackConfig, PairsConfig, RatingsConfig
from sightline.errors import RunFailed
from sightline.rewards.learned.losses import preference_loss, rating_loss, score_loss
from sightline.rewards.learned.reward import EnsembleReward
from sightline.runs.archive import Archive


class Examples:
    """Labelled segments: what networks learn from."""

    def __init__(self) -> None:
        self.features: list[tuple[np.ndarray, ...]] = []
        self.values: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, features: tuple[np.ndarray, ...], value: float) -> None:
        """A label: the features [L, …] of the one or two segments that it is about, and the answer's value."""
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


@dataclass(frozen=True)
class Fit:
    """How well the networks agree with the labels after fitting.

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


def fit(reward: EnsembleReward, examples: Examples, seed: int) -> Fit:
    """Fit a reward's networks to labels, in place.

    Whether a label is held out depends on its number alone, so it is never trained on in any round. Training stops when
    the held-out loss has not fallen for `patience` epochs, and the best weights come back.

    Args:
        seed: of the order of the minibatches.

    Raises:
        RunFailed: the loss is not a finite number.
    """
    config, feedback = reward.config.fitting, reward.config.feedback
    held_out = _held_out(len(examples), config.held_out)
    train, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if config.fresh:
        reward.reset_weights()
    ensemble = reward.ensemble
    optimiser = torch.optim.AdamW(ensemble.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    rng = np.random.default_rng(seed)
    best, best_weights, best_epoch = np.inf, copy.deepcopy(ensemble.state_dict()), 0
    for epoch in range(1, config.epochs + 1):
        ensemble.train()
        for batch in _batches(examples, train, feedback, config.batch_size, rng):
            loss = _loss(reward, examples, batch).sum()
            if not torch.isfinite(loss):
                raise RunFailed(f"the reward model's loss is {loss.item()}; lower reward.fitting.learning_rate")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        ensemble.eval()
        if len(test) == 0:
            best_epoch = epoch
            continue
        score = _evaluate(reward, examples, test)
        if score < best:
            best, best_weights, best_epoch = score, copy.deepcopy(ensemble.state_dict()), epoch
        elif epoch - best_epoch >= config.patience:
            break
    if len(test):
        ensemble.load_state_dict(best_weights)
    return Fit(
        len(examples),
        best_epoch,
        _evaluate(reward, examples, train),
        _evaluate(reward, examples, test),
        _accuracy(reward, examples, train),
        _accuracy(reward, examples, test),
    )


def _held_out(count: int, share: float) -> np.ndarray:
    """bool[count]; growing `count` never changes what was decided before. The first label is trained on."""
    drawn = np.random.default_rng(0).random(count)
    if count:
        drawn[0] = 1.0
    chosen: np.ndarray = drawn < share
    return chosen


def _batches(
    examples: Examples, chosen: np.ndarray, feedback: FeedbackConfig, size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    if isinstance(feedback, RatingsConfig):
        levels = np.asarray(examples.values)[chosen].round().astype(int)
        return [chosen[batch] for batch in stratified_batches(levels, size, rng)]
    order = rng.permutation(chosen)
    return [order[i : i + size] for i in range(0, len(order), size)]


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


def _loss(reward: EnsembleReward, examples: Examples, batch: np.ndarray) -> Tensor:
    """float[M]: means over the labels."""
    feedback = reward.config.feedback
    values = torch.tensor(np.asarray(examples.values)[batch], dtype=torch.float32, device=reward.device)
    if isinstance(feedback, PairsConfig):
        count = len(batch)
        both = np.concatenate([examples.segments(0, batch), examples.segments(1, batch)])
        returns = _returns(reward, both)
        return preference_loss(returns[:, :count], returns[:, count:], values, feedback.loss, feedback.noise)
    means = _returns(reward, examples.segments(0, batch)) / reward.config.segment
    if isinstance(feedback, RatingsConfig):
        return rating_loss(means, values, feedback.levels)
    return score_loss(means, values)


def _returns(reward: EnsembleReward, segments: np.ndarray) -> Tensor:
    """[B, L, …] features -> float[M, B] sums of what each member says of the steps."""
    count, length = segments.shape[:2]
    steps = reward.forward(segments.reshape(count * length, *segments.shape[2:]))
    return steps.reshape(-1, count, length).sum(dim=2)


def _evaluate(reward: EnsembleReward, examples: Examples, chosen: np.ndarray) -> float:
    """Mean loss; of ratings the mean over levels, which are equally frequent in training too. If rare levels counted
    less here, fitting would stop as soon as it began to see them."""
    if len(chosen) == 0:
        return float("nan")
    strata = [chosen]
    if isinstance(reward.config.feedback, RatingsConfig):
        levels = np.asarray(examples.values)[chosen].round()
        strata = [chosen[levels == level] for level in np.unique(levels)]
    with torch.inference_mode():
        return float(np.mean([_mean_loss(reward, examples, stratum) for stratum in strata]))


def _mean_loss(reward: EnsembleReward, examples: Examples, chosen: np.ndarray) -> float:
    parts = [(_loss(reward, examples, part), len(part)) for part in _parts(chosen)]
    return float(sum(loss.mean().item() * count for loss, count in parts) / len(chosen))


def _accuracy(reward: EnsembleReward, examples: Examples, chosen: np.ndarray) -> float:
    chosen = np.array([i for i in chosen if examples.values[i] != 0.5], np.int64)
    if not isinstance(reward.config.feedback, PairsConfig) or len(chosen) == 0:
        return float("nan")
    right = 0
    with torch.inference_mode():
        for part in _parts(chosen):
            first, second = (_returns(reward, examples.segments(i, part)).mean(0).cpu().numpy() for i in (0, 1))
            right += int(((second > first) == (np.asarray(examples.values)[part] > 0.5)).sum())
    return right / len(chosen)


def _parts(chosen: np.ndarray) -> list[np.ndarray]:
    return [chosen[i : i + 256] for i in range(0, len(chosen), 256)]
