"""The policy on a server: what it answers is checked, its weights follow the learner, and old episodes are not used."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from conftest import Finished
from policy_server import Faults, PolicyServer
from sightline.agents.agent_setup import build
from sightline.agents.asynchronous import RolloutsAhead, staleness, within_bound
from sightline.agents.resolving import resolve
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.samplers.server import ServerSampler
from sightline.agents.samplers.weight_check import WeightCheck
from sightline.agents.types import Trajectory
from sightline.config.agents import PolicyServer as Settings
from sightline.config.loading import for_agent, load_recipe, parse_override
from sightline.errors import BadInput, RunFailed, SightlineWarning
from sightline.images import Picture
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.types import ChatTurn, Sample
from sightline.rewards.base import Unavailable
from sightline.runs.metrics import read_metrics
from small_trajectories import episode

SHOWN = [ChatTurn("Which way?", (Picture(np.full((40, 40, 3), 90, np.uint8)),))]
SMALL = (
    *(
        "numberline",
        "policy.sampler=server",
        "steps=18",
        "episode_steps=3",
        "tensorboard=false",
        "evaluation.every=9",
        "checkpoints.every=9",
    ),
    *("evaluation.stop_at=null", "evaluation.episodes=1", "evaluation.test_episodes=1", "rollouts.tasks=2"),
    *("rollouts.parallel=3", "update.minibatch=8", "update.epochs=1", "algorithm.kind=ppo", "videos.final=false"),
)


@pytest.fixture(scope="module")
def served() -> Iterator[PolicyServer]:
    with PolicyServer() as server:
        yield server


@pytest.fixture
def server(served: PolicyServer) -> Iterator[PolicyServer]:
    """The server of the module as it was, and without faults afterwards."""
    served.faults = Faults()
    served.loaded.clear()
    served.requests.clear()
    served.vlm = load_vlm("bundled", device="cpu")
    yield served
    served.faults = Faults()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.agents.samplers.policy_copy.PAUSE", 0.0)


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return load_vlm("bundled", device="cpu")


def sampler(server: PolicyServer, vlm: VLM, **settings: Any) -> ServerSampler:
    return ServerSampler(vlm, Settings(url=server.url, **settings), 1.0, 12)


def test_a_server_s_replies_are_the_policy_s_own(server: PolicyServer, vlm: VLM) -> None:
    """Ids, log-probabilities at the temperature, and the end; greedily the very same reply."""
    of_server = sampler(server, vlm)
    asked = of_server.generate([SHOWN, SHOWN, SHOWN], [(0, 1), (0, 2), (0, 1)])
    assert asked[0].sample.ids.tolist() == asked[2].sample.ids.tolist() != asked[1].sample.ids.tolist()
    assert asked[0].prompt is not None and asked[0].version == -1
    (greedy,), (own,) = (one.generate([SHOWN], [(0, 1)]) for one in (of_server.at(0.0), PolicySampler(vlm, 0.0, 12)))
    np.testing.assert_array_equal(greedy.sample.ids, own.sample.ids)
    assert greedy.sample.text == own.sample.text and greedy.sample.finished == own.sample.finished
    assert of_server.generate([], []) == []


def test_earlier_turns_go_along(server: PolicyServer, vlm: VLM) -> None:
    """As the learner reads them, or the run ends: a reply that is spelt otherwise is another prompt."""
    ids = (*vlm.tokens.encode("up"), vlm.tokens.stop)
    before = ChatTurn(SHOWN[0].text, SHOWN[0].pictures, ids, "up")
    (reply,) = sampler(server, vlm).generate([[before, *SHOWN]], [(1,)])
    assert reply.prompt is not None and len(reply.prompt.ids) > len(vlm.encode(SHOWN).ids)
    spelt = ChatTurn(
        SHOWN[0].text, SHOWN[0].pictures, (*vlm.tokens.encode("u"), *vlm.tokens.encode("p"), ids[-1]), "up"
    )
    with pytest.raises(RunFailed, match=r"reads a prompt of \d+ tokens where the learner reads another"):
        sampler(server, vlm).generate([[spelt, *SHOWN]], [(1,)])


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"other_ids": True}, "reads a prompt of .* where the learner reads another"),
        ({"no_ids": True}, "does not say token ids"),
        ({"other_name": True}, "answers as 'another' where 'tiny' was asked"),
        ({"banned": True}, "tokens that were banned"),
        ({"strips": True}, "leaves out the token that ends a reply"),
        ({"stalls": 30.0}, "no whole answer within 0.5 s"),
        ({"busy": 99}, "status 503: .*busy"),
    ],
)
def test_what_cannot_be_learned_from_ends_the_run(
    fault: dict[str, Any], complaint: str, server: PolicyServer, vlm: VLM
) -> None:
    asked = sampler(server, vlm, timeout=0.5 if "stalls" in fault else 60.0)
    server.faults = Faults(**fault)
    with pytest.raises(RunFailed, match=complaint):
        asked.at(0.0).generate([SHOWN], [(0,)])


def test_what_may_pass_is_asked_again(server: PolicyServer, vlm: VLM) -> None:
    asked = sampler(server, vlm)
    server.faults = Faults(busy=2)
    assert len(asked.generate([SHOWN], [(0,)])) == 1 and len(server.requests) == 3


def test_stale_replies_need_a_correction_in_bfloat16(server: PolicyServer) -> None:
    """There old log-probabilities are computed anew, with other weights than have sampled."""
    settings = ("numberline", "policy.sampler=server", f"policy.server.url={server.url}", "rollouts.staleness=1")
    setup = build(resolve(for_agent(load_recipe(settings[0], [*settings[1:], "policy.freeze=[vision]"]))))
    assert setup.vlm.exact and setup.learner()
    setup.vlm.scorer.autocast = torch.bfloat16
    with pytest.raises(BadInput, match=r"rollouts\.staleness=1 .* say update\.importance_cap=2"):
        setup.learner()


def test_servers_that_are_not_there_or_serve_others_are_refused(server: PolicyServer, vlm: VLM) -> None:
    with pytest.raises(BadInput, match=r"there is no server at http://127\.0\.0\.1:9/v1 .*vllm serve"):
        ServerSampler(vlm, Settings(url="http://127.0.0.1:9/v1"))
    with pytest.raises(BadInput, match="does not serve 'tini'; did you mean 'tiny'"):
        sampler(server, vlm, model="tini")
    with pytest.raises(BadInput, match="in plain text"):
        ServerSampler(vlm, Settings(url="http://192.0.2.1:8000/v1"))
    server.faults = Faults(no_reload=True)
    with pytest.raises(RunFailed, match="collective_rpc: status 404"):
        sampler(server, vlm).take_over_weights()


def test_new_weights_arrive_whole_and_older_ones_are_noticed(server: PolicyServer, tmp_path: Path) -> None:
    vlm = load_vlm("bundled", device="cpu")
    of_server = sampler(server, vlm, weights=str(tmp_path))
    of_server.take_over_weights()
    (before,) = of_server.at(0.0).generate([SHOWN], [(0,)])
    with torch.no_grad():
        for parameter in vlm.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    of_server.take_over_weights()
    (after,) = of_server.at(0.0).generate([SHOWN], [(0,)])
    (own,) = PolicySampler(vlm, 0.0, 12).generate([SHOWN], [(0,)])
    assert after.sample.ids.tolist() == own.sample.ids.tolist() != before.sample.ids.tolist()
    assert (before.version, after.version, server.loaded) == (0, 1, ["0", "1"])
    for cache in ("prefix", "encoder"):  # prompts and pictures of the weights before are forgotten each time
        assert server.requests.count(f"/reset_{cache}_cache") == 2
    assert sorted(place.name for place in tmp_path.iterdir()) == ["0", "1"]
    of_server.take_over_weights()
    assert sorted(place.name for place in tmp_path.iterdir()) == ["1", "2"] and (tmp_path / "2" / "READY").exists()
    with of_server.with_weights(1):  # what is there can be loaded again, and is not twice
        assert of_server.version == 1 and server.loaded[-1] == "1"

    server.faults = Faults(keeps_weights=True)
    with torch.no_grad():
        for parameter in vlm.model.parameters():
            parameter.mul_(-1.0)
    with pytest.raises(
        RunFailed, match="says that it has loaded weights 3, but finds its replies as probable as older"
    ):
        of_server.take_over_weights()


def test_log_probabilities_have_to_be_those_that_were_sampled_from(server: PolicyServer, tmp_path: Path) -> None:
    """vLLM's default is those before temperature and biases."""
    server.faults = Faults(raw=True)
    with pytest.raises(RunFailed, match=r"are not those that it samples from.* --logprobs-mode processed_logprobs"):
        sampler(server, load_vlm("bundled", device="cpu"), weights=str(tmp_path)).take_over_weights()


