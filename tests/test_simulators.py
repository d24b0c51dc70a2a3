"""Simulators of every kind of bad behaviour: nothing hangs, nothing is lost, nothing stays behind."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import odd_simulators
from conftest import TESTS, Finished
from sightline.control.trainer import ControlTrainer
from sightline.envs.frame_vector import FrameVectorEnv
from sightline.envs.games.processes import GamePool, begin
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput, RunFailed
from sightline.runs.stopping import StopRequests

Sightline = Callable[..., Finished]
Start = Callable[..., "subprocess.Popen[str]"]
COUNT = 3
QUICK = (
    "reward.kind=ground_truth",
    "envs=2",
    "steps=32",
    "learner.chunk=4",
    "learner.buffer_size=64",
    "learner.learning_starts=8",
    "evaluation.every=16",
    "evaluation.episodes=2",
    "evaluation.test_episodes=2",
    "videos=false",
    "tensorboard=false",
)
DEATHS = {
    "is killed": "SIGKILL; out of memory?",
    "crashes": "SIGSEGV",
    "ends": "it ended with exit code 3",
    "hangs": "no answer within step_timeout=2 seconds",
}


def own_seed(env: int, episode: int) -> int:
    """Every environment knows itself by the seed of its episodes."""
    return 100 * env


def troubled(tmp_path: Path, trouble: str, worker: int, frames: bool = True) -> FrameVectorEnv:
    options = {"trouble": trouble, "seed": own_seed(worker, 0), "once": str(tmp_path / "once")}
    maker = EnvMaker("odd_simulators:Troubled", options, render=frames)
    return FrameVectorEnv(maker, COUNT, own_seed, frames, "processes", step_timeout=2.0)


def check_as_usual(envs: FrameVectorEnv) -> None:
    """Play as the same environments without trouble do."""
    usual = FrameVectorEnv(EnvMaker("small_envs:Clock"), COUNT, own_seed, envs.has_frames)
    np.testing.assert_array_equal(envs.reset(), usual.reset())
    for step in range(8):
        one, other = (each.step(np.array([1, 0, step % 2])) for each in (envs, usual))
        for name in ("states", "final_states", "frames", "rewards", "terminated", "truncated", "first", "success"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    assert envs.actions == usual.actions and envs.episodes == usual.episodes


def check_none_is_left(before: set[int]) -> None:
    """No processes but those before, and multiprocessing's resource tracker, which is one for all."""
    deadline = time.monotonic() + 120
    while True:
        left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        left = [c for c in left if c.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in str(c.cmdline())]
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


TROUBLES = [
    *(("is killed", 0), ("is killed", 1), ("is killed", 2), ("crashes", 1), ("ends", 2), ("hangs", 0), ("hangs", 2)),
    *(("prints", 1), ("raises in close", 0), ("leaves in close", 2)),
]
"""Every trouble, and every worker that may be waited for when another is gone."""


@pytest.mark.parametrize(("trouble", "worker"), TROUBLES)
def test_the_run_goes_on_whichever_worker_gets_into_trouble(
    tmp_path: Path, children: set[int], trouble: str, worker: int
) -> None:
    envs = troubled(tmp_path, trouble, worker)
    try:
        check_as_usual(envs)
        assert envs.restarts == (trouble in DEATHS)
        assert not envs.last_death or envs.last_death == f"the process of an environment died ({DEATHS[trouble]})"
    finally:
        envs.close()
    check_none_is_left(children)


@pytest.mark.parametrize(
    ("trouble", "said", "worker"),
    [
        ("raises", "ValueError: the simulator exploded", 0),
        ("raises", "ValueError: the simulator exploded", 2),
        ("leaves", "SystemExit: 0", 1),
    ],
)
def test_it_ends_in_one_line_whichever_worker_fails(
    tmp_path: Path, children: set[int], trouble: str, said: str, worker: int
) -> None:
    envs = troubled(tmp_path, trouble, worker, frames=False)
    try:
        with pytest.raises(RunFailed) as caught:
            check_as_usual(envs)
    finally:
        envs.close()
    line = str(caught.value)
    assert line.startswith(f"environment {worker + 1} of {COUNT} ('odd_simulators:Troubled') failed in step(): {said}")
    assert "(odd_simulators.py:" in line
    assert f"at step 2 of the episode with seed {100 * worker}" in line and "\n" not in line
    check_none_is_left(children)


def test_workers_that_hang_again_and_again_end_the_run(tmp_path: Path) -> None:
    maker = EnvMaker("odd_simulators:Hanging", {"pids": str(tmp_path / "pids")})
    envs = FrameVectorEnv(maker, 1, own_seed, False, "processes", step_timeout=0.3)
    try:
        envs.reset()
        with pytest.raises(RunFailed, match=r"no answer within step_timeout=0.3 seconds\), and so 4 times"):
            envs.step(np.array([0]))
    finally:
        envs.close()
    check_gone(tmp_path / "pids", 8)


