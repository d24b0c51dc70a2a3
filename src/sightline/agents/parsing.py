"""Parser of an agent's replies: facts, thoughts, the action, and the tokens that make up the action.

Nothing here raises, whatever a model writes, and nothing is guessed:

- An action counts if it is the whole name of one, exactly or but for blanks, capital letters, quotes around it and
  punctuation after it. A name within other words is none: `10` is not `1`, and `cabinet 10` not `cabinet 1`.
- Thinking between marks, such as `<think>`, is left out (`sightline.replies.without_thoughts`).
- `json`: closed objects with a key `action` count, one within another object only if that has no such key. The first
  counts if all have the same action; else the reply is ambiguous, as in `Draft: {…} Final: {…}`. An object whose action
  is a placeholder, `...` or `<action>`, only repeats the form.
- `tags`: pairs of tags that the prompt asks for count wherever they are. Between them is text up to the closing tag,
  also if it looks like other tags; a tag that is never closed is not in the format.
- The first value of a key counts; different actions in one object, or in several tags, are ambiguous.
- A reply that reached the limit of tokens counts if its object, or its action's tags, were complete before.

What an invalid action leads to: `rollouts._Episode._choose_action`.
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
    queried_facts: Sequence[str] = (),
    finished: bool = True,
    thinking: Thinking = COMMON,
) -> Reply:
    """Parse a reply.

    Args:
        text: of the reply, without special tokens.
        settings: in which format it should be.
        action_names: all of the game's, or of the present state; empty if any text is an action.
        queried_facts: names of the facts that it may state.
        finished: whether the model ended it; False if it was cut off.
        thinking: how the model marks its thoughts.

    Returns:
        What could be read; also of a reply without an action, as far as it goes.
    """
    if not text.strip():
        return Reply(None, None, failure=Failure.EMPTY)

    # Keys of the recipe that name neither a fact nor the action are thoughts.
    own_keys = [key for key in settings.fields if key != ACTION and key not in queried_facts]
    thought_keys = own_keys or [THOUGHTS]
    if settings.format == "json":
        fields, in_format = _json_fields(without_thoughts(text, thinking, finished), action_names)
    else:
        keys = (*queried_facts, *thought_keys, ACTION)
        # A tag that the prompt asks for is no mark of thinking, even if it is called `<thoughts>`.
        tags = map(tag_name, keys)
        fields, in_format = _tag_fields(without_thoughts(text, thinking, finished, tags), keys)

    # The first value of a key counts; an empty one is as good as none.
    texts: dict[str, str] = {}
    actions: list[_Field] = []
    for field in fields:
        content = field.text.strip()
        if content and field.key == ACTION:
            actions.append(field)
        elif content:
            texts.setdefault(field.key, content)
    facts = _texts_under(queried_facts, texts)
    thoughts = "\n".join(_texts_under(thought_keys, texts).values())
    memory = ""
    if settings.memory is not None:
        memory = texts.get(normalise_key(settings.memory), "")

    if actions:
        action, failure = _choose(actions, action_names)
        return Reply(action, _trimmed_span(text, actions[0]), facts, thoughts, failure, memory)
    if not finished:
        failure = Failure.CUT_OFF
    elif in_format:
        failure = Failure.NO_ACTION
    else:
        failure = Failure.MALFORMED
    return Reply(None, None, facts, thoughts, failure, memory)


def _texts_under(names: Sequence[str], texts: dict[str, str]) -> dict[str, str]:
    """The texts of those names that the reply has as keys, name -> text, in the order of the names."""
    keys = {name: normalise_key(name) for name in names}
    return {name: texts[key] for name, key in keys.items() if key in texts}


def _choose(actions: Sequence[_Field], action_names: Sequence[str]) -> tuple[str | None, Failure | None]:
    """The action that all fields name, or the reason why there is none."""
    # Without a list of names any text is an action.
    matches = [_matches(field.text, action_names or [field.text.strip()]) for field in actions]
    different: set[str] = set()
    for field, names in zip(actions, matches, strict=True):
        different.add(names[0] if names else field.text.strip())
    if len(different) > 1 or len(matches[0]) > 1:
        return None, Failure.AMBIGUOUS
    if not matches[0]:
        return None, Failure.UNKNOWN_ACTION
    return matches[0][0], None


def _trimmed_span(text: str, field: _Field) -> tuple[int, int]:
    """The characters [start, end) of a field's text, without the blanks around it."""
    raw = text[field.start : field.end]
    start = field.start + len(raw) - len(raw.lstrip())
    return start, start + len(raw.strip())


def _matches(text: str, action_names: Sequence[str]) -> list[str]:
    """The actions whose name is nearest to a text: equal to it, or but for blanks, case, quotes and punctuation."""
    for simplified in (str, str.strip, normalise, _undecorated):
        matches = [name for name in action_names if simplified(name) == simplified(text)]
        if matches:
            return list(dict.fromkeys(matches))
    return []


