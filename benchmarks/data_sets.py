"""Memory of writing, reading, scoring and replaying data sets by their number of frames, and what replay is worth.

    python benchmarks/data_sets.py memory   # peaks of writing, reading, scoring and replaying 1 000 and 8 000 frames
    python benchmarks/data_sets.py replay   # CartPole and Mountain Car with and without a scripted data set, 3 seeds

`memory`: each measurement is a process of its own, whose peak (resident set) is reported in MB. Asked: eight times as
many frames take at most 1.2 times as much. `replay`: success on the test panel after few steps; asked is whether a
data set helps.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from running import keep, sightline, sized, train

FILE = "data_sets.json"
FRAMES = sized((1_000, 8_000), (40, 80))
STEPS = sized(100, 10)
"""Of an episode."""
SIDE = 96
MOST = 1.2
LAYOUTS = ("lerobot", "pictures")
SEEDS = sized((0, 1, 2), (0,))
LEARNED = {
    "cartpole": ("steps=6000", "evaluation.every=6000"),
    "mountain-car": ("steps=20000", "evaluation.every=20000"),
}
"""Runs that are too short to learn the task reliably on their own."""


def episodes(frames: int) -> Any:
    """Episodes of noise, which no codec makes small."""
    from sightline.datasets.stored import StoredEpisode

    for number in range(frames // STEPS):
        draw = np.random.default_rng(number)
        seen = draw.integers(0, 256, (STEPS + 1, SIDE, SIDE, 3), np.uint8)
        states = draw.uniform(-0.04, 0.04, (STEPS + 1, 4)).astype(np.float32)
        yield StoredEpisode(
            "noise",
            frames=seen[1:],
            reset_frame=seen[0],
            states=states[1:],
            reset_state=states[0],
            actions=draw.integers(0, 2, STEPS),
            env_reward=np.ones(STEPS, np.float32),
            success=np.ones(STEPS, bool),
            instruction="a pole upright",
            fps=20.0,
            index=number,
        )


def measured(what: str, layout: str, folder: Path, frames: int) -> None:
    """Do one thing with a data set, and print the peak of this process's memory in MB."""
    if what == "write":
        from sightline.datasets.lerobot_writing import LeRobotWriter
        from sightline.datasets.pictures import PictureWriter

        writer: Any = LeRobotWriter(folder) if layout == "lerobot" else PictureWriter(folder)
        with writer:
            for episode in episodes(frames):
                writer.add(episode)
    elif what == "read":
        from sightline.datasets.reading import read_dataset

        assert sum(episode.steps for episode in read_dataset(folder)) == frames
    elif what == "score":
        from sightline.evaluation.pictures import score_files

        assert len(score_files([folder], ["a pole upright"], ["a cart"], None, "bundled").rows) == frames
    else:
        replay(folder, frames)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def replay(folder: Path, frames: int) -> None:
    """Fill a replay buffer, as a run does before its first step."""
    from gymnasium import spaces
    from stable_baselines3 import DQN

    from sightline.config.recipe import ReplayDataset
    from sightline.control.collection import SpacesVecEnv
    from sightline.control.dataset_replay import fill_from_dataset
    from sightline.control.replay import CommittedReplayBuffer
    from sightline.datasets.reading import dataset_digest
    from sightline.rewards.zero_shot import ZeroShotReward

    states, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    model = DQN("MlpPolicy", SpacesVecEnv(1, states, actions), buffer_size=1)
    # As large for few transitions as for many, so that only what is read differs.
    buffer = CommittedReplayBuffer(FRAMES[1], states, actions, "cpu", 1)
    dataset = ReplayDataset(path=str(folder), digest=dataset_digest(folder), transitions=frames)
    reward = ZeroShotReward(("a pole upright",), ("a cart",), encoder="bundled")
    fill_from_dataset(model, buffer, dataset, reward, None, (SIDE, SIDE, 3))
    assert len(buffer.filled_rows()) == frames


def memory() -> dict[str, Any]:
    peaks: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        for layout in LAYOUTS:
            for what in ("write", "read", "score", "replay"):
                row = peaks.setdefault(f"{what}, {layout}", {})
                for frames in FRAMES:
                    words = ["--measure", what, layout, str(Path(place) / f"{layout}-{frames}"), str(frames)]
                    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
                    if done.returncode:
                        raise SystemExit(done.stderr.strip().splitlines()[-1])
                    row[str(frames)] = round(float(done.stdout.split()[-1]), 1)
                few, many = row.values()
                print(f"{what}, {layout:10} {few:8.0f} MB {many:8.0f} MB  {many / few:.2f}", flush=True)
    ratios: dict[str, float] = {}
    for name, row in peaks.items():
        few, many = row.values()
        ratios[name] = round(many / few, 3)
    met = all(ratio <= MOST for ratio in ratios.values())
    print("met" if met else f"not met: some ratio is above {MOST}")
    return {"peak, MB": peaks, "ratios": ratios, "met": met}


def worth() -> dict[str, Any]:
    """Success with and without a data set, of each task and seed."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for task, words in LEARNED.items():
            data = Path(place) / task
            collected = ("--policy", "scripted", "--episodes", str(sized(20, 3)), "--out", str(data))
            sightline("collect", task, *sized((), ("episode_steps=8",)), *collected)
            for name, more in (("without", ()), ("with", (f"dataset={data}",))):
                row: dict[str, Any] = {}
                for seed in SEEDS:
                    result = train(f"{task} {name}", (task, *words, *more), seed, Path(place))
                    row[str(seed)] = {key: result[key] for key in ("success_rate", "ci_low", "ci_high", "return")}
                found[f"{task}, {name}"] = row
    return found


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        what, layout, folder, frames = sys.argv[2:]
        measured(what, layout, Path(folder), int(frames))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["memory", "replay"])
    part = parser.parse_args().part
    keep(FILE, part, memory() if part == "memory" else worth())


if __name__ == "__main__":
    main()
