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

Learners must not find a way around the wrapper to the environment's own reward:

    HerReplayBuffer    asks `compute_reward` for the rewards of other goals: refused when it does
    VecNormalize       inside, off-policy learners of SB3 take the reward that it saw: refused
    env_method         'step' is refused; 'reset' begins an episode for the reward, too
    env.unwrapped      is the bare environment, as with every wrapper
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, overload

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from sightline.envs.frames import checked_frame, is_tensor_of_frames, rendered_by, rgb_frame
from sightline.envs.gymnasium_api import layers_of
from sightline.envs.record_frame import RECORDS_FRAME, Camera, RecordFrame
from sightline.envs.stepping import scalar_reward
from sightline.envs.success import KEYS, stated_success, truth
from sightline.envs.watching import NOISE, PictureWatch
from sightline.errors import BadInput, RunFailed, warn
from sightline.requirements import keep_llvms_apart
from sightline.rewards.arrays import concatenated, to_numpy
from sightline.rewards.base import Clip, OnlineRewardModel, RewardModel, RewardStream, frame_shrinker
from sightline.rewards.scopes import Past

if TYPE_CHECKING:
    from sightline.models.encoder_base import Encoder

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]


@overload
def wrap(
    env: AnyVectorEnv,
    reward: RewardModel | str | Sequence[str],
    *,
    baseline: str | Sequence[str] | None = (),
    alpha: float | None = None,
    encoder: str | Encoder | None = None,
    keep: str = "env_reward",
) -> ModelRewardVectorEnv: ...
@overload
def wrap(
    env: AnyEnv,
    reward: RewardModel | str | Sequence[str],
    *,
    baseline: str | Sequence[str] | None = (),
    alpha: float | None = None,
    encoder: str | Encoder | None = None,
    keep: str = "env_reward",
) -> ModelRewardEnv: ...
@overload
def wrap(
    env: VecEnv,
    reward: RewardModel | str | Sequence[str],
    *,
    baseline: str | Sequence[str] | None = (),
    alpha: float | None = None,
    encoder: str | Encoder | None = None,
    keep: str = "env_reward",
) -> ModelRewardVecEnv: ...
def wrap(
    env: Any,
    reward: Any,
    *,
    baseline: str | Sequence[str] | None = (),
    alpha: float | None = None,
    encoder: str | Encoder | None = None,
    keep: str = "env_reward",
) -> ModelRewardEnv | ModelRewardVectorEnv | ModelRewardVecEnv:
    """An environment whose reward is a reward model's; everything else stays as it is.

    The environment's own reward is kept in the infos. Statistics of episodes that are taken inside (`Monitor`,
    `VecMonitor`, `RecordEpisodeStatistics`) remain those of the environment's own reward, and so does what SB3 reads
    from them (`ep_rew_mean`, `evaluate_policy`); taken outside, they are those of the model's. The environments inside
    a `DummyVecEnv` or a `SyncVectorEnv` that resets in the same step get a wrapper each, which stays there.

    A Python warning tells of words that the encoder does not know, of pictures whose ends it never sees, and, after 50
    steps, of pictures that show nothing, never change, or are all paid the same.

    Args:
        env: a Gymnasium `Env`, a Gymnasium `VectorEnv` or a Stable-Baselines3 `VecEnv`, made with
            `render_mode="rgb_array"` if the model looks at frames.
        reward: a reward model, or for a `ZeroShotReward` a goal in words, or several whose embeddings are averaged.
        baseline: for a goal in words, what the picture shows anyway.
        alpha: for a goal in words, the strength of the regularisation in [0, 1]; default 0.5 with a baseline.
        encoder: for a goal in words, an encoder or its name; default `bundled`.
        keep: key of the infos under which the environment's own reward is kept: a float, or, where it is not one
            number (a vector, None), whatever the environment gave.

    Raises:
        BadInput: another kind of environment, one whose frames or states cannot be had, one that has `VecNormalize`
            inside, another kind of reward, or one that has learned nothing yet, words' settings beside a reward model.
            Later: a key that the infos hold already, infos that are no dictionaries, a learner that goes around the
            reward, such as `HerReplayBuffer`.
        RunFailed: later, when the environment cannot render, or renders something that is no picture, when a worker
            process dies, or when the model fails.
    """
    keep_llvms_apart()  # the environment may have drawn before
    _check_kind(env)
    model = _reward_model(reward, baseline, alpha, encoder)
    _warn_of_actions(env)
    if isinstance(env, VecEnv):
        return ModelRewardVecEnv(env, model, keep)
    # Before `Env`: the classes of envpool are both.
    if isinstance(env, VectorEnv):
        return ModelRewardVectorEnv(env, model, keep)
    return ModelRewardEnv(env, model, keep)


