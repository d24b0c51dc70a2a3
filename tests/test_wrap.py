"""Environments of every kind with a model's reward: the frames and states it sees, infos, windows, and bad input."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecMonitor

from conftest import SENTENCES
from sightline.envs.record_frame import RecordFrame
from sightline.errors import BadInput, RunFailed
from sightline.models.encoders import load_encoder
from sightline.rewards.base import Clip, Need, OnlineRewardModel, RewardModel, windows
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.learned.config import StatesConfig
from sightline.rewards.learned.reward import EnsembleReward
from sightline.rewards.success import SparseReward
from sightline.rewards.wrap import wrap
from sightline.rewards.zero_shot import ZeroShotReward
from small_envs import Blind, Canvas, Clock, Heat, InParts, Undrawn, recorded_clock

COUNT, STEPS = 3, 40


class Times(RewardModel):
    """Sees the time in a Clock's frames; keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Clip] = []

    def reward(self, clip: Clip) -> np.ndarray:
        self.shown.append(clip)
        assert isinstance(clip.frames, np.ndarray)
        times = clip.frames[:, :, 0, 0, 0]
        assert (clip.frames == times[:, :, None, None, None]).all()
        return 10 * times.astype(np.float32) + 1


class Positions(RewardModel):
    """Sees the time in a Clock's states."""

    needs: frozenset[Need] = frozenset({"states"})

    def reward(self, clip: Clip) -> np.ndarray:
        assert clip.frames is None
        assert isinstance(clip.states, np.ndarray)
        return 10 * clip.states[:, :, 0].astype(np.float32) + 1


