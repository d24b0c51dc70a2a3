"""Load recipes: from a name or a file and `key.sub=value` overrides to a checked recipe, with errors of one line."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, Tag, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from sightline import registry
from sightline.config.basics import MAX_SENTENCE
from sightline.config.blocks import Plugin, unknown_kind
from sightline.config.bundled import bundled_recipes, recipe_text
from sightline.config.decoding import decoded
from sightline.config.named_code import allow, is_place, place_of, places_in, split_place
from sightline.config.recipe import AgentRecipe, CheckedRecipe, ControlRecipe, Recipe
from sightline.config.secrets import refuse_secrets
from sightline.config.vlmrm import is_vlmrm, translations
from sightline.config.yaml import MAX_CHARACTERS, read_yaml
from sightline.errors import BadInput, nearest


def load_recipe(
    recipe: str | Mapping[str, Any] | None, overrides: Sequence[str] | Mapping[str, Any] = (), own: bool = True
) -> Recipe:
    """Read a recipe and apply overrides.

    Args:
        recipe: a bundled name, the path of a YAML file, `-` for YAML on stdin, YAML itself (a text that
            `is_yaml_text`), a mapping, or None to start from the defaults.
        overrides: `key.sub=value`, where values are read as YAML if they are numbers, booleans, null, lists or maps,
            and as text otherwise; or a mapping of `key.sub` to values. A mapping's classes and functions are named by
            `module:attribute` or `file.py:attribute`.
        own: whether the recipe is the user's, as overrides always are: only then may blocks of it be imported from
            code that it names.

    Raises:
        BadInput: in one line, with the nearest valid name where a name is unknown; or it holds a key or a password.
    """
    document: dict[str, Any] = {}
    if isinstance(recipe, Mapping):
        document = copy.deepcopy(_with_names(recipe))
    elif recipe:
        document = read_document(recipe)
    changes = _with_names(overrides) if isinstance(overrides, Mapping) else dict(map(parse_override, overrides))
    # What the user has named may be imported; what only a stranger's recipe names may not.
    allow(place for _, place in places_in(changes))
    if own:
        allow(place for _, place in places_in(document))
    _check_agreement(changes)
    # Whole blocks come before their keys. What a block is comes first, for it decides which of its keys there are.
    for key in sorted(changes, key=_outer_first):
        _apply(document, key, copy.deepcopy(changes[key]))
    refuse_secrets(document)
    # Keys that people bring along have better lines than "unknown key".
    vlmrm_keys = list(translations(document, lambda key: _has_key(document, key)))
    if vlmrm_keys:
        hint = ""
        if is_vlmrm(document):
            hint = "; 'sightline convert' makes a recipe of the whole"
        raise BadInput(f"these keys are vlmrm's: {'; '.join(vlmrm_keys)}{hint}")
    outdated = _outdated_keys(document)
    if outdated:
        raise BadInput("; ".join(f"{key} is called {RENAMED[key]} now" for key in outdated))
    if "env" not in document:
        raise BadInput("no environment: name a recipe (see 'sightline recipes') or say env=… goal=…")
    return validate_recipe(document)


def _with_names(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A document of plain data, whose environment and kinds of blocks are named, where a class or a function was given
    for one.

    Raises:
        BadInput: it has no name by which it is found again; or there is something that no file holds.
    """
    plain = {}
    for key, value in document.items():
        path = f"{prefix}{key}"
        if path.endswith("options"):
            value = _plain(value, path)
        elif isinstance(value, Mapping):
            value = _with_names(value, f"{path}.")
        elif (path == "env" or path.endswith(".kind")) and not isinstance(value, str | int | float | list | None):
            value = place_of(value, path)
        plain[key] = value
    return plain


