"""On-policy learning: returns by hand, which steps are scored, refusals, and whole runs that learn and resume."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO

from conftest import TINY_ON_POLICY, Finished, result_of, start_sightline, trained
from sightline.api import Run
from sightline.config.learners import OtherOnPolicyLearner, PPOLearner, nearest_divisor
from sightline.config.loading import for_control, load_recipe
from sightline.control.collection import CollectingVecEnv
from sightline.control.learners import build_on_policy_learner, check_learner, reset_values, value_weights
from sightline.control.on_policy import NewestStates
from sightline.control.resolving import describe, env_maker, resolve
from sightline.control.standardisation import RewardScale, StandardisedObservations
from sightline.control.state import acting_spaces
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput
from sightline.rewards.base import Clip
from sightline.runs.metrics import read_metrics
from sightline.runs.state import read_state
from small_learners import Recorded
from stored import session_of

Sightline = Callable[..., Finished]
CLOCK = ("env=small_envs:Clock", "reward.kind=ground_truth")
PPO_ON_CLOCK = (*CLOCK, "learner.algorithm=PPO")
OWN_CLASS = ("learner.algorithm=small_learners.Recorded", "learner.on_policy=true")
PREFERENCES = (
    *("cartpole-preferences", "learner.algorithm=PPO", "reward.teacher.kind=scripted", "reward.explore=64"),
    *("reward.every=128", "reward.questions=10", "reward.pool=40", "reward.fitting.epochs=4"),
    "reward.fitting.ensemble=2",
)


def numbers(run: Path) -> list[dict[str, Any]]:
    """All metrics but those of time, and what a store of labels knew already."""
    left_out = ("time/", "labels/remembered")
    records = read_metrics(run / "metrics.jsonl")
    return [{key: value for key, value in record.items() if not key.startswith(left_out)} for record in records]


@pytest.fixture
def train(train_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run that must succeed: `train("cartpole", …)` -> its folder."""
    return lambda *arguments, **named: train_run(arguments[0], *TINY_ON_POLICY, *arguments[1:], **named)


def cut(run: Path, part: Path, keep: int = 1) -> Path:
    """A copy of a run as a kill would have left it: its first checkpoints alone."""
    shutil.copytree(run, part)
    for folder in sorted((part / "checkpoints").glob("step-*"))[keep:]:
        shutil.rmtree(folder)
    (part / "result.json").unlink()
    return part


# -- what is learned from ----------------------------------------------------------------------------------------------


def returns_by_hand(update: Any, limit: int, gamma: float, lam: float, shift: float, scale: float) -> dict[str, Any]:
    """Rewards, advantages and returns of clocks that are stopped after `limit` steps, one number at a time.

    A clock's state is (time, length, hash of the actions); its reward is the time that a step leads to.
    """
    states, values = update.arrays["observations"], update.arrays["values"]
    steps, envs = values.shape
    found: dict[str, Any] = {name: np.zeros((steps, envs)) for name in ("advantages", "returns")}
    found |= {"terminated": 0, "truncated": 0}
    for env in range(envs):
        later = 0.0
        for step in reversed(range(steps)):
            now, length, taken = (float(number) for number in states[step, env])
            action = float(update.arrays["actions"][step, env, 0])
            reached = np.array([[now + 1, length, (taken * 3 + action + 1) % 1009]], np.float32)
            terminated, truncated = now + 1 >= length, now + 1 >= limit
            target = (now + 1 - shift) / scale
            if not terminated:
                with torch.no_grad():
                    target += gamma * float(update.policy.predict_values(torch.as_tensor(reached))[0, 0])
            delta = target - float(values[step, env])
            later = delta + (0.0 if terminated or truncated else gamma * lam * later)
            found["advantages"][step, env] = later
            found["returns"][step, env] = later + float(values[step, env])
            found["terminated"] += terminated
            found["truncated"] += truncated and not terminated
    return found


