"""Replies: what is asked for, what is read whatever a model writes, and which tokens make up an action."""

from __future__ import annotations

import json
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.agents.parsing import action_tokens, choice_tokens, read_reply
from sightline.agents.prompting import demonstration, instructions, prompt_text, reply_schema
from sightline.agents.types import Failure, Reply
from sightline.config.agents import Replies
from sightline.models.vlm.tokens import Tokens
from sightline.replies import Thinking, find_objects, normalise_key, with_common_marks, without_thoughts

JSON, TAGS = Replies(format="json"), Replies(format="tags")
BOTH = pytest.mark.parametrize("form", [JSON, TAGS], ids=["json", "tags"])
SIGNS = ("-", "+")
POINTS = (*map(str, range(1, 11)), "+", "*", "=")
CABINETS = ("go to cabinet 1", "go to cabinet 10", "open cabinet 1", "look")


def read(text: str, names: tuple[str, ...] = SIGNS, form: Replies = JSON, finished: bool = True) -> Reply:
    return read_reply(text, form, names, ("current", "target"), finished)


def round_trip(action: str, names: tuple[str, ...]) -> bool:
    """True if an action that is written as it should be is read as itself, in both formats."""
    return all(read(demonstration(form, {}, "", action), names, form).action == action for form in (JSON, TAGS))


def spanned(text: str, reply: Reply) -> str:
    assert reply.span is not None
    return text[slice(*reply.span)]


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_the_prompt_ends_with_how_to_reply_word_for_word() -> None:
    assert prompt_text("Lead one number to the other.", JSON, ("current", "target"), SIGNS) == (
        "Lead one number to the other.\n"
        'The action is one of "-", "+". '
        "Reply in JSON with what you see (current, target), your thoughts and one action:\n"
        '{"current": "...", "target": "...", "thoughts": "...", "action": "..."}'
    )
    assert instructions(Replies(format="tags", facts=False), ("current",), ("hit", "stand")) == (
        'The action is one of "hit", "stand". Reply in tags with your thoughts and one action:\n'
        "<thoughts>...</thoughts>\n<action>...</action>"
    )
    assert instructions(Replies(facts=False, thoughts=False), ("current",), SIGNS).endswith(
        'JSON with one action:\n{"action": "..."}'
    )


@BOTH
def test_the_skeleton_itself_is_in_the_format_and_names_no_action(form: Replies) -> None:
    text = instructions(form, ("current", "target"), SIGNS)
    if form is JSON:
        assert list(json.loads(text.splitlines()[-1])) == ["current", "target", "thoughts", "action"]
    reply = read(text, form=form)
    assert reply.failure is Failure.UNKNOWN_ACTION and spanned(text, reply) == "..."


def test_a_demonstration_says_what_the_settings_want() -> None:
    facts = {"current": "3", "target": "5"}
    assert demonstration(JSON, facts, "up", "+") == ('{"current": "3", "target": "5", "thoughts": "up", "action": "+"}')
    assert demonstration(Replies(facts=False, thoughts=False), facts, "up", "+") == '{"action": "+"}'
    assert demonstration(Replies(format="tags", thoughts=False), {"current number": "3"}, "up", "+") == (
        "<current_number>3</current_number>\n<action>+</action>"
    )


@pytest.mark.parametrize("form", ["json", "tags"])
def test_keys_of_ones_own_are_asked_for_demonstrated_and_read_in_their_order(form: Any) -> None:
    own = {"plan": "what to do first and next", "holding": "", "doubt": "", "action": "one action"}
    replies = Replies(format=form, fields=own)
    told = instructions(replies, ("place", "holding"), ("go", "stay"))
    assert "with plan: what to do first and next; holding; doubt; action: one action:\n" in told
    written = demonstration(replies, {"place": "shelf", "holding": "mug"}, "I think", "go")
    places = [written.index(word) for word in own]
    assert places == sorted(places) and "shelf" not in written
    reply = read_reply(written, replies, ("go", "stay"), ("place", "holding"))
    assert (reply.action, reply.stated, reply.thoughts) == ("go", {"holding": "mug"}, "I think\nI think")
    assert replies.asks(("place", "holding")) == ("holding",)
    schema = reply_schema(replies, ("place", "holding"), ("go", "stay"))
    assert schema is None if form == "tags" else list(schema["properties"]) == list(own)  # type: ignore[index]


