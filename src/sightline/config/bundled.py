"""The recipes that come with Sightline, by name. Reading one imports nothing but a YAML parser."""

from __future__ import annotations

from importlib import resources

from sightline.config.yaml import read_yaml


def bundled_recipes() -> list[str]:
    """Names of the recipes that come with Sightline."""
    folder = resources.files("sightline.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """Text of a bundled recipe, in YAML."""
    return (resources.files("sightline.recipes") / f"{name}.yaml").read_text(encoding="utf-8")


def recipe_description(name: str) -> str:
    """What a bundled recipe is for, in a sentence."""
    return str(read_yaml(recipe_text(name), name).get("description", ""))