@pytest.mark.parametrize(
    ("standardise", "shortest"),
    [(False, 3), (True, 3), (True, 9)],
    ids=["raw", "some episodes are terminated", "all episodes are of one length"],
)
def test_returns_and_advantages_are_those_of_hand_arithmetic(
    train: Callable[..., Path], standardise: bool, shortest: int
) -> None:
    Recorded.updates.clear()
    run = train(
        *CLOCK,
        *OWN_CLASS,
        *("episode_steps=7", f"env_options={{shortest: {shortest}}}", "learner.gamma=0.9", "learner.gae_lambda=0.8"),
        *(f"learner.standardise_rewards={standardise}".lower(), "envs=3", "learner.batch_size=8"),
    )
    assert len(Recorded.updates) == 11
    raw: list[float] = []
    ends = {"terminated": 0, "truncated": 0}
    for update in Recorded.updates:
        raw += (update.arrays["observations"][..., 0] + 1).ravel().tolist()
        some_ended_early = bool(returns_by_hand(update, 7, 0.9, 0.8, 0, 1)["terminated"]) or ends["terminated"] > 0
        shift = float(np.mean(raw)) if standardise and not some_ended_early else 0.0
        scale = float(np.std(raw)) if standardise else 1.0
        wanted = returns_by_hand(update, 7, 0.9, 0.8, shift, scale)
        for name in ("advantages", "returns"):
            np.testing.assert_allclose(update.arrays[name], wanted[name], rtol=1e-4, atol=1e-4)
        starts = update.arrays["observations"][..., 0] == 0
        np.testing.assert_array_equal(update.arrays["episode_starts"].astype(bool), starts)
        ends = {name: ends[name] + wanted[name] for name in ends}
    assert ends["truncated"] > 0
    assert (ends["terminated"] > 0) == (shortest == 3)
    rewards = [record["rollout/reward"] for record in numbers(run) if "rollout/reward" in record]
    seen = [(update.arrays["observations"][..., 0] + 1).mean() for update in Recorded.updates]
    np.testing.assert_allclose(rewards, seen, rtol=1e-6, err_msg="what is logged is not standardised")


def steps_that(*, terminated: bool) -> Clip:
    ends = np.zeros((4, 2), bool)
    ends[2, 1] = terminated
    return Clip(np.zeros((4, 2), bool), ended=ends, terminated=ends)


def test_the_scale_is_of_all_rewards_and_its_mean_goes_when_an_episode_is_terminated() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(5, 0.1, (4, 2)).astype(np.float32) for _ in range(2))
    scale, quiet, loud = RewardScale(), steps_that(terminated=False), steps_that(terminated=True)
    np.testing.assert_array_equal(RewardScale().standardise(np.full((4, 2), 3, np.float32), quiet), 0)  # all are alike
    np.testing.assert_array_equal(RewardScale().standardise(np.full((4, 2), 3, np.float32), loud), 3)
    standard = scale.standardise(first, quiet)
    assert standard.dtype == np.float32
    assert abs(float(standard.mean())) < 1e-4 and float(standard.std()) == pytest.approx(1, abs=1e-4)
    both = np.concatenate([first, second])
    np.testing.assert_allclose(scale.standardise(second, quiet), (second - both.mean()) / both.std(), rtol=1e-3)
    again = RewardScale()
    again.restore(scale.state())
    everything = np.concatenate([both, first])
    np.testing.assert_allclose(scale.standardise(first, loud), first / everything.std(), rtol=1e-4)
    again.standardise(first, loud)
    np.testing.assert_array_equal(again.standardise(first, quiet), scale.standardise(first, quiet))


def test_the_newest_states_are_kept() -> None:
    newest = NewestStates(5)
    newest.add(np.arange(8).reshape(2, 2, 2))
    newest.add(np.arange(8, 12).reshape(1, 2, 2))
    np.testing.assert_array_equal(newest.all(), np.arange(2, 12).reshape(5, 2))


def test_values_can_begin_anew_while_the_policy_stays() -> None:
    recipe = resolve(for_control(load_recipe(None, [*PPO_ON_CLOCK, "envs=2", "learner.chunk=4"])))
    env = acting_spaces(env_maker(recipe, None, render=False), 2)
    model, untrained = (build_on_policy_learner(recipe, env) for _ in range(2))
    names = value_weights(model)
    assert {name.split(".")[0] for name in names} == {"value_net", "mlp_extractor"}
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 1
    before = {name: parameter.clone() for name, parameter in model.policy.named_parameters()}
    reset_values(model, untrained)
    fresh = dict(untrained.policy.named_parameters())
    for name, parameter in model.policy.named_parameters():
        assert torch.equal(parameter, fresh[name] if name in names else before[name])


