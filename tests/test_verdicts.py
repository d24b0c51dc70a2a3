"""Verdicts of a run in words, by cases whose answers are known."""

from __future__ import annotations

from typing import Any

import pytest

from sightline.reports.verdicts import learning_verdict, next_steps, readable_verdict, reward_verdict, verdicts


def rate(value: float, reach: float = 0.05) -> dict[str, Any]:
    return {"success_rate": value, "ci_low": value - reach, "ci_high": value + reach}


def returned(value: float, reach: float = 1.0) -> dict[str, Any]:
    return {"return": value, "return_ci_low": value - reach, "return_ci_high": value + reach}


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        (rate(0.1), rate(0.9), "Yes"),
        (rate(0.1), rate(0.15), "Not shown"),
        (rate(0.0), rate(0.0), "No"),
        (rate(0.95), rate(0.95), "Nothing to learn"),
        (returned(-50.0), returned(-10.0), "Yes"),
        (returned(-10.0), returned(-50.0), "No"),
    ],
)
def test_did_it_learn(before: dict[str, Any], after: dict[str, Any], answer: str) -> None:
    verdict = learning_verdict(after | {"untrained": before})
    assert verdict is not None and (verdict.answer, verdict.good) == (answer, answer == "Yes")


def test_nothing_is_judged_without_numbers() -> None:
    assert learning_verdict({}) is None and readable_verdict({}) is None and reward_verdict([]) is None
    assert verdicts({}, {}, []) == [] and next_steps({}, {}, []) == []


def evaluations(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        {"step": 100 * (i + 1), "evaluation/reward": reward, "evaluation/success_rate": success}
        for i, (reward, success) in enumerate(pairs)
    ]


def test_a_reward_that_chooses_well_agrees_and_one_that_does_not_is_named() -> None:
    rising = evaluations((0.1, 0.0), (0.2, 0.3), (0.3, 0.6), (0.4, 0.9))
    good = reward_verdict(rising, 400)
    assert good is not None and good.good and "rank correlation with success is 1.00" in good.because
    saturated = reward_verdict(evaluations((0.4, 0.9), (0.3, 1.0), (0.2, 1.0), (0.41, 1.0)), 400)
    assert saturated is not None and saturated.good
    wrong = reward_verdict(evaluations((0.4, 0.0), (0.3, 0.1), (0.2, 0.2), (0.1, 0.25)), 100)
    assert wrong is not None and (wrong.answer, wrong.good) == ("No", False)
    assert "It chose step 100 with 0" in wrong.because and "step 400 had 25" in wrong.because
    assert reward_verdict(rising[:3], 300) is None


def test_a_warm_start_alone_is_told_how_to_go_on() -> None:
    result = rate(0.4) | {"untrained": rate(0.4)}
    assert [verdict.question for verdict in verdicts({"steps": 0}, result, [])] == []
    (step,) = next_steps({"steps": 0}, result, [])
    assert "policy.model=" in step and "--resume" not in step


def test_what_cannot_be_read_comes_first_and_says_what_to_do() -> None:
    result = {**rate(0.5), "unparsable": 1.0, "replaced": 1.0, "untrained": rate(0.1)}
    first = verdicts({}, result, [])[0]
    assert (first.question, first.answer) == ("Can it be understood?", "No")
    assert "Random moves were played in place of 100" in first.because
    assert next_steps({"steps": 100}, result, []) == [
        "Teach the model the form of its replies first (warm_start={}), or choose a model that can write it."
    ]


def test_a_run_that_was_too_short_is_told_to_go_on() -> None:
    metrics = evaluations((0.4, 0.0), (0.3, 0.1), (0.2, 0.2), (0.1, 0.25))
    result = {**rate(0.0), "untrained": rate(0.0), "chosen_step": 100}
    told = next_steps({"steps": 8000, "goal": ["pole upright"]}, result, metrics)
    assert told[0].startswith("The reward does not say what is wanted") and "steps=16000" in told[1]
    assert "the videos show which states it likes" in told[0]
    drawn = next_steps({"goal": ["pole upright"]}, result, metrics, has_landscape=True)
    assert "the landscape below shows which states it likes" in drawn[0]


def test_the_seeds_to_try_are_others() -> None:
    for seed, others in ((0, "seed=1, seed=2"), (1, "seed=0, seed=2"), (7, "seed=0, seed=1")):
        (step,) = next_steps({"seed": seed}, rate(0.9) | {"untrained": rate(0.1)}, [])
        assert others in step
