"""Frames of the humanoid that are rendered and scored: how many a second, against the published design, and what
cheaper pictures do to the reward.

    PYTHONPATH=tools python benchmarks/humanoid_frames.py frames     whole rollouts, ours and theirs in turn
    PYTHONPATH=tools python benchmarks/humanoid_frames.py choices    shadows, reflections, multisampling, slices, size

The published design (vlmrm, 2024) is rebuilt here from public parts: Gymnasium's Humanoid-v5 with its own renderer at
480x480 pixels, one process for each environment (Stable-Baselines3's SubprocVecEnv), frames fetched through pipes in a
second round trip, kept in a list, stacked when the rollout ends and scored then. Scene (textured), camera, encoder,
number of environments and of steps are the same as ours, and actions are random in both, so that nothing but
simulation, rendering, transport and scoring is timed. Ours takes steps of 30 ms in the physics of training; theirs
takes 15 ms in the true one, as published.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import psutil
import torch
from stable_baselines3.common.vec_env import SubprocVecEnv

from pretraining.encoder.card import auc
from running import keep, sized
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.envs.rendering import opengl_renderer, prepare_rendering
from sightline.envs.tasks import find_task
from sightline.evaluation.statistics import spearman
from sightline.models.encoders import load_encoder
from sightline.rewards.zero_shot import ZeroShotReward
from sightline_tasks.humanoid.body import ROOT, Skeleton, make_model
from sightline_tasks.humanoid.drawing import LOOKS, draw_humanoid
from sightline_tasks.humanoid.env import CAMERAS, HumanoidVector
from sightline_tasks.humanoid.poses import POSES, place
from sightline_tasks.humanoid.scene import scene_xml
from sightline_tasks.mujoco_rendering import OffscreenRenderer, import_mujoco

TASK = find_task("humanoid-kneeling")
ENVS, STEPS = sized(8, 2), sized(20, 2)
"""Environments, and vector steps of a rollout."""
CAMERA = "front"
GYMNASIUM_PICTURE: dict[str, Any] = {
    "render_size": (480, 480),
    "shadows": True,
    "reflections": True,
    "samples": 4,
    "slices": 28,
}
"""What Gymnasium's renderer draws: MuJoCo's defaults."""
OURS: dict[str, dict[str, Any]] = {
    "drawn, 64 pixels": {"look": "drawn", "render_size": (64, 64)},
    "GL, 64 pixels": {"look": "gl", "render_size": (64, 64), "slices": 8},
    "GL, 224 pixels": {"look": "gl", "render_size": (224, 224), "slices": 8},
    "GL, the very same picture": {"look": "gl", **GYMNASIUM_PICTURE},
}


def renderer_name() -> str | None:
    """What draws here; asked while there is a context."""
    mujoco = import_mujoco()
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    renderer = OffscreenRenderer(model, (8, 8))
    renderer.render(mujoco.MjData(model), CAMERAS[CAMERA])
    name = opengl_renderer()
    renderer.close()
    return name


def reward() -> ZeroShotReward:
    return ZeroShotReward(TASK.goal, TASK.baseline, alpha=0.5, encoder=load_encoder("bundled"))


def ours(workers: str, options: dict[str, Any]) -> Callable[[], Callable[[], None]]:
    """Our way: a function that begins and gives one that makes a rollout and scores it."""
    chosen = {"physics": "fast", "scene": "textured", "camera": CAMERA} | options
    size = chosen.pop("render_size")
    make = EnvMaker(TASK.env, TASK.env_options | chosen, frame_size=size)

    def begin() -> Callable[[], None]:
        envs = FrameVectorEnv(make, ENVS, episode_seeds(0), workers=workers)  # type: ignore[arg-type]
        envs.reset()
        model, rng = reward(), np.random.default_rng(0)
        frames = np.zeros((STEPS, ENVS, *envs.frame_shape), np.uint8)

        def roll_out() -> None:
            for row in frames:
                shown = envs.step(rng.uniform(-1, 1, (ENVS, 17)).astype(np.float32)).frames
                assert shown is not None
                row[:] = shown
            model(frames.reshape(-1, *frames.shape[2:]))

        roll_out.close = envs.close  # type: ignore[attr-defined]
        return roll_out

    return begin


def their_env(xml_file: str) -> gymnasium.Env[Any, Any]:
    """Gymnasium's humanoid as the published task has it."""
    prepare_rendering()
    view = CAMERAS[CAMERA]
    camera = {
        "distance": view.distance,
        "azimuth": view.azimuth,
        "elevation": view.elevation,
        "lookat": np.array(view.look_at),
    }
    return gymnasium.make(
        "Humanoid-v5",
        xml_file=xml_file,
        render_mode="rgb_array",
        width=480,
        height=480,
        default_camera_config=camera,
        terminate_when_unhealthy=False,
        max_episode_steps=STEPS,
    )


