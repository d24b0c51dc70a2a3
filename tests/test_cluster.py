"""Work on a cluster, with stand-ins for its workers and tasks: embeddings equal bit for bit whoever is lost, and cells
of a sweep. `tools/lanes/ray.sh` tries the same with Ray."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sightline as sl
from conftest import TINY, Finished
from sightline.cluster import actors, cells, connecting, encoders
from sightline.cluster.cells import CellStarter
from sightline.cluster.encoders import RemoteEncoder
from sightline.errors import BadInput
from sightline.models.encoders import load_encoder
from sightline.models.worker_pool import NoResult
from sightline.rewards.base import Unavailable
from sightline.rewards.shaped import ShapedReward
from sightline.rewards.weighted_sum import WeightedSum
from sightline.sweep import Plan, carry_out, plan_sweep

Sightline = Callable[..., Finished]


@pytest.fixture(autouse=True)
def _quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "FIRST_WAIT", 0.001)


class StandIn:
    """A worker in this process.

    Args:
        encoder: what it holds.
        until: batches that it computes before it is lost.
        lost_for: probes that it does not answer then.
        added: to each number of its embeddings.
    """

    def __init__(self, encoder: Any, until: int = 10**9, lost_for: int = 10**9, added: float = 0.0) -> None:
        self.where = "elsewhere"
        self.sizes: list[int] = []
        self._encoder = encoder
        self._until = until
        self._lost_for = lost_for
        self._added = np.float32(added)

    async def embed(self, frames: np.ndarray) -> np.ndarray:
        if len(self.sizes) >= self._until:
            raise NoResult("it is lost")
        self.sizes.append(len(frames))
        assert frames.shape[1:] == (64, 64, 3), "frames travel at the encoder's own size"
        return np.asarray(self._encoder.embed_frames(frames)) + self._added

    async def probe(self) -> None:
        if self._lost_for:
            self._lost_for -= 1
            raise NoResult("it is lost")
        self._until = 10**9


def bundled() -> Any:
    return load_encoder("bundled", "cpu", batch_size=8)


def noise(count: int, side: int = 100) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def test_embeddings_are_those_of_this_machine_in_its_batches() -> None:
    local = bundled()
    workers = [StandIn(bundled()), StandIn(bundled())]
    frames = noise(27)
    assert np.array_equal(RemoteEncoder(local, workers).embed_frames(frames), local.embed_frames(frames))
    assert sorted(workers[0].sizes + workers[1].sizes) == [3, 8, 8, 8]
    remote: Any = RemoteEncoder(local, workers)
    assert remote.embed_frames(frames[:0]).shape == (0, local.embed_frames(frames[:1]).shape[1])
    assert remote.image_size == 64 and remote.compare() == 0.0


@pytest.mark.parametrize("until", [0, 1, 2])
@pytest.mark.parametrize("lost_for", [0, 1, 10**9])
def test_a_lost_workers_batches_are_computed_by_another(until: int, lost_for: int) -> None:
    local = bundled()
    frames = noise(27)
    remote = RemoteEncoder(local, [StandIn(bundled(), until, lost_for), StandIn(bundled())])
    for _ in range(2):
        assert np.array_equal(remote.embed_frames(frames), local.embed_frames(frames))


def test_when_all_are_lost_it_is_one_line() -> None:
    remote = RemoteEncoder(bundled(), [StandIn(bundled(), until=1), StandIn(bundled(), until=1)])
    with pytest.raises(Unavailable, match=r"^none of the 2 encoders on the cluster answers any more: it is lost$"):
        remote.embed_frames(noise(27))


def test_a_worker_with_another_encoder_is_refused_and_another_rounding_is_counted() -> None:
    local = bundled()
    assert RemoteEncoder(local, [StandIn(local), StandIn(local, added=1e-4)]).compare() == pytest.approx(1e-4, rel=0.1)
    with pytest.raises(BadInput, match="encoder 'bundled' on elsewhere gives other embeddings than here"):
        RemoteEncoder(local, [StandIn(local, added=0.5)]).compare()
    with pytest.raises(Unavailable, match="does not answer: it is lost"):
        RemoteEncoder(local, [StandIn(local, until=0)]).compare()


def test_every_reward_with_an_encoder_is_computed_elsewhere_and_stays_what_it_is() -> None:
    frames = noise(20, 64)

    def zero_shot() -> sl.ZeroShotReward:
        return sl.ZeroShotReward("a pole standing upright", encoder=load_encoder("bundled", "cpu"), warn=False)

    makers: list[Callable[[], Any]] = [
        zero_shot,
        lambda: WeightedSum([zero_shot(), zero_shot()], [1.0, 0.5]),
        lambda: ShapedReward(zero_shot(), zero_shot()),
    ]
    for make in makers:
        workers: list[StandIn] = []

        def elsewhere(local: Any, workers: list[StandIn] = workers) -> Any:
            workers.append(StandIn(load_encoder("bundled", "cpu")))
            return RemoteEncoder(local, workers[-1:])

        model = make()
        before = model(frames)
        assert model.compute_elsewhere(elsewhere)
        assert np.array_equal(model(frames), before) and all(worker.sizes for worker in workers)


def test_what_is_no_cluster_is_said_in_one_line(sightline: Sightline, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadInput, match="nobody answers there"):
            connecting._check_address(address)
    for wrong in ("here", "host:port", ":6379"):
        with pytest.raises(BadInput, match=r"say auto, HOST:PORT"):
            connecting._check_address(wrong)
    run = f"--run-dir={tmp_path / 'run'}"
    done = sightline("train", "cartpole", *TINY, "--cluster-workers=2", run)
    assert done.code == 2 and "say which cluster" in done.lines[-1]
    if importlib.util.find_spec("ray") is None:
        done = sightline("train", "cartpole", *TINY, "--cluster=auto", run)
        assert done.code == 2 and "needs Ray; pip install 'sightline[cluster]'" in done.lines[-1]
    assert not (tmp_path / "run").exists()
    for said, line in (
        ("Could not find any running Ray instance", "no Ray cluster runs on this machine"),
        ("Version mismatch: Ray 2.1 and 2.2", "another version of Ray or Python"),
        ("AuthenticationError: no token", "it wants a token"),
        ("strange", "it cannot be joined: strange"),
    ):
        assert line in connecting._reason("auto", RuntimeError(said))
    refused = "gcs_client.cc:210: Unauthenticated: RPC error: InvalidAuthToken"
    assert "it wants a token" in connecting._reason("auto", ConnectionError("Failed to connect"), refused)


def test_what_c_code_says_while_connecting_is_kept_apart(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with connecting._apart_from_stderr(said):
        os.write(2, b"refused\n")
    os.write(2, b"afterwards\n")
    assert said == ["refused\n"] and capfd.readouterr().err == "afterwards\n"


def test_there_is_a_copy_on_each_node_that_has_room() -> None:
    head = {"Alive": True, "Resources": {"memory": 1.0}}  # as KubeRay starts it, with --num-cpus=0
    worker = {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}}
    lost = {"Alive": False, "Resources": {"CPU": 2.0, "GPU": 1.0}}
    assert actors.nodes_with_room([head, worker, worker, lost], 1, 0.0) == 2
    assert actors.nodes_with_room([head, worker], 2, 0.5) == 1
    with pytest.raises(BadInput, match="no node of the cluster has 4 CPU and 0 GPU"):
        actors.nodes_with_room([head, worker], 4, 0.0)


# -- cells of a sweep --------------------------------------------------------------------------------------------------


class FakeRay:
    """What `sightline.cluster.cells` uses of Ray: tasks in threads of this process."""

    class exceptions:
        class RayError(Exception):
            pass

        class TaskCancelledError(RayError):
            pass

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4)
        self.options: list[dict[str, Any]] = []

    def remote(self, function: Callable[..., Any]) -> Any:
        def options(**settings: Any) -> Any:
            self.options.append(settings)
            return SimpleNamespace(remote=lambda *arguments: self._threads.submit(function, *arguments))

        return SimpleNamespace(options=options)

    def wait(self, references: list[Future[Any]], timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
        return [one for one in references if one.done()], [one for one in references if not one.done()]

    def get(self, reference: Future[Any]) -> Any:
        try:
            return reference.result()
        except Exception as error:
            raise self.exceptions.RayError(f"a traceback\n{type(error).__name__}: {error}") from error


def program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have cells run a program of a few lines, whose argument is the folder of the cell."""
    monkeypatch.setattr(cells, "PROGRAM", [sys.executable, "-c", f"import pathlib, sys\ncell = sys.argv[-1]\n{code}"])


