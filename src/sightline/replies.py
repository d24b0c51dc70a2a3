"""Reader of language models' replies: leaves out their thinking, and finds JSON objects within other text.

`agents.parsing` takes an action from the JSON, `labels.parsing` an answer.

Nothing here raises, whatever a model writes, nothing recurses, and the time is proportional to the reply's length.
Wrong punctuation is accepted (missing or superfluous commas, line breaks in strings, values without quotes), since it
cannot change the meaning. An object that is not closed, or that other text breaks off, is marked as not closed.
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
"""Words of a mark that begins a thought even if nothing ends it."""
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
"""Words of a mark that begins a thought only if another mark ends it: without one, it may be a heading."""
_LAST = frozenset({"end", "stop", "close", "suffix"})
"""Words of a mark that ends a thought, beside the slash: `<|end_of_thought|>`, `<|inner_suffix|>`."""
_SPECIAL_OPENINGS = (
    r"<\|channel\|?>\s*(?:analysis|thought|thinking|commentary)\b|<unused94>\s*thought\b|\Aanalysis(?-i:(?=[A-Z{\"]))"
    r"|\bHere(?:'s| is) my thought process:"
)
_SPECIAL_CLOSINGS = (
    r"(?:<\|end\|>\s*)?(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*final\b[^<\n]{0,40}(?:<\|constrain\|>[^<\n]{0,40})?"
    r"<\|message\|>|<channel\|>|<unused95>|(?<=\S)assistantfinal(?![a-z])|\bHere(?:'s| is) my response:"
)
"""Marks that are no word between brackets: the channels of Harmony and Gemma 4 (also without their special tokens:
`assistantfinal`), MedGemma's unused tokens, and Granite's words."""
_SENTENCE_BEGINS = re.compile(r"(?:^|[\n.!?:…。])[^\S\n]*\Z")
_OBJECT_BEGINS = re.compile(r'\{(?=\s*+["}])')
"""A brace with a key after it, rather than some brace of prose."""
_TOKEN = re.compile(
    r'\s*+(?:(?P<mark>[{}\[\]:,])|"(?P<string>(?:[^"\\]++|\\.)*+)"|(?P<bare>[^\s{}\[\]:,"][^{}\[\],"\n]*+))', re.DOTALL
)


@dataclass
class JsonValue:
    """A value of the JSON in a reply, and its place there.

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
    """The marks around a model's thoughts, as far as its own files name them.

    Attributes:
        openings, closings: its own marks, beside the common ones.
        opened_by_prompt: whether its prompt ends within a thought, so that replies begin with one.
    """

    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    opened_by_prompt: bool = False

    def marks(self) -> tuple[str, ...]:
        """All marks of its own."""
        return (*self.openings, *self.closings)


COMMON = Thinking()
"""The common marks alone, for a model whose own marks are unknown."""


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
    """Replace a reply's thoughts by blanks.

    Some chat templates write the opening mark into the prompt, so that the reply has only the closing one: all text
    before that is a thought. A mark within a JSON object is part of a string.

    Args:
        thinking: the model's own marks.
        finished: whether the model ended its reply. If not, and the prompt opened a thought, all of it may be thought.
        keys: names of tags that the prompt asks for, which are no marks.

    Returns:
        A text of the same length, so that characters [start, end) of it are those of the reply.
    """
    parts: list[str] = []
    after = 0
    for start, end in _thoughts(text, thinking, finished, keys):
        parts.append(text[after:start])
        parts.append(" " * (end - start))
        after = end
    parts.append(text[after:])
    return "".join(parts)


def begins_thought(prompt: str, thinking: Thinking) -> bool:
    """Whether a prompt ends within a thought that the reply goes on with."""
    marks = _marks(prompt, thinking, ())
    return bool(marks) and not marks[-1].closes


def marks_thought(token: str) -> bool:
    """Whether a token of a vocabulary is a mark around thoughts by its name alone."""
    marks = _marks(token, COMMON, ())
    return any((mark.start, mark.end) == (0, len(token)) for mark in marks)


def with_common_marks(text: str, thinking: Thinking, finished: bool) -> str:
    """Put common marks around a reply's thoughts, so that a reader finds them without knowing the model."""
    if without_thoughts(text) == without_thoughts(text, thinking, finished):
        return text
    parts: list[str] = []
    after = 0
    for start, end in _thoughts(text, thinking, finished, ()):
        parts.append(text[after:start])
        parts.append(f"<think>{text[start:end]}</think>")
        after = end
    parts.append(text[after:])
    return "".join(parts)


def _thoughts(text: str, thinking: Thinking, finished: bool, keys: Iterable[str]) -> list[tuple[int, int]]:
    """The characters [start, end) of each thought, with its marks, in order."""
    marks = _marks(text, thinking, keys)
    # A reply that was cut off within the thought that its prompt opened has not said anything yet.
    cut_off_in_thought = thinking.opened_by_prompt and not finished
    if not marks:
        if cut_off_in_thought and text:
            return [(0, len(text))]
        return []

    spans: list[tuple[int, int]] = []
    openings: list[_Mark] = []  # since the last closing mark
    closed_any = False
    for mark in _outside_objects(marks, text):
        if not mark.closes:
            openings.append(mark)
            continue
        if openings:
            spans.append((openings[0].start, mark.end))
        else:  # a closing mark without an opening one ends a thought that began with the reply
            spans = [(0, mark.end)]
        openings = []
        closed_any = True

    # A thought that nothing ends goes on to the end of the reply.
    if cut_off_in_thought and not closed_any:
        return [*spans, (0, len(text))]
    for mark in openings:
        if mark.certain:
            return [*spans, (mark.start, len(text))]
    return spans