@pytest.mark.parametrize("form", ["json", "tags"])
def test_what_a_reply_writes_down_is_shown_in_the_next_prompt(form: Any) -> None:
    replies = Replies(format=form, fields={"notes": "what to remember", "action": ""}, memory="notes")
    written = demonstration(replies, {"notes": "drawer 1 is empty"}, "", "go")
    reply = read_reply(written, replies, ("go", "stay"))
    assert (reply.action, reply.memory) == ("go", "drawer 1 is empty")
    told = prompt_text("A house.", replies, (), ("go",), reply.memory)
    assert told.startswith("A house.\nYou have written down: drawer 1 is empty\nThe action is one of")
    assert "You have written down: nothing\n" in prompt_text("A house.", replies, (), ("go",))
    plain = Replies(format=form)
    assert "written down" not in prompt_text("A house.", plain, (), ("go",)) and not read_reply("", replies, ()).memory
    for memory in ("action", "plan"):
        with pytest.raises(ValueError, match=f"memory: '{memory}' is not a key to write notes under"):
            Replies(fields={"notes": "", "action": ""}, memory=memory)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"plan": "", "thoughts": ""}, "no reply without 'action'"),
        ({"a b": "", "A_b": "", "action": ""}, "must differ"),
    ],
)
def test_keys_that_cannot_be_read_are_refused(fields: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Replies(fields=fields)


def test_the_schema_allows_demonstrations_and_names_the_actions() -> None:
    schema = reply_schema(JSON, ("current",), SIGNS)
    assert schema is not None
    assert schema["required"] == ["current", "thoughts", "action"] == list(schema["properties"])
    assert schema["properties"]["action"]["enum"] == ["-", "+"]
    assert reply_schema(TAGS, ("current",), SIGNS) is None


# -- what is read ------------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters='"\\'), min_size=1, max_size=12)


@given(facts=st.dictionaries(st.sampled_from(["current", "target", "my cards"]), WORDS), thoughts=WORDS, action=PLAIN)
def test_what_is_demonstrated_in_json_is_read(facts: dict[str, str], thoughts: str, action: str) -> None:
    text = demonstration(JSON, facts, thoughts, action)
    reply = read_reply(f"```json\n{text}\n``` done", JSON, (action, action + "x"), tuple(facts))
    assert reply.failure is None and reply.action == action
    assert spanned(f"```json\n{text}\n``` done", reply) == action
    assert reply.stated == {name: said.strip() for name, said in facts.items() if said.strip()}
    assert reply.thoughts == thoughts.strip()


UNTAGGED = WORDS.filter(lambda text: "</" not in text)


@given(
    facts=st.dictionaries(st.sampled_from(["current", "target", "my cards"]), UNTAGGED),
    thoughts=UNTAGGED,
    action=PLAIN.filter(lambda text: "</" not in text),
)
def test_what_is_demonstrated_in_tags_is_read(facts: dict[str, str], thoughts: str, action: str) -> None:
    text = demonstration(TAGS, facts, thoughts, action)
    reply = read_reply(text, TAGS, (action, action + "x"), tuple(facts))
    assert reply.failure is None and reply.action == action and spanned(text, reply) == action
    assert reply.stated == {name: said.strip() for name, said in facts.items() if said.strip()}
    assert reply.thoughts == thoughts.strip()


PIECES = st.sampled_from(
    [
        *('{"action": "+"}', '{"action":', '"action"', "<action>", "</action>", "<thoughts>", "</think>", "<think>"),
        *("{", "}", "[", "]", ",", ":", '"', "\\", "\\u12", "+", "null", "\n", "\0", '{"a": {', "10", "é", "\ud800"),
    ]
)


@settings(max_examples=300)
@given(text=st.one_of(st.lists(PIECES, max_size=20).map("".join), st.text(max_size=60)), finished=st.booleans())
def test_nothing_that_is_written_raises(text: str, finished: bool) -> None:
    for form in (JSON, TAGS):
        reply = read_reply(text, form, SIGNS, ("current",), finished)
        assert (reply.action is None) == (reply.failure is not None)
        if reply.action is not None:
            assert spanned(text, reply).strip("\"'`*“‘«” ’».,;:!?…。、！") == reply.action
        if reply.span is not None:
            assert 0 <= reply.span[0] < reply.span[1] <= len(text)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"action": "+"}', "+"),
        ('Sure! Here it is:\n```json\n{"current": 3, "action": "+"}\n```\nIs {that} fine?', "+"),
        ('{"Current": "3", "ACTION": " + "}', "+"),
        ('{"thoughts": "a } and a { and \\"+\\"", "action": "-"}', "-"),
        ('{"thoughts": {"action": "-", "why": ["}", {"x": 1}]}, "action": "+"}', "+"),
        ('{"action": +}', "+"),
        ('{"action": "\\u002b"}', "+"),
        ('{"current": "3" "action": "+",}', "+"),
        ('{"thoughts": "two\nlines", "action": "\'+\'."}', "+"),
        ('{"current": 3}\n{"action": "+"}', "+"),
        ('{"reply": {"action": "+"}}', "+"),
        ('{"action": "+", "action": "+ "}', "+"),
        ('{"action": "..."}, so: {"action": "+"}', "+"),
        ('{"plans": [{"action": "+"}, {"action": "+"}]}', "+"),
        ('◁think▷Perhaps {"action": "-"}?◁/think▷{"action": "+"}', "+"),
        ('[THINK]Perhaps {"action": "-"}?[/THINK]{"action": "+"}', "+"),
        ('<thought>Perhaps {"action": "-"}?</thought>{"action": "+"}', "+"),
        ('<seed:think>Perhaps {"action": "-"}?</seed:think>{"action": "+"}', "+"),
        ('<|START_THINKING|>Perhaps {"action": "-"}?<|END_THINKING|>{"action": "+"}', "+"),
        ('<|begin_of_thought|>{"action": "-"}<|end_of_thought|><|begin_of_solution|>{"action": "+"}', "+"),
        ('<|inner_prefix|>Perhaps {"action": "-"}?<|inner_suffix|>{"action": "+"}', "+"),
        ('<REASONING>Perhaps {"action": "-"}?</REASONING><CONCLUSION>{"action": "+"}</CONCLUSION>', "+"),
        (
            '<|channel|>analysis<|message|>{"action": "-"}<|end|>'
            '<|start|>assistant<|channel|>final<|message|>{"action": "+"}',
            "+",
        ),
        ('analysisPerhaps {"action": "-"}?assistantfinal{"action": "+"}', "+"),
        ('<|channel>thought\nPerhaps {"action": "-"}?<channel|>{"action": "+"}', "+"),
        ('<unused94>thought\nPerhaps {"action": "-"}?<unused95>{"action": "+"}', "+"),
        ('Here is my thought process: {"action": "-"}?\n\nHere is my response: {"action": "+"}', "+"),
        ('Well. <think>{"action": "-"}?</think>So: {"action": "+"}<think>or {"action": "-"}?</think>', "+"),
        ('I do not need <think> here: {"action": "+"}', "+"),
        ('I go {up}, so {\'x\'}: {"action": "+"}', "+"),
        ('<think>{"action": "-"}? No.</think>{"action": "+"}', "+"),
        ('{"thoughts": "</think> is a tag", "action": "+"}', "+"),
        ('{"action": "-"}? No.</think>{"action": "+"}', "+"),
        ('<think>Well.</think>{"thoughts": "</think> is a tag", "action": "+"}', "+"),
        ('Maybe {"action": "-"}? No.\n</think>\n\n{"action": "+"}', "+"),
        ('{"thoughts": "加一", "action": "+"}', "+"),
    ],
)
def test_json_with_an_action(text: str, action: str) -> None:
    reply = read(text)
    assert (reply.action, reply.failure) == (action, None)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", Failure.EMPTY),
        (" \n\t", Failure.EMPTY),
        ("\0\0", Failure.MALFORMED),
        ("+", Failure.MALFORMED),
        ("The action is +.", Failure.MALFORMED),
        ("Я думаю, нужно прибавить один", Failure.MALFORMED),
        ('"action": "+"', Failure.MALFORMED),
        ('{"action": "+"', Failure.MALFORMED),
        ('{"thoughts": "I see "5" here", "action": "+"}', Failure.MALFORMED),
        ("{'action': '+'}", Failure.MALFORMED),
        ('<think>{"action": "-"}', Failure.MALFORMED),
        ('{"action": "-"} it is.</think>', Failure.MALFORMED),
        ("<action>+</action>", Failure.MALFORMED),
        ('{"current": "3"}', Failure.NO_ACTION),
        ("{}", Failure.NO_ACTION),
        ('{"action": ""}', Failure.NO_ACTION),
        ('{"action": null}', Failure.NO_ACTION),
        ('{"action": "add one"}', Failure.UNKNOWN_ACTION),
        ('{"action": "+ or -"}', Failure.UNKNOWN_ACTION),
        ('{"action": "加"}', Failure.UNKNOWN_ACTION),
        ('{"action": ["+"]}', Failure.UNKNOWN_ACTION),
        ('{"action": {"name": "+"}}', Failure.UNKNOWN_ACTION),
        ('{"action": "+", "action": "-"}', Failure.AMBIGUOUS),
        ('{"action": "+"} or {"action": "-"}', Failure.AMBIGUOUS),
        ('Draft: {"action": "-"}\nFinal: {"action": "+"}', Failure.AMBIGUOUS),
        ('[{"action": "-"}, {"action": "+"}]', Failure.AMBIGUOUS),
        ('{"plans": [{"action": "-"}, {"action": "+"}]}', Failure.AMBIGUOUS),
        ('{"action": "-"} <think>No.</think> {"action": "+"}', Failure.AMBIGUOUS),
        ('◁think▷{"action": "-"}', Failure.MALFORMED),
        ('Well.\n<think>{"action": "-"}', Failure.MALFORMED),
        ('Here is my thought process: {"action": "-"}', Failure.MALFORMED),
        ('analysisPerhaps {"action": "-"}', Failure.MALFORMED),
        ('<|channel|>analysis<|message|>{"action": "-"}', Failure.MALFORMED),
        ('{"action": "+", "Action": "add"}', Failure.AMBIGUOUS),
    ],
)
def test_json_without_an_action(text: str, failure: Failure) -> None:
    reply = read(text)
    assert (reply.action, reply.failure) == (None, failure)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ('{"current": "3", "thoughts": "I have to', Failure.CUT_OFF),
        ('{"current": "3", "action": "+"', Failure.CUT_OFF),
        ("Let me think.", Failure.CUT_OFF),
        ("   ", Failure.EMPTY),
        ('{"action": "+"} and now I', None),
        ('{"action": "up"} and now I', Failure.UNKNOWN_ACTION),
    ],
)
def test_replies_that_were_cut_off(text: str, failure: Failure | None) -> None:
    assert read(text, finished=False).failure is failure


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("<current>3</current><action>+</action>", "+"),
        ("Well: <ACTION> +\n</Action> there", "+"),
        ("<action>+</action><action>+</action>", "+"),
        ("<thoughts>not <action>-</action></thoughts><action>+</action>", "+"),
        ("<action>+</action><thoughts>and then", "+"),
        ("<action>-</action>? No.</think><action>+</action>", "+"),
        ("<action>+</action><action>-</action>", Failure.AMBIGUOUS),
        ("<action>+", Failure.MALFORMED),
        ("<thoughts>so <action>+</action>", Failure.MALFORMED),
        ("<action></action>", Failure.NO_ACTION),
        ("<current>3</current>", Failure.NO_ACTION),
        ("<action><action>+</action></action>", Failure.UNKNOWN_ACTION),
        ("<b>+</b>", Failure.MALFORMED),
        ('{"action": "+"}', Failure.MALFORMED),
    ],
)
def test_tags(text: str, outcome: str | Failure) -> None:
    reply = read(text, form=TAGS)
    assert (reply.failure or reply.action) == outcome
    if reply.action:
        assert spanned(text, reply) == "+"


