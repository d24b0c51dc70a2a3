"""What only a GPU shows, in one command of nine minutes at most: models of published sizes with random weights.

    PYTHONPATH=tools python benchmarks/gpu.py all          every part that can run here, each in a process of its own
    PYTHONPATH=tools python benchmarks/gpu.py encoders     one part

- `encoders`: frames on the host to rewards on the host, at the size that the encoder reads and from 480x480: images a
  second, the share of the GPU's own rate of bfloat16 matrix products, and how much faster that is than the published
  way (float32 weights under autocast); and embeddings a second of frames that are on the device already.
- `rendering`: frames a second of the humanoid by EGL, by size and number of worker processes.
- `humanoid`: `sightline train humanoid-kneeling` with an encoder of ViT-H/14's size: frames a second of the whole loop
  beside those of drawing alone and scoring alone, and so the share of time that the GPU waits.
- `agents`: rollouts, updates and peak memory of a model of Qwen3-VL-2B's shape, with all weights, with adapters, and
  in less memory; and its importance ratio while no weight has changed.
- `vllm`: the same rollouts sampled by vLLM.
- `small`: our own small models, where launching kernels takes longer than they do: calls a second on the CPU and the
  GPU, kernels of a call, the share of time in which the GPU works, and what a CUDA graph makes of it.
- `labelling`: a teacher of Qwen3-VL-4B's shape in this process: questions a second by batch size, and peak memory.

A part that lacks a package or a GPU is named and skipped. Every row is written as soon as it is measured, to
benchmarks/results/gpu.json, so that a row that fails, or a part that takes longer than its time, loses no other.
Weights are drawn at random on the device and written to a temporary folder, from which Sightline loads them.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from running import RESULTS, SMALLEST, keep, kept, sightline, sized
from sightline.envs.workers import kill_children
from sightline.errors import reason_of

FILE = "gpu.json"
SECONDS = sized(2.0, 0.05)
"""How long a rate is measured, after a first call that does not count."""
Row = tuple[str, Callable[[], Any]]
"""Name of a row, and what measures it."""


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        rows: from a folder for models and the device, what is to be measured.
        seconds: that it may take where all parts run.
        packages: modules that it needs beyond those of Sightline's own installation.
    """

    rows: Callable[[Path, str], Iterator[Row]]
    seconds: int
    packages: tuple[str, ...] = ()


# -- measuring ---------------------------------------------------------------------------------------------------------


def seconds_of(work: Callable[[], Any], device: str, calls: int = 1) -> float:
    """Seconds of some calls, until the device has done them."""
    synchronise(device)
    began = time.perf_counter()
    for _ in range(calls):
        work()
    synchronise(device)
    return time.perf_counter() - began


def calls_a_second(work: Callable[[], Any], device: str) -> float:
    """Calls a second, after one that does not count."""
    work()
    calls = max(1, int(SECONDS / seconds_of(work, device)))
    return calls / seconds_of(work, device, calls)


def synchronise(device: str) -> None:
    """Wait until a GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gigabytes(device: str) -> float | None:
    """Most memory that tensors took on a GPU since the last call; None on a CPU."""
    if device != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return peak


def matrix_rate(device: str) -> float:
    """Floating-point operations a second of bfloat16 matrix products, as torch makes them here."""
    side = sized(8192, 64)
    first, second = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 * calls_a_second(lambda: first @ second, device)


def operations_of(tower: Callable[[torch.Tensor], Any], pixels: torch.Tensor) -> int:
    """Floating-point operations of a forward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    # With gradient: without, torch takes a way of its own for attention, which is not counted.
    with FlopCounterMode(display=False) as counter:
        tower(pixels)
    return int(counter.get_total_flops())


def kernels(work: Callable[[], Any], device: str) -> dict[str, float] | None:
    """Kernels of a call, and the share of its time in which the GPU works; None on a CPU."""
    if device != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    calls = 3
    plain = seconds_of(work, device, calls)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        seconds_of(work, device, calls)
    on_gpu = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    busy = sum(event.time_range.elapsed_us() for event in on_gpu) / 1e6
    return {"kernels": len(on_gpu) / calls, "GPU works": busy / plain}


def noise(count: int, side: int) -> np.ndarray:
    """Frames uint8[count, side, side, 3]."""
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


# -- encoders ----------------------------------------------------------------------------------------------------------


def encoders(models: Path, device: str) -> Iterator[Row]:
    """Part `encoders`."""
    from gpu_models import OPEN_CLIP, SIGLIP

    rate = matrix_rate(device)
    yield "bfloat16 matrix products, TFLOP/s", lambda: rate / 1e12
    for shape in (*OPEN_CLIP, SIGLIP):
        yield shape, partial(encoder_rates, shape, models, device, rate)


