"""Trust in run folders: a folder's recipe may not import code or contact services without `--trust`.

A recipe that the user writes, or keys given on the command line, are the user's own. The recipe in a run folder may
come from a stranger, and it is read when the run is evaluated, resumed or labelled. Without `--trust` it may name only
what comes with Sightline, plug-ins that are installed, Gymnasium's registered environments, and algorithms of
Stable-Baselines3.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sightline import registry
from sightline.config.named_code import is_allowed, places_in
from sightline.config.recipe import AgentRecipe, ControlRecipe, Recipe
from sightline.config.secrets import masked
from sightline.errors import BadInput

KNOWN_PACKAGES = ("stable_baselines3", "sb3_contrib")
"""Packages whose algorithms a run folder may name without `--trust`."""


def check_trusted(
    recipe: Recipe, folder: Path, stated_keys: Sequence[str] = (), asks: bool = True, scores: bool = True
) -> None:
    """Refuse a run folder whose recipe names code or services of its own.

    Args:
        recipe: the recipe in the folder.
        folder: the run folder, for the message.
        stated_keys: recipe keys that the user has given with the same value.
        asks: the run's teacher will be queried.
        scores: its reward model will be made, which may be one that asks a server for every reward.

    Raises:
        BadInput: naming the first such key and its value.
    """
    foreign_keys = list(_code_keys(recipe))
    is_taught = recipe.reward.teaching is not None
    if asks or (scores and not is_taught):
        foreign_keys += _keys_of_reward(recipe)
    if asks:
        foreign_keys += _external_keys(recipe)
    for key, value, what in foreign_keys:
        if key not in stated_keys:
            raise _not_trusted(folder, key, value, what)


def check_code_of_blocks(document: dict[str, Any], folder: Path) -> None:
    """Refuse a run folder whose recipe has blocks from code that it names, before any of them is imported.

    Raises:
        BadInput: naming the first such key and its value.
    """
    for key, place in places_in(document):
        if not is_allowed(place):
            raise _not_trusted(folder, key, place, "code of its own")


def _not_trusted(folder: Path, key: str, value: str, what: str) -> BadInput:
    return BadInput(
        f"'{folder}' names {what} ({key}={masked(value)[:200]}); if you trust whoever made this folder, add "
        "--trust (in Python: Run(…, trust=True))"
    )


def _code_keys(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Recipe keys that import code: (key, value, meaning)."""
    import gymnasium

    registry.register_environments()
    # What a plug-in brings was installed by the user, and our own adapters are no code of the folder's.
    is_ours = recipe.env.startswith("sightline.adapters:")
    if (
        ":" in recipe.env
        and not is_ours
        and recipe.env not in gymnasium.registry
        and recipe.env not in registry.names("env")
    ):
        yield "env", recipe.env, "code of its own"
    if isinstance(recipe, ControlRecipe):
        algorithm = recipe.learner.algorithm
        if "." in algorithm and algorithm.partition(".")[0] not in KNOWN_PACKAGES:
            yield "learner.algorithm", algorithm, "code of its own"


def _keys_of_reward(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Recipe keys by which a reward or its teacher sends pictures, credentials, money or labels elsewhere."""
    for key, value, what in recipe.reward.reaches():
        yield f"reward.{key}", value, what


def _external_keys(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Recipe keys by which training sends pictures, credentials or metrics elsewhere: (key, value, meaning)."""
    if recipe.wandb:
        yield "wandb", recipe.wandb, "a project that metrics would be sent to"
    if isinstance(recipe, AgentRecipe) and recipe.policy.sampler == "server":
        server = recipe.policy.server
        for address in server.addresses:
            if not is_this_machine(address):
                yield "policy.server.url", address, "a server that would be sent pictures"
        if server.weights is not None:
            yield "policy.server.weights", server.weights, "a folder that weights would be written to"
        if server.key_env is not None:
            yield "policy.server.key_env", server.key_env, "a key that would be used"


def is_this_machine(url: str) -> bool:
    """True if a URL's host is this machine: a loopback address, or one that this machine has in a network."""
    try:
        host = urlsplit(url).hostname or ""
        if host == "localhost":
            return True
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:127.0.0.1
    return address.is_loopback or address.is_unspecified or _is_own(address)


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is one of this machine's own in a network."""
    import psutil

    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.address.partition("%")[0] == str(address):  # IPv6 addresses may end with their interface
                return True
    return False
