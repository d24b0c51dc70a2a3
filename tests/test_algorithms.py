"""What turns are credited with, against arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.agents.algorithms.gigpo import GiGPO
from sightline.agents.algorithms.grpo import GRPO
from sightline.agents.algorithms.ppo import PPO, generalised_advantages
from sightline.agents.algorithms.reinforce import Reinforce
from sightline.agents.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from sightline.agents.algorithms.returns import informative_tasks
from sightline.agents.algorithms.rloo import RLOO
from sightline.agents.algorithms.turn_grpo import TurnGRPO
from sightline.agents.types import Group
from small_trajectories import episode

PLAIN = PPO(gamma=0.9, gae_lambda=0.95, normalise=False)


def advantages(groups: list[Group], settings: Any) -> list[list[list[float] | None]]:
    """Plain lists; None where there is no credit."""
    advantages = settings.compute_advantages(groups)
    return [[None if one is None else one.advantages.tolist() for one in group] for group in advantages]


def first_turns(group: Group, settings: Any) -> list[float]:
    return [one[0] for one in advantages([group], settings)[0] if one is not None]


class TestAll:
    def test_nothing_of_nothing(self) -> None:
        for settings in (PPO(), GRPO(), RLOO(), GiGPO(), Reinforce(), ReinforcePlusPlus(), TurnGRPO()):
            assert settings.compute_advantages([]) == []
            assert advantages([[], [episode([])]], settings) == [[], [None]]


class TestPPO:
    def test_a_terminated_episode(self) -> None:
        # surprises: 0 + 0.9 * 0.4 - 0.5 = -0.14; 0 + 0.9 * 0.6 - 0.4 = 0.14; 1 - 0.6 = 0.4. One turn later: 0.855
        played = episode([0, 0, 1], [0.5, 0.4, 0.6], last_value=99.0)
        expected = [-0.14 + 0.855 * (0.14 + 0.855 * 0.4), 0.14 + 0.855 * 0.4, 0.4]
        ((one,),) = PLAIN.compute_advantages([[played]])
        assert one is not None and one.returns is not None
        assert one.advantages == pytest.approx(expected)
        assert one.advantages[0] == pytest.approx(0.27211)
        assert one.returns == pytest.approx([0.27211 + 0.5, 0.482 + 0.4, 1.0])

    def test_a_truncated_episode_goes_on_with_the_last_value(self) -> None:
        # the last surprise: 1 + 0.9 * 2 - 0.6 = 2.2
        played = episode([0, 0, 1], [0.5, 0.4, 0.6], last_value=2.0, truncated=True)
        expected = [-0.14 + 0.855 * (0.14 + 0.855 * 2.2), 0.14 + 0.855 * 2.2, 2.2]
        assert advantages([[played]], PLAIN)[0][0] == pytest.approx(expected)

    @given(
        st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8),
        st.floats(-5, 5),
        st.floats(0, 1),
    )
    def test_its_two_ends(self, turns: list[tuple[float, float]], after: float, gamma: float) -> None:
        """lambda 1: discounted rewards (and what comes after) less the value. lambda 0: one-turn surprises."""
        rewards, values = map(np.array, zip(*turns, strict=True))
        n = len(turns)
        to_come = [sum(gamma ** (j - i) * rewards[j] for j in range(i, n)) + gamma ** (n - i) * after for i in range(n)]
        assert generalised_advantages(rewards, values, after, gamma, 1.0) == pytest.approx(np.array(to_come) - values)
        nexts = [*values[1:], after]
        short = [rewards[i] + gamma * nexts[i] - values[i] for i in range(n)]
        assert generalised_advantages(rewards, values, after, gamma, 0.0) == pytest.approx(short)

    def test_normalised_over_all_turns_of_the_update(self) -> None:
        groups = [[episode([1, 2, 4])], [episode([8.0]), episode([-3.0], error="it broke"), episode([])]]
        plain, normal = PLAIN.compute_advantages(groups), PPO(gamma=0.9, gae_lambda=0.95).compute_advantages(groups)
        together = np.concatenate([normal[0][0].advantages, normal[1][0].advantages])  # type: ignore[union-attr]
        assert together.mean() == pytest.approx(0, abs=1e-12)
        assert together.std() == pytest.approx(1)
        assert normal[1][1:] == plain[1][1:] == [None, None]
        assert np.array_equal(normal[0][0].returns, plain[0][0].returns)  # type: ignore[union-attr,arg-type]
        assert (plain[0][0].advantages < plain[1][0].advantages).all()  # type: ignore[union-attr]
        assert (normal[0][0].advantages < normal[1][0].advantages).all()  # type: ignore[union-attr]

    def test_equal_advantages_are_no_division_by_zero(self) -> None:
        assert advantages([[episode([1.0]), episode([1.0])]], PPO()) == [[[0], [0]]]


class TestGRPO:
    def test_by_hand(self) -> None:
        # returns 1, 0, 0, 3: mean 1, variance of a sample (0 + 1 + 1 + 4) / 3, of a population the same / 4
        group = [episode([0, 1]), episode([0.0]), episode([-1, 1]), episode([1, 1, 1])]
        for settings, deviation in ((GRPO(), sqrt(2)), (GRPO(deviation="population"), sqrt(1.5))):
            expected = [[0, 0], [-1 / deviation], [-1 / deviation] * 2, [2 / deviation] * 3]
            for one, wanted in zip(advantages([group], settings)[0], expected, strict=True):
                assert one == pytest.approx(wanted, abs=1e-5)

    def test_without_division(self) -> None:
        group = [episode([0, 1]), episode([0.0]), episode([-1, 1]), episode([1, 1, 1])]
        assert advantages([group], GRPO(deviation="none")) == [[[0, 0], [-1], [-1, -1], [2, 2, 2]]]

    def test_groups_are_apart(self) -> None:
        groups = [[episode([1.0]), episode([0.0])], [episode([100.0]), episode([98.0])]]
        assert advantages(groups, GRPO(deviation="none")) == [[[0.5], [-0.5]], [[1], [-1]]]

    def test_has_no_values(self) -> None:
        assert GRPO().compute_advantages([[episode([1.0]), episode([0.0])]])[0][0].returns is None  # type: ignore[union-attr]


class TestRLOO:
    def test_by_hand(self) -> None:
        # returns 1, 0, 0, 3, against the mean of the others: 3/3, 4/3, 4/3, 1/3
        group = [episode([0, 1]), episode([0.0]), episode([-1, 1]), episode([1, 1, 1])]
        expected = [[0, 0], [-4 / 3], [-4 / 3] * 2, [8 / 3] * 3]
        for one, wanted in zip(advantages([group], RLOO())[0], expected, strict=True):
            assert one == pytest.approx(wanted)


class TestGiGPO:
    def test_by_hand(self) -> None:
        # returns 1 and 0: +-0.5. To come, at gamma 0.5: (0.5, 1) and (0, 0, 0). State 5 was seen thrice, with 0.5, 0, 0
        # to come: 1/3, -1/6, -1/6 from their mean; the others once.
        group = [episode([0, 1], states=[5, 6]), episode([0, 0, 0], states=[5, 5, 7])]
        plain = GiGPO(gamma=0.5, turn_weight=2.0, deviation="none")
        first, second = advantages([group], plain)[0]
        assert first == pytest.approx([0.5 + 2 / 3, 0.5])
        assert second == pytest.approx([-0.5 - 1 / 3, -0.5 - 1 / 3, -0.5])
        # divided by deviations of populations: 0.5 among episodes, sqrt((4 + 1 + 1) / 36 / 3) in state 5
        first, second = advantages([group], GiGPO(gamma=0.5, deviation="population"))[0]
        assert first == pytest.approx([1 + (1 / 3) * sqrt(18), 1], abs=1e-4)
        assert second == pytest.approx([-1 - sqrt(18) / 6, -1 - sqrt(18) / 6, -1], abs=1e-4)

    def test_states_of_other_groups_do_not_count(self) -> None:
        groups = [[episode([r], states=[5]), episode([0.0], states=[6])] for r in (1.0, 3.0)]
        plain = GiGPO(deviation="none")
        assert advantages(groups, plain) == [[[0.5], [-0.5]], [[1.5], [-1.5]]]

    def test_equal_episodes_may_differ_in_how_soon_they_got_there(self) -> None:
        group = [episode([1.0], states=[5]), episode([0, 1], states=[5, 6])]
        assert advantages([group], GiGPO(gamma=0.5, deviation="none")) == [[[0.25], [-0.25, 0]]]

    def test_states_that_are_said_in_nearly_the_same_words_are_one(self) -> None:
        """Pictures still have to be equal, and rules that all states are told with do not make them so."""

        def told(reward: float, words: str, state: int = 5) -> Any:
            played = episode([reward], states=[state])
            text = f"You are in a room. {words}. Say what to do, one action."
            played.turns[0].exchange = replace(played.turns[0].exchange, text=text)
            return played

        others = told(0.5, "a mug on shelf 2", state=6), told(0.5, "nothing at all")
        group = [told(1.0, "a mug on shelf 1"), told(0.0, "a mug on shelf 2"), *others]
        apart = advantages([group], GiGPO(deviation="none", similarity=1.0))[0]
        assert apart == [[0.5], [-0.5], [0.0], [0.0]]
        near = advantages([group], GiGPO(deviation="none", similarity=0.9))[0]
        assert near == [[1.0], [-1.0], [0.0], [0.0]]
        far = [told(1.0, "a mug on shelf 1"), told(0.0, "nothing at all")]
        assert advantages([far], GiGPO(deviation="none", similarity=0.9))[0] == [[0.5], [-0.5]]

    def test_without_weight_it_is_grpo(self) -> None:
        group = [episode([0, 1], states=[5, 5]), episode([0.5], states=[5]), episode([0.0], states=[5])]
        assert advantages([group], GiGPO(turn_weight=0)) == advantages([group], GRPO())


class TestTurnGRPO:
    def test_by_hand(self) -> None:
        # outcomes 3, 1: +-1. To come, at gamma 0.5: (1 + 0.5 * 2, 2) and (0 + 0.5 * 1 + 0.25 * 0, 1, 0): +-0.75, +-0.5;
        # the third turn is one's alone
        group = [episode([1, 2]), episode([0, 1, 0])]
        plain = TurnGRPO(gamma=0.5, deviation="none", outcome_weight=2.0)
        assert advantages([group], plain) == [[[2.75, 2.5], [-2.75, -2.5, -2.0]]]
        # a group of two in sample deviations: +-1 / sqrt(2) each
        first = advantages([group], TurnGRPO(gamma=0.5))[0][0]
        assert first == pytest.approx([sqrt(2), sqrt(2)], abs=1e-4)

    def test_a_good_turn_of_a_lost_episode_keeps_its_credit(self) -> None:
        group = [episode([1, 0.0]), episode([0, 1.0])]
        first, second = advantages([group], TurnGRPO(gamma=0.0, deviation="none"))[0]
        assert (first, second) == ([0.5, -0.5], [-0.5, 0.5])


class TestReinforcePlusPlus:
    def test_by_hand(self) -> None:
        # returns 3, 1, -1 over turns 2, 1, 1: mean (3 + 3 + 1 - 1) / 4 = 1.5, variance (2 * 2.25 + 0.25 + 6.25) / 4
        groups = [[episode([1, 2])], [episode([1.0])], [episode([-1.0]), episode([9.0], error="it broke")]]
        deviation = sqrt(11 / 4)
        found = advantages(groups, ReinforcePlusPlus())
        assert found[0][0] == pytest.approx([1.5 / deviation] * 2)
        assert found[1][0] == pytest.approx([-0.5 / deviation]) and found[2][0] == pytest.approx([-2.5 / deviation])
        assert found[2][1] is None

    def test_groups_are_compared_first_and_divided_together(self) -> None:
        # +-0.5 and +-2 and two zeros, six turns: mean 0, variance (0.5 + 8) / 6; equal returns teach nothing, but count
        groups = [[episode([1.0]), episode([0.0])], [episode([4.0]), episode([0.0])], [episode([7.0]), episode([7.0])]]
        found = advantages(groups, ReinforcePlusPlus(group=2))
        assert [one for group in found[:2] for one in group] == [
            pytest.approx([value / sqrt(8.5 / 6)]) for value in (0.5, -0.5, 2, -2)
        ]
        assert found[2] == [None, None]


def test_tasks_whose_episodes_ended_alike_say_nothing() -> None:
    """What dynamic sampling counts."""
    groups = [
        [episode([r], seed=seed) for r in rewards] for seed, rewards in enumerate([(1.0, 0.0), (1.0, 1.0), (2.0, 0.0)])
    ]
    played = [one for group in groups for one in group]
    credits = [one for group in GRPO().compute_advantages(groups) for one in group]
    assert informative_tasks(played, credits) == 2 and informative_tasks([], []) == 0


class TestReinforce:
    def test_by_hand(self) -> None:
        # to come, at gamma 0.5: (1 + 0.5 * 2, 2), (0 + 0.5 * 4, 4), (3); first turns 2, 2, 3 against 2.5, 2.5, 2
        groups = [[episode([1, 2]), episode([0, 4])], [episode([3.0]), episode([9, 9], error="it broke"), episode([])]]
        plain = Reinforce(gamma=0.5, normalise=False)
        assert advantages(groups, plain) == [[[-0.5, -2], [-0.5, 2]], [[1], None, None]]
        # mean 0; squares 0.25 + 4 + 0.25 + 4 + 1 over five turns
        normal = advantages(groups, Reinforce(gamma=0.5))
        assert normal[0][0] == pytest.approx([-0.5 / sqrt(1.9), -2 / sqrt(1.9)])

    def test_a_turn_that_one_alone_has_reached_is_compared_with_nothing(self) -> None:
        assert advantages([[episode([1.0]), episode([3, 5])]], Reinforce(gamma=0, normalise=False)) == [[[-2], [2, 0]]]
        assert advantages([[episode([1.0, 7])]], Reinforce()) == [[[0, 0]]]

    @given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5), st.floats(0, 1))
    def test_what_an_episode_earned_itself_is_in_no_baseline_of_its_own(
        self, rewards: list[list[float]], gamma: float
    ) -> None:
        """More reward at the end of the first raises its own advantages by as much, discounted."""
        plain = Reinforce(gamma=gamma, normalise=False)
        before, after = (
            advantages([[episode([*rewards[0][:-1], rewards[0][-1] + more])], [episode(r) for r in rewards[1:]]], plain)
            for more in (0.0, 1.0)
        )
        turns, longest = len(rewards[0]), max(map(len, rewards[1:]))
        raised = [gamma ** (turns - 1 - t) if t < longest else 0.0 for t in range(turns)]
        assert np.subtract(after[0][0], before[0][0]) == pytest.approx(np.array(raised), abs=1e-9)  # type: ignore[arg-type]


GROUPED = {
    "grpo": GRPO(),
    "dr": GRPO(deviation="none"),
    "rloo": RLOO(),
    "gigpo": GiGPO(),
    "turns": TurnGRPO(),
    "plus": ReinforcePlusPlus(group=2),
}
grouped = pytest.mark.parametrize("settings", GROUPED.values(), ids=GROUPED)
returns = st.lists(st.floats(-10, 10), min_size=2, max_size=8)


def singles(values: list[float]) -> Group:
    """A group of episodes of one turn, all in different states."""
    return [episode([value], states=[i]) for i, value in enumerate(values)]


@grouped
class TestGroups:
    def test_without_differences_are_dropped(self, settings: Any) -> None:
        tenths = [episode([0.1] * 3, states=[1, 2, 3]), episode([0.3], states=[4])]  # 0.1 + 0.1 + 0.1 is not quite 0.3
        if settings.kind != "turn_grpo":  # to it, the sooner reward is another one
            assert advantages([tenths], settings) == [[None, None]]
        assert advantages([[episode([0.0])] * 3], settings) == [[None] * 3]

    def test_the_broken_and_the_empty_do_not_count(self, settings: Any) -> None:
        whole = [episode([1.0]), episode([3.0])]
        broken = [episode([50.0], error="it broke"), episode([])]
        mixed = [whole[0], broken[0], whole[1], broken[1]]
        first, second = advantages([whole], settings)[0]
        assert advantages([mixed], settings) == [[first, None, second, None]]
        assert advantages([[whole[0], *broken]], settings) == [[None] * 3]

    @given(returns)
    def test_advantages_of_a_group_add_up_to_nothing(self, settings: Any, returns: list[float]) -> None:
        assert sum(first_turns(singles(returns), settings)) == pytest.approx(0, abs=1e-5)

    @given(returns, st.floats(-10, 10))
    def test_a_constant_changes_nothing(self, settings: Any, returns: list[float], shift: float) -> None:
        rounded = [round(value, 3) for value in returns]
        shifted = [value + shift for value in rounded]
        before, after = first_turns(singles(rounded), settings), first_turns(singles(shifted), settings)
        assert after == pytest.approx(before, rel=1e-5, abs=1e-5)

    @given(st.permutations([0.0, 0.0, 1.0, 2.5, -3.0]))
    def test_order_does_not_matter(self, settings: Any, returns: list[float]) -> None:
        credited = dict(zip(returns, first_turns(singles(returns), settings), strict=True))
        inorder = dict(zip(sorted(returns), first_turns(singles(sorted(returns)), settings), strict=True))
        assert credited == pytest.approx(inorder)
        assert sorted(credited.values()) == [credited[value] for value in sorted(credited)]
