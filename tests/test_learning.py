"""Does a policy learn from the words alone, and not from other words? (Minutes; deselect with `-m "not learning"`.)"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished

pytestmark = pytest.mark.learning

BUDGET = (
    *("seed=1", "videos=false", "tensorboard=false", "checkpoints.every=20000", "evaluation.every=4000"),
    *("evaluation.episodes=3", "evaluation.test_episodes=5", "evaluation.background=false"),
)
"""All steps of the recipe, and little of its evaluation; with the encoder of 21 November, seeds 0, 1 and 2 all reach
100 %, and none of them with the words swapped."""
GOAL, BASELINE = "pole vertically upright on top of the cart", "pole and cart"


def learn(sightline: Callable[..., Finished], run: Path, goal: str, baseline: str) -> dict[str, Any]:
    arguments = ("train", "cartpole", f"goal={goal}", f"baseline={baseline}", *BUDGET, "--run-dir", run, "--json")
    done = sightline(*arguments)
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)
    return result


def test_the_words_teach(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    result = learn(sightline, tmp_path / "run", GOAL, BASELINE)
    assert result["success_rate"] >= 0.8
    assert result["untrained"]["success_rate"] <= 0.1
    assert result["reward"] > result["untrained"]["reward"] + 0.05, "the words see it too"


def test_other_words_do_not(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    """Everything else is the same: were it not the words that teach, this would succeed as well."""
    result = learn(sightline, tmp_path / "run", goal=BASELINE, baseline=GOAL)
    assert result["success_rate"] <= 0.1


CAR = (
    *("steps=6000", "seed=1", "videos=false", "tensorboard=false", "checkpoints.every=10000"),
    *("evaluation.every=3000", "evaluation.episodes=2", "evaluation.test_episodes=5"),
    *("learner.learning_starts=2000", "learner.gradient_steps=32", "learner.learning_rate=0.002"),
)
"""Three fifths of the recipe's steps, in fewer and larger updates; with the encoder of 23 November, seeds 0 to 4 reach
100 %. Five sixths of these steps reach it with seeds 1 and 2, and not with 0 and 3."""
AT_THE_FLAG, ANYWHERE = "a car at the peak of the mountain, next to the yellow flag", "a car in the mountain"


@pytest.mark.parametrize(
    ("goal", "baseline", "learns"),
    [
        pytest.param(AT_THE_FLAG, ANYWHERE, True, id="the words"),
        pytest.param(ANYWHERE, AT_THE_FLAG, False, id="swapped"),
    ],
)
def test_progress_teaches(
    sightline: Callable[..., Finished], tmp_path: Path, goal: str, baseline: str, learns: bool
) -> None:
    """A car that is paid for coming nearer reaches the flag; paid for going away from it, it does not."""
    words = (f"goal={goal}", f"baseline={baseline}")
    done = sightline("train", "mountain-car-progress", *words, *CAR, "--run-dir", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["untrained"]["success_rate"] <= 0.1
    if learns:
        assert result["success_rate"] >= 0.8
        assert result["reward"] > result["untrained"]["reward"] + 0.02, "the words see it too"
    else:
        assert result["success_rate"] <= 0.1
