"""What an agent's update minimises, against arithmetic done by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.agents.algorithms.grpo import GRPO
from sightline.agents.algorithms.ppo import PPO
from sightline.agents.losses import LossOutput, NonFiniteLoss, Targets, policy_loss, sampler_mismatch
from sightline.agents.metrics import merge_sums, update_metrics
from sightline.config.agents import Update
from sightline.models.vlm.types import TokenStats

PLAIN = Update(thought_weight=1.0)


def targets_for(lengths: Sequence[int], advantages: Sequence[float], **rest: Any) -> Targets:
    """Turns of so many tokens, the last of each its action; old log-probabilities 0 unless given."""
    ends = np.cumsum(lengths) - 1
    action = torch.zeros(sum(lengths), dtype=torch.bool)
    action[ends] = True
    count = len(lengths)
    old = rest.get("old_logprobs", torch.zeros(sum(lengths)))
    return replace(
        Targets(
            old_logprobs=old,
            sampler_logprobs=old,
            action=action,
            turn_of=torch.tensor(np.repeat(np.arange(count), lengths)),
            advantages=torch.tensor(advantages, dtype=torch.float32),
            returns=None,
            old_values=torch.zeros(count),
            on_policy=torch.ones(count, dtype=torch.bool),
            has_choice=torch.zeros(count, dtype=torch.bool),
        ),
        **rest,
    )


def scores_of(logprobs: Any, turns: int, values: Any = None, choice_entropy: Any = None) -> TokenStats:
    logprobs = torch.as_tensor(logprobs, dtype=torch.float32)
    zeros = torch.zeros(turns)
    return TokenStats(
        logprobs.requires_grad_() if logprobs.is_leaf else logprobs,
        torch.zeros(len(logprobs)),
        zeros if values is None else values,
        zeros if choice_entropy is None else choice_entropy,
    )


def loss_of(
    logprobs: Any, targets: Targets, settings: Update = PLAIN, reference: Any = None, algorithm: Any = None, **rest: Any
) -> tuple[LossOutput, TokenStats]:
    turns = len(targets.advantages)
    scores = scores_of(logprobs, turns, rest.pop("values", None), rest.pop("choice_entropy", None))
    reference = None if reference is None else torch.as_tensor(reference, dtype=torch.float32)
    return policy_loss(scores, targets, reference, settings, algorithm or GRPO(), rest.pop("total", turns)), scores


def gradient(
    logprobs: Any, targets: Targets, settings: Update = PLAIN, reference: Any = None, **rest: Any
) -> list[float]:
    output, scores = loss_of(logprobs, targets, settings, reference, **rest)
    output.loss.backward()
    assert scores.logprobs.grad is not None
    return scores.logprobs.grad.tolist()


class TestTurnRatio:
    def test_by_hand(self) -> None:
        # turn 1: 0.5 * (0.1 + 0.2) + 0.05 = 0.2, and exp(0.2) is cut to 1.2; turn 2: 0.5 * 0.1 - 0.1 = -0.05
        targets = targets_for([3, 2], [2.0, -1.0])
        settings = Update(thought_weight=0.5, clip_low=0.2, clip_high=0.2)
        output, _ = loss_of([0.1, 0.2, 0.05, 0.1, -0.1], targets, settings)
        assert output.loss.item() == pytest.approx((-2 * 1.2 + exp(-0.05)) / 2)
        assert output.metrics["clipped"] == 1
        assert output.metrics["ratio_max"] == pytest.approx(exp(0.2))
        assert update_metrics(output.metrics)["update/ratio"] == pytest.approx((exp(0.2) + exp(-0.05)) / 2)

    @pytest.mark.parametrize(
        ("difference", "advantage", "expected"),
        [
            (log(1.1), 1.0, -1.1),  # within the bounds
            (log(2.0), 1.0, -1.3),  # what became likelier gains no more
            (log(2.0), -1.0, 2.0),  # but what should not have is not let off
            (log(0.5), 1.0, -0.5),
            (log(0.5), -1.0, 0.9),
        ],
    )
    def test_the_smaller_of_both_with_two_bounds(self, difference: float, advantage: float, expected: float) -> None:
        settings = Update(clip_low=0.1, clip_high=0.3)
        targets = targets_for([1], [advantage])
        output, _ = loss_of([difference], targets, settings)
        assert output.loss.item() == pytest.approx(expected)
        clipped = expected in (-1.3, 0.9)
        assert output.metrics["clipped"] == clipped
        assert (gradient([difference], targets, settings) == [0]) is clipped

    def test_of_a_sequence_is_the_root_of_the_turn_s(self) -> None:
        """GSPO: exp((0.1 + 0.2 + 0.3) / 3) = exp(0.2), cut to 1.1, and exp(-0.05); a turn of one token as it is."""
        targets = targets_for([3, 2, 1], [2.0, -1.0, 1.0])
        settings = Update(thought_weight=1.0, ratio="sequence", clip_low=0.2, clip_high=0.1)
        output, _ = loss_of([0.1, 0.2, 0.3, 0.0, -0.1, 0.01], targets, settings)
        assert output.loss.item() == pytest.approx((-2 * 1.1 + exp(-0.05) - exp(0.01)) / 3)
        # the thoughts' weights count in the root, too: (0.5 * (0.1 + 0.2) + 0.3) / 2
        halved = settings.model_copy(update={"thought_weight": 0.5})
        output, _ = loss_of([0.1, 0.2, 0.3], targets_for([3], [1.0]), halved)
        assert output.metrics["ratio"] == pytest.approx(exp(0.225))
        # its gradient is that of the turn, divided by its tokens
        at_first = [0.0, 0.0, 0.0]
        by_turn = gradient(at_first, targets_for([3], [1.0]), PLAIN)
        by_sequence = gradient(at_first, targets_for([3], [1.0]), settings)
        assert np.array(by_sequence) * 3 == pytest.approx(np.array(by_turn))

    def test_a_cap_weighs_turns_by_what_sampler_and_learner_think_of_them(self) -> None:
        """Truncated importance sampling: exp(0.3 + 0.2) is below the cap of 2, exp(1) is not."""
        old, sampler = torch.tensor([-1.0, -2.0, -1.0]), torch.tensor([-1.3, -2.2, -2.0])
        targets = targets_for([2, 1], [1.0, 1.0], old_logprobs=old, sampler_logprobs=sampler)
        capped = Update(thought_weight=1.0, importance_cap=2.0)
        output, _ = loss_of(old.tolist(), targets, capped)
        assert output.loss.item() == pytest.approx(-(exp(0.5) + 2.0) / 2)
        assert update_metrics(output.metrics)["update/importance"] == pytest.approx((exp(0.5) + 2.0) / 2)
        assert gradient(old.tolist(), targets, capped) == pytest.approx([-exp(0.5) / 2, -exp(0.5) / 2, -1.0])
        # whatever thoughts weigh in the ratio, the action was sampled after them
        unheeded, _ = loss_of(old.tolist(), targets, capped.model_copy(update={"thought_weight": 0.0}))
        assert update_metrics(unheeded.metrics)["update/importance"] == pytest.approx((exp(0.5) + 2.0) / 2)
        # token by token: exp(0.3), exp(0.2), and the cap
        by_token = gradient(old.tolist(), targets, Update(thought_weight=1.0, importance_cap=2.0, ratio="token"))
        assert by_token == pytest.approx([-exp(0.3) / 2, -exp(0.2) / 2, -1.0])
        assert gradient(old.tolist(), targets, PLAIN) == pytest.approx([-0.5, -0.5, -0.5])

    def test_old_probabilities_are_what_it_is_compared_with(self) -> None:
        targets = targets_for([2], [1.0], old_logprobs=torch.tensor([-1.0, -2.0]))
        assert loss_of([-1.1, -1.95], targets)[0].loss.item() == pytest.approx(-exp(-0.05))

    def test_gradient_at_first_is_weight_times_advantage(self) -> None:
        targets = targets_for([3, 2], [2.0, -1.0])
        found = gradient([0.0] * 5, targets, Update(thought_weight=0.3))
        assert found == pytest.approx([-0.3, -0.3, -1.0, 0.15, 0.5])

    @pytest.mark.parametrize("ratio", ["turn", "token"])
    def test_thoughts_of_no_weight_have_no_gradient_at_all(self, ratio: Any) -> None:
        targets = targets_for([3, 2], [2.0, -1.0])
        found = gradient([0.4, -3.0, 0.1, 5.0, -0.1], targets, Update(thought_weight=0.0, ratio=ratio))
        assert [found[i] for i in (0, 1, 3)] == [0.0, 0.0, 0.0]
        assert found[2] != 0 and found[4] != 0
        output, _ = loss_of([0.4, -3.0, 0.1, 5.0, -0.1], targets, Update(thought_weight=0.0, ratio=ratio))
        assert output.metrics["ratios"] == 2
        assert output.metrics["ratio_max"] == pytest.approx(exp(0.1))


class TestTokenRatio:
    def test_by_hand(self) -> None:
        # thoughts 1.1 and 1.5, the latter cut to 1.2, at half weight; the action 0.9
        targets = targets_for([3], [2.0])
        settings = Update(thought_weight=0.5, ratio="token")
        output, _ = loss_of([log(1.1), log(1.5), log(0.9)], targets, settings)
        assert output.loss.item() == pytest.approx(-2 * (0.5 * 1.1 + 0.5 * 1.2 + 0.9))
        assert output.metrics["clipped"] == 1 and output.metrics["ratios"] == 3

    @given(st.lists(st.tuples(st.integers(1, 5), st.floats(-3, 3)), min_size=1, max_size=5), st.floats(0, 1))
    def test_at_first_its_gradient_is_that_of_the_turn(self, turns: list[tuple[int, float]], weight: float) -> None:
        targets = targets_for([n for n, _ in turns], [a for _, a in turns])
        zeros = [0.0] * len(targets.turn_of)
        both = [gradient(zeros, targets, Update(thought_weight=weight, ratio=ratio)) for ratio in ("turn", "token")]
        assert both[0] == pytest.approx(both[1])


class TestFallback:
    @pytest.mark.parametrize("ratio", ["turn", "token"])
    def test_no_policy_gradient_where_the_reply_did_not_decide(self, ratio: Any) -> None:
        targets = targets_for([2, 2], [3.0, -2.0], on_policy=torch.tensor([False, True]))
        targets.action[:2] = False
        found = gradient([0.1, -0.2, 0.1, 0.1], targets, Update(ratio=ratio))
        assert found[:2] == [0, 0] and all(found[2:])
        output, _ = loss_of([0.1, -0.2, 0.1, 0.1], targets, Update(ratio=ratio))
        assert output.metrics["ratios"] == (1 if ratio == "turn" else 2)

    def test_its_value_is_learned_and_its_distance_kept(self) -> None:
        targets = targets_for([1], [3.0], on_policy=torch.tensor([False]), returns=torch.tensor([2.0]))
        values = torch.zeros(1, requires_grad=True)
        settings = Update(kl_thoughts=0.5, kl_actions=0.5)
        output, scores = loss_of([0.4], targets, settings, [0.1], PPO(value_coefficient=1.0), values=values)
        output.loss.backward()
        assert values.grad is not None and values.grad.tolist() == [-2.0]
        assert scores.logprobs.grad is not None
        assert scores.logprobs.grad.tolist() == pytest.approx([0.5 * 0.3])

    @pytest.mark.parametrize("ratio", ["turn", "token"])
    @pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
    def test_a_reply_without_an_action_counts_in_full(self, weight: float, ratio: Any) -> None:
        """What it is punished for is all of it, also where thoughts have no weight."""
        targets = targets_for([2, 2], [-1.0, 4.0])
        targets.action[:2] = False
        found = gradient([0.0] * 4, targets, Update(thought_weight=weight, ratio=ratio))
        assert found == pytest.approx([0.5, 0.5, -2 * weight, -2.0])


class TestReference:
    def test_by_hand(self) -> None:
        # d = log reference - log pi: 0.5, -0.5, 0 for the thoughts and 1 for the action; d^2 / 2
        targets = targets_for([4], [0.0])
        settings = Update(kl_thoughts=0.2, kl_actions=3.0)
        output, _ = loss_of([-1.0, -1.0, -1.0, -2.0], targets, settings, [-0.5, -1.5, -1.0, -1.0])
        thoughts = 0.125 + 0.125
        assert output.loss.item() == pytest.approx(0.2 * thoughts + 3.0 * 0.5, rel=1e-5)
        assert update_metrics(output.metrics)["update/kl_reference"] == pytest.approx(thoughts + 0.5, rel=1e-5)

    def test_the_gradient_is_that_of_the_divergence(self) -> None:
        """In expectation, over a distribution of three tokens, all of it."""
        theta = torch.tensor([0.3, 1.0, -0.5], requires_grad=True)
        reference = torch.tensor([0.6, 0.3, 0.1]).log()
        logprobs = theta.log_softmax(-1)
        divergence = (logprobs.exp() * (logprobs - reference)).sum()
        expected = torch.autograd.grad(divergence, theta, retain_graph=True)[0]
        found = torch.zeros(3)
        for token in range(3):
            scores = TokenStats(logprobs[token : token + 1], torch.zeros(1), torch.zeros(1), torch.zeros(1))
            output = policy_loss(
                scores, targets_for([1], [0.0]), reference[token : token + 1], Update(kl_actions=1.0), PPO(), 1
            )
            part = torch.autograd.grad(output.loss, theta, retain_graph=True)[0]
            found += logprobs[token].exp().item() * part
        assert torch.allclose(found, expected, atol=1e-6)

    def test_is_measured_without_weight_and_asked_for_with_weight(self) -> None:
        targets = targets_for([1], [0.0])
        output, _ = loss_of([-1.0], targets, PLAIN, [-2.0])
        assert output.loss.item() == 0
        assert output.metrics["kl_reference"] == pytest.approx(0.5)
        assert update_metrics(loss_of([-1.0], targets)[0].metrics)["update/kl_reference"] is None
        with pytest.raises(ValueError, match="before RL"):
            loss_of([-1.0], targets, Update(kl_thoughts=0.1))


def test_distance_from_the_model_that_played() -> None:
    """KL(old, new) from tokens of the old: r - 1 - log r with r = new / old, merge_sums up over a turn."""
    output, _ = loss_of(
        [-1.0, -1.0, -1.0], targets_for([2, 1], [0.0, 0.0], old_logprobs=torch.tensor([-1.5, -1.0, -0.7]))
    )
    expected = ((exp(0.5) - 1.5) + (exp(-0.3) - 0.7)) / 2
    assert update_metrics(output.metrics)["update/kl_old"] == pytest.approx(expected, rel=1e-5)


def test_entropy_among_actions_is_kept_high() -> None:
    targets = targets_for([1, 1], [0.0, 0.0], has_choice=torch.tensor([True, False]))
    entropy = torch.tensor([0.6, 0.0], requires_grad=True)
    output, _ = loss_of([0.0, 0.0], targets, Update(entropy=0.1), choice_entropy=entropy)
    assert output.loss.item() == pytest.approx(-0.1 * 0.6 / 2)
    assert update_metrics(output.metrics)["update/choice_entropy"] == pytest.approx(0.6)  # of turns with a choice


class TestValues:
    def test_by_hand(self) -> None:
        targets = targets_for([1, 1], [0.0, 0.0], returns=torch.tensor([1.0, -1.0]))
        values = torch.tensor([0.5, 1.0])
        output, _ = loss_of([0.0, 0.0], targets, algorithm=PPO(value_coefficient=0.5), values=values)
        assert output.loss.item() == pytest.approx(0.5 * 0.5 * (0.25 + 4) / 2)
        assert update_metrics(output.metrics)["update/value_loss"] == pytest.approx(0.5 * (0.25 + 4) / 2)

    def test_only_with_values(self) -> None:
        targets = targets_for([1], [0.0])
        assert loss_of([0.0], targets, algorithm=PPO(), values=torch.tensor([9.0]))[0].loss.item() == 0

    @pytest.mark.parametrize(("value", "expected", "moves"), [(0.9, 0.5 * 0.8**2, False), (0.1, 0.5 * 0.9**2, True)])
    def test_clipped(self, value: float, expected: float, moves: bool) -> None:
        """From 0 towards 1 it may move 0.2 at most."""
        values = torch.tensor([value], requires_grad=True)
        targets = targets_for([1], [0.0], returns=torch.tensor([1.0]))
        output, _ = loss_of([0.0], targets, algorithm=PPO(value_coefficient=1, value_clip=0.2), values=values)
        assert output.loss.item() == pytest.approx(expected)
        output.loss.backward()
        assert values.grad is not None and bool(values.grad.item()) is moves

    def test_explained_variance(self) -> None:
        # returns 1, 2, 6: variance 14/3; errors 0, 1, 2 of the old values: variance 2/3
        targets = targets_for([1] * 3, [0.0] * 3, returns=torch.tensor([1.0, 2.0, 6.0]))
        targets = replace(targets, old_values=torch.tensor([1.0, 1.0, 4.0]))
        output, _ = loss_of([0.0] * 3, targets, algorithm=PPO())
        assert update_metrics(output.metrics)["update/explained_variance"] == pytest.approx(1 - 2 / 14, rel=1e-5)


class TestParts:
    """An optimiser step in several forward passes and processes."""

    LENGTHS, COUNT = [3, 1, 2, 4, 1, 3, 2], 7

    @pytest.mark.parametrize("ratio", ["turn", "token"])
    @pytest.mark.parametrize("cuts", [[], [3], [1, 2, 5], [1, 2, 3, 4, 5, 6]])
    def test_give_the_gradient_and_the_metrics_of_the_whole(self, cuts: list[int], ratio: Any) -> None:
        whole, parts = self._step([], ratio), self._step(cuts, ratio)
        assert torch.allclose(whole[0], parts[0], rtol=1e-5, atol=1e-7)
        assert whole[0].abs().min() > 0
        assert parts[1] == pytest.approx(whole[1], rel=1e-5, abs=1e-6)
        assert None not in whole[1].values()

    def _step(self, cuts: list[int], ratio: Any) -> tuple[torch.Tensor, dict[str, float | None]]:
        rng = np.random.default_rng(3)
        total, count = sum(self.LENGTHS), self.COUNT
        features = torch.tensor(rng.normal(size=(total, 5)), dtype=torch.float32)
        numbers = torch.tensor(rng.normal(size=(4, total)), dtype=torch.float32) * 0.3
        weights = torch.full((5,), 0.1, requires_grad=True)
        settings = Update(ratio=ratio, kl_thoughts=0.3, kl_actions=0.1, entropy=0.2, importance_cap=2.0)
        algorithm = PPO(value_clip=0.3)
        starts = np.concatenate([[0], np.cumsum(self.LENGTHS)])
        sums = []
        for first, last in zip([0, *cuts], [*cuts, count], strict=True):
            tokens, turns = slice(starts[first], starts[last]), slice(first, last)
            targets = targets_for(
                self.LENGTHS[turns],
                numbers[0][turns].tolist(),
                old_logprobs=numbers[1][tokens],
                sampler_logprobs=numbers[0][tokens],
                returns=numbers[2][turns],
                has_choice=torch.ones(last - first, dtype=torch.bool),
                on_policy=torch.arange(first, last) != 2,
            )
            logprobs, by_turn = features[tokens] @ weights, features[turns] @ weights
            scores = TokenStats(logprobs, numbers[3][tokens].exp(), by_turn, by_turn**2)
            output = policy_loss(scores, targets, numbers[3][tokens], settings, algorithm, count)
            output.loss.backward()
            sums += [output.metrics, sampler_mismatch(scores, targets)]
        assert weights.grad is not None
        return weights.grad, update_metrics(merge_sums(sums))


class TestNumbers:
    @pytest.mark.parametrize("bad", [nan, inf, -inf])
    @pytest.mark.parametrize("on_policy", [True, False])
    def test_what_is_not_finite_is_named(self, bad: float, on_policy: bool) -> None:
        targets = targets_for([1, 2, 1], [1.0] * 3, on_policy=torch.tensor([True, on_policy, True]))
        with pytest.raises(NonFiniteLoss, match=r"1 of 3 turns.*turns 1 of") as caught:
            loss_of([0.0, bad, 0.0, 0.0], targets)
        assert caught.value.turns == [1]

    def test_a_bad_advantage_is_named(self) -> None:
        with pytest.raises(NonFiniteLoss) as caught:
            loss_of([0.0, 0.0], targets_for([1, 1], [1.0, nan]))
        assert caught.value.turns == [1]

    @pytest.mark.parametrize("ratio", ["turn", "token"])
    @pytest.mark.parametrize("far", [-200.0, 200.0])
    def test_far_away_is_finite(self, far: float, ratio: Any) -> None:
        targets = targets_for([1, 1, 1], [1.0, -1.0, 0.0])
        found = gradient([far] * 3, targets, Update(ratio=ratio, kl_actions=1.0), [0.0] * 3)
        assert np.isfinite(found).all()

    def test_half_precision_is_lifted(self) -> None:
        """Near -20 the steps of bfloat16 are 0.125, as large as what is clipped."""
        targets = targets_for([1], [1.0], old_logprobs=torch.tensor([-20.03]))
        logprobs = torch.tensor([-20.0], dtype=torch.bfloat16)
        scores = TokenStats(logprobs, torch.zeros(1), torch.zeros(1), torch.zeros(1))
        output = policy_loss(scores, targets, None, PLAIN, GRPO(), 1)
        assert output.loss.dtype == torch.float32
        assert output.loss.item() == pytest.approx(-exp(0.03), rel=1e-5)


def test_mismatch_of_sampler_and_learner() -> None:
    targets = targets_for([2], [1.0], old_logprobs=torch.tensor([-1.0, -1.0]))
    sums = sampler_mismatch(scores_of([-1.0 + log(1.5), -1.0 + log(0.9)], 1), targets)
    assert sums["mismatch"] / sums["mismatch_tokens"] == pytest.approx((0.5 + 0.1) / 2)
    assert sums["mismatch_max"] == pytest.approx(0.5)
    assert sampler_mismatch(scores_of([-1.0, -1.0], 1), targets)["mismatch"] == 0