def test_tags_that_were_cut_off() -> None:
    assert read("<action>+", form=TAGS, finished=False).failure is Failure.CUT_OFF
    assert read("<action>+</action> so <action>-", form=TAGS, finished=False).action == "+"


@BOTH
@pytest.mark.parametrize("names", [POINTS, CABINETS])
def test_names_that_are_parts_of_others_are_told_apart(form: Replies, names: tuple[str, ...]) -> None:
    for name in names:
        for said in (name, name.upper(), f" {name}.", f"'{name}'"):
            text = demonstration(form, {}, f"not {names[0]} {names[1]}", said)
            assert read(text, names, form).action == name
        assert round_trip(name, names)
    for stranger in ("100", "cabinet 1", "go to cabinet", "1 0", "go to cabinet 100", "11"):
        assert read(demonstration(form, {}, "", stranger), names, form).failure is Failure.UNKNOWN_ACTION


def test_numbers_and_lists_are_values() -> None:
    reply = read_reply('{"cards": [10, "3"], "Left_over": 2, "action": 10}', JSON, POINTS, ("cards", "left over", "x"))
    assert reply.action == "10" and reply.stated == {"cards": "10, 3", "left over": "2"}


def test_the_exact_name_wins_and_others_that_read_the_same_are_ambiguous() -> None:
    names = ("Go", "go", "stop", "stop.")
    assert [read(demonstration(JSON, {}, "", said), names).action for said in ("go", "Go", "stop", "stop.")] == [
        *("go", "Go", "stop", "stop.")
    ]
    assert read(demonstration(JSON, {}, "", "GO"), names).failure is Failure.AMBIGUOUS
    assert read(demonstration(JSON, {}, "", '"stop"'), names).failure is Failure.AMBIGUOUS