def encoder_rates(shape: str, models: Path, device: str, matrix_products: float) -> dict[str, float]:
    """Images a second of an encoder, ours and the published way."""
    from gpu_models import draw_encoder
    from sightline.models.encoders import load_encoder
    from sightline.rewards.zero_shot import ZeroShotReward

    drawn = draw_encoder(shape, models, device)
    operations = operations_of(drawn.tower, torch.zeros(1, 3, drawn.side, drawn.side, device=device))
    count = sized(512, 4)
    frames = noise(count, drawn.side)
    theirs = count * calls_a_second(partial(published_way, drawn.tower, frames, device), device)
    name = drawn.name
    del drawn
    free_memory()
    encoder = load_encoder(name, device, "bfloat16")
    reward = ZeroShotReward("a robot", "a room", encoder=encoder, warn=False)
    ours = count * calls_a_second(partial(reward, frames), device)
    uploaded: Any = torch.from_numpy(frames).to(device)
    from_device = count * calls_a_second(partial(encoder.embed_frames, uploaded), device)
    large = noise(count, 480)
    from_large = count * calls_a_second(partial(reward, large), device)
    return {
        "images/s": ours,
        "share of matrix products": ours * operations / matrix_products,
        "images/s from 480x480": from_large,
        "embeddings/s of frames on the device": from_device,
        "published way: images/s": theirs,
        "ratio": ours / theirs,
        "GFLOP an image": operations / 1e9,
    }


def published_way(tower: Callable[[torch.Tensor], torch.Tensor], frames: np.ndarray, device: str) -> np.ndarray:
    """Embeddings float32[N, D] of frames by float32 weights under autocast, as vlmrm (2024) makes them."""
    embeddings = []
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        for start in range(0, len(frames), 128):
            pixels = torch.from_numpy(frames[start : start + 128]).to(device).permute(0, 3, 1, 2).float()
            embeddings.append(tower((pixels / 255 - 0.45) / 0.27))
    return torch.nn.functional.normalize(torch.cat(embeddings).float(), dim=-1).cpu().numpy()


def free_memory() -> None:
    """Give a GPU's memory back to whoever asks next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# -- rendering ---------------------------------------------------------------------------------------------------------

SIDES = sized((64, 224, 480), (16,))
WORKERS = sized((0, 4, 16), (0, 1))
"""Worker processes; 0: drawn in this one."""


def rendering(models: Path, device: str) -> Iterator[Row]:
    """Part `rendering`."""
    from humanoid_frames import renderer_name

    yield "OpenGL", renderer_name
    for side in SIDES:
        for workers in WORKERS:
            yield f"{side} pixels, {workers} processes", partial(drawn_frames, side, workers)


def drawn_frames(side: int, workers: int) -> float:
    """Frames a second of the humanoid, simulated and drawn, but not scored."""
    from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
    from sightline.envs.making import EnvMaker
    from sightline.envs.tasks import find_task

    task = find_task("humanoid-kneeling")
    options = {"look": "gl", "scene": "textured", "physics": "fast", "slices": 8}
    make = EnvMaker(task.env, task.env_options | options, frame_size=(side, side))
    count = max(workers, 1)
    with closing(FrameVectorEnv(make, count, episode_seeds(0), workers="processes" if workers else "inline")) as envs:
        envs.reset()
        actions = np.random.default_rng(0).uniform(-1, 1, (count, 17)).astype(np.float32)
        return count * calls_a_second(lambda: envs.step(actions), "cpu")


# -- humanoid ----------------------------------------------------------------------------------------------------------


def humanoid(models: Path, device: str) -> Iterator[Row]:
    """Part `humanoid`."""
    measured: dict[str, float] = {}

    def remember(name: str, rate: Callable[[], float]) -> float:
        measured[name] = rate()
        return measured[name]

    def waiting() -> float:
        return 1 - measured["whole loop"] / measured["scored"]

    workers = WORKERS[-1]
    yield "drawn, frames/s", partial(remember, "drawn", partial(drawn_frames, sized(224, 32), workers))
    yield "scored, frames/s", partial(remember, "scored", partial(scored_frames, models, device))
    yield "whole loop, frames/s", partial(remember, "whole loop", partial(looped_frames, models, device, workers))
    yield "share of time that the encoder waits", waiting


def scored_frames(models: Path, device: str) -> float:
    """Frames a second of the large encoder's rewards."""
    from gpu_models import LARGE, draw_encoder
    from sightline.models.encoders import load_encoder
    from sightline.rewards.zero_shot import ZeroShotReward

    drawn = draw_encoder(LARGE, models, device)
    encoder = load_encoder(drawn.name, device, "bfloat16")
    frames = noise(sized(800, 4), drawn.side)
    del drawn
    return len(frames) * calls_a_second(partial(ZeroShotReward("a robot", encoder=encoder, warn=False), frames), device)


