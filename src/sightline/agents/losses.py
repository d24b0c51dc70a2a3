"""Agent loss: PPO's clipped policy loss, KL to a reference model, entropy bonus, value loss, and their metrics.

Notation: pi is the model that is trained, old the one that sampled, ref the model before RL; w is a token's weight (1
in the action, `thought_weight` in all the rest). A reply that names nothing as its action has weight 1 in all its
tokens: what it is punished for is the whole of it, and with `thought_weight=0` it could not be punished at all.

    reply     { " t h o u g h t s " :  ...  " a c t i o n " :  " left " }
    weight      thought_weight ........................ tw ...   1    tw
    KL          kl_thoughts .............................. .. kl_actions ..

Importance ratio, `ratio="turn"`: r = exp(sum over the turn of w (log pi - log old)), one ratio for each turn. That is
log pi(reply) = lambda * log pi(thoughts) + log pi(action) of RL4VLM (Zhai et al. 2024, arXiv 2405.10292, section 4).

Importance ratio, `ratio="token"`: r = exp(log pi - log old), one ratio for each token, clipped by itself, with the
advantage of its turn; the value stays one for each turn (VL-DAC, Bredis et al. 2025, arXiv 2508.04280). Token losses
are summed with their weights, not averaged: before the first step both kinds have the same gradient, and a mean over
the reply would make long wrong replies cheap (Liu et al. 2025, arXiv 2503.20783).

Importance ratio, `ratio="sequence"`: r = exp(mean over the turn of log pi - log old, weighted by w), the geometric mean
of the tokens' ratios (GSPO, Zheng et al. 2025, arXiv 2507.18071, equation 7): long replies move no further than short
ones before they are clipped, so its clip ranges are much narrower, 3e-4 and 4e-4 in the paper, and its gradient is that
of `turn` divided by the length of the reply.

Sampler mismatch: with an `importance_cap`, `old` is what the learner computes before the weights change, also where it
computes in float32 and could take what the sampler said, and the loss of each turn is multiplied by min(old / sampler,
importance_cap), the probability of its reply under both (truncated importance sampling, Yao et al., "Your Efficient RL
Framework Secretly Brings You Off-Policy RL Training", 2025); with `ratio="token"` that of each token.

Policy loss, the PPO clip (Schulman et al. 2017, arXiv 1707.06347, equation 7): -min(r A, clip(r) A).

         A > 0                          A < 0
    gain |          _________      gain |   _________
         |       .'                     |            '.
         |    .'                        |               '.
         +----|-----|-------- r         +------------|---|---- r
              1     1 + clip_high         1 - clip_low   1

Where the gain is flat there is no gradient: a reply that has become likely enough gains no more, one that has become
unlikely enough loses no more.

KL to the reference model (KL penalty; in the loss, never in the reward; both weights are 0 by default): the estimator
k2 = d^2 / 2 with d = log ref - log pi, for each sampled token (Schulman, "Approximating KL Divergence", 2020), weighted
by `kl_thoughts` or `kl_actions` and summed. Its expected gradient is that of the divergence itself, and it grows with
d, where that of k3 = exp(d) - d - 1 explodes: single tokens once weighed 40 000 nats. Those of the reference are
computed once an update (`learning._score_with_reference`) by `VLM.reference_logprobs`: the kept copy of the trainable
weights is swapped in; without a copy, adapters are switched off.

Entropy bonus: the entropy among the legal actions. Among all tokens it would spoil the format.

Value loss: 0.5 (V - R)^2; with `value_clip` the larger of this and the same for V moved at most so far from the old
value, as in PPO.

Loss mask: all sampled tokens are in the loss and no others (`sequences`, with a picture); `scores` hold nothing else.
Turns that are not on-policy (a random action was played in place of an unparsable one) have no policy loss: the reply
did not decide the outcome. Their value loss and their KL stay: the KL leads an unparsable reply back to the format of
the reference model.

All losses are summed over turns and divided by the number of turns of the whole optimiser step, given from outside. So
any division into microbatches and processes gives the same gradient, once the gradients are summed (not averaged):

    sum of L_1 .. L_64        (L_1 + .. + L_40)   (L_41 + .. + L_64)
    ------------------   =    -----------------  + ------------------        64: global number of turns
            64                       64                    64
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.config.agents import Update
from sightline.config.blocks import AlgorithmBlock
from sightline.errors import RunFailed
from sightline.models.vlm.types import TokenStats

if TYPE_CHECKING:
    import torch

Sums = dict[str, float]
"""Sums of measurements over turns or tokens, to be merged over passes and processes by `metrics.merge_sums`."""

MAX_LOG_RATIO = 20.0
"""Bound of log ratios: exp(20) is far outside of any clip range already, and exp(89) is infinite in float32. Beyond the
bound the gradient is zero."""


@dataclass(frozen=True)
class Targets:
    """Training targets of a microbatch; T tokens and M turns in the order of `TokenStats`.

    Attributes:
        old_logprobs: float32[T], log-probabilities before the weights change, as the learner computes them, or of
            sampling, where it need not.
        sampler_logprobs: float32[T], the same as the sampler computed them.
        action: bool[T], the token is part of the action.
        turn_of: int64[T], index of the turn that the token belongs to.
        advantages: float32[M].
        returns: float32[M], targets of the values; None for algorithms without a critic.
        old_values: float32[M], values at the time of sampling.
        on_policy: bool[M], the reply decided what was played.
        has_choice: bool[M], `TokenStats.choice_entropy` holds the entropy among legal actions.
    """

    old_logprobs: torch.Tensor
    sampler_logprobs: torch.Tensor
    action: torch.Tensor
    turn_of: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor | None
    old_values: torch.Tensor
    on_policy: torch.Tensor
    has_choice: torch.Tensor

    def per_turn(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32[T] -> float32[M]: sum over the tokens of each turn."""
        import torch

        return torch.zeros_like(self.advantages).index_add(0, self.turn_of, tokens)


