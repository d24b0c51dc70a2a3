"""Plug-ins by name: rewards, teachers, kinds of feedback, algorithms, providers of chat models, and environments.

A plug-in is one module, which holds its recipe block, its class and what it needs. It is known by one line in
`BUILT_IN` and imported when it is first asked for. Others bring theirs by `register`, or by an entry point of their
package, which needs no line of code to be found:

    [project.entry-points."sightline.reward"]
    brightness = "my_package.brightness:BrightnessConfig"

What a plug-in is:

    reward, teacher, feedback, algorithm    a recipe block, a subclass of `sl.RewardConfig`, `sl.TeacherConfig`,
                                            `sl.FeedbackConfig` or `sl.AlgorithmConfig`
    provider                                a class with `of(config)`, see `sightline.models.chat.messages.ChatModel`
    env                                     a `sightline.envs.tasks.Task`

Two more groups of entry points: `sightline.gymnasium` names a module whose import registers environments with
Gymnasium, and `sightline.recipes` a package in whose folder recipes lie as YAML files. The tasks that come with
Sightline are brought by these three ways, too (`sightline_tasks`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from functools import cache
from typing import Any, Literal

from sightline.errors import BadInput, line_of, nearest, warn

Kind = Literal["reward", "teacher", "feedback", "algorithm", "provider", "env"]

BUILT_IN: dict[Kind, dict[str, str]] = {
    "reward": {
        "zero_shot": "sightline.rewards.zero_shot:ZeroShotConfig",
        "image_text_matching": "sightline.rewards.image_text_matching:ImageTextMatchingConfig",
        "judge": "sightline.rewards.judge:JudgeConfig",
        "progress": "sightline.rewards.progress:ProgressConfig",
        "learned": "sightline.preferences.config:LearnedConfig",
        "ground_truth": "sightline.rewards.ground_truth:GroundTruthConfig",
        "sparse": "sightline.rewards.success:SparseConfig",
        "success": "sightline.rewards.success:SuccessConfig",
        "shaped": "sightline.rewards.shaped:ShapedConfig",
        "sum": "sightline.rewards.weighted_sum:WeightedSumConfig",
        "http": "sightline.rewards.http:HTTPConfig",
    },
    "teacher": {
        "encoder": "sightline.teachers.encoder:EncoderTeacherConfig",
        "scripted": "sightline.teachers.scripted:ScriptedTeacherConfig",
        "chat": "sightline.teachers.chat:ChatTeacherConfig",
        "human": "sightline.teachers.human:HumanTeacherConfig",
    },
    "feedback": {
        "pairs": "sightline.preferences.feedback.pairs:PairsConfig",
        "ratings": "sightline.preferences.feedback.ratings:RatingsConfig",
        "scores": "sightline.preferences.feedback.scores:ScoresConfig",
        "ladder": "sightline.preferences.feedback.ladder:LadderConfig",
    },
    "algorithm": {
        "ppo": "sightline.agents.algorithms.ppo:PPO",
        "grpo": "sightline.agents.algorithms.grpo:GRPO",
        "rloo": "sightline.agents.algorithms.rloo:RLOO",
        "gigpo": "sightline.agents.algorithms.gigpo:GiGPO",
        "reinforce": "sightline.agents.algorithms.reinforce:Reinforce",
        "reinforce_plus_plus": "sightline.agents.algorithms.reinforce_plus_plus:ReinforcePlusPlus",
        "turn_grpo": "sightline.agents.algorithms.turn_grpo:TurnGRPO",
    },
    "provider": {
        "openai": "sightline.models.chat.openai_compatible:OpenAICompatible",
        "gemini": "sightline.models.chat.gemini:Gemini",
        "anthropic": "sightline.models.chat.anthropic:Anthropic",
        "local": "sightline.models.chat.local:LocalModel",
    },
    "env": {
        "miniwob": "sightline.envs.games.miniwob:TASK",
        "questions": "sightline.envs.games.questions:TASK",
        "babyai": "sightline.envs.games.babyai:TASK",
    },
}

OWN = "sightline"
"""Name of our own package."""

_registered: dict[tuple[Kind, str], Any] = {}


def register(kind: Kind, name: str, plugin: Any) -> None:
    """Make a plug-in known for this process; doing so again with the same one changes nothing.

    Args:
        plugin: see the head of this module; a string `module:attribute` is imported when it is asked for.

    Raises:
        BadInput: the name exists or is empty, the plug-in is None or a string of another form, or there is no such kind
            of plug-in.
    """
    if kind not in BUILT_IN:
        raise BadInput(f"there are no plug-ins of kind '{kind}'{nearest(str(kind), list(BUILT_IN))}")
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"the name of a plug-in must be a word, such as 'brightness', not {name!r:.80}")
    # A string is checked by its form alone: nothing is imported before it is asked for.
    if plugin is None or (isinstance(plugin, str) and not all(plugin.partition(":"))):
        raise BadInput(
            f"the {kind} '{name}' must be the plug-in itself, or 'module:attribute', from where it is imported, not "
            f"{plugin!r:.80}"
        )
    # A module that registers its own plug-in may also be what a string or an entry point of that name leads to.
    registered = _registered.get((kind, name))
    entry = _entry_points(kind).get(name)
    place = None
    if entry is not None:
        place = entry.value
    elif isinstance(registered, str):
        place = registered
    if place is not None and _is_at(place, plugin):
        return
    is_taken = name in names(kind)
    if registered is not None:
        is_taken = registered != plugin  # the same one may be registered again
    if is_taken:
        article = "an" if kind[0] in "ae" else "a"
        raise BadInput(f"there is {article} {kind} '{name}' already; choose another name")
    _registered[kind, name] = plugin


def names(kind: Kind) -> list[str]:
    """All plug-ins of a kind by name: built in, registered, and those of installed packages."""
    registered = [name for kind_of_plugin, name in _registered if kind_of_plugin == kind]
    return list(dict.fromkeys([*BUILT_IN[kind], *registered, *_entry_points(kind)]))


def find(kind: Kind, name: str) -> Any:
    """A plug-in by name, imported if it is not yet.

    Raises:
        BadInput: there is none of that name, or what brings it cannot be imported.
    """
    _warn_of_hidden(kind, name)
    if name in BUILT_IN[kind]:
        return _imported(BUILT_IN[kind][name])
    plugin = _registered.get((kind, name), _entry_points(kind).get(name))
    if plugin is None:
        raise BadInput(f"there is no {kind} '{name}'{nearest(name, names(kind))}")
    if not isinstance(plugin, str | importlib.metadata.EntryPoint):
        return plugin
    try:
        if isinstance(plugin, str):
            return _imported(plugin)
        return plugin.load()
    except (Exception, SystemExit) as error:  # a stranger's module may fail in any way; all others go on working
        if isinstance(plugin, str):
            where = f"at '{plugin}'"
            advice = "fix that module, or choose another"
        else:
            where = f"of the package '{package_of(plugin)}'"
            advice = advice_on(plugin, "fix or uninstall that package, or choose another")
        raise BadInput(f"the {kind} '{name}' {where} cannot be imported: {line_of(error)}; {advice}") from error


def _imported(place: str) -> Any:
    """The attribute at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _is_at(place: str, plugin: Any) -> bool:
    """True if a module that is imported already holds the plug-in at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(sys.modules.get(module), attribute, None) is plugin


@cache
def _entry_points(kind: Kind) -> dict[str, importlib.metadata.EntryPoint]:
    """Plug-ins of installed packages; none of them can take the place of one that is built in."""
    by_name: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in entry_points(kind):
        if entry.name not in BUILT_IN[kind]:
            by_name.setdefault(entry.name, entry)
    return by_name


@cache
def hidden(kind: Kind) -> dict[str, list[str]]:
    """Plug-ins of installed packages that are not used, since their names are taken: name -> a line for each."""
    lines: dict[str, list[str]] = {}
    for entry in entry_points(kind):
        first = _entry_points(kind).get(entry.name)
        if first is None or entry != first:
            owner = package_of(first) if first else OWN
            lines.setdefault(entry.name, []).append(not_used(kind, entry.name, package_of(entry), owner))
    return lines


def not_used(what: str, name: str, package: str, owner: str) -> str:
    """The line on something of a package whose name another package has taken."""
    return (
        f"the {what} '{name}' of the package '{package}' is not used, since the package '{owner}' has one of that "
        "name; uninstall one, or ask its author for another name"
    )


@cache  # a line is told once
def _warn_of_hidden(kind: Kind, name: str) -> None:
    for line in hidden(kind).get(name, ()):
        warn(line)


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """Entry points of the group `sightline.GROUP`, Sightline's own first, then by package; each once, however often it
    is found."""
    declared = importlib.metadata.entry_points(group=f"sightline.{group}")
    # Which one comes first must not depend on the order of folders on Python's path.
    return sorted(dict.fromkeys(declared), key=lambda entry: (not is_of_sightline(entry), package_of(entry)))


def is_own(kind: Kind, name: str) -> bool:
    """Whether a plug-in comes with Sightline."""
    entry = _entry_points(kind).get(name)
    return name in BUILT_IN[kind] or (entry is not None and is_of_sightline(entry))


def is_of_sightline(entry: importlib.metadata.EntryPoint) -> bool:
    """Whether an entry point is one of Sightline's own."""
    return entry.dist is not None and entry.dist.name == OWN


