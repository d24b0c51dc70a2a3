"""Plug-ins by name: rewards, teachers, kinds of feedback, algorithms, providers of chat models, and environments.

A plug-in is one module, which holds its recipe block, its class and what it needs. It is known by one line in
`BUILT_IN` and imported when it is first asked for. Others bring theirs by `register`, or by an entry point of their
package, which needs no line of code to be found:

    [project.entry-points."sightline.reward"]
    brightness = "my_package.brightness:BrightnessConfig"

What a plug-in is:

    reward, teacher, feedback, algorithm    a recipe block, a subclass of the base in `sightline.config.blocks`
    provider                                a class with `of(config)`, see `sightline.models.chat.messages.ChatModel`
    env                                     a `sightline.envs.tasks.Task`
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from functools import cache
from typing import Any, Literal

from sightline.errors import BadInput, nearest, reason_of

Kind = Literal["reward", "teacher", "feedback", "algorithm", "provider", "env"]

BUILT_IN: dict[Kind, dict[str, str]] = {
    "reward": {
        "zero_shot": "sightline.rewards.zero_shot:ZeroShotConfig",
        "image_text_matching": "sightline.rewards.image_text_matching:ImageTextMatchingConfig",
        "progress": "sightline.rewards.progress:ProgressConfig",
        "learned": "sightline.preferences.config:LearnedConfig",
        "ground_truth": "sightline.rewards.ground_truth:GroundTruthConfig",
        "sparse": "sightline.rewards.sparse:SparseConfig",
        "success": "sightline.rewards.success:SuccessConfig",
        "shaped": "sightline.rewards.shaped:ShapedConfig",
        "sum": "sightline.rewards.weighted_sum:WeightedSumConfig",
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
        "cartpole": "sightline.envs.control.cartpole:TASK",
        "cartpole-continuous": "sightline.envs.control.cartpole_continuous:TASK",
        "mountain-car": "sightline.envs.control.mountain_car:TASK",
        "mountain-car-textured": "sightline.envs.control.mountain_car:TEXTURED",
        "drawer-open": "sightline.envs.control.metaworld:DRAWER_OPEN",
        "sweep-into": "sightline.envs.control.metaworld:SWEEP_INTO",
        "soccer": "sightline.envs.control.metaworld:SOCCER",
        "pendulum": "sightline.envs.control.pendulum:TASK",
        "humanoid-standing": "sightline.envs.humanoid.env:STANDING",
        "humanoid-arms-raised": "sightline.envs.humanoid.env:ARMS_RAISED",
        "humanoid-hands-on-hips": "sightline.envs.humanoid.env:HANDS_ON_HIPS",
        "humanoid-arms-crossed": "sightline.envs.humanoid.env:ARMS_CROSSED",
        "humanoid-one-leg": "sightline.envs.humanoid.env:ONE_LEG",
        "humanoid-kneeling": "sightline.envs.humanoid.env:KNEELING",
        "humanoid-splits": "sightline.envs.humanoid.env:SPLITS",
        "humanoid-lotus": "sightline.envs.humanoid.env:LOTUS",
        "fold-cloth": "sightline.envs.deformables.cloth:TASK",
        "straighten-rope": "sightline.envs.deformables.rope:TASK",
        "pass-water": "sightline.envs.deformables.water:TASK",
        "numberline": "sightline.envs.games.number_line:TASK",
        "ezpoints": "sightline.envs.games.ez_points:TASK",
        "points24": "sightline.envs.games.points24:TASK",
        "blackjack": "sightline.envs.games.blackjack:TASK",
        "sokoban": "sightline.envs.games.sokoban:TASK",
        "frozenlake": "sightline.envs.games.frozen_lake:TASK",
        "household": "sightline.envs.household.env:TASK",
        "household-thor": "sightline.envs.household.thor:TASK",
        "miniwob": "sightline.envs.games.miniwob:TASK",
        "questions": "sightline.envs.games.questions:TASK",
        "babyai": "sightline.envs.games.babyai:TASK",
    },
}

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
    if plugin is None or (isinstance(plugin, str) and not all(plugin.partition(":"))):
        raise BadInput(
            f"the {kind} '{name}' must be the plug-in itself, or 'module:attribute', from where it is imported, not "
            f"{plugin!r:.80}"
        )
    known = _registered.get((kind, name))
    # A module that registers its own plug-in may also be what a string or an entry point of that name leads to.
    entry = _entry_points(kind).get(name)
    places = [entry.value] if entry is not None else [known] if isinstance(known, str) else []
    if any(_is_at(place, plugin) for place in places):
        return
    if (known is None and name in names(kind)) or (known is not None and known != plugin):
        raise BadInput(f"there is {'an' if kind[0] in 'ae' else 'a'} {kind} '{name}' already; choose another name")
    _registered[kind, name] = plugin


def names(kind: Kind) -> list[str]:
    """All plug-ins of a kind by name: built in, registered, and those of installed packages."""
    registered = [name for of, name in _registered if of == kind]
    return list(dict.fromkeys([*BUILT_IN[kind], *registered, *_entry_points(kind)]))


def find(kind: Kind, name: str) -> Any:
    """A plug-in by name, imported if it is not yet.

    Raises:
        BadInput: there is none of that name, or what brings it cannot be imported.
    """
    if name in BUILT_IN[kind]:
        return _imported(BUILT_IN[kind][name])
    plugin = _registered.get((kind, name), _entry_points(kind).get(name))
    if plugin is None:
        raise BadInput(f"there is no {kind} '{name}'{nearest(name, names(kind))}")
    if not isinstance(plugin, str | importlib.metadata.EntryPoint):
        return plugin
    try:
        return _imported(plugin) if isinstance(plugin, str) else plugin.load()
    except (Exception, SystemExit) as error:  # a stranger's module may fail in any way; all others go on working
        reason = reason_of(error)
        if isinstance(plugin, str):
            where, advice = f"at '{plugin}'", "fix that module"
        else:
            package = plugin.dist.name if plugin.dist else plugin.module
            where, advice = f"of the package '{package}'", "fix or uninstall that package"
        raise BadInput(
            f"the {kind} '{name}' {where} cannot be imported ({reason}); {advice}, or choose another"
        ) from error


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
    found = importlib.metadata.entry_points(group=f"sightline.{kind}")
    return {entry.name: entry for entry in found if entry.name not in BUILT_IN[kind]}
