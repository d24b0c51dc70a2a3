"""Finding an environment by its name: an id of Gymnasium's registry, `module:id`, `module:attribute`, or
`file.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, registry

from sightline import registry as plugins
from sightline.config.named_code import NoSuchModule, attribute_of, import_code, split_place
from sightline.envs.rendering import drawing_advice
from sightline.errors import BadInput, nearest, reason_and_place

Build = Callable[..., "gymnasium.Env[Any, Any]"]
"""A class or function that makes an environment."""


class UnknownEnvironment(BadInput):
    """Id that nothing has registered here. Exit code 2."""


@dataclass(frozen=True)
class Package:
    """A package of environments.

    Attributes:
        ids: regular expression of the ids that it registers.
        module: what has to be imported for them to be registered.
        wheel: what pip installs.
        adapter: function of ours that makes its environments, for packages whose own are not Gymnasium's.
        task: key of the task by which its environments are made here, `{}` for what an id says after its `/`.
    """

    ids: str
    module: str
    wheel: str
    adapter: str = ""
    task: str = ""

    def advice(self, env_id: str) -> str:
        """How an id of this package is named, and what has to be installed first."""
        within = re.sub(r"-v\d+$", "", env_id.rpartition("/")[2])
        name = self.task.format(within) or self.adapter or f"{self.module}:{env_id}"
        if _is_installed(self.module):
            return f"; it is one of {self.wheel}: say env={name}"
        return f"; it is one of {self.wheel}, which is not installed: pip install '{self.wheel}', then say env={name}"


PACKAGES = (
    Package(r"ALE/|.*NoFrameskip-v|.*-ramDeterministic-v", "ale_py", "ale-py"),
    Package(
        r"Fetch|Hand(Reach|Manipulate)|Adroit|AntMaze|PointMaze|FrankaKitchen",
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    Package(r"Panda\w+-v", "panda_gym", "panda-gym"),
    Package(r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Package(r"MiniWorld-", "miniworld", "miniworld"),
    Package(r"miniwob/", "miniwob", "miniwob", task="miniwob env_options.page={}"),
    Package(r"dm_control/", "shimmy", "shimmy[dm-control]"),
    Package(
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|u-turn|two-way)-", "highway_env", "highway-env"
    ),
    Package(r"FlappyBird", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    Package(r"gym_pusht/", "gym_pusht", "gym-pusht"),
    Package(r"gym_aloha/", "gym_aloha", "gym-aloha"),
    Package(r"Vizdoom", "vizdoom.gymnasium_wrapper", "vizdoom"),
    Package(r"mo-", "mo_gymnasium", "mo-gymnasium"),
    Package(r"\w+BulletEnv-v", "pybullet_envs_gymnasium", "pybullet-envs-gymnasium"),
    Package(r"myo[A-Z]", "myosuite", "myosuite"),
    Package(r"rware-", "rware", "rware"),
    Package(r"Foraging-", "lbforaging", "lbforaging"),
    Package(r"NetHack", "nle", "nle", "sightline.adapters:nethack"),
    Package(r"[Cc]rafter", "crafter", "crafter", "sightline.adapters:crafter"),
    Package(
        r"robosuite|Lift$|Stack$|NutAssembly|PickPlace|Wipe$", "robosuite", "robosuite", "sightline.adapters:robosuite"
    ),
    Package(r"tw-", "textworld", "textworld", "sightline.adapters:textworld"),
    Package(r"PyFlyt/", "PyFlyt.gym_envs", "PyFlyt"),
)
"""Packages whose ids people type as they find them in papers, without the module that registers them."""


IDS_OF_MODULES: dict[str, set[str]] = {}
"""Module -> the ids that it registered when it was imported here."""


def find_environment(name: str, also_known: Iterable[str] = ()) -> EnvSpec | Build:
    """What makes the environment of a name: Gymnasium's specification of an id, or a class or function.

    Args:
        name: an id, with or without its version, of which the newest is taken then; `module:id` of an id that the
            import of a module registers; or `module:attribute` or `file.py:attribute` of a class or function.
        also_known: further names to suggest if it is unknown.

    Raises:
        UnknownEnvironment: nothing has registered that id.
        BadInput: there is none of that name, or its module cannot be imported.
    """
    if not name.strip():
        raise BadInput("env is empty; say a task ('sightline tasks'), an id, or module:attribute")
    for package in PACKAGES:
        if package.task and re.match(package.ids, name.rpartition(":")[2]):
            raise BadInput(f"'{name}' draws no pictures that rewards or agents could read{package.advice(name)}")
    plugins.register_environments()
    # What is registered already counts first: ids may hold colons.
    module_name, attribute = split_place(name)
    if name in registry or not (":" in name or module_name.endswith(".py")):
        return _registered(name, also_known)
    if module_name.endswith(".py") and not attribute:
        raise BadInput(f"env='{name}' is a file; say which class or function of it: env={module_name}:Class")
    if not (module_name and attribute):
        raise BadInput(f"env='{name}' names no environment; say an id, module:id, module:Class, or file.py:Class")
    module = _import(module_name)
    # A class or function of the module; else an id that its import has registered.
    build = attribute_of(module, attribute)
    if build is not None and _returns_env(build):
        return typing.cast(Build, build)
    for package in PACKAGES:
        if package.adapter and package.module == module.__name__.split(".")[0]:
            raise BadInput(f"'{name}' is no Gymnasium environment{package.advice(attribute)}")
    if build is not None:
        raise BadInput(_no_maker(build, name))
    spec = _newest(attribute)
    if spec is None:
        _call_what_registers(module)
        spec = _newest(attribute)
    if spec is None:
        raise BadInput(_not_in_module(module, module_name, attribute))
    if _is_gymnasiums(spec) and module.__name__.split(".")[0] != "gymnasium":
        raise BadInput(
            f"module '{module.__name__}' registers no '{attribute}' with Gymnasium, which has one of its own: "
            f"env={spec.id}"
        )
    return spec


def _is_gymnasiums(spec: EnvSpec) -> bool:
    """Whether an environment comes with Gymnasium itself."""
    return str(spec.entry_point).startswith("gymnasium.envs.")


def _registered(name: str, also_known: Iterable[str]) -> EnvSpec:
    spec = _newest(name)
    if spec is not None:
        return spec
    for package in PACKAGES:
        if re.match(package.ids, name):
            raise UnknownEnvironment(f"there is no environment '{name}'{package.advice(name)}")
    # What Gymnasium registers to wrap environments of old versions is none itself.
    hint = nearest(name, [*also_known, *(known for known in registry if not known.startswith("GymV2"))])
    if "did you mean" not in hint:
        hint = f"; an id that a package registers is named with its module: env=module:{name}{_packages_here()}"
    raise UnknownEnvironment(f"there is no environment '{name}'{hint}")


def spec_of(env_id: str) -> EnvSpec | None:
    """The specification of an id that is registered, by ourselves or by a package."""
    plugins.register_environments()
    return registry.get(env_id)


def _newest(env_id: str) -> EnvSpec | None:
    """The specification of an id; of its newest version, as `gymnasium.make` takes, if the id names none."""
    if env_id in registry:
        return registry[env_id]
    versions: dict[int, EnvSpec] = {}
    for registered_id, spec in registry.items():
        version = re.fullmatch(re.escape(env_id) + r"-v(\d+)", registered_id)
        if version is not None:
            versions[int(version[1])] = spec
    if not versions:
        return None
    return versions[max(versions)]


def _packages_here() -> str:
    """Packages that are installed here and built on Gymnasium, in words; empty without any."""
    modules = set()
    for module, wheels in metadata.packages_distributions().items():
        requirements: list[str] = []
        for wheel in wheels:
            requirements += metadata.requires(wheel) or ()
        is_for_environments = any(re.match(r"gymnasium\b(?!-)", requirement) for requirement in requirements)
        if is_for_environments and not module.startswith(("_", "sightline", "stable_baselines3", "sb3_contrib")):
            modules.add(module)
    if not modules:
        return ""
    return f" (built on Gymnasium and installed here: {', '.join(sorted(modules))})"


# -- modules -----------------------------------------------------------------------------------------------------------


def _import(name: str) -> ModuleType:
    """Import a module that is installed, or one of the working folder.

    Raises:
        BadInput: there is none, it needs one that is missing, or it fails.
    """
    # What appears in the registry by the import is of this module.
    before = set(registry)
    try:
        module = import_code(name)
    except NoSuchModule as error:
        raise BadInput(_no_module(name.replace("-", "_")) or str(error)) from error
    except BadInput as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, ModuleNotFoundError):
            raise BadInput(str(error)) from error
        raise BadInput(f"{error}{drawing_advice(cause)}") from error
    IDS_OF_MODULES.setdefault(module.__name__, set()).update(set(registry) - before)
    return module


def _no_module(name: str) -> str:
    """The line for a module of one of the packages that is not there; empty for any other."""
    for package in PACKAGES:
        if package.module.split(".")[0] == name.split(".")[0]:
            return f"the package '{name}' is not installed: pip install '{package.wheel}'"
    return ""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.split(".")[0]) is not None
    except ValueError:  # it was put into `sys.modules` by hand
        return True


def _call_what_registers(module: ModuleType) -> None:
    """Call the functions of a module that register its environments, for those modules that do not when imported.

    Raises:
        BadInput: one fails.
    """
    root = module.__name__.split(".")[0]
    for name, member in list(vars(module).items()):
        # Not what it has imported: `gymnasium.register` begins so, too.
        is_its_own = inspect.isfunction(member) and member.__module__.split(".")[0] == root
        if not (name.startswith("register") and is_its_own):
            continue
        required = [
            parameter
            for parameter in inspect.signature(member).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if required:
            continue
        try:
            member()
        except (Exception, SystemExit) as error:
            raise BadInput(f"{module.__name__}.{name}() failed: {reason_and_place(error)}") from error


def _not_in_module(module: ModuleType, module_name: str, attribute: str) -> str:
    """The line for a name that a module, or a file, neither holds nor registers."""
    root = module.__name__.split(".")[0]
    ids = sorted(IDS_OF_MODULES.get(module.__name__, ()))
    if not ids:
        # Where something else imported it before, its ids are told by where their classes are.
        inside = (f"{root}.", f"{root}:")
        ids = [env_id for env_id, spec in registry.items() if str(spec.entry_point).startswith(inside)]
    kind = "file" if module_name.endswith(".py") else "module"
    what = f"{kind} '{module_name}' has no '{attribute}'{_hidden(module)}"
    makers = [name for name, member in vars(module).items() if not name.startswith("_") and _returns_env(member)]
    if not (ids or makers):
        return f"{what}, nor any environment class, and it registers none with Gymnasium"
    return f"{what}{nearest(attribute, [*ids, *makers])}"


def _hidden(module: ModuleType) -> str:
    """Remark on a file of the working folder that has the name of another module; empty without one."""
    root = module.__name__.split(".")[0]
    imported = str(getattr(sys.modules.get(root), "__file__", None) or "")
    for file in (Path(f"{root}.py"), Path(root, "__init__.py")):
        if file.is_file() and file.resolve() != Path(imported).resolve():
            return f" (the working folder's {file} has the name of another module, which comes first: rename it)"
    return ""


def _no_maker(build: Any, env_id: str) -> str:
    """The line for what is neither a subclass of `gymnasium.Env` nor a function annotated to return one.

    Nothing else is called: `subprocess:Popen` can be imported, too.
    """
    if _is_of_old_gym(build):
        return f"'{env_id}' is an environment of the old API of gym; {OLD_API}"
    return (
        f"'{env_id}' is neither a subclass of gymnasium.Env nor a function that is annotated to return one "
        "(def make() -> gymnasium.Env: …)"
    )


OLD_API = (
    "write a function that converts it, as by shimmy (pip install 'shimmy[gym-v21]'): def make(render_mode=None) -> "
    "gymnasium.Env: return shimmy.GymV21CompatibilityV0(env_id='…', render_mode=render_mode), with its id in gym"
)
"""What to do about an environment of gym, Gymnasium's predecessor."""


def _returns_env(build: Any) -> bool:
    """Whether a class, or a function by its annotation, makes an environment."""
    result = build
    if not isinstance(build, type):
        try:
            result = typing.get_type_hints(build).get("return")
        except (TypeError, NameError, AttributeError):
            return False
        # `gymnasium.Env[…]` stands for the class `gymnasium.Env`.
        result = typing.get_origin(result) or result
    return isinstance(result, type) and issubclass(result, gymnasium.Env)


def _is_of_old_gym(build: Any) -> bool:
    """Whether a class is an environment of gym, Gymnasium's predecessor, or looks like one."""
    if not isinstance(build, type):
        return False
    of_gym = any(base.__module__.split(".")[0] == "gym" for base in build.__mro__)
    return of_gym or (callable(getattr(build, "reset", None)) and callable(getattr(build, "step", None)))