def _check_kind(env: Any) -> None:
    """Refuse what is no environment, or none whose reward can be replaced."""
    if not isinstance(env, gymnasium.Env | VectorEnv | VecEnv):
        raise BadInput(
            "wrap takes a gymnasium.Env, a gymnasium.vector.VectorEnv or a VecEnv of Stable-Baselines3, not "
            f"{_kind(env)}; make one first, as by gymnasium.make(…, render_mode='rgb_array')"
        )
    if isinstance(env, VecEnv):
        layer = env
        while isinstance(layer, VecEnvWrapper):
            if isinstance(layer, VecNormalize):
                raise BadInput(
                    "there is a VecNormalize inside, and off-policy learners of Stable-Baselines3 would take the "
                    "environment's own reward out of it; put it outside: VecNormalize(sightline.wrap(venv, …))"
                )
            layer = layer.venv
    elif not isinstance(env, VectorEnv):
        count = getattr(env.unwrapped, "num_envs", 1)
        if isinstance(count, int) and count > 1:
            raise BadInput(
                f"{_kind(env.unwrapped)} simulates {count} environments at once as if it were one; give wrap a "
                "gymnasium.vector.VectorEnv of it (such as ManiSkillVectorEnv), or make it with num_envs=1"
            )


def _reward_model(
    reward: Any, baseline: str | Sequence[str] | None, alpha: float | None, encoder: str | Encoder | None
) -> RewardModel:
    """The reward model, made from words if it is one."""
    if isinstance(reward, str) or (isinstance(reward, list | tuple) and reward):
        from sightline.rewards.zero_shot import ZeroShotReward  # loads torch and the encoder

        return ZeroShotReward(reward, baseline, alpha=alpha, encoder="bundled" if encoder is None else encoder)
    if not isinstance(reward, RewardModel):
        raise BadInput(f"the reward must be a goal in words or a RewardModel, not {_kind(reward)}")
    for name, value in {"baseline": baseline or None, "alpha": alpha, "encoder": encoder}.items():
        if value is not None:
            raise BadInput(f"{name} goes with a goal in words; give a reward model its own, and leave out {name}")
    if isinstance(reward, OnlineRewardModel):
        raise BadInput(
            f"{_kind(reward)} learns between the chunks of a run, and inside wrap it would never learn; train with it "
            "by 'sightline train'"
        )
    if not reward.ready:
        raise BadInput(
            f"{_kind(reward)} has learned nothing yet, so its rewards mean nothing; fit it first "
            "(sightline.fit_reward), or load one that was (LearnedReward.load)"
        )
    return reward


def _warn_of_actions(env: Any) -> None:
    """Warn of actions that do not count from 0. `wrap` leaves them as they are; no learner asks."""
    space = env.single_action_space if isinstance(env, VectorEnv) else env.action_space
    if np.any(getattr(space, "start", 0)):
        warn(
            f"sightline.wrap: the environment counts its actions from another number than 0 ({space}), most learners "
            "from 0, and wrap does not shift them; put gymnasium.wrappers.TransformAction around each environment"
        )


