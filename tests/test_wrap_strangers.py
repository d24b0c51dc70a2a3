"""`wrap` around what strangers bring: goal environments, odd rewards and infos, pictures that show nothing, and ways
around the wrapper. Each is rewarded rightly, or refused in one line."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.her import HerReplayBuffer

from conftest import SENTENCES, SIZES, write_open_clip_encoder
from odd_wrap import (
    ManyInOne,
    NoSuchDisplayException,
    Paid,
    Painted,
    Pool,
    Reach,
    Reused,
    Tensors,
    Undrawable,
    Uninformed,
)
from sightline.envs.record_frame import RecordFrame
from sightline.errors import BadInput, RunFailed
from sightline.models.encoders import load_encoder
from sightline.rewards.base import Clip, Need, RewardModel
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.wrap import wrap
from sightline.rewards.zero_shot import ZeroShotReward
from small_envs import Clock, FromOne, Pictures, Raising
from test_wrap import COUNT, Moments, Positions, Times

CLOCK = functools.partial(Clock, "rgb_array")
REACH = functools.partial(Reach, "rgb_array")
SMALL = {"learning_starts": 32, "batch_size": 8, "buffer_size": 1_000, "device": "cpu"}


class Darkness(RewardModel):
    """Pays 1 plus the share of dark pixels, which no reward of the environments here is equal to."""

    def reward(self, clip: Clip) -> np.ndarray:
        assert clip.frames is not None
        return 1 + np.asarray((np.asarray(clip.frames) < 128).mean(axis=(2, 3, 4)), np.float32)


def refusal(call: Callable[[], Any], kind: type[Exception] | tuple[type[Exception], ...] = BadInput) -> str:
    """The one line that a call is refused with."""
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


GOALS: dict[str, Callable[[], Any]] = {
    "environment": lambda: wrap(REACH(), Darkness()),
    "environments in a vector": lambda: DummyVecEnv([lambda: wrap(REACH(), Darkness())] * 2),
    "vector": lambda: wrap(DummyVecEnv([REACH] * 2), Darkness()),
    "vector, monitored": lambda: VecMonitor(wrap(VecMonitor(DummyVecEnv([REACH])), Darkness())),
    "vector, normalised": lambda: VecNormalize(wrap(DummyVecEnv([REACH]), Darkness())),
}


@pytest.mark.parametrize("kind", GOALS)
def test_hindsight_would_ask_the_environment_and_is_refused(kind: str) -> None:
    learner = SAC("MultiInputPolicy", GOALS[kind](), replay_buffer_class=HerReplayBuffer, **SMALL)
    line = refusal(lambda: learner.learn(64))
    assert "HerReplayBuffer" in line
    assert "DictReplayBuffer" in line


@pytest.mark.parametrize("kind", GOALS)
def test_without_hindsight_a_goal_environment_is_paid_by_the_model(kind: str) -> None:
    learner = SAC("MultiInputPolicy", GOALS[kind](), **SMALL)
    learner.learn(48)
    buffer = learner.replay_buffer
    assert isinstance(buffer, DictReplayBuffer)
    assert (buffer.rewards[: buffer.pos] > 1).all()  # the own ones are 0 and -1


def test_the_method_is_there_only_where_the_environment_has_it() -> None:
    goal = np.zeros(2, np.float32)
    env = wrap(gymnasium.wrappers.TimeLimit(REACH(), 5), Darkness())
    assert env.has_wrapper_attr("compute_reward")
    for look_up in (lambda: env.compute_reward, lambda: env.get_wrapper_attr("compute_reward")):
        assert "own reward" in refusal(lambda look_up=look_up: look_up()(goal, goal, {}))
    outside = gymnasium.wrappers.TimeLimit(env, 3)
    assert "own reward" in refusal(lambda: outside.get_wrapper_attr("compute_reward")(goal, goal, {}))
    assert env.unwrapped.compute_reward(goal, goal, {}) == 0, "the bare environment is what it was"
    clock = wrap(CLOCK(), Times())
    assert not hasattr(clock, "compute_reward")
    assert not clock.has_wrapper_attr("compute_reward")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        clock.nonsense  # noqa: B018
    assert pickle.loads(pickle.dumps(env)).has_wrapper_attr("compute_reward")
    envs = wrap(DummyVecEnv([REACH] * 2), Darkness())
    assert "own reward" in refusal(lambda: envs.get_attr("compute_reward")[0](goal, goal, {}))
    assert "own reward" in refusal(lambda: envs.env_method("compute_reward", goal, goal, {}))
    with pytest.raises(AttributeError):
        wrap(DummyVecEnv([CLOCK]), Times()).get_attr("compute_reward")


def test_methods_of_the_environments_inside() -> None:
    envs = wrap(DummyVecEnv([functools.partial(Clock, "rgb_array", shortest=9)] * COUNT), Moments())
    envs.reset()
    assert "step(actions)" in refusal(lambda: envs.env_method("step", 0))
    for _ in range(2):
        envs.step(np.zeros(COUNT, int))
    envs.env_method("reset", indices=[1])
    assert envs.step(np.zeros(COUNT, int))[1].tolist() == [123, 111, 123], "its window begins anew"
    assert envs.env_method("get_wrapper_attr", "time") == [3, 1, 3]


def test_vec_normalize_goes_outside() -> None:
    """Inside, SB3's off-policy learners would store the reward that it saw before `wrap`."""
    make = functools.partial(DummyVecEnv, [CLOCK] * COUNT)
    for inner in (VecNormalize(make()), VecMonitor(VecNormalize(make(), norm_reward=False))):
        assert "put it outside" in refusal(lambda inner=inner: wrap(inner, Times()))
    learner = DQN("MlpPolicy", VecNormalize(wrap(make(), Times())), **SMALL)
    learner.learn(48)
    assert learner.replay_buffer is not None
    stored = learner.replay_buffer.rewards[: learner.replay_buffer.pos]
    assert set(stored.ravel()) <= set(range(11, 101, 10)), "the model's, as they are before they are normalised"


