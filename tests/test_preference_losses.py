"""Losses against arithmetic by hand, and what they make of wrong labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.rewards.learned.losses import (
    PairLoss,
    preference_loss,
    rating_loss,
    rating_probabilities,
    score_loss,
)

KINDS: tuple[PairLoss, ...] = ("cross_entropy", "noise_aware", "symmetric")


def pair_loss(difference: float, label: float, kind: PairLoss, noise: float = 0.2) -> float:
    first, second = torch.tensor([[1.0]]), torch.tensor([[1.0 + difference]])
    return float(preference_loss(first, second, torch.tensor([label]), kind, noise))


def test_pair_losses_by_hand() -> None:
    wins = math.log(3)  # P(second) = 3/4
    assert pair_loss(wins, 1.0, "cross_entropy") == pytest.approx(-math.log(0.75), rel=1e-5)
    assert pair_loss(wins, 0.0, "cross_entropy") == pytest.approx(-math.log(0.25), rel=1e-5)
    assert pair_loss(wins, 0.5, "cross_entropy") == pytest.approx(-math.log(0.75 * 0.25) / 2, rel=1e-5)
    assert pair_loss(wins, 1.0, "noise_aware") == pytest.approx(-math.log(0.65), rel=1e-5)  # 0.2 + 0.6 * 3/4
    assert pair_loss(wins, 0.0, "noise_aware", 0.1) == pytest.approx(-math.log(0.3), rel=1e-5)
    assert pair_loss(wins, 1.0, "symmetric") == pytest.approx(-math.log(0.75) + 4 * 0.25, rel=1e-5)
    assert pair_loss(wins, 0.0, "symmetric") == pytest.approx(-math.log(0.25) + 4 * 0.75, rel=1e-5)
    assert pair_loss(wins, 0.3, "noise_aware", 0.0) == pytest.approx(pair_loss(wins, 0.3, "cross_entropy"), rel=1e-5)


def test_losses_are_means_over_the_batch_for_each_member() -> None:
    first, second = torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 2.0], [0.0, -1.0, 5.0]])
    labels = torch.tensor([0.0, 1.0, 0.5])
    for kind in KINDS:
        losses = preference_loss(first, second, labels, kind)
        alone = [[pair_loss(float(d), float(y), kind) for d, y in zip(row, labels, strict=True)] for row in second]
        np.testing.assert_allclose(losses, np.mean(alone, axis=1), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_are_best_at_equal_returns(kind: PairLoss) -> None:
    """Defect P6 of the reference: soft labels, whatever the returns are predicted from."""
    for difference in (-3.0, -0.1, 0.0, 0.1, 3.0):
        first = torch.full((2, 4), 7.0, requires_grad=True)
        second = torch.full((2, 4), 7.0 + difference, requires_grad=True)
        preference_loss(first, second, torch.full((4,), 0.5), kind).sum().backward()
        assert first.grad is not None and second.grad is not None
        assert torch.allclose(first.grad, -second.grad)
        if difference == 0:
            assert torch.all(second.grad == 0)
        else:
            assert torch.all(torch.sign(second.grad) == np.sign(difference))
            assert pair_loss(difference, 0.5, kind) > pair_loss(0.0, 0.5, kind)


@given(kind=st.sampled_from(KINDS), difference=st.floats(-1e4, 1e4), label=st.sampled_from([0.0, 0.5, 1.0]))
def test_losses_stay_finite_and_know_no_first(kind: PairLoss, difference: float, label: float) -> None:
    loss = pair_loss(difference, label, kind)
    assert 0 <= loss < 1e5
    assert loss == pytest.approx(pair_loss(-difference, 1 - label, kind), rel=1e-3, abs=1e-3)


def test_a_wrong_label_costs_the_noise_aware_loss_only_so_much() -> None:
    assert pair_loss(50.0, 0.0, "cross_entropy") == pytest.approx(50.0)
    assert pair_loss(50.0, 0.0, "noise_aware") == pytest.approx(-math.log(0.2), rel=1e-5)


def test_a_known_ranking_is_recovered_from_noisy_labels_and_better_by_the_noise_aware_loss() -> None:
    """Every fifth label is wrong. A linear reward of 16 features: its correlation with the truth where held out."""

    def correlation(kind: PairLoss, seed: int) -> float:
        rng = np.random.default_rng(seed)
        truth = rng.standard_normal(16)
        features = rng.standard_normal((2, 300, 16))
        labels = (features[1] @ truth > features[0] @ truth).astype(np.float32)
        wrong = rng.permutation(300)[:60]
        labels[wrong] = 1 - labels[wrong]
        weights = torch.zeros(16, requires_grad=True)
        first, second = torch.from_numpy(features.astype(np.float32))
        optimiser = torch.optim.Adam([weights], lr=0.05, weight_decay=1e-3)
        for _ in range(300):
            optimiser.zero_grad()
            loss = preference_loss((first @ weights)[None], (second @ weights)[None], torch.from_numpy(labels), kind)
            loss.sum().backward()
            optimiser.step()
        held_out = rng.standard_normal((500, 16))
        return float(np.corrcoef(held_out @ truth, held_out @ weights.detach().numpy())[0, 1])

    plain, aware = (np.array([correlation(kind, seed) for seed in range(4)]) for kind in KINDS[:2])
    assert plain.min() > 0.85
    assert np.all(aware > plain)
    assert aware.mean() > plain.mean() + 0.02


@pytest.mark.parametrize("levels", [2, 3, 4, 5])
def test_the_most_probable_level_is_the_one_a_value_lies_in(levels: int) -> None:
    values = torch.linspace(0.001, 0.999, 96)
    probabilities = rating_probabilities(values, levels)
    assert torch.allclose(probabilities.sum(dim=-1), torch.ones(96))
    assert torch.equal(probabilities.argmax(dim=-1), (values * levels).long())
    at_a_bound = rating_probabilities(torch.tensor(1 / levels), levels)
    assert at_a_bound[0] == pytest.approx(float(at_a_bound[1]), abs=1e-6)


def test_ratings_by_hand() -> None:
    # three levels, k = 9, in the middle of the scale: -9 (1/2)(1/6) = -3/4 outside, 9 (1/6)^2 = 1/4 inside
    outside, inside = math.exp(-0.75), math.exp(0.25)
    middle = inside / (inside + 2 * outside)
    values = torch.tensor([[0.5, 0.5]])
    assert rating_probabilities(values, 3)[0, 0].tolist() == pytest.approx([(1 - middle) / 2, middle, (1 - middle) / 2])
    assert rating_loss(values[:, :1], torch.tensor([1.0]), 3).tolist() == pytest.approx([1 - middle])
    assert rating_loss(values, torch.tensor([1.0, 2.0]), 3).tolist() == pytest.approx(
        [(1 - middle + (1 + middle) / 2) / 2]
    )
    between = rating_loss(values[:, :1], torch.tensor([0.5]), 3)
    low, high = (1 - middle) / 2, middle
    assert between.tolist() == pytest.approx([(abs(low - 0.5) + abs(high - 0.5) + low) / 2])


@pytest.mark.parametrize("levels", [2, 3, 4, 5])
def test_every_rating_pulls_from_anywhere_towards_its_level(levels: int) -> None:
    for level in range(levels):
        for start in (0.02, 0.5, 0.98):
            values = torch.full((2, 1), start, requires_grad=True)
            loss = rating_loss(values, torch.tensor([float(level)]), levels)
            assert torch.all((loss >= 0) & (loss <= 1))
            loss.sum().backward()
            centre = (level + 0.5) / levels
            assert values.grad is not None
            if level in (0, levels - 1):
                assert torch.all(torch.sign(-values.grad) == (1.0 if level else -1.0))
            elif abs(centre - start) > 0.5 / levels:
                assert torch.all(torch.sign(-values.grad) == np.sign(centre - start))
                assert torch.all(values.grad.abs() > 1e-4)


def test_ratings_with_mistakes_put_values_into_their_levels() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 400)
    given_ratings = truth.copy()
    wrong = rng.permutation(400)[:80]
    given_ratings[wrong] = (truth[wrong] + rng.integers(1, 4, 80)) % 4
    table = torch.zeros(4, requires_grad=True)  # one free value for each true level
    optimiser = torch.optim.Adam([table], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        values = torch.sigmoid(table)[torch.from_numpy(truth)][None]
        rating_loss(values, torch.from_numpy(given_ratings), 4).sum().backward()
        optimiser.step()
    levels = (torch.sigmoid(table) * 4).long().tolist()
    assert levels == [0, 1, 2, 3]


def test_scores_by_hand() -> None:
    values, scores = torch.tensor([[0.2, 0.4], [0.0, 1.0]]), torch.tensor([0.0, 1.0])
    assert score_loss(values, scores).tolist() == pytest.approx([(0.04 + 0.36) / 2, 0.0])