def package_of(entry: importlib.metadata.EntryPoint) -> str:
    """Name of the package that declares an entry point, as pip knows it."""
    return entry.dist.name if entry.dist else entry.module


def advice_on(entry: importlib.metadata.EntryPoint, advice: str) -> str:
    """What to do about an entry point that fails: advice, but for our own, which cannot be fixed or left out."""
    if is_of_sightline(entry):
        return "the installation is incomplete: reinstall Sightline"
    return advice


# -- environments that packages register with Gymnasium ----------------------------------------------------------------

_registered_by: dict[str, importlib.metadata.EntryPoint] = {}
"""Id of an environment -> the entry point whose module has registered it."""


@cache
def register_environments(own: bool = False) -> None:
    """Import what packages name under `sightline.gymnasium`, once; one that fails is warned of and hinders no other.

    Others' modules may import anything of Sightline, so they wait until an environment is looked for; none of them can
    take an id that is registered already.

    Args:
        own: import Sightline's own modules; else those of other packages.
    """
    for entry in entry_points("gymnasium"):
        if is_of_sightline(entry) == own:
            for line in faults_of_registration(entry):
                warn(line)


@cache
def faults_of_registration(entry: importlib.metadata.EntryPoint) -> list[str]:
    """Import a module that registers environments, and undo what it changes of those that were registered before.

    Returns:
        What is wrong with it, each in one line.
    """
    import gymnasium

    faults = []
    before = dict(gymnasium.registry)
    level = gymnasium.logger.min_level
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # our own lines say what it would warn of
    try:
        entry.load()
    except (Exception, SystemExit) as error:  # a stranger's module may fail in any way
        advice = advice_on(entry, "fix or uninstall that package")
        faults.append(
            f"the environments of the package '{package_of(entry)}' are not registered: {line_of(error)}; {advice}"
        )
    finally:
        gymnasium.logger.min_level = level
    for env_id in gymnasium.registry.keys() - before.keys():
        _registered_by[env_id] = entry
    for env_id, spec in before.items():
        if gymnasium.registry.get(env_id) is not spec:
            gymnasium.registry[env_id] = spec
            faults.append(not_used("environment", env_id, package_of(entry), _owner_of(env_id)))
    return faults


def _owner_of(env_id: str) -> str:
    """Name of the package that has registered an environment; that of its module where no entry point has led to it."""
    import gymnasium

    if env_id in _registered_by:
        return package_of(_registered_by[env_id])
    maker = gymnasium.registry[env_id].entry_point
    module = maker if isinstance(maker, str) else getattr(maker, "__module__", "")
    return re.split("[.:]", module)[0]


def origin(kind: Kind, name: str) -> str | None:
    """Name and version of the package that a plug-in comes from, or an environment that a package registers; None for
    Sightline's own, and for what no entry point brings."""
    entry = _entry_points(kind).get(name)
    if kind == "env" and entry is None:
        register_environments()
        entry = _registered_by.get(name)
    is_registered = (kind, name) in _registered
    if entry is None or entry.dist is None or is_registered or is_own(kind, name) or is_of_sightline(entry):
        return None
    return f"{entry.dist.name} {entry.dist.version}"