def looped_frames(models: Path, device: str, workers: int) -> float:
    """Frames a second of the whole training command, without its start and its evaluations."""
    from gpu_models import LARGE, draw_encoder
    from sightline.runs.metrics import read_metrics

    chunk = 50
    steps = 8 * chunk * workers
    name = draw_encoder(LARGE, models, device).name
    free_memory()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        sightline(
            *("train", "humanoid-kneeling", f"reward.encoder={name}", "reward.dtype=bfloat16", "reward.views=1"),
            *("env_options={look: gl, camera: close}", "learner.frames_every=1", f"reward.device={device}"),
            *(f"envs={workers}", "workers=processes", f"learner.chunk={chunk}", f"steps={steps}"),
            f"learner.batch_size={chunk * workers // 2}",
            *("episode_steps=100", f"evaluation.every={steps}", "evaluation.episodes=1", "evaluation.test_episodes=1"),
            *("videos=false", "tensorboard=false", "--run-dir", str(run)),
        )
        rates = [record.get("time/steps_per_second") for record in read_metrics(run / "metrics.jsonl")]
    return float(np.median([rate for rate in rates if rate]))


# -- agents ------------------------------------------------------------------------------------------------------------

_ADAPTERS = ("policy.lora.rank=16", "policy.dtype=bfloat16")
LEARNERS: dict[str, tuple[str, ...]] = {"all weights": (), "adapters": _ADAPTERS}
SPARING = {
    "all weights, gradient checkpointing": ("policy.gradient_checkpointing=true",),
    "adapters, four bits": ("policy.lora.rank=16", "policy.four_bit=true"),
}
EPISODES = sized(16, 2)
"""Tasks of a rollout; each is played by a group of four."""
_AGENT = (
    *("algorithm.kind=grpo", "algorithm.group=4", "replies.max_tokens=64", "episode_steps=4"),
    *("replies.penalty=0.1", "update.epochs=1", "update.minibatch=64", "update.thought_weight=1"),
    *("update.kl_thoughts=0", "update.kl_actions=0", f"rollouts.parallel={4 * EPISODES}"),
    "update.learning_rate=1e-12",  # no weight changes, so that importance ratios differ from one by rounding alone
)


def agents(models: Path, device: str) -> Iterator[Row]:
    """Part `agents`."""
    from gpu_models import draw_vlm

    folder = draw_vlm("Qwen3-VL-2B", models, device)
    free_memory()
    for name, overrides in LEARNERS.items():
        yield name, partial(agent_rates, folder, device, overrides)
    for name, overrides in SPARING.items():
        lacks_library = "four_bit" in overrides[-1] and importlib.util.find_spec("bitsandbytes") is None
        if not lacks_library:
            yield name, partial(agent_rates, folder, device, overrides)


def vllm(models: Path, device: str) -> Iterator[Row]:
    """Part `vllm`."""
    from gpu_models import draw_vlm

    folder = draw_vlm("Qwen3-VL-2B", models, device)
    free_memory()
    for name, overrides in {"compiled": (), "eager": ("policy.vllm.compiled=false",)}.items():
        sampler = ("policy.sampler=vllm", "policy.vllm.max_length=2048", *overrides)
        yield name, partial(agent_rates, folder, device, sampler, learns=False)