def _plain(value: Any, path: str) -> Any:
    """What an environment, a learner or a teacher is given, as files hold it: NumPy's numbers and arrays as Python's
    own, paths as texts.

    Raises:
        BadInput: it is anything else.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        return {key: _plain(child, f"{path}.{key}") for key, child in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(child, path) for child in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, str | int | float | None):
        return value
    kind = type(value).__name__
    raise BadInput(f"{path}: a recipe is written to files, and {kind} is none of texts, numbers, lists and maps")


RENAMED = {
    "in_words": "text_only",
    "rollouts.practice": "rollouts.train_env_options",
    "rollouts.reward": "reward.kind",
    "warm_start.truthful": "warm_start.stop_at",
    "algorithm.divide_by_deviation": "algorithm.deviation",
    "alarms.truthful_drop": "alarms.perception_drop",
    "reward.fitting.fresh": "reward.fitting.reset_weights",
    "reward.teacher.patience": "reward.teacher.timeout",
}
"""Keys of earlier versions: old name -> present one. A recipe that uses one is refused with the present name; the
recipe in a run folder is read with its keys renamed."""
_RENAMED_VALUES: dict[str, dict[Any, str]] = {
    "rollouts.reward": {"game": "ground_truth"},
    "algorithm.divide_by_deviation": {True: "population", False: "none"},
}


def _outdated_keys(document: dict[str, Any]) -> list[str]:
    """The keys of a document that have another name now; a plug-in of others may well have a key of the old name."""
    outdated = []
    for old_key, new_key in RENAMED.items():
        *path, name = old_key.split(".")
        block = _block_at(document, path)
        is_used = name in _part(document, path)
        is_old = block is not None and name not in block.model_fields
        if is_used and is_old and _has_key(document, new_key):
            outdated.append(old_key)
    return outdated


def rename_outdated_keys(document: dict[str, Any]) -> None:
    """Rename, in place, the keys that an earlier version has written into a run folder."""
    for key in _outdated_keys(document):
        *path, last = key.split(".")
        value = _part(document, path).pop(last)
        if isinstance(value, str | bool):
            value = _RENAMED_VALUES.get(key, {}).get(value, value)
        _apply(document, RENAMED[key], value)


def _has_key(document: dict[str, Any], key: str) -> bool:
    *path, last = key.split(".")
    block = _block_at(document, path)
    return block is not None and last in block.model_fields


def _part(document: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The part of a document at a path; empty if there is none."""
    place = document
    for name in path:
        part = place.get(name)
        if not isinstance(part, dict):
            return {}
        place = part
    return place


def validate_recipe(document: dict[str, Any]) -> Recipe:
    """Check a recipe given as plain data.

    Raises:
        BadInput: in one line.
    """
    try:
        recipe: Recipe = TypeAdapter(CheckedRecipe).validate_python(document)
    except ValidationError as error:
        raise BadInput(_in_one_line(error, document)) from error
    return recipe


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """A recipe with other values of some keys, such as `reward.url`."""
    if not values:
        return recipe
    document = recipe.model_dump(mode="json")
    for key, value in values.items():
        _apply(document, key, value)
    return validate_recipe(document)


def for_control(recipe: Recipe) -> ControlRecipe:
    """A recipe, known to be one for a policy on states.

    Raises:
        BadInput: it is for an agent.
    """
    if not isinstance(recipe, ControlRecipe):
        raise BadInput("this is a recipe for an agent; the command is for runs with a reward or a teacher")
    return recipe


def for_agent(recipe: Recipe) -> AgentRecipe:
    """A recipe, known to be one for an agent.

    Raises:
        BadInput: it is for a policy on states.
    """
    if not isinstance(recipe, AgentRecipe):
        raise BadInput("this is no recipe for an agent; add role=agent, or take one that has it ('sightline recipes')")
    return recipe


def _root(document: dict[str, Any]) -> type[BaseModel]:
    """Class of the recipe that a document holds."""
    return AgentRecipe if document.get("role") == "agent" else ControlRecipe