def small_plan(folder: Path) -> Plan:
    return plan_sweep("cartpole", ["seed=0..2", *TINY], folder)


FINISHES = "pathlib.Path(cell).mkdir(); (pathlib.Path(cell) / 'result.json').write_text('{}')"


def test_cells_are_tasks_that_begin_or_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, f"assert sys.argv[1] == 'train' and '--resume-or-start' in sys.argv\n{FINISHES}")
    plan = small_plan(tmp_path / "sweep")
    said: list[str] = []
    ray = FakeRay()
    assert carry_out(plan, 2, said.append, start_elsewhere=CellStarter(ray, 0.5)) == {}
    assert all(cell.finished for cell in plan.cells) and "3 of 3 cells done" in said[-1]
    assert len(ray.options) == 3
    # A lost node's cell is begun again on another.
    assert ray.options[0]["max_retries"] == -1 and ray.options[0]["num_gpus"] == 0.5


def test_a_cell_whose_folder_is_still_written_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PAUSE", 0.01)
    program(
        monkeypatch,
        f"mark = pathlib.Path(cell + '.tried')\nif not mark.exists():\n    mark.touch()\n    sys.exit(75)\n{FINISHES}",
    )
    plan = small_plan(tmp_path / "sweep")
    assert carry_out(plan, 3, lambda line: None, start_elsewhere=CellStarter(FakeRay(), 0.0)) == {}
    assert all(cell.finished for cell in plan.cells)


def test_a_cell_that_fails_and_a_folder_that_is_not_shared_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "print('sightline: no such pole', file=sys.stderr); sys.exit(2)")
    plan = small_plan(tmp_path / "sweep")
    failures = carry_out(plan, 3, lambda line: None, start_elsewhere=CellStarter(FakeRay(), 0.0))
    assert set(failures.values()) == {"no such pole"} and len(failures) == 3
    with monkeypatch.context() as patch:
        patch.setattr(cells, "_is_shared", lambda file, plan: False)
        failures = carry_out(plan, 3, lambda line: None, start_elsewhere=CellStarter(FakeRay(), 0.0))
    assert len(failures) == 3 and all("share it" in line and "\n" not in line for line in failures.values())
    assert not cells._is_shared(tmp_path / "sweep" / "sweep.json", b"another plan")
