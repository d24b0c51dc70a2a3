"""Making an environment from its name: one of ours, any Gymnasium id, or a user's own as `module:attribute`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from sightline.envs.constructing import construct, creator_of, parameters_of, size_options
from sightline.envs.frames import Size, checked_frame
from sightline.envs.gymnasium_api import GymnasiumAPI, check_environment, check_reset_signature, layers_of
from sightline.envs.naming import UnknownEnvironment, find_environment, spec_of
from sightline.envs.native_vector import NativeVector, native_vector_class
from sightline.envs.rendering import prepare_rendering
from sightline.envs.spaces import adapted_to_learners
from sightline.envs.success import truth
from sightline.envs.tasks import StatesSuccess
from sightline.errors import BadInput, RunFailed, reason_of

DEFAULT_EPISODE_STEPS = 1000
"""Time limit (steps) of environments that define none; without one an evaluation might never end."""


@dataclass(frozen=True)
class EnvMaker:
    """Environment factory without arguments; it can be pickled, so worker processes can use it.

    Attributes:
        env_id: a Gymnasium id; `module:id` for an id that a module registers; or `module:attribute` of a class or
            function that returns an environment.
        options: keyword arguments for the environment.
        episode_steps: time limit in steps, instead of the environment's own.
        frame_size: requested height and width of frames in pixels, for constructors that can be told
            (`sightline.envs.constructing.size_options`); any other environment renders at its own size.
        render: make an environment that renders frames.
        rescale: scale observations to [-1, 1] by the bounds of their space.
        observation_keys: parts of a dictionary of observations that a policy reads; none: all.
        enumerates: whether several choices become one among all combinations, for learners that make one choice only.
        also_known: further names to suggest when `env_id` is unknown.
        success_from: what says that a state is a success (`sightline.envs.tasks.StatesSuccess`); None: the
            environment's infos `success` and `is_success`.
        build: class or function that makes the environment; None: `env_id` says where it is.
        task: name by which the user knows the environment; empty where that is `env_id`.
    """

    env_id: str
    options: dict[str, Any] = field(default_factory=dict)
    episode_steps: int | None = None
    frame_size: Size | None = None
    render: bool = True
    rescale: bool = False
    also_known: tuple[str, ...] = ()
    success_from: StatesSuccess | None = None
    build: Callable[..., gymnasium.Env[Any, Any]] | None = None
    observation_keys: tuple[str, ...] = ()
    enumerates: bool = False
    task: str = ""

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment with a time limit and with spaces that learners support.

        Observations are as `sightline.envs.spaces` says: a `Box`, or a dictionary where there are pictures beside
        numbers; of a game it is the picture. Actions are as `sightline.envs.actions` says.

        Raises:
            BadInput: unknown environment, one without `rgb_array` frames, wrong options, unsupported observation or
                action space, a `reset` that takes no seed.
            RunFailed: the environment cannot be built on this machine (no OpenGL, a missing package).
        """
        env = self.as_it_is()
        try:
            return adapted_to_learners(env, self.env_id, self.rescale, self.observation_keys, self.enumerates)
        except BadInput:
            env.close()
            raise

    def as_it_is(self) -> gymnasium.Env[Any, Any]:
        """Make one environment with a time limit, with its own observation and action space.

        Raises:
            BadInput, RunFailed: as for a call.
        """
        # Our own lines say what Gymnasium would warn of, and stderr is for them alone.
        gymnasium.logger.min_level = gymnasium.logger.ERROR + 1
        prepare_rendering(self.render)
        source: Any = self.build
        if source is None:
            source = self._found()
        env = construct(source, self.env_id, self.options, self.render, self.frame_size)
        # Checked before anything is wrapped: errors name the user's own class.
        check_environment(env, self.env_id)
        check_reset_signature(env, self.env_id)
        if not isinstance(env.metadata, Mapping):
            env.unwrapped.metadata = {}  # some leave it at None, which no vector environment bears
        # Those that are played in words bring their pictures in observations, if they have any.
        in_words = isinstance(env.action_space, spaces.Text) or isinstance(env.observation_space, spaces.Text)
        if self.render and env.render_mode != "rgb_array" and not in_words:
            env = _drawing_unasked(env, self.env_id, parameters_of(creator_of(source)))
        # Inside the time limit, which would fail on results of another form.
        env = self._with_time_limit(GymnasiumAPI(env, self.env_id), source)
        if self.success_from is None:
            return env
        return SuccessFrom(env, self.env_id, self.success_from)

    def _found(self) -> Any:
        """What makes the environment, by its id.

        Raises:
            BadInput: see `find_environment`; an id that is unknown is blamed on the task that names it.
        """
        try:
            return find_environment(self.env_id, self.also_known)
        except UnknownEnvironment as error:
            if self.task in ("", self.env_id):
                raise
            raise BadInput(
                f"the task '{self.task}' is of the environment '{self.env_id}', which nothing registers here; install "
                f"the package that does, or let the task name its module, too: Task(env='module:{self.env_id}')"
            ) from error

    def _with_time_limit(self, env: gymnasium.Env[Any, Any], source: Any) -> gymnasium.Env[Any, Any]:
        """The environment with the recipe's time limit, that of its registration, or one of ours if it has none."""
        steps = self.episode_steps or None
        if steps is None and isinstance(source, EnvSpec):
            steps = source.max_episode_steps
        if steps is None:
            # The environment may have put its own limit around itself.
            if any(isinstance(layer, TimeLimit) for layer in layers_of(env)):
                return env
            steps = DEFAULT_EPISODE_STEPS
        return TimeLimit(env, steps)

    def native_vector(self, count: int, frames: bool) -> NativeVector | None:
        """Make environments that are simulated all at once; None if this one cannot, or not with these choices.

        Args:
            count: number of environments.
            frames: whether they render.

        Raises:
            BadInput, RunFailed: as for a call.
        """
        spec = spec_of(self.env_id)
        if spec is None or self.rescale or self.success_from is not None:
            return None
        build = native_vector_class(spec)
        if build is None:
            return None
        # A vector keeps to the time limit itself: no wrapper sees its single environments.
        options = dict(self.options) | {"max_episode_steps": self.episode_steps or spec.max_episode_steps}
        if self.render:
            options = {"render_mode": "rgb_array", **size_options(build, self.frame_size), **options}
        prepare_rendering(self.render)
        envs: Any = construct(partial(build, count), self.env_id, options, render=False, size=None)
        return NativeVector(envs, frames, self.env_id)


