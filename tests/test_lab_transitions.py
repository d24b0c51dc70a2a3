"""EPIC of transitions in the lab: which steps are known, what it is 0 for, and functions that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from sightline.datasets.episode import Episode
from sightline.errors import BadInput
from sightline.reward_lab.measures.epic import epic
from sightline.reward_lab.measures.table import ScoredFrames
from sightline.reward_lab.scoring import LabScores, SeenTransitions, _Facts
from sightline.reward_lab.sources import Source
from sightline.reward_lab.transitions import TrueReward, check_against_own, epic_by_transitions
from sightline.rewards.base import RewardModel

DISCOUNT = 0.9
COUNT = 300


class OfState(RewardModel):
    """Reads the frame reached, as far as anybody asks."""


class OfTwo(RewardModel):
    window = 2


def scores(noise: float = 0.0) -> LabScores:
    """A walk whose reward is the square of the state reached, with noise; ten episodes."""
    rng = np.random.default_rng(3)
    states = rng.normal(size=(COUNT, 1))
    next_states = states + 0.3 * rng.normal(size=(COUNT, 1))
    rewards = next_states[:, 0] ** 2 + noise * rng.normal(size=COUNT)
    episode = np.repeat(np.arange(10), COUNT // 10)
    step = np.tile(np.arange(COUNT // 10), 10)
    shaped = shaped_square(states, np.zeros((COUNT, 1)), next_states)
    frames = ScoredFrames(rewards, episode, step, ["random"] * 10, truth=shaped)
    seen = SeenTransitions(np.arange(COUNT), states, rng.normal(size=(COUNT, 1)), next_states)
    return LabScores(frames, {"own": rewards}, {}, {}, (), seen)


def shaped_square(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    """The same reward, twice and with a constant, shaped by a potential."""
    potential = 4 * np.sin(states[:, 0])
    next_potential = 4 * np.sin(next_states[:, 0])
    return np.asarray(2 * next_states[:, 0] ** 2 + 5 + DISCOUNT * next_potential - potential)


def distance(of: LabScores, truth: Any = shaped_square, model: RewardModel | None = None) -> Any:
    return epic_by_transitions(model or OfState(), "own", of, TrueReward.of(truth), DISCOUNT)


def test_a_shaped_ground_truth_is_the_same_one() -> None:
    found = distance(scores())
    # Shaping and rescaling cancel exactly, at any background; the state form, which knows nothing of it, is far off.
    assert found.value == pytest.approx(0, abs=1e-6)
    plain = epic(scores().of("own"))
    assert plain.value is not None and plain.value > 0.05
    assert found.n == COUNT and found.details == {"coverage": "random", "background": 64, "discount": DISCOUNT}


def test_it_grows_with_noise() -> None:
    values = [distance(scores(noise)).value for noise in (0.0, 0.5, 2.0, 8.0)]
    assert values == sorted(values) and values[-1] > 0.5


def test_what_is_undefined() -> None:
    assert "no episode tells" in distance(replace(scores(), transitions=None)).undefined
    assert "more than the state reached" in distance(scores(), model=OfTwo()).undefined
    nothing = replace(scores(), rewards={"own": np.full(COUNT, np.nan)})
    assert distance(nothing).undefined == "no transition has a reward" and distance(nothing).missing == COUNT
    constant = distance(scores(), lambda states, actions, next_states: np.ones(len(states)))
    assert constant.undefined == "the ground truth is constant but for shaping"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda states, actions, next_states: states, r"returns the shape \[300, 1\] for 300 transitions"),
        (lambda states, actions, next_states: np.log(-np.abs(states[:, 0])), "not finite"),
        (lambda states: states, "fails: "),
        ("nothing:at_all", "cannot import 'nothing'"),
        ("math:pi", "'math:pi' is no function"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_that_are_refused(function: Any, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        distance(scores(), function)


def test_another_reward_than_the_environment_paid_is_counted() -> None:
    lines: list[str] = []
    of = scores()
    check_against_own(TrueReward.of(shaped_square), of, lines.append)
    assert lines == []
    assert of.frames.truth is not None
    of.frames.truth[:7] += 1.0
    check_against_own(TrueReward.of(shaped_square), of, lines.append)
    assert "in 7 of 300 steps, by up to 1" in lines[0]


def test_steps_whose_state_before_is_known() -> None:
    facts = _Facts(keeps_transitions=True)
    source = Source("random", lambda *_: iter(()))
    states = np.arange(3.0)[:, None]
    actions = 10 + states
    known = Episode("random", states=states, actions=actions, reset_state=np.array([-1.0]))
    facts.add(known, source, 3, begins=True)
    facts.add(replace(known, reset_state=None), source, 3, begins=True)
    facts.add(replace(known, actions=None), source, 3, begins=True)
    facts.add(known, replace(source, still=True), 3, begins=True)
    seen = facts.transitions()
    assert seen is not None
    assert seen.rows.tolist() == [0, 1, 2, 4, 5]
    assert seen.states[:, 0].tolist() == [-1, 0, 1, 0, 1]
    assert seen.actions[:, 0].tolist() == [10, 11, 12, 11, 12]
    assert seen.next_states[:, 0].tolist() == [0, 1, 2, 1, 2]
    assert _Facts().transitions() is None


def test_the_lab_takes_a_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "truth.py").write_text(
        "import numpy as np\n"
        "def swing(states, actions, next_states):\n"
        "    angle = np.arctan2(states[:, 1], states[:, 0])\n"
        "    return -(angle**2 + 0.1 * states[:, 2] ** 2 + 0.001 * np.clip(actions[:, 0], -2, 2) ** 2)\n"
    )
    document = sl.lab(
        "Pendulum-v1", goal="a pole upright", episodes=1, play=["random"], true_reward=f"{tmp_path / 'truth.py'}:swing"
    )
    own = document["epic_of_transitions"]
    # It is what Gymnasium's Pendulum pays, so that nothing is warned of.
    assert not any("differs from" in line for line in document["warnings"])
    assert own["n"] == 200 and own["details"]["discount"] == 0.99 and 0 < own["value"] < 1