def theirs(folder: Path) -> Callable[[], Callable[[], None]]:
    """The published way, from a folder with the textured scene."""

    def begin() -> Callable[[], None]:
        envs = SubprocVecEnv([partial(their_env, str(folder / "humanoid.xml"))] * ENVS, start_method="spawn")
        envs.reset()
        model, rng = reward(), np.random.default_rng(0)

        def roll_out() -> None:
            frames = []
            for _ in range(STEPS):
                envs.step(rng.uniform(-0.4, 0.4, (ENVS, 17)).astype(np.float32))
                frames.append(np.stack(envs.env_method("render")))
            stacked = np.stack(frames)
            model(stacked.reshape(-1, *stacked.shape[2:]))

        roll_out.close = envs.close  # type: ignore[attr-defined]
        return roll_out

    return begin


def resident() -> float:
    """Resident memory of this process and its children, MiB."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return float(sum(process.memory_info().rss for process in processes)) / 2**20


def rate(begin: Callable[[], Callable[[], None]], seconds: float) -> tuple[float, float]:
    """Frames a second over whole rollouts, and how much memory grew between the first of them and the last, MiB."""
    roll_out = begin()
    try:
        roll_out()
        before, made, started = resident(), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            roll_out()
            made += ENVS * STEPS
        return made / (time.perf_counter() - started), resident() - before
    finally:
        roll_out.close()  # type: ignore[attr-defined]


def stages(options: dict[str, Any]) -> dict[str, float]:
    """Milliseconds a frame of each stage by itself, in this process: simulate, draw, score."""
    envs = HumanoidVector(
        ENVS,
        physics="fast",
        scene="textured",
        camera=CAMERA,
        render_mode="rgb_array",
        max_episode_steps=10**9,
        **options,
    )
    envs.reset(seed=0)
    rng, model = np.random.default_rng(0), reward()
    spent = {"simulate": 0.0, "render": 0.0}
    frames: list[np.ndarray] = []
    envs.render()
    for _ in range(20):
        started = time.perf_counter()
        envs.step(rng.uniform(-1, 1, (ENVS, 17)))
        between = time.perf_counter()
        frames += envs.render()
        spent["simulate"] += between - started
        spent["render"] += time.perf_counter() - between
    envs.close()
    model(np.stack(frames))
    started = time.perf_counter()
    model(np.stack(frames))
    spent["score"] = time.perf_counter() - started
    return {name: 1000 * seconds / len(frames) for name, seconds in spent.items()}


def compare(seconds: float, repeats: int) -> None:
    """Ours and theirs in turn; ratios are taken within a repeat."""
    rows: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        text, files = scene_xml("textured")
        (Path(name) / "humanoid.xml").write_text(text)
        for file, data in files.items():
            (Path(name) / file).write_bytes(data)
        for _ in range(repeats):
            published, grown = rate(theirs(Path(name)), seconds)
            print(f"published design: {published:.1f} frames/s", flush=True)
            rows.setdefault("published design", []).append({"frames_per_second": published, "ratio": 1, "grown": grown})
            for workers in ("inline", "processes"):
                for look, options in OURS.items():
                    found, grown = rate(ours(workers, options), seconds)
                    row = {"frames_per_second": found, "ratio": found / published, "grown": grown}
                    print(f"{look}, {workers}: {found:.1f} frames/s, {row['ratio']:.1f} times", flush=True)
                    rows.setdefault(f"{look}, {workers}", []).append(row)
    medians = {
        name: {key: statistics.median(row[key] for row in found) for key in found[0]} for name, found in rows.items()
    }
    print("| way | frames/s | times the published design | memory grown, MiB |\n|---|---|---|---|")
    for name, row in medians.items():
        print(f"| {name} | {row['frames_per_second']:.1f} | {row['ratio']:.2f} | {row['grown']:.1f} |")
    times = {look: stages(options) for look, options in OURS.items()}
    print("\n| look | simulate | render | score (ms a frame) |\n|---|---|---|---|")
    for look, spent in times.items():
        print(f"| {look} | " + " | ".join(f"{value:.2f}" for value in spent.values()) + " |")
    content = {"medians": medians, "stages_ms": times, "repeats": repeats, "opengl": renderer_name()}
    keep("humanoid_frames.json", "frames", content)


# -- what cheaper pictures do ----------------------------------------------------------------------------------------

CHOICES: dict[str, dict[str, Any]] = {
    "480 pixels, all (Gymnasium's)": GYMNASIUM_PICTURE,
    "480 pixels, no shadows": GYMNASIUM_PICTURE | {"shadows": False},
    "480 pixels, no shadows, no reflections": GYMNASIUM_PICTURE | {"shadows": False, "reflections": False},
    "480 pixels, and no multisampling": GYMNASIUM_PICTURE | {"shadows": False, "reflections": False, "samples": 0},
    "224 pixels, none of the three": {"render_size": (224, 224), "slices": 28},
    "224 pixels, 8 slices": {"render_size": (224, 224), "slices": 8},
    "64 pixels, 8 slices": {"render_size": (64, 64), "slices": 8},
    "64 pixels, 4 slices": {"render_size": (64, 64), "slices": 4},
    "64 pixels, drawn": {"look": "drawn", "render_size": (64, 64)},
}


def states(count: int) -> tuple[np.ndarray, np.ndarray]:
    """States `qpos` [8 count, 24] around the examples of the poses, by 8 degrees a joint, and which pose each is."""
    rng, skeleton = np.random.default_rng(0), Skeleton(make_model("gymnasium", "position"))
    found = []
    for pose in POSES.values():
        for _ in range(count):
            qpos = place(skeleton, pose.angles, pose.lean)
            qpos[ROOT:] += np.radians(8) * rng.normal(size=17)
            qpos[2] -= skeleton.posture(qpos[None]).clearance.min()
            found.append(qpos)
    return np.stack(found), np.repeat(np.arange(len(POSES)), count)


def pictures(qpos: np.ndarray, scene: Any, camera: str, choice: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Pictures uint8[N, H, W, 3] of states, and how many are made a second."""
    choice = dict(choice)
    size, view = choice.pop("render_size"), CAMERAS[camera]
    model = make_model("gymnasium", "position", scene)
    if choice.pop("look", "gl") == "drawn":
        skeleton = Skeleton(model)
        ends = skeleton.posture(qpos).ends
        started = time.perf_counter()
        drawn = [draw_humanoid(each, skeleton.radii, view, size, LOOKS[scene]) for each in ends]
        return np.stack(drawn), len(qpos) / (time.perf_counter() - started)
    import mujoco

    renderer, data = OffscreenRenderer(model, size, **choice), mujoco.MjData(model)
    found: list[np.ndarray] = []
    renderer.render(data, view)
    started = time.perf_counter()
    for state in qpos:
        data.qpos[:] = state
        mujoco.mj_forward(model, data)
        found.append(renderer.render(data, view))
    seconds = time.perf_counter() - started
    renderer.close()
    return np.stack(found), len(qpos) / seconds


