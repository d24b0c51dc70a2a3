"""Wrap any environment with the reward of a reward model, for learners that know nothing of Sightline.

    env = wrap(gymnasium.make("CartPole-v1", render_mode="rgb_array"), "a pole standing upright on a cart")

A Gymnasium `Env`, a Gymnasium `VectorEnv` or a Stable-Baselines3 `VecEnv` goes in, and the same kind comes out. The
reward of a step is that of the state that it led to, so its frame must be taken before any automatic reset:

    Env                                        render() after the step
    VectorEnv, NEXT_STEP or DISABLED           render() after the step: an ended episode is reset later
    SyncVectorEnv, SAME_STEP; DummyVecEnv      a `Camera` around each environment renders inside the step
    all others                                 `RecordFrame` around each environment, in the workers: info["frame"]

Under NEXT_STEP the step after an episode's end is the reset of the next. It is no transition, so its reward is the
environment's own 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, overload

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper

from sightline.envs.frames import checked_frame, rgb_frame
from sightline.envs.record_frame import RECORDS_FRAME, Camera, RecordFrame
from sightline.envs.success import stated_success
from sightline.errors import BadInput
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]


@overload
def wrap(
    env: AnyEnv, reward: RewardModel | str, *, baseline: str | Sequence[str] | None = (), keep: str = "env_reward"
) -> ModelRewardEnv: ...
@overload
def wrap(
    env: AnyVectorEnv, reward: RewardModel | str, *, baseline: str | Sequence[str] | None = (), keep: str = "env_reward"
) -> ModelRewardVectorEnv: ...
@overload
def wrap(
    env: VecEnv, reward: RewardModel | str, *, baseline: str | Sequence[str] | None = (), keep: str = "env_reward"
) -> ModelRewardVecEnv: ...
def wrap(
    env: Any, reward: Any, *, baseline: str | Sequence[str] | None = (), keep: str = "env_reward"
) -> ModelRewardEnv | ModelRewardVectorEnv | ModelRewardVecEnv:
    """An environment whose reward is a reward model's; everything else stays as it is.

    The environment's own reward is kept in the infos. Statistics of episodes that are taken inside (`Monitor`,
    `VecMonitor`, `RecordEpisodeStatistics`) remain those of the environment's own reward; taken outside, they are those
    of the model's. The environments inside a `DummyVecEnv` or a `SyncVectorEnv` that resets in the same step get a
    wrapper each, which stays there.

    Args:
        env: a Gymnasium `Env`, a Gymnasium `VectorEnv` or a Stable-Baselines3 `VecEnv`, made with
            `render_mode="rgb_array"` if the model looks at frames.
        reward: a reward model, or a goal in words for a `ZeroShotReward`.
        baseline: for a goal in words, what the picture shows anyway.
        keep: key of the infos under which the environment's own reward is kept.

    Raises:
        BadInput: another kind of environment, one whose frames or states cannot be had, another kind of reward, or one
            that has learned nothing yet, a baseline beside a reward model, a key that the infos hold already.
        RunFailed: later, when the environment renders something else than uint8[H, W, 3], or the model fails.
    """
    if not isinstance(env, gymnasium.Env | VectorEnv | VecEnv):
        raise BadInput(
            "wrap takes a gymnasium.Env, a gymnasium.vector.VectorEnv or a VecEnv of Stable-Baselines3, not "
            f"{_kind(env)}; make one first, as by gymnasium.make(…, render_mode='rgb_array')"
        )
    if isinstance(reward, str):
        from sightline.rewards.zero_shot import ZeroShotReward  # loads torch and the encoder

        reward = ZeroShotReward(reward, baseline)
    elif not isinstance(reward, RewardModel):
        raise BadInput(f"the reward must be a goal in words or a RewardModel, not {_kind(reward)}")
    elif baseline:
        raise BadInput("a baseline goes with a goal in words; give a reward model its own, and leave out baseline")
    elif isinstance(reward, OnlineRewardModel):
        raise BadInput(
            f"{_kind(reward)} learns between the chunks of a run, and inside wrap it would never learn; train with it "
            "by 'sightline train'"
        )
    elif not reward.ready:
        raise BadInput(
            f"{_kind(reward)} has learned nothing yet, so its rewards mean nothing; fit it first "
            "(sightline.fit_reward), or load one that was (LearnedReward.load)"
        )
    if isinstance(env, gymnasium.Env):
        return ModelRewardEnv(env, reward, keep)
    return (
        ModelRewardVectorEnv(env, reward, keep) if isinstance(env, VectorEnv) else ModelRewardVecEnv(env, reward, keep)
    )


class _Scorer:
    """A reward model that is shown one step of N environments at a time.

    Args:
        model: the reward model.
        envs: N.
        space: of one environment's observations.
        keep: key of the infos for the environment's own reward.
    """

    def __init__(self, model: RewardModel, envs: int, space: gymnasium.Space[Any], keep: str) -> None:
        self._stream, self._keep = RewardStream(model), keep
        self.needs_frames, self.needs_states = "frames" in model.needs, "states" in model.needs
        if self.needs_states and space.shape is None:
            raise BadInput(
                f"{_kind(model)} reads states as arrays, and this environment's observations are of the kind "
                f"{_kind(space)}; put gymnasium.wrappers.FlattenObservation around it, or use a model that reads frames"
            )
        self.first = np.ones(envs, bool)
        self._states_success = False

    def begin(self, which: np.ndarray | None = None) -> None:
        """Begin new episodes, in all environments or those of a mask."""
        self.first[... if which is None else which] = True

    def __call__(
        self,
        frames: Sequence[Any] | None,
        states: Any,
        env_reward: Any,
        success: np.ndarray | None,
        ended: np.ndarray,
        resetting: np.ndarray | None = None,
    ) -> np.ndarray:
        """float32[N] rewards of a step.

        Args:
            frames, states: of the states reached; None unless the model needs them.
            env_reward: [N], the environment's own.
            success: bool[N], or None if the environment does not say: never, or not in this step, which is then none.
            ended: bool[N], whether an episode ended.
            resetting: bool[N], where the step was no transition but a reset.
        """
        own = np.asarray(env_reward, np.float32)
        if resetting is not None and resetting.all():
            self.begin()
            return own.copy()
        self._states_success |= success is not None
        if success is None and self._states_success:
            success = np.zeros(len(own), bool)
        clip = Clip(
            self.first[None].copy(),
            frames=None if frames is None else _stacked(frames)[None],
            states=None if states is None else np.asarray(states)[None],
            env_reward=own[None],
            success=None if success is None else success[None],
        )
        rewards: np.ndarray = self._stream(clip)[0]
        self.first = ended.copy()
        if resetting is not None and resetting.any():
            rewards = np.where(resetting, own, rewards)
            self.first |= resetting
        return rewards

    def check_free(self, info: dict[str, Any]) -> None:
        """Refuse infos that hold the key for the environment's own reward already."""
        if self._keep in info:
            raise BadInput(
                f"the infos hold '{self._keep}' already (is the environment wrapped twice?); name another key for the "
                "environment's own reward: wrap(…, keep='…')"
            )

    def check_render_mode(self, mode: Any, make: str) -> None:
        """Refuse environments that give no pictures to a model that needs them."""
        if self.needs_frames and mode != "rgb_array":
            raise BadInput(
                f"the reward is seen in frames, and this environment has render_mode={mode!r}: make it by "
                f"{make}(…, render_mode='rgb_array')"
            )


