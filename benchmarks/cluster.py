"""Work on a Ray cluster of two raylets of this machine, without a network between them.

    PYTHONPATH=tools python benchmarks/cluster.py speed travel cells recovery

Needs the extra `cluster`, for example by the environment of `tools/lanes/ray.sh`. The results name the load of the
machine at the beginning of each part, since other work takes the same two cores.

- `speed`: frames a second of the recipe cartpole's reward (the bundled encoder at 64 pixels) from one second process,
  asked over HTTP (`sightline serve-reward`) and over Ray, beside the same reward in this process; in turn, the median
  of five rounds. Asked: at least 0.8 times as many.
- `travel`: what a frame costs to send: as it is drawn, at the encoder's size, and as the embedding that comes back.
- `cells`: eight cells of a sweep with one thread each, one and two at a time, in processes and on one and two raylets.
  Asked: two at a time 1.8 times as fast.
- `recovery`: seconds from the death of an actor, of a raylet with all that it has started, of a cell's processes and of
  a driver until the work goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")


import numpy as np
import psutil

from http_reward import server
from raylets import Command, Raylets, actors, cells_of, command_of, raylets, until
from running import at_size, keep, kept, sized
from sightline.cluster.connecting import connected
from sightline.cluster.encoders import Cluster, embedding_on
from sightline.rewards.base import RewardModel
from sightline.rewards.http import HTTPReward
from sightline.rewards.servers.source import served_reward
from sightline.runs.files import read_document
from sightline.runs.lease import LEASE

FILE = "cluster.json"
FRAMES = sized(2048, 16)
ROUNDS = sized(5, 1)
DRAWN = (400, 600)
"""Height and width of CartPole's own picture."""
DRAWN_FRAMES = sized(256, 16)
BATCH = sized(64, 8)
LEAST_SPEED = 0.8
"""Of the frames a second in this process."""
LEAST_SPEEDUP = 1.8
"""Of two cells at a time beside one."""
CELLS = sized(8, 2)
CELL = (
    *("cartpole", f"seed=0..{CELLS - 1}", "steps=6000", "envs=4", "threads=1", "evaluation.background=false"),
    *("evaluation.every=6000", "evaluation.test_episodes=20", "videos=false", "tensorboard=false"),
)
"""Of the part `cells`."""
RUN = (
    *("cartpole", f"steps={sized(6000, 512)}", "envs=2", "learner.chunk=32", "learner.learning_starts=64"),
    *("checkpoints.every=128", "evaluation.episodes=2", "evaluation.test_episodes=2", "videos=false", "threads=1"),
)
"""Of the part `recovery`: long enough to be there when something is killed."""
REPEATS = sized(1, 1)


# -- speed -------------------------------------------------------------------------------------------------------------


def cartpole_reward() -> Any:
    return served_reward("cartpole", [], False)[0].model


def rate(action: Callable[[], object], frames: int) -> float:
    """Frames a second of one call."""
    began = time.perf_counter()
    action()
    return frames / (time.perf_counter() - began)


def medians(rates: dict[str, list[float]]) -> dict[str, int]:
    return {name: round(float(np.median(of_name))) for name, of_name in rates.items()}


def speed(cluster: Raylets) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    there = cartpole_reward()
    with server() as url, embedding_on(there, Cluster(cluster.address, workers=1)) as line:
        print(line, flush=True)
        rewards: dict[str, RewardModel] = {
            "in this process": cartpole_reward(),
            "over HTTP": HTTPReward(url),
            "over Ray": there,
        }
        rates: dict[str, list[float]] = {name: [] for name in rewards}
        # The first round is not counted: all load what they need.
        for number in range(ROUNDS + 1):
            frames = rng.integers(0, 256, (FRAMES, 64, 64, 3), np.uint8)
            for name, reward in rewards.items():
                found = rate(lambda reward=reward, frames=frames: reward(frames), FRAMES)  # type: ignore[misc]
                if number:
                    rates[name].append(found)
    found_medians = medians(rates)
    here = found_medians["in this process"]
    ratios = {name: round(found_medians[name] / here, 3) for name in ("over HTTP", "over Ray")}
    is_met = min(ratios.values()) >= LEAST_SPEED
    return {"frames": FRAMES, "frames per second": found_medians, "ratio": ratios, "met": is_met}


