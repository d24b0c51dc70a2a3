"""Read and write strict YAML: duplicate keys, cycles and oversized documents are refused with a one-line error.

Numbers are those of YAML 1.2 (its core schema): `1e-3` and `1e4` are numbers, `010` is ten, `0o10` eight, and `12:30`
and `1_2` are texts, as is the date 2026-11-28. PyYAML alone keeps to YAML 1.1, where they are a text, eight, a text,
750 and 12, and a date of Python's, which no option means.
"""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import yaml

from sightline.errors import BadInput

MAX_CHARACTERS = 1_000_000
"""Size limit of a document. PyYAML parses about a megabyte per second."""
MAX_NODES = 100_000
"""Limit of values and keys in a document, with all aliases expanded."""
MAX_DEPTH = 50
"""Limit of nested lists and mappings."""


def read_yaml(text: str, name: str) -> Any:
    """Parse a YAML document to plain data.

    Args:
        text: the document.
        name: name of the document in error messages.

    Raises:
        BadInput: it is not valid YAML, has a duplicate key, refers to itself, or is too large or too deep after its
            aliases are expanded.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"{name} is larger than the limit of {MAX_CHARACTERS // 1_000_000} MB")
    return copy.deepcopy(_parse(text, name))


@functools.lru_cache(maxsize=8)
def _parse(text: str, name: str) -> Any:
    """Plain data of a document, which is not to be changed. (A command reads the same recipe several times.)"""
    loader: _Loader | None = None
    try:
        loader = _Loader(text.removeprefix("\ufeff"))
        node = loader.get_single_node()
        if node is None:
            return None
        loader.examine(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        strange = re.search("could not determine a constructor for the tag '(.*)'", str(error.problem))
        if strange is not None:
            tag = strange[1].replace("tag:yaml.org,2002:", "!!")
            raise BadInput(f"{name} has the tag {tag:.80}, which is not read; leave it out{where}") from error
        raise BadInput(f"{name} is not valid YAML: {' '.join(str(error.problem).split())}{where}") from error
    except _Invalid as error:
        raise BadInput(f"{name} {error}") from error
    # Values with a wrong tag, or that only look like a date or a number, make PyYAML raise any of these.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"{name} is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError as error:
        raise BadInput(f"{name} is nested too deep") from error
    finally:
        if loader is not None:
            loader.dispose()


def write_yaml(document: Any, ascii_only: bool = False) -> str:
    """Write plain data so that `read_yaml` reads the same."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=not ascii_only)
    return text


class _Invalid(Exception):
    """Raised for valid YAML that is refused; the message continues a sentence that begins with the document's name."""


_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_BROKEN = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
"""Patterns of the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#1032-tag-resolution)."""


def _resolvers(inherited: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    """What plain scalars mean, by their first character: YAML 1.2's numbers, no dates, and PyYAML's other types."""
    resolvers: dict[str, list[tuple[str, Any]]] = {}
    for character, candidates in inherited.items():
        resolvers[character] = [(tag, pattern) for tag, pattern in candidates if tag not in (_INT, _FLOAT, _DATE)]
    whole = (_INT, re.compile(f"(?:{_WHOLE.pattern})$"))
    broken = (_FLOAT, re.compile(f"(?:{_BROKEN.pattern})$"))
    for character in "-+.0123456789":
        # The first pattern that matches counts: `10` is whole, though it fits both.
        resolvers[character] = [whole, broken, *resolvers.get(character, [])]
    return resolvers


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Represent a text; one of several lines as these, and one with a line break other than `\\n` in double quotes,
        which alone keep it."""
        style = "|" if "\n" in text else None
        if re.search("[\x85\u2028\u2029]", text):
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0
        self._depth = 0
        self._extents: dict[int, tuple[int, int] | None] = {}
        """id of a node -> (size, height); None while the node is being examined, to detect cycles."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"'{text[:80]}' is no whole number")
        # Python knows 0o10 and 0x1F by their beginnings, but refuses 010.
        if text[:2] in ("0o", "0x"):
            return int(text, 0)
        return int(text)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        text = str(self.construct_scalar(node))
        if not _BROKEN.fullmatch(text):
            raise ValueError(f"'{text[:80]}' is no number")
        # YAML writes .inf and .nan, Python inf and nan.
        return float(re.sub(r"\.(?=[iInN])", "", text))

    def compose_node(self, parent: Any, index: Any) -> Any:
        # Counted while the text is read, before a huge document fills the memory.
        self._count += 1
        self._depth += 1
        self._check(self._count, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def examine(self, node: yaml.Node) -> tuple[int, int]:
        """Size and height of a node with all aliases expanded; each node is visited once."""
        key = id(node)
        if key in self._extents:
            extent = self._extents[key]
            if extent is None:
                raise _Invalid(f"refers to itself (line {node.start_mark.line + 1})")
            return extent
        self._extents[key] = None
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            for pair in node.value:
                children.extend(pair)
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        size = 1
        height = 1
        for child in children:
            child_size, child_height = self.examine(child)
            size += child_size
            height = max(height, child_height + 1)
        self._check(size, height)
        self._extents[key] = (size, height)
        return size, height

    def _check(self, size: int, depth: int) -> None:
        if size > MAX_NODES:
            raise _Invalid(f"holds more than {MAX_NODES} values, with aliases expanded")
        if depth > MAX_DEPTH + 1:
            raise _Invalid(f"is nested too deep: more than {MAX_DEPTH} levels of lists and mappings")

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # refused when it is constructed
            # Compared as values: `1` and `0x1` are the same key. `<<`, which merges, has none.
            value = key.value if key.tag == _MERGE else self.construct_object(key)
            line = key.start_mark.line + 1
            if value in lines:
                where = f"lines {lines[value]} and {line}"
                if line == lines[value]:
                    where = f"line {line}"
                raise _Invalid(f"has the key '{key.value[:80]}' twice ({where}); keep one of them")
            lines[value] = line


_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
_Loader.add_constructor(_FLOAT, _Loader.construct_yaml_float)