class ModelRewardEnv(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """An environment whose reward is a reward model's; see `wrap`."""

    def __init__(self, env: AnyEnv, reward: RewardModel, keep: str = "env_reward") -> None:
        # For `env.spec.make()`; the copy that Gymnasium would keep is of the whole encoder.
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, reward=reward, keep=keep)
        gymnasium.Wrapper.__init__(self, env)
        self._scorer, self._keep = _Scorer(reward, 1, env.observation_space, keep), keep
        self._scorer.check_render_mode(env.render_mode, "gymnasium.make")
        self._ended = False
        layers = [env]
        while isinstance(layers[-1], gymnasium.Wrapper):
            layers.append(layers[-1].env)
        self._autoresets = any(isinstance(layer, Autoreset) for layer in layers)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._scorer.begin()
        self._ended = False
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, own, terminated, truncated, info = self.env.step(action)
        scorer = self._scorer
        scorer.check_free(info)
        frames = [rgb_frame(self.env)] if scorer.needs_frames else None
        states = np.asarray(observation)[None] if scorer.needs_states else None
        resetting = np.array([self._autoresets and self._ended])
        self._ended = bool(terminated or truncated)
        rewards = scorer(frames, states, [own], _success([info]), np.array([self._ended]), resetting)
        return observation, float(rewards[0]), terminated, truncated, {**info, self._keep: float(own)}


class ModelRewardVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """A Gymnasium vector environment whose reward is a reward model's; see `wrap`."""

    def __init__(self, env: AnyVectorEnv, reward: RewardModel, keep: str = "env_reward") -> None:
        super().__init__(env)
        self._scorer, self._keep = _Scorer(reward, env.num_envs, env.single_observation_space, keep), keep
        self._ended = np.zeros(env.num_envs, bool)
        try:
            self._mode = AutoresetMode(env.metadata.get("autoreset_mode"))
        except ValueError as error:
            raise BadInput(
                "this vector environment does not say when it resets: set its metadata['autoreset_mode'] to one of "
                "gymnasium.vector.AutoresetMode"
            ) from error
        self._recorded = bool(env.metadata.get(RECORDS_FRAME))
        self._cameras: list[Camera] = []
        if not self._scorer.needs_frames or self._recorded:
            return
        self._scorer.check_render_mode(env.render_mode, "gymnasium.make_vec")
        if self._mode == AutoresetMode.SAME_STEP:
            base = env.unwrapped
            if not isinstance(base, SyncVectorEnv):
                raise BadInput(
                    "this vector environment resets where its frames cannot be taken before: make it with "
                    "wrappers=[sightline.RecordFrame], or with autoreset_mode NextStep"
                )
            base.envs = self._cameras = _with_cameras(base.envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")  # taken before the environment removes it from the options
        self._scorer.begin(mask)
        self._ended[... if mask is None else mask] = False
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, Any, Any, dict[str, Any]]:
        observations, own, terminated, truncated, infos = self.env.step(actions)
        if not isinstance(infos, dict):
            raise BadInput(
                f"this vector environment gives its infos as a {type(infos).__name__}; wrap it without DictInfoToList, "
                "and put DictInfoToList outside"
            )
        scorer = self._scorer
        scorer.check_free(infos)
        frames: Any = None
        if scorer.needs_frames:
            if self._cameras:
                frames = [camera.frame for camera in self._cameras]
            else:
                frames = _reached(infos, "frame") if self._recorded else self.env.render()
            everywhere = not self._recorded or np.all(infos.get("_frame", True))
            if frames is None or len(frames) != self.num_envs or not everywhere:
                raise BadInput(
                    f"this vector environment gave no frame for each of its {self.num_envs} environments; its render() "
                    "must return that many, or each environment must be in a sightline.RecordFrame"
                )
        ended = np.logical_or(terminated, truncated)
        states = None
        if scorer.needs_states:
            states = observations
            if self._mode == AutoresetMode.SAME_STEP and ended.any():
                states = np.array(observations)
                for i in np.flatnonzero(ended):
                    states[i] = infos["final_obs"][i]
        success = _reached(infos, "success")
        success = _reached(infos, "is_success") if success is None else success
        resetting = self._ended if self._mode == AutoresetMode.NEXT_STEP else None
        rewards = scorer(frames, states, own, None if success is None else success.astype(bool), ended, resetting)
        self._ended = ended
        kept = {self._keep: np.array(own), f"_{self._keep}": np.ones(self.num_envs, bool)}
        return observations, rewards, terminated, truncated, {**infos, **kept}


