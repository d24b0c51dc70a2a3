"""Recipes of installed packages by name; reading one imports a YAML parser only, and not the package.

A package brings its own by an entry point that names a package of Python, in whose folder they lie as YAML files:

    [project.entry-points."sightline.recipes"]
    my_package = "my_package.recipes"
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

from sightline import registry
from sightline.config.decoding import decoded
from sightline.config.yaml import read_yaml
from sightline.errors import BadInput, warn


def bundled_recipes() -> list[str]:
    """Names of all recipes, sorted."""
    return sorted(_files())


def recipe_text(name: str) -> str:
    """Text of a recipe, in YAML.

    Raises:
        BadInput: its file cannot be read.
    """
    _warn_of_hidden(name)
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


@dataclass(frozen=True)
class PackageOfRecipes:
    """Recipes of one package.

    Attributes:
        name: of the package, as pip knows it.
        files: their files.
        fault: why there are none, in one line; empty where there are some.
    """

    name: str
    files: Sequence[Path]
    fault: str = ""


@cache
def packages_of_recipes() -> list[PackageOfRecipes]:
    """All packages that bring recipes, Sightline's own first."""
    return [_recipes_of(entry) for entry in registry.entry_points("recipes")]


def _recipes_of(entry: EntryPoint) -> PackageOfRecipes:
    name = registry.package_of(entry)
    cannot = f"the recipes of the package '{name}' cannot be found"
    folders = [folder for folder in _folders(entry.module) if folder.is_dir()]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.suffix in (".yaml", ".yml")]
    fault = ""
    if not folders:
        advice = registry.advice_on(entry, f"correct its entry point '{entry.name}', or uninstall it")
        fault = f"{cannot}: there is no package '{entry.module}'; {advice}"
    elif not files:
        advice = registry.advice_on(entry, "build it with them: as package-data, where setuptools builds it")
        fault = f"{cannot}: '{entry.module}' holds no YAML files; {advice}"
    return PackageOfRecipes(name, files, fault)


@cache
def _files() -> dict[str, Path]:
    """Name of each recipe -> its file. Sightline's packages come first, and keep a name that others use as well."""
    files: dict[str, Path] = {}
    for package in packages_of_recipes():
        if package.fault:
            warn(package.fault)
        for file in package.files:
            files.setdefault(file.stem, file)
    return files


@cache
def hidden_recipes() -> dict[str, list[str]]:
    """Recipes that are not used, since another package has one of that name: name -> a line for each."""
    owners: dict[str, str] = {}
    lines: dict[str, list[str]] = {}
    for package in packages_of_recipes():
        for file in package.files:
            owner = owners.setdefault(file.stem, package.name)
            if file != _files()[file.stem]:
                lines.setdefault(file.stem, []).append(registry.not_used("recipe", file.stem, package.name, owner))
    return lines


@cache  # a line is told once
def _warn_of_hidden(name: str) -> None:
    for line in hidden_recipes().get(name, ()):
        warn(line)


def _folders(package: str) -> list[Path]:
    """Where a package would lie. Only its outermost package is looked for, since that imports nothing."""
    root, *inner = package.split(".")
    spec = importlib.util.find_spec(root)
    if spec is None:
        return []
    return [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
