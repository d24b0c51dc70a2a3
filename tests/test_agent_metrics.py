"""What an update is told by, and when a run says that it is going wrong."""

from __future__ import annotations

import json
from math import log
from typing import Any

import pytest

from sightline.agents.alarms import Alarms
from sightline.agents.metrics import informativeness, merge_sums, repeated_thoughts, rollout_metrics, update_metrics
from sightline.agents.types import Failure, Trajectory
from sightline.config.agents import AlarmSettings as Limits
from small_trajectories import episode, turn


def metrics_of(*trajectories: Trajectory) -> dict[str, float | None]:
    return {name.removeprefix("rollout/"): value for name, value in rollout_metrics(trajectories).items()}


def played(*turns: Any, **rest: Any) -> Trajectory:
    return Trajectory(rest.pop("seed", 0), 0, list(turns), **rest)


class TestRollouts:
    def test_episodes(self) -> None:
        won = episode([0, 1], success=True)
        lost = episode([-1, -1, 0, 0], truncated=True)
        broken = episode([50.0], success=True, error="it broke")
        found = metrics_of(won, lost, broken)
        assert (found["success"], found["return"], found["return_std"]) == (0.5, -0.5, 1.5)
        assert found["reward"] == pytest.approx(-1 / 6)
        assert (found["length"], found["truncated"], found["errors"]) == (3, 0.5, 1)
        assert found["states"] == 4

    def test_truth(self) -> None:
        facts = {"target": "3", "current": "1"}
        found = metrics_of(
            played(
                turn(facts=facts, stated={"target": "3", "current": " 1"}),
                turn(facts=facts, stated={"target": "3", "current": "2"}),
                turn(facts=facts, stated={}),
                turn(facts={"word": "Stop"}, stated={"word": "stop"}),
                turn(facts={}, stated={"target": "8"}),
            )
        )
        assert found["truthful"] == pytest.approx(4 / 7)
        assert found["truthful_replies"] == pytest.approx(2 / 4)
        assert metrics_of(episode([1.0]))["truthful"] is None
        assert metrics_of(episode([1.0]))["truthful_replies"] is None

    def test_replies(self) -> None:
        found = metrics_of(
            played(
                turn(ids=(1, 2)),
                turn(legal=False),
                turn(action=None, failure=Failure.CUT_OFF, finished=False, ids=(1,) * 9),
                turn(action=None, failure=Failure.NO_ACTION, played="right"),
            ),
            played(turn(), turn(action=None, failure=Failure.NO_ACTION, played=None)),
            played(turn(), turn(action=None, failure=Failure.MALFORMED, played="left")),
        )
        assert found["illegal"] == pytest.approx(1 / 8)
        assert found["unparsable"] == pytest.approx(4 / 8)
        assert found["unparsable_no_action"] == pytest.approx(2 / 8)
        assert found["unparsable_cut_off"] == found["cut_off"] == pytest.approx(1 / 8)
        assert found["unparsable_malformed"] == pytest.approx(1 / 8)
        assert found["unparsable_empty"] == 0
        assert found["forfeited"] == pytest.approx(2 / 3)  # what was cut off was not replaced
        assert found["reply_tokens"] == pytest.approx((2 + 9 + 6 * 3) / 8)
        assert found["entropy"] == pytest.approx(0.5)

    def test_groups_without_differences(self) -> None:
        alike = [episode([1.0], seed=1), episode([0, 1], seed=1, success=True)]
        apart = [episode([1.0], seed=2), episode([0.0], seed=2)]
        single = [episode([1.0], seed=3), episode([2.0], seed=3, error="it broke")]
        assert metrics_of(*alike, *apart, *single)["zero_variance"] == 0.5
        assert metrics_of(*single)["zero_variance"] is None

    def test_of_nothing(self) -> None:
        found = metrics_of()
        assert {name for name, value in found.items() if value is not None} == {"errors", "states"}


class TestThoughts:
    def test_the_same_in_different_states(self) -> None:
        thoughts = ["go on", " Go  on", "turn", "go on", ""]
        turns = [turn(state=i, thoughts=text) for i, text in enumerate(thoughts)]
        assert repeated_thoughts(turns) == pytest.approx(3 / 4)

    def test_the_same_in_the_same_state_is_no_repetition(self) -> None:
        turns = [*(turn(state=1, thoughts="go on") for _ in range(10)), turn(state=2, thoughts="turn")]
        assert repeated_thoughts(turns) == 0.5
        assert repeated_thoughts(turns[:10]) is None
        assert repeated_thoughts([turn(state=1), turn(state=2)]) is None

    def test_informative(self) -> None:
        def said(*pairs: tuple[int, str]) -> float | None:
            return informativeness([turn(state=state, stated={"seen": text}) for state, text in pairs])

        assert said((1, "a"), (2, "b"), (1, "a"), (2, "b")) == pytest.approx(1)
        assert said((1, "a"), (2, "a"), (1, "a"), (2, "a")) == pytest.approx(0, abs=1e-12)
        # four states, two texts that tell them apart by halves: log 2 of log 4
        assert said((1, "a"), (2, "a"), (3, "b"), (4, "b")) == pytest.approx(log(2) / log(4))
        assert said((1, "a"), (1, "b")) is None
        assert informativeness([turn(state=1), turn(state=2)]) is None