def load_game(name: str, overrides: Sequence[str]) -> AgentRecipe:
    """An agent's recipe (see `load_recipe`), or that of a game by the name of its environment, where no recipe has it.

    Raises:
        BadInput: as `load_recipe`; or it is no recipe for an agent.
    """
    is_recipe = name in bundled_recipes() or is_yaml_text(name) or os.path.isfile(name)
    if not is_recipe and _is_environment(name):
        return for_agent(load_recipe(None, ["role=agent", f"env={name}", *overrides]))
    return for_agent(load_recipe(name, overrides))


def _is_environment(name: str) -> bool:
    """Whether a name is that of a task, or of the place of an environment."""
    return name in registry.names("env") or is_place(name)


def is_yaml_text(argument: str) -> bool:
    """Recognise a recipe given as YAML text: several lines, or `key: value`, and no override that holds such text."""
    is_text = "\n" in argument or ": " in argument
    return is_text and not re.match(r"[\w.]+=", argument) and not os.path.isfile(argument)


def read_document(name_or_path: str) -> dict[str, Any]:
    name = name_or_path
    if name_or_path == "-":
        name = "the recipe on stdin"
        try:
            text = sys.stdin.read(MAX_CHARACTERS + 1) if sys.stdin is not None else ""
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{name} cannot be read: it is not text in UTF-8") from error
        if not text.strip():
            raise BadInput(f"{name} is empty; pipe a YAML file into the command, or name one")
    elif is_yaml_text(name_or_path):
        name = "the recipe that was given as text"
        text = name_or_path
    elif name_or_path in bundled_recipes():
        text = recipe_text(name_or_path)
    elif Path(name_or_path).is_file() or is_stream(name_or_path):
        try:
            # A character more than is allowed, in the widest encoding: what is too large is refused when it is parsed.
            with Path(name_or_path).open("rb") as file:
                text = decoded(file.read(4 * (MAX_CHARACTERS + 1)))
        except OSError as error:
            raise BadInput(f"cannot read the recipe {name_or_path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{name_or_path} is no recipe: it is not text in UTF-8") from error
    elif Path(name_or_path).is_dir():
        inside = Path(name_or_path) / "recipe.yaml"
        hint = ""
        if inside.is_file():
            hint = f"; the recipe of that run is {inside}, and --resume goes on with it"
        raise BadInput(f"'{name_or_path}' is a folder; a recipe is a YAML file or a bundled name{hint}")
    elif "/" in name_or_path or Path(name_or_path).suffix in (".yaml", ".yml", ".json"):
        raise BadInput(f"there is no file '{name_or_path}'")
    elif _is_environment(name_or_path):
        raise BadInput(
            f"'{name_or_path}' is an environment, and there is no recipe of that name: say env={name_or_path}"
        )
    else:
        raise BadInput(f"there is no recipe '{name_or_path}'{nearest(name_or_path, bundled_recipes())}")
    document = read_yaml(text, name)
    if document is None:
        raise BadInput(f"{name} is empty; a recipe says at least env=… and goal=…, as YAML: 'env: cartpole'")
    if not isinstance(document, dict):
        raise BadInput(f"{name} must be a YAML map of keys and values")
    document.pop("format", None)  # of a run folder's recipe
    return document


def is_stream(name: str) -> bool:
    """True for a pipe or device, such as that of a shell's `<(…)`, which can be read once."""
    # A Path would raise if this is a long sentence.
    return os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)


def recipe_name(recipe: str | None, loaded: Recipe) -> str:
    """The name of a run: that of the recipe's file, or of its environment where it comes from nowhere."""
    # A Path would raise if this is a long sentence.
    if recipe is not None and recipe != "-" and not is_yaml_text(recipe):
        return Path(recipe).stem
    name = loaded.env
    module, attribute = split_place(name)
    if module.endswith(".py"):
        name = f"{Path(module).stem}-{attribute}"
    # It is the name of a folder.
    return "".join(character if character.isalnum() else "-" for character in name.lower())


