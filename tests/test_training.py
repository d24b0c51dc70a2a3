"""Whole runs, tiny: determinism, every kind of reward and learner, and exact resumption after any end."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy

from conftest import SIZES, TINY, TINY_ON_POLICY, Finished, result_of, start_sightline, trained, write_open_clip_encoder
from light_runs import full_landscape
from sightline import roles
from sightline.config.loading import for_control, load_recipe
from sightline.control import control_setup
from sightline.control.collection import CollectingVecEnv
from sightline.control.control_setup import build_setup
from sightline.control.learners import build_learner, check_learner
from sightline.control.resolving import env_maker, resolve
from sightline.control.state import chosen_policy
from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.errors import BadInput
from sightline.rewards.zero_shot import GoalBaselineHead, ZeroShotReward
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import read_metrics
from stored import replay_of

Sightline = Callable[..., Finished]
CLOCK = ("env=small_envs:Clock", "goal=pole", "baseline=cart", "learner.algorithm=DQN")
PENDULUM = (
    *("env=Pendulum-v1", "goal=a rod standing upright", "baseline=a rod"),
    *("envs=2", "steps=128", "evaluation.episodes=1", "evaluation.test_episodes=1"),
    *("learner.learning_starts=32", "learner.algorithm=SAC"),
)

OWN_REWARD = ("reward.kind=ground_truth", "learner.learning_starts=64")
PICTURES = ("env=small_envs:Pictures", *OWN_REWARD, "learner.algorithm=DQN")
SMALL_PICTURES = (*PICTURES, "env_options={size: 20}")
SEVERAL_STEPS = (*CLOCK, "reward.kind=ground_truth", "learner.options.n_steps=3")
NOISE = ("env=Pendulum-v1", *OWN_REWARD, "learner.algorithm=stable_baselines3.TD3")
ON_POLICY = ("learner.algorithm=PPO", "learner.batch_size=8")
PPO_ON_PICTURES = ("env=small_envs:Pictures", "reward.kind=ground_truth", *ON_POLICY)
PPO_WITH_NOISE = ("env=Pendulum-v1", *PENDULUM[1:-2], *ON_POLICY, "learner.options={use_sde: true, sde_sample_freq: 3}")
PPO_BY_PROGRESS = (*CLOCK[:3], "reward.kind=progress", *ON_POLICY, "learner.frames_every=4")


def tiny(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Overrides for a run of a second."""
    return TINY_ON_POLICY if "learner.algorithm=PPO" in arguments else TINY


def numbers(run: Path) -> list[dict[str, Any]]:
    """All metrics but those of time."""
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in read_metrics(metrics_of(run))]


def metrics_of(run: Path) -> Path:
    return run / "metrics.jsonl"


