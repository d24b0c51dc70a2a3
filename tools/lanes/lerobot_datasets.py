"""The steps of the lane `lerobot.sh`: each runs either in Sightline's environment or in LeRobot's, which share files.

write  open  weigh  theirs  read     DIR [films|pictures]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, WIDTH, FPS = 48, 64, 25
LENGTHS = (7, 12, 5)
TASKS = ("put the cube into the box", "open the drawer", "put the cube into the box")
PIXELS = 4.0
"""Grey levels by which frames of a film may differ on average."""


def frames_of(episode: int) -> np.ndarray:
    """uint8[T + 1, H, W, 3], the reset's first; each differs from the others by more than a film does."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    frames = []
    for step in range(LENGTHS[episode] + 1):
        blue = np.full((HEIGHT, WIDTH), 20 * ((step * 5 + episode * 3) % 12))
        frames.append(np.stack([60 + 2 * rows, 60 + columns, blue], axis=-1))
    return np.stack(frames).astype(np.uint8)


def numbers_of(episode: int) -> dict[str, np.ndarray]:
    """States [T + 1, 3], actions [T, 2] and two rewards [T] of an episode, the second with the reset's [T + 1]."""
    draw = np.random.default_rng(episode)
    steps = LENGTHS[episode]
    return {
        "states": draw.normal(size=(steps + 1, 3)).astype(np.float32),
        "actions": draw.normal(size=(steps, 2)).astype(np.float32),
        "env_reward": draw.normal(size=steps).astype(np.float32),
        "words": draw.random(steps + 1).astype(np.float32),
    }


def write(folder: Path) -> None:
    """Sightline writes a data set of films and one of pictures."""
    from sightline.datasets.lerobot_writing import LeRobotWriter
    from sightline.datasets.stored import StoredEpisode

    for kind in ("films", "pictures"):
        with LeRobotWriter(folder / f"ours-{kind}", pictures=kind == "pictures", camera="top") as writer:
            for episode in range(len(LENGTHS)):
                frames, numbers = frames_of(episode), numbers_of(episode)
                steps = LENGTHS[episode]
                writer.add(
                    StoredEpisode(
                        source="lane",
                        frames=frames[1:],
                        reset_frame=frames[0],
                        states=numbers["states"][1:],
                        reset_state=numbers["states"][0],
                        actions=numbers["actions"],
                        env_reward=numbers["env_reward"],
                        success=np.arange(steps) == steps - 1,
                        instruction=TASKS[episode],
                        fps=FPS,
                        succeeded=True,
                        rewards={"words": numbers["words"][1:]},
                        reset_rewards={"words": float(numbers["words"][0])},
                    )
                )


def _opened(folder: Path, **options: Any) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("local/sightline", root=folder, video_backend="pyav", **options)


def open_ours(folder: Path, kind: str) -> None:
    """LeRobot's loader gives every row as it was written: of the state before its action."""
    dataset = _opened(folder / f"ours-{kind}")
    assert len(dataset) == sum(LENGTHS) and dataset.fps == FPS and dataset.meta.total_episodes == len(LENGTHS)
    index = 0
    for episode, steps in enumerate(LENGTHS):
        numbers = numbers_of(episode)
        for step in range(steps):
            item = dataset[index]
            _check_picture(item["observation.images.top"], episode, step, 0.0 if kind == "pictures" else PIXELS)
            assert np.array_equal(item["observation.state"].numpy(), numbers["states"][step])
            assert np.array_equal(item["action"].numpy(), numbers["actions"][step])
            assert float(item["next.reward"]) == numbers["env_reward"][step]
            assert float(item["next.reward.words"]) == numbers["words"][step + 1]
            is_last = step == steps - 1
            assert [bool(item[f"next.{name}"]) for name in ("done", "truncated", "success")] == [is_last] * 3
            assert item["task"] == TASKS[episode] and int(item["episode_index"]) == episode
            index += 1
    # Windows of earlier frames, and a part of the episodes.
    earlier = _opened(folder / f"ours-{kind}", episodes=[1], delta_timestamps={"observation.images.top": [-1 / FPS, 0]})
    assert len(earlier) == LENGTHS[1]
    window = earlier[3]["observation.images.top"]
    for place, step in enumerate((2, 3)):
        _check_picture(window[place], 1, step, PIXELS)


