"""Our reward server: what it offers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from conftest import Finished
from reward_servers import Brightness, served, serving
from sightline.errors import BadInput
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.learned.config import StatesConfig
from sightline.rewards.learned.reward import EnsembleReward
from sightline.rewards.servers import serving as server_module
from sightline.rewards.servers.serving import RewardServer, ServedReward, serve_reward
from sightline.rewards.servers.source import served_reward
from sightline.rewards.servers.wire import FormPart, form, npy

GOAL = "pole vertically upright on top of the cart"


def post(server: RewardServer, parts: list[FormPart], path: str = "/score", **headers: str) -> tuple[int, Any]:
    body, kind = form(parts)
    return sent(server, "POST", path, body, {"Content-Type": kind, **headers})


def sent(server: RewardServer, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document


def request_of(document: Any) -> FormPart:
    return FormPart("request", json.dumps(document).encode(), kind="application/json")


def asking(pictures: np.ndarray, **more: Any) -> list[FormPart]:
    clip = {"id": "0", "instruction": None, "frames": "f0"} | more
    return [request_of({"version": 1, "clips": [clip], "want": "frames"}), FormPart("f0", npy(pictures), "f0.npy")]


FRAMES = np.random.default_rng(0).integers(0, 256, (5, 4, 5, 3), np.uint8)


def test_words_are_served_bit_for_bit() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (200, 64, 64, 3), np.uint8)
    reward, _ = served_reward(None, ["reward.kind=zero_shot", f"goal={GOAL}", "baseline=pole and cart"], False)
    assert reward.size == (64, 64) and reward.name.endswith(GOAL)
    with RewardServer(reward) as server, serving(server):
        remote = sl.HTTPReward(server.address)
        assert remote.frame_size == (64, 64)
        in_process = sl.ZeroShotReward(GOAL, "pole and cart", warn=False)
        assert np.array_equal(remote(frames), in_process(frames))


def test_the_rewards_of_recipes_and_what_cannot_be_served() -> None:
    reward, warnings = served_reward("cartpole", [], False)
    assert GOAL in reward.name and not warnings
    _, (warning,) = served_reward(None, ["reward.kind=zero_shot", "goal=a quokka upright"], False)
    assert "quokka" in warning
    other, _ = served_reward("cartpole", ["reward.alpha=0.1"], False)
    assert other.name != reward.name
    for overrides, line in (
        (["reward.kind=learned"], "is learned in a run"),
        (["reward.kind=ground_truth"], "paid by the environment"),
        (["reward.kind=zero_shot"], "needs a goal"),
    ):
        with pytest.raises(BadInput, match=line):
            served_reward(None, overrides, False)
    with pytest.raises(BadInput, match="paid by the environment"):
        ServedReward(GroundTruthReward(), "truth")


def test_a_learned_reward_is_served_from_its_folder(tmp_path: Path) -> None:
    learned = EnsembleReward(StatesConfig(), seen_shape=(3,), seed=1)
    with pytest.raises(BadInput, match="has learned nothing yet"):
        ServedReward(learned, "it")
    states = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    learned.fit_normalizer(learned.features_of(states))
    learned.save(tmp_path / "reward")
    reward, _ = served_reward(str(tmp_path), [], False)
    with RewardServer(reward) as server, serving(server):
        assert np.array_equal(sl.HTTPReward(server.address)(states), learned(states))
    with pytest.raises(BadInput, match="a folder is served as it is"):
        served_reward(str(tmp_path), ["reward.alpha=0.2"], False)
    with pytest.raises(BadInput, match="neither a run nor a learned reward"):
        served_reward(str(tmp_path.parent), [], False)


BAD: dict[str, tuple[list[FormPart], str]] = {
    "no request": ([], "no part 'request'"),
    "no JSON": ([FormPart("request", b"{")], "no JSON"),
    "another version": ([request_of({"version": 2, "clips": [], "want": "last"})], "version 2"),
    "no clips": ([request_of({"version": 1, "want": "last"})], "no 'clips'"),
    "a clip that is none": ([request_of({"version": 1, "clips": [3], "want": "last"})], "a clip has no 'frames'"),
    "no such part": (asking(FRAMES)[:1], "no part 'f0'"),
    "two cameras": (asking(FRAMES, frames={"a": "f0", "b": "f0"}), "shows 2 cameras"),
    "grey frames": (asking(FRAMES[..., 0]), r"uint8\[T, H, W, 3\]"),
    "floats": (asking(FRAMES.astype(np.float32)), "must be uint8"),
    "no frames": (asking(FRAMES[:0]), r"uint8\[T, H, W, 3\]"),
    "a truncated file": ([asking(FRAMES)[0], FormPart("f0", npy(FRAMES)[:-1])], "another size"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_requests_are_answered_with_a_line(bad: str) -> None:
    parts, line = BAD[bad]
    with served(Brightness()) as server:
        status, document = post(server, parts)
        assert status == 400 and re.search(line, document["error"]["message"])
        # And the server goes on.
        assert post(server, asking(FRAMES))[0] == 200


def test_only_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Brightness()) as server:
        assert sent(server, "GET", "/other", b"", {})[0] == 404
        assert post(server, asking(FRAMES), "/info")[0] == 404
        assert post(server, asking(FRAMES), Origin="http://evil.example")[0] == 403
        monkeypatch.setattr(server_module, "MAX_BODY", 100)
        assert post(server, asking(FRAMES))[0] == 413
        assert sent(server, "POST", "/score", b"", {"Content-Type": "text/plain"})[0] == 400
        chunked = {"Transfer-Encoding": "chunked", "Content-Type": "text/plain"}
        assert sent(server, "POST", "/score", b"0\r\n\r\n", chunked)[0] == 411


def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "sesame-0123")
    with served(Brightness(), token="sesame-0123") as server:
        with pytest.raises(BadInput, match="refuses a request without a key"):
            sl.HTTPReward(server.address)
        assert sl.HTTPReward(server.address, key_env="MY_TOKEN")(FRAMES).shape == (5,)
        monkeypatch.setenv("MY_TOKEN", "sesame-0124")
        with pytest.raises(BadInput, match="refuses the key in MY_TOKEN"):
            sl.HTTPReward(server.address, key_env="MY_TOKEN")


def test_other_machines_are_let_in_by_tls_and_a_token_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reward = ServedReward(Brightness(), "brightness")
    monkeypatch.delenv(server_module.TOKEN_ENV, raising=False)
    for host in ("0.0.0.0", "::", "192.168.0.7"):
        with pytest.raises(BadInput, match="in plain text: say --certificate"):
            serve_reward(reward, host, 0, None, print)
    with pytest.raises(BadInput, match="set the environment variable SIGHTLINE_REWARD_TOKEN"):
        serve_reward(reward, "0.0.0.0", 0, tmp_path / "a.pem", print)
    with pytest.raises(BadInput, match="holds no certificate"):
        RewardServer(reward, certificate=tmp_path / "a.pem")
    with RewardServer(reward) as taken, pytest.raises(BadInput, match="is in use; name another"):
        serve_reward(reward, "127.0.0.1", taken.server_port, None, print)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate by openssl")
def test_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = tmp_path / "key.pem"
    subprocess.run([*command, *names, "-keyout", str(made), "-out", str(file)], check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_bytes(made.read_bytes() + file.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with served(Brightness(), certificate=both, token="") as server:
        assert server.address.startswith("https://")
        assert np.array_equal(sl.HTTPReward(server.address)(FRAMES), Brightness()(FRAMES))


class Failing(RewardModel):
    def reward(self, clip: Clip) -> np.ndarray:
        raise ValueError("out of order")


def test_a_model_that_fails_is_named_and_the_server_stays() -> None:
    with served(Failing()) as server:
        status, document = post(server, asking(FRAMES))
        assert status == 500 and "Failing.reward failed: ValueError: out of order" in document["error"]["message"]
        assert sent(server, "GET", "/info", b"", {})[0] == 200


def test_the_command_says_what_is_wrong(sightline: Callable[..., Finished]) -> None:
    done = sightline("serve-reward", "reward.kind=learned")
    assert done.code == 2 and "is learned in a run" in done.err


def test_a_token_that_no_client_could_send_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(server_module.TOKEN_ENV, "two words")
    with pytest.raises(BadInput, match="SIGHTLINE_REWARD_TOKEN does not hold a key: it has blanks"):
        serve_reward(ServedReward(Brightness(), "it"), "0.0.0.0", 0, tmp_path / "a.pem", print)