def agent_rates(folder: Path, device: str, overrides: Sequence[str], learns: bool = True) -> dict[str, float | None]:
    """Rates of a rollout, and of an update on it with random rewards, which leave no group without a lesson."""
    from sightline.agents.agent_setup import build
    from sightline.agents.resolving import resolve
    from sightline.agents.rollouts import EpisodeTask
    from sightline.config.loading import for_agent, load_recipe

    told = [f"policy.model={folder}", f"device={device}", *_AGENT, *overrides]
    setup = build(resolve(for_agent(load_recipe("numberline", told))))
    setup.engine.prepare(setup.vlm)
    tasks = [EpisodeTask(seed, member) for seed in range(EPISODES) for member in range(4)]
    sampler = setup.sampler(training=True)
    peak_gigabytes(device)
    with closing(setup.rollout_worker(training=True)) as worker:
        worker.play(sampler, tasks[:4], (0,))  # the first compiles and fills caches
        played: list[Any] = []
        playing = seconds_of(lambda: played.extend(worker.play(sampler, tasks, (1,))), device)
    turns = [turn for episode in played for turn in episode.turns]
    tokens = sum(len(turn.sample.ids) for turn in turns)
    numbers = {
        "turns": float(len(turns)),
        "rollout: tokens/s": tokens / playing,
        "rollout: turns/s": len(turns) / playing,
        "rollout: peak GB": peak_gigabytes(device),
    }
    if not learns:
        return numbers
    chance = np.random.default_rng(0)
    for turn in turns:
        turn.reward = float(chance.random())
    learner = setup.learner()
    said: dict[str, Any] = {}
    scoring = seconds_of(lambda: said.update(learner.compute_values(played)), device)
    advantages = learner.compute_advantages(played)
    learning = seconds_of(lambda: said.update(learner.learn(played, advantages, 0, 0.0)), device)
    return numbers | {
        "scoring: turns/s": len(turns) / scoring,
        "update: turns/s": len(turns) / learning,
        "update: peak GB": peak_gigabytes(device),
        "importance ratio": said["update/ratio"],
        "importance ratio, largest": said["update/ratio_max"],
        "mismatch of the sampler, largest": said["mismatch_max"],
    }


# -- small models ------------------------------------------------------------------------------------------------------


def small(models: Path, device: str) -> Iterator[Row]:
    """Part `small`."""
    for where in dict.fromkeys((device, "cpu")):
        for count in sized((8, 64, 512), (2,)):
            yield f"bundled encoder, {count} frames, {where}", partial(small_encoder, count, where)
        yield f"a step of DQN, {where}", partial(small_learner, where)
        yield f"bundled vision-language model, {where}", partial(small_vlm, where)


def small_encoder(count: int, device: str) -> dict[str, Any]:
    """Frames a second of the bundled encoder, and of its image tower as a CUDA graph."""
    from sightline.models.encoders import load_encoder

    encoder = load_encoder("bundled", device)
    frames = noise(count, encoder.image_size)
    embed = partial(encoder.embed_frames, frames)
    numbers: dict[str, Any] = {"frames/s": count * calls_a_second(embed, device), "profile": kernels(embed, device)}
    if device == "cuda":
        numbers["tower in a CUDA graph: frames/s"] = count * calls_a_second(recorded_tower(encoder, frames), device)
    return numbers


def recorded_tower(encoder: Any, frames: np.ndarray) -> Callable[[], None]:
    """Replays an encoder's image tower on the same frames."""
    pixels = encoder.preprocess(frames).to(encoder._dtype)
    cuda: Any = torch.cuda  # not all of it has types
    beside = cuda.Stream()
    with torch.inference_mode(), cuda.stream(beside):
        for _ in range(3):
            encoder._visual(pixels)
    cuda.current_stream().wait_stream(beside)
    graph = cuda.CUDAGraph()
    with torch.inference_mode(), cuda.graph(graph):
        encoder._visual(pixels)
    replay: Callable[[], None] = graph.replay
    return replay


def small_learner(device: str) -> dict[str, Any]:
    """Steps of the optimiser a second: Stable-Baselines3's DQN on CartPole's states."""
    import gymnasium
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", gymnasium.make("CartPole-v1"), device=device, learning_starts=64, seed=0)
    model.learn(sized(512, 128))
    work = partial(model.train, sized(32, 1), 128)
    return {"steps/s": sized(32, 1) * calls_a_second(work, device), "profile": kernels(work, device)}


def small_vlm(device: str) -> dict[str, float | None]:
    """Rates of the bundled vision-language model."""
    from sightline.models.vlm.loading import bundled_vlm_folder

    return agent_rates(bundled_vlm_folder(), device, ())


# -- labelling ---------------------------------------------------------------------------------------------------------


def labelling(models: Path, device: str) -> Iterator[Row]:
    """Part `labelling`."""
    from gpu_models import draw_vlm

    folder = draw_vlm("Qwen3-VL-4B", models, device)
    free_memory()
    for size in sized((4, 16, 64), (2,)):
        yield f"{size} at once", partial(answered, folder, device, size)


