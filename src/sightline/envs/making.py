"""Making an environment from its name: one of ours, any Gymnasium id, or a user's own as `module:attribute`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from sightline.envs.drawing import Size
from sightline.envs.rendering import drawing_advice, prepare_rendering
from sightline.envs.spaces import adapted_to_learners
from sightline.envs.success import truth
from sightline.envs.tasks import StatesSuccess
from sightline.envs.vectorised import VectorisedFrames
from sightline.errors import BadInput, RunFailed, nearest, reason_and_place

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
        frame_size: requested height and width of frames in pixels. It is passed on as `render_size`, or as `width` and
            `height` to MuJoCo's environments; any other environment renders at its own size.
        render: make an environment that renders frames.
        rescale: scale observations to [-1, 1] by the bounds of their space.
        observation_keys: parts of a dictionary of observations that a policy reads; none: all.
        enumerates: whether combinations of several choices are counted through, for learners that make one choice.
        also_known: further names to suggest when `env_id` is unknown.
        success_from: what says that a state is a success (`sightline.envs.tasks.StatesSuccess`); None: the
            environment's infos `success` and `is_success`.
        build: class or function that makes the environment; None: `env_id` says where it is.
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
        gymnasium.logger.min_level = gymnasium.logger.ERROR + 1  # our lines say it, and stderr is for them alone
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        prepare_rendering(self.render)
        if self.build is not None:
            env = _make_by(self.build, self)
        elif ":" in self.env_id and self.env_id not in gymnasium.registry:
            env = _make_from_module(self)
        else:
            env = _make_registered(self)
        _check_reset_signature(env, self.env_id)
        # Those that are played in words bring their pictures in observations, if they have any.
        if self.render and env.render_mode != "rgb_array" and not isinstance(env.action_space, spaces.Text):
            raise BadInput(
                f"environment '{self.env_id}' renders no frames; its constructor must take render_mode='rgb_array'"
            )
        return env if self.success_from is None else SuccessFrom(env, self.env_id, self.success_from)

    def vectorised(self, count: int, frames: bool) -> VectorisedFrames | None:
        """Make environments that are simulated all at once; None if this one cannot, or not with these choices.

        Args:
            count: number of environments.
            frames: whether they render.

        Raises:
            BadInput, RunFailed: as for a call.
        """
        spec = gymnasium.registry.get(self.env_id)
        entry = None if spec is None else spec.vector_entry_point
        if spec is None or entry is None or self.rescale or self.success_from is not None:
            return None
        build: Any = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        options = dict(self.options) | {"max_episode_steps": self.episode_steps or spec.max_episode_steps}
        if self.render:
            options["render_mode"] = "rgb_array"
            options |= _render_size_options(build, self.frame_size)
        prepare_rendering(self.render)
        with _one_line_errors(self.env_id):
            return VectorisedFrames(build(count, **options), frames, self.env_id)


class SuccessFrom(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that states success in the info `success`.

    Args:
        env: an environment.
        name: of the environment, in error messages.
        success_from: what says that a state is a success.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, success_from: StatesSuccess) -> None:
        super().__init__(env)
        self._name, self._success_from = name, success_from

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and say whether the state reached is a success.

        Raises:
            BadInput: the info holds something else than a truth value.
            RunFailed: there is no such info.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        stated = self._success_from
        if callable(stated):
            success = truth(stated(float(reward), info), f"what success_from gives of '{self._name}'")
        elif stated == "reward":
            success = float(reward) > 0
        elif stated in info:
            success = truth(info[stated], f"the info '{stated}' of '{self._name}'")
        else:
            raise RunFailed(
                f"'{self._name}' states no info '{stated}', but {', '.join(sorted(info)) or 'none'}; name one of these "
                "in success_from, or say success_from=reward"
            )
        return observation, reward, terminated, truncated, {**info, "success": success}


def _check_reset_signature(env: gymnasium.Env[Any, Any], env_id: str) -> None:
    """Refuse an environment, or a wrapper around it, whose `reset` takes no seed.

    Raises:
        BadInput: naming the class.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    for layer in layers:
        try:
            inspect.signature(layer.reset).bind(seed=0, options=None)
        except ValueError:
            continue  # written in C, without a signature
        except TypeError as error:
            raise BadInput(
                f"reset() of '{env_id}' ({type(layer).__name__}) takes no seed and options; write it as "
                "reset(self, *, seed=None, options=None)"
            ) from error


