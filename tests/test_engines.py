"""Engines: what several processes learn together is what one learns alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from conftest import Finished
from engine_worker import CASES, LEFT_OUT, learned, learner_of, play, recipe_of, vlm_of, write
from sightline.agents.engines.engine import SingleProcess, padded_microbatches
from sightline.agents.engines.fsdp2 import layers_in
from sightline.agents.engines.optimisers import full_optimiser_state, load_full_optimiser_state
from sightline.agents.engines.starting import meet, start_engine
from sightline.errors import BadInput, RunFailed
from sightline.roles import check_shared
from sightline.runs import state as files
from sightline.runs.lease import take_lease
from tiny_families import build_family

Sightline = Callable[..., Finished]
TESTS = Path(__file__).parent
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
"""Float32, added up in another order, over two updates of several steps."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "model"
    build_family("llava", folder)
    return folder


@pytest.fixture(scope="module")
def together(model: Path) -> Path:
    """What two processes leave that do the jobs of `engine_worker.py`, after one has written `single`."""
    folder = model.parent
    engine, recipe = SingleProcess(), recipe_of("ppo", model)
    vlm = vlm_of(recipe)
    learner = learner_of(recipe, engine, vlm)
    played = play(recipe, engine, vlm, learner, 0)
    learner.learn(played, learner.compute_advantages(played), 0, 0.0)
    write(folder / "single", engine, vlm, learner)
    jobs = ("compare", "fail")
    said = _output_of([sys.executable, str(TESTS / "engine_worker.py"), str(folder), free_port(), *jobs])
    logs = [(folder / f"{job}-{rank}.log").read_text() for job in jobs for rank in range(2)]
    assert json.loads(said.splitlines()[-1]) == [[0, 0], [0, 0]], logs
    assert logs[:2] == ["", ""]
    return folder


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _output_of(command: list[str]) -> str:
    """What a command says that succeeds; none of its processes is left behind if it does not end."""
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, warned = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, warned
    return said


def assert_same(told: dict[str, Any], expected: dict[str, Any]) -> None:
    assert told["said"] == expected["said"]
    for update in range(2):
        np.testing.assert_allclose(told["values"][update], expected["values"][update], **TOLERANCE)
        for mine, other in zip(told["references"][update], expected["references"][update], strict=True):
            assert (mine is None) == (other is None)
            if mine is not None:
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
        numbers, wanted = told["metrics"][update], expected["metrics"][update]
        assert numbers.keys() == wanted.keys()
        for name, value in wanted.items():
            assert numbers[name] == (None if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)), name
    assert told["weights"].keys() == expected["weights"].keys()
    for name, values in expected["weights"].items():
        assert type(told["weights"][name]) is torch.Tensor
        torch.testing.assert_close(told["weights"][name], values, **TOLERANCE, msg=lambda text, name=name: name + text)


def test_two_processes_learn_what_one_learns(together: Path, model: Path) -> None:
    for case in CASES:
        expected = learned(case, SingleProcess(), model)
        assert expected["metrics"][0]["update/gradient_norm"] > 1e-3
        assert expected["metrics"][1] != expected["metrics"][0]
        for engine in {"ddp", "fsdp2"} - {engine for engine, other in LEFT_OUT if other == case}:
            of_all = [torch.load(together / f"{engine}-{case}-{rank}.pt", weights_only=False) for rank in range(2)]
            for told in of_all:
                assert_same(told, expected)
            for name, values in of_all[0]["weights"].items():
                assert torch.equal(values, of_all[1]["weights"][name]), "processes drift apart"