def choose(count: int) -> None:
    """Frames a second of each choice, and its rewards beside those of Gymnasium's picture: rank correlation over all
    states (mean of eight goals), and area under the ROC curve of a pose against the seven others (mean)."""
    qpos, pose = states(count)
    encoder = load_encoder("bundled")
    table: dict[str, dict[str, float]] = {}
    print("| scene | picture | frames/s | rank correlation | AUC |\n|---|---|---|---|---|")
    for scene in ("original", "textured"):
        before: dict[str, np.ndarray] = {}
        for name, choice in CHOICES.items():
            frames, speed = pictures(qpos, scene, "close", choice)
            rows = []
            for i, each in enumerate(POSES.values()):
                rewards = ZeroShotReward((each.goal,), TASK.baseline, alpha=0.5, encoder=encoder)(frames)
                same = spearman(rewards, before.setdefault(each.name, rewards))
                rows.append((same if same is not None else float("nan"), auc(rewards, pose == i)))
            correlation, separation = np.mean(rows, axis=0).tolist()
            table[f"{scene}, {name}"] = {"frames_per_second": speed, "correlation": correlation, "auc": separation}
            print(f"| {scene} | {name} | {speed:.0f} | {correlation:.3f} | {separation:.3f} |", flush=True)
    keep("humanoid_frames.json", "choices", {"rows": table, "states": len(qpos), "opengl": renderer_name()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["frames", "choices"])
    parser.add_argument("--seconds", type=float, default=sized(20, 0.1))
    parser.add_argument("--repeats", type=int, default=sized(3, 1))
    parser.add_argument("--states", type=int, default=sized(25, 2), help="of each pose")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare_rendering()
    if arguments.part == "frames":
        compare(arguments.seconds, arguments.repeats)
    else:
        choose(arguments.states)


if __name__ == "__main__":
    main()
