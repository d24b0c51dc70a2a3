"""ALFWorld in AI2-THOR, through a stand-in with the interface of `AlfredThorEnv`; the real one was never run here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput, RunFailed

TASKS = ["/data/pick_two_obj_and_place-Mug-None-Desk-301/t1/traj_data.json", "/data/look_at_obj_in_light-Cd/t2/x.json"]


class AlfredThorEnv:
    """Stand-in: the task is done by `use it`, three steps are an episode; lists of one game, as the original's."""

    def __init__(self, config: dict[str, Any], train_eval: str) -> None:
        self.config, self.train_eval = config, train_eval
        self.json_file_list = list(config["games"])
        self.closed = False

    def init_env(self, batch_size: int) -> AlfredThorEnv:
        assert batch_size == 1
        return self

    def reset(self) -> tuple[list[str], dict[str, Any]]:
        (self.task,) = self.json_file_list
        self.steps = 0
        return ["You are in the middle of a room."], self._infos(False)

    def step(self, actions: list[str]) -> tuple[list[str], None, list[bool], dict[str, Any]]:
        self.steps += 1
        won = actions == ["use it"]
        return [f"You {actions[0]}."], None, [won or self.steps >= 3], self._infos(won)

    def _infos(self, won: bool) -> dict[str, Any]:
        return {
            "admissible_commands": [["look", "use it"]],
            "won": [won],
            "goal_condition_success_rate": [float(won)],
            "extra.gamefile": [str(Path(self.task).parent)],
            "extra.expert_plan": [[]],
        }

    def get_frames(self) -> np.ndarray:
        frame = np.zeros((1, 6, 8, 3), np.uint8)
        frame[..., 0], frame[..., 2] = 10, 200  # blue first
        return frame[:, :, :, :]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = ModuleType("alfworld.agents.environment.alfred_thor_env")
    module.AlfredThorEnv = AlfredThorEnv  # type: ignore[attr-defined]
    for name in ("alfworld", "alfworld.agents", "alfworld.agents.environment"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    file = tmp_path / "base_config.yaml"
    file.write_text("games:\n" + "".join(f"- {task}\n" for task in TASKS))
    return file


def test_it_is_a_game_like_any_other(config: Path) -> None:
    game = GameMaker("household-thor", {"config": str(config), "split": "eval_in_distribution"})()
    kinds = set()
    for seed in range(12):
        observation, info = game.reset(seed=seed)
        assert game.observation_space.contains(observation)
        kinds.add(info["kind"])
    assert kinds == {"pick_two_obj_and_place", "look_at_obj_in_light"}
    assert tuple(observation.images[0][0, 0]) == (200, 0, 10), "red comes first"
    assert info["legal_actions"] == ("look", "use it")
    _, reward, terminated, truncated, info = game.step("look")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    _, reward, terminated, truncated, info = game.step("use it")
    assert (reward, terminated, truncated, info["success"], info["conditions"]) == (1.0, True, False, True, 1.0)
    first = game.reset(seed=5)[1]["kind"]
    assert game.reset(seed=5)[1]["kind"] == first, "the seed chooses the game"
    *_, truncated, _ = [game.step("look") for _ in range(3)][-1]
    assert truncated
    game.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "env_options.config=base_config.yaml"),
        ({"config": "/nowhere.yaml"}, "cannot be read"),
        ({"split": "test"}, "eval_in_distribution"),
    ],
)
def test_what_is_missing_is_said_in_one_line(config: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        GameMaker("household-thor", options)()
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_data_without_games_are_said(config: Path) -> None:
    config.write_text("games: []")
    with pytest.raises(BadInput, match="is ALFWORLD_DATA set"):
        GameMaker("household-thor", {"config": str(config)})()


def test_without_the_package_one_line_says_what_to_install(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld.agents.environment.alfred_thor_env", None)
    with pytest.raises(RunFailed, match=r"pip install 'sightline\[alfworld\]'"):
        GameMaker("household-thor", {"config": str(config)})()