class Taker:
    """An actor that takes frames, and gives embeddings, with and without computing them."""

    def __init__(self) -> None:
        self._encoder = cartpole_reward().encoder
        self._frames: np.ndarray = np.zeros(0)

    def keep(self, frames: np.ndarray) -> None:
        """Have frames, as if they had been drawn here."""
        self._frames = frames.copy()

    def take(self, frames: np.ndarray) -> int:
        return len(frames)

    def give(self, count: int, size: int) -> np.ndarray:
        return np.zeros((count, size), np.float32)

    def embed(self, frames: np.ndarray) -> np.ndarray:
        return np.asarray(self._encoder.embed_frames(frames.copy()))

    def embed_own(self) -> np.ndarray:
        return np.asarray(self._encoder.embed_frames(self._frames))


def travel(cluster: Raylets) -> dict[str, Any]:
    """What it costs that frames, or embeddings, cross from one raylet's process to another one's."""
    encoder = cartpole_reward().encoder
    rng = np.random.default_rng(0)
    height, width = DRAWN
    drawn = rng.integers(0, 256, (DRAWN_FRAMES, height, width, 3), np.uint8)
    small = encoder.shrink_frames(drawn)
    size = encoder.embed_frames(small[:1]).shape[1]
    with connected(cluster.address) as ray:
        taker = ray.remote(Taker).options(num_cpus=1, scheduling_strategy=_elsewhere(ray)).remote()
        ray.get(taker.keep.remote(drawn))

        def in_batches(frames: np.ndarray, method: Any) -> None:
            ray.get([method.remote(frames[start : start + BATCH]) for start in range(0, len(frames), BATCH)])

        def shrunk_here() -> None:
            in_batches(encoder.shrink_frames(drawn), taker.embed)

        ways: dict[str, tuple[int, Callable[[], None], Callable[[], object]]] = {
            "frames as they are drawn": (
                drawn[0].nbytes,
                lambda: in_batches(drawn, taker.take),
                lambda: in_batches(drawn, taker.embed),
            ),
            "frames at the encoder's size": (
                small[0].nbytes,
                lambda: in_batches(small, taker.take),
                shrunk_here,
            ),
            "embeddings": (
                4 * size,
                lambda: ray.get([taker.give.remote(BATCH, size) for _ in range(0, len(drawn), BATCH)]),
                lambda: ray.get(taker.embed_own.remote()),
            ),
        }
        rows: dict[str, Any] = {}
        for name, (size_of_one, send, embed) in ways.items():
            rates: dict[str, list[float]] = {"sent": [], "embedded": []}
            for number in range(ROUNDS + 1):
                for what, action in (("sent", send), ("embedded", embed)):
                    found = rate(action, len(drawn))
                    if number:
                        rates[what].append(found)
            rows[name] = {"bytes": size_of_one, **medians(rates)}
    return {"drawn": f"{width} x {height}", "encoder": encoder.image_size, "batch": BATCH, "ways": rows}


def _elsewhere(ray: Any) -> Any:
    """A strategy that has an actor run on another raylet than this driver's."""
    here = ray.get_runtime_context().get_node_id()
    other = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(other, soft=False)


# -- cells -------------------------------------------------------------------------------------------------------------


