"""Games in worker processes: played as in one process, and lost alone when they die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.agents.evaluation import evaluate_policy, play_eval_seeds
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.agents.trajectory_log import trajectory_log
from sightline.config.agents import Replies
from sightline.envs.games.making import GameMaker
from sightline.envs.games.processes import GamePool, RemoteGame, begin
from sightline.envs.games.wrapping import has_oracle, oracle
from sightline.errors import RunFailed
from sightline.evaluation.seeds import make_panel
from sightline_tasks.games.number_line import NumberLine
from small_runs import Scripted, looks

HERE = "test_game_processes"
FATAL, UNREADABLE = 1_000_001, 1_000_002


class Fragile(NumberLine):
    """Its process dies at the first step of one seed; a part of another's infos cannot be sent; a third raises."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.given = seed
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Any:
        if self.given == FATAL:
            os._exit(1)
        *result, info = super().step(action)
        return *result, info | ({"odd": lambda: None} if self.given == UNREADABLE else {})


class Local(Exception):
    """Cannot be made again from what it is pickled as."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Angry(NumberLine):
    def step(self, action: np.int64) -> Any:
        raise Local("not", "now")


@pytest.fixture
def pool() -> Iterator[GamePool]:
    found = GamePool(GameMaker("numberline"), processes=2)
    yield found
    found.close()


def test_a_remote_game_is_as_one_here(pool: GamePool) -> None:
    here = GameMaker("numberline")()
    for slot in (0, 1, 2):
        game = pool[slot]
        assert isinstance(game, RemoteGame) and pool[slot] is game
        assert game.get_wrapper_attr("action_names") == here.get_wrapper_attr("action_names")
        assert game.get_wrapper_attr("asked") == here.get_wrapper_attr("asked")
        assert game.metadata == here.metadata and has_oracle(game)
        (text, (image,)), info = game.reset(seed=slot)
        (text_here, (image_here,)), info_here = here.reset(seed=slot)
        assert text == text_here and info == info_here and np.array_equal(image, image_here)
        assert oracle(game) == oracle(here)
        assert np.array_equal(game.render(), here.render())
        assert str(game.step("+")) == str(here.step("+"))
    first, second, third = (pool[slot].process for slot in (0, 1, 2))
    assert first is third and first is not second


def test_calls_are_answered_in_any_order(pool: GamePool) -> None:
    for slot in (0, 2):
        pool[slot].reset(seed=3)
    results = [begin(pool[slot], "step", "+") for slot in (0, 2)]
    texts = [str(result()) for result in reversed(results)]
    assert texts[0] == texts[1]


def test_evaluation_finds_the_same_numbers() -> None:
    panel = make_panel("test", "numberline", 12)

    def play(**options: Any) -> tuple[list[Any], dict[str, Any]]:
        worker = RolloutWorker(GameMaker("numberline"), Replies(), parallel=5, keeps_frames=True, **options)
        try:
            played = play_eval_seeds(worker, Scripted(looks), panel)
            frames = [turn.frame for one in played for turn in one.turns]
            assert all(frame is not None and frame.dtype == np.uint8 for frame in frames)
            return json.loads(json.dumps(trajectory_log(played)[0])), evaluate_policy(worker, Scripted(looks), panel)
        finally:
            worker.close()

    assert play(workers="processes") == play()


def test_a_process_that_dies_takes_its_own_episodes_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.agents.rollouts.available_cores", lambda: 2)
    worker = RolloutWorker(GameMaker(f"{HERE}:Fragile"), Replies(), parallel=4, workers="processes")
    seeds = [FATAL, 2_000_001, 2_000_002, UNREADABLE, *range(2_000_003, 2_000_009)]
    try:
        played = {one.seed: one for one in worker.play(Scripted(looks), [EpisodeTask(seed) for seed in seeds])}
    finally:
        worker.close()
    assert "the process of an environment died" in str(played[FATAL].error)
    # Slots 0 and 2 share the processes that died.
    assert played[2_000_002].restarts >= 1 and played[FATAL].restarts == 2
    others = [one for seed, one in played.items() if seed != FATAL]
    assert all(one.error is None and one.success for one in others)


class Killed(NumberLine):
    """Its process is killed once, by somebody else, as the system does it for its memory."""

    def __init__(self, mark: str, when: str, **options: Any) -> None:
        super().__init__(**options)
        self.mark, self.when, self.steps = Path(mark), when, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        self.die("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Any:
        self.steps += 1
        self.die(f"step {self.steps}")
        return super().step(action)

    def die(self, moment: str) -> None:
        if moment != self.when:
            return
        try:
            # Two processes may come here at once; only one can make the file.
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Unrepeatable(Killed):
    """Begins elsewhere each time."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=(seed or 0) + self.mark.exists(), options=options)


@pytest.mark.parametrize("when", ["reset", "step 1", "step 2"])
def test_an_episode_whose_process_is_killed_is_repeated(when: str, tmp_path: Path) -> None:
    def play(env: str, **options: Any) -> list[Any]:
        worker = RolloutWorker(GameMaker(env, options), Replies(), parallel=2, workers="processes")
        try:
            played = worker.play(Scripted(looks), [EpisodeTask(seed) for seed in range(2_000_000, 2_000_003)])
        finally:
            worker.close()
        assert sum(one.restarts for one in played) == (env != "numberline")
        return trajectory_log(played)[0]

    assert play(f"{HERE}:Killed", mark=str(tmp_path / "mark"), when=when) == play("numberline")


def test_one_that_does_not_repeat_itself_is_broken(tmp_path: Path) -> None:
    options = {"mark": str(tmp_path / "mark"), "when": "step 1"}
    worker = RolloutWorker(GameMaker(f"{HERE}:Unrepeatable", options), Replies(), parallel=1, workers="processes")
    try:
        (played,) = worker.play(Scripted(looks), [EpisodeTask(2_000_000)])
    finally:
        worker.close()
    assert "died" in str(played.error) and "does not repeat itself" in str(played.error)


def test_an_error_that_cannot_be_sent_says_the_same() -> None:
    pool = GamePool(GameMaker(f"{HERE}:Angry"), processes=1)
    try:
        pool[0].reset(seed=0)
        with pytest.raises(RunFailed, match="Local: not now"):
            pool[0].step("+")
        pool[0].reset(seed=1)  # the process is still there
    finally:
        pool.close()


def test_an_ended_process_is_made_again(pool: GamePool) -> None:
    game = pool[0]
    assert isinstance(game, RemoteGame)
    game.process.close()
    with pytest.raises(RunFailed, match="died"):
        game.reset(seed=0)
    assert pool[0] is not game
    pool[0].reset(seed=0)