def test_frame_stacks_and_transposed_pictures() -> None:
    make = functools.partial(DummyVecEnv, [functools.partial(Pictures, "rgb_array")] * COUNT)
    kinds = {
        "stack inside": wrap(VecFrameStack(make(), 2), Times()),
        "stack outside": VecFrameStack(wrap(make(), Times()), 2),
        "transposed inside": wrap(VecTransposeImage(make()), Times()),
        "transposed outside": VecTransposeImage(wrap(make(), Times())),
    }
    for kind, envs in kinds.items():
        envs.reset()
        for _ in range(12):
            _, rewards, _, infos = envs.step(np.zeros(COUNT, int))
            assert rewards.tolist() == [10 * info["env_reward"] + 1 for info in infos], kind


def test_states_are_those_that_wrappers_inside_make() -> None:
    envs = wrap(VecFrameStack(DummyVecEnv([CLOCK] * COUNT), 2), Positions())
    assert envs.reset().shape == (COUNT, 6)
    seen = [envs.step(np.zeros(COUNT, int)) for _ in range(12)]
    assert all((result[1][~result[2]] == 10 * result[0][~result[2]][:, 0] + 1).all() for result in seen)


# Own rewards and infos


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (np.array([2.5]), 2.5),
        (np.array([[2.5]]), 2.5),
        (np.float32(2.5), 2.5),
        (3, 3.0),
        (True, 1.0),
        (torch.tensor([2.5]), 2.5),
    ],
)
def test_own_rewards_that_are_one_number(own: Any, kept: float) -> None:
    for model, paid in ((Times(), 11.0), (GroundTruthReward(2.0), 2 * kept)):
        env = wrap(Paid(own), model)
        env.reset()
        _, reward, _, _, info = env.step(0)
        assert (reward, info["env_reward"]) == (paid, kept)
        assert type(info["env_reward"]) is type(reward) is float


