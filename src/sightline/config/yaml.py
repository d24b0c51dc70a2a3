"""YAML as it is meant: what YAML readers pass over in silence, or choke on, is refused in one line."""

from __future__ import annotations

from typing import Any

import yaml

from sightline.errors import BadInput

MAX_CHARACTERS = 1_000_000
"""Of a text. PyYAML reads about a megabyte in a second."""
MAX_NODES = 100_000
"""Values and keys of a document, each alias counted as all that it stands for."""
MAX_DEPTH = 50
"""Lists and maps within each other."""


def read_yaml(text: str, name: str) -> Any:
    """What a YAML document holds, as plain data.

    Args:
        text: the document.
        name: what to call it in a complaint.

    Raises:
        BadInput: it is no YAML, has a key twice, refers to itself, or is too large or too deep, also once its aliases
            are written out.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"{name} is larger than {MAX_CHARACTERS // 1_000_000} MB; that is not meant for it")
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        loader.examine(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        raise BadInput(f"{name} is not valid YAML: {' '.join(str(error.problem).split())}{where}") from error
    except _Meaningless as error:
        raise BadInput(f"{name} {error}") from error
    # Values with a wrong tag, or that only look like a date or a number, fail in whatever reads them.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"{name} is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError as error:
        raise BadInput(f"{name} is nested too deep") from error
    finally:
        if loader is not None:
            loader.dispose()


class _Meaningless(Exception):
    """The document is YAML and cannot be meant; the message goes on after its name."""


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = self._depth = 0
        self._known: dict[int, tuple[int, int] | None] = {}
        """Nodes by identity -> size and height; None while it is being looked at."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._count, self._depth = self._count + 1, self._depth + 1
        self._check(self._count, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def examine(self, node: yaml.Node) -> tuple[int, int]:
        """Number of values once all aliases are written out, and their depth; each node is visited once."""
        key = id(node)
        if key in self._known:
            known = self._known[key]
            if known is None:
                raise _Meaningless(f"refers to itself (line {node.start_mark.line + 1})")
            return known
        self._known[key] = None
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            children = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        size, height = 1, 0
        for child in children:
            child_size, child_height = self.examine(child)
            size, height = size + child_size, max(height, child_height)
        self._check(size, height + 1)
        self._known[key] = size, height + 1
        return size, height + 1

    def _check(self, size: int, depth: int) -> None:
        if size > MAX_NODES:
            raise _Meaningless(f"holds more than {MAX_NODES} values, aliases written out")
        if depth > MAX_DEPTH + 1:
            raise _Meaningless(f"is nested too deep: more than {MAX_DEPTH} lists and maps within each other")

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # refused when it is constructed
            is_merge = key.tag == "tag:yaml.org,2002:merge"
            value, line = key.value if is_merge else self.construct_object(key), key.start_mark.line + 1
            if value in lines:
                where = f"line {line}" if line == lines[value] else f"lines {lines[value]} and {line}"
                raise _Meaningless(f"has the key '{key.value[:80]}' twice ({where}); keep one of them")
            lines[value] = line
