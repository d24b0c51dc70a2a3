"""Time and size of checkpoints over a run of 200 000 transitions: rows written once, beside the whole buffer each time.

    python benchmarks/checkpoints.py [--transitions 200000] [--checkpoints 10]

The baseline is what Sightline did before: every checkpoint wrote the whole replay buffer with `numpy.savez`, and two
were kept. Both write the same transitions of the same buffer, in the same process and turn by turn, into folders that
are checksummed and flushed alike. Two kinds of transitions: CartPole's with embeddings of 128 numbers, and those of the
recipe `drawer-open-chat` with 84 x 84 frames. Results go to `benchmarks/results/checkpoints.json`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from running import keep, sized
from sightline.control.replay import CommittedReplayBuffer
from sightline.runs.archive import Archive
from sightline.runs.checkpoints import CheckpointStore
from sightline.runs.folder import RunFolder
from sightline.runs.state import write_state

KINDS: dict[str, tuple[int, int, tuple[int, ...], Any]] = {
    "cartpole, embeddings": (4, 1, (128,), np.float16),
    "drawer-open, frames": (39, 4, (84, 84, 3), np.uint8),
}
"""Numbers of a state and of an action; shape and dtype of what is kept beside a transition."""
ENVS, KEPT = 8, 2


def fill(buffer: CommittedReplayBuffer, steps: int, rng: np.random.Generator) -> None:
    """Store and commit vector steps."""
    assert buffer.features is not None
    shape = buffer.features.shape[2:]
    for _ in range(steps):
        states = rng.normal(size=(ENVS, *buffer.obs_shape)).astype(np.float32)
        actions = rng.normal(size=(ENVS, buffer.action_dim)).astype(np.float32)
        buffer.add(states, states, actions, np.zeros(ENVS), np.zeros(ENVS), [{}] * ENVS)
        features = rng.integers(0, 255, (1, ENVS, *shape), np.uint8).astype(buffer.features.dtype)
        buffer.commit(buffer.take_new_rows(), np.zeros((1, ENVS)), features)


def whole(buffer: CommittedReplayBuffer) -> dict[str, np.ndarray]:
    """Everything in the buffer, as it was written before."""
    names = ["observations", "next_observations", "actions", "rewards", "dones", "timeouts", "committed"]
    names += ["true_rewards", "features"]
    stored = buffer.buffer_size if buffer.full else buffer.pos
    return {name: getattr(buffer, name)[:stored] for name in names}


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(kind: str, transitions: int, checkpoints: int) -> dict[str, Any]:
    state, action, shape, dtype = KINDS[kind]
    box = spaces.Box(-np.inf, np.inf, (state,), np.float32)
    acting = spaces.Box(-1, 1, (action,), np.float32)
    buffer = CommittedReplayBuffer(
        transitions, box, acting, n_envs=ENVS, feature_shape=shape, feature_dtype=dtype, device="cpu"
    )
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {"once": [], "whole": []}
    sizes: dict[str, list[int]] = {"once": [], "whole": []}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: RunFolder(Path(folder) / name) for name in times}
        for run in runs.values():
            run.checkpoints.mkdir(parents=True)
        archive = Archive(runs["once"].replay, "transitions")
        stores = {name: CheckpointStore(run, "step", KEPT) for name, run in runs.items()}

        for number in range(1, checkpoints + 1):
            fill(buffer, transitions // ENVS // checkpoints, rng)
            step = number * transitions // checkpoints
            for name, store in stores.items():
                began = time.perf_counter()
                if name == "once":
                    with store.writing(step, archive.digests) as target:
                        buffer.archive_to(archive)
                        write_state(target / "session.safetensors", buffer.state())
                else:
                    with store.writing(step) as target:
                        np.savez(target / "replay.npz", **whole(buffer))  # type: ignore[arg-type]
                times[name].append(time.perf_counter() - began)
                sizes[name].append(size(runs[name].path))
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(exist_ok=True)
    mean = {name: float(np.mean(values)) for name, values in times.items()}
    result = {
        "transitions": transitions,
        "checkpoints": checkpoints,
        "seconds of each checkpoint": {name: [round(value, 2) for value in values] for name, values in times.items()},
        "GB on disk at the end": {name: round(values[-1] / 1e9, 3) for name, values in sizes.items()},
        "mean seconds": {name: round(value, 2) for name, value in mean.items()},
        "times faster": {
            "mean": round(mean["whole"] / mean["once"], 1),
            "last": round(times["whole"][-1] / times["once"][-1], 1),
        },
        "times smaller at the end": round(sizes["whole"][-1] / sizes["once"][-1], 2),
    }
    print(kind, result, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=sized(200_000, 2_000))
    parser.add_argument("--checkpoints", type=int, default=sized(10, 2))
    arguments = parser.parse_args()
    results = {kind: measure(kind, arguments.transitions, arguments.checkpoints) for kind in KINDS}
    command = f"python benchmarks/checkpoints.py --transitions {arguments.transitions}"
    keep("checkpoints.json", "checkpoints", {"command": f"{command} --checkpoints {arguments.checkpoints}"} | results)


if __name__ == "__main__":
    main()
