"""Parser of an agent's replies: facts, thoughts, the action, and the tokens that make up the action.

Nothing here raises, whatever a model writes, and nothing is guessed:

- An action counts if it is the whole name of one, exactly or but for blanks, capital letters, quotes around it and
  punctuation after it. A name within other words is none: `10` is not `1`, and `cabinet 10` not `cabinet 1`.
- What the model only thought, between marks, is left out (`sightline.replies.without_thoughts`).
- `json`: closed objects with a key `action` count, one within another object only if that has no such key. The first
  counts if all have the same action; else the reply is ambiguous, as in `Draft: {…} Final: {…}`. An object whose action
  is a placeholder, `...` or `<action>`, only repeats the form.
- `tags`: pairs of tags that were asked for count wherever they are. Between them is text up to the closing tag, also if
  it looks like other tags; one that is never closed is not in the format.
- The first value of a key counts; different actions in one object, or in several tags, are ambiguous.
- A reply that reached the limit of tokens counts if its object, or its action's tags, were complete before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sightline.agents.prompting import ACTION, THOUGHTS, tag_name
from sightline.agents.types import Failure, Reply
from sightline.config.agents import Replies
from sightline.replies import COMMON, JsonValue, Thinking, find_objects, normalise, normalise_key, without_thoughts

Offsets = Sequence[tuple[int, int]]
"""For each token, the characters [start, end) of the text that it makes up."""

_PLACEHOLDER = re.compile(r"[.…_?\s]+|<[^<>]*>|\[[^\[\]]*\]")
_QUOTED = re.compile(r"[\"'`*“‘«](.+)[\"'`*”’»]", re.DOTALL)


def read_reply(
    text: str,
    settings: Replies,
    action_names: Sequence[str],
    asked: Sequence[str] = (),
    finished: bool = True,
    thinking: Thinking = COMMON,
) -> Reply:
    """Parse a reply.

    Args:
        text: of the reply, without special tokens.
        settings: in which format it should be.
        action_names: all of the game's, or of the present state; empty if any text is an action.
        asked: names of the facts that it may state.
        finished: whether the model ended it; False if it was cut off.
        thinking: how the model marks its thoughts.

    Returns:
        What could be read; also of a reply without an action, as far as it goes.
    """
    if not text.strip():
        return Reply(None, None, failure=Failure.EMPTY)
    own = tuple(key for key in settings.fields if key != ACTION and key not in asked) or (THOUGHTS,)
    if settings.format == "json":
        fields, in_format = _json_fields(without_thoughts(text, thinking, finished), action_names)
    else:
        keys = (*asked, *own, ACTION)
        fields, in_format = _tag_fields(without_thoughts(text, thinking, finished, map(tag_name, keys)), keys)
    said: dict[str, str] = {}
    for one in fields:
        if one.key != ACTION and one.text.strip():
            said.setdefault(one.key, one.text.strip())
    stated = {name: said[normalise_key(name)] for name in asked if normalise_key(name) in said}

    actions = [one for one in fields if one.key == ACTION and one.text.strip()]
    action: str | None = None
    span: tuple[int, int] | None = None
    failure: Failure | None = None
    if actions:
        first = actions[0]
        raw = text[first.start : first.end]  # the span leaves out the blanks around the name
        span = (first.end - len(raw.lstrip()), first.start + len(raw.rstrip()))
        meant = [_matches(one.text, action_names or [one.text.strip()]) for one in actions]
        different = {names[0] if names else one.text.strip() for names, one in zip(meant, actions, strict=True)}
        if len(different) > 1 or len(meant[0]) > 1:
            failure = Failure.AMBIGUOUS
        elif meant[0]:
            action = meant[0][0]
        else:
            failure = Failure.UNKNOWN_ACTION
    elif not finished:
        failure = Failure.CUT_OFF
    else:
        failure = Failure.NO_ACTION if in_format else Failure.MALFORMED
    thoughts = "\n".join(said[normalise_key(key)] for key in own if normalise_key(key) in said)
    memory = "" if settings.memory is None else said.get(normalise_key(settings.memory), "")
    return Reply(action, span, stated, thoughts, failure, memory)


def _matches(said: str, action_names: Sequence[str]) -> list[str]:
    """The actions that are meant: those that are nearest to what is said."""
    for simplified in (str, str.strip, normalise, _undecorated):
        if found := [name for name in action_names if simplified(name) == simplified(said)]:
            return list(dict.fromkeys(found))
    return []


def _undecorated(name: str) -> str:
    """A name without quotes around it and punctuation after it, unless nothing else is there."""
    name = normalise(name)
    for _ in range(3):  # "go left." and "go left".
        quoted = _QUOTED.fullmatch(name)
        name = (quoted[1] if quoted else name.rstrip(".,;:!?…。、！")).strip() or name
    return name


# -- fields of the two formats -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    """A normalised key, the text under it, and the characters [start, end) of the reply that hold it."""

    key: str
    start: int
    end: int
    text: str


def _json_fields(text: str, action_names: Sequence[str]) -> tuple[list[_Field], bool]:
    """Fields of the first closed object with an action, or else of the first object, a closed one if there is any.

    Args:
        text: of the reply, without thoughts.
        action_names: all of the game's; empty if any text is an action.

    Returns:
        The fields, without actions where no closed object has one, and with the actions of all closed objects that have
        some; and whether any object is closed.
    """
    shown: JsonValue | None = None
    acting: list[JsonValue] = []
    for objects in find_objects(text):
        outermost = objects[0]
        if outermost.closed:
            acting += _acting(objects)
        if shown is None or (outermost.closed and not shown.closed):
            shown = outermost
    if acting:
        meant = [one for one in acting if not _repeats_the_form(one, action_names)] or acting[:1]
        first, *others = [_fields_of(text, one) for one in meant]
        return [*first, *(one for fields in others for one in fields if one.key == ACTION)], True
    if shown is None:
        return [], False
    return [one for one in _fields_of(text, shown) if one.key != ACTION], shown.closed


def _acting(objects: list[JsonValue]) -> list[JsonValue]:
    """Those of an object and all within it that have an action, but for those within one that has."""
    acting: list[JsonValue] = []
    for one in objects:
        if one.get(ACTION) and not (acting and one.start < acting[-1].end):
            acting.append(one)
    return acting


def _repeats_the_form(container: JsonValue, action_names: Sequence[str]) -> bool:
    """Whether the action of an object is the placeholder of a form, not the name of an action."""
    actions = [value.text.strip() for value in container.get(ACTION)]
    return all(_PLACEHOLDER.fullmatch(action) and action not in action_names for action in actions)


def _fields_of(text: str, container: JsonValue) -> list[_Field]:
    """Fields of an object. A fact may be a list of scalars; other lists and objects are taken as they are written."""
    fields = []
    for key, value in container.items:
        said = text[value.start : value.end] if value.kind else value.text
        if value.kind == "[" and key != ACTION and not any(item.kind for _, item in value.items):
            said = ", ".join(item.text for _, item in value.items)
        fields.append(_Field(key, value.start, value.end, said))
    return fields


def _tag_fields(text: str, keys: Sequence[str]) -> tuple[list[_Field], bool]:
    """Fields of all tags that were asked for, up to one that is not closed, which may state a fact but no action.

    Returns:
        The fields, and whether there are any and all are closed.
    """
    names = tuple(dict.fromkeys(keys))
    opening, closings = _tag_patterns(names)
    start = 0
    fields: list[_Field] = []
    while opened := opening.search(text, start):
        number = int(opened.lastindex or 1) - 1
        closed = closings[number].search(text, opened.end())
        end = closed.start() if closed else len(text)
        if closed or names[number] != ACTION:
            fields.append(_Field(normalise_key(names[number]), opened.end(), end, text[opened.end() : end]))
        if closed is None:
            return fields, False
        start = closed.end()
    return fields, bool(fields)


@lru_cache(maxsize=64)
def _tag_patterns(names: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[re.Pattern[str], ...]]:
    """The pattern that opens any of the tags, with a group for each, and the patterns that close them."""
    tags = [re.escape(tag_name(name)) for name in names]
    opening = re.compile("<(?:" + "|".join(f"({tag})" for tag in tags) + ")>", re.IGNORECASE)
    return opening, tuple(re.compile(f"</{tag}>", re.IGNORECASE) for tag in tags)


# -- tokens of the action ----------------------------------------------------------------------------------------------
#
# Tokenizers cut text where they like, so an action's tokens are found by characters. The parser says which characters
# of the reply name the action, the tokenizer which characters each sampled token makes up, and tokens that overlap
# with the name are the action's:
#
#     text       {"action": "go left"}
#     span                   ^^^^^^^
#     tokens     {"|action|":| "go| left|"}
#     mask        0|     0| 0|   1|    1| 0
#
# Here `choice_tokens` would find the token ` "go` or the token ` left`, depending on what else is legal.


def action_tokens(span: tuple[int, int] | None, offsets: Offsets) -> np.ndarray:
    """Mask of the tokens that share a character with the action.

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
    """Find the token by which the legal actions differ first, and its alternatives.

    The reply is written with each legal action in turn in the action's place, and encoded. The first token that is not
    the same for all of them is the choice; usually it is the first token of the action. Two actions may share it, as
    `1` and `10` do beside `2` where digits are tokens of their own; it is then given once.

    There is no choice (None and no ids) if no action was read, if fewer than two ids differ, or if no sampled token
    begins where the choice would be made, in the same text: then the alternatives cannot be compared at one place.
    How the text before it was cut into tokens does not matter, for the model's own reading of it is used.

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
    start, end = span
    if text[start - 1 : start] == '"':  # within the quotes of JSON, names are escaped
        legal = [json.dumps(name, ensure_ascii=False)[1:-1] for name in legal]
    written = [text[:start] + name + text[end:] for name in legal]
    encoded = [encode(one) for one in written]
    place = next((place for place, there in enumerate(zip(*encoded, strict=False)) if len(set(there)) > 1), None)
    if place is None:
        return None, ()
    begins = offsets_of(encoded[0])[place][0]
    if any(one[:begins] != text[:begins] for one in written):
        return None, ()
    sampled = enumerate(offsets_of([int(token) for token in ids]))
    index = next((i for i, (first, last) in sampled if first == begins and last > first), None)
    return (None, ()) if index is None else (index, tuple(dict.fromkeys(one[place] for one in encoded)))