@pytest.mark.parametrize("own", [None, np.array([1.0, 2.0]), [1.0, 2.0], "high", {"a": 1.0}, np.zeros(0)])
def test_own_rewards_that_are_no_number_are_kept_as_they_are(own: Any) -> None:
    env = wrap(Paid(own), Times())
    env.reset()
    _, reward, _, _, info = env.step(0)
    assert reward == 11.0
    assert info["env_reward"] is own
    told = wrap(Paid(own), GroundTruthReward())
    told.reset()
    assert "env_reward" in refusal(lambda: told.step(0))


class Priced(VectorEnv[Any, Any, Any]):
    """Clocks in a vector whose rewards have the form that they are made with."""

    def __init__(self, form: Callable[[np.ndarray], Any]) -> None:
        self.inner = SyncVectorEnv([CLOCK] * COUNT)
        self.form, self.metadata, self.render_mode = form, self.inner.metadata, "rgb_array"
        self.num_envs, self.single_observation_space = COUNT, self.inner.single_observation_space
        self.single_action_space, self.observation_space = self.inner.single_action_space, self.inner.observation_space
        self.action_space = self.inner.action_space

    def reset(self, **given: Any) -> Any:
        return self.inner.reset(**given)

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = self.inner.step(actions)
        return (observations, self.form(rewards), *rest)

    def render(self) -> Any:
        return self.inner.render()


def test_own_rewards_of_vectors() -> None:
    one_each: list[Callable[[np.ndarray], Any]] = [lambda own: own[:, None], list, lambda own: own.astype(np.float16)]
    for form in one_each:
        env = wrap(Priced(form), GroundTruthReward(2.0))
        env.reset(seed=0)
        _, rewards, _, _, infos = env.step(np.zeros(COUNT, int))
        assert rewards.tolist() == [2.0] * COUNT
        assert np.array_equal(infos["env_reward"], form(np.ones(COUNT)))
    many: list[Callable[[np.ndarray], Any]] = [lambda own: np.stack([own, own], 1), lambda own: None]
    for form in many:
        env = wrap(Priced(form), Times())
        env.reset(seed=0)
        for _ in range(12):
            _, rewards, _, _, infos = env.step(np.zeros(COUNT, int))
            assert set(rewards) <= {0, *range(11, 101, 10)}
            assert infos["env_reward"] is None or infos["env_reward"].shape == (COUNT, 2)
        told = wrap(Priced(form), GroundTruthReward())
        told.reset(seed=0)
        assert "env_reward" in refusal(lambda told=told: told.step(np.zeros(COUNT, int)))


@pytest.mark.parametrize("own", [np.array([1.0, 2.0]), "high"])
def test_own_rewards_that_a_vector_cannot_hold(own: Any) -> None:
    """Gymnasium and SB3 fail of them, whatever is put around."""
    make = functools.partial(Paid, own)
    monitored = DummyVecEnv([lambda: Monitor(make())])
    for inner in (
        DummyVecEnv([make]),
        monitored,
        SyncVectorEnv([make]),
        SyncVectorEnv([make], autoreset_mode="SameStep"),
    ):
        env = wrap(inner, Times())
        env.reset()
        assert "around each environment" in refusal(lambda env=env: env.step(np.zeros(1, int)))
    inside = DummyVecEnv([lambda: wrap(make(), Times())])
    inside.reset()
    assert inside.step(np.zeros(1, int))[1].tolist() == [11.0]


def test_an_exception_of_the_environment_is_left_as_it_is() -> None:
    for inner in (DummyVecEnv([Raising]), SyncVectorEnv([Raising])):
        env = wrap(inner, Positions())
        env.reset()
        for _ in range(2):
            env.step(np.zeros(1, int))
        with pytest.raises(ValueError, match="the simulator exploded"):
            env.step(np.zeros(1, int))


def test_infos_that_are_none() -> None:
    env = wrap(Uninformed(None), Times())
    assert env.reset()[1] == {}
    assert env.step(0)[4] == {"env_reward": 1.0}
    for info in ([], "text", 3):
        assert "must be a dictionary" in refusal(lambda info=info: wrap(Uninformed(info), Times()).reset())