# -- which steps are scored --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_every_fourth_step_is_rendered_and_the_last_of_each_episode(
    monkeypatch: pytest.MonkeyPatch, workers: Any
) -> None:
    import small_envs

    drawn, render = [0], small_envs.Clock.render

    def counted(self: Any) -> np.ndarray:
        drawn[0] += 1
        return render(self)

    make = EnvMaker("small_envs:Clock", {"shortest": 7, "longest": 11}, frame_size=(4, 4))
    envs = FrameVectorEnv(make, 2, episode_seeds(0), workers=workers)
    try:
        env = CollectingVecEnv(envs, 20, frames=True, every=4, chunks_of_frames=1)
        env.reset()
        monkeypatch.setattr(small_envs.Clock, "render", counted)
        for _ in range(3):
            drawn[0] = 0
            ended = np.array([env.collect(np.array([0, 1])).ended for _ in range(20)])
            chunk = env.take_chunk()
            due = np.arange(20) % 4 == 3
            np.testing.assert_array_equal(chunk.scored, np.flatnonzero(due | ended.any(axis=1)))
            assert 5 < len(chunk.scored) < 20
            if workers == "inline":
                assert drawn[0] == 2 * len(chunk.scored)
            clip = chunk.clip
            assert isinstance(clip.frames, np.ndarray) and isinstance(clip.states, np.ndarray)
            np.testing.assert_array_equal(clip.frames[:, :, 0, 0, 0], clip.states[:, :, 0])
            np.testing.assert_array_equal(clip.ended, ended[chunk.scored])
            check_spread(chunk)
    finally:
        envs.close()


def test_a_chunk_is_the_same_in_parts() -> None:
    """What is embedded while a chunk is collected are the scored steps of the whole chunk, in order."""
    envs = FrameVectorEnv(
        EnvMaker("small_envs:Clock", {"shortest": 7, "longest": 11}, frame_size=(4, 4)), 2, episode_seeds(0)
    )
    env = CollectingVecEnv(envs, 20, frames=True, every=3, chunks_of_frames=1)
    env.reset()
    parts: list[Clip] = []
    for step in range(20):
        env.collect(np.array([0, 1]))
        if step in (5, 8, 13, 19):
            parts.append(env.newest(sum(len(part.first) for part in parts)))
            assert sum(len(part.first) for part in parts) == env.scored
    whole = env.take_chunk().clip.arrays()
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part.arrays()[name] for part in parts]), array)
    assert {"frames", "env_reward", "ended"} <= whole.keys() and env.scored == 0
    envs.close()


def check_spread(chunk: Any) -> None:
    """Every step has the reward of the next scored state of its own episode; the environment's rewards add up."""
    times, rewards = chunk.steps.states[..., 0], chunk.steps.env_reward
    scored = chunk.spread(chunk.clip.states[..., 0])
    assert (scored >= times).all() and (scored - times < 4).all(), "in the same episode, and near"
    np.testing.assert_allclose(chunk.spread(chunk.clip.env_reward).sum(axis=0), rewards.sum(axis=0), rtol=1e-6)
    between = zip([-1, *chunk.scored[:-1]], chunk.scored, strict=True)
    begun = [chunk.steps.first[start + 1 : end + 1].any(axis=0) for start, end in between]
    np.testing.assert_array_equal(chunk.clip.first, begun)


# -- what does not go together -----------------------------------------------------------------------------------------


