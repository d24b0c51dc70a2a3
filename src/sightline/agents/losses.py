"""What an agent's update minimises, and what is measured on the way.

With pi the model that learns, old the one that played, and w a token's weight (1 in the action, `thought_weight` in all
the rest; where no action was read all is the rest):

- Policy, `ratio="turn"`: r = exp(sum over the turn of w (log pi - log old)), clipped as in PPO (Schulman et al. 2017,
  arXiv 1707.06347, equation 7). That is log pi(reply) = lambda * log pi(thoughts) + log pi(action) of RL4VLM (Zhai et
  al. 2024, arXiv 2405.10292, section 4).
- Policy, `ratio="token"`: every token has a ratio of its own, clipped by itself, with the advantage of its turn; the
  value stays one for each turn (VL-DAC, Bredis et al. 2025, arXiv 2508.04280). Tokens are added up with their weights,
  not averaged: before the first step both kinds have the same gradient, and a mean over the reply would make long wrong
  replies cheap (Liu et al. 2025, arXiv 2503.20783).
- Distance to the model before RL: d^2 / 2 with d = log reference - log pi, for each sampled token (the estimator k2 of
  Schulman, "Approximating KL Divergence", 2020), weighted by `kl_thoughts` or `kl_actions` and added up. Its expected
  gradient is that of the divergence itself, and it grows with d, where that of k3 (exp(d) - d - 1) explodes: single
  tokens once weighed 40 000 nats.
- Entropy among the legal actions, to be kept high. Among all tokens it would spoil the format.
- Value: 0.5 (V - R)^2; with `value_clip` the larger of this and the same for V moved at most so far from the old value.

Turns that are not credited (a random move was played in place of an unreadable one) have no policy loss: the reply did
not decide what happened. Their value is learned like any other's, and so is the distance to the model before RL: what
became unreadable is led back to what once was readable.

All is added up over turns and divided by a number of turns given from outside, that of the whole optimiser step. So any
division into forward passes and processes gives the same gradient, once all are added (not averaged).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.config.agents import PPO, Algorithm, Update
from sightline.errors import RunFailed
from sightline.models.vlm.types import TokenStats

if TYPE_CHECKING:
    import torch

Sums = dict[str, float]
"""Measurements that can be added over forward passes and processes, see `metrics.added`."""

LARGEST_LOG = 20.0
"""Logarithms of ratios are cut off here: exp of more says nothing, and of 89 nothing but infinity in float32. Beyond,
the gradient is zero."""


@dataclass(frozen=True)
class Targets:
    """What scores are compared with; T tokens and M turns in the order of `TokenStats`.

    Attributes:
        old_logprobs: float32[T], as sampled.
        action: bool[T], whether the token is part of the action.
        turn_of: int64[T], which turn each token belongs to.
        advantages: float32[M].
        returns: float32[M], what values should have been; None for algorithms without values.
        old_values: float32[M], what they were.
        credited: bool[M], whether the reply decided what was played.
        choosing: bool[M], whether there was a choice among legal actions of which `TokenStats.choice_entropy` tells.
    """

    old_logprobs: torch.Tensor
    action: torch.Tensor
    turn_of: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor | None
    old_values: torch.Tensor
    credited: torch.Tensor
    choosing: torch.Tensor

    def per_turn(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32[T] -> float32[M]: sums over the tokens of each turn."""
        import torch

        return torch.zeros_like(self.advantages).index_add(0, self.turn_of, tokens)


@dataclass(frozen=True)
class LossOutput:
    """The loss of a forward pass.

    Attributes:
        loss: float32 scalar with gradient.
        metrics: see `metrics.update_metrics` for what they say.
    """

    loss: torch.Tensor
    metrics: Sums


class NotFinite(RunFailed):
    """A loss is NaN or infinite.

    Attributes:
        turns: indices of the turns whose loss it is.
    """

    def __init__(self, turns: list[int], of: int) -> None:
        self.turns = turns
        named = ", ".join(map(str, turns[:8])) + (", …" if len(turns) > 8 else "")
        super().__init__(
            f"the loss of {len(turns)} of {of} turns is not a finite number (turns {named} of a forward pass); "
            "lower update.learning_rate, or try policy.dtype=float32"
        )


