"""Replies are read: what they state, what they do, and where in the text and among the tokens that stands.

Nothing here raises, whatever a model writes, and nothing is guessed:

- An action counts if it is the whole name of one, exactly or but for blanks, capital letters, quotes around it and
  punctuation after it. A name within other words is none: `10` is not `1`, and `cabinet 10` not `cabinet 1`.
- `json`: the first object that has a key `action` is read, of an object within another only if that has none. Prose and
  fences around it do no harm; a missing or superfluous comma, line breaks in strings, and values without quotes are
  forgiven. Keys may be in capitals. An object that is not closed, or is broken off by anything else, is not in the
  format.
- `tags`: pairs of tags that were asked for are read wherever they stand. What stands between them is text up to the
  closing tag, also if it looks like other tags; one that is never closed is not in the format.
- The first value of a key counts; different actions in one object, or in several tags, are ambiguous.
- What a model thinks aloud between `<think>` and `</think>` before its reply is no part of it, nor prose that ends with
  `</think>`: some templates write the beginning into the prompt.
- A reply that reached the limit of tokens counts if its object, or its action's tags, were complete before.

All takes time in proportion to the length of the reply.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sightline.agents.prompting import ACTION, THOUGHTS, demonstration, tag_name
from sightline.agents.types import Failure, Reply
from sightline.config.agents import Replies

Offsets = Sequence[tuple[int, int]]
"""For each token, the characters [start, end) of the text that it makes up."""

_THINKING = re.compile(r"\s*+<think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_QUOTED = re.compile(r"[\"'`*“‘«](.+)[\"'`*”’»]", re.DOTALL)


def read_reply(
    text: str, settings: Replies, action_names: Sequence[str], asked: Sequence[str] = (), finished: bool = True
) -> Reply:
    """Read a reply.

    Args:
        text: of the reply, without special tokens.
        settings: in which format it should be.
        action_names: all of the game's.
        asked: names of the facts that it may state.
        finished: whether the model ended it; False if it was cut off.

    Returns:
        What could be read; also of a reply without an action, as far as it goes.
    """
    if not text.strip():
        return Reply(None, None, failure=Failure.EMPTY)
    start = _after_thinking(text)
    found = _read_json(text, start) if settings.format == "json" else _read_tags(text, start, asked)
    stated = {name: said for name in asked if (said := found.first(name))}
    action, span, failure = _choose(text, found.actions, action_names)
    if failure is Failure.NO_ACTION and not finished:
        failure = Failure.CUT_OFF
    elif failure is Failure.NO_ACTION and not found.whole:
        failure = Failure.MALFORMED
    return Reply(action, span, stated, found.first(THOUGHTS), failure)


def round_trip(action: str, action_names: Sequence[str]) -> bool:
    """Whether an action that is written as it should be is read as itself, in every format."""
    formats = (Replies(format="json"), Replies(format="tags"))
    replies = (read_reply(demonstration(form, {}, "", action), form, action_names) for form in formats)
    return all(reply.action == action for reply in replies)


# -- from values to an action ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Value:
    """A piece of the reply: characters [start, end), and what they say."""

    start: int
    end: int
    said: str


@dataclass(frozen=True)
class _Found:
    """What a reply holds.

    Attributes:
        said: (key, what it says), in order.
        actions: what stands for the action, in order.
        whole: whether anything in the right format was found.
    """

    said: list[tuple[str, str]]
    actions: list[_Value]
    whole: bool

    def first(self, name: str) -> str:
        """What is said first under that name, empty if nothing is."""
        return next((said.strip() for key, said in self.said if _plain(key) == _plain(name) and said.strip()), "")


def _after_thinking(text: str) -> int:
    """Where the reply itself begins; its end if the thinking before it never ends.

    Some chat templates begin the thinking themselves, in the prompt; then the reply holds only its end, after prose.
    """
    if not _THINKING.match(text) and text.lstrip().startswith(("{", "<", "`")):
        return 0
    if not _THINKING.match(text):
        return max((mark.end() for mark in _THOUGHT.finditer(text)), default=0)
    return max((mark.end() for mark in _THOUGHT.finditer(text)), default=len(text))


def _plain(key: str) -> str:
    return " ".join(key.replace("_", " ").split()).casefold()


def _choose(
    text: str, values: Sequence[_Value], action_names: Sequence[str]
) -> tuple[str | None, tuple[int, int] | None, Failure | None]:
    """The action that is named, where, and why there is none."""
    named = [value for value in values if value.said.strip()]
    if not named:
        return None, None, Failure.NO_ACTION
    span = _trimmed(text, named[0])
    matches = [_matches(value.said, action_names) for value in named]
    different = {match[0] if match else value.said.strip() for match, value in zip(matches, named, strict=True)}
    if len(different) > 1 or len(matches[0]) > 1:
        return None, span, Failure.AMBIGUOUS
    return (matches[0][0], span, None) if matches[0] else (None, span, Failure.UNKNOWN_ACTION)


def _trimmed(text: str, value: _Value) -> tuple[int, int]:
    """Where a value stands, without the blanks around it."""
    raw = text[value.start : value.end]
    return value.end - len(raw.lstrip()), value.start + len(raw.rstrip())


def _matches(said: str, action_names: Sequence[str]) -> list[str]:
    """The actions that are meant: those that are nearest to what is said."""
    for normalised in (str, str.strip, _in_lower_case, _bare):
        if found := [name for name in action_names if normalised(name) == normalised(said)]:
            return list(dict.fromkeys(found))
    return []


def _in_lower_case(name: str) -> str:
    return unicodedata.normalize("NFC", " ".join(name.split()).casefold())


def _bare(name: str) -> str:
    """Without quotes around it and punctuation after it, unless nothing else is there."""
    name = _in_lower_case(name)
    for _ in range(3):  # "go left." and "go left".
        name = _without_marks(name) or name
    return name


def _without_marks(name: str) -> str:
    quoted = _QUOTED.fullmatch(name)
    return (quoted[1] if quoted else name.rstrip(".,;:!?…。、！")).strip()


# -- JSON --------------------------------------------------------------------------------------------------------------

_OPENING = re.compile(r'\{(?=\s*+["}])')
"""Where an object begins, rather than some brace of prose."""
_TOKEN = re.compile(
    r'\s*+(?:(?P<mark>[{}\[\]:,])|"(?P<string>(?:[^"\\]++|\\.)*+)"|(?P<bare>[^\s{}\[\]:,"][^{}\[\],"\n]*+))', re.DOTALL
)
_CLOSES = {"}": "{", "]": "["}


@dataclass
class _Container:
    """An object or an array while it is read.

    Attributes:
        kind: `{` or `[`.
        key: under which it stands in the object around it.
        start, end: characters.
        values: (key, value) in order; without keys in arrays.
    """

    kind: str
    key: str
    start: int
    end: int = 0
    values: list[tuple[str, _Value | _Container]] = field(default_factory=list)

    @property
    def acts(self) -> bool:
        return self.kind == "{" and any(_plain(key) == ACTION for key, _ in self.values)

    def said(self, text: str) -> list[tuple[str, str]]:
        """(key, what it says) but for actions. A list of plain values is written with commas, all else as it stands."""
        return [(key, _said(text, value)) for key, value in self.values if _plain(key) != ACTION]

    def actions(self, text: str) -> list[_Value]:
        values = [value for key, value in self.values if _plain(key) == ACTION]
        return [
            _Value(value.start, value.end, text[value.start : value.end]) if isinstance(value, _Container) else value
            for value in values
        ]


def _said(text: str, value: _Value | _Container) -> str:
    if isinstance(value, _Value):
        return value.said
    plain = [item.said for _, item in value.values if isinstance(item, _Value)]
    listed = value.kind == "[" and len(plain) == len(value.values)
    return ", ".join(plain) if listed else text[value.start : value.end]


def _read_json(text: str, start: int) -> _Found:
    """The first whole object with an action; else what the first object says, a whole one if there is any."""
    shown: _Container | None = None
    whole = False
    while opening := _OPENING.search(text, start):
        objects, start, closed = _read_object(text, opening.start())
        acting = next((one for one in objects if one.acts), None) if closed else None
        if acting:
            return _Found(acting.said(text), acting.actions(text), True)
        if shown is None or (closed and not whole):
            shown = objects[0]
        whole = whole or closed
    return _Found(shown.said(text) if shown else [], [], whole)


def _read_object(text: str, at: int) -> tuple[list[_Container], int, bool]:
    """Read the object that begins here.

    Returns:
        It and all objects within it, in the order in which they begin; where reading stopped; and whether it is whole.
        The text may end before that, or something may stand there that cannot.
    """
    objects: list[_Container] = []
    around: list[_Container] = []
    key, expected = "", "value"
    while token := _TOKEN.match(text, at):
        inside = around[-1] if around else _Container("", "", at)
        mark, value = token["mark"], _scalar(token)
        if expected == "colon":
            if mark != ":":
                break
            expected = "value"
        elif mark in _CLOSES.values() and expected == "value":
            container = _Container(mark, key, token.start("mark"))
            inside.values.append((key, container))
            around.append(container)
            objects += [container] if mark == "{" else []
            key, expected = "", "key" if mark == "{" else "value"
        elif mark in _CLOSES and _CLOSES[mark] == inside.kind and (expected != "value" or mark == "]"):
            inside.end = token.end()
            around.pop()
            if not around:
                return objects, token.end(), True
            expected = "next"
        elif mark == "," and expected == "next":
            expected = "key" if inside.kind == "{" else "value"
        elif value and expected == "value":
            inside.values.append((key, value))
            key, expected = "", "next"
        elif value and token["string"] is not None and inside.kind == "{" and expected in ("key", "next"):
            key, expected = value.said, "colon"
        else:
            break
        at = token.end()
    for container in around:
        container.end = at
    return objects, at, False


def _scalar(token: re.Match[str]) -> _Value | None:
    """The string, number or word that a token is, without quotes."""
    if token["string"] is not None:
        return _Value(*token.span("string"), _unescaped(token["string"]))
    if token["bare"] is None:
        return None
    said, start = token["bare"].rstrip(), token.start("bare")
    return _Value(start, start + len(said), "" if said == "null" else said)


def _unescaped(raw: str) -> str:
    """What is between the quotes of a string; as it stands if its escapes are none."""
    if "\\" not in raw:
        return raw
    try:
        said: str = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# -- tags --------------------------------------------------------------------------------------------------------------


def _read_tags(text: str, start: int, asked: Sequence[str]) -> _Found:
    """All pairs of tags that were asked for, up to one that is not closed."""
    names = tuple(dict.fromkeys((*asked, THOUGHTS, ACTION)))
    opening, closings = _tag_patterns(names)
    pairs: list[tuple[str, _Value]] = []
    unclosed = False
    while not unclosed and (opened := opening.search(text, start)):
        number = int(opened.lastindex or 1) - 1
        closed = closings[number].search(text, opened.end())
        end = closed.start() if closed else len(text)
        pairs.append((names[number], _Value(opened.end(), end, text[opened.end() : end])))
        unclosed, start = closed is None, closed.end() if closed else end
    whole_ones = pairs[:-1] if unclosed else pairs
    actions = [value for name, value in whole_ones if name == ACTION]
    return _Found(
        [(name, value.said) for name, value in pairs if name != ACTION], actions, bool(pairs) and not unclosed
    )


@lru_cache(maxsize=64)
def _tag_patterns(names: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[re.Pattern[str], ...]]:
    """What opens any of the tags, with a group for each, and what closes each of them."""
    tags = [re.escape(tag_name(name)) for name in names]
    opening = re.compile("<(?:" + "|".join(f"({tag})" for tag in tags) + ")>", re.IGNORECASE)
    return opening, tuple(re.compile(f"</{tag}>", re.IGNORECASE) for tag in tags)


# -- tokens ------------------------------------------------------------------------------------------------------------


def action_tokens(span: tuple[int, int] | None, offsets: Offsets) -> np.ndarray:
    """Which tokens make up the action: those that share a character with it.

    So a token that holds the action and the quote before it belongs to it, and one that holds only quotes does not. An
    empty token within the action (a byte of a character that later tokens finish, with some decoders) belongs to it.

    Args:
        span: characters of the action, None if there is none.
        offsets: of the tokens, n of them.

    Returns:
        bool[n].
    """
    if span is None:
        return np.zeros(len(offsets), bool)
    start, end = span
    return np.array([first < end and (start < last or start <= first) for first, last in offsets], bool)


def choice_tokens(
    text: str,
    span: tuple[int, int] | None,
    legal: Sequence[str],
    encode: Callable[[str], list[int]],
    offsets_of: Callable[[list[int]], list[tuple[int, int]]],
    ids: Sequence[int],
) -> tuple[int | None, tuple[int, ...]]:
    """The token by which the legal actions differ first, and what it would be for each of them.

    The reply is written anew with each legal action in the action's place, and encoded. The first token that is not
    the same for all of them is the choice; usually it is the first token of the action. Two actions may share it, as
    `1` and `10` do beside `2` where digits are tokens of their own; it is then given once.

    There is no choice (None and no ids) if no action was read, if fewer than two ids differ, or if no sampled token
    begins where the choice would be made, in the same text: then the alternatives cannot be compared at one place.
    How the text before it was cut into tokens does not matter, for the model's own reading of it is used.

    Answers to equal arguments are remembered, and the functions with them.

    Args:
        text: of the reply.
        span: characters of the action within it.
        legal: names of the legal actions.
        encode: text -> ids, without special tokens.
        offsets_of: ids -> for each the characters [start, end) of their text.
        ids: as they were sampled.

    Returns:
        Index into `ids`, and the ids, each once, in the order of the legal actions.
    """
    if span is None:
        return None, ()
    return _choice(text, span, tuple(legal), encode, offsets_of, tuple(int(token) for token in ids))


@lru_cache(maxsize=4096)
def _choice(
    text: str,
    span: tuple[int, int],
    legal: tuple[str, ...],
    encode: Callable[[str], list[int]],
    offsets_of: Callable[[list[int]], list[tuple[int, int]]],
    ids: tuple[int, ...],
) -> tuple[int | None, tuple[int, ...]]:
    start, end = span
    in_quotes = text[start - 1 : start] == '"'
    written = [text[:start] + (_escaped(name) if in_quotes else name) + text[end:] for name in legal]
    encoded = [encode(one) for one in written]
    place = next((place for place, there in enumerate(zip(*encoded, strict=False)) if len(set(there)) > 1), None)
    if place is None:
        return None, ()
    begins = offsets_of(encoded[0])[place][0]
    if any(one[:begins] != text[:begins] for one in written):
        return None, ()
    index = next((i for i, (first, last) in enumerate(offsets_of(list(ids))) if first == begins and last > first), None)
    if index is None:
        return None, ()
    return index, tuple(dict.fromkeys(one[place] for one in encoded))


def _escaped(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]