def test_punctuation_can_be_an_action() -> None:
    names = (".", "...", "'", "*", "!")
    assert all(round_trip(name, names) for name in names)
    assert not round_trip("</action>", ("</action>", "x"))


def test_replies_without_an_action_still_state_what_they_see() -> None:
    assert read('{"current": "3", "target": 5, "thoughts": "I', finished=False).stated == {
        "current": "3",
        "target": "5",
    }
    assert read('{"current": "3"}').stated == {"current": "3"}
    assert read("<current>3</current><thoughts>I", form=TAGS, finished=False).stated == {"current": "3"}


ENDLESS = ["[", "{", '{"a":', '{"a":[', '"', '{"', '{"a" "', "{}", "\\", '{"action": ', "'", "{}</think>"]


@pytest.mark.parametrize("unit", [*ENDLESS, "<action>", "<thoughts></"])
def test_endless_replies_are_read(unit: str) -> None:
    """In quadratic time this would take many minutes, and with recursion it would fail."""
    text = unit * ((1_000_000 if unit == "[" else 200_000) // len(unit))
    quoted = '{"action": "' + text.replace('"', "'").replace("\\", "/") + '"}'
    assert all(read(text, form=form).action is None for form in (JSON, TAGS))
    assert read(quoted).action is None


# -- the reader of JSON, which teachers' replies share ----------------------------------------------------------------


@given(said=st.dictionaries(WORDS, WORDS, min_size=1), around=st.sampled_from(["", "So: ", "```json\n", "{x} [", '"']))
def test_objects_are_found_in_prose_with_the_places_of_their_values(said: dict[str, str], around: str) -> None:
    text = around + json.dumps(said, ensure_ascii=False) + around
    ((one,),) = find_objects(text)
    assert one.closed and json.loads(text[one.start : one.end]) == said
    assert [(key, value.text) for key, value in one.items] == [(normalise_key(key), said[key]) for key in said]
    assert [json.loads(f'"{text[value.start : value.end]}"') for _, value in one.items] == list(said.values())


def test_objects_within_objects_and_objects_that_break_off() -> None:
    whole, broken = find_objects('{"a": [{"b": null}, 2.5]} or {"My_A": {"b": "c"}, "d": e{')
    assert [(one.kind, one.closed, len(one.items)) for one in whole] == [("{", True, 1), ("{", True, 1)]
    assert [(value.kind, value.text) for _, value in whole[0].get("a")[0].items] == [("{", ""), ("", "2.5")]
    assert [one.closed for one in broken] == [False, True]
    assert [key for key, _ in broken[0].items] == ["my a", "d"]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        *(("+", "+"), ("<think>a</think>+", "+"), (" <THINKING>a</THINKING> +", " +"), ("a</think>b</think>+", "+")),
        *(("<think>a", ""), ("</think>+", "+"), ("<think>{'a'}</think>", ""), ("a <think> b", "a <think> b")),
        *(('{"a": "</think>"} +', '{"a": "</think>"} +'), ('{"a": "</think>', "")),
        ('{"a": 1}</think>{"a": "</think>"}', '{"a": "</think>"}'),
    ],
)
def test_thinking_is_skipped(text: str, reply: str) -> None:
    said = without_thoughts(text)
    assert len(said) == len(text) and said.strip() == reply.strip()