def test_another_model_is_noticed_before_the_first_rollout(server: PolicyServer, tmp_path: Path) -> None:
    """It reads prompts as the policy does, and loads no weights."""
    vlm = load_vlm("bundled", device="cpu")
    with torch.no_grad():
        for parameter in server.vlm.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    server.faults = Faults(keeps_weights=True)
    with pytest.raises(RunFailed, match="it serves another model"):
        sampler(server, vlm, weights=str(tmp_path)).take_over_weights()


@pytest.mark.parametrize("bound", [None, 1], ids=["synchronous", "ahead"])
def test_weights_that_stay_behind_by_an_update_are_noticed(
    bound: int | None, server: PolicyServer, tmp_path: Path
) -> None:
    """Updates that move log-probabilities by some hundredths of a nat; at the latest at the next weights."""
    server.faults = Faults(keeps_weights=True)
    more = [f"policy.server.url={server.url}", *([] if bound is None else [f"rollouts.staleness={bound}"])]
    overrides = dict(map(parse_override, [*SMALL[1:], *more]))
    with pytest.raises(RunFailed, match=r"says that it has loaded weights [12], but"):
        sl.train("numberline", run_dir=tmp_path / "run", progress=False, **overrides)


def answers(*logprobs: float) -> list[Sample]:
    return [Sample(np.arange(len(logprobs)), np.array(logprobs, np.float32), "", False)]


