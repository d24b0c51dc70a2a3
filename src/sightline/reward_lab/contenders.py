"""Rewards that are compared: each is the task's recipe with other words, another model, or other pictures.

    sightline lab cartpole --reward own --reward "red=goal=a red car" --reward "alpha=reward.alpha=0,0.5,1"

A value that is a list makes several of one, as in `sightline sweep`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline import registry
from sightline.config.bundled import bundled_recipes
from sightline.config.grid import Grid, label_of_text, parse_grid, split_at_commas
from sightline.config.loading import for_control, is_yaml_text, load_recipe
from sightline.config.recipe import ControlRecipe
from sightline.envs.naming import find_environment
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.rewards.base import RewardModel
from sightline.rewards.config import resolved_words

OWN = "own"
"""Name of the recipe's own reward, where no other is named."""
KEYS = ("goal", "baseline", "reward", "env_options")
"""Keys of a recipe in which rewards that are compared may differ."""
_NEXT_KEY = re.compile(r",(?=\s*[a-z_]\w*(?:\.\w+)*=)")


@dataclass(frozen=True)
class Contender:
    """A reward that is compared with others.

    Attributes:
        name: for the user.
        recipe: with its words.
        model: a reward model that is there already, in place of the recipe's reward.
    """

    name: str
    recipe: ControlRecipe
    model: RewardModel | None = None

    @property
    def feature_source(self) -> str | None:
        """What its features come from; None where they are kept for nobody else."""
        return None if self.model is not None else self.recipe.reward.feature_source


def contenders(
    task: str, overrides: Sequence[str], rewards: Mapping[str, Sequence[str]], sentences: Sequence[str] = ()
) -> list[Contender]:
    """The rewards that are named, each with a recipe of its own.

    Args:
        task: a recipe, a task, or a Gymnasium id.
        overrides: `key=value` of all of them; one of `KEYS` may be a list.
        rewards: name -> overrides of its own; a list in one makes several rewards. Empty: the recipe's own.
        sentences: goals that each reward is tried with.

    Raises:
        BadInput: two have the same name, a key is none of `KEYS`, or a recipe is refused.
    """
    if sentences:
        quoted = ",".join("'" + sentence.replace("'", "''") + "'" for sentence in sentences)
        overrides = [*overrides, f"goal={quoted}"]
    everybodys = parse_grid(overrides)
    for key in everybodys.varied:
        _check_key(key, "a list")
    compared: list[Contender] = []
    for name, own_overrides in (rewards or {OWN: ()}).items():
        for override in own_overrides:
            _check_key(override.partition("=")[0], f"reward '{name}'")
        grid = _own_grid(name, own_overrides, everybodys)
        for values in grid.combinations():
            cell = [*everybodys.fixed, *grid.fixed, *(f"{key}={value}" for key, value in values.items())]
            compared.append(_contender(task, _cell_name(name, values), cell))
    names = [contender.name for contender in compared]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"two rewards are called '{twice[0]}'; give each --reward a name of its own")
    return compared


def parse_reward(text: str, option: str = "--reward") -> tuple[str, list[str]]:
    """Split `NAME=key=value,key=value` into the name and the overrides.

    A comma ends a value only where `key=` comes next, outside of quotes; all others belong to a sentence or a list.

    Raises:
        BadInput: it has no name.
    """
    name, equals, rest = text.partition("=")
    name = name.strip()
    if not name or (equals and not re.match(r"\s*[a-z_]\w*(\.\w+)*=", rest)):
        example = "side=camera=side" if option == "--view" else "red=goal=a red car"
        raise BadInput(f"{option} '{text[:80]}': say NAME=key=value,…, such as {option} \"{example}\"")
    overrides: list[str] = []
    for part in _NEXT_KEY.split(rest) if equals else ():
        if overrides and _is_open(overrides[-1]):
            overrides[-1] += f",{part}"
        else:
            overrides.append(part.lstrip())
    return name, overrides


def parse_rewards(texts: Sequence[str], option: str = "--reward") -> dict[str, list[str]]:
    """The rewards, or views, of a command, name -> overrides; see `parse_reward`.

    Raises:
        BadInput: a name is missing, or used twice.
    """
    rewards: dict[str, list[str]] = {}
    for text in texts:
        name, overrides = parse_reward(text, option)
        if name in rewards:
            raise BadInput(f"two {option[2:]}s are called '{name}'; give each {option} a name of its own")
        rewards[name] = overrides
    return rewards


def as_overrides(keys: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Recipe keys as a command's overrides. Each value of a mapping is one, whatever commas it has."""
    if not isinstance(keys, Mapping):
        return list(keys)
    overrides = []
    for key, value in keys.items():
        if isinstance(value, str):
            text = "'" + value.replace("'", "''") + "'"
        else:
            text = json.dumps(value)
        overrides.append(f"{key}={text}")
    return overrides


def _is_open(override: str) -> bool:
    """Whether a quote or a bracket of the value is still open, so that a comma belongs to it."""
    value = override.partition("=")[2]
    return len(split_at_commas(f"{value},")) == len(split_at_commas(value))


def _check_key(key: str, of: str) -> None:
    if key.partition(".")[0] not in KEYS:
        raise BadInput(f"{of}: {key} is no key of a reward; rewards that are compared differ in {', '.join(KEYS)}")


def _own_grid(name: str, overrides: Sequence[str], everybodys: Grid) -> Grid:
    """The grid of a reward: its own overrides, and the lists of all rewards for keys that it does not say itself."""
    own_keys = {override.partition("=")[0] for override in overrides}
    lists = [f"{key}={','.join(values.values())}" for key, values in everybodys.varied.items() if key not in own_keys]
    try:
        return parse_grid([*lists, *overrides])
    except BadInput as error:
        raise BadInput(f"reward '{name}': {error}") from error


def _cell_name(name: str, values: dict[str, str]) -> str:
    """The name of a reward, and which of its listed values this one has."""
    labels = [f"{key.rpartition('.')[2]}={label_of_text(key, value)}" for key, value in values.items()]
    return " ".join([name, *labels])


def _contender(task: str, name: str, overrides: Sequence[str]) -> Contender:
    try:
        recipe = load_task(task, overrides)
        # Before its words: there are none for an environment that does not exist.
        find_environment(find_task(recipe.env).env, registry.names("env"))
        words = resolved_words(recipe, find_task(recipe.env))
    except BadInput as error:
        raise BadInput(f"reward '{name}': {error}") from error
    if recipe.reward.teaching is not None:
        raise BadInput(
            f"reward '{name}': reward.kind={recipe.reward.kind} is learned in a run; name another kind, or the run's "
            "folder by --run"
        )
    return Contender(name, recipe.model_copy(update={key: tuple(value) for key, value in words.items()}))


def load_task(name: str, overrides: Sequence[str]) -> ControlRecipe:
    """The recipe of a name; for a task without one, or any environment, a recipe of that alone.

    Raises:
        BadInput: as `load_recipe`; or it is for an agent.
    """
    is_recipe = name in bundled_recipes() or is_yaml_text(name) or os.path.isfile(name)
    if is_recipe:
        return for_control(load_recipe(name, overrides))
    # `env=…` in its place, as `sightline train` takes it.
    env = name.removeprefix("env=")
    return for_control(load_recipe(None, [f"env={env}", *overrides]))