@pytest.mark.parametrize("stated", [np.True_, np.array([True]), 1, 1.0, np.array(1.0)])
def test_success_in_every_common_form(stated: Any) -> None:
    class Won(RewardModel):
        needs: frozenset[Need] = frozenset()

        def reward(self, clip: Clip) -> np.ndarray:
            assert clip.success is not None
            return np.asarray(clip.success, np.float32)

    make = functools.partial(Uninformed, {"is_success": stated})
    for inner in (make(), DummyVecEnv([make] * 2)):
        env = wrap(inner, Won())
        env.reset()
        assert np.all(env.step(0 if isinstance(inner, Uninformed) else [0, 0])[1] == 1)
    vector = wrap(SyncVectorEnv([make] * 2), Won())
    vector.reset()
    assert vector.step(np.zeros(2, int))[1].tolist() == [1, 1]


@pytest.mark.parametrize("stated", ["False", float("nan"), {"arm": True}, np.array([True, False])])
def test_success_that_is_no_truth_value_is_refused(stated: Any) -> None:
    make = functools.partial(Uninformed, {"success": stated})
    for inner in (make(), DummyVecEnv([make] * 2), SyncVectorEnv([make] * 2)):
        env = wrap(inner, Times())
        env.reset()
        actions = 0 if isinstance(env, gymnasium.Env) else np.zeros(2, int)
        line = refusal(lambda env=env, actions=actions: env.step(actions))
        assert "'success'" in line
        assert "by a wrapper inside" in line


# Kinds of environments


def test_a_pool_is_a_vector_and_not_one_environment() -> None:
    env = wrap(Pool(), Times())
    assert isinstance(env, VectorEnv)
    env.reset()
    before = np.zeros(3, bool)
    for _ in range(12):
        _, rewards, terminated, _, infos = env.step(np.zeros(3, int))
        assert np.array_equal(rewards, np.where(before, 0, 10 * infos["env_reward"] + 1))
        before = terminated
    fewer = wrap(Pool(told=2), Times())
    fewer.reset()
    assert "has 3 environments and its step() told of 2" in refusal(lambda: fewer.step(np.zeros(3, int)))


def test_many_environments_in_one_are_refused() -> None:
    assert "simulates 4 environments at once" in refusal(lambda: wrap(ManyInOne(), Times()))
    assert "num_envs=1" in refusal(lambda: wrap(gymnasium.wrappers.TimeLimit(ManyInOne(), 5), Times()))
    silent = wrap(ManyInOne(says=False), Times())
    silent.reset()
    assert "terminated of shape [4]" in refusal(lambda: silent.step(0))
    env = wrap(ManyInOne(num_envs=1), Times())
    env.reset()
    assert env.step(0)[1] == 11.0


def test_tensors_of_torch() -> None:
    for model in (Times(), Positions()):
        env = wrap(Tensors(), model)
        env.reset()
        for _ in range(12):
            _, rewards, _, _, infos = env.step(torch.zeros(3))
            assert isinstance(rewards, torch.Tensor)
            assert torch.equal(rewards, 10 * infos["env_reward"] + 1)


def test_each_vector_keeps_its_own_autoreset_mode() -> None:
    """Before Gymnasium 1.3 all vectors of one class of environment share the metadata that say it."""
    first = SyncVectorEnv([CLOCK] * COUNT, autoreset_mode="SameStep")
    SyncVectorEnv([CLOCK] * COUNT, autoreset_mode="NextStep")
    env = wrap(first, Times())
    env.reset(seed=0)
    for _ in range(20):
        _, rewards, _, _, infos = env.step(np.zeros(COUNT, int))
        assert np.array_equal(rewards, 10 * infos["env_reward"] + 1)


