"""What a model's chat template says of its replies: by which token they end, and how thoughts in them are marked.

No family is named: the template is made to write conversations with known words in them, and what stands around these
words is what the model was taught to write.
"""

from __future__ import annotations

import re
from typing import Any

from sightline.replies import Thinking, begins_thought

USER, NEXT, SAID, THOUGHT = "QUESTION-STANDS-HERE", "NEXT-STANDS-HERE", "REPLY-STANDS-HERE", "THOUGHT-STANDS-HERE"
"""Words in place of messages, by which they are known again in what a template writes."""
_LITERAL = re.compile(r"""(['"])((?:(?!\1)[^\n\\]){3,40})\1""")
"""A string in the program of a template."""


def thinking_of(processor: Any) -> Thinking:
    """How a model marks its thoughts, by its chat template."""
    openings, closings = _written_marks(processor)
    closings |= _marks_that_hide(processor)
    thinking = Thinking(tuple(sorted(openings)), tuple(sorted(closings)))
    prompt = _rendered(processor, [_message("user", USER)], add_generation_prompt=True) or ""
    opened_by_prompt = begins_thought(prompt.rpartition(USER)[2], thinking)
    return Thinking(thinking.openings, thinking.closings, opened_by_prompt)


def end_of_turn(processor: Any) -> int | None:
    """Id of the token that the chat template writes after a reply; None if it writes no token of the vocabulary's own.

    It counts whatever the configurations call the end: after somebody's fine-tuning they often name another one.
    """
    tokenizer = processor.tokenizer
    added = getattr(tokenizer, "added_tokens_decoder", {})
    between = [_message("user", USER), _message("assistant", SAID), _message("user", NEXT)]
    for messages in (between, between[:2]):
        written = _rendered(processor, messages)
        if written is None or SAID not in written:
            continue
        after = written.rpartition(SAID)[2].partition(NEXT)[0].lstrip()
        ids = [int(token) for token in tokenizer(after, add_special_tokens=False)["input_ids"]]
        first = next((token for token in ids if tokenizer.decode([token]).strip()), None)
        # A template without an end goes on with the next turn's beginning.
        if first in added and first != getattr(tokenizer, "bos_token_id", None):
            return first
    return None


def _message(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}], **more}


def _rendered(processor: Any, messages: list[dict[str, Any]], **options: Any) -> str | None:
    """What the template writes; None if it does not take such messages."""
    try:
        written: str = processor.apply_chat_template(messages, tokenize=False, **options)
    except Exception:  # templates are programs, and raise exceptions of any type
        return None
    return written if isinstance(written, str) else None


def _written_marks(processor: Any) -> tuple[set[str], set[str]]:
    """Opening and closing mark that the template writes around a thought; none if it takes no thoughts."""
    named = [_message("assistant", SAID, **{key: THOUGHT}) for key in ("reasoning_content", "reasoning", "thinking")]
    parts = [{"type": "thinking", "thinking": inner} for inner in (THOUGHT, [{"type": "text", "text": THOUGHT}])]
    as_parts = [{"role": "assistant", "content": [part, {"type": "text", "text": SAID}]} for part in parts]
    # An earlier reply, without a thought: what stands before both is no mark.
    earlier = [_message("user", USER), _message("assistant", SAID.lower()), _message("user", NEXT)]
    for reply in (*named, *as_parts):
        written = _rendered(processor, [*earlier, reply]) or ""
        before, thought, after = written.partition(NEXT)[2].partition(THOUGHT)
        closing, said, _ = after.partition(SAID)
        if not thought or not said:
            continue
        usual = written.partition(USER)[2].partition(SAID.lower())[0]
        counterpart = closing.strip().replace("/", "", 1)
        alike = next((i for i, (a, b) in enumerate(zip(before, usual, strict=False)) if a != b), len(usual))
        opening = counterpart if "/" in closing and counterpart in before else before[alike:].strip()
        if opening and closing.strip():
            return {opening}, {closing.strip()}
    return set(), set()


def _marks_that_hide(processor: Any) -> set[str]:
    """Strings of the template that it cuts earlier replies at, to show only what was said after them."""
    template = getattr(processor, "chat_template", None)
    programs = template.values() if isinstance(template, dict) else [template]
    literals = {found[2].strip() for one in programs if isinstance(one, str) for found in _LITERAL.finditer(one)}
    hiding = set()
    for literal in sorted(literals):
        if len(literal) < 3 or literal[0].isalnum() or literal[-1].isalnum():
            continue
        earlier = f"{THOUGHT}{literal}{SAID}"
        messages = [_message("user", USER), _message("assistant", earlier), _message("user", NEXT)]
        written = _rendered(processor, messages) or THOUGHT
        if SAID in written and THOUGHT not in written:
            hiding.add(literal)
    return hiding
