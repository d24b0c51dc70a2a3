"""What goes wrong in a run of an agent: games that break, numbers that are none, memory and disks that run out, replies
that are none, and recipes that cannot be."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from conftest import Finished
from sightline.agents.agent_setup import AgentSetup, build
from sightline.agents.learning import PolicyLearner
from sightline.agents.resolving import resolve
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.agents.types import Failure, Trajectory
from sightline.agents.warm_start import warm_start
from sightline.config.agents import Replies, WarmStart
from sightline.config.loading import for_agent, load_recipe
from sightline.envs.games.making import GameMaker
from sightline.errors import RunFailed
from sightline.models.vlm.loading import bundled_vlm_folder
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import TokenStats
from sightline.runs.metrics import read_metrics
from sightline_tasks.games.number_line import NumberLine
from small_runs import Scripted

Sightline = Callable[..., Finished]
HERE = "test_agent_faults"
SMALL = (
    *("steps=36", "tensorboard=false", "checkpoints.every=12", "evaluation.every=24", "evaluation.stop_at=null"),
    *("evaluation.episodes=3", "evaluation.test_episodes=3", "rollouts.tasks=3", "update.minibatch=8"),
)
REAL_SEEDS = 1000
"""Seeds of training and panels are larger, those of checks before a run smaller."""


class Breaking(NumberLine):
    """Half of its episodes break: a third of these at once, the others at their second step."""

    closed = 0

    def __init__(self, share: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.share = share

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        real = seed is not None and seed > REAL_SEEDS
        chance = np.random.default_rng(seed)
        self.breaks, self.moves = real and chance.random() < self.share, 0
        if self.breaks and chance.random() < 1 / 3:
            raise ValueError("no number line\ncould be drawn")
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Any:
        self.moves += 1
        if self.breaks and self.moves == 2:
            raise OSError("the line snapped")
        return super().step(action)

    def close(self) -> None:
        if getattr(self, "breaks", False):
            Breaking.closed += 1
            raise RuntimeError("cannot even be closed")


class Plain(gymnasium.Env[np.ndarray, np.int64]):
    """Has pictures and two actions, but no words, names or best play."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)


def setup_of(*overrides: str, recipe: str = "numberline") -> AgentSetup:
    return build(resolve(for_agent(load_recipe(recipe, [*SMALL, *overrides]))))


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return read_metrics(run / "metrics.jsonl")


def check_failed(done: Finished, *expected: str, code: int = 1) -> None:
    """The last line says it; before it there is only what a run tells."""
    assert done.code == code, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert [line.startswith("sightline: ") for line in done.lines].count(True) == 1
    for text in expected:
        assert text in done.lines[-1]


# -- games that break --------------------------------------------------------------------------------------------------