def _check_picture(picture: Any, episode: int, step: int, tolerance: float) -> None:
    """A picture float[3, H, W] from 0 to 1 is that of this step, and nearer to it than to any other."""
    pixels = picture.numpy().transpose(1, 2, 0) * 255.0
    distances = np.abs(frames_of(episode) - pixels).mean(axis=(1, 2, 3))
    assert distances.argmin() == step and distances[step] <= tolerance + 1e-3, (episode, step, distances)


def weigh(folder: Path, kind: str) -> None:
    """LeRobot's weights of samples (RA-BC) take a reward of ours as progress: where it rises, they are larger."""
    import pyarrow.parquet

    progress = pyarrow.parquet.read_table(folder / f"ours-{kind}" / "words_progress.parquet")
    expected = np.concatenate([numbers_of(episode)["words"][:-1] for episode in range(len(LENGTHS))])
    assert np.array_equal(progress["progress_sparse"].to_numpy(), expected)
    from lerobot.rewards.sarm.rabc import RABCWeights

    weights = RABCWeights(folder / f"ours-{kind}" / "words_progress.parquet", chunk_size=1)
    import torch

    rises = np.diff(expected)
    up, down = int(rises[: LENGTHS[0] - 1].argmax()), int(rises[: LENGTHS[0] - 1].argmin())
    computed, _ = weights.compute_batch_weights({"index": torch.tensor([up, down])})
    assert float(computed[0]) > float(computed[1])


def write_theirs(folder: Path, kind: str) -> None:
    """LeRobot writes a data set of the same episodes; it has no place for the last state."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features: dict[str, Any] = {
        "observation.images.top": {
            "dtype": "video" if kind == "films" else "image",
            "shape": (HEIGHT, WIDTH, 3),
            "names": ["height", "width", "channels"],
        },
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["u", "v"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }
    root = folder / f"theirs-{kind}"
    dataset = LeRobotDataset.create("local/theirs", fps=FPS, features=features, root=root, use_videos=kind == "films")
    for episode, steps in enumerate(LENGTHS):
        frames, numbers = frames_of(episode), numbers_of(episode)
        for step in range(steps):
            dataset.add_frame(
                {
                    "observation.images.top": frames[step],
                    "observation.state": numbers["states"][step],
                    "action": numbers["actions"][step],
                    "next.reward": numbers["env_reward"][step : step + 1],
                    "task": TASKS[episode],
                }
            )
        dataset.save_episode()
    dataset.finalize()


def read(folder: Path, kind: str) -> None:
    """Sightline reads what LeRobot wrote."""
    from sightline.datasets.lerobot import read_lerobot

    episodes = list(read_lerobot(folder / f"theirs-{kind}"))
    assert len(episodes) == len(LENGTHS)
    for number, episode in enumerate(episodes):
        frames, numbers, steps = frames_of(number), numbers_of(number), LENGTHS[number]
        assert episode.frames is not None and episode.reset_frame is not None and episode.states is not None
        seen = [episode.reset_frame, *episode.frames]
        expected = [*range(steps), steps - 1]  # the last state is not recorded
        for frame, step in zip(seen, expected, strict=True):
            distances = np.abs(frames - frame.astype(float)).mean(axis=(1, 2, 3))
            assert distances.argmin() == step and distances[step] <= (PIXELS if kind == "films" else 0), distances
        assert np.array_equal(episode.states[:-1], numbers["states"][1:steps])
        assert episode.actions is not None and np.array_equal(episode.actions, numbers["actions"])
        assert episode.env_reward is not None and np.array_equal(episode.env_reward, numbers["env_reward"])
        assert (episode.instruction, episode.fps) == (TASKS[number], FPS)


if __name__ == "__main__":
    step, folder, *kind = sys.argv[1:]
    if step == "write":
        write(Path(folder))
    else:
        {"open": open_ours, "weigh": weigh, "theirs": write_theirs, "read": read}[step](Path(folder), *kind)