@pytest.mark.parametrize("form", [JSON, TAGS], ids=["json", "tags"])
def test_a_models_own_marks_are_known(form: Replies) -> None:
    draft, final = (demonstration(form, {}, "", action) for action in SIGNS)
    own = Thinking(openings=("((musing",), closings=("musing))",))
    text = f"((musing {draft} musing)) {final}"
    assert read_reply(text, form, SIGNS).failure is Failure.AMBIGUOUS
    assert read_reply(text, form, SIGNS, thinking=own).action == "+"
    assert read_reply(f"((musing {draft}", form, SIGNS, thinking=own).failure is Failure.MALFORMED


def test_what_a_prompt_has_begun_to_think_is_a_thought_until_it_ends() -> None:
    begun = Thinking(opened_by_prompt=True)
    draft = 'Perhaps {"action": "-"}? Let me'
    assert read_reply(draft, JSON, SIGNS, finished=False, thinking=begun).failure is Failure.CUT_OFF
    assert read_reply(draft + '</think>{"action": "+"}', JSON, SIGNS, finished=False, thinking=begun).action == "+"
    # A model that was taught to reply at once marks nothing, and ends.
    assert read_reply('{"action": "+"}', JSON, SIGNS, thinking=begun).action == "+"


def test_tags_that_were_asked_for_are_no_thoughts() -> None:
    form = Replies(format="tags", fields={"reasoning": "", "action": ""})
    reply = read_reply("<reasoning>it is less</reasoning><action>+</action>", form, SIGNS)
    assert (reply.action, reply.thoughts) == ("+", "it is less")