@pytest.mark.parametrize("workers", ["inline", "processes"])
@pytest.mark.parametrize("method", ["constructor", "reset", "step", "render"])
def test_an_environment_that_leaves_fails(workers: Any, method: str) -> None:
    maker = EnvMaker("odd_simulators:Leaving", {"method": method})

    def step() -> None:
        envs = FrameVectorEnv(maker, 2, own_seed, method == "render", workers)
        try:
            envs.reset()
            envs.step(np.array([0, 0]))
        finally:
            envs.close()

    with pytest.raises(RunFailed, match="SystemExit") as caught:
        step()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("by", ["KeyboardInterrupt", "cancelled"])
def test_what_only_looks_like_a_stop_is_a_failure(by: str) -> None:
    envs = FrameVectorEnv(EnvMaker("odd_simulators:Leaving", {"by": by}), 1, own_seed, False)
    envs.reset()
    with StopRequests(), pytest.raises(RunFailed, match=r"(KeyboardInterrupt|CancelledError) \(odd_simulators.py"):
        envs.step(np.array([0]))
    if by == "KeyboardInterrupt":
        with pytest.raises(KeyboardInterrupt):  # outside of a run, Ctrl-C is nothing else
            envs.step(np.array([0]))
    envs.close()


@pytest.mark.parametrize(("by", "said"), [("SystemExit", "SystemExit: 0"), ("cancelled", "CancelledError")])
def test_a_command_whose_environment_leaves_fails(sightline: Sightline, by: str, said: str) -> None:
    done = sightline("train", "env=odd_simulators:Leaving", f"env_options.by={by}", "env_options.method=step", *QUICK)
    assert done.code == 1
    assert f"{said} (odd_simulators.py" in done.lines[-1]


def test_pictures_are_sent_where_there_is_no_room_for_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    envs = troubled(tmp_path, "", 0)
    try:
        assert envs._canvases == [None] * COUNT
        check_as_usual(envs)
    finally:
        envs.close()


def test_infos_that_cannot_be_sent() -> None:
    envs = FrameVectorEnv(EnvMaker("odd_simulators:Secretive"), 2, own_seed, False, "processes")
    try:
        envs.reset()
        step = envs.step(np.array([0, 0]))
        assert {name: flag.tolist() for name, flag in step.flags.items()} == {
            "success": [False, False],
            "half": [True, True],
        }
    finally:
        envs.close()


@pytest.mark.parametrize(
    ("workers", "reward", "number"),
    [
        *(("inline", [0.5], 0.5), ("inline", None, None), ("inline", [1.0, 2.0], None), ("inline", "much", None)),
        *(("inline", float("nan"), None), ("processes", [0.5], 0.5), ("processes", [1.0, 2.0], None)),
    ],
)
def test_own_rewards_that_are_no_number_matter_only_to_those_who_learn_from_them(
    workers: Any, reward: Any, number: float | None
) -> None:
    maker = EnvMaker("odd_simulators:Paying", {"reward": reward})
    ignoring = FrameVectorEnv(maker, 1, own_seed, False, workers, needs_reward=False)
    ignoring.reset()
    assert ignoring.step(np.array([0])).rewards.tolist() == [number or 0.0]
    assert ignoring.ignores_reward == (number is None)
    ignoring.close()
    reading = FrameVectorEnv(maker, 1, own_seed, False, workers)
    try:
        reading.reset()
        if number is not None:
            assert reading.step(np.array([0])).rewards.tolist() == [number]
            return
        with pytest.raises(RunFailed, match="returned a reward that is") as caught:
            reading.step(np.array([0]))
        assert ("mo_gymnasium.wrappers.LinearReward" in str(caught.value)) == (reward == [1.0, 2.0])
    finally:
        reading.close()


def test_that_own_rewards_are_ignored_is_said_once(sightline: Sightline) -> None:
    named = "env=odd_simulators:Paying", "env_options={reward: [1.0, 2.0], informs: true}"
    done = sightline("train", *named, *QUICK, "reward.kind=success", "--run-dir", "run")
    assert done.code == 0, done.err
    assert len([line for line in done.lines if "warning: the environment's own reward is not one" in line]) == 1
    done = sightline("train", *named, *QUICK, "--run-dir", "other")
    assert done.code == 1
    assert "mo_gymnasium.wrappers.LinearReward" in done.lines[-1]