def _make_registered(maker: EnvMaker) -> gymnasium.Env[Any, Any]:
    spec = _spec(maker)
    options = dict(maker.options)
    if maker.render:
        options["render_mode"] = "rgb_array"
        options |= _render_size_options(spec.entry_point, maker.frame_size)
    limit = maker.episode_steps or spec.max_episode_steps or DEFAULT_EPISODE_STEPS
    with _one_line_errors(maker.env_id):
        return gymnasium.make(maker.env_id, max_episode_steps=limit, disable_env_checker=True, **options)


def _spec(maker: EnvMaker) -> Any:
    try:
        return gymnasium.spec(maker.env_id)
    except gymnasium.error.Error as error:
        known = [*maker.also_known, *gymnasium.registry]
        raise BadInput(f"there is no environment '{maker.env_id}'{nearest(maker.env_id, known)}") from error
    except ModuleNotFoundError as error:
        raise BadInput(f"environment '{maker.env_id}': {error}") from error


def _make_from_module(maker: EnvMaker) -> gymnasium.Env[Any, Any]:
    module_name, _, attribute = maker.env_id.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadInput(f"cannot import '{module_name}' ({error}); run from the folder that holds it") from error
    build = getattr(module, attribute, None)
    if build is None and attribute in gymnasium.registry:  # Gymnasium's way to say which module registers an id
        return _make_registered(replace(maker, env_id=attribute))
    if build is None:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise BadInput(f"module '{module_name}' has no '{attribute}'{nearest(attribute, public)}")
    _check_returns_env(build, maker.env_id)
    return _make_by(build, maker)


def _make_by(build: Callable[..., Any], maker: EnvMaker) -> gymnasium.Env[Any, Any]:
    options = dict(maker.options)
    if maker.render and _parameters(build) & {"render_mode", "**"}:
        options["render_mode"] = "rgb_array"
        options |= _render_size_options(build, maker.frame_size)
    with _one_line_errors(maker.env_id):
        env = build(**options)
    if not isinstance(env, gymnasium.Env):
        raise BadInput(f"'{maker.env_id}' returned a {type(env).__name__}, not a gymnasium.Env")
    return TimeLimit(env, maker.episode_steps or DEFAULT_EPISODE_STEPS)


def _check_returns_env(build: Any, env_id: str) -> None:
    """Refuse to call anything but an environment class or function: `subprocess:Popen` is importable too.

    Raises:
        BadInput: it is neither a subclass of `gymnasium.Env` nor a function annotated to return one.
    """
    made = build
    if not isinstance(build, type):
        try:
            made = typing.get_type_hints(build).get("return")
        except (TypeError, NameError, AttributeError):
            made = None
        made = typing.get_origin(made) or made
    if not (isinstance(made, type) and issubclass(made, gymnasium.Env)):
        raise BadInput(
            f"'{env_id}' is neither a subclass of gymnasium.Env nor a function that is annotated to return one "
            "(def make() -> gymnasium.Env: …)"
        )


def _render_size_options(entry_point: Any, size: Size | None) -> dict[str, Any]:
    if size is None:
        return {}
    if isinstance(entry_point, str):
        entry_point = gymnasium.envs.registration.load_env_creator(entry_point)
    if "render_size" in _parameters(entry_point):
        return {"render_size": size}
    if any(base.__name__ == "MujocoEnv" for base in getattr(entry_point, "__mro__", ())):
        return {"height": size[0], "width": size[1]}
    return {}


def _parameters(build: Any) -> set[str]:
    """Parameter names of a constructor; `**` if it takes arbitrary keyword arguments."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {"**" if p.kind is inspect.Parameter.VAR_KEYWORD else p.name for p in parameters}


@contextlib.contextmanager
def _one_line_errors(env_id: str) -> Iterator[None]:
    """Turn any exception of a constructor into a one-line error.

    Raises:
        BadInput: wrong options.
        RunFailed: anything else.
    """
    try:
        yield
    except BadInput:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise RunFailed(f"environment '{env_id}' needs a package that is not installed: {error}") from error
    except TypeError as error:
        raise BadInput(f"environment '{env_id}' does not take these options: {error}") from error
    except (Exception, SystemExit) as error:
        advice = drawing_advice(error)
        raise RunFailed(f"environment '{env_id}' cannot be built: {reason_and_place(error)}{advice}") from error
