"""Prompt of a turn: the observation's words, the instructions on the reply format, and example replies in it.

A reply states facts, then thoughts, then the action, in this order: so the action can follow from the thoughts, and
these from the facts. `replies.fields` names other keys in another order. There are two formats. `json` is one object,
`{"current": "3", …, "action": "+"}`; `tags` is `<current>3</current>…<action>+</action>`, one to a line, where nothing
is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sightline.config.agents import Replies

ACTION = "action"
THOUGHTS = "thoughts"
BLANK = "..."
"""Placeholder in the skeleton of a reply; never the name of an action."""


def prompt_text(
    observation_text: str,
    settings: Replies,
    queried_facts: Sequence[str],
    action_names: Sequence[str],
    memory: str = "",
) -> str:
    """Compose the prompt of one turn: the observation's words, the model's notes, and the reply instructions.

    Args:
        observation_text: rules, and the part of the present state that is described in words.
        queried_facts: names of the facts that a reply should state, in order.
        action_names: of the environment.
        memory: what the reply before wrote down, for settings that have a key for that.
    """
    parts = [observation_text]
    if settings.memory is not None:
        parts.append(f"You have written down: {memory or 'nothing'}")
    parts.append(instructions(settings, queried_facts, action_names))
    return "\n".join(parts)


def instructions(settings: Replies, queried_facts: Sequence[str], action_names: Sequence[str]) -> str:
    """Reply instructions: the same text in every turn, whatever is legal, so that prompts stay equal.

    Args:
        queried_facts: names of the facts that a reply should state, in order; left out if the settings want none.
        action_names: all of the environment's, not only the legal ones; those of the state, where each has its own; or
            none, if any text is an action.
    """
    facts = settings.asks(queried_facts)
    contents = _contents(settings, facts)
    form = "JSON" if settings.format == "json" else "tags"
    skeleton = demonstration(settings, dict.fromkeys(facts, BLANK), BLANK, BLANK)
    text = f"Reply in {form} with {contents}:\n{skeleton}"
    if action_names:
        actions = ", ".join(json.dumps(name, ensure_ascii=False) for name in action_names)
        text = f"The action is one of {actions}. {text}"
    return text


def _contents(settings: Replies, facts: Sequence[str]) -> str:
    """What a reply consists of, in words: `what you see (current, target), your thoughts and one action`."""
    if settings.fields:
        return "; ".join(f"{name}: {hint}" if hint else name for name, hint in settings.fields.items())
    parts: list[str] = []
    if facts:
        parts.append(f"what you see ({', '.join(facts)})")
    if settings.thoughts:
        parts.append("your thoughts")
    if not parts:
        return "one action"
    return f"{', '.join(parts)} and one action"


def keys_of(settings: Replies, queried_facts: Iterable[str]) -> tuple[str, ...]:
    """Keys of a reply, in order."""
    if settings.fields:
        return tuple(settings.fields)
    keys = [*settings.asks(queried_facts)]
    if settings.thoughts:
        keys.append(THOUGHTS)
    return (*keys, ACTION)


def demonstration(settings: Replies, facts: Mapping[str, str], thoughts: str, action: str) -> str:
    """Write a reply in the requested format.

    Args:
        facts: to be stated, in order; left out if the settings do not want facts.
        thoughts: left out if the settings do not want them.
    """
    values: dict[str, str] = {}
    for key in keys_of(settings, facts):
        if key == ACTION:
            values[key] = action
        else:
            # Keys that name neither the action nor a fact are thoughts, whatever the recipe calls them.
            values[key] = facts.get(key, thoughts)
    if settings.format == "json":
        return json.dumps(values, ensure_ascii=False)
    lines = []
    for key, value in values.items():
        tag = tag_name(key)
        lines.append(f"<{tag}>{value}</{tag}>")
    return "\n".join(lines)


def tag_name(name: str) -> str:
    """Tag name of a fact: its name, with `_` for characters that a tag cannot have."""
    return re.sub(r"\W+", "_", name)


def reply_schema(settings: Replies, queried_facts: Sequence[str], action_names: Sequence[str]) -> dict[str, Any] | None:
    """JSON schema of a reply, for servers with structured output; None for tags."""
    if settings.format != "json":
        return None
    text: dict[str, Any] = {"type": "string"}
    properties = dict.fromkeys(keys_of(settings, queried_facts), text)
    if action_names:
        properties[ACTION] = text | {"enum": list(action_names)}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def common_start(texts: Sequence[str]) -> str:
    """What all texts begin with; there is at least one."""
    # Of sorted texts, the first and the last have least in common.
    first = min(texts)
    last = max(texts)
    for i, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return first[:i]
    return first