class Draws(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper of an environment that draws pictures without having been asked for them."""

    render_mode = "rgb_array"


def _drawing_unasked(env: gymnasium.Env[Any, Any], name: str, parameters: set[str]) -> gymnasium.Env[Any, Any]:
    """Take an environment that says of no frames, if its `render()` gives one all the same.

    Raises:
        BadInput: it gives none.
    """
    reason = ""
    if env.render_mode != "human":  # which would open a window
        try:
            env.reset(seed=0)
            checked_frame(env.render())
        except (Exception, SystemExit) as error:
            reason = f" ({reason_of(error):.150})"
        else:
            return Draws(env)
    with contextlib.suppress(Exception):
        env.close()
    advice = "must take render_mode='rgb_array'"
    if "render_mode" in parameters:
        advice = "keep the render_mode that it is given"
    raise BadInput(f"environment '{name}' renders no frames; its constructor {advice}{reason}")


class SuccessFrom(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that states success in the info `success`.

    Args:
        env: an environment.
        name: of the environment, in error messages.
        success_from: what says that a state is a success.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, success_from: StatesSuccess) -> None:
        super().__init__(env)
        self._name = name
        self._success_from = success_from

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and say whether the state reached is a success.

        Raises:
            BadInput: the info holds something else than a truth value.
            RunFailed: there is no such info.
        """
        # The own infos stay, and `success` is added or replaced.
        observation, reward, terminated, truncated, info = self.env.step(action)
        rule = self._success_from
        if callable(rule):
            success = truth(rule(float(reward), info), f"what success_from gives of '{self._name}'")
        elif rule == "reward":
            success = float(reward) > 0
        elif rule in info:
            success = truth(info[rule], f"the info '{rule}' of '{self._name}'")
        else:
            raise RunFailed(
                f"'{self._name}' states no info '{rule}', but {', '.join(sorted(info)) or 'none'}; name one of these "
                "in success_from, or say success_from=reward"
            )
        return observation, reward, terminated, truncated, {**info, "success": success}