def test_observations_that_are_written_into_one_array() -> None:
    class Keeping(RewardModel):
        needs: frozenset[Need] = frozenset({"states"})
        window = 2

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def reward(self, clip: Clip) -> np.ndarray:
            self.seen.append(clip.states)
            return np.asarray(clip.states, np.float32)[..., 0]

    same_step = SyncVectorEnv([Reused], copy=False, autoreset_mode="SameStep")
    for inner in (Reused(), SyncVectorEnv([Reused], copy=False), same_step, DummyVecEnv([Reused])):
        model = Keeping()
        env = wrap(inner, model)
        env.reset()
        for _ in range(3):
            env.step(0 if isinstance(inner, Reused) else np.zeros(1, int))
        assert [states[-1, 0, 0] for states in model.seen] == [1, 2, 3]


def test_actions_that_count_from_one_are_left_and_said() -> None:
    make = functools.partial(FromOne, "rgb_array")
    for inner in (make(), SyncVectorEnv([make]), DummyVecEnv([make])):
        with pytest.warns(UserWarning, match="counts its actions from another number than 0"):
            env = wrap(inner, Times())
        assert env.action_space == inner.action_space


# Words


def test_settings_of_words(encoder_folder: Callable[[str], Path]) -> None:
    encoder = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    frame = np.full((1, 16, 16, 3), 1, np.uint8)

    def first_reward(*goal: Any, **words: Any) -> float:
        env = wrap(CLOCK(), *goal, **words)
        env.reset()
        return float(env.step(0)[1])

    goal, baseline = SENTENCES[0], SENTENCES[2]
    for words in ({}, {"baseline": baseline}, {"baseline": baseline, "alpha": 0.9}):
        expected = ZeroShotReward(goal, encoder=encoder, **words)(frame)[0]  # type: ignore[arg-type]
        assert first_reward(goal, encoder=encoder, **words) == pytest.approx(float(expected), abs=1e-5)
    two = ZeroShotReward(SENTENCES[:2], encoder=encoder)(frame)[0]
    assert first_reward(list(SENTENCES[:2]), encoder=encoder) == pytest.approx(float(two), abs=1e-5)
    assert first_reward(goal, encoder=f"local-dir:{encoder_folder('small')}") == first_reward(goal, encoder=encoder)
    for name, given in {"baseline": baseline, "alpha": 0.5, "encoder": encoder}.items():
        assert f"leave out {name}" in refusal(lambda name=name, given=given: wrap(CLOCK(), Times(), **{name: given}))
    assert "alpha" in refusal(lambda: wrap(CLOCK(), goal, alpha=2.0, baseline=baseline, encoder=encoder))
    assert "sentence" in refusal(lambda: wrap(CLOCK(), [goal, 3], encoder=encoder))
    assert "not list" in refusal(lambda: wrap(CLOCK(), []))


def test_words_that_the_encoder_does_not_know() -> None:
    with pytest.warns(UserWarning, match="does not know the word 'blorp'") as caught:
        wrap(CLOCK(), "blorp vertically upright on top of the cart")
    assert [Path(one.filename).name for one in caught] == [Path(__file__).name], "the place of who called"


# Pictures that show nothing


