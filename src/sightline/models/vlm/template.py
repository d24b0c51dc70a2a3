"""What a model's chat template says of its replies: by which token they end, and how thoughts in them are marked.

No family is named: the template is made to write conversations with known words in them, and what stands around these
words is what the model was taught to write.
"""

from __future__ import annotations

import re
from typing import Any

from sightline.replies import Thinking, begins_thought

USER = "QUESTION-STANDS-HERE"
NEXT = "NEXT-STANDS-HERE"
REPLY = "REPLY-STANDS-HERE"
THOUGHT = "THOUGHT-STANDS-HERE"
"""Words in place of messages, by which they are recognised in what a template writes."""
_LITERAL = re.compile(r"""(['"])((?:(?!\1)[^\n\\]){3,40})\1""")
"""A string in the program of a template."""


def thinking_of(processor: Any) -> Thinking:
    """How a model marks its thoughts, by its chat template."""
    openings, closings = _written_marks(processor)
    closings |= _marks_that_hide(processor)
    thinking = Thinking(tuple(sorted(openings)), tuple(sorted(closings)))
    prompt = _rendered(processor, [_message("user", USER)], add_generation_prompt=True) or ""
    # A template may open the thought itself, so that replies begin within it.
    opened_by_prompt = begins_thought(prompt.rpartition(USER)[2], thinking)
    return Thinking(thinking.openings, thinking.closings, opened_by_prompt)


def end_of_turn(processor: Any) -> int | None:
    """Id of the token that the chat template writes after a reply; None if it writes no token of the vocabulary's own.

    It counts whatever the configurations call the end: after somebody's fine-tuning they often name another one.
    """
    tokenizer = processor.tokenizer
    added = getattr(tokenizer, "added_tokens_decoder", {})
    conversation = [_message("user", USER), _message("assistant", REPLY), _message("user", NEXT)]
    # The second without the next question: some templates write no two of them, some end no reply in the middle.
    for messages in (conversation, conversation[:2]):
        text = _rendered(processor, messages)
        if text is None or REPLY not in text:
            continue
        after = text.rpartition(REPLY)[2].partition(NEXT)[0].lstrip()
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
        text: Any = processor.apply_chat_template(messages, tokenize=False, **options)
    except Exception:  # templates are programs, and raise exceptions of any type
        return None
    return text if isinstance(text, str) else None


def _written_marks(processor: Any) -> tuple[set[str], set[str]]:
    """Opening and closing mark that the template writes around a thought; none if it takes no thoughts."""
    # Libraries hand thoughts to templates under several names, or as parts of a message.
    replies = [_message("assistant", REPLY, **{key: THOUGHT}) for key in ("reasoning_content", "reasoning", "thinking")]
    for thought_part in (THOUGHT, [{"type": "text", "text": THOUGHT}]):
        content = [{"type": "thinking", "thinking": thought_part}, {"type": "text", "text": REPLY}]
        replies.append({"role": "assistant", "content": content})
    # An earlier reply, without a thought: what stands before both is no mark.
    earlier = [_message("user", USER), _message("assistant", REPLY.lower()), _message("user", NEXT)]
    for reply in replies:
        #   … QUESTION <usual> reply … NEXT <before> THOUGHT <closing> REPLY …
        text = _rendered(processor, [*earlier, reply]) or ""
        before, thought, after = text.partition(NEXT)[2].partition(THOUGHT)
        closing, reply_words, _ = after.partition(REPLY)
        if not thought or not reply_words:
            continue
        usual = text.partition(USER)[2].partition(REPLY.lower())[0]
        counterpart = closing.strip().replace("/", "", 1)
        if "/" in closing and counterpart in before:  # as `</think>` has `<think>`
            opening = counterpart
        else:
            opening = before[common_length(before, usual) :].strip()
        if opening and closing.strip():
            return {opening}, {closing.strip()}
    return set(), set()


def common_length(first: str, second: str) -> int:
    """Number of characters with which both texts begin."""
    for index, (one_letter, other_letter) in enumerate(zip(first, second, strict=False)):
        if one_letter != other_letter:
            return index
    return min(len(first), len(second))


def _marks_that_hide(processor: Any) -> set[str]:
    """Strings of the template that it cuts earlier replies at, to show only what was said after them."""
    template = getattr(processor, "chat_template", None)
    programs = template.values() if isinstance(template, dict) else [template]
    literals = set()
    for program in programs:
        if isinstance(program, str):
            literals |= {match[2].strip() for match in _LITERAL.finditer(program)}
    hiding = set()
    for literal in sorted(literals):
        if len(literal) < 3 or literal[0].isalnum() or literal[-1].isalnum():
            continue
        earlier = f"{THOUGHT}{literal}{REPLY}"
        messages = [_message("user", USER), _message("assistant", earlier), _message("user", NEXT)]
        text = _rendered(processor, messages) or THOUGHT
        if REPLY in text and THOUGHT not in text:
            hiding.add(literal)
    return hiding