@dataclass(frozen=True)
class LossOutput:
    """Loss of one microbatch.

    Attributes:
        loss: float32 scalar with gradient.
        metrics: sums that `metrics.update_metrics` turns into means.
    """

    loss: torch.Tensor
    metrics: Sums


class NonFiniteLoss(RunFailed):
    """NaN or infinite loss.

    Attributes:
        turns: indices of the turns with such a loss.
    """

    def __init__(self, turns: list[int], of: int) -> None:
        self.turns = turns
        numbers = ", ".join(map(str, turns[:8]))
        if len(turns) > 8:
            numbers += ", …"
        super().__init__(
            f"the loss of {len(turns)} of {of} turns is not a finite number (turns {numbers} of a forward pass); "
            "lower update.learning_rate, or try policy.dtype=float32"
        )


def policy_loss(
    scores: TokenStats,
    targets: Targets,
    ref_logprobs: torch.Tensor | None,
    settings: Update,
    algorithm: AlgorithmBlock,
    total_turns: int,
) -> LossOutput:
    """Policy, KL, entropy and value loss of one microbatch, in float32 whatever the dtype of the scores.

    Args:
        scores: log-probabilities, values and entropies under the model that is trained.
        ref_logprobs: float32[T], log-probabilities under the reference model; None without a KL term.
        total_turns: of the whole optimiser step, over all microbatches and processes.

    Raises:
        NonFiniteLoss: naming the turns; do not train on this microbatch.
        ValueError: the settings have a KL term and `ref_logprobs` is None.
    """
    import torch

    if ref_logprobs is None and settings.needs_reference:
        raise ValueError("kl_thoughts and kl_actions need the log-probabilities of the model before RL")
    logprobs = scores.logprobs.float()
    sums: dict[str, torch.Tensor] = {}
    # Every term is float32[M], one loss for each turn, so that a loss that is not finite can be named.
    losses = _clipped_surrogate(logprobs, targets, settings, sums)
    if ref_logprobs is not None:
        # KL to the reference model, estimator k2; unlike k3 its gradient, d, is bounded by the log ratio itself
        kl = 0.5 * (ref_logprobs.float().detach() - logprobs).square()
        weights = torch.where(targets.action, settings.kl_actions, settings.kl_thoughts)
        losses = losses + targets.per_turn(weights * kl)
        sums["kl_reference"] = kl.sum()
        sums["kl_reference_turns"] = torch.ones_like(losses).sum()
    # Entropy bonus: a higher entropy among the legal actions lowers the loss.
    losses = losses - settings.entropy * scores.choice_entropy.float()
    if algorithm.needs_values and targets.returns is not None:
        value_losses = _value_losses(scores.values.float(), targets, targets.returns, algorithm.value_loss.clip)
        losses = losses + algorithm.value_loss.coefficient * value_losses
        sums["value_loss"] = value_losses.sum()
        # Sums for the explained variance: 1 - Var(returns - values) / Var(returns).
        errors = targets.returns - targets.old_values
        sums["returns"] = targets.returns.sum()
        sums["returns_squared"] = (targets.returns**2).sum()
        sums["errors"] = errors.sum()
        sums["errors_squared"] = (errors**2).sum()
        sums["values"] = (targets.returns == targets.returns).sum()  # how many, but for NaN
    sums["loss"] = losses.sum()
    with torch.no_grad():
        sums["turns"] = torch.ones_like(targets.advantages).sum()
        sums["tokens"] = torch.ones_like(logprobs).sum()
        # KL from the sampling policy, only measured: k3 = exp(d) - d - 1, unbiased and never negative.
        log_ratios = (logprobs - targets.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        sums["kl_old"] = (torch.expm1(log_ratios) - log_ratios).sum()
        sums["entropy"] = scores.entropy.float().sum()
        sums["choice_entropy"] = scores.choice_entropy.float()[targets.has_choice].sum()
        sums["choices"] = targets.has_choice.sum()
    # 0 * logprobs is NaN where a log-probability is not finite, also in turns whose losses do not contain it.
    not_finite = ~torch.isfinite(losses.detach() + targets.per_turn(0 * logprobs.detach()))
    if not_finite.any():
        turns = torch.nonzero(not_finite).flatten().tolist()
        raise NonFiniteLoss(turns, len(losses))
    # The global number of turns, not that of this microbatch: see the module's docstring.
    return LossOutput(losses.sum() / total_turns, _as_floats(sums))


def sampler_mismatch(scores: TokenStats, targets: Targets) -> Sums:
    """Measure how far the sampler's probabilities are from the trainer's, before the first step of an update.

    The mean of |exp(new - old) - 1| over tokens. The weights are the same, so it is 0 up to rounding; more means that
    sampler and trainer read different prompts or compute differently, and importance ratios are wrong.
    """
    log_ratios = scores.logprobs.float().detach() - targets.sampler_logprobs
    gap = (_importance_ratios(log_ratios) - 1).abs()
    sums = {
        "mismatch": gap.sum(),
        "mismatch_tokens": (gap >= 0).sum(),
    }
    # The maximum of no tokens is none.
    if len(gap):
        sums["mismatch_max"] = gap.max()
    return _as_floats(sums)


def _clipped_surrogate(
    logprobs: torch.Tensor, targets: Targets, settings: Update, sums: dict[str, torch.Tensor]
) -> torch.Tensor:
    """float32[M], the clipped policy loss of each turn; measurements go into `sums`."""
    import torch

    # [T]: the weight of each token within its reply. `per_turn(…)[turn_of]` brings a sum over a turn to its tokens.
    has_action = targets.per_turn(targets.action.float())[targets.turn_of] > 0
    weights = torch.where(has_action & ~targets.action, settings.thought_weight, 1.0)
    log_ratios = logprobs - targets.old_logprobs
    by_token = settings.ratio == "token"
    if by_token:
        # [T]: every token is clipped by itself, and carries the advantage of its turn.
        ratios = _importance_ratios(log_ratios)
        advantages = targets.advantages[targets.turn_of]
        counted = targets.on_policy[targets.turn_of] & (weights > 0)
    else:
        # [M]: the ratio of whole replies, a product over their tokens, with weights as exponents.
        exponents = weights
        if settings.ratio == "sequence":
            # And its root, of as many tokens as the weights sum up to: the geometric mean.
            total_weights = targets.per_turn(weights).clamp(min=1e-6)
            exponents = weights / total_weights[targets.turn_of]
        ratios = _importance_ratios(targets.per_turn(exponents * log_ratios))
        advantages = targets.advantages
        counted = targets.on_policy
    # The PPO clip.
    clipped = ratios.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    # The smaller of both is a lower bound of the objective: leaving the trust region never pays, coming back does.
    losses = -torch.minimum(ratios * advantages, clipped * advantages)
    # The mask of turns (or tokens) that count. `where`, not times 0: the ratio of one that does not may be infinite.
    losses = torch.where(counted, losses, torch.zeros_like(losses))
    # Correct for a sampler that computes other probabilities than the learner.
    importance = _sampler_correction(targets, settings)
    if importance is not None:
        sums["importance"] = importance[counted].sum()
        losses = importance * losses
    with torch.no_grad():
        sums["ratios"] = counted.sum()
        sums["ratio"] = ratios[counted].sum()
        sums["clipped"] = (counted & (ratios * advantages > clipped * advantages)).sum()
        if counted.any():
            sums["ratio_max"] = ratios[counted].max()
    if by_token:
        # Summed with weights, not averaged: a mean would make long wrong replies cheap.
        losses = targets.per_turn(weights * losses)
    sums["policy_loss"] = losses.sum()
    return losses


def _sampler_correction(targets: Targets, settings: Update) -> torch.Tensor | None:
    """Truncated importance weights: float32[T] for `ratio="token"`, else float32[M]; None without a cap."""
    if settings.importance_cap is None:
        return None
    mismatch = targets.old_logprobs - targets.sampler_logprobs
    if settings.ratio != "token":
        # Of the whole reply, whatever its tokens weigh in the ratio: the action was sampled after the thoughts.
        mismatch = targets.per_turn(mismatch)
    return _importance_ratios(mismatch).clamp(max=settings.importance_cap)


def _importance_ratios(log_ratios: torch.Tensor) -> torch.Tensor:
    return log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _value_losses(
    values: torch.Tensor, targets: Targets, returns: torch.Tensor, value_clip: float | None
) -> torch.Tensor:
    """float32[M], squared error of each value; with `value_clip` no gain from moving further than that."""
    import torch

    losses = 0.5 * (values - returns) ** 2
    if value_clip is None:
        return losses
    # The larger of both: a value that has moved far already gains nothing by moving further.
    clipped = targets.old_values + (values - targets.old_values).clamp(-value_clip, value_clip)
    clipped_losses = 0.5 * (clipped - returns) ** 2
    return torch.maximum(losses, clipped_losses)


def _as_floats(sums: dict[str, torch.Tensor]) -> Sums:
    """Copy all sums from the device at once, instead of waiting for each."""
    import torch

    values = torch.stack([value.detach().float() for value in sums.values()]).tolist()
    return dict(zip(sums, values, strict=True))
