"""The form of replies that a model's card states, which recipes follow where they leave it open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sightline import roles
from sightline.agents.resolving import resolve
from sightline.config.agents import Replies
from sightline.config.loading import for_agent, load_recipe
from sightline.errors import BadInput
from sightline.models.vlm.card import with_taught_form, write_form


def resolved(*keys: str) -> Replies:
    return resolve(for_agent(load_recipe(None, ["role=agent", "env=frozenlake", *keys]))).replies


def test_recipes_follow_the_card_where_they_leave_the_form_open() -> None:
    assert not resolved().thoughts and resolved("replies.max_tokens=24").max_tokens == 24
    assert not resolved("replies.max_tokens=24").thoughts
    assert resolved("replies.thoughts=true").thoughts
    assert resolved("policy.model=somebody/model").thoughts, "cards on the hub are not read"


def test_a_game_begins_with_true_replies_of_the_bundled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began at 0 %: it was asked for thoughts, which it was never taught."""
    keys = ["role=agent", "env=frozenlake", "replies.max_tokens=32", "episode_steps=4"]
    monkeypatch.setattr(roles, "load_recipe", lambda recipe, overrides: load_recipe(None, overrides))
    _, numbers = roles.evaluate_model("frozenlake", keys, None, None, None, episodes=4, seed=0)
    assert numbers["truthful"] > 0.9


@pytest.mark.parametrize(
    "replies",
    [
        Replies(format="tags", facts=False),
        Replies(thoughts=False),
        Replies(fields={"plan": "what next", "action": ""}, memory="plan"),
    ],
    ids=["tags", "no thoughts", "fields"],
)
def test_what_a_policy_has_learned_is_what_its_card_states(tmp_path: Path, replies: Replies) -> None:
    write_form(tmp_path, replies.model_copy(update={"max_tokens": 7, "penalty": 2.0}))
    assert with_taught_form(Replies(), str(tmp_path)) == replies
    assert with_taught_form(Replies(max_tokens=9), str(tmp_path)) == replies.model_copy(update={"max_tokens": 9})
    other = with_taught_form(Replies(facts=True, thoughts=True), str(tmp_path))
    assert other.facts and other.thoughts and not other.fields and other.format == replies.format


@pytest.mark.parametrize(
    "card",
    [
        *("", "# A model", "---\nlicense: mit\n---\n", "---\nlicense: [mit\n---\n", "---\n- sightline\n---\n"),
        *("---\nsightline: {replies: short}\n---\n", "---\nsightline: {replies: {penalty: 3}}\n---\n", "---\n"),
    ],
)
def test_other_peoples_cards_change_nothing(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    assert with_taught_form(Replies(), str(tmp_path)) == Replies()
    (tmp_path / "README.md").write_bytes(b"---\n\xff\n---\n")
    assert with_taught_form(Replies(), str(tmp_path)) == Replies()
    assert with_taught_form(Replies(), str(tmp_path / "nowhere")) == Replies()


@pytest.mark.parametrize("form", [{"format": "xml"}, {"thoughts": "perhaps"}, {"fields": {"plan": ""}}])
def test_a_form_that_there_is_not_is_refused(tmp_path: Path, form: dict[str, Any]) -> None:
    (tmp_path / "README.md").write_text(f"---\nsightline: {{replies: {form}}}\n---\n")
    with pytest.raises(
        BadInput, match=f"the card of '{tmp_path}' states a form of replies that there is not: "
    ) as error:
        with_taught_form(Replies(), str(tmp_path))
    assert "\n" not in str(error.value)
