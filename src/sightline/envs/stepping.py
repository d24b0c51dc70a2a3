"""One environment, stepped with its frames, and everything that it returns checked.

A single NaN would spoil the replay buffer, and all that is learned from it, so that it is refused where it enters.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import checked_frame, rendered_by, rgb_frame, to_array
from sightline.envs.observations import Misfit, misfit
from sightline.envs.rendering import drawing_advice
from sightline.envs.success import with_success
from sightline.envs.workers import opened_picture
from sightline.errors import BadInput, RunFailed, reason_and_place
from sightline.runs.stopping import asks_to_stop, give_up_if_overdue

Shrink = Callable[[np.ndarray], np.ndarray]
"""Frames uint8[N, H, W, 3] -> smaller ones, uint8[N, h, w, 3], whose size depends on theirs alone."""


@dataclass(frozen=True)
class EnvDescription:
    """What has to be known of an environment to step it.

    Attributes:
        state_space, action_space: spaces of one environment.
        frame_shape: height, width and channels of its frames; None without frames.
        frames_per_second: frame rate of its videos.
    """

    state_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    frame_shape: tuple[int, ...] | None
    frames_per_second: int


@dataclass(frozen=True)
class Step:
    """Result of a step of one environment.

    Attributes:
        state: the observation of the state reached.
        frame: uint8[H, W, 3] of this state; None if it was not drawn, or was written into an array.
        reward: the environment's own; None if it is no finite number, and need not be one.
        terminated, truncated: whether the episode ended, and by which.
        flags: infos that are truth values; and `clean`, a success without a mistake, where the environment counts
            mistakes.
    """

    state: Any
    frame: np.ndarray | None
    reward: float | None
    terminated: bool
    truncated: bool
    flags: dict[str, bool]


class CheckedEnv:
    """An environment whose steps give states and frames, all of them checked.

    Args:
        env: the environment.
        frames: whether it can be asked for frames.
        name: name of the environment in error messages.
        advice: last words of error messages.
        shrink: makes frames smaller as soon as they are taken; None keeps their size.
        needs_reward: whether the environment's own reward is learned from. If not, it need not be a number.

    Raises:
        RunFailed: the environment raised an error, ended the program, rendered anything but frames uint8[H, W, 3] of
            one size, or returned an observation or a reward that is not finite. The message names environment, seed and
            step.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        frames: bool,
        name: str = "the environment",
        advice: str = "fix it",
        shrink: Shrink | None = None,
        needs_reward: bool = True,
    ) -> None:
        self.env = env
        self._name = name
        self._advice = advice
        self._shrink = shrink
        self._needs_reward = needs_reward
        self._seed: int | None = None
        self._step = 0
        self._rendered_shape: tuple[int, ...] | None = None
        """Of frames as they are rendered."""
        self._frame_shape: tuple[int, ...] | None = None
        """Of frames once they are made smaller."""
        self._canvas: np.ndarray | None = None
        if frames:
            # Some renderers need a reset first. Seed 0 does no harm: every episode is reset with its own seed.
            self.reset(0)
            first = rgb_frame(env)
            self._rendered_shape = first.shape
            self._frame_shape = self._shrunk(first).shape

    def description(self) -> EnvDescription:
        """What has to be known to step it."""
        metadata = getattr(self.env, "metadata", None) or {}
        rate = int(metadata.get("render_fps") or 30)
        return EnvDescription(self.env.observation_space, self.env.action_space, self._frame_shape, rate)

    def reset(self, seed: int) -> Any:
        """Begin an episode; returns its first state."""
        self._seed = seed
        self._step = 0
        with self._failing_in("reset()"):
            state, _ = self.env.reset(seed=seed)
        self._check_observation(state)
        return state

    def step(self, action: Any, draws: bool) -> Step:
        """Step, and render the state reached if `draws`."""
        self._step += 1
        with self._failing_in("step()"):
            state, own_reward, terminated, truncated, info = self.env.step(action)
            # Within: an array of several elements has no truth value.
            terminated = bool(terminated)
            truncated = bool(truncated)
        self._check_observation(state)
        if not isinstance(info, Mapping):
            info = {}
        flags = _flags(with_success(info, self._name))
        if "success" in flags and "mistakes" in flags:
            flags["clean"] = flags["success"] and not flags["mistakes"]
        frame = self.frame() if draws else None
        reward = self._checked_reward(own_reward)
        return Step(state, frame, reward, terminated, truncated, flags)

    def draw_into(self, picture: np.ndarray) -> None:
        """Write frames into an array of their shape from now on, and return them no more."""
        self._canvas = picture

    def draw_into_file(self, name: str) -> None:
        """Write frames into a file's memory from now on, and return them no more; see `shared_picture`."""
        assert self._frame_shape is not None, "an environment with frames"
        self._canvas = opened_picture(name, self._frame_shape)

    def frame(self) -> np.ndarray | None:
        """Render the present state: uint8[H, W, 3], of the size that every frame has; None if it is written into an
        array."""
        assert self._rendered_shape is not None, "an environment with frames"
        frame = checked_frame(rendered_by(self.env))
        # A fixed size: encoders and the chunk's buffer are made for the first frame's.
        if frame.shape != self._rendered_shape:
            first_size, size = (f"{shape[0]}x{shape[1]}" for shape in (self._rendered_shape, frame.shape))
            raise self._failure(f"rendered frames of {first_size} first and now one of {size}; keep to one size")
        frame = self._shrunk(frame)
        # Large frames are cheaper written into shared memory than sent through a pipe.
        if self._canvas is None:
            return frame.copy()  # the renderer may draw on one canvas all the time
        self._canvas[:] = frame
        return None

    def _shrunk(self, frame: np.ndarray) -> np.ndarray:
        if self._shrink is None:
            return frame
        smaller: np.ndarray = self._shrink(frame[None])[0]
        return smaller

    def replay(self, seed: int, actions: Sequence[Any], draws: Sequence[bool]) -> Any:
        """Repeat an episode that had not ended.

        Args:
            actions: of its steps.
            draws: whether the state after the reset is rendered, and each that a step led to.

        Returns:
            The state reached; None if this time the episode ended, or failed.
        """
        try:
            state = self.reset(seed)
            if draws[0]:
                self.frame()
            for action, is_drawn in zip(actions, draws[1:], strict=True):
                give_up_if_overdue()
                step = self.step(action, is_drawn)
                if step.terminated or step.truncated:
                    return None
                state = step.state
        except (BadInput, RunFailed):
            return None
        return state

    def close(self) -> None:
        """Close the environment. What goes wrong then does no harm any more."""
        close_env(self.env)

    @contextlib.contextmanager
    def _failing_in(self, method: str) -> Iterator[None]:
        """Say whatever the environment raises in one line."""
        try:
            yield
        except BadInput:
            raise  # it says what to do
        except RunFailed as error:
            if not self._step:
                raise  # our own environments say it in one line already
            raise self._failure(f"failed in {method}: {error}") from error
        except Misfit as error:
            raise self._failure(f"returned an observation {error}") from None
        except BaseException as error:
            if asks_to_stop(error):
                raise
            raise self._failure(f"failed in {method}: {reason_and_place(error)}", drawing_advice(error)) from error

    def _checked_reward(self, reward: Any) -> float | None:
        """The environment's own reward; None if it is no finite number, and is not learned from."""
        number = scalar_reward(reward)
        if number is not None and math.isfinite(number):
            return number
        if not self._needs_reward:
            return None
        if number is None:
            raise self._failure(f"returned a reward that is not a number: {reward!r:.60}", reward_advice(reward))
        value = "NaN" if math.isnan(number) else "infinite"
        raise self._failure(f"returned a reward that is {value}")

    def _check_observation(self, state: Any) -> None:
        wrong = misfit(self.env.observation_space, state)
        if wrong is not None:
            raise self._failure(f"returned an observation {wrong}")

    def _failure(self, what: str, advice: str = "") -> RunFailed:
        when = "the beginning of the episode"
        if self._step:
            when = f"step {self._step} of the episode"
        return RunFailed(f"{self._name} {what} (at {when} with seed {self._seed}){advice or f'; {self._advice}'}")


