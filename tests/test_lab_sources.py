"""Sources of the lab that play: states of a file, and the quality of what is played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import sightline as sl
from sightline.datasets.episode import Episode
from sightline.datasets.stored import StoredEpisode
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline.evaluation.landscape import put_state
from sightline.reward_lab import running
from sightline.reward_lab.contenders import contenders
from sightline.reward_lab.running import LabData
from sightline.reward_lab.scoring import build_rewards
from sightline.reward_lab.sources import Source, _sometimes_random, ranked, states_of_file


class Model:
    nq = 2
    nv = 1


class Simulator(gymnasium.Env[Any, Any]):
    """As Gymnasium's MuJoCo environments are put into a state."""

    def __init__(self) -> None:
        self.model = Model()
        self.put: list[np.ndarray] = []

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        self.put = [qpos, qvel]


class OneArray(gymnasium.Env[Any, Any]):
    put: Any = None

    def set_state(self, state: np.ndarray) -> None:
        self.put = state


class Attribute(gymnasium.Env[Any, Any]):
    state: Any = (0.0, 0.0, 0.0)


def test_states_are_put_as_the_environment_takes_them() -> None:
    simulator, one, attribute = Simulator(), OneArray(), Attribute()
    for env in (simulator, one, attribute):
        put_state(env, np.array([1.0, 2.0, 3.0]))
    assert simulator.put[0].tolist() == [1, 2] and simulator.put[1].tolist() == [3]
    assert one.put.tolist() == [1, 2, 3]
    assert attribute.state.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (Simulator(), r"holds 2 numbers, and the environment takes 3 \(set_state: 2 of qpos, then 1 of qvel\)"),
        (Attribute(), "holds 2 numbers, and the environment takes 3"),
        (gymnasium.Env(), "cannot be put into a state: give it a method set_state"),
    ],
)
def test_states_that_do_not_fit(env: Any, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        put_state(env, np.zeros(2))


def test_states_of_a_file(tmp_path: Path) -> None:
    states = np.array([[0.0, 0.0], [np.nan, 0.0], [np.pi, 0.0]])
    np.save(tmp_path / "states.npy", states)
    lines: list[str] = []
    source = states_of_file(Task("Pendulum-v1", "Pendulum-v1"), tmp_path / "states.npy", 0, lines.append)
    (episode,) = source.episodes(EnvMaker("Pendulum-v1", render=True), lambda frames: frames)
    assert source.still and source.name == "states.npy" and episode.steps == 2
    assert episode.env_reward is not None and episode.env_reward[0] > -0.01 > -9 > episode.env_reward[1]
    assert "not finite: 1" in lines[0]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (np.zeros(3), r"a state in each row, and holds \[3\]"),
        (np.array([["a"]]), "array of numbers"),
        (np.full((2, 2), np.nan), "no state in .* is finite"),
        (np.zeros((0, 2)), "a state in each row"),
    ],
)
def test_files_of_states_that_are_refused(states: np.ndarray, expected: str, tmp_path: Path) -> None:
    np.save(tmp_path / "states.npy", states)
    with pytest.raises(BadInput, match=expected):
        states_of_file(Task("x", "x"), tmp_path / "states.npy", 0, print)


def test_no_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "states.npy").write_text("1,2,3")
    with pytest.raises(BadInput, match="cannot be read as an array"):
        sl.lab("Pendulum-v1", goal="a rod", states=tmp_path / "states.npy")


def played(*successes: list[bool] | None) -> Source:
    def read(*_: object) -> Iterator[Episode]:
        for success in successes:
            frames = np.zeros((3, 2, 2, 3), np.uint8)
            yield Episode("random", frames=frames, success=None if success is None else np.array(success))

    return Source("random", read)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("every", ["suboptimal", "suboptimal", None]),
        ("any", ["successful", "successful", None]),
        ("end", ["successful", "suboptimal", None]),
    ],
)
def test_the_rule_of_the_task_says_the_quality(rule: Any, expected: list[str | None]) -> None:
    source = played([False, False, True], [True, True, False], None)
    found = ranked(source, Task("x", "x", success=rule), "suboptimal").episodes(None, None)  # type: ignore[arg-type]
    assert [getattr(episode, "quality", None) for episode in found] == expected


def test_a_run_plays_as_it_learned_and_half_at_random(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, float]] = []

    def play(run: Any, env: str, episodes: int, seed: int, trust: bool, random_share: float = 0.0) -> Source:
        asked.append((env, random_share))
        return played([False, True, False])

    monkeypatch.setattr(running, "trained_play", play)
    monkeypatch.setattr(running, "open_run", lambda folder: folder)
    (own,) = build_rewards(contenders("cartpole", [], {}))
    sources = LabData(play=(), runs=(tmp_path,)).sources(own, None, print)
    # The environment is named as in the run's recipe, and not by the id of its task.
    assert asked == [("cartpole", 0.0), ("cartpole", 0.5)] and len(sources) == 2
    qualities = []
    for source in sources:
        (episode,) = source.episodes(None, None)  # type: ignore[arg-type]
        assert isinstance(episode, StoredEpisode)
        qualities.append(episode.quality)
    assert qualities == ["failure", "suboptimal"]


def test_half_of_the_actions_are_random() -> None:
    acting = _sometimes_random(lambda _: np.full((1, 1), 9.0), EnvMaker("Pendulum-v1"), 0.5, 0)
    actions = np.array([acting(np.zeros((1, 3))) for _ in range(400)])
    assert 160 < np.count_nonzero(actions == 9) < 240 and np.abs(actions[actions != 9]).max() <= 2
