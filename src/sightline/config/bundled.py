"""Recipes of installed packages by name; reading one imports a YAML parser only, and not the package.

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
from sightline.config.decoding import decoded
from sightline.config.yaml import read_yaml
from sightline.errors import BadInput


def bundled_recipes() -> list[str]:
    """Names of all recipes, sorted."""
    return sorted(_files())


def recipe_text(name: str) -> str:
    """Text of a recipe, in YAML.

    Raises:
        BadInput: its file cannot be read.
    """
    file = _files()[name]
    try:
        return decoded(file.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read the recipe {name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is no recipe: it is not text in UTF-8") from error


def recipe_description(name: str) -> str:
    """What a recipe is for, in a sentence.

    Raises:
        BadInput: it is no recipe.
    """
    document = read_yaml(recipe_text(name), name)
    if not isinstance(document, dict):
        raise BadInput(f"{name} must be a YAML map of keys and values")
    return str(document.get("description", ""))


@cache
def _files() -> dict[str, Path]:
    """Name of each recipe -> its file. Sightline's packages come first, and keep a name that others use as well."""
    files: dict[str, Path] = {}
    for entry in registry.entry_points("recipes"):
        folders = [folder for folder in _folders(entry.module) if folder.is_dir()]
        if not folders:
            problem = f"there is no package '{entry.module}'"
            warnings.warn(f"the recipes of '{entry.name}' cannot be found: {problem}", stacklevel=2)
        for folder in folders:
            for file in sorted(folder.glob("*.yaml")):
                files.setdefault(file.stem, file)
    return files


def _folders(package: str) -> list[Path]:
    """Where a package would lie. Only its outermost package is looked for, since that imports nothing."""
    root, *inner = package.split(".")
    spec = importlib.util.find_spec(root)
    if spec is None:
        return []
    return [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