def test_what_a_server_answers_is_that_of_its_weights_or_of_older_ones() -> None:
    """The table of the module, with rounding of a hundredth, as of bfloat16."""
    check = WeightCheck()
    for version, logprob in enumerate((-0.5, -0.41, -0.4, -0.1, -0.11)):
        check.expect(version, answers(logprob, -1.0))
    for version, said in ((9, -7.0), (0, -0.51), (1, -0.4), (2, -0.405)):  # nothing is known of 9
        check.compare(version, answers(said, -1.0), "it")
    with pytest.raises(RunFailed, match=r"it says that it has loaded weights 3, but .* older ones do \(0\.00[23] nats"):
        check.compare(3, answers(-0.405, -1.0), "it")
    check.compare(3, answers(-0.1, -1.0), "it")
    check.forget(4)
    check.compare(4, answers(-0.4, -1.0), "it")


def test_answers_are_compared_up_to_where_they_part() -> None:
    check, said = WeightCheck(), answers(-0.5, -0.6, -0.1)
    check.expect(0, answers(-0.5, -0.6, -3.0, -9.0))
    said[0].ids[1:] = 7
    check.compare(0, said, "it")  # an even choice that rounding has turned; what follows is of another reply
    other = WeightCheck()
    other.expect(0, answers(-0.5, -1.6))
    with pytest.raises(RunFailed, match=r"it finds its replies 0\.5 nats a token"):
        other.compare(0, said, "it")


def test_weights_too_alike_to_be_told_apart_add_up(server: PolicyServer, tmp_path: Path) -> None:
    """Each step is smaller than what is certain; some of them are not."""
    vlm = load_vlm("bundled", device="cpu")
    of_server = sampler(server, vlm, weights=str(tmp_path))
    of_server.take_over_weights()
    chance = torch.Generator().manual_seed(0)
    steps = [2e-5 * torch.randn(one.shape, generator=chance) for one in vlm.model.parameters()]

    def learn(updates: int) -> None:
        for _ in range(updates):
            with torch.no_grad():
                for parameter, step in zip(vlm.model.parameters(), steps, strict=True):
                    parameter.add_(step)
            of_server.take_over_weights()

    server.faults = Faults(keeps_weights=True)
    learn(1)
    with pytest.raises(RunFailed, match="as probable as older"):
        learn(40)


def test_a_server_that_stalls_holds_nobody_up(server: PolicyServer, tmp_path: Path) -> None:
    """Neither the other replies nor the end of the process, which waits for threads of its pools."""
    program = f"""
from sightline.agents.samplers import policy_copy, server
from sightline.config.agents import PolicyServer
from sightline.models.vlm.model import load_vlm
from sightline.models.vlm.types import ChatTurn

policy_copy.PAUSE = 0.0
asked = server.ServerSampler(load_vlm("bundled", device="cpu"), PolicyServer(url="{server.url}", timeout=0.5))
asked.generate([[ChatTurn("Which way?", ())]] * 4, [(number,) for number in range(4)])
"""
    server.faults = Faults(stalls=600.0)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert "no whole answer within 0.5 s" in done.stderr.splitlines()[-1]


# -- several servers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def second() -> Iterator[PolicyServer]:
    with PolicyServer() as server:
        yield server