def parse_override(override: str) -> tuple[str, Any]:
    """`key=value` as a key and a value."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        hint = "; the recipe comes first" if override in bundled_recipes() else ""
        raise BadInput(f"'{override[:200]}' is not of the form key=value{hint}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadInput(f"the value of {key} is not text in UTF-8")
    return key, _parse_value(key, text)


def _check_agreement(overrides: Mapping[str, Any]) -> None:
    """Refuse overrides of which one would be lost, such as `learner=5 learner.chunk=16`.

    Raises:
        BadInput: naming the two.
    """
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            # A whole block beside a key of it: they may say the same.
            for name, inner_value in flattened(value).items():
                inner_key = f"{key}.{name}"
                if overrides.get(inner_key, inner_value) != inner_value:
                    raise BadInput(
                        f"{key} says {name}: {str(inner_value)[:80]}, and {inner_key} says another; leave one out"
                    )
        elif value is not None and value is not True:
            # A plain value would be overwritten; null and true give way to the keys of the block.
            for inner_key in overrides:
                if inner_key.startswith(f"{key}."):
                    raise BadInput(
                        f"{key}={str(value)[:80]} and {inner_key}={str(overrides[inner_key])[:80]} exclude each other; "
                        "leave one out"
                    )


def _apply(document: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    place = document
    for depth, parent in enumerate(parents, 1):
        if not isinstance(place.get(parent), dict):
            # `videos: false` and `warm_start: null` give way to what is said of them; a name or a number does not.
            if place.get(parent) is not None and not isinstance(place[parent], bool):
                path = ".".join(parents[:depth])
                raise BadInput(f"{key}: {path} is {str(place[parent])[:80]!r}, which has no keys of its own")
            place[parent] = {}
        place = place[parent]
    if last in ("kind", "algorithm") and place.get(last, value) != value:
        # Another algorithm keeps what it shares with the one before; the rest would be unknown to it.
        block = _kinds(document, parents)(place | {last: value})
        if block is not None:
            for name in list(place):
                if name not in block.model_fields:
                    del place[name]
    place[last] = value


def _outer_first(key: str) -> tuple[int, bool, bool]:
    """Sort key of overrides: outer blocks come before inner ones, the kind of a block before its other keys."""
    names_block = key == "role" or key.endswith((".kind", ".algorithm", ".on_policy"))
    # False sorts before True.
    return key.count("."), not names_block, not key.endswith(".on_policy")


def _kinds(document: dict[str, Any], parents: list[str]) -> Callable[[dict[str, Any]], type[BaseModel] | None]:
    """Map parts of a document, which name a `kind` or an `algorithm`, to the blocks that may be at a path."""
    field = _field_at(document, parents)
    if field is None:
        return lambda part: None
    plugin = _plugin(field)
    if plugin is not None:
        return lambda part: plugin.block(part) if plugin.knows(str(part.get("kind", plugin.default))) else None
    members = _members(field)
    return lambda part: _member(members, part)


def _member(members: dict[str, type[BaseModel]], part: dict[str, Any]) -> type[BaseModel] | None:
    """The block, of those that a field may hold, that a part of a document names; None if it names none."""
    tag = part.get("kind", part.get("algorithm"))
    if tag is None:
        return None
    # A class that is named by its place: its name does not tell which kind of learner it is.
    default = members.get("other")
    if part.get("on_policy") is True:
        default = members.get("other on-policy")
    return members.get(str(tag), default)


def _block_at(document: dict[str, Any], path: Sequence[str]) -> type[BaseModel] | None:
    """The class of the block at a path of a document; None if there is no block."""
    block: type[BaseModel] | None = _root(document)
    place: Any = document
    for name in path:
        if block is None or name not in block.model_fields:
            return None
        field = block.model_fields[name]
        place = place.get(name, {}) if isinstance(place, dict) else {}
        plugin = _plugin(field)
        if plugin is not None:
            try:
                block = plugin.block(place)
            except BadInput:
                return None
            continue
        # A union's block if the document says which, else its first; None for a plain value.
        members = _members(field)
        block = next(iter(members.values()), None)
        if isinstance(place, dict):
            block = _member(members, place) or block
    return block


def _field_at(document: dict[str, Any], path: Sequence[str]) -> FieldInfo | None:
    """The field of a block at a path of a document; None if there is none."""
    if not path:
        return None
    block = _block_at(document, path[:-1])
    if block is None:
        return None
    return block.model_fields.get(path[-1])


def _parse_value(key: str, text: str) -> Any:
    """Parse an override's value: numbers, booleans, null, lists and maps as YAML, everything else as text.

    Where sentences belong only null, what is quoted, and lists are read as YAML.

    Raises:
        BadInput: it begins like a list or a map, and is none.
    """
    first = text.strip()[:1]
    is_quoted = first in ("'", '"')
    is_list = first == "["
    is_mapping = first == "{"
    takes_sentences = key in ("goal", "baseline")
    takes_text = takes_sentences or key in ("description", "prompt")
    if takes_text and not is_quoted and not (is_list and takes_sentences):
        # YAML would read a sentence with a colon as a map, and `yes` as true.
        if takes_sentences and is_mapping and is_map(text):
            raise BadInput(
                f"{key} must be a sentence, or a list of sentences, not a map of keys and values: {text[:80]}"
            )
        if text.strip() in ("null", "Null", "NULL", "~"):
            return None
        return text
    try:
        value = read_yaml(text, f"the value of {key}")
    except BadInput as error:
        if not is_list and not is_mapping:
            return text
        hint = ""
        if isinstance(error.__cause__, yaml.YAMLError):
            hint = f"; if it is plain text, quote it within the quotes: \"{key}='…'\""
        raise BadInput(f"{error}{hint}") from error
    # As it was typed: YAML would strip its blanks.
    if not is_quoted and (isinstance(value, str) or not text.strip()):
        return text
    # `this: a pole`, or a dash alone: YAML, but not meant as such on a command line.
    if isinstance(value, dict | list) and not is_mapping and not is_list:
        return text
    return value


def is_map(text: str) -> bool:
    """Whether a text is a map of keys and values in YAML, in braces."""
    try:
        return text.strip().startswith("{") and isinstance(read_yaml(text, "it"), dict)
    except BadInput:
        return False


def check_sentences(option: str, sentences: Sequence[str]) -> None:
    """Refuse options for sentences that are lists or maps in YAML, as a recipe has them.

    Raises:
        BadInput: saying how several sentences are given.
    """
    for text in sentences:
        try:
            is_list = text.strip().startswith("[") and isinstance(read_yaml(text, "it"), list)
        except BadInput:
            is_list = False
        if is_list or is_map(text):
            raise BadInput(f"{option} takes one sentence, not {text[:80]}; say {option} once for each sentence")
        if not text.strip():
            raise BadInput(f"{option} is empty; write a sentence")
        if len(text) > MAX_SENTENCE:
            raise BadInput(f"{option} has {len(text)} characters; at most {MAX_SENTENCE} are read")


MAX_PROBLEMS = 5
"""Errors of a recipe that are reported at once."""
_PLAIN = {
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "string_type": "must be text; put it in quotes if that is meant",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "tuple_type": "must be a list, such as [a, b]",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a map of keys and values",
    "model_type": "must be a map of keys and values",
}
"""Our words for Pydantic's errors: type of error -> words."""


