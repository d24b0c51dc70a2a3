"""Checks of `tools/lanes/cluster.sh`, on two raylets of this machine. Each prints a line with its seconds."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import sightline as sl
from sightline.cluster.cells import CellStarter
from sightline.cluster.connecting import connected
from sightline.cluster.encoders import Cluster, embedding_on
from sightline.errors import BadInput
from sightline.models.encoders import load_encoder
from sightline.rewards.base import Unavailable
from sightline.sweep import carry_out, plan_sweep

FRAMES = 1000
SMALL = [
    "steps=512",
    "envs=2",
    "learner.chunk=32",
    "evaluation.episodes=2",
    "evaluation.test_episodes=2",
    "videos=false",
]
outcomes: list[bool] = []


@contextlib.contextmanager
def raylets() -> Iterator[Any]:
    """Two raylets with one processor each."""
    from ray.cluster_utils import Cluster as Raylets

    store = 200 * 2**20
    head = {"num_cpus": 1, "object_store_memory": store, "include_dashboard": False}
    cluster = Raylets(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=store)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def check(name: str, action: Callable[[], object]) -> None:
    """Carry out a check and print how it went."""
    began = time.monotonic()
    try:
        failure = "" if action() else ": not as expected"
    except Exception as error:
        failure = f": {type(error).__name__}: {error}"
    outcomes.append(not failure)
    print(f"{'--' if failure else 'ok'}   {name} ({time.monotonic() - began:.1f} s){failure}", flush=True)


def zero_shot() -> sl.ZeroShotReward:
    """The reward whose encoder is moved."""
    return sl.ZeroShotReward("a pole standing upright", encoder=load_encoder("bundled", "cpu"), warn=False)


def check_encoders(address: str) -> None:
    """Embeddings with and without losses."""
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 64, 64, 3), np.uint8)
    expected = zero_shot()(frames)

    def equal() -> bool:
        return np.array_equal(model(frames), expected)

    def kill_one_and_compare() -> bool:
        holders = [p for p in psutil.process_iter() if "EncoderHolder" in " ".join(p.cmdline())]
        holders[0].kill()
        return equal()

    def all_gone() -> bool:
        for worker in model.encoder.workers:  # type: ignore[attr-defined]
            ray.kill(worker._actor)
        try:
            model(frames)
        except Unavailable as error:
            return "\n" not in str(error)
        return False

    import ray

    model = zero_shot()
    with embedding_on(model, Cluster(address)) as line:
        print(f"     {line}")
        check("embeddings equal bit for bit", equal)
        check("an actor is killed: embeddings equal", kill_one_and_compare)
        check("and once more", equal)
        check("all actors are gone: one line", all_gone)


def check_sweep(raylets: Any, folder: Path) -> None:
    """Cells of a sweep, equal to those trained here."""
    words = ["seed=0..1", *SMALL]
    here = plan_sweep("cartpole", words, folder / "here")
    there = plan_sweep("cartpole", words, folder / "there")
    carry_out(here, 1, print)

    def trained() -> bool:
        with connected(raylets.address) as ray:
            failures = carry_out(there, 2, print, start_elsewhere=CellStarter(ray, 0.0))
        pairs = zip(here.cells, there.cells, strict=True)
        return not failures and all(_result(local.path) == _result(remote.path) for local, remote in pairs)

    check("cells equal to those trained here", trained)


def _result(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {key: value for key, value in document.items() if "seconds" not in key and "time" not in key}


def _no_cluster() -> bool:
    try:
        with connected("127.0.0.1:1"):
            return False
    except BadInput as error:
        return "nobody answers there" in str(error)


def main() -> None:
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")
    check("nobody there: one line", _no_cluster)
    with raylets() as cluster, tempfile.TemporaryDirectory() as folder:
        check_encoders(cluster.address)
        check_sweep(cluster, Path(folder))
    print(f"cluster: {sum(outcomes)} of {len(outcomes)} checks pass")
    sys.exit(not all(outcomes))


if __name__ == "__main__":
    main()