@pytest.mark.parametrize("how", ["ends", "raises"])
def test_an_episode_that_ends_earlier_when_it_is_replayed(tmp_path: Path, how: str) -> None:
    maker = EnvMaker("odd_simulators:Shortened", {"sign": str(tmp_path / "sign"), "how": how})
    envs = FrameVectorEnv(maker, 2, own_seed, False)
    envs.reset()
    for _ in range(4):
        step = envs.step(np.array([0, 0]))
    (tmp_path / "sign").touch()
    assert not envs.restore(envs.episodes, envs.actions, envs.drawn, step.states)
    (tmp_path / "sign").unlink()
    assert envs.restore(envs.episodes, envs.actions, envs.drawn, step.states)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_pictures_that_move_the_state_are_drawn_again_where_they_were_drawn(workers: Any, every: int) -> None:
    """The map doubles a difference with every step: after a hundred nothing would be left of the state."""
    both = [FrameVectorEnv(EnvMaker("odd_simulators:Rounding"), 2, own_seed, True, workers) for _ in range(2)]
    try:
        both[0].reset()
        for i in range(120):
            step = both[0].step(np.array([0, 1]), frames=i % every == 0)
        assert both[1].restore(both[0].episodes, both[0].actions, both[0].drawn, step.states)
        one, other = (envs.step(np.array([0, 0])) for envs in both)
        np.testing.assert_array_equal(one.final_states, other.final_states)
        actions, nowhere = [history[:120] for history in both[0].actions], [[False] * 120] * 2
        assert not both[1].restore(both[0].episodes, actions, nowhere, step.states)
    finally:
        for envs in both:
            envs.close()


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_first_states_are_drawn_and_drawn_again_where_an_episode_is_repeated(workers: Any) -> None:
    """Drawing moves these states, also the first one."""
    maker = EnvMaker("odd_simulators:Rounding")
    both = [FrameVectorEnv(maker, 2, own_seed, True, workers, resets=True) for _ in range(2)]
    try:
        both[0].reset()
        begun = both[0].reset_frames.copy()
        for i in range(120):
            step = both[0].step(np.array([0, 1]))
            assert (step.reset_frames is None) == (i > 0)
            if step.reset_frames is not None:
                np.testing.assert_array_equal(step.reset_frames, begun)
        assert both[1].restore(both[0].episodes, both[0].actions, both[0].drawn, step.states, begun)
        np.testing.assert_array_equal(both[1].reset_frames, begun)
        one, other = (envs.step(np.array([0, 0])) for envs in both)
        np.testing.assert_array_equal(one.final_states, other.final_states)
    finally:
        for envs in both:
            envs.close()


def test_what_is_lost_in_rounding_does_no_harm() -> None:
    envs = FrameVectorEnv(EnvMaker("odd_simulators:Rounding"), 1, own_seed)
    envs.reset()
    step = [envs.step(np.array([0])) for _ in range(3)][-1]
    assert envs.restore(envs.episodes, envs.actions, [[False] * 3], step.states)
    assert isinstance(step.states, np.ndarray)
    assert not envs.restore(envs.episodes, envs.actions, envs.drawn, step.states + 1e-3)


def test_an_environment_that_cannot_be_sent() -> None:
    lock: Any = threading.Lock()
    with pytest.raises(BadInput, match=r"cannot be sent to another process: .*workers=inline"):
        FrameVectorEnv(lambda: lock, 1, own_seed, workers="processes")


# -- games of agents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "slot"), [("is killed", 0), ("is killed", 1), ("crashes", 0), ("ends", 1), ("hangs", 0)]
)
def test_a_game_in_trouble_takes_its_process_and_no_other(tmp_path: Path, trouble: str, slot: int) -> None:
    options = {"trouble": trouble, "seed": slot, "once": str(tmp_path / "once")}
    pool = GamePool(functools.partial(odd_simulators.troubled_game, **options), 2, step_timeout=2.0)
    try:
        for each in range(2):
            pool[each].reset(seed=each)
            pool[each].step("0")
        steps = [begin(pool[each], "step", "0") for each in range(2)]
        with pytest.raises(RunFailed, match="the process of an environment died") as caught:
            steps[slot]()
        assert DEATHS[trouble] in str(caught.value)
        steps[1 - slot]()
        pool.discard(slot)
        pool[slot].reset(seed=slot)  # in a new process
        pool[slot].step("0")
    finally:
        pool.close()