@pytest.fixture
def train(train_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run that must succeed: `train("cartpole", …)` -> its folder."""
    return lambda *arguments, **named: train_run(arguments[0], *tiny(arguments), *arguments[1:], **named)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train("cartpole")`, in a process of its own; tests work on copies."""
    return trained(tmp_path_factory.mktemp("tiny"), "cartpole", *TINY)


# -- what is learned from ---------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_runs_and_others_do_not(train: Callable[..., Path], tiny_run: Path) -> None:
    first, second = tiny_run, train("cartpole", name="second")
    assert numbers(first) == numbers(second)
    assert result_of(first) == result_of(second)
    other = train("cartpole", "seed=1", name="other")
    assert numbers(first) != numbers(other)
    steps = [record["step"] for record in numbers(first)]
    assert steps == sorted(steps)
    assert steps[-1] >= 256
    keys = set().union(*numbers(first))
    assert {"rollout/reward", "rollout/return", "rollout/success", "train/loss", "evaluation/reward"} <= keys


def test_every_reward_in_the_replay_is_that_of_its_own_frame(train: Callable[..., Path], bundled: Any) -> None:
    """The clock's frames show the state, so each transition's reward can be computed anew: terminal frames,
    ragged episodes and the ring's wrap-around included."""
    run = train(*CLOCK, "envs=3", "episode_steps=7", "env_options.shade=30")
    replay = replay_of(run)
    assert replay["full"]
    assert replay["observations"].shape[1] == 3
    times = replay["next_observations"][..., 0]
    model = ZeroShotReward(("pole",), ("cart",), encoder=bundled)
    table = np.array([model(np.full((1, 64, 64, 3), 30 * t, np.uint8))[0] for t in range(8)])
    assert len(np.unique(table.round(5))) == 8
    np.testing.assert_allclose(replay["rewards"], table[times.astype(int)], atol=1e-5)
    np.testing.assert_array_equal(replay["true_rewards"], times)
    lengths = replay["next_observations"][..., 1]
    np.testing.assert_array_equal(replay["dones"], (times == 7) | (times == lengths))
    np.testing.assert_array_equal(replay["timeouts"], (times == 7) & (lengths > 7))
    assert replay["timeouts"].any()
    assert (replay["dones"] > replay["timeouts"]).any()
    assert len(set(lengths.ravel().tolist())) > 3, "episodes are ragged"


def test_ground_truth_takes_the_same_path(train: Callable[..., Path]) -> None:
    run = train("cartpole", "reward.kind=ground_truth")
    replay = replay_of(run)
    assert replay["committed"].all()
    assert np.array_equal(replay["rewards"], replay["true_rewards"])
    assert set(np.unique(replay["rewards"]).tolist()) <= {0.0, 1.0}
    assert result_of(run)["reward"] is None
    assert result_of(run)["success_rate"] is not None
    assert numbers(train("cartpole", "reward.kind=ground_truth", name="again")) == numbers(run)


def test_embeddings_are_kept_if_asked_for(train: Callable[..., Path], tiny_run: Path, bundled: Any) -> None:
    replay = replay_of(train("cartpole", "reward.keep_embeddings=true"))
    assert replay["features"].dtype == np.float16
    assert replay["features"].shape[2] == 128
    model = ZeroShotReward("pole vertically upright on top of the cart", "pole and cart", encoder=bundled)
    again = model.head(replay["features"].reshape(-1, 128)).reshape(replay["rewards"].shape)
    np.testing.assert_allclose(again, replay["rewards"], atol=1e-3)
    assert "embeddings" not in replay_of(tiny_run)


@pytest.mark.parametrize("envs", [1, 3, 5])
def test_any_number_of_environments(train: Callable[..., Path], envs: int) -> None:
    run = train(*CLOCK, f"envs={envs}")
    assert replay_of(run)["observations"].shape[1] == envs
    lengths = [record["rollout/length"] for record in numbers(run) if "rollout/length" in record]
    assert lengths
    assert all(3 <= length <= 9 for length in lengths)
    assert result_of(run)["success_rate"] == 1.0


def test_sac_on_any_gymnasium_id_from_words_alone(train: Callable[..., Path]) -> None:
    run = train(*PENDULUM)
    assert any("train/ent_coef" in record for record in numbers(run))
    assert result_of(run)["success_rate"] is None
    assert result_of(run)["reward"] is not None
    assert replay_of(run)["actions"].shape[2] == 1


def test_a_learner_by_dotted_name(train: Callable[..., Path]) -> None:
    pytest.importorskip("sb3_contrib")
    run = train("env=Pendulum-v1", "reward.kind=ground_truth", "learner.algorithm=sb3_contrib.TQC", "envs=2")
    assert any("train/critic_loss" in record for record in numbers(run))
    stored = (run / "recipe.yaml").read_text()
    assert "sb3_contrib.TQC" in stored


@pytest.mark.parametrize("algorithm", ["CrossQ", "QRDQN"])
def test_learners_without_tau(train: Callable[..., Path], sightline: Sightline, tmp_path: Path, algorithm: str) -> None:
    """The key is passed on only if somebody set it."""
    pytest.importorskip("sb3_contrib")
    env = "env=Pendulum-v1" if algorithm == "CrossQ" else "env=small_envs:Clock"
    arguments = (env, "reward.kind=ground_truth", f"learner.algorithm=sb3_contrib.{algorithm}", "envs=2")
    assert result_of(train(*arguments))["episodes"] == 3
    if algorithm == "CrossQ":
        done = sightline("train", *arguments, *TINY, "learner.tau=0.1", "--run-dir", tmp_path / "refused")
        assert done.code == 2
        assert done.lines == ["sightline: CrossQ takes no option 'tau'; say learner.tau=null"]


def test_actions_that_count_from_one(train: Callable[..., Path]) -> None:
    run = train("env=small_envs:FromOne", *CLOCK[1:])
    assert set(replay_of(run)["actions"].ravel().tolist()) == {0, 1}


def test_pictures_are_read_by_convolutions_if_they_are_large_enough(train: Callable[..., Path]) -> None:
    from stable_baselines3.common.torch_layers import NatureCNN

    large, small = train(*PICTURES, name="large"), train(*SMALL_PICTURES, name="small")
    assert replay_of(large)["observations"].shape[2:] == (3, 36, 36)
    policies: list[Any] = [chosen_policy(RunFolder(run), trust=True).policy for run in (large, small)]
    networks = [policy.q_net.features_extractor for policy in policies]
    assert [isinstance(network, NatureCNN) for network in networks] == [True, False]
    assert json.loads((large / "warnings.json").read_text())["warnings"] == []
    (warning,) = json.loads((small / "warnings.json").read_text())["warnings"]
    assert "pictures of 20x20 are too small for convolutions, which need 36x36" in warning


@pytest.mark.parametrize(
    ("arguments", "sigma"),
    [
        (("learner.algorithm=stable_baselines3.TD3",), 0.1),
        (("learner.algorithm=stable_baselines3.DDPG",), 0.1),
        (("learner.algorithm=stable_baselines3.TD3", "learner.action_noise=0"), None),
        (("learner.algorithm=stable_baselines3.TD3", "learner.action_noise=0.3"), 0.3),
        (("learner.algorithm=SAC",), None),
        (("learner.action_noise=0.2",), 0.2),
    ],
)
def test_how_much_noise_there_is_on_actions(arguments: tuple[str, ...], sigma: float | None) -> None:
    recipe = resolve(for_control(load_recipe(None, ["env=Pendulum-v1", "reward.kind=ground_truth", *arguments])))
    check_learner(recipe)
    envs = FrameVectorEnv(env_maker(recipe, None, render=False), 2, episode_seeds(0), frames=False)
    model = build_learner(recipe, CollectingVecEnv(envs, 4, frames=False), None, None)
    envs.close()
    noise: Any = model.action_noise
    assert (noise is None) == (sigma is None)
    if sigma is not None:
        np.random.seed(0)
        drawn = np.array([noise() for _ in range(4000)])
        assert drawn.shape == (4000, 1)
        assert drawn.std() == pytest.approx(sigma, rel=0.05)


def test_noise_that_drifts() -> None:
    """As in the process's formula: x + theta (mean - x) dt + sigma sqrt(dt) noise."""
    block = "learner.action_noise={kind: ornstein_uhlenbeck, sigma: 0.4, mean: 0.5, theta: 2, dt: 0.04}"
    overrides = ["env=Pendulum-v1", "reward.kind=ground_truth", "learner.algorithm=SAC", block]
    recipe = resolve(for_control(load_recipe(None, overrides)))
    envs = FrameVectorEnv(env_maker(recipe, None, render=False), 2, episode_seeds(0), frames=False)
    model = build_learner(recipe, CollectingVecEnv(envs, 4, frames=False), None, None)
    envs.close()
    noise: Any = model.action_noise
    np.random.seed(0)
    drawn = np.array([noise() for _ in range(20_000)])[:, 0]
    steps = np.diff(drawn) - 2 * (0.5 - drawn[:-1]) * 0.04
    assert steps.std() == pytest.approx(0.4 * 0.2, rel=0.03)
    assert abs(np.corrcoef(steps[:-1], steps[1:])[0, 1]) < 0.03
    assert drawn.mean() == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("learner.options.n_steps=0", "learner.options.n_steps=0: say a whole number"),
        ("learner.options.n_steps=2.5", "learner.options.n_steps=2.5: say a whole number"),
        ("learner.options.action_noise=0.1", "learner.action_noise=0.1"),
    ],
)
def test_options_that_mean_nothing(override: str, said: str) -> None:
    recipe = resolve(for_control(load_recipe(None, ["env=Pendulum-v1", "reward.kind=ground_truth", override])))
    with pytest.raises(BadInput) as caught:
        check_learner(recipe)
    assert said in str(caught.value)