def cells(cluster: Raylets) -> dict[str, Any]:
    """Seconds of a sweep, one and two cells at a time."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for where, options in (("in processes", []), ("on Ray", ["--cluster", cluster.address])):
            for count in (1, 2):
                name = f"{count} at a time, {where}"
                words = ("sweep", *at_size(*CELL), "--run-dir", f"{folder}/{len(seconds)}", "--processes", str(count))
                began = time.monotonic()
                _carried_out(Command(*words, *options, log=Path(folder) / f"{len(seconds)}.txt"))
                seconds[name] = round(time.monotonic() - began, 1)
                print(f"{name}: {seconds[name]} s", flush=True)
    speedups = {
        where: round(seconds[f"1 at a time, {where}"] / seconds[f"2 at a time, {where}"], 2)
        for where in ("in processes", "on Ray")
    }
    return {"cells": CELLS, "seconds": seconds, "speedup": speedups, "met": min(speedups.values()) >= LEAST_SPEEDUP}


def _carried_out(command: Command) -> None:
    if command.code(3600):
        raise SystemExit(f"a sweep failed: {command.lines[-1:]}")


# -- recovery ----------------------------------------------------------------------------------------------------------


def recovery(cluster: Raylets) -> dict[str, Any]:
    """Seconds until the work goes on, of some repeats each; those that are measured already are kept."""
    deaths: dict[str, Callable[[Raylets, Path], float]] = {
        "one actor of two; a run's frames": actor_killed,
        "both actors; a run's frames": actors_killed,
        "a raylet with its children; a run's frames": machine_lost,
        "a cell's process; the sweep is told again": cell_killed,
        "a task's processes; a sweep's cell": worker_killed,
        "a raylet with its children; a sweep's cell": cell_lost,
        "the driver of a run; the same command": run_driver_killed,
        "the driver of a sweep; the same command": sweep_driver_killed,
    }
    rows: dict[str, list[float]] = kept(FILE, "recovery").get("seconds", {})
    for number in range(REPEATS):
        for name, death in deaths.items():
            if len(rows.setdefault(name, [])) > number:
                continue
            with tempfile.TemporaryDirectory() as folder:
                seconds = round(death(cluster, Path(folder)), 1)
            cluster.repair()
            rows[name].append(seconds)
            print(f"{name}, {number}: {seconds} s", flush=True)
            keep(FILE, "recovery", {"seconds": rows})
    return {"seconds": rows}


@contextlib.contextmanager
def begun(folder: Path, *words: str) -> Iterator[Command]:
    """Context of a command, which is ended with it."""
    command = Command(*words, log=folder / f"{len(list(folder.glob('*.txt')))}.txt")
    try:
        yield command
    except TimeoutError as error:
        raise SystemExit(f"{error}; it said: {command.lines[-3:]}") from error
    finally:
        command.kill()


def train(cluster: Raylets, folder: Path) -> tuple[str, ...]:
    where = ("--cluster", cluster.address, "--run-dir", str(folder / "run"), "--resume-or-start")
    return ("train", *at_size(*RUN, "seed=0"), *where)


def sweep(cluster: Raylets, folder: Path) -> tuple[str, ...]:
    return ("sweep", *at_size(*RUN, "seed=0..1"), "--cluster", cluster.address, "--run-dir", str(folder / "sweep"))


def metrics_of(run: Path) -> int:
    """Bytes that a run has written about its steps."""
    with contextlib.suppress(OSError):
        return (run / "metrics.jsonl").stat().st_size
    return 0


def until_it_goes_on(run: Path) -> float:
    """Seconds until a run writes about another step."""
    began, before = time.monotonic(), metrics_of(run)
    until(lambda: metrics_of(run) > before or (run / "result.json").exists(), "another step", pause=0.02)
    return time.monotonic() - began


def a_cell_there(cluster: Raylets) -> tuple[psutil.Process, Path]:
    """A cell's process on the other raylet, and the folder that it writes, once it has saved something."""

    def saved() -> tuple[psutil.Process, Path] | None:
        for process in cells_of(cluster.others()):
            run = Path(command_of(process).split()[-1])
            if any(run.glob("checkpoints/step-*")):
                return process, run
        return None

    found: tuple[psutil.Process, Path] = until(saved, "a checkpoint of a cell on the other raylet")
    return found


