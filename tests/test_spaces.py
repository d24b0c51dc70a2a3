"""Any observations and actions of an environment: learned from rightly, or refused in a line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipAction

from conftest import TINY, TINY_ON_POLICY, Finished, result_of
from odd_spaces import ACTED, OBSERVED, Odd
from sightline.config.loading import for_control, load_recipe
from sightline.control.learners import spaces_in_words
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.state import chosen_policy
from sightline.envs.actions import adapted_actions, describe_actions
from sightline.envs.making import EnvMaker
from sightline.envs.spaces import adapted_to_learners, describe_observations
from sightline.errors import BadInput
from sightline.rewards.base import Clip
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import read_metrics
from stored import replay_of

Sightline = Callable[..., Finished]
OWN = ("env=odd_spaces:Odd", "reward.kind=ground_truth")
WORDS = ("env=odd_spaces:Odd", "goal=pole", "baseline=cart")


@pytest.fixture
def train(train_run: Callable[..., Path]) -> Callable[..., Path]:
    """A tiny run that must succeed: `train(*WORDS, …)` -> its folder."""

    def run(*arguments: str, **named: Any) -> Path:
        tiny = TINY_ON_POLICY if any("PPO" in word or "A2C" in word for word in arguments) else TINY
        return train_run(arguments[0], *tiny, "envs=2", *arguments[1:], **named)

    return run


def numbers(run: Path) -> list[dict[str, Any]]:
    """All metrics but those of time."""
    records = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]


def warnings_of(run: Path) -> list[str]:
    lines: list[str] = json.loads((run / "warnings.json").read_text())["warnings"]
    return lines


def observing(observes: str, **choices: Any) -> Any:
    return EnvMaker("odd_spaces:Odd", {"observes": observes}, **choices)()


def acting(acts: str, enumerates: bool = False) -> Any:
    return EnvMaker("odd_spaces:Odd", {"acts": acts}, enumerates=enumerates)()


# -- observations ------------------------------------------------------------------------------------------------------

CAMERA = "the policy reads image (40x40 picture, convolutions) and state (2 numbers)"
ROUNDED = "the policy reads a 40x40 picture, rounded to 256 levels, convolutions"
STACKED = "the policy reads a 40x40 picture of 12 channels, convolutions"
READ: dict[str, tuple[Any, str | None]] = {
    "state": ((2,), None),
    "camera": ({"image": (3, 40, 40), "state": (2,)}, CAMERA),
    "nested": (
        {"eyes.0": (3, 40, 44), "eyes.1": (3, 40, 40), "robot.joints": (4,), "robot.mode": (3,)},
        "the policy reads eyes.0 (40x44 picture, convolutions), eyes.1 (40x40 picture, rounded to 256 levels, "
        "convolutions), robot.joints (4 numbers) and robot.mode (3 numbers); left out: task (text)",
    ),
    "two cameras": (
        {"left": (3, 40, 40), "right": (1, 36, 50)},
        "the policy reads left (40x40 picture, convolutions) and right (36x50 picture, convolutions)",
    ),
    "grid": (
        (151,),
        "the policy reads direction (4 numbers) and image (7x7 picture as 147 numbers from 0 to 1); left out: "
        "mission (text)",
    ),
    "grid alone": ((3, 7, 7), "the policy reads image (7x7 picture as plain numbers); left out: mission (text)"),
    "numbers": ((7,), None),
    "stack": ((12, 40, 40), STACKED),
    "stacked last": ((12, 40, 40), STACKED),
    "channels": ((12, 40, 40), None),
    "grey": ((1, 40, 40), "the policy reads a 40x40 picture, convolutions"),
    "fractions": ((3, 40, 40), ROUNDED),
    "halves": ((3, 40, 40), ROUNDED),
    "signed": ((3, 40, 40), ROUNDED),
    "bright": ((3, 40, 40), ROUNDED),
    "whole": ((3, 40, 40), "the policy reads a 40x40 picture, convolutions"),
    "small bright": ((243,), "the policy reads a 9x9 picture as 243 numbers from 0 to 1"),
    "table": ((40, 40), None),
    "scalar": ((1,), None),
    "float16": ((3,), None),
    "float64": ((3,), None),
    "int64": ((3,), None),
    "bool": ((3,), None),
    "multi discrete": ((5,), None),
    "multi binary": ((4,), None),
    "graph": ((2,), "the policy reads state (2 numbers); left out: graph (of the kind Graph)"),
    "sequence": ((2,), "the policy reads state (2 numbers); left out: sequence (of the kind Sequence)"),
}


@pytest.mark.parametrize("observes", READ)
def test_what_policies_read(observes: str) -> None:
    shapes, line = READ[observes]
    env = observing(observes)
    space, (state, _) = env.observation_space, env.reset(seed=0)
    assert space.contains(state)
    assert describe_observations(env, convolves=True) == line
    if isinstance(shapes, dict):
        assert {name: part.shape for name, part in space.items()} == shapes
    else:
        assert space.shape == shapes
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    assert all(part.dtype == (np.uint8 if len(part.shape) == 3 else part.dtype) for part in parts)
    assert all(np.dtype(part.dtype).kind == "f" or len(part.shape) == 3 for part in parts)


def raw(observes: str) -> Any:
    OBSERVED[observes].seed(0)
    return OBSERVED[observes].sample()


def test_pictures_and_numbers_are_those_of_the_environment() -> None:
    camera, _ = observing("camera").reset(seed=0)
    seen = raw("camera")
    np.testing.assert_array_equal(camera["image"], seen["image"].transpose(2, 0, 1))
    np.testing.assert_array_equal(camera["state"], seen["state"])
    nested, _ = observing("nested").reset(seed=0)
    seen = raw("nested")
    np.testing.assert_array_equal(nested["eyes.0"], seen["eyes"][0])
    np.testing.assert_array_equal(nested["eyes.1"], np.rint(seen["eyes"][1] * 255).transpose(2, 0, 1))
    np.testing.assert_allclose(nested["robot.joints"], seen["robot"]["joints"].ravel(), rtol=1e-6)
    np.testing.assert_array_equal(nested["robot.mode"], np.eye(3)[seen["robot"]["mode"] - 1])
    grid, _ = observing("grid").reset(seed=0)
    seen = raw("grid")
    np.testing.assert_array_equal(grid[:4], np.eye(4)[seen["direction"]])
    np.testing.assert_allclose(grid[4:], seen["image"].ravel() / 255, rtol=1e-6)
    both, _ = observing("numbers").reset(seed=0)
    seen = raw("numbers")
    np.testing.assert_array_equal(both, np.concatenate([np.eye(3)[seen["mode"]], seen["place"].ravel()]))


def test_stacked_and_scaled_pictures() -> None:
    stack, last = (observing(name).reset(seed=0)[0] for name in ("stack", "stacked last"))
    np.testing.assert_array_equal(stack.reshape(4, 3, 40, 40), raw("stack").transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(last.reshape(3, 4, 40, 40), raw("stacked last").transpose(2, 3, 0, 1))
    signed, _ = observing("signed").reset(seed=0)
    np.testing.assert_array_equal(signed, np.rint((raw("signed") + 1) / 2 * 255))
    for name in ("whole", "bright"):
        np.testing.assert_array_equal(observing(name).reset(seed=0)[0], np.rint(raw(name)).transpose(2, 0, 1))
    for name in ("scalar", "float16", "int64", "bool"):
        state, _ = observing(name).reset(seed=0)
        assert state.dtype == np.float32
        np.testing.assert_array_equal(state, raw(name).reshape(-1).astype(np.float32))


@pytest.mark.parametrize(
    ("observes", "said"),
    [
        ("empty", "are empty; a policy on states needs a fixed number of numbers"),
        ("nothing", "are empty; a policy"),
        ("text", "are text; a policy"),
        ("mission", "are text; a policy"),
        ("only a sequence", "are of the kind Sequence; a policy"),
        ("huge", "are one of 1,000,000,000 choices; a policy"),
    ],
)
def test_observations_that_nothing_can_be_read_of(observes: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        observing(observes)
    assert str(refused.value).startswith(f"observations of 'odd_spaces:Odd' {said}")


def test_parts_can_be_chosen() -> None:
    env = observing("camera", observation_keys=("state",))
    assert env.observation_space == OBSERVED["state"]
    assert describe_observations(env, convolves=True) == "the policy reads state (2 numbers); left out: image"
    env = observing("nested", observation_keys=("robot", "eyes.1"))
    assert list(env.observation_space) == ["eyes.1", "robot.joints", "robot.mode"]
    alone = observing("camera", observation_keys=("image",)).observation_space
    assert alone == spaces.Box(0, 255, (3, 40, 40), np.uint8)


@pytest.mark.parametrize(
    ("observes", "key", "said"),
    [
        ("camera", "images", "have no part 'images'; their parts are image and state"),
        ("nested", "robot.jo", "their parts are eyes.0, eyes.1, robot.joints, robot.mode and task"),
        ("grid", "mission", "'mission' of 'odd_spaces:Odd' is text, which a policy on states cannot read"),
        ("state", "state", "are no dictionary; leave out observation_keys"),
    ],
)
def test_parts_that_are_not_there(observes: str, key: str, said: str) -> None:
    with pytest.raises(BadInput, match="observation"):
        observing(observes, observation_keys=(key,))
    with pytest.raises(BadInput) as refused:
        observing(observes, observation_keys=("image", key) if observes == "grid" else (key,))
    assert said in str(refused.value)


def test_numbers_beside_pictures_are_rescaled() -> None:
    env = EnvMaker("odd_spaces:Odd", {"observes": "camera"}, rescale=True)()
    state, _ = env.reset(seed=0)
    np.testing.assert_allclose(state["state"], raw("camera")["state"], atol=1e-6)
    with pytest.raises(BadInput, match="low = high"):
        observing("constant", rescale=True)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("shape", "whose part 'image' is one of shape [40, 41, 3] where its observation_space says [40, 40, 3]"),
        ("nan", "whose part 'state' is one with NaN in it"),
        ("dtype", "whose part 'image' is one of dtype float32 where its observation_space says uint8"),
        ("missing", "without 'state', which its observation_space has"),
        ("list", "without 'image', which its observation_space has"),
        ("range", "whose part 'depth' is one with numbers from 0 to 200 where its observation_space says 0 to 1"),
    ],
)
def test_observations_that_do_not_fit(sightline: Sightline, tmp_path: Path, fault: str, said: str) -> None:
    arguments = (*TINY, "env=odd_spaces:Faulty", f"env_options.fault={fault}", "reward.kind=ground_truth")
    done = sightline("train", *arguments, "--run-dir", tmp_path / "run")
    assert done.code == 1
    line = done.err.splitlines()[-1]
    assert f"returned an observation {said} (at step 1 of the episode with seed" in line


# -- learning from observations of several parts -----------------------------------------------------------------------

WAYS = {
    "DQN": (*WORDS, "learner.algorithm=DQN"),
    "several steps": (*OWN, "learner.algorithm=DQN", "learner.options.n_steps=3"),
    "SAC": (*OWN, "env_options.acts=float32", "learner.algorithm=SAC"),
    "PPO": (*WORDS, "learner.algorithm=PPO", "learner.batch_size=8"),
    "standardised": (*OWN, "learner.algorithm=PPO", "learner.batch_size=8", "learner.standardise_observations=true"),
    "A2C": (*OWN, "learner.algorithm=stable_baselines3.A2C", "learner.on_policy=true", "learner.batch_size=null"),
}


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)
def test_runs_resume_exactly(sightline: Sightline, train: Callable[..., Path], tmp_path: Path, words: Any) -> None:
    """All that came after the first checkpoint is taken away, as a kill would have left it."""
    arguments = (*words, "env_options.observes=camera", "steps=128", "checkpoints.keep=9", "learner.hidden=[16]")
    arguments += ("evaluation.episodes=1", "evaluation.test_episodes=1")
    run = train(*arguments)
    assert CAMERA in warnings_of(run)
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    kept = sorted((run / "checkpoints").glob("step-*"))
    assert len(kept) >= 2
    for folder in kept[1:]:
        shutil.rmtree(folder)
    (run / "result.json").unlink()
    done = sightline("train", "--run-dir", run, "--resume", "--trust")
    assert done.code == 0, done.err
    assert "does not repeat itself" not in done.err
    assert numbers(run) == numbers(whole)
    assert result_of(run) == result_of(whole)


def test_pictures_stay_bytes_in_the_replay_and_are_convolved(train: Callable[..., Path]) -> None:
    from stable_baselines3.common.torch_layers import NatureCNN

    run = train(*OWN, "env_options.observes=nested", "learner.algorithm=DQN")
    replay = replay_of(run)
    assert replay["observations.eyes.0"].dtype == np.uint8
    assert replay["observations.eyes.0"].shape[1:] == (2, 3, 40, 44)
    assert replay["next_observations.robot.joints"].shape[1:] == (2, 4)
    policy: Any = chosen_policy(RunFolder(run), trust=True).policy
    readers = policy.q_net.features_extractor.readers
    assert [isinstance(reader, NatureCNN) for reader in readers] == [True, True, False, False]


@pytest.mark.parametrize(("shape", "slow"), [((480, 640, 3), True), ((210, 160, 3), False), ((84, 84, 3), False)])
def test_pictures_of_many_pixels_are_said_to_be_slow(shape: tuple[int, ...], slow: bool) -> None:
    """With gym-aloha's 480x640 a chunk of learning takes SAC a minute."""
    env = adapted_to_learners(Seen(spaces.Box(0, 255, shape, np.uint8)), "seen", rescale=False)
    lines = spaces_in_words(
        for_control(load_recipe(None, ["env=CartPole-v1", "goal=a pole", "learner.algorithm=DQN"])), env
    )
    assert any(line.startswith("the policy reads pictures of 480x640, ") for line in lines) is slow