def _undecorated(name: str) -> str:
    """A name without quotes around it and punctuation after it, unless nothing else is there."""
    name = normalise(name)
    for _ in range(3):  # "go left." and "go left".
        quoted = _QUOTED.fullmatch(name)
        bare = name.rstrip(".,;:!?…。、！")
        if quoted:
            bare = quoted[1]
        name = bare.strip() or name
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
    fallback: JsonValue | None = None
    with_action: list[JsonValue] = []
    for objects in find_objects(text):
        outermost = objects[0]
        if outermost.closed:
            with_action += _with_action(objects)
        if fallback is None or (outermost.closed and not fallback.closed):
            fallback = outermost

    if with_action:
        replies = [candidate for candidate in with_action if not _repeats_the_form(candidate, action_names)]
        first, *others = replies or with_action[:1]
        fields = _fields_of(text, first)
        # Of further objects only the actions count: they may contradict the first.
        for other in others:
            fields += [field for field in _fields_of(text, other) if field.key == ACTION]
        return fields, True
    if fallback is None:
        return [], False
    # An object without an action may still state facts; an action in one that is not closed may be incomplete.
    return [field for field in _fields_of(text, fallback) if field.key != ACTION], fallback.closed


def _with_action(objects: list[JsonValue]) -> list[JsonValue]:
    """Of an object and all objects within it, the outermost ones that have an action."""
    with_action: list[JsonValue] = []
    for candidate in objects:
        is_within = bool(with_action) and candidate.start < with_action[-1].end
        if candidate.get(ACTION) and not is_within:
            with_action.append(candidate)
    return with_action


def _repeats_the_form(container: JsonValue, action_names: Sequence[str]) -> bool:
    """Whether the action of an object is the placeholder of a form, not the name of an action."""
    actions = [value.text.strip() for value in container.get(ACTION)]
    return all(_PLACEHOLDER.fullmatch(action) and action not in action_names for action in actions)


def _fields_of(text: str, container: JsonValue) -> list[_Field]:
    """Fields of an object. A fact may be a list of scalars; other lists and objects are taken as they are written."""
    fields = []
    for key, value in container.items:
        content = value.text
        if value.kind:
            content = text[value.start : value.end]
        is_flat_list = value.kind == "[" and not any(item.kind for _, item in value.items)
        if is_flat_list and key != ACTION:
            content = ", ".join(item.text for _, item in value.items)
        fields.append(_Field(key, value.start, value.end, content))
    return fields


def _tag_fields(text: str, keys: Sequence[str]) -> tuple[list[_Field], bool]:
    """Fields of all tags with these names, up to one that is not closed, which may state a fact but no action.

    Returns:
        The fields, and whether there are any and all are closed.
    """
    names = tuple(dict.fromkeys(keys))
    opening, closings = _tag_patterns(names)
    start = 0
    fields: list[_Field] = []
    while opening_tag := opening.search(text, start):
        number = int(opening_tag.lastindex or 1) - 1
        name = names[number]
        begin = opening_tag.end()
        closing_tag = closings[number].search(text, begin)
        end = closing_tag.start() if closing_tag else len(text)
        if closing_tag or name != ACTION:
            fields.append(_Field(normalise_key(name), begin, end, text[begin:end]))
        if closing_tag is None:
            return fields, False
        start = closing_tag.end()
    return fields, bool(fields)


@lru_cache(maxsize=64)
def _tag_patterns(names: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[re.Pattern[str], ...]]:
    """The pattern that opens any of the tags, with a group for each, and the patterns that close them."""
    tags = [re.escape(tag_name(name)) for name in names]
    any_tag = "|".join(f"({tag})" for tag in tags)
    opening = re.compile(f"<(?:{any_tag})>", re.IGNORECASE)
    closings = tuple(re.compile(f"</{tag}>", re.IGNORECASE) for tag in tags)
    return opening, closings


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
    mask = []
    for first, last in offsets:
        begins_before_end = first < end
        ends_after_start = last > start or first >= start  # the latter: an empty token
        mask.append(begins_before_end and ends_after_start)
    return np.array(mask, bool)


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
    alternatives = [text[:start] + name + text[end:] for name in legal]
    encodings = [encode(alternative) for alternative in alternatives]

    # The position at which the encodings differ first, and the character at which its token begins.
    position = None
    for i, tokens in enumerate(zip(*encodings, strict=False)):
        if len(set(tokens)) > 1:
            position = i
            break
    if position is None:
        return None, ()
    character = offsets_of(encodings[0])[position][0]
    if any(alternative[:character] != text[:character] for alternative in alternatives):
        return None, ()

    # The sampled token that begins there; the reply may be cut into other tokens before it.
    for index, (first, last) in enumerate(offsets_of([int(token) for token in ids])):
        if first == character and last > first:
            choices = dict.fromkeys(encoding[position] for encoding in encodings)
            return index, tuple(choices)
    return None, ()