def build_alone(*overrides: str) -> Any:
    """An on-policy learner as a run builds it, without the run."""
    recipe = resolve(for_control(load_recipe(None, list(overrides))))
    check_learner(recipe)
    return build_on_policy_learner(recipe, acting_spaces(env_maker(recipe, None, render=False), recipe.envs))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("learner.algorithm=PPO", "replay=runs/other"), "PPO learns on-policy, from what it has just collected"),
        (("learner.algorithm=PPO", "learner.batch_size=100"), "say learner.batch_size=128"),
        (("learner.algorithm=PPO", "learner.batch_size=1"), "say learner.batch_size=2"),
        (("learner.algorithm=PPO", "learner.frames_every=5"), "learner.chunk=64 must be a multiple of"),
        (("learner.algorithm=PPO", "learner.buffer_size=100"), "unknown key 'learner.buffer_size'"),
        (("learner.algorithm=PPO", "learner.epoch=1"), "did you mean 'epochs'"),
        (("learner.algorithm=SAC", "learner.epochs=1"), "unknown key 'learner.epochs'"),
        (("learner.algorithm=PPO", "learner.options.buffer_size=9"), "PPO takes no option 'buffer_size'"),
        (("learner.algorithm=PPO", "learner.options.n_steps=9"), "say learner.chunk"),
        (("learner.algorithm=PPO", "learner.options.clip_range_vf=-1"), None),
        (("learner.algorithm=small_learners.Recorded",), "it learns on-policy: add learner.on_policy=true"),
        (("learner.algorithm=stable_baselines3.SAC", "learner.on_policy=true"), "leave out learner.on_policy"),
        (("learner.algorithm=small_learners.Update", "learner.on_policy=true"), "no on-policy algorithm"),
        (("learner.algorithm=sbx.PPO", "learner.on_policy=true"), "not installed: pip install sbx-rl"),
        (("learner.algorithm=small_learners.Nothing", "learner.on_policy=true"), "there is no learner"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(overrides: tuple[str, ...], said: str | None) -> None:
    with pytest.raises(BadInput) as caught:
        build_alone("env=Pendulum-v1", CLOCK[1], *overrides)
    assert "\n" not in str(caught.value)
    assert (said or "PPO cannot be built") in str(caught.value)


def test_rollouts_of_another_kind_are_refused() -> None:
    pytest.importorskip("sb3_contrib")
    with pytest.raises(BadInput, match="keeps its rollouts in a MaskableRolloutBuffer"):
        build_alone(*CLOCK, "learner.algorithm=sb3_contrib.MaskablePPO", "learner.on_policy=true")


def test_switching_to_ppo_keeps_what_both_know() -> None:
    before = load_recipe("cartpole").learner
    for overrides in ([], ["learner.on_policy=true"]):
        name = "PPO" if not overrides else "small_learners.Recorded"
        learner = load_recipe("cartpole", [*overrides, f"learner.algorithm={name}"]).learner  # type: ignore[union-attr]
        assert isinstance(learner, OtherOnPolicyLearner if overrides else PPOLearner)
        assert (learner.hidden, learner.gamma, learner.chunk) == (before.hidden, before.gamma, before.chunk)
        assert learner.algorithm == name
    assert load_recipe("cartpole", ["learner.algorithm=PPO", "learner.on_policy=true"]).learner.on_policy


@pytest.mark.parametrize(("envs", "size"), [(8, 128), (1, 16), (3, 48), (64, 1024)])
def test_minibatches_are_a_quarter_of_a_chunk(envs: int, size: int) -> None:
    recipe = resolve(for_control(load_recipe(None, [*PPO_ON_CLOCK, f"envs={envs}"])))
    assert isinstance(recipe.learner, PPOLearner) and recipe.learner.batch_size == size
    assert f"a chunk of {64 * envs:,} transitions" in "\n".join(describe(recipe))
    assert [nearest_divisor(12, to) for to in (1, 3, 5, 99)] == [2, 3, 4, 12] and nearest_divisor(7, 2) == 7


# -- whole runs --------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_runs_and_the_chosen_policy_can_be_used(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    run, again = train("cartpole", "learner.algorithm=PPO"), train("cartpole", "learner.algorithm=PPO", name="again")
    assert numbers(run) == numbers(again) and result_of(run) == result_of(again)
    keys = set().union(*numbers(run))
    assert {"rollout/reward", "rollout/return", "train/value_loss", "train/approx_kl", "evaluation/reward"} <= keys
    policy = Run(run).policy()
    assert isinstance(policy, PPO)
    action, _ = policy.predict(np.zeros(4, np.float32), deterministic=True)
    policy.save(tmp_path / "policy.zip")
    assert PPO.load(tmp_path / "policy.zip").predict(np.zeros(4, np.float32), deterministic=True)[0] == action
    assert Run(run).evaluate(episodes=2)["episodes"] == 2
    for read in (Run(run).stored_rewards, lambda: Run(run).relabel("a pole", "a cart")):
        with pytest.raises(BadInput, match="stored no transitions: PPO learns on-policy"):
            read()


def test_continuous_actions_are_kept_as_they_were_drawn_and_carried_out_within_bounds(
    train: Callable[..., Path],
) -> None:
    Recorded.updates.clear()
    options = "learner.options={policy_kwargs: {log_std_init: 2.0}}"
    train("env=Pendulum-v1", CLOCK[1], *OWN_CLASS, "learner.batch_size=8", options)
    actions = np.concatenate([update.arrays["actions"] for update in Recorded.updates])
    assert np.abs(actions).max() > 3, "the torque is at most 2"


def test_actions_cost_their_mean_square_as_shares_of_the_greatest(train: Callable[..., Path]) -> None:
    """One half of a deviation for a full torque; without discounting, returns are rewards."""
    returns, logged = {}, {}
    for cost in (0.0, 0.5):
        Recorded.updates.clear()
        run = train(
            *("env=Pendulum-v1", CLOCK[1], *OWN_CLASS, "learner.batch_size=8", "learner.gamma=0"),
            *("learner.options={policy_kwargs: {log_std_init: 1.0}}", f"learner.action_cost={cost}"),
            name=f"cost-{cost}",
        )
        first = Recorded.updates[0]
        returns[cost], actions = first.arrays["returns"], first.arrays["actions"][:, :, 0]
        logged[cost] = next(record["rollout/reward"] for record in numbers(run) if "rollout/reward" in record)
    carried_out = np.clip(actions, -2, 2) / 2
    assert np.abs(carried_out).max() == 1 and np.abs(carried_out).min() < 0.5
    np.testing.assert_allclose(returns[0.0] - returns[0.5], 0.5 * carried_out**2, atol=1e-5)
    assert logged[0.5] == logged[0.0]


def test_a_class_of_another_package(train: Callable[..., Path]) -> None:
    pytest.importorskip("sb3_contrib")
    run = train(*CLOCK, "learner.algorithm=sb3_contrib.TRPO", "learner.on_policy=true", "learner.batch_size=16")
    assert any("train/kl_divergence_loss" in record for record in numbers(run))


def test_evaluation_in_the_background_gives_the_same_numbers(train: Callable[..., Path]) -> None:
    arguments = ("cartpole", "learner.algorithm=PPO", "steps=128", "evaluation.every=64", "evaluation.test_episodes=1")
    beside = train(*arguments, "evaluation.background=true")
    between = train(*arguments, "evaluation.background=false", name="between")
    assert json.loads((beside / "warnings.json").read_text())["warnings"] == []
    assert result_of(beside) == result_of(between)


@pytest.fixture(scope="module")
def preferences_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe, *overrides = PREFERENCES
    folder = tmp_path_factory.mktemp("preferences")
    return trained(folder, recipe, *TINY_ON_POLICY, *overrides, "checkpoints.keep=9")


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_reward_learned_from_preferences(
    preferences_run: Path, sightline: Sightline, tmp_path: Path, keep: int
) -> None:
    """It explores for novelty, asks, learns, and goes on exactly from any checkpoint."""
    run = preferences_run
    lessons = [record for record in numbers(run) if "labels/asked" in record]
    assert len(lessons) >= 2 and lessons[-1]["labels/kept"] > 0
    part = cut(run, tmp_path / "part", keep)
    scale = session_of(part)["scale"]
    assert (scale["count"] > 0) == (keep == 2), "lessons come with steps 64 and 192; the next chunk measures anew"
    done = sightline("train", "--run-dir", part, "--resume")
    assert done.code == 0, done.err
    assert numbers(part) == numbers(run)
    assert result_of(part) == result_of(run)


def test_a_reward_that_changes_leaves_it_known_that_episodes_are_terminated(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    """Else the mean of the new reward would be subtracted until the next episode is."""
    run = train(*PREFERENCES, "env=small_envs:Clock", "checkpoints.keep=9")
    scale = session_of(cut(run, tmp_path / "part"))["scale"]
    assert scale["count"] == 0, "the checkpoint comes right after a lesson"
    assert scale["terminates"]


def test_kill_nine_and_resume(train: Callable[..., Path], sightline: Sightline, tmp_path: Path) -> None:
    arguments = ("cartpole", "learner.algorithm=PPO", "steps=1024", "learner.frames_every=2", "evaluation.every=512")
    run = tmp_path / "killed"
    process = start_sightline("train", arguments[0], *TINY_ON_POLICY, *arguments[1:], "--run-dir", run, cwd=tmp_path)
    deadline = time.monotonic() + 600
    while len(list((run / "checkpoints").glob("step-*/manifest.json"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "result.json").exists()
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert "resuming from step" in done.err
    whole = train(*arguments)
    assert numbers(run) == numbers(whole)
    assert result_of(run) == result_of(whole)


LEARNING = (
    *("env=cartpole", "reward.kind=ground_truth", "learner.algorithm=PPO", "envs=16", "steps=50000", "videos=false"),
    *("tensorboard=false", "evaluation.background=false", "evaluation.test_episodes=20", "evaluation.episodes=10"),
    *("learner.learning_rate=0.001", "learner.gamma=0.95", "learner.epochs=10"),
)


@pytest.mark.learning
def test_ppo_learns_from_the_environments_own_reward(sightline: Sightline, tmp_path: Path) -> None:
    """Rewards are 1 while the pole stands. The policy that is judged explores no more, so the untrained one can be good
    by chance; those that collect cannot."""
    done = sightline("train", *LEARNING, "--run-dir", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    rewards = [record["rollout/reward"] for record in numbers(tmp_path / "run") if "rollout/reward" in record]
    assert np.mean(rewards[:8]) < 0.6
    assert np.mean(rewards[-8:]) > 0.95
    assert json.loads(done.out)["success_rate"] >= 0.95


def test_refusals_come_before_anything_is_loaded(sightline: Sightline, tmp_path: Path) -> None:
    done = sightline(
        "train", "cartpole", "learner.algorithm=PPO", "learner.batch_size=7", "--run-dir", tmp_path / "run"
    )
    assert (done.code, len(done.lines)) == (2, 1)
    assert not (tmp_path / "run").exists()


def test_physics_that_diverges_is_counted_and_said(train: Callable[..., Path]) -> None:
    run = train("env=small_envs:Diverging", "reward.kind=ground_truth", "learner.algorithm=PPO")
    counts = [record["rollout/diverged"] for record in numbers(run) if "rollout/diverged" in record]
    assert len(counts) > 2 and all(count >= 1 for count in counts)
    (warning,) = json.loads((run / "warnings.json").read_text())["warnings"]
    assert "physics diverged" in warning
    quiet = train(*PPO_ON_CLOCK, name="quiet")
    assert not any("rollout/diverged" in record for record in numbers(quiet))


def test_observations_are_standardised_by_all_that_were_seen(train: Callable[..., Path]) -> None:
    """In chunks as at once; and the policy that is kept has the statistics of its training."""
    rng = np.random.default_rng(0)
    seen = rng.normal([3, -200, 0], [2, 50, 0], (40, 4, 3)).astype(np.float32)
    standard = StandardisedObservations(spaces.Box(-1, 1, (3,)))
    for chunk in np.split(seen, [1, 7, 30]):
        standard.take_in(chunk)
    flat = seen.reshape(-1, 3)
    np.testing.assert_allclose(standard.mean, flat.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(standard.variance, flat.var(axis=0), rtol=1e-3, atol=1e-6)
    given = standard(torch.as_tensor(flat)).numpy()
    np.testing.assert_allclose(given.std(axis=0), [1, 1, 0], atol=1e-3)
    assert float(standard(torch.tensor([[1e6, 0.0, 0.0]]))[0, 0]) == 10

    def policy(run: Path) -> Any:
        return read_state(next((run / "checkpoints").glob("best-*")) / "policy.safetensors")

    weights = policy(train(*PPO_ON_CLOCK, "learner.standardise_observations=true"))
    assert float(weights["features_extractor.count"]) > 0
    assert weights["features_extractor.mean"][0] > 0.5  # a clock's time
    raw = policy(train(*PPO_ON_CLOCK, name="raw"))
    assert not any("features_extractor" in name for name in raw)


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="pip install mujoco")
def test_a_run_goes_on_in_the_look_that_it_began_with(train: Callable[..., Path], sightline: Sightline) -> None:
    """Another picture is another reward; so the resolved recipe says the task's own options."""
    run = train("env=humanoid-kneeling", "reward.kind=ground_truth", "learner.algorithm=PPO", "episode_steps=8")
    recipe = for_control(load_recipe(str(run / "recipe.yaml")))
    assert (recipe.env_options["look"], recipe.env_options["scene"]) == ("drawn", "original")
    done = sightline("train", run / "recipe.yaml", "env_options.look=gl", "--run-dir", run, "--resume")
    assert (done.code, len(done.lines)) == (2, 1)
    assert "env_options.look='drawn', not 'gl'" in done.err