def _in_one_line(error: ValidationError, document: dict[str, Any]) -> str:
    problems: dict[str, str] = {}
    for item in error.errors():
        path = _path(item["loc"], document)
        if item["type"] != "extra_forbidden":  # which of several types did not fit is no key of the user's
            path = [part for part in path if part not in ("float", "str") and "[" not in part]
        if len(path) == 2 and path[1] == "0" and isinstance(document.get(path[0]), str):
            path.pop()  # one sentence is read as a list of it
        name = ".".join(path)
        if item["type"] == "extra_forbidden":
            problem = _unknown_key(document, path)
        elif item["type"] == "unknown_plugin":
            key = f"{name}.kind" if isinstance(item["input"], dict) else name
            problem = f"{key} {item['msg']}"
        elif item["type"] == "union_tag_invalid" and path and not isinstance(item["input"], dict):
            problem = f"{name} {_PLAIN['dict_type']}"
        elif item["type"] == "union_tag_invalid":
            kinds = item["ctx"]["expected_tags"].replace("'", "").split(", ")
            key = f"{name}.kind" if name else "role"
            problem = f"{key} {unknown_kind(item['ctx']['tag'], kinds)}"
        elif item["type"] == "missing" and path[-1].isdigit():
            name = ".".join(path[:-1])
            problem = f"{name}: has too few values"
        elif item["type"] == "too_long":
            problem = f"{name}: must have {item['ctx']['max_length']} values, not {item['ctx']['actual_length']}"
        elif item["type"] == "missing":
            problem = f"{name} is missing; say {name}=…"
        else:
            message = _PLAIN.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            problem = re.sub(r"^(Input|String|Tuple|Dictionary) should ", "must ", message)
            if name:
                problem = f"{name}: {problem}"
        # A list counts as too short if what it holds is wrong, which is the line that helps.
        if item["type"] == "too_short" and any(other.startswith(f"{name}.") for other in problems):
            continue
        problems.setdefault(name, problem)
    return "; ".join(list(problems.values())[:MAX_PROBLEMS])