def warnings_of(env: Any, steps: int = 60) -> list[str]:
    """What is warned of while an environment is played."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        single = isinstance(env, gymnasium.Env)
        env.reset()
        for _ in range(steps):
            result = env.step(0 if single else np.zeros(env.num_envs, int))
            if single and result[2]:
                env.reset()
        env.close()
    return [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


def kinds_of(make: Callable[[], Any]) -> list[Any]:
    return [
        make(),
        SyncVectorEnv([make] * 2),
        SyncVectorEnv([make] * 2, autoreset_mode="SameStep"),
        DummyVecEnv([make] * 2),
        DummyVecEnv([lambda: RecordFrame(make())] * 2),
    ]


def test_pictures_that_show_nothing_are_said_once() -> None:
    for how, expected in (
        ("black", r"all pictures of the first 50 steps are of one colour, (0, 0, 0); look at some"),
        ("still", "all pictures of the first 50 steps are the same, though what is observed changes"),
        ("opening", "all pictures of the first 50 steps stay as they were when their episode began"),
    ):
        for inner in kinds_of(functools.partial(Painted, how)):
            [line] = warnings_of(wrap(inner, Darkness()), 120)
            assert expected in line
            assert "\n" not in line


def test_one_blank_environment_among_others_is_named() -> None:
    envs = DummyVecEnv([CLOCK, Painted, CLOCK])
    [line] = warnings_of(wrap(envs, Darkness()))
    assert "of environment 2 of 3 are of one colour" in line


def test_pictures_that_tell_states_apart_are_not_blamed() -> None:
    for make in (CLOCK, functools.partial(Painted, "still", False), functools.partial(Painted, "flicker")):
        for inner in kinds_of(make):
            assert warnings_of(wrap(inner, Darkness())) == []
    assert warnings_of(wrap(Painted(), Positions())) == [], "nothing looks at them"
    assert warnings_of(wrap(REACH(), Darkness())) == []


def test_pictures_that_an_encoder_cannot_tell_apart(encoder_folder: Callable[[str], Path]) -> None:
    encoder = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    model = ZeroShotReward(SENTENCES[0], encoder=encoder)
    assert warnings_of(wrap(CLOCK(), model)) == []

    class Blurred(ZeroShotReward):
        def embed(self, clip: Clip) -> np.ndarray:
            assert clip.frames is not None
            return super().embed(Clip(clip.first, frames=np.asarray(clip.frames) // 4 * 4))

    [line] = warnings_of(wrap(Painted("flicker"), Blurred(SENTENCES[0], encoder=encoder)))
    assert "in each of the first 50 steps though the pictures differ" in line


# Sizes of pictures


def test_frames_are_as_small_as_the_model_reads_them() -> None:
    """Windows keep the frames of earlier steps."""

    class Coarse(RewardModel):
        window = 3

        def __init__(self) -> None:
            self.sizes: set[tuple[int, ...]] = set()

        def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
            return frames[:, ::8, ::8]

        def reward(self, clip: Clip) -> np.ndarray:
            self.sizes.add(np.shape(clip.frames)[2:])
            return np.asarray(clip.frames, np.float32)[:, :, 0, 0, 0]

    for inner in kinds_of(functools.partial(Clock, "rgb_array", (64, 48))):
        model = Coarse()
        env = wrap(inner, model)
        env.reset()
        single = isinstance(env, gymnasium.Env)
        rewards = [env.step(0 if single else np.zeros(2, int))[1] for _ in range(3)]
        assert np.array_equal(np.reshape(rewards, (3, -1)).T, [[1, 2, 3]] * (1 if single else 2))
        assert model.sizes == {(8, 6, 3)}


def test_smaller_frames_change_no_reward(encoder_folder: Callable[[str], Path]) -> None:
    encoder = load_encoder(f"local-dir:{encoder_folder('small')}", device="cpu")
    model = ZeroShotReward(SENTENCES[0], SENTENCES[2], encoder=encoder)
    env = wrap(gymnasium.make("CartPole-v1", render_mode="rgb_array"), model)
    env.reset(seed=0)
    for _ in range(4):
        reward = env.step(0)[1]
        assert reward == model(np.asarray(env.render())[None])[0]


def test_pictures_whose_ends_the_encoder_never_sees(tmp_path: Path) -> None:
    write_open_clip_encoder(tmp_path / "model", SIZES["small"], {"resize_mode": "shortest"})
    name = f"local-dir:{tmp_path}/model"
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")  # 400x600
    [line] = warnings_of(wrap(env, SENTENCES[0], encoder=name), 10)
    assert "never sees 100 columns at the left and as many at the right" in line
    assert warnings_of(wrap(env, ZeroShotReward(SENTENCES[0], encoder=name, aspect="pad")), 10) == []


# Renderers that fail


@pytest.mark.parametrize(
    ("error", "words", "advice"),
    [
        (NoSuchDisplayException, 'Cannot connect to "None"', "PYGLET_HEADLESS=1"),
        (RuntimeError, "No available video device", "SDL_VIDEODRIVER"),
        (RuntimeError, "an OpenGL platform library has not been loaded into this process", "MUJOCO_GL=egl"),
        (ZeroDivisionError, "division by zero", "ZeroDivisionError: division by zero (odd_wrap.py:"),
    ],
)
def test_a_renderer_that_fails_is_told_with_what_to_do(error: type[Exception], words: str, advice: str) -> None:
    make = functools.partial(Undrawable, error, words)
    for inner in kinds_of(make)[:4]:
        env = wrap(inner, Times())
        env.reset()
        actions = 0 if isinstance(env, gymnasium.Env) else np.zeros(2, int)
        line = refusal(lambda env=env, actions=actions: env.step(actions), RunFailed)
        assert f"{error.__name__}: {words}" in line
        assert advice in line
    assert advice in refusal(RecordFrame(make()).reset, RunFailed)


def test_a_worker_that_dies_is_one_line() -> None:
    envs = SubprocVecEnv([functools.partial(DyingRecorded)], start_method="spawn")
    env = wrap(envs, Times())
    env.reset()
    env.step([0])
    assert "a process of the vector environment died" in refusal(lambda: env.step([0]), RunFailed)


class DyingRecorded(RecordFrame):
    """Its process ends with the second step."""

    def __init__(self) -> None:
        from small_envs import Deadly

        super().__init__(Deadly("rgb_array"))


# Learners


class Dictionaries(Clock):
    """Observes a dictionary with a picture."""

    def __init__(self) -> None:
        super().__init__("rgb_array")
        self.observation_space: Any = spaces.Dict(
            {"state": spaces.Box(0, np.inf, (3,), np.float32), "image": spaces.Box(0, 255, (36, 36, 3), np.uint8)}
        )

    def _state(self) -> Any:
        return {"state": super()._state(), "image": np.full((36, 36, 3), self.time, np.uint8)}


def test_learners_of_dictionaries() -> None:
    for env in (wrap(Dictionaries(), Times()), wrap(DummyVecEnv([Dictionaries] * 2), Times())):
        learner = DQN("MultiInputPolicy", env, learning_starts=32, buffer_size=200, batch_size=8, device="cpu")
        learner.learn(48)
        assert learner.replay_buffer is not None
        assert set(learner.replay_buffer.rewards[: learner.replay_buffer.pos].ravel()) <= set(range(11, 101, 10))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_all_modes_of_gymnasium(kind: str, mode: str) -> None:
    if kind == "sync":
        inner: Any = SyncVectorEnv([CLOCK] * 2, autoreset_mode=mode)
    else:
        make = functools.partial(RecordFrame, CLOCK()) if mode == "SameStep" else CLOCK
        inner = AsyncVectorEnv([make] * 2, autoreset_mode=mode, context="spawn")
    env = wrap(inner, Times())
    env.reset(seed=0)
    before = np.zeros(2, bool)
    for _ in range(15):
        _, rewards, terminated, _, infos = env.step(np.zeros(2, int))
        waits = before & (mode == "NextStep")
        assert np.array_equal(rewards, np.where(waits, 0, 10 * infos["env_reward"] + 1))
        before = terminated
        if mode == "Disabled" and terminated.any():
            env.reset(options={"reset_mask": terminated})
    env.close()


@pytest.mark.parametrize("env_id", ["MiniGrid-Empty-5x5-v0", "CartPole-v1", "MountainCarContinuous-v0"])
def test_ids_that_everybody_knows(env_id: str) -> None:
    if "MiniGrid" in env_id:
        pytest.importorskip("minigrid")
        from minigrid.wrappers import ImgObsWrapper

        env: Any = ImgObsWrapper(gymnasium.make(env_id, render_mode="rgb_array"))
    else:
        env = gymnasium.make(env_id, render_mode="rgb_array")
    wrapped = wrap(env, Darkness())
    algorithm = SAC if "Continuous" in env_id else PPO
    options = SMALL if algorithm is SAC else {"n_steps": 32, "batch_size": 16, "device": "cpu"}
    assert algorithm("MlpPolicy", wrapped, **options).learn(64).num_timesteps >= 64
    wrapped.close()


def test_all_kinds_are_vectors_of_their_kind() -> None:
    assert isinstance(wrap(DummyVecEnv([CLOCK]), Times()), VecEnv)
