"""What a run folder may not do by itself: name code that is imported, or addresses that are asked, in its recipe.

A recipe that the user writes, or keys that the user says on the command line, are the user's own. The recipe inside of
a run folder may come from anybody, and it is read when the run is evaluated, resumed or labelled. It may name what
comes with Sightline, Gymnasium's registered environments, and algorithms of Stable-Baselines3; anything else only with
`--trust`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sightline.config.recipe import ControlRecipe, Recipe
from sightline.errors import BadInput

KNOWN_PACKAGES = ("stable_baselines3", "sb3_contrib")
"""Packages whose algorithms a run folder may name."""


def check_trusted(recipe: Recipe, folder: Path, stated: Sequence[str] = (), asks: bool = True) -> None:
    """Refuse a run folder whose recipe reaches beyond it.

    Args:
        stated: recipe keys that the user has said in the same words.
        asks: whether its teacher will be asked.

    Raises:
        BadInput: naming the first key, and what it says.
    """
    for key, value, what in (*_named_code(recipe), *(_named_places(recipe) if asks else ())):
        if key not in stated:
            raise BadInput(
                f"'{folder}' names {what} ({key}={value[:200]}); if you trust whoever made this folder, say --trust"
            )


def _named_code(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Key, value and meaning of what would be imported."""
    import gymnasium

    if ":" in recipe.env and recipe.env not in gymnasium.registry:
        yield "env", recipe.env, "code of its own"
    if isinstance(recipe, ControlRecipe):
        algorithm = recipe.learner.algorithm
        if "." in algorithm and algorithm.partition(".")[0] not in KNOWN_PACKAGES:
            yield "learner.algorithm", algorithm, "code of its own"


def _named_places(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Key, value and meaning of where a teacher's questions, the user's keys and money, labels and metrics would go."""
    if recipe.wandb:
        yield "wandb", recipe.wandb, "a project that metrics would be sent to"
    if isinstance(recipe, ControlRecipe):
        for key, value, what in recipe.reward.reaches():
            yield f"reward.{key}", value, what


def is_this_machine(url: str) -> bool:
    """Whether a server's address leads to this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
