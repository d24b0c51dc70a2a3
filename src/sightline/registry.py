"""Plug-ins by name: rewards, teachers, kinds of feedback, algorithms, providers of chat models, and environments.

A plug-in is one module, which holds its recipe block, its class and what it needs. It is known by one line in
`BUILT_IN` and imported when it is first asked for. Others bring theirs by `register`, or by an entry point of their
package, which needs no line of code to be found:

    [project.entry-points."sightline.reward"]
    brightness = "my_package.brightness:BrightnessConfig"

What a plug-in is:

    reward, teacher, feedback, algorithm    a recipe block, a subclass of the base in `sightline.config.blocks`
    provider                                a class with `of(config)`, see `sightline.models.chat.messages.ChatModel`
    env                                     a `sightline.envs.tasks.Task` for a policy on states, or a subclass of
                                            `sightline.envs.games.contract.Game` for agents
"""

from __future__ import annotations

import importlib
import importlib.metadata
from functools import cache
from typing import Any, Literal

from sightline.errors import BadInput, nearest

Kind = Literal["reward", "teacher", "feedback", "algorithm", "provider", "env"]

BUILT_IN: dict[Kind, dict[str, str]] = {
    "reward": {
        "zero_shot": "sightline.rewards.zero_shot:ZeroShotConfig",
        "progress": "sightline.rewards.progress:ProgressConfig",
        "learned": "sightline.preferences.config:LearnedConfig",
        "ground_truth": "sightline.rewards.ground_truth:GroundTruthConfig",
        "sparse": "sightline.rewards.sparse:SparseConfig",
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
    },
    "provider": {
        "openai": "sightline.models.chat.openai_compatible:OpenAICompatible",
        "gemini": "sightline.models.chat.gemini:Gemini",
        "anthropic": "sightline.models.chat.anthropic:Anthropic",
        "local": "sightline.models.chat.local:LocalModel",
    },
    "env": {
        "cartpole": "sightline.envs.tasks:CARTPOLE",
        "cartpole-continuous": "sightline.envs.tasks:CARTPOLE_CONTINUOUS",
        "mountain-car": "sightline.envs.tasks:MOUNTAIN_CAR",
        "mountain-car-textured": "sightline.envs.tasks:MOUNTAIN_CAR_TEXTURED",
        "drawer-open": "sightline.envs.tasks:DRAWER_OPEN",
        "sweep-into": "sightline.envs.tasks:SWEEP_INTO",
        "soccer": "sightline.envs.tasks:SOCCER",
        "pendulum": "sightline.envs.tasks:PENDULUM",
        "numberline": "sightline.envs.games.number_line:NumberLine",
        "ezpoints": "sightline.envs.games.ez_points:EZPoints",
        "points24": "sightline.envs.games.points24:Points24",
        "blackjack": "sightline.envs.games.blackjack:Blackjack",
        "sokoban": "sightline.envs.games.sokoban:Sokoban",
        "frozenlake": "sightline.envs.games.frozen_lake:FrozenLake",
    },
}

_registered: dict[tuple[Kind, str], Any] = {}


def register(kind: Kind, name: str, plugin: Any) -> None:
    """Make a plug-in known for this process; doing so again with the same one changes nothing.

    Args:
        plugin: see the head of this module; a string `module:attribute` is imported when it is asked for.

    Raises:
        BadInput: the name exists, or there is no such kind of plug-in.
    """
    if kind not in BUILT_IN:
        raise BadInput(f"there are no plug-ins of kind '{kind}'{nearest(kind, list(BUILT_IN))}")
    known = _registered.get((kind, name))
    if (known is None and name in names(kind)) or (known is not None and known is not plugin):
        raise BadInput(f"there is {'an' if kind[0] in 'ae' else 'a'} {kind} '{name}' already; choose another name")
    _registered[kind, name] = plugin


def names(kind: Kind) -> list[str]:
    """All plug-ins of a kind by name: built in, registered, and those of installed packages."""
    registered = [name for of, name in _registered if of == kind]
    return list(dict.fromkeys([*BUILT_IN[kind], *registered, *_entry_points(kind)]))


def find(kind: Kind, name: str) -> Any:
    """A plug-in by name, imported if it is not yet.

    Raises:
        BadInput: there is none of that name, or the package that brings it cannot be imported.
    """
    plugin = _registered.get((kind, name), BUILT_IN[kind].get(name))
    if isinstance(plugin, str):
        module, _, attribute = plugin.partition(":")
        return getattr(importlib.import_module(module), attribute)
    if plugin is not None:
        return plugin
    if name not in _entry_points(kind):
        raise BadInput(f"there is no {kind} '{name}'{nearest(name, names(kind))}")
    entry = _entry_points(kind)[name]
    try:
        return entry.load()
    except Exception as error:  # a stranger's package may fail in any way; all others go on working
        package = entry.dist.name if entry.dist else entry.module
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadInput(
            f"the {kind} '{name}' of the package '{package}' cannot be imported ({reason}); fix or uninstall that "
            "package, or choose another"
        ) from error


@cache
def _entry_points(kind: Kind) -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=f"sightline.{kind}")
    return {entry.name: entry for entry in found if entry.name not in BUILT_IN[kind]}
