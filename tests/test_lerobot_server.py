"""examples/lerobot_reward_server.py, with stand-ins for LeRobot's classes."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from reward_servers import serving
from sightline.errors import BadInput
from sightline.rewards.base import Unavailable
from sightline.rewards.servers.checking import check_server
from sightline.rewards.servers.protocols import Query, SightlineProtocol

KEY = "observation.images.top"
EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "lerobot_reward_server.py"))
FRAMES = np.random.default_rng(0).integers(0, 256, (70, 8, 9, 3), np.uint8)
FRAMES[[0, 2, -1], -1, -1, -1] = [10, 13, 10]  # which end lines in forms
EXPECTED = FRAMES.mean(axis=(1, 2, 3)) / 255


class Model(torch.nn.Module):
    """Brightness of the last frame and a thousand for each frame seen; reads what its preprocessor made, alone."""

    def compute_reward(self, batch: dict[str, Any]) -> torch.Tensor:
        images = batch["observation.model.images"]
        seen = images.shape[1] if images.ndim == 5 else 0
        last = images[:, -1] if images.ndim == 5 else images
        return last.mean(dim=(1, 2, 3)) + 1000 * seen


def preprocess(batch: dict[str, Any]) -> dict[str, Any]:
    assert len(batch["task"]) == len(batch[KEY]) and set(batch["task"]) == {"stand up"}
    assert batch[KEY].min() >= 0 and 0.9 < batch[KEY].max() <= 1
    return {"observation.model.images": batch[KEY]}


@pytest.fixture
def _lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of LeRobot with what the example uses."""
    config = SimpleNamespace(pretrained_path=None)
    modules = {
        "lerobot": {},
        "lerobot.configs": {},
        "lerobot.configs.rewards": {"RewardModelConfig": SimpleNamespace(from_pretrained=lambda path: config)},
        "lerobot.rewards": {},
        "lerobot.rewards.factory": {
            "make_reward_model": lambda config: Model() if config.pretrained_path == "a/model" else None,
            "make_reward_pre_post_processors": lambda config: (preprocess, None),
        },
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


def asked(server: Any, query: Query) -> np.ndarray:
    """float32[wanted], what a server answers to a question."""
    protocol = SightlineProtocol()
    request = protocol.request([query], "stand up")
    document = server.score(f"Content-Type: {request.content_type}\r\n\r\n".encode() + request.body)
    info = protocol.info(lambda path: server.info())
    return protocol.values(json.loads(json.dumps(document, allow_nan=False)), [query], info, False)[0]


@pytest.mark.usefixtures("_lerobot")
def test_frames_are_judged_alone() -> None:
    with EXAMPLE["LeRobotServer"](EXAMPLE["load"]("a/model"), "a/model", "frame", KEY, 0) as server, serving(server):
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(BadInput, match="reads an instruction"):
            sl.HTTPReward(url)
        reward = sl.HTTPReward(url, "stand up", batch=32)
        np.testing.assert_allclose(reward(FRAMES), EXPECTED, atol=1e-6)
        np.testing.assert_allclose(reward(FRAMES[:1]), EXPECTED[:1], atol=1e-6)


@pytest.mark.usefixtures("_lerobot")
@pytest.mark.parametrize(("wanted", "expected"), [(1, [3.0]), (3, [1.0, 2.0, 3.0])])
def test_prefixes_grow_by_a_frame(wanted: int, expected: list[float]) -> None:
    with EXAMPLE["LeRobotServer"](EXAMPLE["load"]("a/model"), "a/model", "prefix", KEY, 0) as server:
        values = asked(server, Query(3, wanted, lambda: FRAMES[:3], steps=np.arange(3)))
    np.testing.assert_allclose(values, 1000 * np.array(expected) + EXPECTED[3 - wanted : 3], atol=1e-3)


def test_it_keeps_to_the_protocol() -> None:
    def rewards(batch: dict[str, Any]) -> torch.Tensor:
        return batch[KEY].mean(dim=(1, 2, 3))

    with EXAMPLE["LeRobotServer"](rewards, "a/model", "frame", KEY, 0) as server, serving(server):
        assert check_server(f"http://127.0.0.1:{server.server_port}", None) == []


def test_what_is_no_number_is_no_answer_and_errors_are_told() -> None:
    def rewards(batch: dict[str, Any]) -> torch.Tensor:
        if len(batch[KEY]) != 3:
            raise KeyError("observation.images.wrist")
        return torch.tensor([0.0, float("nan"), 1.0])

    with EXAMPLE["LeRobotServer"](rewards, "a/model", "frame", KEY, 0) as server, serving(server):
        reward = sl.HTTPReward(f"http://127.0.0.1:{server.server_port}", "stand up", retries=0)
        values = asked(server, Query(3, 3, lambda: FRAMES[:3]))
        assert values[[0, 2]].tolist() == [0, 1] and np.isnan(values[1])
        with pytest.raises(Unavailable, match=r"KeyError: 'observation\.images\.wrist'"):
            reward(FRAMES[:1])