def _marks(text: str, thinking: Thinking, keys: Iterable[str]) -> list[_Mark]:
    """All marks around thoughts, in order; those of the model win over common ones at the same place."""
    no_marks = {key.casefold() for key in keys}
    marks: list[_Mark] = []
    for match in _pattern(thinking).finditer(text):
        start, end = match.span()
        if match["name"] is None:  # a mark of the model's own, or a special one
            marks.append(_Mark(start, end, match["closing"] is not None, True))
            continue
        name = match["name"].casefold()
        words = {name, *re.split(r"[_:.-]+", name)}
        # Other words in square brackets are headings in prose: [Thought], [Analysis].
        mark_words = {"think", "thinking"} if match["bracket"] == "[" else _THOUGHT | _PERHAPS_THOUGHT
        if not words & mark_words or name in no_marks:
            continue
        closes = match["slash"] is not None or bool(words & _LAST)
        # In the middle of a sentence, `<think>` may be a word about thinking.
        begins_sentence = start == 0 or _SENTENCE_BEGINS.search(text, max(start - 8, 0), start) is not None
        marks.append(_Mark(start, end, closes, bool(words & _THOUGHT) and begins_sentence))
    return marks


@lru_cache(maxsize=64)
def _pattern(thinking: Thinking) -> re.Pattern[str]:
    """The pattern of all marks: group `opening` or `closing` for the model's own and special ones, `name` for words
    between brackets."""

    def alternatives(own: tuple[str, ...], special: str) -> str:
        longest_first = sorted(own, key=len, reverse=True)
        return "|".join([*map(re.escape, longest_first), special])

    opening = alternatives(thinking.openings, _SPECIAL_OPENINGS)
    closing = alternatives(thinking.closings, _SPECIAL_CLOSINGS)
    return re.compile(f"(?P<opening>{opening})|(?P<closing>{closing})|{_TAG.pattern}", re.IGNORECASE)


def _outside_objects(marks: list[_Mark], text: str) -> Iterator[_Mark]:
    """Leave out the marks that are part of a closed JSON object. Both are in order, so one pass suffices."""
    outermost = (objects[0] for objects in find_objects(text))
    spans = ((value.start, value.end) for value in outermost if value.closed)
    after_the_last = (len(text), len(text))
    begin, end = next(spans, after_the_last)
    for mark in marks:
        while mark.start >= end and begin < len(text):
            begin, end = next(spans, after_the_last)
        if mark.start < begin:
            yield mark


# -- JSON --------------------------------------------------------------------------------------------------------------


def find_objects(text: str, start: int = 0) -> Iterator[list[JsonValue]]:
    """Find JSON objects in prose or code fences.

    Yields:
        For each outermost object the list of it and all objects within it, in the order in which they begin.
    """
    while begin := _OBJECT_BEGINS.search(text, start):
        objects, start = _read_object(text, begin.start())
        yield objects


def _read_object(text: str, at: int) -> tuple[list[JsonValue], int]:
    """Read the object that begins at a character, token by token.

    `expected` is what may come next: a `key`, the `colon` after it, a `value`, or what comes `next` after a value: a
    comma or a closing bracket.

    Returns:
        The object and all objects within it, and the character at which reading stopped.
    """
    objects: list[JsonValue] = []
    stack: list[JsonValue] = [JsonValue("", at, at)]  # the first stands for the reply around the object
    key = ""
    expected = "value"
    while token := _TOKEN.match(text, at):
        container = stack[-1]
        mark = token["mark"]
        scalar = _scalar(token)
        closes_container = bool(mark) and container.kind + mark in ("{}", "[]")
        if expected == "colon":
            if mark != ":":
                break
            expected = "value"
        elif mark in ("{", "[") and expected == "value":
            value = JsonValue(mark, token.start("mark"), token.end())
            container.items.append((key, value))
            stack.append(value)
            if mark == "{":
                objects.append(value)
            key = ""
            expected = "key" if mark == "{" else "value"
        elif closes_container and (expected != "value" or mark == "]"):
            container.end = token.end()
            container.closed = True
            stack.pop()
            if len(stack) == 1:
                return objects, token.end()
            expected = "next"
        elif mark == "," and expected == "next":
            expected = "key" if container.kind == "{" else "value"
        elif scalar and expected == "value":
            container.items.append((key, scalar))
            key = ""
            expected = "next"
        elif scalar and token["string"] is not None and container.kind == "{":  # the comma before a key may be missing
            key = normalise_key(scalar.text)
            expected = "colon"
        else:
            break
        at = token.end()
    # Whatever is still open was broken off here.
    for value in stack:
        value.end = at
    return objects, at


def _scalar(token: re.Match[str]) -> JsonValue | None:
    """The value of a token that is a string, a number or a word; None for punctuation."""
    if token["bare"] is not None:
        start = token.start("bare")
        word = token["bare"].rstrip()
        value = JsonValue("", start, start + len(word), word)
        if word == "null":
            value.text = ""
        return value
    if token["string"] is None:
        return None
    text = token["string"]
    if "\\" in text:
        try:
            resolved: str = json.loads(f'"{text}"', strict=False)
            # Pairs of surrogates become characters; half a pair becomes the replacement character.
            text = resolved.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        except ValueError:
            pass  # its backslashes are no escapes: the text stays as it is
    return JsonValue("", *token.span("string"), text)
