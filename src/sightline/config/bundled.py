"""Recipes of installed packages by name; reading one imports a YAML parser only.

A package brings its own by an entry point that names a package of Python, in whose folder they lie as YAML files:

    [project.entry-points."sightline.recipes"]
    my_package = "my_package.recipes"
"""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache
from pathlib import Path

from sightline import registry
from sightline.config.yaml import read_yaml
from sightline.errors import reason_of


def bundled_recipes() -> list[str]:
    """Names of all recipes, sorted."""
    return sorted(_files())


def recipe_text(name: str) -> str:
    """Text of a recipe, in YAML."""
    return _files()[name].read_text(encoding="utf-8")


def recipe_description(name: str) -> str:
    """What a recipe is for, in a sentence."""
    return str(read_yaml(recipe_text(name), name).get("description", ""))


@cache
def _files() -> dict[str, Path]:
    """Name of each recipe -> its file. Sightline's packages come first, and keep a name that others use as well."""
    files: dict[str, Path] = {}
    for entry in registry.entry_points("recipes").values():
        try:
            spec = importlib.util.find_spec(entry.module)
        except (Exception, SystemExit) as error:  # the package around it may fail in any way
            warnings.warn(f"the recipes of '{entry.name}' cannot be found: {reason_of(error)}", stacklevel=2)
            continue
        if spec is None:
            continue
        for folder in spec.submodule_search_locations or []:
            for file in sorted(Path(folder).glob("*.yaml")):
                files.setdefault(file.stem, file)
    return files
