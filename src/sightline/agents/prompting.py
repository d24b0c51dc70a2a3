"""What an agent is told of how to reply, and a reply in that form.

A reply says what it sees, then what it thinks, then what it does, in this order: so the action can follow from the
thoughts, and these from what was seen. There are two forms. `json` is one object, `{"current": "3", …, "action": "+"}`;
`tags` is `<current>3</current>…<action>+</action>`, one to a line, where nothing is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.config.agents import Replies

ACTION, THOUGHTS = "action", "thoughts"
BLANK = "..."
"""What stands in the skeleton of a reply; never the name of an action."""


def prompt_text(observation_text: str, settings: Replies, asked: Sequence[str], action_names: Sequence[str]) -> str:
    """All words of one turn: what the game says, and how to reply.

    Args:
        observation_text: of the game: rules, and what of the present state is told in words.
        asked: names of the facts that are to be stated, in order.
        action_names: of the game.
    """
    return f"{observation_text}\n{instructions(settings, asked, action_names)}"


def instructions(settings: Replies, asked: Sequence[str], action_names: Sequence[str]) -> str:
    """How to reply: the same text in every turn of a game, whatever is legal, so that prompts stay equal.

    Args:
        asked: names of the facts that are to be stated, in order; left out if the settings do not want facts.
        action_names: all of the game's, not only the legal ones.
    """
    facts = tuple(asked) if settings.facts else ()
    wanted = [f"what you see ({', '.join(facts)})"] if facts else []
    wanted += ["your thoughts"] if settings.thoughts else []
    wanted += ["one action"]
    listed = wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])} and {wanted[-1]}"
    form = "JSON" if settings.format == "json" else "tags"
    actions = ", ".join(json.dumps(name, ensure_ascii=False) for name in action_names)
    skeleton = demonstration(settings, dict.fromkeys(facts, BLANK), BLANK, BLANK)
    return f"The action is one of {actions}. Reply in {form} with {listed}:\n{skeleton}"


def demonstration(settings: Replies, facts: Mapping[str, str], thoughts: str, action: str) -> str:
    """A reply in the form that is asked for.

    Args:
        facts: what is stated, in order; left out if the settings do not want facts.
        thoughts: left out if the settings do not want them.
    """
    said = dict(facts) if settings.facts else {}
    said |= {THOUGHTS: thoughts} if settings.thoughts else {}
    said |= {ACTION: action}
    if settings.format == "json":
        return json.dumps(said, ensure_ascii=False)
    return "\n".join(f"<{tag_name(name)}>{value}</{tag_name(name)}>" for name, value in said.items())


def tag_name(name: str) -> str:
    """The tag of a fact: its name, with `_` for whatever cannot stand in a tag."""
    return re.sub(r"\W+", "_", name)


def reply_schema(settings: Replies, asked: Sequence[str], action_names: Sequence[str]) -> dict[str, Any] | None:
    """JSON schema of a reply, for servers that can enforce one; None for tags."""
    if settings.format != "json":
        return None
    text: dict[str, Any] = {"type": "string"}
    properties = dict.fromkeys(asked, text) if settings.facts else {}
    properties |= {THOUGHTS: text} if settings.thoughts else {}
    properties |= {ACTION: text | {"enum": list(action_names)}}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
