"""Does learning from a teacher work, and what does it cost? Every such claim of docs/results.md, by one command.

    python benchmarks/preferences.py main efficiency existing throughput relabelling updates drawer --jobs 2

- `main`: the bundled recipe (encoder teacher, offline) against the same learner on the ground-truth reward.
- `efficiency`: with a scripted teacher, what each kind of feedback makes of 4 to 32 labels.
- `existing`: the labels of seed 0 teach seeds 1 to 3, which ask nobody, against labels of their own; and a cache in the
  form that RL-VLM-F writes teaches three seeds.
- `throughput`: labelling against a server on this machine that takes one second for every answer, against the published
  way (two requests a pair, one after the other), and how long the learner waits for it.
- `relabelling`: paying for stored frames anew, against the published way (converted on the host, 32 at a time).
- `updates`: what an update of SAC costs on Meta-World's states, with the published networks and batches and with those
  of `drawer-open`.
- `drawer`: Meta-World's drawer, frames of an expert that errs, scripted labels: how well is the reward ranked on frames
  of other episodes, and what do 20 % wrong labels do?

Results go to benchmarks/results/preferences.json and to stdout.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from running import keep, sized, train

FILE = "preferences.json"
SEEDS = sized(3, 1)
REPEATS = sized(5, 1)

EFFICIENCY = {
    "pairs, uniform": ("reward.feedback.kind=pairs", "reward.feedback.sampler=uniform"),
    "pairs, disagreement": ("reward.feedback.kind=pairs", "reward.feedback.sampler=disagreement"),
    "ratings, 3 levels": ("reward.feedback.kind=ratings",),
    "ladder": ("reward.feedback.kind=ladder",),
}
BUDGETS = (4, 8, 16, 32)[: sized(None, 1)]
ROUNDS = 4


def learning(jobs: int) -> None:
    """Part `main`."""
    rows = {
        "encoder teacher": ("cartpole-preferences",),
        "ground-truth reward": ("cartpole-preferences", "reward.kind=ground_truth", "reward.scale=0.1"),
    }
    results = _train_all(rows, jobs)
    truth = float(np.mean([run["return"] for run in results["ground-truth reward"]]))
    for name, runs in results.items():
        shares = [_share(run, truth) for run in runs]
        print(f"{name}: returns {[round(run['return'], 1) for run in runs]}, share of the way {np.round(shares, 3)}")
    keep(FILE, "main", _kept(results), jobs)


def efficiency(jobs: int) -> None:
    """Part `efficiency`."""
    rows = {
        f"{name}, {budget} labels": (
            "cartpole-preferences",
            *("reward.teacher.kind=scripted", *feedback, f"reward.budget.questions={budget}"),
            *(f"reward.questions={budget // ROUNDS}", "reward.explore=1000", "reward.every=1000", "steps=8000"),
            *("evaluation.every=2000", "tensorboard=false"),
        )
        for name, feedback in EFFICIENCY.items()
        for budget in BUDGETS
    }
    results = _train_all(rows, jobs)
    print("\n| feedback | " + " | ".join(f"{budget} labels" for budget in BUDGETS) + " |")
    print("|---" * (len(BUDGETS) + 1) + "|")
    for name in EFFICIENCY:
        cells = [
            " ".join(f"{100 * run['success_rate']:.0f}" for run in results[f"{name}, {budget} labels"])
            + f" ({np.mean([run['return'] for run in results[f'{name}, {budget} labels']]):.0f})"
            for budget in BUDGETS
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    keep(FILE, "efficiency", _kept(results), jobs)


def existing(jobs: int) -> None:
    """Part `existing`."""
    rows: dict[str, tuple[str, ...]] = {}
    unasked, own = "reward.questions=0", "labels of its own"
    with tempfile.TemporaryDirectory() as place:
        for recipe in ("cartpole-preferences", "straighten-rope"):
            labels = Path(place) / f"labels of {recipe}"
            train(f"{recipe}, whose labels are used", (recipe, f"reward.labels={labels}"), 0, Path(place))
            rows[f"{recipe}, {own}"] = (recipe,)
            rows[f"{recipe}, labels of seed 0, none of its own"] = (recipe, unasked, f"reward.labels_from={labels}")
        cached = Path(place) / "cached"
        _import_cache(Path(place) / "cache", cached)
        rows["cartpole-preferences, a cache of RL-VLM-F's form"] = (
            *("cartpole-preferences", unasked, f"reward.labels_from={cached}"),
            *("env_options.view=rlvlmf", "reward.frame_size=[200,200]"),
        )
        results = _train_all(rows, jobs, first=1)
    for name, runs in results.items():
        reached = float(np.mean([run["return"] for run in results[f"{name.split(',')[0]}, {own}"]]))
        shares = [_share(run, reached) for run in runs]
        print(f"{name}: returns {[round(run['return'], 1) for run in runs]}, share of the way {np.round(shares, 3)}")
    keep(FILE, "existing", _kept(results), jobs)


def _import_cache(folder: Path, store: Path, pairs: int = 600, rounds: int = 10) -> None:
    """Write a cache as RL-VLM-F does, of random play judged by its oracle, and import it."""
    import pickle

    from sightline.config.loading import load_recipe
    from sightline.labels.importing import import_labels
    from sightline.labels.store import LabelStore
    from sightline_tasks.control.cartpole_continuous import CartPoleContinuous

    env, rng = CartPoleContinuous("rgb_array", view="rlvlmf"), np.random.default_rng(0)
    frames, inputs, rewards = [], [], []
    for episode in range(sized(40, 2)):
        state, _ = env.reset(seed=episode)
        for step in range(100):
            action = rng.uniform(-1, 1, 1).astype(np.float32)
            after, reward, *_ = env.step(action)
            if step % 2:
                frames.append(env.render())
                inputs.append(np.concatenate([state, action]))
                rewards.append(reward)
            state = after
    shown, paid = np.stack(frames), np.array(rewards)
    directory = folder / "CartPole" / "seed_0"
    directory.mkdir(parents=True)
    for number in range(rounds):
        a, b = rng.integers(0, len(shown), (2, pairs // rounds))
        oracle = (paid[b] > paid[a]).astype(np.int64)[:, None]
        states = [np.stack([inputs[i] for i in chosen])[:, None] for chosen in (a, b)]
        returns = [paid[chosen].reshape(-1, 1, 1) for chosen in (a, b)]
        content = [np.concatenate([shown[a], shown[b]], axis=2), oracle, oracle, *states, *returns]
        (directory / f"2024-01-22-14-03-{number:02d}.pkl").write_bytes(pickle.dumps(content))
    with LabelStore(store) as opened:
        import_labels([folder], opened, load_recipe("cartpole-preferences").goal, "cartpole-continuous")


def throughput(jobs: int) -> None:
    """Part `throughput`."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from fault_server import FaultServer, brighter
    from sightline.labels.types import Question, Segment
    from sightline.teachers.chat import ChatTeacher, ChatTeacherConfig

    rng = np.random.default_rng(0)

    def pairs(count: int) -> list[Question]:
        def segment() -> Segment:
            return Segment(rng.integers(0, 256, (1, 224, 224, 3), np.uint8), np.zeros(1, np.float32))

        return [Question("compare", (segment(), segment()), ("a bright picture",)) for _ in range(count)]

    def rate(count: int, **settings: Any) -> float:
        with FaultServer(brighter, latency=1.0) as server:
            config = ChatTeacherConfig(kind="chat", model="tiny", url=server.url, **settings)
            began = time.monotonic()
            answered = sum(1 for _ in ChatTeacher(**config.model_dump(exclude={"kind"})).answers(pairs(count)))
            return answered / (time.monotonic() - began)

    numbers = {
        "one order, 32 at once": rate(sized(320, 4), swap=False),
        "both orders, 32 at once": rate(sized(160, 2)),
        "published way: two stages, one after the other": rate(sized(6, 1), swap=False, stages=2, concurrency=1),
    }
    with FaultServer(brighter, latency=1.0) as server, tempfile.TemporaryDirectory() as folder:
        chat = ("reward.teacher.kind=chat", "reward.teacher.model=tiny", f"reward.teacher.url={server.url}")
        train("chat teacher", ("cartpole-preferences", *chat), 0, Path(folder))
        (records,) = Path(folder).glob("*/metrics.jsonl")
        metrics = [json.loads(line) for line in records.read_text().splitlines()]
        waited = [record["time/waiting_for_teacher"] for record in metrics if "time/waiting_for_teacher" in record]
        (result,) = Path(folder).glob("*/result.json")
        numbers["seconds waited for the teacher"] = sum(waited)
        numbers["seconds of the run"] = json.loads(result.read_text())["seconds"]
    for name, value in numbers.items():
        print(f"{name}: {value:.2f}" + ("" if name.startswith("seconds") else " pairs/s"))
    keep(FILE, "throughput", numbers, jobs)