WATCHED = 50
"""Steps after which pictures and rewards are judged."""


class _Scorer:
    """A reward model that is shown one step of N environments at a time.

    Args:
        model: the reward model.
        envs: N.
        space: of one environment's observations.
        keep: key of the infos for the environment's own reward.
    """

    def __init__(self, model: RewardModel, envs: int, space: gymnasium.Space[Any], keep: str) -> None:
        self._stream = RewardStream(model)
        self._keep = keep
        self.needs_frames = "frames" in model.needs
        self.needs_states = "states" in model.needs
        self.sees_past = model.sees_past
        if self.needs_states and space.shape is None:
            raise BadInput(
                f"{_kind(model)} reads states as arrays, and this environment's observations are of the kind "
                f"{_kind(space)}; put gymnasium.wrappers.FlattenObservation around it, or use a model that reads frames"
            )
        self.first = np.ones(envs, bool)
        self._reset_frames: list[Any] = [None] * envs
        self._lacks_resets = False
        self._states_success = False
        self._reads_tensors = model.reads_tensors
        self._shrink = frame_shrinker(model)
        self._watch = PictureWatch() if self.needs_frames else None
        self._encoder: Any = getattr(model, "encoder", None)
        self._views = getattr(model, "views", 1)
        self._lowest = np.inf
        self._highest = -np.inf

    def begin(self, which: Any = None) -> None:
        """Begin new episodes, in all environments or those of a mask or of indices."""
        self.first[... if which is None else which] = True

    def see_resets(self, frames: Mapping[int, Any]) -> None:
        """Take in the frames of first states, by the numbers of their environments; None where one cannot be had."""
        for i, frame in frames.items():
            seen = is_tensor_of_frames(frame) or frame is None
            self._reset_frames[i] = frame if seen else self._shrunk([checked_frame(frame)])[0]

    def __call__(
        self,
        frames: Sequence[Any] | None,
        states: Any,
        observed: Any,
        own: np.ndarray | None,
        success: np.ndarray | None,
        ended: np.ndarray,
        resetting: np.ndarray | None = None,
    ) -> np.ndarray:
        """float32[N] rewards of a step.

        Args:
            frames, states: of the states reached; None unless the model needs them.
            observed: what the environments observed, in any form.
            own: float32[N], the environments' own rewards; None where they are no numbers.
            success: bool[N], or None if the environment does not say: never, or not in this step, which is then none.
            ended: bool[N], whether an episode ended.
            resetting: bool[N], where the step was no transition but a reset.
        """
        # A reset is no transition: its reward is the environment's own, which is 0.
        reset_reward = own
        if reset_reward is None:
            reset_reward = np.zeros(len(ended), np.float32)
        if self.sees_past and frames is not None and resetting is not None:
            # Such a step leads to the first state of an episode, whose frame it gives.
            self.see_resets({i: frames[i] for i in np.flatnonzero(resetting).tolist()})
        if resetting is not None and resetting.all():
            self.begin()
            return reset_reward.copy()

        # An environment that has stated a success once means by silence that there is none.
        self._states_success |= success is not None
        if success is None and self._states_success:
            success = np.zeros(len(ended), bool)

        # A clip of one step: T = 1.
        pictures: Any = []
        if self._reads_tensors and is_tensor_of_frames(frames):
            pictures = frames  # left on their device
        elif frames is not None:
            pictures = [checked_frame(frame) for frame in frames]
        _check_sizes(pictures)
        arrays: dict[str, Any] = {}
        if len(pictures):
            arrays["frames"] = self._shrunk(pictures)[None]
        if states is not None:
            arrays["states"] = np.asarray(states)[None]
        if own is not None:
            arrays["env_reward"] = own[None]
        if success is not None:
            arrays["success"] = success[None]
        clip = Clip(self.first[None].copy(), ended=ended[None], past=self._past(resetting), **arrays)
        rewards: np.ndarray = self._stream(clip)[0]
        if self._watch is not None and len(pictures):
            self._look_at(self._watch, pictures, observed, rewards)
        self.first = ended.copy()
        if resetting is not None and resetting.any():
            rewards = np.where(resetting, reset_reward, rewards)
            self.first |= resetting
        return rewards

    def _past(self, resetting: np.ndarray | None) -> Past | None:
        """The reset frames of the episodes that begin with a step."""
        if not self.sees_past:
            return None
        begins = self.first if resetting is None else self.first & ~resetting
        envs = [i for i in np.flatnonzero(begins).tolist() if self._reset_frames[i] is not None]
        if len(envs) < begins.sum() and not self._lacks_resets:
            self._lacks_resets = True
            warn(
                "sightline.wrap: this vector environment gives no frames of first states, so that the reward sees "
                "episodes from the first step on; put a sightline.RecordFrame around each environment inside it"
            )
        if not envs:
            return None
        frames = [self._reset_frames[i] for i in envs]
        stacked = concatenated([frame[None] for frame in frames])
        return Past.of_resets(0, np.isin(np.arange(len(self.first)), envs), stacked)

    def _shrunk(self, pictures: Any) -> Any:
        """Frames as large as the model reads them: windows keep those of earlier steps."""
        if is_tensor_of_frames(pictures):
            return pictures if self._shrink is None else self._shrink(pictures)
        if self._shrink is None:
            return np.stack(pictures)
        return np.concatenate([self._shrink(picture[None]) for picture in pictures])

    def _look_at(self, watch: PictureWatch, pictures: Sequence[Any], observed: Any, rewards: np.ndarray) -> None:
        """Warn once, after the first steps, of pictures or rewards from which nothing can be learned."""
        watch.see(pictures, observed, self.first)
        if watch.steps == 1 and hasattr(self._encoder, "cut_off"):
            self._warn_of_cropping(*pictures[0].shape[:2])
        self._lowest = min(self._lowest, float(rewards.min()))
        self._highest = max(self._highest, float(rewards.max()))
        if watch.steps < WATCHED:
            return
        trouble = watch.trouble
        # Only of an encoder: other models may pay the same for long, as a sparse reward does.
        if trouble is None and self._encoder is not None and self._highest - self._lowest <= NOISE:
            trouble = (
                f"the reward was {self._lowest:.4f} in each of the first {watch.steps} steps though the pictures "
                "differ, so the model cannot tell them apart; try other words, a closer camera or a larger encoder"
            )
        if trouble is not None:
            warn(f"sightline.wrap: nothing can be learned from this reward: {trouble}")
        self._watch = None  # and the pictures that it holds

    def _warn_of_cropping(self, height: int, width: int) -> None:
        """Warn of pictures whose ends the encoder never sees."""
        from sightline.models.encoders import warn_of_cropping

        cropped = warn_of_cropping(self._encoder, height, width // self._views, "ZeroShotReward's aspect")
        if cropped is not None:
            warn(f"sightline.wrap: {cropped}")

    def check_free(self, info: Mapping[str, Any]) -> None:
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
        self._scorer = _Scorer(reward, 1, env.observation_space, keep)
        self._keep = keep
        self._scorer.check_render_mode(env.render_mode, "gymnasium.make")
        self._ended = False
        self._autoresets = any(isinstance(layer, Autoreset) for layer in layers_of(env))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._scorer.begin()
        self._ended = False
        observation, info = self.env.reset(seed=seed, options=options)
        if self._scorer.sees_past:
            self._scorer.see_resets({0: rgb_frame(self.env)})
        return observation, _dictionary(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        scorer = self._scorer
        info = _dictionary(info)
        scorer.check_free(info)

        # Everything as of N = 1 environment.
        frames = None
        if scorer.needs_frames:
            frames = [rgb_frame(self.env)]
        states = None
        if scorer.needs_states:
            states = np.array(to_numpy(observation))[None]
        resetting = np.array([self._autoresets and self._ended])
        self._ended = _flag(terminated, "terminated") or _flag(truncated, "truncated")
        ended = np.array([self._ended])
        own = scalar_reward(reward)
        own_rewards = None
        if own is not None:
            own_rewards = np.array([own], np.float32)
        rewards = scorer(frames, states, observation, own_rewards, _success([info]), ended, resetting)

        # Kept as a float, or, where it is not one number, as the environment gave it.
        info[self._keep] = reward if own is None else own
        return observation, float(rewards[0]), terminated, truncated, info

    def __getattr__(self, name: str) -> Any:
        # Reached for what this wrapper does not have. Gymnasium's and SB3's look-ups ask each layer by `hasattr`, so
        # the environment's own method stays hidden.
        if name == "compute_reward" and self.env.has_wrapper_attr(name):
            return _refuse_to_compute
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


class ModelRewardVectorEnv(VectorWrapper):
    """A Gymnasium vector environment whose reward is a reward model's; see `wrap`."""

    # The base class has no type parameters: before Gymnasium 1.3 it could not be subscripted.

    def __init__(self, env: AnyVectorEnv, reward: RewardModel, keep: str = "env_reward") -> None:
        super().__init__(env)
        self._scorer = _Scorer(reward, env.num_envs, env.single_observation_space, keep)
        self._keep = keep
        self._ended = np.zeros(env.num_envs, bool)
        self._mode = _autoreset_mode(env)
        self._recorded = bool(env.metadata.get(RECORDS_FRAME))
        self._cameras: list[Camera] = []
        base = env.unwrapped
        if self._scorer.needs_states and not self._scorer.needs_frames and isinstance(base, SyncVectorEnv):
            base.envs = self._cameras = _with_cameras(base.envs, renders=False)
        if not self._scorer.needs_frames or self._recorded:
            return
        self._scorer.check_render_mode(env.render_mode, "gymnasium.make_vec")
        if self._mode == AutoresetMode.SAME_STEP:
            if not isinstance(base, SyncVectorEnv):
                raise BadInput(
                    "this vector environment resets where its frames cannot be taken before: make it with "
                    "wrappers=[sightline.RecordFrame], or with autoreset_mode NextStep"
                )
            base.envs = self._cameras = _with_cameras(base.envs, resets=self._scorer.sees_past)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")  # taken before the environment removes it from the options
        if mask is None:
            self._scorer.begin()
            self._ended[:] = False
        else:
            mask = to_numpy(mask).astype(bool)
            self._scorer.begin(mask)
            self._ended[mask] = False
        observations, infos = self.env.reset(seed=seed, options=options)
        if self._scorer.sees_past:
            self._see_resets(np.ones(self.num_envs, bool) if mask is None else mask, infos)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with _failures_in_one_line():
            observations, reward, terminated, truncated, infos = self.env.step(actions)
        if isinstance(infos, list | tuple):
            raise BadInput(
                f"this vector environment gives its infos as a {type(infos).__name__}; wrap it without DictInfoToList, "
                "and put DictInfoToList outside"
            )
        scorer = self._scorer
        infos = _dictionary(infos)
        scorer.check_free(infos)
        ended = to_numpy(terminated).astype(bool) | to_numpy(truncated).astype(bool)
        if ended.shape != (self.num_envs,):
            raise BadInput(
                f"this vector environment has {self.num_envs} environments and its step() told of {ended.size}; "
                "wrap needs all of them in every step (envpool: make it with batch_size=num_envs)"
            )
        states = None
        if scorer.needs_states:
            # Where an episode ended and was reset, the state reached is in the infos.
            states = np.array(to_numpy(observations))
            if self._mode == AutoresetMode.SAME_STEP:
                for i in np.flatnonzero(ended):
                    states[i] = to_numpy(_final_observations(infos)[i])
        own = _numbers(reward, self.num_envs)
        resetting = self._ended if self._mode == AutoresetMode.NEXT_STEP else None
        frames = self._frames_of(infos) if scorer.needs_frames else None
        success = _vector_success(infos, self.num_envs)
        rewards = scorer(frames, states, observations, own, success, ended, resetting)
        if scorer.sees_past and self._mode == AutoresetMode.SAME_STEP:
            self._see_resets(ended, infos)
        self._ended = ended
        # A vector's infos hold beside each key who has it.
        infos[self._keep] = _copied(reward)
        infos[f"_{self._keep}"] = np.ones(self.num_envs, bool)
        return observations, _in_form_of(reward, rewards), terminated, truncated, infos

    def _see_resets(self, begins: np.ndarray, infos: Mapping[str, Any]) -> None:
        """Show the model the first states of the episodes that begin, bool[N]."""
        if self._cameras:
            frames: Any = [camera.reset_frame for camera in self._cameras]
        else:
            frames = infos.get("frame") if self._recorded else rendered_by(self.env)
        if frames is None:
            frames = [None] * self.num_envs
        self._scorer.see_resets({i: frames[i] for i in np.flatnonzero(begins).tolist()})

    def _frames_of(self, infos: Mapping[str, Any]) -> Any:
        """A frame of each environment's state."""
        if self._cameras:
            return [camera.frame for camera in self._cameras]
        frames = _reached(infos, "frame") if self._recorded else rendered_by(self.env)
        everywhere = not self._recorded or np.all(infos.get("_frame", True))
        if frames is None or len(frames) != self.num_envs or not everywhere:
            raise BadInput(
                f"this vector environment gave no frame for each of its {self.num_envs} environments; its render() "
                "must return that many, or each environment must be in a sightline.RecordFrame"
            )
        return frames


class ModelRewardVecEnv(VecEnvWrapper):
    """A Stable-Baselines3 vector environment whose reward is a reward model's; see `wrap`."""

    def __init__(self, venv: VecEnv, reward: RewardModel, keep: str = "env_reward") -> None:
        super().__init__(venv)
        self.metadata = venv.metadata  # which SB3's own wrappers forget
        self._scorer = _Scorer(reward, venv.num_envs, venv.observation_space, keep)
        self._keep = keep
        self._cameras: list[Camera] = []
        base = venv.unwrapped
        if self._scorer.needs_states and not self._scorer.needs_frames and isinstance(base, DummyVecEnv):
            base.envs = self._cameras = _with_cameras(base.envs, renders=False)
        if not self._scorer.needs_frames or not isinstance(base, DummyVecEnv | SubprocVecEnv):
            return
        self._scorer.check_render_mode(venv.render_mode, "gymnasium.make")
        if all(base.env_is_wrapped(RecordFrame)):
            return
        if isinstance(base, SubprocVecEnv):
            raise BadInput(_NO_FRAME)
        base.envs = self._cameras = _with_cameras(base.envs, resets=self._scorer.sees_past)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        if self._cameras:
            # A DummyVecEnv sets attributes of what it holds, which would be those of the cameras.
            for i in self._get_indices(indices):
                setattr(self._cameras[i].env, attr_name, value)
        else:
            super().set_attr(attr_name, value, indices)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        # SB3's environments are asked for methods in this way, too.
        if attr_name == "compute_reward" and self.venv.has_attr(attr_name):
            return [_refuse_to_compute for _ in self._get_indices(indices)]
        return super().get_attr(attr_name, indices)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        if method_name == "compute_reward":
            _refuse_to_compute()
        if method_name == "step":
            raise BadInput("env_method('step') would step around the reward of sightline.wrap; call step(actions)")
        results = super().env_method(method_name, *method_args, indices=indices, **method_kwargs)
        if method_name == "reset":
            which = list(self._get_indices(indices))
            self._scorer.begin(which)
            self._see_resets(which, [info for _, info in results])
        return results

    def reset(self) -> Any:
        self._scorer.begin()
        with _failures_in_one_line():
            observations = self.venv.reset()
        self._see_resets(range(self.num_envs), self._reset_infos())
        return observations

    def _reset_infos(self) -> list[Any]:
        """What the last reset of each environment told; nothing where that is not kept."""
        return list(getattr(self.venv.unwrapped, "reset_infos", None) or [{}] * self.num_envs)

    def _see_resets(self, which: Sequence[int], infos: Sequence[Any]) -> None:
        """Show the model the first states of episodes that begin in some environments, whose resets told `infos`."""
        if not self._scorer.sees_past:
            return
        if self._cameras:
            frames = [self._cameras[i].reset_frame for i in which]
        else:
            frames = [info.get("frame") if isinstance(info, Mapping) else None for info in infos]
        self._scorer.see_resets(dict(zip(which, frames, strict=True)))

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        with _failures_in_one_line():
            observations, reward, dones, infos = self.venv.step_wait()
        scorer = self._scorer
        infos = [_dictionary(info) for info in infos]
        scorer.check_free(infos[0])
        ended = np.asarray(dones, bool)
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
        own = _numbers(reward, self.num_envs)
        rewards = scorer(frames, states, observations, own, _success(infos), ended)
        # Kept as floats, or, where they are not one number each, as the environments gave them.
        if own is not None:
            reward = own.tolist()
        elif reward is None:
            reward = [None] * self.num_envs
        for info, own_reward in zip(infos, reward, strict=True):
            info[self._keep] = own_reward
        return observations, rewards, dones, infos

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


_MAKE_IT_TRUE = "make it True or False by a wrapper inside"


def _refuse_to_compute(*_: Any, **__: Any) -> NoReturn:
    raise BadInput(
        "compute_reward() would give the environment's own reward, not that of sightline.wrap, which is read from "
        "pictures or states and knows no other goals; learn without HerReplayBuffer (SB3: leave out "
        "replay_buffer_class, and dictionaries go into a DictReplayBuffer)"
    )


@contextmanager
def _failures_in_one_line() -> Iterator[None]:
    """Report failures of vector environments in one line, unless they are an environment's own exception."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise RunFailed(
            "a process of the vector environment died; what it printed above says why (if nothing: out of memory, or a "
            "fault in the simulator)"
        ) from error
    except (TypeError, ValueError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        # Such as `self._rewards[i] = …` or `float(reward)`, as the last line of the traceback.
        is_of_vector = re.search(r"\b(gymnasium.(vector|wrappers)|stable_baselines3)\b", place.filename)
        if is_of_vector and "rew" in (place.line or ""):
            raise BadInput(
                "the environment's own reward is not one number, which vector environments need; put sightline.wrap "
                "around each environment, inside the vector, or a wrapper that makes it one "
                "(mo_gymnasium.wrappers.LinearReward)"
            ) from error
        raise


def _with_cameras(envs: Sequence[AnyEnv], renders: bool = True, resets: bool = False) -> list[Any]:
    return [env if isinstance(env, Camera) else Camera(env, renders, resets) for env in envs]


def _autoreset_mode(env: AnyVectorEnv) -> AutoresetMode:
    """When a vector environment resets what ended.

    Raises:
        BadInput: it does not say.
    """
    # Gymnasium's own say it by an attribute as well. Before 1.3 their metadata are those of the class of environment,
    # in which every vector of it writes its own mode.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise BadInput(
            "this vector environment does not say when it resets: set its metadata['autoreset_mode'] to one of "
            "gymnasium.vector.AutoresetMode"
        ) from error


def _dictionary(info: Any) -> dict[str, Any]:
    """The infos of a step; None is taken for none."""
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise BadInput(f"the environment gave its infos as {_kind(info)}; they must be a dictionary")
    return dict(info)


def _flag(value: Any, name: str) -> bool:
    """Whether one environment's episode ended."""
    values = to_numpy(value)
    if values.size != 1:
        raise BadInput(
            f"the environment's step() returned {name} of shape {list(values.shape)}, so it simulates several at once; "
            "give wrap a gymnasium.vector.VectorEnv of it, or make it with one"
        )
    return bool(values.item())


def _numbers(own: Any, envs: int) -> np.ndarray | None:
    """float32[N] of the own rewards of N environments; None if they are not one number each."""
    try:
        values = to_numpy(own)
    except (TypeError, ValueError, RuntimeError):
        return None
    if values.dtype.kind not in "biuf" or values.size != envs:
        return None
    return values.reshape(envs).astype(np.float32)


def _copied(own: Any) -> Any:
    return np.array(own) if isinstance(own, np.ndarray | list | tuple) else own


def _in_form_of(own: Any, rewards: np.ndarray) -> Any:
    """Rewards in the form of the environment's own: a tensor of torch on the same device, or numpy."""
    return own.new_tensor(rewards) if hasattr(own, "new_tensor") else rewards


def _final_observations(infos: Mapping[str, Any]) -> Any:
    """Last observations of the episodes that ended."""
    for name in ("final_obs", "final_observation"):
        if infos.get(name) is not None:
            return infos[name]
    raise BadInput(
        "this vector environment resets in the same step, and its infos hold no 'final_obs', so the last state of an "
        "episode cannot be rewarded; make it with autoreset_mode NextStep"
    )


def _reached(infos: Mapping[str, Any], name: str) -> np.ndarray | None:
    """[N, …] of a key of vector infos for the states reached; None if no environment states it.

    Where an episode ended and was reset in the same step, `final_info` tells of the state reached.
    """
    now = infos.get(name)
    final = infos.get("final_info")
    if final is None:
        final = {}
    elif not isinstance(final, Mapping):
        # A dictionary of each environment, as vectors other than Gymnasium's have it.
        values_of_envs = [info.get(name) if isinstance(info, Mapping) else None for info in final]
        mask = np.array([value is not None for value in values_of_envs])
        final = {}
        if mask.any():
            final = {name: np.array(values_of_envs), f"_{name}": mask}
    if name not in final:
        if now is None:
            return None
        return to_numpy(now)
    values = np.array(to_numpy(final[name]))
    mask = final.get(f"_{name}", infos.get("_final_info"))
    if now is not None and mask is not None:
        now_only = ~to_numpy(mask).astype(bool)
        values[now_only] = to_numpy(now)[now_only]
    return values


def _vector_success(infos: Mapping[str, Any], envs: int) -> np.ndarray | None:
    """bool[N] from vector infos; None if no environment states it."""
    for name in KEYS:
        values = _reached(infos, name)
        if values is None:
            continue
        if values.size != envs:
            raise BadInput(
                f"the infos hold '{name}' of shape {list(values.shape)}, where [{envs}] is needed; {_MAKE_IT_TRUE}"
            )
        values = values.reshape(envs)
        if values.dtype == bool:
            return values
        key = f"the info '{name}'"
        return np.array([value is not None and truth(value, key, _MAKE_IT_TRUE) for value in values])
    return None


def _success(infos: Sequence[dict[str, Any]]) -> np.ndarray | None:
    """bool[N] from the infos of N environments, under either of its two common names; None if none states it."""
    successes = [stated_success(info, advice=_MAKE_IT_TRUE) for info in infos]
    if all(success is None for success in successes):
        return None
    return np.array([bool(success) for success in successes])


def _check_sizes(pictures: Sequence[Any]) -> None:
    """Refuse pictures that make no array."""
    shapes = {picture.shape for picture in pictures}
    if len(shapes) > 1:
        sizes = ", ".join(f"{height}x{width}" for height, width, _ in sorted(shapes))
        raise BadInput(f"the environments rendered frames of different sizes ({sizes}); keep to one size")


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__