def test_several_servers_answer_what_one_does(server: PolicyServer, second: PolicyServer, tmp_path: Path) -> None:
    """Also where one of them is lost in between; it is there again with the next weights, and none left is an end."""
    vlm = load_vlm("bundled", device="cpu")
    keys = [(0, number) for number in range(8)]

    def replies(of_servers: ServerSampler) -> list[list[int]]:
        return [one.sample.ids.tolist() for one in of_servers.generate([SHOWN] * 8, keys)]

    expected = replies(sampler(server, vlm))
    urls = (server.url, second.url)
    both = ServerSampler(vlm, Settings(url=urls, weights=str(tmp_path), concurrency=1), 1.0, 12)
    both.take_over_weights()
    assert server.loaded == second.loaded == ["0"]
    before = len(server.requests)
    assert replies(both) == expected
    assert before < len(server.requests) < before + 8

    second.faults = Faults(lives=1)
    with pytest.warns(SightlineWarning, match=rf"{second.url}/.* lost.*the other servers go on"):
        assert replies(both) == expected
    asked = len(second.requests)
    assert replies(both) == expected and len(second.requests) == asked, "it is left alone"

    second.faults = Faults()
    both.take_over_weights()
    assert second.loaded == ["0", "1"]
    assert replies(both) == expected and len(second.requests) > asked

    server.faults, second.faults = Faults(lives=0), Faults(lives=2)
    with pytest.raises(Unavailable, match=r"none of 2 servers samples replies any more: POST .*status 503"):
        replies(both)


def test_servers_that_are_not_there_at_first_may_come(server: PolicyServer, vlm: VLM) -> None:
    nobody = "http://127.0.0.1:9/v1"
    with pytest.warns(SightlineWarning, match=r"http://127\.0\.0\.1:9/v1/models.*begin without it"):
        both = ServerSampler(vlm, Settings(url=(nobody, server.url)), 1.0, 12)
    assert len(both.generate([SHOWN], [(0,)])) == 1
    with pytest.raises(ValueError, match="named twice"):
        Settings(url=(server.url, server.url))


def test_a_run_outlives_its_servers(
    server: PolicyServer, second: PolicyServer, runs: dict[str, Path], tmp_path: Path
) -> None:
    """One is lost in the middle, then the other: it is saved, goes on with servers elsewhere, and is the run that it
    would have been with one."""

    def train(*more: str, resume: bool = False) -> None:
        overrides = dict(map(parse_override, [*SMALL[1:], *more]))
        sl.train("numberline", run_dir=tmp_path / "run", progress=False, resume=resume, **overrides)

    server.faults, second.faults = Faults(lives=32), Faults(lives=42)
    with pytest.raises(RunFailed, match=r"none of 2 servers .*; saved at step \d+, and --resume goes on from there"):
        train(f"policy.server.url=[{server.url}, {second.url}]")
    second.faults = Faults()
    train(f"policy.server.url={second.url}", resume=True)
    assert numbers(tmp_path / "run") == numbers(runs["plain"])


# -- asynchronous rollouts ---------------------------------------------------------------------------------------------


def versioned(*versions: int | None) -> Trajectory:
    played = episode([0.0] * len(versions))
    for turn, version in zip(played.turns, versions, strict=True):
        turn.version = version
    return played


def test_the_oldest_turn_says_how_stale_an_episode_is() -> None:
    assert [staleness(one, 5) for one in (versioned(5, 5), versioned(5, 3), versioned(None), episode([]))] == [
        0,
        2,
        0,
        0,
    ]
    fresh, old = versioned(5, 4), versioned(5, 3)
    assert within_bound([fresh, old], 5, 1) == [fresh]


@pytest.mark.parametrize("bound", [0, 1, 2])
@pytest.mark.parametrize("slow", ["server", "learner"])
def test_staleness_never_exceeds_its_bound_at_use(bound: int, slow: str) -> None:
    """Whoever is slow. With weights that are asked for before they are published, it would fail, too."""
    published = [0]

    def play(update: int, weights: int) -> list[Trajectory]:
        assert weights in published
        time.sleep(0.02 if slow == "server" else 0.0)
        return [versioned(weights, weights)]

    ahead, seen = RolloutsAhead(play, 0, bound), []
    for update in range(8):
        (played,) = ahead.take(update)
        seen.append(staleness(played, update))
        time.sleep(0.02 if slow == "learner" else 0.0)
        published.append(update + 1)
    ahead.close()
    assert seen == [min(update, bound) for update in range(8)]