def relabelling(jobs: int) -> None:
    """Part `relabelling`."""
    import torch
    from gymnasium import spaces

    from sightline.control.relabelling import relabel
    from sightline.control.replay import CommittedReplayBuffer
    from sightline.models.encoders import load_encoder
    from sightline.preferences.config import LearnedConfig
    from sightline.rewards.learned.config import CNNConfig
    from sightline.rewards.learned.reward import LearnedReward

    torch.set_num_threads(os.cpu_count() or 1)
    rng = np.random.default_rng(0)
    space, action = spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-1, 1, (1,), np.float32)

    def filled(reward: LearnedReward, rows: int) -> CommittedReplayBuffer:
        buffer = CommittedReplayBuffer(
            rows, space, action, n_envs=1, feature_shape=reward.feature_shape, feature_dtype=reward.feature_dtype
        )
        assert buffer.features is not None
        buffer.features[:] = rng.integers(0, 200, buffer.features.shape).astype(buffer.features.dtype)
        buffer.rows_added, buffer.pos, buffer.full = rows, 0, True
        buffer.committed[:] = True
        assert len(buffer.filled_rows()) == rows, "or nothing would be measured"
        return buffer

    head = LearnedConfig().make_reward((64, 64, 3), load_encoder("bundled", device="cpu"), 0)
    buffer = filled(head, sized(100_000, 1_000))
    numbers: dict[str, Any] = {
        "embedding head: seconds for 100 000 frames": _median_seconds(lambda: relabel(buffer, head)),
        "embedding head: bytes kept of a frame": buffer.features[0, 0].nbytes,  # type: ignore[index]
    }
    for size in (84, 200):
        config = LearnedConfig(kind="learned", model=CNNConfig(kind="cnn", size=(size, size)))
        cnn = config.make_reward((size, size, 3), None, 0)
        frames = filled(cnn, sized(2_000, 64))
        stored = frames.features[:, 0]  # type: ignore[index]
        ours = len(stored) / _median_seconds(functools.partial(relabel, frames, cnn))
        theirs = len(stored) / _median_seconds(functools.partial(_the_published_way, size, stored))
        numbers |= {f"cnn, {size} px: images/s": ours, f"cnn, {size} px: images/s, published way": theirs}
        numbers |= {f"cnn, {size} px: ratio": ours / theirs, f"cnn, {size} px: bytes kept of a frame": stored[0].nbytes}
    default = "cnn, ratio of our default (84 px) to the published one (200 px)"
    numbers[default] = numbers["cnn, 84 px: images/s"] / numbers["cnn, 200 px: images/s, published way"]
    for name, value in numbers.items():
        print(f"{name}: {value:.3g}")
    keep(FILE, "relabelling", numbers, jobs)


