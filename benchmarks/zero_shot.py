"""How fast is the path from simulator to policy, stage by stage and whole, and against the published design?

    python benchmarks/zero_shot.py

The published design (vlmrm, 2024) is rebuilt here from public parts: Stable-Baselines3's SubprocVecEnv, Gymnasium's
CartPole rendered at its native 400x600, frames fetched through pipes in a second round trip, kept in a list, stacked
when the rollout ends, and scored strictly after it. Encoder, learner and update schedule are the same as ours.

Timings on shared machines are noisy and drift: every repeat measures the stages, our whole and theirs one after the
other, ratios are taken within a repeat, and medians over the repeats are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import numpy as np
import psutil
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import SubprocVecEnv

from peers import ScoreAfterRollout, large_picture
from running import RESULTS, sized
from sightline.config.learners import OffPolicyLearner
from sightline.config.loading import for_control, load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.control.control_setup import build_setup
from sightline.control.off_policy import OffPolicyTrainer
from sightline.control.resolving import resolve
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.models.encoder_base import OpenClipFormat
from sightline.models.encoders import load_encoder
from sightline.rewards.zero_shot import ZeroShotReward
from sightline.runs.folder import owned_run
from sightline.runs.metrics import read_metrics
from sightline.runs.stopping import StopRequests
from sightline.session import RunSession

FILE = RESULTS / "zero_shot.json"
WARM_UP = sized(3000, 2048)
"""Steps after which chunks are timed."""


def timed(action: Callable[[], Any], frames: int, repeats: int = 5) -> float:
    """Frames per second: the median over repeats, after one for warming up."""
    action()
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        rates.append(frames / (time.perf_counter() - started))
    return statistics.median(rates)


class Quiet:
    """A progress that says nothing."""

    def update(self, step: int, values: dict[str, float | None]) -> None: ...

    def say(self, message: str) -> None: ...


def recipe(steps: int, **changes: Any) -> ControlRecipe:
    overrides = [f"steps={steps}", "videos=false", "tensorboard=false", "evaluation.episodes=1"]
    overrides += [f"evaluation.every={steps}", f"checkpoints.every={steps}"]
    loaded = load_recipe("cartpole", [*overrides, *(f"{key}={value}" for key, value in changes.items())])
    return resolve(for_control(loaded))


def stages(steps: int) -> dict[str, float]:
    """Frames per second of each stage by itself, one thread each."""
    wanted = recipe(steps)
    learner = wanted.learner
    assert isinstance(learner, OffPolicyLearner)
    setup = build_setup(wanted)
    chunk, frames = learner.chunk, learner.chunk * wanted.envs
    actions = np.zeros(wanted.envs, np.int64)
    blind = FrameVectorEnv(setup.make, wanted.envs, episode_seeds(0), frames=False)
    seeing = FrameVectorEnv(setup.make, wanted.envs, episode_seeds(0), frames=True)
    blind.reset()
    seeing.reset()
    simulate = timed(lambda: [blind.step(actions) for _ in range(chunk)], frames)
    both = timed(lambda: [seeing.step(actions) for _ in range(chunk)], frames)
    pictures = seeing.step(actions).frames
    assert pictures is not None
    store = np.zeros((chunk, *pictures.shape), np.uint8)

    def move() -> None:
        for row in store:
            row[:] = pictures

    encoder = load_encoder("bundled", batch_size=512)
    assert isinstance(encoder, OpenClipFormat)
    flat = np.ascontiguousarray(store.reshape(-1, *pictures.shape[1:]))
    preprocess = timed(lambda: encoder.preprocess(flat), frames)
    encode_all = timed(lambda: encoder.embed_frames(flat), frames)
    with (
        tempfile.TemporaryDirectory() as folder,
        StopRequests() as stop,
        owned_run(Path(folder) / "run", wanted, resume=False) as begin,
    ):
        session = RunSession(wanted, begin(), Quiet(), stop)
        trainer = OffPolicyTrainer(setup, session)
        with session.begun(trainer):
            trainer.learn()
            model = trainer.model
            observations = np.zeros((wanted.envs, *(setup.make().observation_space.shape or ())), np.float32)
            act = timed(lambda: [model.predict(observations) for _ in range(chunk)], frames)
            learn = timed(lambda: model.train(learner.gradient_steps, learner.batch_size), frames)
    blind.close()
    seeing.close()
    return {
        "simulate": simulate,
        "draw": 1 / max(1 / both - 1 / simulate, 1e-9),
        "move": timed(move, frames),
        "preprocess": preprocess,
        "encode": 1 / max(1 / encode_all - 1 / preprocess, 1e-9),
        "act": act,
        "learn": learn,
    }


def allowed(rates: dict[str, float]) -> dict[str, float]:
    """Frames per second if nothing but the stages took time.

    `one core`: one after the other. `two cores`: scoring (preprocess, encode) beside all the rest.
    """
    seconds = {name: 1 / rate for name, rate in rates.items()}
    scoring = seconds["preprocess"] + seconds["encode"]
    rest = sum(seconds.values()) - scoring
    return {"one core": 1 / (scoring + rest), "two cores": 1 / max(scoring, rest)}


def ours(steps: int) -> tuple[float, float]:
    """Frames per second of whole chunks while learning (median), and the resident memory at the end (MiB)."""
    wanted = recipe(steps)
    with (
        tempfile.TemporaryDirectory() as folder,
        StopRequests() as stop,
        owned_run(Path(folder) / "run", wanted, resume=False) as begin,
    ):
        run = begin()
        session = RunSession(wanted, run, Quiet(), stop)
        trainer = OffPolicyTrainer(build_setup(wanted), session)
        with session.begun(trainer):
            trainer.learn()
        records = read_metrics(run.metrics_file)
    rates = [r["time/steps_per_second"] for r in records if "time/steps_per_second" in r and r["step"] > WARM_UP]
    return statistics.median(rates), psutil.Process().memory_info().rss / 2**20


class TimedRollouts(ScoreAfterRollout):
    """Scores rollouts, and notes how many frames a second whole ones take."""

    def __init__(self, reward_model: ZeroShotReward) -> None:
        super().__init__(reward_model)
        self._started = time.perf_counter()
        self._before = 0
        self.rates: list[float] = []

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        now = time.perf_counter()
        if self.num_timesteps > WARM_UP:
            self.rates.append((self.num_timesteps - self._before) / (now - self._started))
        self._started = now
        self._before = self.num_timesteps


def theirs(steps: int) -> float:
    """Frames per second of whole rollouts of the published design while learning (median)."""
    wanted = recipe(steps)
    learner = wanted.learner
    assert isinstance(learner, OffPolicyLearner)
    reward_model = ZeroShotReward(wanted.goal, wanted.baseline, alpha=0.5, encoder=load_encoder("bundled"))
    env = SubprocVecEnv([large_picture] * wanted.envs)
    try:
        model = DQN(
            "MlpPolicy",
            env,
            learning_rate=learner.learning_rate,
            buffer_size=learner.buffer_size,
            batch_size=learner.batch_size,
            learning_starts=learner.learning_starts,
            train_freq=(learner.chunk, "step"),
            gradient_steps=learner.gradient_steps,
            policy_kwargs={"net_arch": list(learner.hidden)},
            seed=0,
        )
        callback = TimedRollouts(reward_model)
        model.learn(steps, callback=callback)
    finally:
        env.close()
    return statistics.median(callback.rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=sized(8000, 2560))
    parser.add_argument("--repeats", type=int, default=sized(5, 1))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats: list[dict[str, Any]] = []
    for _ in range(arguments.repeats):
        rates = stages(arguments.steps)
        bounds = allowed(rates)
        rate, resident = ours(arguments.steps)
        published = theirs(arguments.steps)
        repeats.append(
            {
                "stages_frames_per_second": rates,
                "allowed_frames_per_second": bounds,
                "ours_frames_per_second": rate,
                "published_design_frames_per_second": published,
                "ratio_to_published_design": rate / published,
                "share_of_one_core": rate / bounds["one core"],
                "share_of_two_cores": rate / bounds["two cores"],
                "memory_mib": resident,
            }
        )
    names = ("ratio_to_published_design", "share_of_one_core", "share_of_two_cores", "memory_mib")
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "steps": arguments.steps,
        "medians": {name: statistics.median(r[name] for r in repeats) for name in names},
        "memory_mib_of_a_run_four_times_as_long": ours(4 * arguments.steps)[1],
        "repeats": repeats,
    }
    FILE.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