def until_another_owner(run: Path, before: int) -> float:
    """Seconds until another process goes on with a cell: it owns the folder, and writes about another step."""
    began = time.monotonic()

    def owner() -> bool:
        with contextlib.suppress(Exception):
            return int(read_document(run / LEASE)["pid"]) != before
        return False

    until(owner, "another process")
    until_it_goes_on(run)
    return time.monotonic() - began


def actor_killed(cluster: Raylets, folder: Path, count: int = 1) -> float:
    with begun(folder, *train(cluster, folder)):
        until(lambda: metrics_of(folder / "run"), "metrics")
        for holder in actors()[:count]:
            holder.kill()
        return until_it_goes_on(folder / "run")


def actors_killed(cluster: Raylets, folder: Path) -> float:
    """Nobody else can take over their frames."""
    return actor_killed(cluster, folder, 2)


def machine_lost(cluster: Raylets, folder: Path) -> float:
    with begun(folder, *train(cluster, folder)):
        until(lambda: metrics_of(folder / "run"), "metrics")
        cluster.lose_machine()
        return until_it_goes_on(folder / "run")


def cell_killed(cluster: Raylets, folder: Path) -> float:
    """A cell's own process: that it failed is said at the end, and the same command goes on with it."""
    with begun(folder, *sweep(cluster, folder)):
        process, run = a_cell_there(cluster)
        process.kill()
    with begun(folder, *sweep(cluster, folder)):
        return until_another_owner(run, process.pid)


def worker_killed(cluster: Raylets, folder: Path) -> float:
    """Ray's process of the task, and the cell's below it."""
    with begun(folder, *sweep(cluster, folder)):
        process, run = a_cell_there(cluster)
        parent = process.parent()
        for one in (parent, process):
            if one is not None:
                one.kill()
        return until_another_owner(run, process.pid)


def cell_lost(cluster: Raylets, folder: Path) -> float:
    with begun(folder, *sweep(cluster, folder)):
        process, run = a_cell_there(cluster)
        # The head has room for it at once.
        for other in cells_of(list(psutil.process_iter())):
            if other.pid != process.pid and str(run.parent) in command_of(other):
                other.kill()
        cluster.lose_machine()
        return until_another_owner(run, process.pid)


def run_driver_killed(cluster: Raylets, folder: Path) -> float:
    with begun(folder, *train(cluster, folder)) as first:
        until(lambda: any((folder / "run").glob("checkpoints/step-*")), "a checkpoint")
        first.kill()
        before = first.process.pid
        began = time.monotonic()
        with begun(folder, *train(cluster, folder)):
            until_another_owner(folder / "run", before)
            return time.monotonic() - began


def sweep_driver_killed(cluster: Raylets, folder: Path) -> float:
    """Ray ends the cells with it."""
    with begun(folder, *sweep(cluster, folder)) as first:
        process, run = a_cell_there(cluster)
        first.process.kill()
        began = time.monotonic()
        with begun(folder, *sweep(cluster, folder)):
            until_another_owner(run, process.pid)
            return time.monotonic() - began


PARTS: dict[str, Callable[[Raylets], dict[str, Any]]] = {
    "speed": speed,
    "travel": travel,
    "cells": cells,
    "recovery": recovery,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parts = parser.parse_args().parts
    if importlib.util.find_spec("ray") is None:
        raise SystemExit("needs Ray: pip install 'sightline[cluster]'")
    with raylets() as cluster:
        for part in parts:
            load = round(os.getloadavg()[0], 1)
            found = {"command": f"python benchmarks/cluster.py {part}", "load before": load} | PARTS[part](cluster)
            keep(FILE, part, found)
            print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