def _the_published_way(size: int, frames: np.ndarray) -> np.ndarray:
    """32 frames at a time, made into floats on the host, read by one member after the other, each brought back."""
    import torch
    from torch import nn

    def network() -> nn.Module:
        layers: list[nn.Module] = []
        before, side = 3, size
        for kernel, stride, after in ((5, 3, 16), (3, 2, 32), (3, 2, 64), (3, 2, 128)):
            layers += [nn.Conv2d(before, after, kernel, stride), nn.ReLU()]
            before, side = after, (side - kernel) // stride + 1
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * side**2, 1), nn.Tanh())

    members = [network() for _ in range(3)]
    rewards = []
    for start in range(0, len(frames), 32):
        batch = np.transpose(frames[start : start + 32], (0, 3, 1, 2)).astype(np.float32) / 255.0
        said = []
        for member in members:
            with torch.no_grad():
                said.append(member(torch.from_numpy(batch).float()).detach().cpu().numpy())
        rewards.append(np.mean(np.array(said), axis=0))
    return np.concatenate(rewards)


def updates(jobs: int) -> None:
    """Part `updates`."""
    import torch

    torch.set_num_threads(1)
    numbers: dict[str, float] = {}
    for recipe in ("drawer-open-chat", "drawer-open"):
        learner = _filled_learner(recipe)
        many = 50
        seconds = _median_seconds(functools.partial(learner.train, many, learner.batch_size))
        numbers[f"{recipe}: milliseconds per update"] = 1000 * seconds / many
    numbers["ratio"] = (
        numbers["drawer-open-chat: milliseconds per update"] / numbers["drawer-open: milliseconds per update"]
    )
    for name, value in numbers.items():
        print(f"{name}: {value:.3g}")
    keep(FILE, "updates", numbers, jobs)