class TestAdding:
    def test_sums_and_the_largest(self) -> None:
        parts = [{"ratio": 1.0, "ratio_max": 3.0}, {"ratio": 2.0, "ratio_max": 2.0, "tokens": 5.0}, {}]
        assert merge_sums(parts) == {"ratio": 3.0, "ratio_max": 3.0, "tokens": 5.0}
        assert merge_sums([{"low_max": -3.0}, {"low_max": -2.0}]) == {"low_max": -2.0}

    def test_per_turn_and_per_token(self) -> None:
        found = update_metrics({"turns": 2.0, "tokens": 10.0, "kl_old": 4.0, "entropy": 5.0})
        assert (found["update/kl_old"], found["update/entropy"]) == (2.0, 0.5)
        assert found["update/value_loss"] is None and found["update/explained_variance"] is None


HEALTHY = {
    "rollout/success": 0.5,
    "rollout/truthful": 0.9,
    "rollout/repeated_thoughts": 0.2,
    "rollout/zero_variance": 0.3,
    "rollout/return_std": 1.0,
    "update/entropy": 0.3,
    "update/kl_reference": 1.0,
    "update/kl_old": 0.1,
}
ILL = {
    "rollout/truthful": 0.6,
    "update/entropy": 0.001,
    "rollout/repeated_thoughts": 0.99,
    "update/kl_reference": 50.0,
    "rollout/zero_variance": 1.0,
}


class TestAlarms:
    def test_health_is_silent(self) -> None:
        alarms = Alarms(Limits(patience=1))
        assert [alarms.watch(HEALTHY) for _ in range(5)] == [[]] * 5

    @pytest.mark.parametrize("name", ILL)
    def test_said_once_after_some_updates_in_a_row(self, name: str) -> None:
        alarms, ill = Alarms(Limits(patience=3)), HEALTHY | {name: ILL[name]}
        said = [len(alarms.watch(metrics)) for metrics in [HEALTHY, ill, ill, HEALTHY, ill, ill, ill, ill, ill]]
        assert said == [0, 0, 0, 0, 0, 0, 1, 0, 0]
        assert alarms.watch(HEALTHY) == []
        assert [len(alarms.watch(ill)) for _ in range(3)] == [0, 0, 1]  # it began anew

    def test_too_large_a_step_is_said_at_once(self) -> None:
        alarms, ill = Alarms(Limits(patience=3)), HEALTHY | {"update/kl_old": 3.1}
        said = [alarms.watch(metrics) for metrics in [HEALTHY, ill, ill, HEALTHY, ill]]
        assert [len(lines) for lines in said] == [0, 1, 0, 0, 1]
        assert "3.1 nats" in said[1][0] and "lower update.learning_rate" in said[1][0]

    def test_a_sampler_unlike_the_learner_is_said_at_once(self) -> None:
        alarms = Alarms(Limits(patience=3))
        said = [alarms.watch(HEALTHY | {"update/mismatch": mismatch}) for mismatch in (1e-5, 0.9, 0.9)]
        assert [len(lines) for lines in said] == [0, 1, 0]
        assert "differ from the learner's by 90% a token" in said[1][0]

    def test_one_line_that_says_what_to_do(self) -> None:
        alarms = Alarms(Limits(patience=1))
        alarms.watch(HEALTHY)
        lines = alarms.watch(HEALTHY | ILL)
        assert len(lines) == 5 and len(set(lines)) == 5
        assert all("\n" not in line and ("raise" in line or "lower" in line) for line in lines)
        assert "60%" in lines[0] and "90%" in lines[0]

    def test_truth_is_measured_from_its_best(self) -> None:
        alarms = Alarms(Limits(patience=1, perception_drop=0.2))
        values = [0.3, 0.2, 0.9, 0.75, 0.65, 0.5]
        assert [len(alarms.watch({"rollout/truthful": value})) for value in values] == [0, 0, 0, 0, 1, 0]

    def test_what_was_not_measured_changes_nothing(self) -> None:
        alarms, ill = Alarms(Limits(patience=2)), {"update/kl_reference": 50.0}
        missing: list[dict[str, float | None]] = [{}, {"update/kl_reference": None}]
        assert [alarms.watch(metrics) != [] for metrics in [ill, *missing, ill]] == [False, False, False, True]

    def test_patience_of_nothing(self) -> None:
        assert len(Alarms(Limits(patience=0)).watch({"update/kl_reference": 50.0})) == 1

    def test_alike_episodes(self) -> None:
        def says(**metrics: float | None) -> bool:
            return bool(Alarms(Limits(patience=1)).watch({f"rollout/{name}": value for name, value in metrics.items()}))

        assert says(success=0.0, zero_variance=1.0)
        assert not says(success=1.0, zero_variance=1.0)  # all are won: that is how it should end
        assert says(success=0.0, zero_variance=None, return_std=0.0)
        assert not says(success=0.0, zero_variance=None, return_std=0.5)
        assert not says(success=0.0, zero_variance=0.5, return_std=0.0)

    def test_goes_on_as_if_never_stopped(self) -> None:
        updates = [HEALTHY, HEALTHY | ILL, HEALTHY | ILL, HEALTHY | ILL, HEALTHY]
        straight, first = Alarms(Limits(patience=3)), Alarms(Limits(patience=3))
        expected = [straight.watch(metrics) for metrics in updates]
        said = [first.watch(metrics) for metrics in updates[:2]]
        resumed = Alarms(Limits(patience=3))
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert said + [resumed.watch(metrics) for metrics in updates[2:]] == expected
        assert any(expected)