def _unknown_key(document: dict[str, Any], path: list[str]) -> str:
    """A line for a key that a recipe does not have; some have it for the other role, or in one of their blocks."""
    name = ".".join(path)
    last = path[-1]
    if not all(path):
        return f"'{name}' is no key: a name is missing before or after its dots"
    if len(path) > 1:
        block = _block_at(document, path[:-1])
        hint = nearest(last, block.model_fields if block else ())
        return f"unknown key '{name}'{hint}"
    root = _root(document)
    other_root = ControlRecipe if root is AgentRecipe else AgentRecipe
    if last in other_root.model_fields:
        role = root.model_fields["role"].default
        other_role = other_root.model_fields["role"].default
        return f"'{name}' is a key of role={other_role}, and this recipe has role={role}"
    # A key of a block, without the block's name: `chunk` for `learner.chunk`.
    candidates = [f"'{key}.{last}'" for key in root.model_fields if _has_key(document, f"{key}.{last}")]
    hint = nearest(last, root.model_fields)
    if candidates:
        hint = f"; did you mean {' or '.join(candidates)}?"
    return f"unknown key '{name}'{hint}"


def _path(location: tuple[int | str, ...], document: dict[str, Any]) -> list[str]:
    """An error's location as the user writes it: without the tags of unions."""
    path: list[str] = []
    for part in map(str, location[1:]):
        field = _field_at(document, path)
        if field is not None and part in _members(field) and _plugin(field) is None:
            continue
        path.append(part)
    return path


def _plugin(field: FieldInfo) -> Plugin | None:
    """The kind of plug-in whose block a field holds, if it holds one."""
    return next((part for part in field.metadata if isinstance(part, Plugin)), None)


def _members(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """Blocks that a field may hold: tag -> block; one nameless entry for a plain block, none for plain values."""
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"": annotation}
    blocks = [member for member in get_args(annotation) if isinstance(member, type) and issubclass(member, BaseModel)]
    if len(blocks) == 1:  # a block or nothing
        return {"": blocks[0]}
    members = {}
    for member in get_args(annotation):
        match get_args(member):
            case (type() as block, Tag(tag=tag)):
                members[tag] = block
    return members


def leaves(model: BaseModel) -> dict[str, Any]:
    """Every key of a checked recipe with its value, as `key.sub`: for tables and for comparing two recipes."""
    return flattened(model.model_dump(mode="json"))


def flattened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of a recipe given as plain data with its value, as `key.sub`."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, child in value.items():
                path = f"{prefix}.{key}" if prefix else str(key)
                visit(path, child)
        else:
            flat[prefix] = value

    visit("", dict(document))
    return flat
