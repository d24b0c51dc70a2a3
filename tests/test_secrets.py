"""Keys and passwords: refused in recipes, and hidden wherever something is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sightline.config.loading import load_recipe
from sightline.config.secrets import masked, masked_document
from sightline.errors import BadInput
from sightline.models.chat.openai_compatible import OpenAICompatible
from sightline.teachers.chat import ChatTeacher

ASKS = ["env=cartpole", "goal=a pole standing upright", "reward.kind=learned", "reward.teacher.kind=chat"]
ASKS += ["reward.teacher.model=m"]
AGENT = ["role=agent", "env=numberline"]
KEY = "sk-proj-4f9aQ2mZ8xT1bL6w"
"""Looks like a key, and opens nothing."""


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("reward.teacher.url", "https://me:hunter2@h.example/v1", "user or password before the @"),
        ("reward.teacher.url", "https://hunter2@h.example/v1", "user or password before the @"),
        ("reward.teacher.url", "https://h.example/v1?api_key=hunter2", r"secret \(api_key\).*query.api_key=\$NAME"),
        ("reward.teacher.url", "https://h.example/v1?x=1&subscription-key=hunter2", r"secret \(subscription-key\)"),
        ("reward.teacher.url", "https://h.example/v1?sig=hunter2", r"secret \(sig\)"),
        ("reward.teacher.options", {"api_key": "hunter2"}, "holds a secret"),
        ("reward.teacher.options", {"extra": [{"Authorization": "Bearer hunter2"}]}, "holds a secret"),
        ("reward.teacher.options.user", KEY, "looks like a key"),
        ("reward.teacher.headers.api-key", "hunter2", r"holds a secret.*\$NAME"),
        ("reward.teacher.headers.X-Goog-Api-Key", "hunter2", "holds a secret"),
        ("reward.teacher.headers.x-thing", f"Bearer {KEY}", "looks like a key"),
        ("reward.teacher.query.key", KEY, "looks like a key"),
        ("reward.teacher.key_env", KEY, "looks like a key"),
        ("reward.teacher.api_key", "hunter2", "holds a secret"),
        ("reward.teacher.model", f"m {KEY}", "looks like a key"),
        ("wandb", "hf_AbCdEfGhIjKlMnOpQrStUvWx", "looks like a key"),
        ("env_options", {"token": "ghp_0123456789abcdefghijABCDEFGHIJ"}, "looks like a key"),
    ],
)
def test_recipes_hold_no_secrets(key: str, value: Any, told: str) -> None:
    with pytest.raises(BadInput, match=rf"^{key}.*{told}") as error:
        load_recipe(None, dict(part.split("=", 1) for part in ASKS) | {key: value})
    assert "hunter2" not in str(error.value) and KEY not in str(error.value) and "\n" not in str(error.value)


def test_the_server_of_a_policy_has_no_password_either() -> None:
    with pytest.raises(BadInput, match=r"^policy\.server\.url holds a user or password"):
        load_recipe(None, [*AGENT, "policy.sampler=server", "policy.server.url=https://me:hunter2@h.example/v1"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.teacher.url=https://h.example/v1?api-version=2024-10-21", "reward.teacher.max_tokens=64"],
        ["reward.teacher.headers.api-key=$AZURE_KEY", "reward.teacher.headers.X-Organisation=lab"],
        ["reward.teacher.headers.Authorization=Bearer ${GATEWAY}", "reward.teacher.query.key=$GATEWAY"],
        ["reward.teacher.key_env=OPENAI_API_KEY", "reward.teacher.options.seed=3", "env_options.key=gold"],
        ["goal=a password: is typed into the box", "wandb=me/task-oriented-learning-of-skills-2026"],
        ["goal=a basic sk-etch of the token=gold"],
    ],
)
def test_what_is_no_secret_is_taken(overrides: list[str]) -> None:
    load_recipe(None, [*ASKS, *overrides])


def test_teachers_and_models_of_the_api_hold_no_secrets_either() -> None:
    with pytest.raises(BadInput, match=r"^options.api_key holds a secret"):
        ChatTeacher("m", url="http://localhost/v1", options={"api_key": "hunter2"})
    with pytest.raises(BadInput, match=r"^url holds a user or password"):
        OpenAICompatible("m", "https://me:hunter2@h.example/v1")
    with pytest.raises(BadInput, match="key_env must be the name of an environment variable") as error:
        OpenAICompatible("m", "https://h.example/v1", "hunter2-and more")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("url=https://me:hunter2@h.example/v1 goal=me@home", "url=https://h.example/v1 goal=me@home"),
        ("https://h.example/v1?api_key=hunter2&x=1", "https://h.example/v1?api_key=…&x=1"),
        ("reward.teacher.options.api_key=hunter2 seed=3", "reward.teacher.options.api_key=… seed=3"),
        ("  api_key: hunter2\n  max_tokens: 64\n", "  api_key: …\n  max_tokens: 64\n"),
        ("options={api-key: 'hunter2', seed: 1}", "options={api-key: …, seed: 1}"),
        (f"Incorrect key {KEY} given", "Incorrect key … given"),
        ("Authorization: Bearer hunter2.x\n", "Authorization: …\n"),
        ("headers.api-key=$AZURE_KEY", "headers.api-key=$AZURE_KEY"),
        ("max_tokens=64 tokens: 5 key_env=MY_KEY", "max_tokens=64 tokens: 5 key_env=MY_KEY"),
    ],
)
def test_texts_are_shown_without_secrets(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_plain_data_are_shown_without_secrets() -> None:
    document = {"url": "https://me:hunter2@h/v1", "options": {"api_key": "hunter2", "n": [1, KEY]}, "key_env": "K"}
    shown = {"url": "https://h/v1", "options": {"api_key": "…", "n": [1, "…"]}, "key_env": "K"}
    assert masked_document(document) == shown


def test_older_runs_are_reported_without_their_secrets(tmp_path: Path) -> None:
    from sightline.reports.pages import report_values

    text = (
        "format: 1\nenv: x\nreward:\n  teacher: {url: 'https://me:hunter2@h.example/v1', options: {api_key: hunter2}}\n"
    )
    (tmp_path / "recipe.yaml").write_text(text)
    assert "hunter2" not in report_values(tmp_path, {}, {})["recipe_text"]