def test_episodes_that_break_are_dropped_and_counted(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline(
        "train", "numberline", *SMALL, f"env={HERE}:Breaking", "rollouts.tasks=8", "--run-dir", run, "--json"
    )
    assert done.code == 0, done.err
    updates = [record for record in metrics_of(run) if "rollout/errors" in record]
    broken = sum(record["rollout/errors"] for record in updates)
    assert 0 < broken < sum(record["rollout/episodes"] for record in updates)
    result = json.loads(done.out)
    assert result["errors"] + result["episodes"] == 3
    told = json.loads((run / "trajectories" / "update-0001.json").read_text())["episodes"]
    errors = {str(episode["error"]).partition(":")[0] for episode in told}
    assert errors == {"None", "OSError", "ValueError"}
    snapped = next(episode["error"] for episode in told if "OSError" in str(episode["error"]))
    assert re.fullmatch(r"OSError: the line snapped \(test_agent_faults\.py:\d+\)", snapped)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_nothing_is_learned_from_what_broke(algorithm: str) -> None:
    setup = setup_of(f"env={HERE}:Breaking", f"algorithm.kind={algorithm}", "update.kl_thoughts=0")
    learner = setup.learner()
    group = setup.recipe.algorithm.group
    tasks = [EpisodeTask(REAL_SEEDS + 1 + seed, member) for seed in range(12) for member in range(group)]
    played = setup.rollout_worker().play(setup.sampler(training=True), tasks)
    learner.compute_values(played)
    advantages = learner.compute_advantages(played)
    broken = [episode.error is not None for episode in played]
    assert 0 < sum(broken) < len(broken)
    assert all(credit is None for credit, broke in zip(advantages, broken, strict=True) if broke)
    assert sum(credit is not None for credit in advantages) >= (sum(not broke for broke in broken) if group == 1 else 1)


class NoNumber(NumberLine):
    """Pays its second move with NaN."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.moves = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> Any:
        self.moves += 1
        observation, reward, *rest = super().step(action)
        return observation, np.nan if self.moves == 2 else reward, *rest


def test_a_reward_that_is_no_number_ends_the_episode_with_its_turn_and_seed() -> None:
    table = RolloutWorker(GameMaker(f"{HERE}:NoNumber"), Replies())
    played = table.play(Scripted(lambda exchange: '{"action": "+"}'), [EpisodeTask(seed) for seed in range(30)])
    broken = [one for one in played if one.error is not None]
    assert broken
    for one in broken:
        assert one.error == f"ValueError: the reward of turn 2 is nan (episode with seed {one.seed})"
        assert np.isfinite(one.rewards).all()


def test_whoever_plays_beside_one_that_breaks_plays_the_same() -> None:
    def played(make: GameMaker, parallel: int) -> dict[int, Trajectory]:
        table = RolloutWorker(make, Replies(), parallel=parallel)
        return {one.seed: one for one in table.play(Scripted(lambda exchange: '{"action": "+"}'), tasks)}

    tasks = [EpisodeTask(REAL_SEEDS + 1 + seed) for seed in range(20)]
    closed = Breaking.closed
    with_faults = played(GameMaker(f"{HERE}:Breaking"), 3)
    assert Breaking.closed - closed == sum(one.error is not None for one in with_faults.values()), (
        "broken games are closed"
    )
    without = played(GameMaker("numberline"), 20)
    whole = [seed for seed, one in with_faults.items() if one.error is None]
    assert 0 < len(whole) < 20
    for seed in whole:
        assert with_faults[seed].rewards.tolist() == without[seed].rewards.tolist()


def test_if_all_break_it_is_said(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    broken = (f"env={HERE}:Breaking", "env_options.share=1.0")
    done = sightline("train", "numberline", *SMALL, *broken, "--run-dir", run)
    check_failed(done, "no episode could be played to its end", "OSError: the line snapped")
    assert not any("update/loss" in record for record in metrics_of(run))


# -- numbers that are none ---------------------------------------------------------------------------------------------


def poisoned(original: Callable[..., TokenStats], after: int) -> Callable[..., TokenStats]:
    """Scores with gradient that are no numbers, from the so-manieth on."""
    calls = [0]

    def score(self: VLM, *arguments: Any, **named: Any) -> TokenStats:
        scores = original(self, *arguments, **named)
        calls[0] += torch.is_grad_enabled()
        if torch.is_grad_enabled() and calls[0] > after:
            return TokenStats(scores.logprobs * float("nan"), scores.entropy, scores.values, scores.choice_entropy)
        return scores

    return score


def without_time(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in metrics_of(run)]


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "run")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which nothing went wrong."""
    from sightline import roles

    run = tmp_path_factory.mktemp("whole") / "run"
    return roles.train(resolve(for_agent(load_recipe("numberline", SMALL))), run, "whole", resume=False)[0].path


def test_a_loss_that_is_no_number(
    sightline: Sightline, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    steps = int(next(record["update/steps"] for record in metrics_of(whole) if "update/steps" in record))
    with monkeypatch.context() as patch:
        patch.setattr(VLM, "score", poisoned(VLM.score, after=steps))
        done = sightline("train", "numberline", *SMALL, "--run-dir", run)
    check_failed(done, "update 1, epoch 1, step 1 of", "not a finite number", "the last checkpoint is good")
    mended = sightline("train", "numberline", *SMALL, "--run-dir", run, "--resume")
    assert mended.code == 0, mended.err
    assert without_time(run) == without_time(whole)
    assert result_of(run) == result_of(whole)


def test_a_gradient_that_is_no_number_leaves_the_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of()
    learner = setup.learner()
    setup.engine.prepare(setup.vlm)
    setup.vlm.keep_reference()
    played = setup.rollout_worker().play(setup.sampler(training=True), [EpisodeTask(seed) for seed in range(4)])
    learner.compute_values(played)
    before = {name: value.clone() for name, value in setup.vlm.scorer.named_parameters()}
    weight = setup.vlm.scorer.value_head
    assert weight is not None
    for parameter in weight.parameters():
        parameter.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(RunFailed, match=r"update 7, epoch 1, step 1 of \d+: the gradient is not finite"):
        learner.learn(played, learner.compute_advantages(played), 7, 0.0)
    assert all(torch.equal(value, before[name]) for name, value in setup.vlm.scorer.named_parameters())


def test_weights_that_are_no_numbers_end_the_run_in_one_line(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot come from our steps, but from a broken model or machine."""
    learn = PolicyLearner.learn

    def broken(self: PolicyLearner, *arguments: Any) -> Any:
        numbers = learn(self, *arguments)
        with torch.no_grad():
            next(iter(self._vlm.model.parameters())).fill_(float("nan"))
        return numbers

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PolicyLearner, "learn", broken)
        done = sightline("train", "numberline", *SMALL, "--run-dir", run)
    check_failed(done)


# -- memory and disks --------------------------------------------------------------------------------------------------


def learned(setup: AgentSetup, learner: PolicyLearner, played: Sequence[Trajectory]) -> dict[str, torch.Tensor]:
    learner.compute_values(played)
    learner.learn(played, learner.compute_advantages(played), 0, 0.0)
    return {name: value.detach().clone() for name, value in setup.vlm.scorer.named_parameters()}


@pytest.mark.parametrize("when", ["learning", "judging"])
def test_memory_that_runs_out_makes_passes_smaller(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    settings = ("update.minibatch=100", "update.micro_batch=12", "update.kl_thoughts=0", "update.learning_rate=1e-3")
    tasks = [EpisodeTask(seed) for seed in range(6)]
    setup = setup_of(*settings)
    played = setup.rollout_worker().play(setup.sampler(training=True), tasks)
    setup.engine.prepare(setup.vlm)
    expected = learned(setup, setup.learner(), played)

    other = setup_of(*settings)
    again = other.rollout_worker().play(other.sampler(training=True), tasks)
    other.engine.prepare(other.vlm)
    said: list[str] = []
    score, sizes, learning = VLM.score, [], [0]

    def little(self: VLM, passages: Any, *rest: Any) -> TokenStats:
        learning[0] += torch.is_grad_enabled()
        # when learning, after a pass of the same step has left its gradients
        if len(passages) > 4 and (when == "judging" or (torch.is_grad_enabled() and learning[0] % 2 == 0)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(passages))
        return score(self, passages, *rest)

    monkeypatch.setattr(VLM, "score", little)
    found = learned(other, other.learner(said.append), again)
    assert [line.split(" turns")[0] for line in said] == [
        "out of memory: going on with 6",
        "out of memory: going on with 3",
    ]
    assert 3 in sizes
    assert max(sizes[-5:]) <= 3
    before = dict(setup_of().vlm.scorer.named_parameters())
    moved = [float((value - before[name].detach()).abs().max()) for name, value in expected.items()]
    assert max(moved) > 1.5e-3, "far more than is allowed below"
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-2, atol=1e-4)


def test_a_warm_start_with_too_little_memory_is_one_with_smaller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WarmStart(samples=32, batch=16)
    enough, little = setup_of("update.micro_batch=16"), setup_of("update.micro_batch=16")
    score, sizes = VLM.score, list[int]()

    def scored(self: VLM, passages: Any, *rest: Any) -> TokenStats:
        if self is little.vlm and (len(passages) > 8 or (len(passages) > 4 and sizes)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(passages))
        return score(self, passages, *rest)

    losses, said = [], list[str]()
    for setup in (enough, little):
        setup.engine.prepare(setup.vlm)
        monkeypatch.setattr(VLM, "score", scored if setup is little else score)
        numbers = warm_start(setup, settings, lambda samples, numbers: None, say=said.append)
        losses.append(numbers["warm_start/loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and sizes[0] == 8 and set(sizes[1:]) == {4}
    assert [line.split(" turns")[0] for line in said] == [
        "out of memory: going on with 8",
        "out of memory: going on with 4",
    ]
    monkeypatch.setattr(VLM, "score", lambda *arguments: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(RunFailed, match=r"warm start, update 1: out of memory with a single turn in a pass"):
        warm_start(little, settings, lambda samples, numbers: None)


def test_replies_that_do_not_fit_at_once_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones; and once that has been found out, memory does not run out in every turn again."""
    setup, tasks = setup_of(), [EpisodeTask(seed) for seed in range(7)]
    expected = setup.rollout_worker().play(setup.sampler(training=True), tasks)
    generate, sizes = VLM.generate, []

    def little(self: VLM, prompts: Any, *rest: Any, **further: Any) -> Any:
        sizes.append(len(further["of"] or prompts))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(self, prompts, *rest, **further)

    monkeypatch.setattr(VLM, "generate", little)
    found = setup.rollout_worker().play(setup.sampler(training=True), tasks)
    assert [[turn.sample.text for turn in one.turns] for one in found] == [
        [turn.sample.text for turn in one.turns] for one in expected
    ]
    assert sizes[:4] == [7, 3, 3, 1] and sizes.count(7) == 1
    monkeypatch.setattr(VLM, "generate", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(RunFailed, match="out of memory while a single reply is written"):
        setup.rollout_worker().play(setup.sampler(training=True), tasks)


def test_memory_that_is_never_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("update.kl_thoughts=0")
    played = setup.rollout_worker().play(setup.sampler(training=True), [EpisodeTask(0)])
    learner = setup.learner(lambda line: None)
    learner.compute_values(played)

    def none_left(self: VLM, *arguments: Any) -> TokenStats:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(VLM, "score", none_left)
    with pytest.raises(RunFailed, match=r"update 3, epoch 1, step 1 of .*policy\.gradient_checkpointing=true"):
        learner.learn(played, learner.compute_advantages(played), 3, 0.0)
    with pytest.raises(RunFailed, match="out of memory"):
        learner.compute_values(played)


def test_a_full_disk_while_saving(
    sightline: Sightline, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, save, calls = tmp_path / "run", VLM.save, [0]

    def full(self: VLM, folder: Path) -> None:
        calls[0] += 1
        save(self, folder)
        if calls[0] == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(VLM, "save", full)
        done = sightline("train", "numberline", *SMALL, "--run-dir", run)
    check_failed(done, "No space left on device", "--resume")
    assert not list((run / "checkpoints").glob(".writing*"))
    resumed = sightline("train", "numberline", *SMALL, "--run-dir", run, "--resume")
    assert "resuming from step" in resumed.err
    assert without_time(run) == without_time(whole)
    assert result_of(run) == result_of(whole)


def test_episodes_that_cannot_be_kept_do_not_end_the_run(
    sightline: Sightline, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sightline.agents.training.write_trajectory_log", full)
    run = tmp_path / "run"
    done = sightline("train", "numberline", *SMALL, "--run-dir", run)
    assert done.code == 0, done.err
    warned = json.loads((run / "warnings.json").read_text())["warnings"]
    assert any("test-real could not be kept: No space left on device" in line for line in warned)
    assert all(f"warning: {line}" in done.lines for line in warned)
    assert result_of(run) == result_of(whole)


# -- recipes that cannot be --------------------------------------------------------------------------------------------

CANNOT_BE: list[tuple[list[str], tuple[str, ...]]] = [
    (["numberline", "policy.model=bundeld"], ("bundeld", "use bundled")),
    (["numberline", "policy.model=/no/such/folder"], ("/no/such/folder",)),
    (["numberline", "policy.freeze=[visoin]"], ("policy.freeze",)),
    (["numberline", "policy.freeze=[vision,projector,language]"], ("nothing is left to learn",)),
    (["numberline", "policy.lora.targets=[q_porj]"], ("q_porj", "'q_proj'")),
    (["numberline", "policy.four_bit=true"], ("policy.lora",)),
    (["numberline", "prompt=Go to {txt}"], ("{txt}", "'text'")),
    (["numberline", "prompt=Go {to"], ("prompt",)),
    (["numberline", "actions=[up,down]"], ("names its actions itself",)),
    (["numberline", "env=numberlin"], ("'numberline'",)),
    (["numberline", "env=no_such_module:Game"], ("no_such_module",)),
    (["numberline", f"env={HERE}:Plain"], ("2 actions", "actions=")),
    (["numberline", f"env={HERE}:Plain", "actions=[left,right]"], ("prompt=",)),
    (["numberline", f"env={HERE}:Plain", "actions=[left]", "prompt=Go."], ("2 actions", "1 names")),
    (["numberline", f"env={HERE}:Plain", "actions=[left,LEFT]", "prompt=Go."], ("read the same",)),
    (["numberline", f"env={HERE}:Plain", "actions=[a,b]", "prompt=Go.", "text_only=true"], ("words",)),
    (["numberline", f"env={HERE}:Plain", "actions=[a,b]", "prompt=Go.", "warm_start={}"], ("best play",)),
    (["numberline", "warm_start.demos=/no/such/demos"], ("/no/such/demos", "sightline demos")),
    (["numberline", "env_options.max_positon=9"], ("max_positon",)),
    (["ezpoints", "rollouts.train_env_options={dealz: pairs}"], ("dealz",)),
    (["ezpoints", "warm_start.env_options={dealz: pairs}"], ("dealz",)),
    (["ezpoints", "warm_start.env_options={training: 1}"], ("training",)),
    (["ezpoints", "warm_start.env_options={dealt: pairs}", "warm_start.demos=there"], ("env_options", "exist already")),
    (["numberline", "algorithm.kind=pppo"], ("'ppo'",)),
    (["numberline", "algorithm.kind=grpo", "algorithm.gamma=0.9"], ("algorithm.gamma",)),
    (["numberline", "algorithm.kind=grpo", "algorithm.group=1"], ("algorithm.group", "no other to be compared with")),
    (["numberline", "rollouts.dynamic_sampling=2"], ("dynamic_sampling", "kind=ppo does not compare")),
    (
        ["numberline", "algorithm.kind=reinforce_plus_plus", "rollouts.dynamic_sampling=2"],
        ("dynamic_sampling", "does not compare"),
    ),
    (["numberline", "rollouts.prompt_tokens=300"], ("prompt_tokens", "window=1 shows none")),
    (["numberline", "update.ratio=sequence"], ("ratio=sequence", "update.clip_low and clip_high")),
    (["numberline", "update.clip_low=1.5"], ("update.clip_low", "less than 1")),
    (["numberline", "update.importance_cap=0.01"], ("update.importance_cap", "greater than or equal to 1")),
    (["numberline", "policy.sampler=server", "engine=ddp"], ("is for one process", "engine=ddp")),
    (["numberline", "policy.sampler=vllm", "policy.four_bit=true"], ("whole weights", "four_bit")),
    (["numberline", "update.ratio=word"], ("update.ratio",)),
    (["numberline", "replies.unparsable=play"], ("replies.unparsable",)),
    (["numberline", "envs=3"], ("envs",)),
    (["numberline", "engine=ddp"], ("torchrun",)),
    (["numberline", "device=gpu"], ("device 'gpu'",)),
    (["numberline", "role=agnt"], ("'agent'",)),
]


@pytest.mark.parametrize(("arguments", "expected"), CANNOT_BE, ids=lambda value: " ".join(value))
def test_recipes_that_cannot_be(
    sightline: Sightline, tmp_path: Path, arguments: list[str], expected: tuple[str, ...]
) -> None:
    done = sightline("train", *arguments)
    check_failed(done, *expected, code=2)
    assert len(done.lines) == 1
    assert not list(Path.cwd().iterdir()), "nothing is left behind"


def test_a_model_that_was_not_tuned_to_chat(sightline: Sightline, tmp_path: Path) -> None:
    model = Path(shutil.copytree(bundled_vlm_folder(), tmp_path / "model"))
    (model / "chat_template.jinja").unlink()
    done = sightline("train", "numberline", f"policy.model={model}")
    check_failed(done, "chat template", code=2)
    assert len(done.lines) == 1
    assert not list(Path.cwd().iterdir())


def test_demonstrations_of_another_recipe_are_too_few(sightline: Sightline, tmp_path: Path) -> None:
    written = sightline("demos", "numberline", "--turns", "10", "--out", tmp_path / "demos")
    assert written.code == 0, written.err
    done = sightline("train", "numberline", *SMALL, f"warm_start.demos={tmp_path / 'demos'}")
    check_failed(done, "10 demonstrations", code=2)


# -- replies that are none ---------------------------------------------------------------------------------------------


class Corner(NumberLine):
    """A number line on which `+` is illegal, and that goes on for three moves whatever is done."""

    def legal_actions(self) -> tuple[str, ...]:
        return ("-",)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        self.moves: list[int] = []
        return observation, info

    def step(self, action: np.int64) -> Any:
        self.moves.append(int(action))
        observation = self._observation()
        return observation, 2.0, len(self.moves) == 3, False, self._info(len(self.moves) == 3)


def corner(reply: str, **replies: Any) -> Trajectory:
    table = RolloutWorker(GameMaker(f"{HERE}:Corner"), Replies(**replies))
    (one,) = table.play(Scripted(lambda exchange: reply), [EpisodeTask(5)])
    return one


GOOD, ILLEGAL = '{"action": "-"}', '{"action": "+"}'


@pytest.mark.parametrize("penalty", [0.0, 0.5])
@pytest.mark.parametrize("reply", ["", "   ", "{" * 5000, "I would rather not say.", '{"action": "jump"}'])
def test_unparsable_replies(reply: str, penalty: float) -> None:
    lost = corner(reply, unparsable="forfeit", penalty=penalty)
    assert lost.rewards.tolist() == [-penalty]
    assert (lost.turns[0].played, lost.turns[0].on_policy, lost.turns[0].penalty) == (None, True, penalty)
    assert (lost.success, lost.truncated, lost.error) == (False, False, None)
    moved = corner(reply, unparsable="random", penalty=penalty)
    assert moved.rewards.tolist() == [2.0 - penalty] * 3
    assert moved.success
    assert {turn.played for turn in moved.turns} == {"-"}, "random among what is legal"
    assert {turn.on_policy for turn in moved.turns} == {penalty > 0}
    assert all(turn.reply.failure is not None and not turn.legal for turn in moved.turns)
    assert moved.turns[0].reply.failure is (Failure.EMPTY if not reply.strip() else moved.turns[0].reply.failure)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_illegal_replies(penalty: float) -> None:
    played = corner(ILLEGAL, illegal="play", penalty=penalty)
    assert [(turn.played, turn.on_policy, turn.legal) for turn in played.turns] == [("+", True, False)] * 3
    assert played.rewards.tolist() == [2.0 - penalty] * 3
    moved = corner(ILLEGAL, illegal="random", penalty=penalty)
    assert [(turn.played, turn.on_policy) for turn in moved.turns] == [("-", penalty > 0)] * 3
    assert moved.rewards.tolist() == [2.0 - penalty] * 3
    lost = corner(ILLEGAL, illegal="forfeit", penalty=penalty)
    assert [(turn.played, turn.on_policy) for turn in lost.turns] == [(None, True)]
    assert lost.rewards.tolist() == [-penalty]
    good = corner(GOOD, illegal="forfeit", unparsable="forfeit", penalty=penalty)
    assert [(turn.played, turn.on_policy, turn.legal) for turn in good.turns] == [("-", True, True)] * 3
    assert good.rewards.tolist() == [2.0] * 3, "nothing is taken from good replies"


FAR = next(seed for seed in range(100) if GameMaker("numberline")().reset(seed=seed)[1]["kind"] == "4")
"""A task of four steps at least."""


def test_random_moves_come_from_seed_and_turn_alone() -> None:
    def moves(seed: int, member: int = 0) -> list[str | None]:
        table = RolloutWorker(GameMaker("numberline"), Replies(), parallel=2)
        tasks = [EpisodeTask(99), EpisodeTask(seed, member)]
        return [turn.played for turn in table.play(Scripted(lambda exchange: ""), tasks)[1].turns]

    assert moves(4) == moves(4)
    assert len({tuple(moves(FAR, member)) for member in range(6)}) > 1


@pytest.mark.parametrize("unparsable", ["random", "forfeit"])
def test_a_model_that_never_comes_to_an_end_of_its_replies(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unparsable: str
) -> None:
    """Every reply is cut off after two tokens, which is refused. If it goes on all the same the run is useless, and
    whole."""
    run = tmp_path / "run"
    overrides = (*SMALL, "replies.max_tokens=2", f"replies.unparsable={unparsable}", "replies.penalty=0.1")
    refused = sightline("train", "numberline", *overrides, "--run-dir", run)
    assert refused.code == 2 and "too few: even a short reply" in refused.err and not run.exists()
    monkeypatch.setattr("sightline.agents.agent_setup._check_texts", lambda recipe, vlm: None)
    done = sightline("train", "numberline", *overrides, "steps=12", "--run-dir", run, "--json")
    assert done.code == 0, done.err
    updates = [record for record in metrics_of(run) if "rollout/unparsable" in record]
    assert {record["rollout/unparsable"] for record in updates} == {1.0}
    assert {record["rollout/unparsable_cut_off"] for record in updates} == {1.0}
    assert {record["rollout/forfeited"] for record in updates} == {float(unparsable == "forfeit")}
    assert all(record["update/gradient_norm"] > 0 for record in updates)
    result = json.loads(done.out)
    assert (result["unparsable"], result["success_rate"], result["length"]) == (1.0, 0.0, 1.0), "it is no random play"
    (checked, *_) = json.loads((run / "warnings.json").read_text())["warnings"]
    assert checked.startswith("32 of 32 replies cannot be read (cut off: 32), such as '") and "warm_start={}" in checked
    if unparsable == "forfeit":
        assert {record["rollout/length"] for record in updates} == {1.0}
        assert {round(record["rollout/return"], 6) for record in updates} == {-0.1}
