"""Prompt files: sections, variables and pictures are put together as the page says; nothing else is understood."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

import sightline as sl
from fault_server import Asked, FaultServer, answers, brighter
from sightline.cli.commands import app
from sightline.config.loading import load_recipe
from sightline.config.yaml import read_yaml, write_yaml
from sightline.errors import BadInput
from sightline.images import Picture
from sightline.labels.types import Outcome
from sightline.models.prompt_files import PromptText, parse_prompt
from sightline.models.vlm.model import load_vlm
from sightline.models.vlm.types import ChatTurn
from sightline.teachers.prompts import parse_file

PAIRS = """A note, {which} nobody reads.

[system]
You judge a simulator.

[user]
A: {first}
B: {second}
Which one shows "{goal}"? {{goal}} {"a": 1}
{form}
"""
KNOWN = {"user": ("goal", "pictures"), "system": ("goal",)}


def grey(value: int) -> Picture:
    return Picture(np.full((8, 8, 3), value, np.uint8))


def test_variables_are_replaced_once_and_other_braces_stay() -> None:
    prompt = parse_prompt('[user]\n{goal} {{goal}} {"a": {}} {1 2} {{}}\n', KNOWN)
    assert prompt.fill("user", {"goal": "a {pictures} b", "pictures": [grey(1)]}) == (
        'a {pictures} b {goal} {"a": {}} {1 2} {{}}',
    )


def test_pictures_stand_where_they_are_named_and_each_is_shown_by_its_section() -> None:
    one, two = grey(1), grey(2)
    plain = parse_prompt("[user]\nLook:\n\n{pictures}\n\nWell?", KNOWN)
    assert plain.fill("user", {"pictures": [one, two]}) == ("Look:", one, two, "Well?")
    numbered = parse_prompt("[user]\nLook: {pictures} Well?\n[picture]\nNo {number}: {picture}, so.", KNOWN)
    assert numbered.fill("user", {"pictures": [one, two]}) == (
        *("Look: No 1:", one),
        *(", so.\nNo 2:", two),
        ", so.\n Well?",
    )


def test_a_section_that_is_not_there_is_empty() -> None:
    prompt = parse_prompt("[user]\nhello", KNOWN)
    assert prompt.fill("system", {}) == () and prompt.variables("system") == set() and prompt.lines("system") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hello", r"needs a section \[user\]"),
        ("[usr]\nhello", r"no section \[usr\] here; known: user, system, picture; did you mean 'user'\?"),
        ("[user]\na\n[user]\nb", r"two sections \[user\]"),
        ("[user]\n\n[system]\nb", r"section \[user\] is empty"),
        (
            "[user]\n{gaol}",
            r"no variable \{gaol\} here; known: goal, pictures; did you mean 'goal'\?; or write \{\{gaol",
        ),
        ("[user]\n{goal}\n[system]\n{pictures}", r"\[system\] has no variable \{pictures\} here; known: goal"),
        ("[user]\n{pictures}\n[picture]\n{number}", r"section \[picture\] shows none"),
        ("[user]\n" + "x" * 100_001, "at most 100,000 characters"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_prompt(text, KNOWN)


def test_nothing_in_a_prompt_is_a_program() -> None:
    prompt = parse_prompt("[user]\n{goal.__class__} {goal!r} {goal:>99} {{ 7 * 7 }} {% raw %}", KNOWN)
    assert prompt.fill("user", {}) == ("{goal.__class__} {goal!r} {goal:>99} {{ 7 * 7 }} {% raw %}",)


def test_the_digest_is_of_what_a_model_reads() -> None:
    prompt = parse_prompt("[user]\nhello\n[system]\nbe kind", KNOWN)
    content = json.dumps([["system", "be kind"], ["user", "hello"]])
    assert prompt.digest == hashlib.sha256(content.encode()).hexdigest()[:16]
    same = parse_prompt("\ufeffnote\r\n[system] \r\n\r\nbe kind\r\n\r\n[user]\r\nhello \r\n", KNOWN)
    assert same.digest == prompt.digest
    for other in ("[user]\nhello!\n[system]\nbe kind", "[user]\nhello", "[user]\nhel\nlo\n[system]\nbe kind"):
        assert parse_prompt(other, KNOWN).digest != prompt.digest


def test_a_file_is_read_at_once_and_its_text_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(PAIRS)
    reader = TypeAdapter(PromptText)
    assert reader.validate_python(str(file)) == PAIRS == reader.validate_python(PAIRS)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, told in (("binary", "is no text"), ("none.txt", "cannot be read: No such file"), ("", "directory")):
        with pytest.raises(ValueError, match=told):
            reader.validate_python(str(tmp_path / name))


# -- teachers ----------------------------------------------------------------------------------------------------------


def recipe(**teacher: Any) -> Any:
    keys = {"reward.kind": "learned", "reward.teacher.kind": "chat", "reward.teacher.model": "m", "env": "cartpole"}
    loaded: Any = load_recipe(None, keys | {f"reward.teacher.{key}": value for key, value in teacher.items()})
    return loaded


def test_a_recipe_holds_the_words_of_its_prompt(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(PAIRS)
    whole = recipe(prompt=str(file))
    file.unlink()
    written = write_yaml(whole.model_dump(mode="json"))
    assert "      [user]\n      A: {first}\n" in written, "as people would write it"
    again: Any = load_recipe(read_yaml(written, "recipe"))
    assert again.reward.teacher.prompt == PAIRS
    assert (
        again.reward.teacher.prompt_file().digest
        == parse_prompt(PAIRS, {"user": ("first", "second", "goal", "form"), "system": ()}).digest
    )


@pytest.mark.parametrize(
    ("prompt", "further", "told"),
    [
        ("[user]\n{first}\nWhich?", {}, r"shows no \{second\}"),
        ("[user]\n{pictures}\nWhich?", {}, r"no variable \{pictures\} here; known: first, second"),
        ("[user]\n{first} {second}\n[label]\n{description}", {}, r"no section \[label\] here"),
        ("[user]\n{first} {second}", {"stages": 2}, r"needs a section \[label\]"),
        ("[user]\n{first} {second}\n[label]\nSo?", {"stages": 2}, r"needs a section \[label\] .* \{description\}"),
    ],
)
def test_a_prompt_that_does_not_go_with_its_questions_is_refused(
    prompt: str, further: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told) as refused:
        recipe(prompt=prompt + "\n", **further)
    assert "\n" not in str(refused.value)


def pair(first: int, second: int) -> Any:
    return [np.full((8, 8, 3), value, np.uint8) for value in (first, second)]


def test_the_words_of_a_file_are_asked_in_both_orders() -> None:
    with FaultServer(brighter) as server:
        teacher = sl.ChatTeacher("m", url=server.url, prompt=PAIRS)
        (answer,) = teacher.compare([pair(10, 200)], "a pole upright.")
        assert answer.outcome is Outcome.SECOND
        both = sorted(server.asked, key=lambda asked: asked.pictures[0].mean())
    for asked, values in zip(both, ([10, 200], [200, 10]), strict=True):
        system, user = asked.body["messages"]
        assert system == {"role": "system", "content": [{"type": "text", "text": "You judge a simulator."}]}
        kinds = [part["type"] for part in user["content"]]
        assert kinds == ["text", "image_url", "text", "image_url", "text"]
        assert [round(float(picture.mean())) for picture in asked.pictures] == values
        assert 'Which one shows "a pole upright"? {goal} {"a": 1}' in asked.texts[-1]
        assert "answer" in asked.texts[-1], "{form} says how to reply"


def test_two_stages_have_a_section_each() -> None:
    prompt = PAIRS + "[label]\n({description}) Of {answers}?\n"

    def reply(asked: Asked) -> str:
        return "I see two." if asked.pictures else answers("first")(asked)

    with FaultServer(reply) as server:
        teacher = sl.ChatTeacher("m", url=server.url, prompt=prompt, stages=2, swap=False)
        (answer,) = teacher.compare([pair(10, 200)], "a pole upright")
        assert answer.outcome is Outcome.FIRST
        describing, deciding = server.asked
    assert "response_format" not in describing.body and "response_format" in deciding.body
    assert deciding.texts[-1] == "(I see two.) Of first, second, equal or unsure?"


def test_a_question_of_another_kind_is_refused() -> None:
    teacher = sl.ChatTeacher("m", url="http://localhost:1/v1", prompt="[user]\n{pictures} {goal}\n")
    with pytest.raises(BadInput, match=r"no variable \{pictures\} here"):
        teacher.compare([pair(1, 2)], "a pole upright")


def test_other_words_are_another_signature() -> None:
    def signature(prompt: str | None) -> str:
        return sl.ChatTeacher("m", url="http://localhost:1/v1", prompt=prompt).signature

    assert len({signature(words) for words in (None, PAIRS, PAIRS.replace("Which", "What"))}) == 3
    assert signature(PAIRS) == signature("Another note.\n\n" + PAIRS[PAIRS.index("[system]") :])
    assert " prompts=1 " in signature(None)


def test_show_prompt_prints_what_is_sent() -> None:
    with FaultServer(brighter) as server:
        teacher = sl.ChatTeacher("m", url=server.url, prompt=PAIRS, swap=False)
        teacher.compare([pair(10, 200)], "pole vertically upright on top of the cart")
        (asked,) = server.asked
    overrides = ["env=cartpole", "reward.kind=learned", "reward.teacher.kind=chat", "reward.teacher.model=m"]
    printed = CliRunner().invoke(app, ["label", "show-prompt", *overrides, f"reward.teacher.prompt={PAIRS}"])
    assert printed.exit_code == 0, printed.output
    a, b, question = asked.texts[1:]
    assert printed.stdout == f"[system]\n{asked.texts[0]}\n\n[user]\n{a}\n[picture]\n{b}\n[picture]\n{question}\n"


def test_show_prompt_shows_both_stages_of_our_own_words() -> None:
    keys = ["cartpole-preferences-chat", "reward.teacher.stages=2"]
    printed = CliRunner().invoke(app, ["label", "show-prompt", *keys]).stdout
    first, second = printed.split("\n\n[label]\n")
    assert first.startswith("[user]\nThe first picture:\n[picture]\n") and "[picture]" not in second


def test_who_is_asked_nothing_in_words_has_no_prompt() -> None:
    result = CliRunner().invoke(app, ["label", "show-prompt", "cartpole"])
    assert isinstance(result.exception, BadInput) and "no model is asked in words" in str(result.exception)


def test_a_local_model_is_told_the_system_message_or_refuses_it() -> None:
    vlm = load_vlm("bundled", device="cpu")
    turn = [ChatTurn.of_parts(["which", grey(3)])]
    ids = vlm.encode(turn, "be kind").ids
    text = vlm.tokens.encode("be kind")
    assert ids[: len(text)].tolist() == text and ids[len(text) :].tolist() == vlm.encode(turn).ids.tolist()


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_other_providers_are_told_the_system_message_in_their_own_way(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.genai" if provider == "gemini" else provider)
    monkeypatch.setenv("SOME_KEY", "k")
    with FaultServer(brighter) as server:
        options = {"provider": provider, "url": server.root, "key_env": "SOME_KEY", "swap": False, "retries": 0}
        (answer,) = sl.ChatTeacher("m", prompt=PAIRS, **options).compare([pair(10, 200)], "a pole upright")
        assert answer.outcome is Outcome.SECOND, answer.reason
        (asked,) = server.asked
    system = asked.body["system"] if provider == "anthropic" else asked.body["systemInstruction"]["parts"][0]["text"]
    assert system == "You judge a simulator."


def test_the_examples_of_the_page_are_prompts() -> None:
    page = (Path(__file__).parents[1] / "docs" / "prompts.md").read_text()
    pairs, scores = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert parse_file(pairs, "compare", 1) and parse_file(scores, "score", 1)
