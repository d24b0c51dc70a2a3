"""Reader of language models' replies: skips their thinking and finds JSON objects in whatever is around them.

What the JSON means is decided elsewhere: `agents.parsing` takes an action from it, `teachers.parsing` an answer.

Nothing here raises, whatever a model writes, nothing recurses, and all takes time in proportion to the reply's length.
Punctuation is forgiven (missing or superfluous commas, line breaks in strings, values without quotes), since it cannot
change what is said. An object that is not closed, or that anything else breaks off, is reported as such.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

_THINKING_BEGINS = re.compile(r"\s*+<think(?:ing)?>", re.IGNORECASE)
_THINKING_ENDS = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_OBJECT_BEGINS = re.compile(r'\{(?=\s*+["}])')
"""A brace with a key after it, rather than some brace of prose."""
_TOKEN = re.compile(
    r'\s*+(?:(?P<mark>[{}\[\]:,])|"(?P<string>(?:[^"\\]++|\\.)*+)"|(?P<bare>[^\s{}\[\]:,"][^{}\[\],"\n]*+))', re.DOTALL
)


@dataclass
class JsonValue:
    """A value of the JSON in a reply.

    Attributes:
        kind: `{` for an object, `[` for an array, empty for a scalar: a string, a number or a word.
        start, end: the characters [start, end) that it takes up in the reply, without the quotes of a string.
        text: of a scalar, with escapes resolved; empty for null, objects and arrays.
        items: (key, value) of an object or array, in order; keys are normalised, those of an array empty.
        closed: whether the end of an object or array was read.
    """

    kind: str
    start: int
    end: int
    text: str = ""
    items: list[tuple[str, JsonValue]] = field(default_factory=list)
    closed: bool = False

    def get(self, key: str) -> list[JsonValue]:
        """All values of a normalised key."""
        return [value for name, value in self.items if name == key]


def normalise(text: str) -> str:
    """A text in lower case, with single blanks and one spelling for each accented letter."""
    return unicodedata.normalize("NFC", " ".join(text.split()).casefold())


def normalise_key(key: str) -> str:
    """The same for a key, where `_` is as good as a blank."""
    return normalise(key.replace("_", " "))


def skip_thinking(text: str) -> int:
    """Find the beginning of the reply proper, after what the model thought aloud.

    Some chat templates write `<think>` into the prompt, so that the reply has only `</think>`. What comes before the
    last one was thought and not said, except that within a JSON object `</think>` is part of a string.

    Returns:
        Index of its first character; the length of the text if the thinking never ends.
    """
    start = len(text) if _THINKING_BEGINS.match(text) else 0
    if not _THINKING_ENDS.search(text):
        return start
    outermost = [objects[0] for objects in find_objects(text) if objects[0].closed]
    after = 0
    for end, following in [*((one.start, one.end) for one in outermost), (len(text), len(text))]:
        start = max((mark.end() for mark in _THINKING_ENDS.finditer(text, after, end)), default=start)
        after = following
    return start


def find_objects(text: str, start: int = 0) -> Iterator[list[JsonValue]]:
    """Find JSON objects in prose or code fences.

    Yields:
        For each outermost object the list of it and all objects within it, in the order in which they begin.
    """
    while begin := _OBJECT_BEGINS.search(text, start):
        objects, start = _read_object(text, begin.start())
        yield objects


def _read_object(text: str, at: int) -> tuple[list[JsonValue], int]:
    """Read the object that begins at a character, and say where reading stopped."""
    objects: list[JsonValue] = []
    open_ones: list[JsonValue] = [JsonValue("", at, at)]  # the first stands for the reply around the object
    key, expected = "", "value"
    while token := _TOKEN.match(text, at):
        inside, mark, scalar = open_ones[-1], token["mark"], _scalar(token)
        if expected == "colon":
            if mark != ":":
                break
            expected = "value"
        elif mark in ("{", "[") and expected == "value":
            opened = JsonValue(mark, token.start("mark"), token.end())
            inside.items.append((key, opened))
            open_ones.append(opened)
            objects += [opened] if mark == "{" else []
            key, expected = "", "key" if mark == "{" else "value"
        elif mark and inside.kind + mark in ("{}", "[]") and (expected != "value" or mark == "]"):
            inside.end, inside.closed = token.end(), True
            open_ones.pop()
            if len(open_ones) == 1:
                return objects, token.end()
            expected = "next"
        elif mark == "," and expected == "next":
            expected = "key" if inside.kind == "{" else "value"
        elif scalar and expected == "value":
            inside.items.append((key, scalar))
            key, expected = "", "next"
        elif scalar and token["string"] is not None and inside.kind == "{":  # the comma before a key may be missing
            key, expected = normalise_key(scalar.text), "colon"
        else:
            break
        at = token.end()
    for broken in open_ones:
        broken.end = at
    return objects, at


def _scalar(token: re.Match[str]) -> JsonValue | None:
    """The string, number or word that a token is; None for punctuation."""
    if token["bare"] is not None:
        said, start = token["bare"].rstrip(), token.start("bare")
        return JsonValue("", start, start + len(said), "" if said == "null" else said)
    if token["string"] is None:
        return None
    said = token["string"]
    if "\\" in said:
        try:
            resolved: str = json.loads(f'"{said}"', strict=False)
            said = resolved.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        except ValueError:
            pass  # these are no escapes: it is taken as it is written
    return JsonValue("", *token.span("string"), said)