class Moments(RewardModel):
    """Weighs the last three times of an episode: [3, 2, 1] is 123. Looks back when it embeds."""

    window = 3

    def reward(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        seen = windows(clip.frames[:, :, 0, 0, 0].astype(np.float32), clip.first, 3)
        return np.asarray(seen @ np.array([100, 10, 1], np.float32))


class ScoredMoments(RewardModel):
    """The same, but it looks back when it scores."""

    window = 3

    def embed(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        return clip.frames[:, :, 0, 0, 0].astype(np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return np.asarray(windows(features, clip.first, 3) @ np.array([100, 10, 1], np.float32))


class ClockVectorEnv(VectorEnv[Any, Any, Any]):
    """A custom vector environment: Clocks that all last five steps, with times of their own."""

    def __init__(
        self, num_envs: int = COUNT, render_mode: str | None = None, mode: Any = AutoresetMode.NEXT_STEP, **_: Any
    ) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "autoreset_mode": mode}
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = Clock().observation_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = Clock().action_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.times = np.zeros(num_envs, int)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.times = -np.arange(self.num_envs) % 5
        return self._observed(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        over = self.times == 5
        self.times = np.where(over, 0, self.times + 1)
        nowhere = np.zeros(self.num_envs, bool)
        return self._observed(), self.times.astype(np.float64), self.times == 5, nowhere, {}

    def render(self) -> Any:
        return [np.full((16, 16, 3), time, np.uint8) for time in self.times]

    def _observed(self) -> np.ndarray:
        return np.stack([self.times, np.full(self.num_envs, 5), self.times], axis=1).astype(np.float32)


gymnasium.register("test/Clock-v0", entry_point=Clock, vector_entry_point=ClockVectorEnv)
CLOCK = functools.partial(Clock, "rgb_array")


def vector(kind: str, mode: str, make: Any = CLOCK) -> Any:
    if kind == "sync":
        return SyncVectorEnv([make] * COUNT, autoreset_mode=mode)
    return AsyncVectorEnv([make] * COUNT, autoreset_mode=mode, context="spawn")


KINDS: dict[str, Callable[[], Any]] = {
    "sync, next step": lambda: vector("sync", "NextStep"),
    "sync, same step": lambda: vector("sync", "SameStep"),
    "sync, disabled": lambda: vector("sync", "Disabled"),
    "sync, same step, recorded": lambda: vector("sync", "SameStep", recorded_clock),
    "sync, next step, recorded": lambda: vector("sync", "NextStep", recorded_clock),
    "sync, same step, statistics": lambda: RecordEpisodeStatistics(vector("sync", "SameStep")),
    "async, next step": lambda: vector("async", "NextStep"),
    "async, same step, recorded": lambda: vector("async", "SameStep", recorded_clock),
    "async, disabled": lambda: vector("async", "Disabled"),
    "custom": lambda: gymnasium.make_vec("test/Clock-v0", COUNT, "vector_entry_point", render_mode="rgb_array"),
    "dummy": lambda: DummyVecEnv([CLOCK] * COUNT),
    "dummy, recorded, monitored": lambda: VecMonitor(DummyVecEnv([recorded_clock] * COUNT)),
    "subproc, recorded": lambda: SubprocVecEnv([recorded_clock] * COUNT, start_method="spawn"),
    "gymnasium": CLOCK,
    "gymnasium, autoreset": lambda: gymnasium.wrappers.Autoreset(CLOCK()),
}
IN_PROCESS = [kind for kind in KINDS if "async" not in kind and "subproc" not in kind]


@dataclass
class Played:
    """Steps of N environments, [T, N] each."""

    rewards: np.ndarray
    own: np.ndarray
    ended: np.ndarray
    infos: list[Any]

    @property
    def reset(self) -> np.ndarray:
        """Whether the step was no transition: own rewards of a Clock are times, from 1."""
        return self.own == 0


def play(env: Any, steps: int = STEPS, keep: str = "env_reward") -> Played:
    """Random actions in an environment of any kind, that was wrapped; closes it."""
    rng = np.random.default_rng(0)
    single = isinstance(env, gymnasium.Env)
    autoresets = not single or isinstance(env.env, gymnasium.wrappers.Autoreset)
    rewards, own, all_ended, all_infos = [], [], [], []
    if isinstance(env, VecEnv):
        env.seed(3)
        env.reset()
    else:
        env.reset(seed=3)
    for _ in range(steps):
        actions = rng.integers(0, 2, None if single else env.num_envs)
        if isinstance(env, VecEnv):
            _, reward, ended, infos = env.step(actions)
            own.append([info[keep] for info in infos])
        else:
            _, reward, terminated, truncated, infos = env.step(actions)
            ended = np.logical_or(terminated, truncated)
            own.append(infos[keep])
            if not single:
                assert infos[f"_{keep}"].all()
                if env.metadata["autoreset_mode"] == AutoresetMode.DISABLED and ended.any():
                    env.reset(options={"reset_mask": ended})
            elif ended and not autoresets:
                env.reset()
        assert single or (reward.shape == (COUNT,) and reward.dtype == np.float32)
        rewards.append(reward)
        all_ended.append(ended)
        all_infos.append(infos)
    env.close()
    shape = (steps, -1)
    return Played(
        np.reshape(rewards, shape).astype(float), np.reshape(own, shape), np.reshape(all_ended, shape), all_infos
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_reward_is_that_of_the_state_reached(kind: str, encoder_folder: Callable[[str], Path]) -> None:
    """A Clock's own reward is the time that its frame shows, also in the last state of an episode."""
    encoder = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    model = ZeroShotReward(SENTENCES[0], SENTENCES[2], encoder=encoder)
    inner = KINDS[kind]()
    env = wrap(inner, model)
    for one, its_wrapper in ((gymnasium.Env, gymnasium.Wrapper), (VectorEnv, VectorWrapper), (VecEnv, VecEnvWrapper)):
        assert isinstance(env, its_wrapper) == isinstance(inner, one)
    assert env.observation_space == inner.observation_space
    assert env.action_space == inner.action_space
    assert env.metadata == inner.metadata
    played = play(env)
    assert played.ended.sum() >= 4 * played.ended.shape[1]
    by_time = model(np.stack([np.full((16, 16, 3), time, np.uint8) for time in range(10)]))
    assert len(set(by_time)) == 10
    expected = np.where(played.reset, 0, by_time[played.own.astype(int)])
    np.testing.assert_allclose(played.rewards, expected, atol=1e-5)
    waits = "next step" in kind or kind in ("custom", "gymnasium, autoreset")
    assert (played.reset[1:] == (played.ended[:-1] if waits else False)).all()


@pytest.mark.parametrize("kind", IN_PROCESS)
def test_states_are_those_reached_and_nothing_is_rendered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "recorded" not in kind:
        monkeypatch.setattr(Clock, "render", lambda self: pytest.fail("rendered"))
    played = play(wrap(KINDS[kind](), Positions()))
    assert (played.rewards == np.where(played.reset, 0, 10 * played.own + 1)).all()


@pytest.mark.parametrize("model", [Moments, ScoredMoments])
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_windows_step_by_step_are_those_of_one_pass(kind: str, model: type[RewardModel]) -> None:
    played = play(wrap(KINDS[kind](), model()))
    for env in range(played.rewards.shape[1]):
        own, rewards = (array[~played.reset[:, env], env] for array in (played.own, played.rewards))
        first = np.r_[True, played.ended[~played.reset[:, env], env][:-1]]
        frames = np.broadcast_to(own[:, None, None, None, None], (len(own), 1, 4, 4, 3)).astype(np.uint8)
        assert np.array_equal(rewards, model()(Clip(first[:, None], frames=frames))[:, 0])
        assert set(rewards[2:][first[2:] & (own[2:] == 1)]) <= {111.0}, "a window starts at its episode"


@pytest.mark.parametrize("kind", IN_PROCESS)
def test_what_the_model_is_told_of_a_step(kind: str) -> None:
    model = Times()
    played = play(wrap(KINDS[kind](), model), keep="env_reward")
    before = np.vstack([np.ones_like(played.ended[:1]), (played.ended | played.reset)[:-1]])
    steps = np.flatnonzero(~played.reset.all(axis=1))  # where all begin anew, there is nothing to judge
    for step, clip in zip(steps, model.shown, strict=True):
        assert clip.shape == (1, played.own.shape[1])
        assert clip.env_reward is not None
        assert clip.env_reward.dtype == np.float32
        assert (clip.env_reward[0] == played.own[step]).all()
        assert (clip.first[0] == before[step]).all()
        if kind == "custom":
            assert clip.success is None
        else:
            assert clip.success is not None
            assert (clip.success[0] == played.ended[step]).all(), "a Clock succeeds at its end"


@pytest.mark.parametrize("kind", IN_PROCESS)
def test_models_that_need_nothing_render_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "recorded" not in kind:
        monkeypatch.setattr(Clock, "render", lambda self: pytest.fail("rendered"))
    played = play(wrap(KINDS[kind](), GroundTruthReward(2.0)))
    assert (played.rewards == np.where(played.reset, 0, 2 * played.own)).all()
    if kind != "custom":
        played = play(wrap(KINDS[kind](), SparseReward()))
        assert (played.rewards == played.ended).all()


class Stating(Clock):
    """Lasts four steps. Says nothing of success when it is reset, and in the steps of a set."""

    def __init__(self, silent: frozenset[int] = frozenset()) -> None:
        super().__init__("rgb_array", shortest=4, longest=4)
        self.silent = silent

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(**given)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        *result, info = super().step(action)
        return (*result, {} if self.time in self.silent else info)  # type: ignore[return-value]


@pytest.mark.parametrize("silent", [frozenset(), frozenset({2, 3})])
def test_success_that_is_not_stated_in_every_step(silent: frozenset[int]) -> None:
    make = functools.partial(Stating, silent)
    vectors = [SyncVectorEnv([make] * COUNT, autoreset_mode=mode) for mode in ("NextStep", "SameStep")]
    for inner in (*vectors, gymnasium.wrappers.Autoreset(make()), make(), DummyVecEnv([make] * COUNT)):
        played = play(wrap(inner, SparseReward()), steps=20)
        assert played.ended.sum() >= 4
        assert (played.rewards == played.ended).all()


def test_an_environment_that_never_states_success() -> None:
    """It may still state it when an episode ends, so until then nothing is earned; a whole clip tells for certain."""
    env = wrap(Stating(frozenset(range(9))), SparseReward())
    env.reset()
    assert env.step(0)[1] == 0.0
    ended = Clip(np.array([[True], [False], [True]]))
    with pytest.raises(BadInput, match="states no success"):
        SparseReward()(ended)


@pytest.mark.parametrize("recorder", [None, RecordFrame])
def test_a_canvas_that_is_drawn_on_again_and_again(recorder: Any) -> None:
    """Its frames are of the state reached, though by the time of the reward the reset has drawn over them."""

    def make() -> gymnasium.Env[Any, Any]:
        return Canvas("rgb_array") if recorder is None else recorder(Canvas("rgb_array"))

    vectors = [SyncVectorEnv([make] * COUNT, autoreset_mode=mode) for mode in ("NextStep", "SameStep")]
    for inner in (*vectors, DummyVecEnv([make] * COUNT), make()):
        played = play(wrap(inner, Times()))
        assert played.ended.sum() >= 4
        assert (played.rewards == np.where(played.reset, 0, 10 * played.own + 1)).all()


def test_recorded_frames_stay_as_they_are() -> None:
    env = RecordFrame(Canvas("rgb_array"))
    frames = [env.reset(seed=0)[1]["frame"], *(env.step(np.int64(0))[4]["frame"] for _ in range(2))]
    assert [frame[0, 0, 0] for frame in frames] == [0, 1, 2]


def test_attributes_are_set_on_the_environments() -> None:
    inner = DummyVecEnv([CLOCK] * COUNT)
    clocks = list(inner.envs)
    for env in (wrap(inner, Times()), wrap(wrap(inner, Times()), Positions(), keep="times")):
        for indices, value in ((None, 20), ([0, 2], 30), (1, 40)):
            env.set_attr("longest", value, indices)
        assert [getattr(clock, "longest") for clock in clocks] == env.get_attr("longest") == [30, 40, 30]  # noqa: B009
        env.set_attr("longest", 9)


def test_the_vector_environment_that_gymnasium_has_of_cartpole() -> None:
    class Brightness(RewardModel):
        def reward(self, clip: Clip) -> np.ndarray:
            assert clip.frames is not None
            return np.asarray(clip.frames[:, :, 100:350].mean(axis=(2, 3, 4)), np.float32)

    bare, env = (gymnasium.make_vec("CartPole-v1", COUNT, render_mode="rgb_array") for _ in range(2))
    assert not isinstance(bare, SyncVectorEnv)
    env = wrap(env, Brightness())
    over, ends = np.zeros(COUNT, bool), 0
    assert np.array_equal(bare.reset(seed=0)[0], env.reset(seed=0)[0])
    for step in range(40):
        actions = np.full(COUNT, step % 10 > 2)
        _, own, terminated, truncated, _ = bare.step(actions.astype(int))
        _, rewards, _, _, infos = env.step(actions.astype(int))
        assert np.array_equal(rewards, np.where(over, 0, Brightness()(np.stack(bare.render() or ()))))
        assert np.array_equal(infos["env_reward"], own)
        over = terminated | truncated
        ends += over.sum()
    assert ends >= COUNT


def test_environments_without_pictures_do_for_models_without_eyes() -> None:
    assert play(wrap(Blind(), Positions())).rewards.any()
    assert play(wrap(SyncVectorEnv([Blind] * COUNT), Positions())).rewards.any()
    assert play(wrap(DummyVecEnv([Blind] * COUNT), Positions())).rewards.any()
    assert play(wrap(DummyVecEnv([InParts] * COUNT), GroundTruthReward())).rewards.any()


def test_dictionaries_do_for_models_that_look_at_frames() -> None:
    make = functools.partial(InParts, "rgb_array")
    for env in (make(), SyncVectorEnv([make] * COUNT, autoreset_mode="SameStep"), DummyVecEnv([make] * COUNT)):
        played = play(wrap(env, Times()))
        assert (played.rewards == np.where(played.reset, 0, 10 * played.own + 1)).all()


def test_frames_are_of_the_size_that_was_rendered() -> None:
    model = Times()
    play(wrap(Clock("rgb_array", (6, 9)), model))
    assert {clip.frames.shape for clip in model.shown if clip.frames is not None} == {(1, 1, 6, 9, 3)}


def test_statistics_taken_inside_are_of_the_own_reward() -> None:
    def episodes(played: Played) -> list[float]:
        totals, sums = np.zeros(COUNT), []
        for own, ended in zip(played.own, played.ended, strict=True):
            totals += own
            sums += list(totals[ended])
            totals[ended] = 0
        return sums

    played = play(wrap(VecMonitor(DummyVecEnv([CLOCK] * COUNT)), Times()))
    told = [info["episode"]["r"] for infos in played.infos for info in infos if "episode" in info]
    assert told == episodes(played)
    played = play(wrap(make_vec_env(CLOCK, COUNT, seed=1), Times()))  # has a Monitor in each
    told = [info["episode"]["r"] for infos in played.infos for info in infos if "episode" in info]
    assert told == episodes(played)
    played = play(wrap(RecordEpisodeStatistics(vector("sync", "NextStep")), Times()))
    told = [r for infos in played.infos if "episode" in infos for r in infos["episode"]["r"][infos["_episode"]]]
    assert told == episodes(played)
    played = play(wrap(Monitor(CLOCK()), Times()))
    told = [info["episode"]["r"] for info in played.infos if "episode" in info]
    assert told[0] == played.own[: int(np.argmax(played.ended[:, 0])) + 1].sum()


def test_infos_are_otherwise_untouched() -> None:
    bare, wrapped = (vector("sync", "SameStep"), wrap(vector("sync", "SameStep"), Times(), keep="truth"))
    assert set(bare.reset(seed=1)[1]) == set(wrapped.reset(seed=1)[1])
    for _ in range(12):
        theirs, ours = (envs.step(np.zeros(COUNT, int)) for envs in (bare, wrapped))
        assert np.array_equal(ours[4].pop("truth"), theirs[1])
        assert ours[4].pop("_truth").all()
        assert str(ours[4]) == str(theirs[4])
        assert all(np.array_equal(ours[i], theirs[i]) for i in (0, 2, 3))


def test_only_the_environments_of_a_mask_begin_anew() -> None:
    env = wrap(vector("sync", "Disabled"), Moments())
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros(COUNT, int))
    env.reset(options={"reset_mask": np.array([True, False, False])})
    assert env.step(np.zeros(COUNT, int))[1].tolist() == [111, 123, 123]
    env.close()


@pytest.mark.parametrize("kind", IN_PROCESS)
def test_pickling(kind: str) -> None:
    if "monitored" in kind:
        pytest.skip("a VecMonitor cannot be pickled by itself")
    env = wrap(KINDS[kind](), Moments())
    (env.seed(3), env.reset()) if isinstance(env, VecEnv) else env.reset(seed=3)
    actions = 0 if isinstance(env, gymnasium.Env) else np.zeros(COUNT, int)
    env.step(actions)
    other = pickle.loads(pickle.dumps(env))
    for _ in range(2):
        ours, theirs = env.step(actions), other.step(actions)
        assert np.array_equal(ours[1], theirs[1])
        assert np.array_equal(ours[0], theirs[0])
    assert other.render_mode == "rgb_array"
    assert type(other.unwrapped) is type(env.unwrapped)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_checkers_of_gymnasium_and_stable_baselines_accept_it(encoder_folder: Callable[[str], Path]) -> None:
    encoder = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    inner = gymnasium.make("sightline.envs:sightline/CartPole-v0", render_mode="rgb_array")
    for model in (ZeroShotReward(SENTENCES[0], encoder=encoder), Moments()):
        env = wrap(inner, model)
        check_env(env)
        sb3_check_env(env)
    again = wrap(inner, model).spec
    assert again is not None
    assert type(again.make()) is type(env), "a spec makes the wrapped environment"


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_learners_take_it_as_it_is(algorithm: Any) -> None:
    options = {"n_steps": 8, "batch_size": 8} if algorithm is PPO else {"learning_starts": 8}
    for env in (wrap(CLOCK(), Times()), wrap(DummyVecEnv([CLOCK] * COUNT), Times())):
        learner = algorithm("MlpPolicy", env, device="cpu", **options).learn(64)
        assert learner.num_timesteps >= 64
    assert learner.get_env() is env


def test_a_goal_in_words_is_a_zero_shot_reward() -> None:
    goal, baseline = "pole vertically upright on top of the cart", "pole and cart"
    inner = gymnasium.make("sightline.envs:sightline/CartPole-v0", render_mode="rgb_array", render_size=(64, 64))
    env = wrap(inner, goal, baseline=baseline)
    env.reset(seed=0)
    reward = env.step(0)[1]
    frame = inner.render()
    assert reward == pytest.approx(float(ZeroShotReward(goal, baseline)(np.asarray(frame)[None])[0]), abs=1e-5)
    assert reward != pytest.approx(float(ZeroShotReward(goal)(np.asarray(frame)[None])[0]), abs=1e-3)


class Learning(OnlineRewardModel):
    """Would learn between chunks."""


class Nonsense(RewardModel):
    """Has a typing error in what it needs."""

    needs = frozenset({"frame"})  # type: ignore[arg-type]

    def reward(self, clip: Clip) -> np.ndarray:
        return np.zeros(clip.shape, np.float32)


class Big(Clock):
    """Renders larger pictures than a Clock."""

    def __init__(self) -> None:
        super().__init__("rgb_array", (32, 32))


def same_step_custom() -> Any:
    return ClockVectorEnv(render_mode="rgb_array", mode=AutoresetMode.SAME_STEP)


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "no environment": (lambda: "CartPole-v1", Times, "not str; make one first, as by gymnasium.make"),
    "a class": (lambda: Clock, Times, "not the class Clock"),
    "no reward": (CLOCK, lambda: 3, "a goal in words or a RewardModel, not int"),
    "a reward's class": (CLOCK, lambda: Times, "not the class Times"),
    "a reward that learns": (CLOCK, Learning, "sightline train"),
    "a reward that knows nothing": (CLOCK, lambda: EnsembleReward(StatesConfig(), seen_shape=(3,)), "nothing yet"),
    "a reward that needs nonsense": (CLOCK, Nonsense, "Nonsense.needs must be a set of 'frames' and 'states'"),
    "no pictures": (Clock, Times, r"render_mode=None: make it by gymnasium.make\(…, render_mode='rgb_array'\)"),
    "no pictures in a vector": (lambda: SyncVectorEnv([Clock]), Times, "gymnasium.make_vec"),
    "no pictures in SB3": (lambda: DummyVecEnv([Clock]), Times, "render_mode='rgb_array'"),
    "parts, for states": (InParts, Positions, "kind Dict; put gymnasium.wrappers.FlattenObservation"),
    "parts in a vector": (lambda: SyncVectorEnv([InParts]), Positions, "kind Dict"),
    "parts in SB3": (lambda: DummyVecEnv([InParts]), Positions, "kind Dict"),
    "no mode": (lambda: ClockVectorEnv(render_mode="rgb_array", mode=None), Times, "autoreset_mode"),
    "custom, same step": (same_step_custom, Times, "RecordFrame"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_in_one_line(what: str) -> None:
    make, reward, expected = REFUSED[what]
    with pytest.raises(BadInput, match=expected) as caught:
        wrap(make(), reward())
    assert "\n" not in str(caught.value)


def test_a_baseline_goes_with_words() -> None:
    with pytest.raises(BadInput, match="leave out baseline"):
        wrap(CLOCK(), Times(), baseline="a clock")
    for nothing in (None, "", [], ()):
        wrap(CLOCK(), Times(), baseline=nothing)


def test_lists_of_infos_are_made_outside() -> None:
    env = wrap(DictInfoToList(vector("sync", "NextStep")), Positions())
    env.reset(seed=0)
    with pytest.raises(BadInput, match="put DictInfoToList outside"):
        env.step(np.zeros(COUNT, int))
    outside = DictInfoToList(wrap(vector("sync", "NextStep"), Positions()))
    outside.reset(seed=0)
    assert [info["env_reward"] for info in outside.step(np.zeros(COUNT, int))[4]] == [1] * COUNT


@pytest.mark.parametrize("make", [lambda: vector("async", "SameStep"), lambda: SubprocVecEnv([CLOCK])])
def test_workers_that_reset_by_themselves_need_a_recorder(make: Callable[[], Any]) -> None:
    env = make()
    with pytest.raises(BadInput, match=r"sightline\.RecordFrame"):
        wrap(env, Times())
    env.close()


def test_every_environment_must_be_recorded() -> None:
    env = wrap(SyncVectorEnv([recorded_clock, CLOCK], autoreset_mode="SameStep"), Times())
    env.reset()
    with pytest.raises(BadInput, match=r"each environment must be in a sightline\.RecordFrame"):
        env.step(np.zeros(2, int))


def test_frames_of_different_sizes_are_refused() -> None:
    env = wrap(DummyVecEnv([CLOCK, Big]), Times())
    env.reset()
    with pytest.raises(BadInput, match="different sizes \\(16x16, 32x32\\)"):
        env.step([0, 0])


def test_a_key_that_is_taken_is_refused() -> None:
    for inner in (CLOCK(), vector("sync", "NextStep"), DummyVecEnv([CLOCK] * COUNT)):
        env = wrap(wrap(inner, Times()), Moments())
        env.reset()
        with pytest.raises(BadInput, match="keep="):
            env.step(0 if isinstance(env, gymnasium.Env) else np.zeros(COUNT, int))
        played = play(wrap(wrap(inner, Times()), Moments(), keep="times"), keep="times")
        assert set(played.own[~played.ended]) <= {0, *range(1, 101, 10)}


@pytest.mark.parametrize(("kind", "expected"), [(Heat, "uint8"), (Undrawn, "returned nothing")])
def test_what_is_no_frame_is_told_in_one_line(kind: Any, expected: str) -> None:
    make = functools.partial(kind, render_mode="rgb_array")
    for inner in (make(), SyncVectorEnv([make]), SyncVectorEnv([make], autoreset_mode="SameStep"), DummyVecEnv([make])):
        env = wrap(inner, Times())
        env.reset()
        with pytest.raises((RunFailed, BadInput), match=expected):
            env.step(0 if isinstance(env, gymnasium.Env) else np.array([0]))