def _filled_learner(recipe: str) -> Any:
    """The learner of a recipe, with a replay buffer of random transitions of Meta-World's form."""
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sightline.config.loading import for_control, load_recipe
    from sightline.control.learners import build_learner

    class Nothing(gymnasium.Env[np.ndarray, np.ndarray]):
        observation_space = spaces.Box(-1, 1, (39,), np.float32)
        action_space = spaces.Box(-1, 1, (4,), np.float32)

    learner = build_learner(for_control(load_recipe(recipe)), DummyVecEnv([Nothing]), None, np.float16)
    buffer: Any = learner.replay_buffer
    rng, rows = np.random.default_rng(0), 5_000
    buffer.observations[:rows] = rng.uniform(-1, 1, buffer.observations[:rows].shape)
    buffer.actions[:rows] = rng.uniform(-1, 1, buffer.actions[:rows].shape)
    buffer.rewards[:rows] = rng.normal(size=buffer.rewards[:rows].shape)
    buffer.rows_added = buffer.pos = rows
    buffer.committed[:rows] = True
    return learner


def drawer(jobs: int) -> None:
    """Part `drawer`."""
    from sightline.evaluation.statistics import spearman
    from sightline.labels.types import Question
    from sightline.preferences.config import LearnedConfig
    from sightline.preferences.feedback.pairs import PairsConfig
    from sightline.preferences.sampling import PoolView, choose_pairs
    from sightline.rewards.learned.config import CNNConfig, FittingConfig
    from sightline.rewards.learned.fitting import Examples, fit
    from sightline.rewards.learned.reward import EnsembleReward
    from sightline.teachers.scripted import ScriptedTeacher

    seen, seen_rewards = _drawer_frames(range(sized(40, 2)))
    unseen, unseen_rewards = _drawer_frames(range(1000, sized(1010, 1001)))
    print(f"{len(seen)} frames to ask about, {len(unseen)} of other episodes", flush=True)
    rows: dict[str, list[dict[str, float | None]]] = {}
    for mistake in (0.0, 0.2):
        for loss in ("cross_entropy", "noise_aware"):
            for seed in range(SEEDS):
                feedback = PairsConfig(loss=loss, noise=0.2)
                fitting = FittingConfig(epochs=sized(30, 1), patience=6)
                config = LearnedConfig(kind="learned", model=CNNConfig(kind="cnn"), feedback=feedback, fitting=fitting)
                reward = config.make_reward(seen.shape[1:], None, seed)
                assert isinstance(reward, EnsembleReward)
                features = reward.features_of(seen)
                segments = [_segment(frame, value) for frame, value in zip(seen, seen_rewards, strict=True)]
                view = PoolView([segment.digest for segment in segments], np.zeros((len(segments), 1)))
                chosen = choose_pairs("uniform", sized(1500, 20), view, np.random.default_rng(seed))
                questions = [Question("compare", (segments[a], segments[b]), ("open",)) for a, b in chosen]
                teacher = ScriptedTeacher(seed, mistake=mistake)
                examples = Examples()
                for i, answer in teacher.answers(questions):
                    if answer.value is not None:
                        examples.add(tuple(features[j][None] for j in chosen[i]), answer.value)
                fitted = fit(reward, examples, config.feedback, config.segment, seed)
                correlation = spearman(reward(unseen), unseen_rewards)
                name = f"{loss}, {100 * mistake:.0f} % wrong"
                rows.setdefault(name, []).append(
                    {"rank correlation": correlation, "held-out accuracy": fitted.held_out_accuracy}
                )
                print(f"{name}, seed {seed}: {rows[name][-1]}", flush=True)
    keep(FILE, "drawer", rows, jobs)