@pytest.mark.parametrize("recipe", ["cartpole", "cartpole-preferences"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_policy_learns_in_one_process(
    recipe: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process of torchrun would train it for itself; agents divide the work."""
    for name, value in {"RANK": rank, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    expected = r"role=control.* learns in one process, and torchrun has started 2; .* sweep .*seed=0\.\.1 --processes 2"
    with pytest.raises(BadInput, match=expected) as told:
        roles.train(resolve(for_control(load_recipe(recipe))), tmp_path / "run", recipe, resume=False)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("error::UserWarning:stable_baselines3")
def test_several_steps_are_added_up_without_a_warning(train: Callable[..., Path]) -> None:
    one, three = train(*SEVERAL_STEPS[:-1], name="one"), train(*SEVERAL_STEPS, name="three")
    assert numbers(one) != numbers(three)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_number_that_is_none_ends_the_run_in_one_line(sightline: Sightline, tmp_path: Path) -> None:
    arguments = ("env=small_envs:Failing", "env_options={how: NaN}", "reward.kind=ground_truth")
    done = sightline("train", *arguments, *TINY, "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "environment 1 of 4 ('small_envs:Failing') returned an observation with NaN in it" in done.lines[-1]
    assert "--resume" in done.lines[-1]
    assert "Traceback" not in done.err


def test_processes_give_the_same_run_and_leave_none_behind(train: Callable[..., Path]) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    short = ("cartpole", "envs=2", "steps=128", "evaluation.episodes=1", "evaluation.test_episodes=1")
    inline = train(*short, name="inline")
    processes = train(*short, "workers=processes", name="processes")
    assert numbers(inline) == numbers(processes)
    assert result_of(inline) == result_of(processes)
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    left = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]


def test_the_checkpoint_is_chosen_by_the_words_alone(train: Callable[..., Path]) -> None:
    run = train("cartpole", "evaluation.every=32")
    evaluations = [record for record in numbers(run) if "evaluation/reward" in record]
    assert len(evaluations) >= 8
    # Of equal ones the last: it has learned longer.
    best = max(reversed(evaluations), key=lambda record: record["evaluation/reward"])
    assert result_of(run)["chosen_step"] == best["step"]
    states = [json.loads(path.read_text()) for path in (run / "checkpoints").glob("step-*/session.json")]
    referred = {state["best_step"] for state in states}
    kept = {int(path.name.rpartition("-")[2]) for path in (run / "checkpoints").glob("best-*")}
    assert kept == referred | {best["step"]}, "no policy is kept that no checkpoint would go on with"


def test_videos_events_and_report(train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.control.trainer.reward_landscape", full_landscape)
    run = train("cartpole", "videos=true", "tensorboard=true")
    assert {file.name for file in (run / "videos").iterdir()} == {"untrained.mp4", "chosen.mp4"}
    assert list((run / "tensorboard").iterdir())
    page = (run / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 2
    assert "pole vertically upright" in page
    landscape = json.loads((run / "landscape.json").read_text())
    assert [len(axis["values"]) for axis in landscape["axes"]] == list(np.shape(landscape["reward"]))
    assert np.size(landscape["reward"]) > 1000


def test_unknown_words_are_warned_of(sightline: Sightline, tmp_path: Path) -> None:
    done = sightline("train", "cartpole", *TINY, "goal=a wombat", "--run-dir", tmp_path / "run")
    assert done.code == 0
    assert "warning: " in done.err
    assert "'wombat'" in done.err
    assert "wombat" in json.loads((tmp_path / "run" / "warnings.json").read_text())["warnings"][0]


WIDE = ("env=small_envs:Wide", "goal=a clock", "episode_steps=20")
LEARNED_FROM_CUT = (
    *("reward.kind=learned", "reward.explore=64", "reward.every=64", "reward.questions=4", "steps=1000"),
    *("reward.model.encoder=ENCODER", "reward.teacher.encoder=ENCODER"),
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("reward.encoder=ENCODER",), ["reward.aspect=pad"]),
        (("reward.encoder=ENCODER", "reward.aspect=squash"), []),
        (("reward.encoder=bundled",), []),  # whose own transform squashes
        (LEARNED_FROM_CUT, ["reward.model.aspect=pad", "reward.teacher.aspect=pad"]),
        ((*LEARNED_FROM_CUT, "reward.model.aspect=pad"), ["reward.teacher.aspect=pad"]),
        ((*LEARNED_FROM_CUT, "reward.model.aspect=pad", "reward.teacher.aspect=squash"), []),
        ((*LEARNED_FROM_CUT, "reward.model.kind=states", "reward.teacher.aspect=pad"), []),
    ],
)
def test_a_run_says_what_its_encoders_do_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...], expected: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    write_open_clip_encoder(tmp_path / "model", SIZES["small"], {"resize_mode": "shortest"})
    known = [text.replace("ENCODER", f"local-dir:{tmp_path / 'model'}") for text in said]
    if "reward.model.kind=states" in known:
        known = [text for text in known if not text.startswith("reward.model.encoder")]
    setup = build_setup(resolve(for_control(load_recipe(None, [*WIDE, *known]))))
    cut = [line for line in setup.warnings if "never sees" in line]
    assert len(cut) == len(expected)
    for line, part in zip(cut, expected, strict=True):
        assert part in line
        assert "frames of 20x30" in line and "5 columns at the left and as many at the right" in line


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_reward_that_is_no_number(
    sightline: Sightline, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, score = [0], GoalBaselineHead.__call__

    def broken(self: GoalBaselineHead, embeddings: np.ndarray) -> np.ndarray:
        calls[0] += 1
        rewards = score(self, embeddings)
        return rewards if calls[0] < 6 else np.full_like(rewards, np.nan)

    with monkeypatch.context() as patch:
        patch.setattr(GoalBaselineHead, "__call__", broken)
        done = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "not finite" in done.lines[-1] and "ZeroShotReward" in done.lines[-1]
    assert "Traceback" not in done.err
    assert sum(line.startswith("sightline: ") for line in done.lines) == 1
    assert done.out == ""
    assert list((tmp_path / "run" / "checkpoints").glob("step-*")), "what was saved before is kept"
    mended = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "run", "--resume")
    assert mended.code == 0, mended.err
    assert numbers(tmp_path / "run") == numbers(tiny_run)
    assert result_of(tmp_path / "run") == result_of(tiny_run)


def test_a_full_disk_while_saving(
    sightline: Sightline, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = safetensors.numpy.save_file, [0]

    def full(*arguments: Any, **arrays: Any) -> None:
        calls[0] += 1
        if calls[0] > 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", full)
        done = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "No space left" in done.lines[-1]
    assert "--resume" in done.lines[-1]
    assert not list((tmp_path / "run" / "checkpoints").glob(".writing*"))
    resumed = sightline("train", "cartpole", *TINY, "--run-dir", tmp_path / "run", "--resume")
    assert resumed.code == 0
    assert "resuming from step" in resumed.err
    assert numbers(tmp_path / "run") == numbers(tiny_run)
    assert result_of(tmp_path / "run") == result_of(tiny_run)


def test_an_environment_that_breaks(sightline: Sightline, tmp_path: Path) -> None:
    words = ("env=small_envs:Raising", *CLOCK[1:])
    done = sightline("train", words[0], *TINY, *words[1:], "--run-dir", tmp_path / "run")
    assert done.code == 1
    assert "exploded" in done.lines[-1]
    assert "Traceback" not in done.err


# -- resuming ---------------------------------------------------------------------------------------------------------

LONG = [
    *("cartpole", "steps=1200", "envs=4", "episode_steps=37", "videos=false", "tensorboard=false", "learner.chunk=8"),
    *("learner.gradient_steps=6", "learner.batch_size=16", "learner.learning_starts=64", "learner.buffer_size=300"),
    *("checkpoints.every=100", "evaluation.every=400", "evaluation.episodes=2", "evaluation.test_episodes=2"),
]
"""Long enough to be interrupted; the ring of the replay buffer wraps, chunks and episodes do not line up."""

WORKERS = [*LONG, "envs=2", "evaluation.episodes=1", "evaluation.test_episodes=1", "workers=processes"]
"""The same with few processes to start."""


def wait_for_checkpoints(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while len(list((run / "checkpoints").glob("step-*/manifest.json"))) < count:
        assert process.poll() is None, f"ended too early: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def newest_step(run: Path) -> int:
    return max(int(path.name.rpartition("-")[2]) for path in (run / "checkpoints").glob("step-*"))


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("uninterrupted"), *LONG)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run after kill −9 in its middle; tests work on copies."""
    folder = tmp_path_factory.mktemp("killed")
    process = start_sightline("train", *LONG, "--run-dir", folder / "run", cwd=folder)
    wait_for_checkpoints(folder / "run", 2, process)
    kill_group(process)
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "run" / "result.json").exists()
    return folder / "run"


@pytest.fixture
def copy_of_killed(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "copy"))


def check_resumed(sightline: Sightline, run: Path, uninterrupted: Path) -> Finished:
    done = sightline("train", *LONG, "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert "resuming from step" in done.err
    assert "does not repeat itself" not in done.err
    assert numbers(run) == numbers(uninterrupted), "bit for bit"
    assert result_of(run) == result_of(uninterrupted)
    mine, theirs = replay_of(run), replay_of(uninterrupted)
    assert all(np.array_equal(mine[name], theirs[name], equal_nan=name == "rewards") for name in theirs)
    assert (run / "report.html").is_file()
    return done


def test_kill_nine_and_resume(sightline: Sightline, copy_of_killed: Path, uninterrupted: Path) -> None:
    assert newest_step(copy_of_killed) < 1000
    check_resumed(sightline, copy_of_killed, uninterrupted)


def test_killed_twice(
    sightline: Sightline, sightline_process: Callable[..., Any], copy_of_killed: Path, uninterrupted: Path
) -> None:
    before = newest_step(copy_of_killed)
    process = sightline_process("train", *LONG, "--run-dir", copy_of_killed, "--resume")
    while newest_step(copy_of_killed) == before:
        assert process.poll() is None
        time.sleep(0.005)
    kill_group(process)
    assert not (copy_of_killed / "result.json").exists()
    check_resumed(sightline, copy_of_killed, uninterrupted)


@pytest.mark.parametrize("damage", ["largest", "smallest", "manifest.json"])
def test_a_truncated_newest_checkpoint_falls_back(
    sightline: Sightline, copy_of_killed: Path, uninterrupted: Path, damage: str
) -> None:
    newest = max((copy_of_killed / "checkpoints").glob("step-*"))
    files = sorted((f for f in newest.iterdir() if f.name != "manifest.json"), key=lambda file: file.stat().st_size)
    file = {"largest": files[-1], "smallest": files[0]}.get(damage, newest / damage)
    file.write_bytes(file.read_bytes()[:-20])
    done = check_resumed(sightline, copy_of_killed, uninterrupted)
    assert f"{newest.name} is damaged" in done.err
    assert "falling back" in done.err


def test_killed_before_the_first_checkpoint(sightline: Sightline, copy_of_killed: Path, uninterrupted: Path) -> None:
    shutil.rmtree(copy_of_killed / "checkpoints")
    (copy_of_killed / "checkpoints").mkdir()
    done = sightline("train", *LONG, "--run-dir", copy_of_killed, "--resume")
    assert done.code == 0, done.err
    assert numbers(copy_of_killed) == numbers(uninterrupted)


def test_a_half_written_line_of_metrics(sightline: Sightline, copy_of_killed: Path, uninterrupted: Path) -> None:
    with metrics_of(copy_of_killed).open("a") as file:
        file.write('{"step": 99999, "rollout/rew')
    check_resumed(sightline, copy_of_killed, uninterrupted)


@pytest.mark.parametrize("override", ["seed=1", "goal=a pole", "learner.gamma=0.5", "steps=800"])
def test_resuming_another_recipe_is_refused(sightline: Sightline, copy_of_killed: Path, override: str) -> None:
    before = metrics_of(copy_of_killed).read_bytes()
    done = sightline("train", *LONG, override, "--run-dir", copy_of_killed, "--resume")
    assert done.code == 2
    assert len(done.lines) == 1
    assert override.partition("=")[0] in done.err
    assert metrics_of(copy_of_killed).read_bytes() == before


def test_an_interrupted_run_is_not_overwritten(sightline: Sightline, copy_of_killed: Path) -> None:
    done = sightline("train", *LONG, "--run-dir", copy_of_killed)
    assert done.code == 2
    assert len(done.lines) == 1
    assert "--resume" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_save_and_leave_before_the_end(
    sightline: Sightline,
    sightline_process: Callable[..., Any],
    tmp_path: Path,
    uninterrupted: Path,
    number: int,
    code: int,
) -> None:
    run = tmp_path / "run"
    process = sightline_process("train", *LONG, "--run-dir", run)
    wait_for_checkpoints(run, 1, process)
    before = newest_step(run)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("sightline: stopped by SIG")
    assert "--resume" in last
    assert "saved at step" in last
    assert before <= newest_step(run) < 1200
    assert not (run / "result.json").exists()
    check_resumed(sightline, run, uninterrupted)


DRIFTING = ("learner.use_sde=false", "learner.action_noise={kind: ornstein_uhlenbeck, sigma: 0.3}")


@pytest.mark.parametrize("exploration", [(), DRIFTING], ids=["state-dependent", "drifting"])
def test_resume_is_exact_with_noise_that_goes_on(
    train: Callable[..., Path], sightline: Sightline, tmp_path: Path, exploration: tuple[str, ...]
) -> None:
    """gSDE draws its noise once for a chunk, before the place where runs are saved; a drift goes on from its value."""
    whole = train("mountain-car", "envs=2", "steps=256", "checkpoints.keep=20", *exploration, name="whole")
    part = Path(shutil.copytree(whole, tmp_path / "part"))
    *_, newest = saved = sorted((part / "checkpoints").glob("step-*"))
    for checkpoint in [path for path in saved if path > saved[len(saved) // 2]]:
        shutil.rmtree(checkpoint)
    assert not newest.exists()
    (part / "result.json").unlink()
    done = sightline("train", "--run-dir", part, "--resume")
    assert done.code == 0, done.err
    assert numbers(part) == numbers(whole)
    assert result_of(part) == result_of(whole)


def test_resume_needs_no_overrides_and_refuses_others(train: Callable[..., Path], sightline: Sightline) -> None:
    run = train("cartpole", "seed=3")
    assert sightline("train", "cartpole", "--run-dir", run, "--resume").code == 0
    refused = sightline("train", "cartpole", "seed=4", "--run-dir", run, "--resume")
    assert refused.code == 2
    assert "seed=3" in refused.err


def test_a_failing_video_does_not_cost_the_result(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no codec")

    monkeypatch.setattr("sightline.session.write_scored_video", fail)
    done = sightline("train", "cartpole", *TINY, "videos=true", "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    assert "no codec" in done.err
    assert result_of(tmp_path / "run")["episodes"] == 3
    assert "no codec" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_survives_a_dead_worker(
    sightline: Sightline, sightline_process: Callable[..., Any], tmp_path: Path
) -> None:
    """As when the system kills a process for its memory: the run goes on as if nothing had happened, and says so."""
    short = [*WORKERS, "steps=400"]
    assert sightline("train", *short, "workers=inline", "--run-dir", tmp_path / "whole").code == 0
    hurt = tmp_path / "hurt"
    process = sightline_process("train", *short, "--run-dir", hurt)
    wait_for_checkpoints(hurt, 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    next(child for child in children if "spawn_main" in str(child.cmdline())).kill()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "process of an environment died" in err
    found, expected = ([r for r in numbers(run) if "rollout/reward" in r] for run in (hurt, tmp_path / "whole"))
    counted = [record.pop("rollout/restarts", 0) for record in found]
    assert found == expected
    assert max(counted) == 1
    assert "process of an environment died" in (hurt / "report.html").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_to_the_group_with_worker_processes(
    sightline_process: Callable[..., Any], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Terminals and job managers signal the whole group: the workers must not die before the run is saved."""
    run = tmp_path / "run"
    process = sightline_process("train", *WORKERS, "--run-dir", run)
    wait_for_checkpoints(run, 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert "saved at step" in err.splitlines()[-1]
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_second_ctrl_c_leaves_at_once_with_130(sightline: Sightline, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sightline.runs.folder.open_run", interrupted)
    done = sightline("report", "run")
    assert done.code == 130
    assert done.lines == ["sightline: interrupted"]


def test_kill_nine_leaves_no_workers(sightline_process: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = sightline_process("train", *WORKERS, "--run-dir", run)
    wait_for_checkpoints(run, 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()  # the parent alone
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_resuming_a_finished_run_changes_nothing(sightline: Sightline, tiny_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    before, result = numbers(run), result_of(run)
    done = sightline("train", "cartpole", *TINY, "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert numbers(run) == before
    assert result_of(run) == result


WAYS = {
    "Pendulum": PENDULUM,
    "Clock": CLOCK,
    "Pictures": PICTURES,
    "SmallPictures": SMALL_PICTURES,
    "SeveralSteps": SEVERAL_STEPS,
    "Noise": NOISE,
    "PPOOnPictures": PPO_ON_PICTURES,
    "PPOWithNoise": PPO_WITH_NOISE,
    "PPOByProgress": PPO_BY_PROGRESS,
}


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)
def test_every_environment_resumes_exactly(
    sightline: Sightline, train: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The checkpoints of the second half are taken away, as a kill would have left it; some was learned before."""
    arguments = (*words, "envs=3") if "envs=2" not in words else words
    run = train(*arguments, "checkpoints.keep=9")
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    kept = sorted((run / "checkpoints").glob("step-*"))
    assert len(kept) >= 2
    for folder in kept[len(kept) // 2 :]:
        shutil.rmtree(folder)
    (run / "result.json").unlink()
    options = (*tiny(arguments), *arguments[1:], "checkpoints.keep=9", "--run-dir", run)
    done = sightline("train", arguments[0], *options, "--resume")
    assert done.code == 0, done.err
    assert "does not repeat itself" not in done.err
    assert numbers(run) == numbers(whole)
    assert result_of(run) == result_of(whole)


@pytest.mark.parametrize(("after", "warned"), [(7, False), (8, True)])
def test_the_opengl_of_another_environment_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, after: int, warned: bool
) -> None:
    """Only a context that comes with the environment's own picture says how that is made."""
    monkeypatch.setitem(sys.modules, "mujoco", sys.modules.get("mujoco", sys))
    contexts = iter([7, after])
    monkeypatch.setattr(control_setup, "opengl_context", lambda: next(contexts))
    monkeypatch.setattr(control_setup, "opengl_renderer", lambda: "llvmpipe (LLVM 15.0.6, 256 bits)")
    words = ["env=cartpole", "goal=a pole", "learner.algorithm=PPO", "steps=64"]
    setup = build_setup(for_control(load_recipe({}, words)))
    assert any("OpenGL in software" in line for line in setup.warnings) == warned