def answered(folder: Path, device: str, size: int) -> dict[str, float | None]:
    """Requests a second of a teacher that is asked about pairs, of which each takes two if both orders are judged."""
    from sightline.labels.types import Question, Segment
    from sightline.teachers.chat import ChatTeacher

    options = {"device": device, "dtype": "bfloat16", "batch_size": size}
    settings = {"provider": "local", "concurrency": size, "max_tokens": sized(64, 8), "timeout": 600.0}
    teacher = ChatTeacher(str(folder), options=options, **settings)
    frames = noise(2 * size, sized(224, 32))

    def ask(count: int) -> int:
        pairs = [
            Question("compare", tuple(Segment(one[None], np.zeros(1, np.float32)) for one in pair), ("a robot",))
            for pair in zip(frames[0 : 2 * count : 2], frames[1 : 2 * count : 2], strict=True)
        ]
        return sum(len(answer.exchanges) for _, answer in teacher.answers(pairs))

    ask(1)  # which loads the model
    peak_gigabytes(device)
    requests: list[int] = []
    seconds = seconds_of(lambda: requests.append(ask(size)), device)
    return {"requests/s": requests[0] / seconds, "peak GB": peak_gigabytes(device)}


# -- running -----------------------------------------------------------------------------------------------------------

PARTS = {
    "encoders": Part(encoders, 140, ("open_clip",)),
    "humanoid": Part(humanoid, 75, ("open_clip", "mujoco")),
    "agents": Part(agents, 105, ("peft",)),
    "rendering": Part(rendering, 60, ("mujoco",)),
    "labelling": Part(labelling, 60),
    "small": Part(small, 40),
    "vllm": Part(vllm, 60, ("vllm",)),
}
"""In the order in which they run: what is asked for most comes first. Nine minutes together."""


def device_here() -> str | None:
    """Where to measure; None if this is a machine without a GPU, on which nothing but the smallest size is tried."""
    if torch.cuda.is_available():
        return "cuda"
    return "cpu" if SMALLEST else None


def lacks(part: Part) -> str | None:
    """What is missing for a part, in words; None if it can run."""
    missing = [name for name in part.packages if importlib.util.find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    return "needs a GPU" if device_here() is None else None


def hardware() -> dict[str, str]:
    """What is measured, and with what."""
    import transformers

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}


def measure(name: str, models: Path) -> bool:
    """Measure a part in this process, and write each row as it comes.

    Returns:
        Whether no row failed.
    """
    device = device_here()
    assert device is not None, "it was asked before"
    numbers: dict[str, Any] = hardware()
    keep(FILE, name, numbers)
    succeeded = True
    began = time.monotonic()
    for row, work in PARTS[name].rows(models, device):
        try:
            numbers[row] = work()
        except (Exception, SystemExit) as error:  # the other rows are measured all the same
            numbers[row] = {"failed": reason_of(error)}
            succeeded = False
        numbers["seconds"] = time.monotonic() - began
        keep(FILE, name, numbers)
        print(f"{name}: {row}: {numbers[row]}", flush=True)
        free_memory()
    return succeeded


def measure_all() -> bool:
    """Measure every part in a process of its own, within its time.

    Returns:
        Whether all of them were measured, but for those that lack something.
    """
    succeeded = True
    with tempfile.TemporaryDirectory(prefix="gpu-models-") as models:
        for name, part in PARTS.items():
            lack = lacks(part)
            if lack is not None:
                keep(FILE, name, {"skipped": lack})
                print(f"{name}: {lack}", flush=True)
                continue
            trouble = ended([sys.executable, __file__, name, "--models", models], part.seconds)
            if trouble is not None:
                keep(FILE, name, kept(FILE, name) | {"ended": trouble})
                print(f"{name}: {trouble}", flush=True)
                succeeded = False
    return succeeded


def ended(command: Sequence[str], seconds: float) -> str | None:
    """Run a command with a limit, and say what went wrong; None if nothing did."""
    process = subprocess.Popen(command)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_children(process.pid)
        process.kill()
        process.wait()
        return f"not done after {seconds:g} s"
    return None if code == 0 else f"ended with code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["all", *PARTS])
    parser.add_argument("--models", type=Path, help="folder in which drawn models stay; default: a temporary one")
    given = parser.parse_args()
    if given.part == "all":
        succeeded = measure_all()
        print(f"results: {RESULTS / FILE}")
        raise SystemExit(0 if succeeded else 1)
    lack = lacks(PARTS[given.part])
    if lack is not None:
        raise SystemExit(lack)
    place: AbstractContextManager[Any] = tempfile.TemporaryDirectory(prefix="gpu-models-")
    if given.models is not None:
        place = nullcontext(given.models)
    with place as folder:
        succeeded = measure(given.part, Path(folder))
    raise SystemExit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
