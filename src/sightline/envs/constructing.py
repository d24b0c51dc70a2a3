"""Calling the constructor of an environment: asked for frames of a size, and every exception in one line."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sightline.envs.frames import Size
from sightline.envs.naming import Build
from sightline.envs.rendering import CONTRADICTION, drawing_advice, variables_contradict
from sightline.errors import BadInput, RunFailed, is_ours, nearest, reason_and_place, reason_of
from sightline.requirements import wheel_of

SIZE_NAMES = (
    ("render_height", "render_width"),
    ("visualization_height", "visualization_width"),
    ("window_height", "window_width"),
    ("screen_height", "screen_width"),
)
"""Arguments by which constructors are told the size of their pictures. Those of observations are left alone."""
SMALLEST_SIDE = 64
"""Pixels. A constructor's `height` and `width` of less than this by default are not those of a picture: grids have as
many cells."""
SMALLEST_PICTURE = 128
"""Pixels. What draws lines in proportion to its pictures fails where they become thinner than a pixel: gym-pusht, below
96. Ours, and MuJoCo's, are drawn at any size."""
ANY = "**"
"""Stands for arbitrary keyword arguments in a set of parameters."""


def construct(
    source: EnvSpec | Build, name: str, options: Mapping[str, Any], render: bool, size: Size | None
) -> gymnasium.Env[Any, Any]:
    """Make an environment without a time limit.

    Args:
        source: Gymnasium's specification of an id, or a class or function.
        name: of the environment, in error messages.
        options: keyword arguments of the user's, which count before those that are chosen here.
        render: ask for frames, if the constructor can be asked.
        size: height and width of the frames that are wanted; None for the environment's own.

    Raises:
        BadInput: wrong options.
        RunFailed: anything else that is raised.
    """
    try:
        if render and options.get("render_mode", "rgb_array") != "rgb_array":
            raise BadInput("env_options.render_mode: Sightline asks for pictures by itself; leave it out")
        # What the constructor takes decides how it can be asked for frames.
        creator = creator_of(source)
        parameters = parameters_of(creator)
        for_frames: dict[str, Any] = {}
        if render:
            for_frames = size_options(creator, size)
            if parameters & {"render_mode", ANY}:
                for_frames["render_mode"] = "rgb_array"
        try:
            return _call(source, {**for_frames, **options})
        except TypeError as error:
            # A function passes on whatever it is given to a class that cannot be asked for frames.
            if not re.search("unexpected keyword argument 'render_mode'", str(error)) or "render_mode" in options:
                raise
            return _call(source, dict(options))
    except BadInput as error:
        # Our own constructors do not call an option as a recipe does.
        culprits = [option for option in options if re.search(rf"\b{re.escape(option)}\b", str(error))]
        if not culprits or "env_options" in str(error):
            raise
        keys = ", ".join(f"env_options.{option}" for option in culprits)
        raise BadInput(f"{error} ({keys})") from error
    except RunFailed:
        raise
    except TypeError as error:
        raise _explained_type_error(error, name, options, parameters) from error
    except (ValueError, AttributeError, LookupError, ArithmeticError) as error:
        if options and _is_ours(error):
            raise _wrong_value(name, options) from error
        raise RunFailed(_explained(error, name)) from error
    except (Exception, SystemExit) as error:
        raise RunFailed(_explained(error, name)) from error


def creator_of(source: EnvSpec | Build) -> Build:
    """The class or function that makes the environment of a specification.

    Raises:
        BadInput: the specification has none for a single environment.
    """
    if not isinstance(source, EnvSpec):
        return source
    if source.entry_point is None:
        raise BadInput(
            f"'{source.id}' is registered for vectors of environments only, and Sightline makes single ones (envs=8 "
            "makes eight); name a class or function that returns one: env=module:attribute"
        )
    if isinstance(source.entry_point, str):
        creator: Any = load_env_creator(source.entry_point)
        return cast(Build, creator)
    return source.entry_point


def size_options(creator: Any, size: Size | None) -> dict[str, Any]:
    """Arguments that make a constructor draw its pictures at a size, height and width; none if it cannot be told."""
    if size is None:
        return {}
    parameters = parameters_of(creator)
    if "render_size" in parameters:
        return {"render_size": size}
    height, width = (max(side, SMALLEST_PICTURE) for side in size)
    for of_height, of_width in SIZE_NAMES:
        if {of_height, of_width} <= parameters:
            return {of_height: height, of_width: width}
    # Their constructors pass these two on, and do not all name them.
    if any(base.__name__ in ("MujocoEnv", "MujocoRobotEnv") for base in getattr(creator, "__mro__", ())):
        return {"height": size[0], "width": size[1]}
    if _has_picture_sides(creator):
        return {"height": height, "width": width}
    return {}


def _has_picture_sides(creator: Any) -> bool:
    """Whether the constructor's own `height` and `width` are a picture's, by their defaults."""
    defaults = [_default(creator, side) for side in ("height", "width")]
    return all(isinstance(default, int) and default >= SMALLEST_SIDE for default in defaults)