def test_one_process_in_shards(launched: Callable[..., None], model: Path) -> None:
    launched(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    engine = start_engine("fsdp2", "cpu")
    try:
        told = learned("ppo", engine, model)
    finally:
        engine.close()
    assert_same(told, learned("ppo", SingleProcess(), model))


def test_what_one_engine_saved_another_goes_on_with(together: Path, model: Path, tmp_path: Path) -> None:
    for before, after in (("single", "fsdp2-at-once"), ("fsdp2", "ddp-at-once")):
        assert_same_files(together / before, together / after, rtol=0, atol=0)
    engine, recipe = SingleProcess(), recipe_of("ppo", model)
    vlm = vlm_of(recipe)
    learner = learner_of(recipe, engine, vlm)

    def take_over(name: str) -> None:
        vlm.load_weights(together / name)
        engine.load_optimiser_state(learner.optimiser, files.read_state(together / name / "optimiser.safetensors"))

    take_over("single")
    for name in ("fsdp2", "ddp"):
        played = play(recipe, engine, vlm, learner, 1)
        learner.learn(played, learner.compute_advantages(played), 1, 0.5)
        write(tmp_path / name, engine, vlm, learner)
        assert_same_files(tmp_path / name, together / name, **TOLERANCE)
    take_over("fsdp2")
    write(tmp_path / "again", engine, vlm, learner)
    assert_same_files(together / "fsdp2", tmp_path / "again", rtol=0, atol=0)


def assert_same_files(expected: Path, found: Path, **tolerance: float) -> None:
    assert {path.name for path in expected.iterdir()} == {path.name for path in found.iterdir()}
    for name in ("model.safetensors", "value_head.safetensors"):
        torch.testing.assert_close(load_file(found / name), load_file(expected / name), **tolerance)
    mine, theirs = (files.read_state(folder / "optimiser.safetensors") for folder in (found, expected))
    torch.testing.assert_close(mine["state"], theirs["state"], **tolerance)
    assert [group["params"] for group in mine["param_groups"]] == [group["params"] for group in theirs["param_groups"]]


def test_a_loss_that_is_not_finite_ends_all_processes_with_one_line(together: Path) -> None:
    told = [(together / f"fail-{rank}.log").read_text() for rank in range(2)]
    assert told[0] == told[1]
    lines = told[0].splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["ddp", "fsdp2"]
    assert all("not a finite number" in line for line in lines)


def test_a_whole_run_on_two_machines(sightline: Sightline, model: Path, tmp_path: Path) -> None:
    """From the warm start to the test of the chosen checkpoint, and on from there by another engine: torchrun's two
    machines of one process each make the run of one process. Shares are uneven, and one is empty."""
    settings = [
        *("train", "role=agent", "env=numberline", "env_options={max_position: 2, render_size: [32, 32]}"),
        *(f"policy.model={model}", "replies.max_tokens=64", "warm_start.samples=5", "warm_start.batch=1"),
        *("episode_steps=2", "rollouts.tasks=1", "evaluation.episodes=1", "evaluation.test_episodes=3"),
        *("algorithm.kind=grpo", "algorithm.group=2"),
    ]
    alone, together = tmp_path / "alone", tmp_path / "together"
    jobs = []
    for engine, *more in (("fsdp2", "steps=4"), ("ddp", "steps=8", "--resume")):
        done = sightline(*settings, *more, "--run-dir", alone)
        assert done.code == 0, done.err
        arguments = [*settings, *more, "--run-dir", str(together), f"engine={engine}"]
        jobs.append({"arguments": arguments, "log": str(tmp_path / engine)})
    said = _output_of([sys.executable, str(TESTS / "torchrun_worker.py"), json.dumps(jobs)])
    logs = {file.name: file.read_text() for file in tmp_path.glob("*.[01]")}
    assert json.loads(said.splitlines()[-1]) == [[0, 0], [0, 0]], logs
    # Torchrun decides on which machine the first process of all is.
    for engine in ("fsdp2", "ddp"):
        assert sorted(logs[f"{engine}.{number}"].count("report  ") for number in range(2)) == [0, 1]

    runs = alone, together
    warm = [load_file(next(run.glob("checkpoints/warm-*/model.safetensors"))) for run in runs]
    torch.testing.assert_close(warm[1], warm[0], **TOLERANCE)
    for name in ("result-4.json", "result.json"):
        results = [json.loads((run / name).read_text()) for run in runs]
        assert results[0]["chosen_step"] == results[1]["chosen_step"] > 0
        # evaluation episodes are shared out, too: what each has played is what one plays, in the order of the seeds
        assert results[0]["random"] == results[1]["random"] and results[0]["oracle"] == results[1]["oracle"]
        assert results[0]["untrained"] == results[1]["untrained"]
        assert all(results[1][look]["episodes"] == 3 for look in ("blank", "shuffled", "random", "oracle"))
    logged = [json.loads((run / "trajectories/test-real.json").read_text())["episodes"] for run in runs]
    shown = [[turn["pictures"] for episode in episodes for turn in episode["turns"]] for episodes in logged]
    assert shown[0] == shown[1] and [len(episodes) for episodes in logged] == [3, 3]
    kept = {file.stem for file in (together / "trajectories" / "pictures").iterdir()}
    assert {picture for pictures in shown[1] for picture in pictures} <= kept
    newest = [max(run.glob("checkpoints/step-*")) for run in runs]
    assert newest[0].name == newest[1].name
    weights = [load_file(folder / "model.safetensors") for folder in newest]
    torch.testing.assert_close(weights[1], weights[0], **TOLERANCE)


def test_a_process_that_does_not_come_is_not_waited_for_without_end() -> None:
    """It may have been refused on its machine, of which this one hears nothing."""
    store = torch.distributed.HashStore()
    meet(store, 0, 1)
    with pytest.raises(RunFailed, match=r"process 1 of 2 has not begun .*; see what it said"):
        meet(store, 0, 2, seconds=0.3)


def test_a_folder_that_another_machine_does_not_see_is_refused(tmp_path: Path) -> None:
    """In all processes alike, before anything is written."""

    class Second(SingleProcess):
        def gather(self, local: Any) -> list[Any]:
            return [("one", "the lease"), local]

    with pytest.raises(
        BadInput, match=rf"process 1 on .* does not see the run folder '{tmp_path}' of process 0 on one"
    ):
        check_shared(Second(), tmp_path)
    lease = take_lease(tmp_path)
    check_shared(SingleProcess(), tmp_path)
    lease.release()


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`launched(RANK=…, …)`: torchrun's environment."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return lambda **numbers: [monkeypatch.setenv(name, str(number)) for name, number in numbers.items()] and None


def test_how_engines_are_started(launched: Callable[..., None]) -> None:
    assert isinstance(start_engine("auto"), SingleProcess)
    assert isinstance(start_engine("single"), SingleProcess)
    for name in ("ddp", "fsdp2"):
        with pytest.raises(BadInput, match=rf"torchrun --nproc-per-node 2 -m sightline train .* engine={name}"):
            start_engine(name)
    launched(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0)
    assert isinstance(start_engine("auto"), SingleProcess)
    launched(RANK=1, WORLD_SIZE=3, LOCAL_RANK=1)
    with pytest.raises(BadInput, match="torchrun has started 3; say engine=ddp or fsdp2"):
        start_engine("single")
    launched(LOCAL_RANK=99)
    with pytest.raises(BadInput, match="more processes than GPUs"):
        start_engine("ddp", "cuda")


def test_padding_is_added_only_for_uniform_steps() -> None:
    class Third(SingleProcess):
        def largest(self, number: int) -> int:
            return max(number, 3)

    engine = Third()
    assert padded_microbatches(engine, ["a"], "padding") == [("a", True)]
    assert padded_microbatches(engine, [], "padding") == []
    engine.uniform_steps = True
    assert padded_microbatches(engine, ["a"], "padding") == [("a", True), ("padding", False), ("padding", False)]
    assert padded_microbatches(engine, list("abcd"), "padding") == [(letter, True) for letter in "abcd"]


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    layer = nn.Linear(3, 1)
    optimiser = torch.optim.AdamW(layer.parameters(), 0.1)
    before = layer.weight.detach().clone()
    (layer(torch.ones(1, 3)).sum() * float("inf")).backward()
    assert not np.isfinite(SingleProcess().step(optimiser, 1.0))
    assert torch.equal(layer.weight, before) and layer.weight.grad is None
    layer(torch.ones(1, 3)).sum().backward()
    assert SingleProcess().step(optimiser, 1.0) == pytest.approx(2.0)  # three weights and a bias, each with gradient 1
    assert not torch.equal(layer.weight, before)


def test_an_optimiser_takes_over_nothing_of_another_model() -> None:
    layer, other = nn.Linear(3, 1), nn.Linear(2, 1)
    optimiser = torch.optim.AdamW(layer.parameters(), 0.1)
    layer.weight.sum().backward()  # the bias is never moved, so nothing is known of it
    optimiser.step()
    state = full_optimiser_state(layer, optimiser)
    moments = state["state"]
    assert moments.keys() == {"weight"} and moments["weight"]["exp_avg"].tolist() == [[pytest.approx(0.1)] * 3]
    with pytest.raises(BadInput, match=r"another model \(it knows weight"):
        load_full_optimiser_state(other, torch.optim.AdamW(other.parameters(), 0.1), state)
    fresh = torch.optim.AdamW(layer.parameters(), 0.1)
    load_full_optimiser_state(layer, fresh, state)
    again = full_optimiser_state(layer, fresh)
    torch.testing.assert_close(again["state"], moments, rtol=0, atol=0)
    assert again["param_groups"] == state["param_groups"]


def test_an_optimiser_that_has_done_nothing_is_saved_as_such() -> None:
    layer = nn.Linear(3, 1)
    optimiser = torch.optim.AdamW(layer.parameters(), 0.1)
    assert full_optimiser_state(layer, optimiser) == {} and not optimiser.state
    layer.weight.sum().backward()
    optimiser.step()
    load_full_optimiser_state(layer, optimiser, {})
    assert not optimiser.state


def test_layers_are_found_in_any_tower() -> None:
    towers = nn.Module()
    towers.embedding = nn.Embedding(3, 2)
    towers.text = nn.Sequential(nn.ModuleList([nn.ModuleDict({"norms": nn.ModuleList([nn.LayerNorm(2)])})]))
    towers.vision = nn.Module()
    experts = nn.Module()
    experts.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    towers.vision.layers = nn.ModuleList([experts, nn.Linear(2, 2), nn.Identity()])
    found = layers_in(towers)
    assert [type(layer) for layer in found] == [nn.LayerNorm, nn.Module, nn.Linear]
    assert found[1] is experts