def test_errors_of_the_other_thread_are_this_one_s() -> None:
    def play(update: int, weights: int) -> list[Trajectory]:
        raise RunFailed("the server is gone")

    ahead = RolloutsAhead(play, 0, 1)
    with pytest.raises(RunFailed, match="the server is gone"):
        ahead.take(0)
    ahead.close()


@pytest.fixture(scope="module")
def runs(served: PolicyServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same run without asynchronous rollouts, with a bound of 0, 1 and 2, and of 1 with a server that is slow."""
    folder = tmp_path_factory.mktemp("served")
    ways = {name: (f"rollouts.staleness={bound}",) for bound, name in enumerate(("zero", "one", "two"))} | {"plain": ()}
    for name, more in (*ways.items(), ("slow", ways["one"])):
        served.faults = Faults(delay=0.02 if name == "slow" else 0.0)
        overrides = dict(map(parse_override, [*SMALL[1:], f"policy.server.url={served.url}", *more]))
        sl.train("numberline", run_dir=folder / name, progress=False, **overrides)
    served.faults = Faults()
    return {name: folder / name for name in (*ways, "slow")}


def numbers(run: Path) -> list[dict[str, Any]]:
    left_out = ("time/", "wall")
    return [
        {name: value for name, value in record.items() if not name.startswith(left_out)}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def test_a_bound_of_zero_is_the_synchronous_run_bit_for_bit(runs: dict[str, Path]) -> None:
    assert numbers(runs["plain"]) == numbers(runs["zero"])
    results = [json.loads((runs[name] / "result.json").read_text()) for name in ("plain", "zero")]
    assert results[0]["success_rate"] == results[1]["success_rate"] and results[0]["return"] == results[1]["return"]
    weights = [
        {str(file.relative_to(runs[name])): file.read_bytes() for file in runs[name].rglob("*.safetensors")}
        for name in ("plain", "zero")
    ]
    assert weights[0] == weights[1] and any(name.endswith("trainer.safetensors") for name in weights[0])


@pytest.mark.parametrize(("name", "bound"), [("one", 1), ("two", 2)])
def test_a_bound_is_how_far_rollouts_are_ahead(name: str, bound: int, runs: dict[str, Path]) -> None:
    stale = [one["rollout/staleness"] for one in numbers(runs[name]) if one.get("rollout/staleness") is not None]
    assert len(stale) > 2 and stale == [min(update, bound) for update in range(len(stale))]


def test_what_is_learned_does_not_depend_on_who_is_faster(runs: dict[str, Path]) -> None:
    assert numbers(runs["one"]) == numbers(runs["slow"]) != numbers(runs["zero"])


def test_a_run_on_a_server_can_be_resumed_longer(
    runs: dict[str, Path], served: PolicyServer, sightline: Callable[..., Finished]
) -> None:
    done = sightline(
        "train",
        *SMALL,
        f"policy.server.url={served.url}",
        "rollouts.staleness=1",
        "steps=24",
        "--resume",
        "--run-dir",
        runs["one"],
    )
    assert done.code == 0, done.err
    stale = [one["rollout/staleness"] for one in numbers(runs["one"]) if one.get("rollout/staleness") is not None]
    assert max(stale) == 1


def test_the_weights_of_a_warm_start_are_those_of_no_update(server: PolicyServer, tmp_path: Path) -> None:
    """They are checked like all others, and nothing is younger than the update that learns from it."""
    warm = ("warm_start.samples=8", "warm_start.batch=8", "steps=4", "rollouts.tasks=2")
    overrides = dict(map(parse_override, [*SMALL[1:], f"policy.server.url={server.url}", *warm]))
    sl.train("numberline", run_dir=tmp_path / "run", progress=False, **overrides)
    stale = [one["rollout/staleness"] for one in numbers(tmp_path / "run") if "rollout/staleness" in one]
    assert stale and set(stale) == {0.0}


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("policy.sampler=transformers", "rollouts.staleness=1"), "rollouts.staleness is for policy.sampler=server"),
        (("rollouts.top_k=5",), "need policy.sampler=transformers"),
        (("rollouts.staleness=1", "rollouts.dynamic_sampling=1"), "exclude each other"),
    ],
)
def test_settings_that_exclude_each_other(
    more: tuple[str, ...], complaint: str, sightline: Callable[..., Finished]
) -> None:
    """As soon as the recipe is read: no server has to be there."""
    done = sightline("train", *SMALL, "policy.server.url=http://localhost:1/v1", *more, "--dry-run")
    assert done.code == 2 and complaint in done.err and len(done.err.splitlines()) == 1