def policy_loss(
    scores: TokenStats,
    targets: Targets,
    reference_logprobs: torch.Tensor | None,
    settings: Update,
    algorithm: Algorithm,
    total_turns: int,
) -> LossOutput:
    """The loss of the turns of one forward pass, in float32 whatever the scores are.

    Args:
        scores: of the model that learns.
        reference_logprobs: float32[T] of the model before RL; None if it was not asked.
        total_turns: of the whole optimiser step, over all forward passes and processes.

    Raises:
        NotFinite: with the turns by name; nothing should be learned from this pass.
        ValueError: settings ask for a distance to the model before RL and it was not asked.
    """
    import torch

    if reference_logprobs is None and settings.needs_reference:
        raise ValueError("kl_thoughts and kl_actions need the log-probabilities of the model before RL")
    logprobs = scores.logprobs.float()
    sums: dict[str, torch.Tensor] = {}
    losses = _surrogate(logprobs, targets, settings, sums)
    if reference_logprobs is not None:
        distances = 0.5 * (reference_logprobs.float().detach() - logprobs).square()
        weights = torch.where(targets.action, settings.kl_actions, settings.kl_thoughts)
        losses = losses + targets.per_turn(weights * distances)
        sums["kl_reference"] = distances.sum()
        sums["kl_reference_turns"] = torch.ones_like(losses).sum()
    losses = losses - settings.entropy * scores.choice_entropy.float()
    if isinstance(algorithm, PPO) and targets.returns is not None:
        values = _value_losses(scores.values.float(), targets, targets.returns, algorithm.value_clip)
        losses = losses + algorithm.value_coefficient * values
        sums |= {"value_loss": values.sum()} | _value_sums(targets.old_values, targets.returns)
    sums["loss"] = losses.sum()
    sums |= _general_sums(scores, logprobs, targets)
    _check(losses.detach() + targets.per_turn(0 * logprobs.detach()))
    return LossOutput(losses.sum() / total_turns, _as_floats(sums))


def mismatch(scores: TokenStats, targets: Targets) -> Sums:
    """How far the sampler's probabilities are from the learner's, to be asked before the first step of an update.

    The mean of |exp(new - old) - 1| over tokens; the same weights should give 0 but for rounding.
    """
    gap = (_ratios(scores.logprobs.float().detach() - targets.old_logprobs) - 1).abs()
    sums = {"mismatch": gap.sum(), "mismatch_tokens": (gap >= 0).sum()}
    if len(gap):
        sums["mismatch_max"] = gap.max()
    return _as_floats(sums)


def _surrogate(
    logprobs: torch.Tensor, targets: Targets, settings: Update, sums: dict[str, torch.Tensor]
) -> torch.Tensor:
    """float32[M], the clipped policy loss of each turn; what is measured goes into `sums`."""
    import torch

    weights = torch.where(targets.action, 1.0, settings.thought_weight)
    differences = logprobs - targets.old_logprobs
    by_token = settings.ratio == "token"
    if by_token:
        ratios, advantages = _ratios(differences), targets.advantages[targets.turn_of]
        counted = targets.credited[targets.turn_of] & (weights > 0)
    else:
        ratios, advantages = _ratios(targets.per_turn(weights * differences)), targets.advantages
        counted = targets.credited
    clipped = ratios.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    losses = -torch.minimum(ratios * advantages, clipped * advantages)
    losses = torch.where(counted, losses, torch.zeros_like(losses))
    with torch.no_grad():
        sums["ratios"] = counted.sum()
        sums["ratio"] = ratios[counted].sum()
        sums["clipped"] = (counted & (ratios * advantages > clipped * advantages)).sum()
        if counted.any():
            sums["ratio_max"] = ratios[counted].max()
    losses = targets.per_turn(weights * losses) if by_token else losses
    sums["policy_loss"] = losses.sum()
    return losses


def _ratios(differences: torch.Tensor) -> torch.Tensor:
    return differences.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


def _distances(differences: torch.Tensor) -> torch.Tensor:
    """The estimator k3 of a KL divergence, from log other - log sampler of sampled tokens; never negative."""
    import torch

    differences = differences.clamp(-LARGEST_LOG, LARGEST_LOG)
    return torch.expm1(differences) - differences


def _value_losses(
    values: torch.Tensor, targets: Targets, returns: torch.Tensor, value_clip: float | None
) -> torch.Tensor:
    import torch

    losses = 0.5 * (values - returns) ** 2
    if value_clip is None:
        return losses
    near = targets.old_values + (values - targets.old_values).clamp(-value_clip, value_clip)
    return torch.maximum(losses, 0.5 * (near - returns) ** 2)


def _value_sums(old_values: torch.Tensor, returns: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of what the share of the returns' variance that the values foresaw is made."""
    errors = returns - old_values
    return {
        "returns": returns.sum(),
        "returns_squared": (returns**2).sum(),
        "errors": errors.sum(),
        "errors_squared": (errors**2).sum(),
        "values": (returns == returns).sum(),
    }


def _general_sums(scores: TokenStats, logprobs: torch.Tensor, targets: Targets) -> dict[str, torch.Tensor]:
    import torch

    with torch.no_grad():
        return {
            "turns": torch.ones_like(targets.advantages).sum(),
            "tokens": torch.ones_like(logprobs).sum(),
            "kl_old": _distances(logprobs - targets.old_logprobs).sum(),
            "entropy": scores.entropy.float().sum(),
            "choice_entropy": scores.choice_entropy.float()[targets.choosing].sum(),
            "choices": targets.choosing.sum(),
        }


def _check(losses: torch.Tensor) -> None:
    import torch

    bad = ~torch.isfinite(losses)
    if bad.any():
        raise NotFinite(torch.nonzero(bad).flatten().tolist(), len(losses))


def _as_floats(sums: dict[str, torch.Tensor]) -> Sums:
    """One wait for the device instead of one for each number."""
    import torch

    values = torch.stack([value.detach().float() for value in sums.values()]).tolist()
    return dict(zip(sums, values, strict=True))