class ModelRewardVecEnv(VecEnvWrapper):
    """A Stable-Baselines3 vector environment whose reward is a reward model's; see `wrap`."""

    def __init__(self, venv: VecEnv, reward: RewardModel, keep: str = "env_reward") -> None:
        super().__init__(venv)
        self.metadata = venv.metadata  # which SB3's own wrappers forget
        self._scorer, self._keep = _Scorer(reward, venv.num_envs, venv.observation_space, keep), keep
        self._cameras: list[Camera] = []
        base = venv.unwrapped
        if not self._scorer.needs_frames or not isinstance(base, DummyVecEnv | SubprocVecEnv):
            return
        self._scorer.check_render_mode(venv.render_mode, "gymnasium.make")
        if all(base.env_is_wrapped(RecordFrame)):
            return
        if isinstance(base, SubprocVecEnv):
            raise BadInput(_NO_FRAME)
        base.envs = self._cameras = _with_cameras(base.envs)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        if self._cameras:
            # A DummyVecEnv sets attributes of what it holds, which would be those of the cameras.
            for i in self._get_indices(indices):
                setattr(self._cameras[i].env, attr_name, value)
        else:
            super().set_attr(attr_name, value, indices)

    def reset(self) -> Any:
        self._scorer.begin()
        return self.venv.reset()

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observations, own, ended, infos = self.venv.step_wait()
        scorer = self._scorer
        scorer.check_free(infos[0])
        frames = None
        if scorer.needs_frames:
            if not self._cameras and any("frame" not in info for info in infos):
                raise BadInput(_NO_FRAME)
            frames = [camera.frame for camera in self._cameras] or [info["frame"] for info in infos]
        states = None
        if scorer.needs_states:
            states = np.array(observations)
            for i in np.flatnonzero(ended):
                states[i] = infos[i]["terminal_observation"]
        rewards = scorer(frames, states, own, _success(infos), np.asarray(ended, bool))
        kept = [{**info, self._keep: float(reward)} for info, reward in zip(infos, own, strict=True)]
        return observations, rewards, ended, kept

    def __getstate__(self) -> dict[str, Any]:
        # SB3 keeps all members of the class beside its instances, and some of those cannot be pickled.
        return {name: value for name, value in self.__dict__.items() if name != "class_attributes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.class_attributes = dict(inspect.getmembers(type(self)))


_NO_FRAME = (
    "this vector environment resets where its frames cannot be taken before: put a sightline.RecordFrame around each "
    "environment inside it, as by make_vec_env(…, wrapper_class=sightline.RecordFrame)"
)


def _with_cameras(envs: Sequence[AnyEnv]) -> list[Any]:
    return [env if isinstance(env, Camera) else Camera(env) for env in envs]


def _reached(infos: dict[str, Any], name: str) -> np.ndarray | None:
    """[N, …] of a key of vector infos for the states reached; None if no environment states it.

    Where an episode ended and was reset in the same step, `final_info` tells of the state reached.
    """
    now, final = infos.get(name), infos.get("final_info", {})
    if name not in final:
        return None if now is None else np.asarray(now)
    values = np.array(final[name])
    if now is not None:
        now_only = ~np.asarray(final[f"_{name}"], bool)
        values[now_only] = np.asarray(now)[now_only]
    return values


def _success(infos: Sequence[dict[str, Any]]) -> np.ndarray | None:
    """bool[N] from the infos of N environments, under either of its two common names; None if none states it."""
    stated = [stated_success(info) for info in infos]
    return None if all(one is None for one in stated) else np.array([bool(one) for one in stated])


def _stacked(frames: Sequence[Any]) -> np.ndarray:
    checked = [checked_frame(frame) for frame in frames]
    shapes = {frame.shape for frame in checked}
    if len(shapes) > 1:
        sizes = ", ".join(f"{height}x{width}" for height, width, _ in sorted(shapes))
        raise BadInput(f"the environments rendered frames of different sizes ({sizes}); keep to one size")
    return np.stack(checked)


def _kind(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__