# -- one in a process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["Emulator", "SharedDisplay"])
def test_environments_that_need_a_process_of_their_own_have_one(sightline: Sightline, tmp_path: Path, env: str) -> None:
    inline = sightline("train", f"env=odd_simulators:{env}", *QUICK, "--run-dir", tmp_path / "inline")
    assert inline.code == 1
    assert "workers=processes gives each" in inline.lines[-1]
    getattr(odd_simulators, env).alive = 0
    arguments = *QUICK[:-2], "workers=processes", "tensorboard=false", "videos={final: true}", "evaluation.every=32"
    done = sightline("train", f"env=odd_simulators:{env}", *arguments, "--run-dir", tmp_path / "processes")
    assert done.code == 0, done.err
    assert "warning" not in done.err
    assert (tmp_path / "processes" / "videos" / "chosen.mp4").exists()


# -- whole commands ------------------------------------------------------------------------------------------------


def check_gone(pids: Path, count: int) -> None:
    """The processes that were written down have ended."""
    numbers = [int(number) for number in pids.read_text().split()]
    assert len(numbers) == count
    deadline = time.monotonic() + 120
    while any(psutil.pid_exists(n) and psutil.Process(n).status() != psutil.STATUS_ZOMBIE for n in numbers):
        assert time.monotonic() < deadline, numbers
        time.sleep(0.05)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def hanging(pids: Path, *more: str) -> tuple[str, ...]:
    options = f"env_options.pids={pids}"
    return ("train", "env=odd_simulators:Hanging", options, *QUICK, "workers=processes", "--run-dir", "run", *more)


@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), 130), ((signal.SIGKILL,), -signal.SIGKILL)],
    ids=["once", "twice", "kill"],
)
def test_a_run_whose_simulator_hangs_can_be_stopped_and_leaves_nothing(
    sightline_process: Start, tmp_path: Path, signals: tuple[signal.Signals, ...], code: int
) -> None:
    pids = tmp_path / "pids"
    process = sightline_process(*hanging(pids), HURRIED="yes")
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 4, process)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.3)
    _, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert (code < 0) or err.splitlines()[-1].startswith(f"sightline: stopped by {signals[0].name}; nothing was"), err
    check_gone(pids, 4)


def test_a_run_whose_simulator_hangs_when_it_is_made_can_be_stopped(sightline_process: Start) -> None:
    process = sightline_process(
        "train", "env=odd_simulators:HangingWhenMade", *QUICK, "workers=processes", HURRIED="yes"
    )
    wait_for(lambda: len(psutil.Process(process.pid).children()) >= 3, process)  # with multiprocessing's own
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 143, err
    assert "stopped by SIGTERM; nothing was collected yet" in err


def test_json_is_alone_on_stdout_and_threads_end_with_the_command(sightline_process: Start) -> None:
    process = sightline_process(
        *("train", "env=odd_simulators:Talkative", *QUICK, "evaluation.background=true", "--run-dir", "run", "--json")
    )
    out, err = process.communicate("", timeout=600)
    assert process.returncode == 0, err
    assert json.loads(out)["chosen_step"] > 0
    assert "a step, from C" in err and "background failed" not in err


def test_a_thread_that_never_ends_does_not_keep_the_command(sightline_process: Start) -> None:
    process = sightline_process("train", "env=odd_simulators:Threaded", *QUICK, "--run-dir", "run")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out.splitlines()[-1].startswith("report")


SCRIPT = """
import sightline as sl
with open("runs.txt", "a") as file:
    file.write("run\\n")
sl.train(env="small_envs:Clock", workers="processes", run_dir="run", progress=False, envs=2, steps=16,
         **{"reward.kind": "ground_truth", "learner.chunk": 4, "learner.buffer_size": 64})
"""


def test_a_script_without_a_main_guard_is_told_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1
    assert "BadInput: with workers=processes" in done.stderr.splitlines()[-1]
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1, "the script's own, none of its workers"
    assert (tmp_path / "runs.txt").read_text() == "run\n" * 3, "once more for each of two workers"


def test_a_finished_run_is_not_tested_again(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("train", "env=small_envs:Clock", *QUICK, "--run-dir", tmp_path / "run")
    assert sightline(*arguments).code == 0
    result = (tmp_path / "run" / "result.json").read_bytes()
    tested: list[Path] = []
    test = ControlTrainer.test
    monkeypatch.setattr(ControlTrainer, "test", lambda self, best: tested.append(best) or test(self, best))
    done = sightline(*arguments, "--resume")
    assert done.code == 0, done.err
    assert not tested and (tmp_path / "run" / "result.json").read_bytes() == result
    assert sightline(*arguments, "--resume", "steps=64").code == 0
    assert len(tested) == 1, "what was learned since is tested"


def test_step_timeout_needs_processes(sightline: Sightline) -> None:
    done = sightline("train", "env=small_envs:Clock", *QUICK, "step_timeout=5", "--dry-run")
    assert done.code == 2 and "say workers=processes" in done.lines[-1]