class Seen(gymnasium.Env[Any, Any]):
    """An environment that nobody plays, with these observations."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space


def test_the_next_state_of_an_ended_episode_is_its_last(train: Callable[..., Path]) -> None:
    replay = replay_of(train(*OWN, "env_options.observes=camera", "learner.algorithm=DQN"))
    goes_on = replay["dones"][:-1] == 0
    for name in ("image", "state"):
        following, reached = replay[f"observations.{name}"][1:], replay[f"next_observations.{name}"][:-1]
        same = (following == reached).reshape(*goes_on.shape, -1).all(axis=2)
        np.testing.assert_array_equal(same, goes_on)
    assert 0 < replay["timeouts"].sum() < replay["dones"].sum()


def test_processes_give_the_same_run(train: Callable[..., Path]) -> None:
    words = (*OWN, "env_options.observes=camera", "learner.algorithm=PPO", "learner.batch_size=8", "steps=64")
    words += ("evaluation.episodes=1", "evaluation.test_episodes=1", "evaluation.every=64")
    inline, processes = train(*words, name="inline"), train(*words, "workers=processes", name="processes")
    assert numbers(inline) == numbers(processes)


@pytest.mark.parametrize("count", [1, 3])
def test_batches_of_several_parts_are_those_of_single_ones(count: int) -> None:
    """The same transitions as arrays, and as parts, are drawn alike."""
    rng = np.random.default_rng(0)
    space = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Box(0, 255, (1, 2, 2), np.uint8)})
    parts = CommittedReplayBuffer(64, space, spaces.Discrete(2), "cpu", 2, n_steps=count)
    whole = CommittedReplayBuffer(64, space["a"], spaces.Discrete(2), "cpu", 2, n_steps=count)
    for time in range(20):
        seen, reached = (
            {"a": rng.normal(size=(2, 3)).astype(np.float32), "b": rng.integers(0, 255, (2, 1, 2, 2), np.uint8)}
            for _ in range(2)
        )
        rest = rng.integers(0, 2, 2), np.full(2, time), np.array([time % 5 == 4, False]), [{}, {}]
        parts.add(seen, reached, *rest)
        whole.add(seen["a"], reached["a"], *rest)
    for buffer in (parts, whole):
        rows = buffer.take_new_rows()
        buffer.commit(rows, np.arange(40, dtype=np.float32).reshape(20, 2))
    np.random.seed(0)
    several: Any = parts.sample(50)
    np.random.seed(0)
    single: Any = whole.sample(50)
    assert several.observations["a"].equal(single.observations)
    assert several.next_observations["a"].equal(single.next_observations)
    assert several.observations["b"].dtype == several.next_observations["b"].dtype
    for name in ("actions", "dones", "rewards", *(["discounts"] if count > 1 else [])):
        assert getattr(several, name).equal(getattr(single, name))


def test_rewards_see_no_states_of_several_parts() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32)})
    buffer = CommittedReplayBuffer(4, space, spaces.Discrete(2), "cpu", 2)
    state = {"a": np.zeros((2, 3), np.float32)}
    buffer.add(state, state, np.zeros(2, int), np.zeros(2), np.zeros(2, bool), [{}, {}])
    clip = buffer.clip(np.array([0]))
    assert isinstance(clip, Clip) and clip.states is None


def test_a_reward_of_states_is_refused_before_training(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroundTruthReward, "needs", frozenset({"states"}))
    arguments = (*TINY, *OWN, "env_options.observes=camera")
    done = sightline("train", *arguments, "--run-dir", tmp_path / "run")
    assert done.code == 2
    assert "the reward reads states as one array, and this environment's are of several parts" in done.err


def test_preferences_are_learned_without_novelty(train: Callable[..., Path]) -> None:
    learned = ("cartpole-preferences", *WORDS[:1], "reward.teacher.kind=scripted", "reward.explore=64")
    few = ("reward.every=128", "reward.questions=10", "reward.pool=40", "reward.segment=2", "reward.fitting.epochs=4")
    run = train(*learned, *few, "env_options.observes=camera", "learner.algorithm=DQN")
    assert "before the first labels exploring is paid nothing: novelty is of states in one array" in warnings_of(run)
    assert any("labels/asked" in record for record in numbers(run))


@pytest.mark.skipif(importlib.util.find_spec("sb3_contrib") is None, reason="pip install sb3-contrib")
def test_a_learner_without_such_a_network_is_refused(sightline: Sightline, tmp_path: Path) -> None:
    arguments = (*TINY, *OWN, "env_options={observes: camera, acts: float32}", "learner.algorithm=sb3_contrib.CrossQ")
    done = sightline("train", *arguments, "learner.tau=null", "--run-dir", tmp_path / "run")
    assert done.code == 2
    assert "CrossQ has no network for several parts of an observation (pictures: image; numbers: state)" in done.err


def test_the_dry_run_says_describe_observations(sightline: Sightline) -> None:
    done = sightline("train", *OWN, "env_options.observes=camera", "--dry-run")
    assert f"spaces      {CAMERA}" in done.err.splitlines()
    assert "transitions of 9.6" in done.err, "two pictures of 4800 bytes"


# -- actions -----------------------------------------------------------------------------------------------------------

DONE = {
    "DQN": ("one", "from five", "few", "shifted", "int32", "switches", "switchboard", "tuple of choices"),
    "PPO": (
        *("few", "many", "shifted", "int32", "switches", "switchboard", "many switches", "tuple of choices"),
        *("nested choices", "float16", "float64", "int64", "uint8", "scalar", "fixed", "dict of boxes"),
    ),
    "SAC": ("float32", "float16", "float64", "int64", "uint8", "scalar", "fixed", "dict of boxes"),
}


@pytest.mark.parametrize(("algorithm", "acts"), [(name, acts) for name, several in DONE.items() for acts in several])
def test_actions_reach_the_environment_as_it_wants_them(train: Callable[..., Path], algorithm: str, acts: str) -> None:
    """The environment itself refuses any other."""
    batch = ("learner.batch_size=8",) if algorithm == "PPO" else ()
    run = train(*OWN, f"env_options.acts={acts}", f"learner.algorithm={algorithm}", "steps=96", *batch)
    assert result_of(run)["episodes"] == 3


@pytest.mark.parametrize("acts", ["few", "switchboard", "nested choices", "dict of boxes", "int64", "fixed", "uint8"])
def test_all_actions_can_be_chosen(acts: str) -> None:
    env = acting(acts, enumerates=True)
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        chosen = {repr(env.action(np.int64(choice))) for choice in range(space.n)}
        assert len(chosen) == space.n
        return
    for side in (space.low, space.high):
        own = env.action(side)
        assert ACTED[acts].contains(own)
        whole: Any = ACTED[acts]
        if isinstance(whole, spaces.Box):
            np.testing.assert_array_equal(own, whole.low if side is space.low else whole.high)


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ("int64", "actions of 'odd_spaces:Odd' are rounded to whole numbers (int64)"),
        ("fixed", "actions of 'odd_spaces:Odd' have low = high in 1 of 3 numbers, which are left as they are"),
        ("few", "actions of 'odd_spaces:Odd' are 2 choices at once, learned as one of 6 combinations"),
        ("float64", None),
        ("one", None),
    ],
)
def test_describe_actions_with_actions_is_said(acts: str, said: str | None) -> None:
    assert describe_actions(acting(acts, enumerates=True)) == said


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ("all fixed", "have bounds with low = high everywhere, so there is nothing to choose"),
        ("infinite", "have no finite bounds (-inf to inf), between which learners explore; give action_space finite"),
        ("huge", "have no finite bounds (-3.4e+38 to 3.4e+38)"),
        ("empty", "are empty (shape [0]), so there is nothing to choose"),
        ("mixed", "hold numbers (Box) beside choices"),
        ("words", "are words, which a policy on states cannot choose; have a model play it: role=agent"),
        ("sequence", "are of the kind Sequence"),
        ("many", "are 3 choices at once, 125 combinations, and this learner counts through 64 at most; say learner."),
    ],
)
def test_actions_that_nobody_can_choose(acts: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        acting(acts, enumerates=True)
    assert str(refused.value).startswith(f"actions of 'odd_spaces:Odd' {said}")


def test_bounds_that_a_wrapper_took_away() -> None:
    with pytest.raises(BadInput, match="leave out the wrapper ClipAction"):
        adapted_actions(ClipAction(Odd(acts="float32")), "it", enumerates=False)


@pytest.mark.parametrize(("acts", "algorithm"), [("few", "DQN"), ("many", "PPO"), ("float64", "SAC")])
def test_the_learner_that_fits(sightline: Sightline, acts: str, algorithm: str) -> None:
    done = sightline("train", *OWN, f"env_options.acts={acts}", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["learner"]["algorithm"] == algorithm


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("env_options.acts=many", "learner.algorithm=DQN"), "say learner.algorithm=PPO"),
        (("env_options.acts=many", "learner.buffer_size=9000"), "learner.buffer_size is no key of PPO"),
        (("env_options.acts=few", "learner.algorithm=SAC"), "say learner.algorithm=DQN"),
        (("env_options.acts=many", "learner.algorithm=PPO", "learner.action_cost=1"), "learner.action_cost is of cont"),
    ],
)
def test_learners_that_do_not_fit(sightline: Sightline, overrides: tuple[str, ...], said: str) -> None:
    done = sightline("train", *OWN, *overrides, "--dry-run")
    assert done.code == 2
    assert said in done.err
