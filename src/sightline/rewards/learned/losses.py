"""Losses of reward models on preferences, ratings and scores.

Every loss is given per member of an ensemble; add them up before `backward`.

Pairs: with z the difference of the two predicted returns, a member says P(second) = sigmoid(z) (Bradley and Terry,
1952; Christiano et al., "Deep Reinforcement Learning from Human Preferences", NeurIPS 2017). The label y is the
probability that the second is preferred: 0 first, 1 second, 0.5 equal. At y = 0.5 all three losses are least at z = 0.

- `cross_entropy`: H(y, P).
- `noise_aware`: H(y, (1 - 2e) P + e): if a share e of the labels is flipped, that is what labels look like. Forward
  correction, Patrini et al., "Making Deep Neural Networks Robust to Label Noise", CVPR 2017. A confident prediction
  loses at most -log(e) on a label that contradicts it.
- `symmetric`: H(y, P) + H(P, y), with log 0 taken as -4: Wang et al., "Symmetric Cross Entropy for Robust Learning with
  Noisy Labels", ICCV 2019 (both weights are 1 here).

Ratings: after Luu et al., "Enhancing Rating-Based Reinforcement Learning to Effectively Leverage Feedback from Large
Vision-Language Models" (ERL-VLM), ICML 2025, and White et al., "Rating-based Reinforcement Learning", AAAI 2024. The
scale from 0 to 1 is divided into one interval [a, b] per level, and a prediction x has the level with probability
proportional to exp(-k (x - a)(x - b)); the loss is the absolute error of these probabilities, which a wrong label can
move only so far (Ghosh, Kumar and Sastry, AAAI 2017). Unlike there the intervals are equal and fixed, and predictions
come from the network already between 0 and 1: no bounds and no normalisation that differ from batch to batch, so that
the same reward means the same at every moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

LOG_OF_ZERO = -4.0
"""Value of log 0 in `symmetric`; Wang et al. use the same."""

SHARPNESS = 1.0
"""k of the ratings' probabilities, in units of (number of levels)^2. Sharper, and the absolute error hardly pulls a
prediction that is two levels off."""

PairLoss = Literal["cross_entropy", "noise_aware", "symmetric"]


def preference_loss(
    returns_first: torch.Tensor,
    returns_second: torch.Tensor,
    labels: torch.Tensor,
    kind: PairLoss = "cross_entropy",
    noise: float = 0.2,
) -> torch.Tensor:
    """Preference loss of predicted returns.

    Args:
        returns_first, returns_second: float[M, B], each member's predicted return of the segments.
        labels: float[B] in [0, 1], probability that the second is preferred.
        kind: see above.
        noise: share of flipped labels that `noise_aware` assumes, in [0, 0.5).

    Returns:
        float[M], means over B.
    """
    import torch
    from torch.nn import functional

    difference = returns_second - returns_first
    targets = labels.to(difference.dtype).expand_as(difference)
    cross_entropy = functional.binary_cross_entropy_with_logits(difference, targets, reduction="none")
    # Without noise the forward correction changes nothing, and cross-entropy of logits is the more exact.
    if kind == "cross_entropy" or (kind == "noise_aware" and noise == 0):
        return cross_entropy.mean(dim=1)
    prefers_second = torch.sigmoid(difference)
    if kind == "noise_aware":
        # The probability of the label, after a share of labels has been flipped.
        expected = noise + (1 - 2 * noise) * prefers_second
        return functional.binary_cross_entropy(expected, targets, reduction="none").mean(dim=1)
    # Reverse cross-entropy H(P, y): bounded, so that a wrong label can pull only so far.
    reverse = -(prefers_second * _log(targets) + (1 - prefers_second) * _log(1 - targets))
    return (cross_entropy + reverse).mean(dim=1)


def rating_probabilities(values: torch.Tensor, levels: int) -> torch.Tensor:
    """float[...] in [0, 1] -> float[..., levels]: with which probability each level is given; the most probable one
    is that whose interval contains the value."""
    import torch

    bounds = torch.linspace(0, 1, levels + 1, dtype=values.dtype, device=values.device)
    # The product of the distances to both ends of an interval is negative inside of it, and positive outside.
    x = values.unsqueeze(-1)
    logits = -SHARPNESS * levels**2 * (x - bounds[:-1]) * (x - bounds[1:])
    return torch.softmax(logits, dim=-1)


def rating_loss(values: torch.Tensor, ratings: torch.Tensor, levels: int) -> torch.Tensor:
    """Rating loss of predictions.

    Args:
        values: float[M, B] in [0, 1], each member's prediction for the segments: the mean over a segment's steps of a
            reward that is itself between 0 and 1.
        ratings: float[B] in [0, levels - 1]; between two levels, both are meant in proportion.
        levels: how many there are.

    Returns:
        float[M], means over B of half the sum of absolute errors (of a whole level: 1 - its probability).
    """
    import torch

    # float[B, levels]: 1 at the level of the rating; shared out between the two levels next to it if it is in between.
    places = torch.arange(levels, dtype=values.dtype, device=values.device)
    distances = (ratings.to(values.dtype).unsqueeze(-1) - places).abs()
    targets = (1 - distances).clamp(min=0)
    errors = (rating_probabilities(values, levels) - targets).abs()
    return 0.5 * errors.sum(dim=-1).mean(dim=1)


def score_loss(values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Mean squared error of predictions float[M, B] (as for ratings) and scores float[B] in [0, 1]: float[M]."""
    return (values - scores.to(values.dtype)).square().mean(dim=1)


def _log(probabilities: torch.Tensor) -> torch.Tensor:
    return probabilities.log().clamp(min=LOG_OF_ZERO)