def _default(creator: Any, parameter: str) -> Any:
    for signature in _signatures(creator):
        if parameter in signature.parameters:
            return signature.parameters[parameter].default
    return None


def parameters_of(creator: Any) -> set[str]:
    """Names of a constructor's parameters, those of its base classes included where it passes arguments on; `ANY` if
    it takes arbitrary keyword arguments, or cannot be looked into."""
    names: set[str] = set()
    signatures = list(_signatures(creator))
    if not signatures and not isinstance(creator, type):
        return {ANY}
    for signature in signatures:
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                names.add(ANY)
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                names.add(parameter.name)
    return names


def _signatures(creator: Any) -> Iterator[inspect.Signature]:
    """The signature of a constructor, then those of its base classes as long as arguments are passed on to them."""
    if not isinstance(creator, type):
        try:
            yield inspect.signature(creator)
        except (TypeError, ValueError):  # written in C
            return
        return
    for base in creator.__mro__:
        if base is object or "__init__" not in vars(base):
            continue
        try:
            # Bound to nothing in particular, so that `self` is left out.
            signature = inspect.signature(vars(base)["__init__"].__get__(object()))
        except (TypeError, ValueError, AttributeError):
            return
        yield signature
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
            return


def _call(source: EnvSpec | Build, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    if isinstance(source, EnvSpec):
        # The time limit is put around it later, so that what the environment returns is looked at first.
        return gymnasium.make(source, max_episode_steps=-1, disable_env_checker=True, **options)
    return source(**options)


# -- what went wrong ---------------------------------------------------------------------------------------------------


def _explained_type_error(
    error: TypeError, name: str, options: Mapping[str, Any], parameters: set[str]
) -> BadInput | RunFailed:
    """A line for a TypeError: options that the constructor does not take, options that it lacks, or its own mistake."""
    original = error
    if isinstance(error.__cause__, TypeError):  # Gymnasium raises it anew, with a longer message
        original = error.__cause__
    message = " ".join(str(original).split())
    # Python says it in words only: what was unexpected, or what is missing.
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", message)
    if unexpected is not None and unexpected[1] in options:
        hint = nearest(unexpected[1], parameters - {ANY, "self", "render_mode"})
        return BadInput(f"environment '{name}' does not take these options: env_options.{unexpected[1]}{hint}")
    lacks = re.search(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)", message)
    # Raised by the call itself, and not by a line of the constructor.
    if lacks is not None and not _inside_constructor(original):
        required = re.findall(r"'(\w+)'", lacks[1])
        keys = " ".join(f"env_options.{option}=…" for option in required)
        return BadInput(f"environment '{name}' needs options that are not given: {keys}")
    if any(f"'{option}'" in message for option in options):
        return BadInput(f"environment '{name}' does not take these options: {message}")
    if options and _is_ours(original):
        return _wrong_value(name, options)
    return RunFailed(_explained(original, name))


def _is_ours(error: BaseException) -> bool:
    """Whether the innermost line that raised an exception is of Sightline: of one of its own environments."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_ours(frames[-1].filename)


def _wrong_value(name: str, options: Mapping[str, Any]) -> BadInput:
    """A line for options of one of our own environments that it takes, but not with such a value."""
    settings = ", ".join(f"env_options.{option}={value!r:.60}" for option, value in options.items())
    return BadInput(f"environment '{name}' cannot be built with {settings}: that is no value of its kind")


def _inside_constructor(error: BaseException) -> bool:
    """Whether a line of code other than Gymnasium's and ours raised an exception."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    gymnasiums = Path(gymnasium.__file__).parent / "envs" / "registration.py"
    return any(file != gymnasiums and not is_ours(file) for file in files)


def _explained(error: BaseException, name: str) -> str:
    """A line for any other exception of a constructor."""
    # Gymnasium and others take that for a missing package.
    if variables_contradict() and re.search("mujoco|PYOPENGL", str(error), re.IGNORECASE):
        return f"environment '{name}' cannot be built: {CONTRADICTION}"
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return f"environment '{name}' needs a package that is not installed: {' '.join(str(error).split())}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"environment '{name}' needs a package that is not installed: {reason_and_place(error)}; pip install "
            f"{wheel_of(error.name)}"
        )
    if isinstance(error, SystemExit):
        return f"environment '{name}' cannot be built: its constructor left by {reason_of(error)}"
    advice = drawing_advice(error) or _version_advice(error)
    return f"environment '{name}' cannot be built: {reason_and_place(error)}{advice}"


def _version_advice(error: BaseException) -> str:
    """Advice for packages that were written for an older MuJoCo: robosuite 1.5.2 fails from 3.10 on, gymnasium-robotics
    1.4.2 from 3.12 on."""
    if "mujoco" not in sys.modules:
        return ""
    version = metadata.version("mujoco")
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < (3, 10):
        return ""
    uses_it = any(
        "mujoco" in frame.f_globals and not is_ours(frame.f_code.co_filename)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    if not uses_it:
        return ""
    return f"; if its package does not know MuJoCo {version} yet: pip install 'mujoco<3.10'"
