"""A few of all registered ids, of each kind one: trained, evaluated and resumed, or refused in a line.

`benchmarks/everybodys_environments.py` tries every id in the same way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from everybodys_environments import FAILED, FROM_STATES, REFUSED, TRAINED, ids, table, try_one

SAMPLE = {
    "CartPole-v1": (TRAINED, ""),
    "MountainCarContinuous-v0": (TRAINED, ""),
    "FrozenLake-v1": (TRAINED, ""),
    "Blackjack-v1": (TRAINED, ""),
    "MiniGrid-Empty-5x5-v0": (TRAINED, ""),
    "InvertedPendulum-v5": (TRAINED, ""),
    "sightline/NumberLine-v0": (TRAINED, ""),
    "phys2d/CartPole-v1": (REFUSED, "needs a package that is not installed"),
    "Meta-World/MT10": (REFUSED, "is registered for vectors of environments only"),
    "Ant-v3": (REFUSED, "environment 'Ant-v3'"),
}
"""Id -> what becomes of it, and a part of the line."""


@pytest.mark.parametrize("env_id", SAMPLE)
def test_an_id_is_learned_from_or_refused_in_a_line(
    env_id: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    known = ids()
    if env_id not in known:
        pytest.skip("its package is not installed, or registers no such id any more")
    if "Pendulum" in env_id:
        request.getfixturevalue("opengl")
    verdict, said = SAMPLE[env_id]
    outcome = try_one(env_id, known[env_id], tmp_path)
    assert outcome.verdict == verdict, outcome.line
    assert said in outcome.line
    assert "\n" not in outcome.line


def test_the_table_counts_each_end_by_package() -> None:
    def row(verdict: str, line: str = "") -> dict[str, str]:
        return {"verdict": verdict, "line": line, "package": "toy"}

    results = {"A-v0": row(TRAINED), "B-v0": row(FROM_STATES, "no pictures"), "C-v0": row(REFUSED, "'C-v0' is none")}
    *_, last = table(results | {"D-v0": row(FAILED, "KeyError: 'x'")}).splitlines()
    assert last == "everybody's environments: 4 ids; 2 learned from (1 from states), 1 refused in a line, 1 failed"