def test_replies_can_be_written_with_common_marks() -> None:
    own = Thinking(openings=("((",), closings=("))",))
    assert with_common_marks("((a)) b", own, finished=True) == "<think>((a))</think> b"
    assert with_common_marks("<think>a</think> b", own, finished=True) == "<think>a</think> b"
    assert with_common_marks("a", Thinking(opened_by_prompt=True), finished=False) == "<think>a</think>"


# -- which tokens ------------------------------------------------------------------------------------------------------

TEXTS = [
    demonstration(JSON, {"current": str(i), "target": str(i + 1)}, "go to it", name)
    for i in range(12)
    for name in POINTS
]


@lru_cache
def tokens_of(kind: str) -> tuple[Any, Tokens]:
    """A tokenizer of that kind, trained on replies, and what stands where in its ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<end>"]
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special + fallback, show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.BpeTrainer(vocab_size=10, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, *CABINETS] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")
    if kind == "metaspace":  # bytes are no special tokens of the decoder
        fast = _with_plain_bytes(tokenizer)
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=fast.eos_token_id),
        config=SimpleNamespace(),
        get_output_embeddings=lambda: SimpleNamespace(weight=np.zeros((len(fast), 1))),
    )
    return fast, Tokens(SimpleNamespace(tokenizer=fast), model)


def _with_plain_bytes(tokenizer: Any) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if not token["content"].startswith("<0x")]
    plain = Tokenizer.from_str(json.dumps(document))
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", unk_token="<unk>")


def encoder(kind: str) -> Any:
    fast, _ = tokens_of(kind)
    return _ENCODERS.setdefault(kind, lambda text: fast(text, add_special_tokens=False)["input_ids"])


_ENCODERS: dict[str, Any] = {}
KINDS = ("bytes", "metaspace", "characters")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(action=st.sampled_from([*POINTS, *CABINETS, "加一", "naïve 🙂"]), thoughts=st.sampled_from(["go", "é 🙂", "10"]))
def test_the_tokens_of_the_action_are_those_that_share_a_character(kind: str, action: str, thoughts: str) -> None:
    if kind == "characters" and (not action.isascii() or not thoughts.isascii()):
        return
    _, tokens = tokens_of(kind)
    for form in (JSON, TAGS):
        text = demonstration(form, {"current": "10"}, thoughts, action)
        if kind == "characters" and form is TAGS:
            continue
        ids = [*encoder(kind)(text), tokens_of(kind)[0].eos_token_id]
        assert tokens.decode(ids) == text
        reply = read_reply(text, form, (action,), ("current",))
        offsets = tokens.offsets(ids)
        mask = action_tokens(reply.span, offsets)
        assert mask.dtype == bool and mask.shape == (len(ids),) and not mask[-1]
        assert action in tokens.decode([token for token, inside in zip(ids, mask, strict=True) if inside])
        covered = {
            place for (first, last), inside in zip(offsets, mask, strict=True) if inside for place in range(first, last)
        }
        outside = {
            place
            for (first, last), inside in zip(offsets, mask, strict=True)
            if not inside
            for place in range(first, last)
        }
        assert reply.span is not None
        assert set(range(*reply.span)) <= covered and not set(range(*reply.span)) & outside


def test_boundaries_of_tokens_by_hand() -> None:
    offsets = [(0, 5), (5, 7), (7, 7), (7, 9), (9, 9), (9, 10)]
    assert action_tokens((6, 8), offsets).tolist() == [False, True, True, True, False, False]
    assert action_tokens((7, 9), offsets).tolist() == [False, False, True, True, False, False]
    assert action_tokens(None, offsets).tolist() == [False] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_the_choice_is_made_where_the_legal_actions_part(kind: str) -> None:
    fast, tokens = tokens_of(kind)
    text = demonstration(JSON, {"current": "3"}, "go", "+")
    ids = [*encoder(kind)(text), fast.eos_token_id]
    span = read(text, POINTS).span
    index, choices = choice_tokens(text, span, ("+", "*", "="), encoder(kind), tokens.offsets, ids)
    assert index is not None and span is not None
    assert action_tokens(span, tokens.offsets(ids))[index] and len(choices) == 3
    for name, token in zip(("+", "*", "="), choices, strict=True):
        assert encoder(kind)(demonstration(JSON, {"current": "3"}, "go", name))[index] == token
    assert ids[index] == choices[0]


def characters(text: str) -> list[int]:
    return [ord(character) for character in text]


def one_each(ids: list[int]) -> list[tuple[int, int]]:
    return [(place, place + 1) for place in range(len(ids))]


def test_actions_with_a_common_beginning_part_later_and_shared_tokens_are_given_once() -> None:
    text = '{"action": "cabinet 1"}'
    span = (12, 21)
    index, choices = choice_tokens(
        text, span, ("cabinet 1", "cabinet 10", "cabinet 12"), characters, one_each, characters(text)
    )
    assert (index, choices) == (21, (ord('"'), ord("0"), ord("2")))
    numbers = choice_tokens(
        '{"action": "2"}', (12, 13), ("1", "10", "2"), characters, one_each, characters('{"action": "2"}')
    )
    assert numbers == (12, (ord("1"), ord("2")))
    quoted = choice_tokens('{"action": "2"}', (12, 13), ('"', "2"), characters, one_each, characters('{"action": "2"}'))
    assert quoted == (12, (ord("\\"), ord("2")))


def test_no_choice_where_none_can_be_compared() -> None:
    text = '{"action": "+"}'
    ids = characters(text)
    assert choice_tokens(text, None, SIGNS, characters, one_each, ids) == (None, ())
    assert choice_tokens(text, (12, 13), ("+",), characters, one_each, ids) == (None, ())
    assert choice_tokens(text, (12, 13), (), characters, one_each, ids) == (None, ())
    merged = [(0, 10), (10, 15)]  # `"+"}` was sampled as one token, which the tokenizer would not have done
    assert choice_tokens(
        text, (12, 13), SIGNS, characters, lambda ids: merged if len(ids) == 2 else one_each(ids), [1, 2]
    ) == (None, ())
    other = '{"action": "go 5"}'
    assert choice_tokens(other, (12, 16), ("eat a", "eat b"), characters, one_each, characters(other)) == (None, ())
