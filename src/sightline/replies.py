"""Reader of language models' replies: leaves out their thinking and finds JSON objects in whatever is around them.

What the JSON means is decided elsewhere: `agents.parsing` takes an action from it, `teachers.parsing` an answer.

Nothing here raises, whatever a model writes, nothing recurses, and all takes time in proportion to the reply's length.
Punctuation is forgiven (missing or superfluous commas, line breaks in strings, values without quotes), since it cannot
change what is said. An object that is not closed, or that anything else breaks off, is reported as such.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_TAG = re.compile(
    r"(?P<bracket><\|?|◁|\[)(?P<slash>/)?(?P<name>[a-z][\w:.-]{0,40})(?:\s[^<>\[\]\n]{0,80})?(?:\|?>|▷|\])",
    re.IGNORECASE,
)
"""Anything between brackets that a model might mark its thoughts with: `<think>`, `◁/think▷`, `<|END_THINKING|>`."""
_THOUGHT = frozenset({"think", "thinking", "thought"})
"""Words of a mark that begins a thought even if nothing ends it; those below may be headings, and need an end."""
_PERHAPS_THOUGHT = frozenset(
    {
        "thoughts",
        "reason",
        "reasoning",
        "reflection",
        "analysis",
        "rationale",
        "scratchpad",
        "cot",
        "inner",
        "monologue",
    }
)
_LAST = frozenset({"end", "stop", "close", "suffix"})
"""Words of a mark that ends a thought, beside the slash: `<|end_of_thought|>`, `<|inner_suffix|>`."""
_OTHER_OPENINGS = (
    r"<\|channel\|?>\s*(?:analysis|thought|thinking|commentary)\b|<unused94>\s*thought\b|\Aanalysis(?-i:(?=[A-Z{\"]))"
    r"|\bHere(?:'s| is) my thought process:"
)
_OTHER_CLOSINGS = (
    r"(?:<\|end\|>\s*)?(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*final\b[^<\n]{0,40}(?:<\|constrain\|>[^<\n]{0,40})?"
    r"<\|message\|>|<channel\|>|<unused95>|(?<=\S)assistantfinal(?![a-z])|\bHere(?:'s| is) my response:"
)
"""Marks without brackets of their own: the channels of Harmony and Gemma 4 (also as they read once special tokens are
left out: `assistantfinal`), MedGemma's unused tokens, and Granite's words."""
_SENTENCE_BEGINS = re.compile(r"(?:^|[\n.!?:…。])[^\S\n]*\Z")
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


@dataclass(frozen=True)
class Thinking:
    """How a model marks what it only thinks, as far as its own files say.

    Attributes:
        openings, closings: its own marks, beside those that are common.
        begun: whether its prompt ends within a thought, so that replies begin with one.
    """

    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    begun: bool = False

    def marks(self) -> tuple[str, ...]:
        """All marks of its own."""
        return (*self.openings, *self.closings)


COMMON = Thinking()
"""The marks that are common; nothing else is known of the model."""


@dataclass(frozen=True)
class _Mark:
    """A mark around a thought, at the characters [start, end) of a reply.

    Attributes:
        closes: whether it ends a thought.
        certain: whether a thought that it begins need not be ended.
    """

    start: int
    end: int
    closes: bool
    certain: bool


def without_thoughts(text: str, thinking: Thinking = COMMON, finished: bool = True, keys: Iterable[str] = ()) -> str:
    """Blank out what a model thought aloud: what is left is what it said.

    Some chat templates write the opening mark into the prompt, so that the reply has only the closing one: what comes
    before that was thought. A mark within a JSON object is part of a string.

    Args:
        thinking: the model's own marks.
        finished: whether the model ended its reply; what was cut off may have been thought, if the prompt began so.
        keys: names of tags that were asked for, which are no marks.

    Returns:
        A text of the same length, so that places in it are places in the reply.
    """
    parts, place = [], 0
    for start, end in _thoughts(text, thinking, finished, keys):
        parts += [text[place:start], " " * (end - start)]
        place = end
    return "".join([*parts, text[place:]])


def begins_thought(prompt: str, thinking: Thinking) -> bool:
    """Whether a prompt ends within a thought that the reply goes on with."""
    marks = _marks(prompt, thinking, ())
    return bool(marks) and not marks[-1].closes


def marks_thought(token: str) -> bool:
    """Whether a token of a vocabulary is a mark around thoughts by its name alone."""
    marks = _marks(token, COMMON, ())
    return any((mark.start, mark.end) == (0, len(token)) for mark in marks)


def with_common_marks(text: str, thinking: Thinking, finished: bool) -> str:
    """Write a reply so that its thoughts are told from what it says without knowing the model."""
    if without_thoughts(text) == without_thoughts(text, thinking, finished):
        return text
    parts, place = [], 0
    for start, end in _thoughts(text, thinking, finished, ()):
        parts += [text[place:start], f"<think>{text[start:end]}</think>"]
        place = end
    return "".join([*parts, text[place:]])


def _thoughts(text: str, thinking: Thinking, finished: bool, keys: Iterable[str]) -> list[tuple[int, int]]:
    """The characters [start, end) of each thought, with its marks, in order."""
    marks = _marks(text, thinking, keys)
    if not marks:
        return [(0, len(text))] if thinking.begun and not finished and text else []
    spans: list[tuple[int, int]] = []
    unclosed: list[_Mark] = []
    closed_any = False
    for mark in _outside_objects(marks, text):
        if not mark.closes:
            unclosed.append(mark)
            continue
        if not unclosed:  # without an opening, all before it was thought
            spans.clear()
        spans.append((unclosed[0].start if unclosed else 0, mark.end))
        unclosed, closed_any = [], True
    begins = next((mark.start for mark in unclosed if mark.certain), None)
    if thinking.begun and not finished and not closed_any:
        begins = 0
    return spans if begins is None else [*spans, (begins, len(text))]


def _marks(text: str, thinking: Thinking, keys: Iterable[str]) -> list[_Mark]:
    """All marks around thoughts, in order; those of the model win over common ones at the same place."""
    no_marks = {key.casefold() for key in keys}
    marks: list[_Mark] = []
    for found in _pattern(thinking).finditer(text):
        start, end, name = found.start(), found.end(), found["name"]
        if name is None:
            marks.append(_Mark(start, end, found["closing"] is not None, True))
            continue
        words = {name.casefold(), *re.split(r"[_:.-]+", name.casefold())}
        # Square brackets are headings in prose: [Thought], [Analysis].
        known = {"think", "thinking"} if found["bracket"] == "[" else _THOUGHT | _PERHAPS_THOUGHT
        if not words & known or name.casefold() in no_marks:
            continue
        begins = _SENTENCE_BEGINS.search(text, max(start - 8, 0), start) is not None or start == 0
        closes = found["slash"] is not None or bool(words & _LAST)
        marks.append(_Mark(start, end, closes, bool(words & _THOUGHT) and begins))
    return marks


@lru_cache(maxsize=64)
def _pattern(thinking: Thinking) -> re.Pattern[str]:
    """The pattern of all marks: groups `opening` and `closing` of known ones, `name` of those between brackets."""

    def listed(own: tuple[str, ...], common: str) -> str:
        return "|".join([*map(re.escape, sorted(own, key=len, reverse=True)), common])

    opening, closing = listed(thinking.openings, _OTHER_OPENINGS), listed(thinking.closings, _OTHER_CLOSINGS)
    return re.compile(f"(?P<opening>{opening})|(?P<closing>{closing})|{_TAG.pattern}", re.IGNORECASE)


def _outside_objects(marks: list[_Mark], text: str) -> Iterator[_Mark]:
    """Those marks that are no part of a closed JSON object."""
    objects = ((one[0].start, one[0].end) for one in find_objects(text) if one[0].closed)
    begin, end = next(objects, (len(text), len(text)))
    for mark in marks:
        while mark.start >= end and begin < len(text):
            begin, end = next(objects, (len(text), len(text)))
        if mark.start < begin:
            yield mark


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
