"""Memory of runs: buffers are as large as what a run can fill, and what does not fit is refused before it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from conftest import TINY, Finished
from sightline.agents.sizes import space_of
from sightline.config.loading import for_agent, for_control, load_recipe
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.resolving import describe, resolve
from sightline.control.sizes import check_frames, transitions_kept
from sightline.control.state import buffer_of, latest_learner
from sightline.errors import BadInput
from sightline.models import device
from sightline.preferences.pool import SegmentPool
from sightline.runs.folder import open_run

GB = 10**9
PICTURES = ("env=small_envs:Pictures", "goal=a pole", "env_options.size=480", "envs=2", "learner.chunk=8")


def recipe_of(*overrides: str) -> Any:
    return for_control(load_recipe(None, list(overrides)))


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_memory", lambda: 2 * GB)


def test_a_buffer_is_as_large_as_what_the_run_collects() -> None:
    small = ("env=small_envs:Clock", "goal=a pole", "envs=3", "learner.algorithm=DQN")
    for steps, chunk, kept in ((256, 32, 288), (288, 32, 288), (289, 32, 384), (10**7, 32, 100_000)):
        assert transitions_kept(recipe_of(*small, f"steps={steps}", f"learner.chunk={chunk}")) == kept
    assert transitions_kept(recipe_of(*small, "steps=256", "learner.buffer_size=200")) == 200


def filled(rows: int, n_steps: int) -> CommittedReplayBuffer:
    """A buffer with room for some rows, of which eight are filled."""
    states, actions = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    buffer = CommittedReplayBuffer(3 * rows, states, actions, "cpu", n_envs=3, n_steps=n_steps)
    rng = np.random.default_rng(0)
    for _ in range(8):
        state = rng.random((3, 2), np.float32)
        buffer.add(state, -state, rng.integers(0, 3, 3), np.zeros(3), rng.random(3) < 0.2, [{}, {}, {}])
    buffer.commit(buffer.take_new_rows(), rng.random((8, 3)))
    return buffer


@pytest.mark.parametrize("n_steps", [1, 3])
def test_what_is_drawn_does_not_depend_on_the_room(n_steps: int) -> None:
    drawn = []
    for rows in (8, 9, 500):
        np.random.seed(4)
        drawn.append(filled(rows, n_steps).sample(64))
    for other in drawn[1:]:
        for name, values in drawn[0]._asdict().items():
            if values is not None:
                np.testing.assert_array_equal(getattr(other, name), values, err_msg=name)


def test_a_run_that_fills_its_buffer_is_resumed_and_made_longer(
    train_run: Callable[..., Path], sightline: Callable[..., Finished]
) -> None:
    arguments = ("cartpole", *TINY, "learner.buffer_size=5000")
    run = train_run(*arguments, "steps=128")
    before = buffer_of(latest_learner(open_run(run)))
    assert before.buffer_size == 128 // 4
    done = sightline("train", *arguments, "steps=192", "--resume", "--run-dir", run)
    assert done.code == 0, done.err
    longer = buffer_of(latest_learner(open_run(run)))
    assert longer.buffer_size == 192 // 4
    np.testing.assert_array_equal(longer.observations[:32], before.observations)  # type: ignore[index, arg-type]
    np.testing.assert_array_equal(longer.rewards[:32], before.rewards)
    assert longer.committed.all()


@pytest.mark.usefixtures("little_memory")
def test_transitions_that_do_not_fit_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the encoder was loaded")

    monkeypatch.setattr("sightline.rewards.zero_shot.load_encoder", load)
    resolve(recipe_of(*PICTURES, "steps=256"))
    with pytest.raises(BadInput) as caught:
        resolve(recipe_of(*PICTURES, "steps=5000"))
    line = str(caught.value)
    # 480 x 480 x 3 bytes, twice, and a few more: 1.38 MB; nine tenths of 2 GB hold 1302 of them
    for part in ("6.92 GB", "5,008 transitions of 1.38 MB", "uint8[3, 480, 480]", "2 GB", "1,300 would fit"):
        assert part in line
    assert "learner.buffer_size" in line and "\n" not in line
    resolve(recipe_of(*PICTURES, "steps=5000", "learner.buffer_size=1300"))


@pytest.mark.usefixtures("little_memory")
def test_a_chunk_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match=r"a chunk \(4,000 transitions .* lower learner.chunk or envs"):
        resolve(recipe_of(*PICTURES[:-1], "learner.algorithm=PPO", "learner.chunk=2000"))


@pytest.mark.usefixtures("little_memory")
def test_frames_and_segments_that_do_not_fit_are_refused() -> None:
    check_frames((64, 64, 3), 32, 8, 2)
    with pytest.raises(BadInput, match=r"2 x 32 steps of 8 environments, 1080x1920 .* 3.19 GB, .* learner.chunk"):
        check_frames((1080, 1920, 3), 32, 8, 2)
    with pytest.raises(BadInput, match=r"2,000 of 16 frames of 400x600 .* reward.pool"):
        SegmentPool(2000, 16, (400, 600, 3), (4,), np.float32)


def test_a_dry_run_tells_memory_beside_disk() -> None:
    lines = describe(resolve(recipe_of(*PICTURES, "steps=256")))
    memory, disk, learning, evaluation = lines
    assert learning == "learning    begins after 2,000 steps, and the run ends before: raise steps"
    assert memory.startswith("memory") and disk.startswith("disk") and evaluation.startswith("evaluation")
    assert "256 transitions of 1.38 MB: 354 MB" in memory
    # pictures of 16x16 are rendered beside: 768 bytes, two chunks of 8 steps of 2 environments
    assert "frames that wait for their rewards: 24.6 kB (2 x 8 steps of 2 environments, 0.768 kB each)" in memory
    large = ("env=small_envs:Large", "goal=a pole", "envs=2", "learner.chunk=8", "steps=256")
    assert "393 kB (2 x 8 steps of 2 environments, 12.3 kB each)" in "\n".join(describe(resolve(recipe_of(*large))))


def test_a_dry_run_of_an_agent_tells_memory_beside_disk(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(2_500_000))
    told = {
        name: space_of(for_agent(load_recipe("numberline", [f"policy.model={name}"]))) for name in (tmp_path, "a/b")
    }
    memory, disk = told[tmp_path].splitlines()
    assert memory.startswith("memory      the model (2.5 MB of weights in its files); ") and disk.startswith("disk ")
    assert told["a/b"].startswith("memory      the model; "), "what lies on the hub is known once it is fetched"


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "memory.max": "3000000",
        "memory.current": "2500000",
        "memory.stat": "anon 100\ninactive_file 400000\nactive_file 100000\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(device, "CGROUPS", ((str(tmp_path / "memory.max"), str(tmp_path / "memory.current")),))
    assert device.available_memory() == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert device.available_memory() > 1_000_000