def _drawer_frames(seeds: range, every: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Frames uint8[N, 84, 84, 3] of episodes by Meta-World's expert with noise of random strength, and true rewards."""
    from sightline.envs.making import EnvMaker
    from sightline_tasks.registration import METAWORLD_ID

    env = EnvMaker(METAWORLD_ID, {"task": "drawer-open", "show_goal": True}, frame_size=(84, 84))()
    # Only now, for it loads the simulator, which chooses how to render when it is loaded.
    from metaworld.policies import SawyerDrawerOpenV3Policy

    frames, rewards = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        state, _ = env.reset(seed=seed)
        policy, noise = SawyerDrawerOpenV3Policy(), rng.uniform(0, 2)
        for step in range(200):
            wanted = policy.get_action(state) + noise * rng.standard_normal(4)
            state, value, *_ = env.step(np.clip(wanted, -1, 1).astype(np.float32))
            if step % every == 0:
                frames.append(np.asarray(env.render()))
                rewards.append(value)
    env.close()
    return np.stack(frames), np.array(rewards, np.float32)


def _segment(frame: np.ndarray, reward: float) -> Any:
    from sightline.labels.types import Segment

    return Segment(frame[None], np.array([reward], np.float32))


def _train_all(rows: dict[str, tuple[str, ...]], jobs: int, first: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Results of each row with `SEEDS` seeds, from `first` on."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        runs = {
            name: [pool.submit(train, name, arguments, first + seed, Path(folder)) for seed in range(SEEDS)]
            for name, arguments in rows.items()
        }
        return {name: [run.result() for run in those] for name, those in runs.items()}


def _share(run: dict[str, Any], truth: float) -> float:
    """How far a policy has come from the untrained one's return to that of ground truth."""
    before = run["untrained"]["return"]
    if truth == before:  # a run of a few steps need not have learned
        return float("nan")
    return float((run["return"] - before) / (truth - before))


def _kept(results: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    names = ("return", "return_ci_low", "return_ci_high", "success_rate", "ci_low", "ci_high", "panel", "chosen_step")
    return {
        name: [
            {key: run[key] for key in (*names, "wall_seconds")} | {"untrained_return": run["untrained"]["return"]}
            for run in runs
        ]
        for name, runs in results.items()
    }


def _median_seconds(work: Callable[[], Any]) -> float:
    def once() -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began

    once()
    return median(once() for _ in range(REPEATS))


PARTS = {
    "main": learning,
    "efficiency": efficiency,
    "existing": existing,
    "throughput": throughput,
    "relabelling": relabelling,
    "updates": updates,
    "drawer": drawer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=sized(1, 2), help="training runs at the same time")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for part in arguments.parts:
        print(f"\n== {part}", flush=True)
        PARTS[part](arguments.jobs)


if __name__ == "__main__":
    main()