def close_env(env: Any) -> None:
    """Close an environment; an error, or an end of the program, in its `close` is passed over."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def _flags(info: Mapping[str, Any]) -> dict[str, bool]:
    """The infos that are truth values or other single numbers, as truth values."""
    plain = bool | np.bool_ | int | float | np.number
    # NaN, which is unequal to itself, is neither true nor false.
    return {str(key): bool(value) for key, value in info.items() if isinstance(value, plain) and value == value}


def scalar_reward(reward: Any) -> float | None:
    """An environment's own reward as a number; None if it is none, such as None itself, a vector or text.

    Numbers and arrays of size 1 are taken, of numpy, torch or JAX, on any device. The number may be NaN or infinite.
    """
    numbers = to_array(reward)
    if numbers.size != 1 or numbers.dtype.kind not in "biufO":
        return None
    try:
        return float(numbers.reshape(-1)[0])
    except (TypeError, ValueError, OverflowError):  # an object of another kind, or a whole number beyond all floats
        return None


def reward_advice(reward: Any) -> str:
    """What to do about a reward that is no number, as `"; do this"`; empty but for vectors."""
    numbers = to_array(reward)
    if numbers.size > 1 and numbers.dtype.kind in "biuf":
        return "; mo_gymnasium.wrappers.LinearReward makes one number of a vector"
    return ""
