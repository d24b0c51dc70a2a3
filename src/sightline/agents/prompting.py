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

ACTION, THOUGHTS = "action", "thoughts"
BLANK = "..."
"""Placeholder in the skeleton of a reply; never the name of an action."""


def prompt_text(
    observation_text: str,
    settings: Replies,
    queried_facts: Sequence[str],
    action_names: Sequence[str],
    memory: str = "",
) -> str:
    """Compose the prompt of one turn: the observation's words, what was written down, and the reply instructions.

    Args:
        observation_text: rules, and what of the present state is told in words.
        queried_facts: names of the facts that a reply should state, in order.
        action_names: of the environment.
        memory: what the reply before wrote down, for settings that have a key for that.
    """
    notes = "" if settings.memory is None else f"\nYou have written down: {memory or 'nothing'}"
    return f"{observation_text}{notes}\n{instructions(settings, queried_facts, action_names)}"


def instructions(settings: Replies, queried_facts: Sequence[str], action_names: Sequence[str]) -> str:
    """Reply instructions: the same text in every turn, whatever is legal, so that prompts stay equal.

    Args:
        queried_facts: names of the facts that a reply should state, in order; left out if the settings want none.
        action_names: all of the environment's, not only the legal ones; those of the state, where each has its own; or
            none, if any text is an action.
    """
    facts = settings.asks(queried_facts)
    if settings.fields:
        listed = "; ".join(f"{name}: {hint}" if hint else name for name, hint in settings.fields.items())
    else:
        wanted = [f"what you see ({', '.join(facts)})"] if facts else []
        wanted += ["your thoughts"] if settings.thoughts else []
        wanted += ["one action"]
        listed = wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])} and {wanted[-1]}"
    form = "JSON" if settings.format == "json" else "tags"
    actions = ", ".join(json.dumps(name, ensure_ascii=False) for name in action_names)
    skeleton = demonstration(settings, dict.fromkeys(facts, BLANK), BLANK, BLANK)
    choice = f"The action is one of {actions}. " if action_names else ""
    return f"{choice}Reply in {form} with {listed}:\n{skeleton}"


def keys_of(settings: Replies, queried_facts: Iterable[str]) -> tuple[str, ...]:
    """Keys of a reply, in order."""
    if settings.fields:
        return tuple(settings.fields)
    return (*settings.asks(queried_facts), *([THOUGHTS] if settings.thoughts else []), ACTION)


def demonstration(settings: Replies, facts: Mapping[str, str], thoughts: str, action: str) -> str:
    """Write a reply in the requested format.

    Args:
        facts: to be stated, in order; left out if the settings do not want facts.
        thoughts: left out if the settings do not want them.
    """
    said = {key: action if key == ACTION else facts.get(key, thoughts) for key in keys_of(settings, facts)}
    if settings.format == "json":
        return json.dumps(said, ensure_ascii=False)
    return "\n".join(f"<{tag_name(name)}>{value}</{tag_name(name)}>" for name, value in said.items())


def tag_name(name: str) -> str:
    """Tag name of a fact: its name, with `_` for characters that a tag cannot have."""
    return re.sub(r"\W+", "_", name)


def reply_schema(settings: Replies, queried_facts: Sequence[str], action_names: Sequence[str]) -> dict[str, Any] | None:
    """JSON schema of a reply, for servers with structured output; None for tags."""
    if settings.format != "json":
        return None
    text: dict[str, Any] = {"type": "string"}
    properties = dict.fromkeys(keys_of(settings, queried_facts), text)
    properties[ACTION] = text | ({"enum": list(action_names)} if action_names else {})
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def common_start(texts: Sequence[str]) -> str:
    """What all texts begin with; there is at least one."""
    first, last = min(texts), max(texts)  # of sorted texts, these two have least in common
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
