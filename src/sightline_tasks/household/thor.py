"""ALFWorld's households in AI2-THOR, for those who have its Unity build: photographs instead of our drawings.

`AlfredThorEnv` of the package `alfworld` is driven as it is, one game at a time. **It has never been run here**, where
neither the build nor the data are: tests drive a stand-in with its interface.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import yaml

from sightline.envs.games.contract import ActionText, AnyText
from sightline.envs.games.text_game import TextGame, text_game
from sightline.envs.tasks import Task
from sightline.errors import BadInput, one_of
from sightline_tasks.household.goals import KINDS

SPLITS = ("train", "eval_in_distribution", "eval_out_of_distribution")


def thor_game(config: str = "", split: str = "train", render_mode: str | None = None) -> TextGame:
    """Make a game of `AlfredThorEnv`: its sentences, its photographs, its admissible commands.

    Args:
        config: ALFWorld's configuration file (`base_config.yaml`).
        split: one of `SPLITS`, whose data the configuration names.
        render_mode: for Gymnasium; pictures are part of the observation anyway.

    Raises:
        BadInput: there is no such configuration or split, or it has no games.
        gymnasium.error.DependencyNotInstalled: `alfworld` is missing.
    """
    return text_game(
        lambda: Thor(config, split), commands="admissible_commands", pictures="picture", success="won", kind="kind"
    )


class Thor(gymnasium.Env[str, str]):
    """`AlfredThorEnv` with one game, as a Gymnasium environment that is played in words.

    Infos hold `admissible_commands`, `won`, `conditions` (the share of the goal's conditions that are true), `picture`
    (uint8[H, W, 3]) and `kind` (of the task). Reward: 1 when the task is done, which ends the episode, else 0. Where
    ALFWorld itself ends an episode, at its limit of steps, it is truncated. The seed chooses the game.

    Args, Raises: as `thor_game`.
    """

    def __init__(self, config: str, split: str) -> None:
        one_of("split", split, SPLITS)
        settings = None
        try:
            if config:
                settings = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise BadInput(f"'{config}' cannot be read as ALFWorld's configuration: {error}".split("\n")[0]) from error
        if not isinstance(settings, dict):
            raise BadInput("say where ALFWorld's configuration is: env_options.config=base_config.yaml")
        try:
            from alfworld.agents.environment.alfred_thor_env import AlfredThorEnv
        except ImportError as error:
            raise gymnasium.error.DependencyNotInstalled(f"{error}; pip install 'sightline[alfworld]'") from error
        self._env = AlfredThorEnv(settings, train_eval=split)
        self._tasks = sorted(self._env.json_file_list)
        if not self._tasks:
            raise BadInput(f"'{config}' names no games for split={split}; is ALFWORLD_DATA set?")
        # One game at a time: its episodes are played by our own workers.
        self._env.init_env(batch_size=1)
        self.observation_space: Any = AnyText()
        self.action_space: Any = ActionText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        # It samples from its list by Python's own generator; a list of one leaves no choice.
        task = self._tasks[int(self.np_random.integers(len(self._tasks)))]
        self._env.json_file_list = [task]
        sentences, infos = self._env.reset()  # lists, with an entry for each game that is played at once: one
        return str(sentences[0]), self._info(infos)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        sentences, _, dones, infos = self._env.step([action])
        info = self._info(infos)
        won = info["won"]
        truncated = bool(dones[0]) and not won
        return str(sentences[0]), float(won), won, truncated, info

    def _info(self, infos: dict[str, Any]) -> dict[str, Any]:
        blue_green_red = self._env.get_frames()[0]
        return {
            "admissible_commands": list(infos["admissible_commands"][0]),
            "won": bool(infos["won"][0]),
            "conditions": float(infos["goal_condition_success_rate"][0]),
            "picture": np.ascontiguousarray(blue_green_red[:, :, ::-1], np.uint8),
            "kind": _kind_of_task(Path(str(infos["extra.gamefile"][0]))),
        }

    def close(self) -> None:
        self._env.close()


def _kind_of_task(file: Path) -> str:
    """Kind of the task of a game's file, by the folder in which it lies; empty if none says it."""
    for kind in KINDS:
        if any(folder.startswith(kind) for folder in file.parts):
            return kind
    return ""


TASK = Task(
    name="household-thor",
    env="sightline/HouseholdThor-v0",
    goal=("the task of the house is done",),
    baseline=("a room with furniture",),
    success="end",
    is_game=True,
    text_actions=True,
    summary="ALFWorld's household tasks in AI2-THOR, for those who have its build (not run here).",
)
