"""Models that chat: three interfaces on real sockets, limits and retries, and everything that a server can do wrong."""

from __future__ import annotations

import asyncio
import builtins
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fault_server import (
    VERSION,
    Fault,
    FaultServer,
    Handler,
    answers,
    as_json,
    empty_choices,
    error_within_200,
    filtered,
    garbage,
    gemini_429,
    half,
    hangs_up,
    not_json,
    nothing_said,
    refusal,
    says,
    says_200,
    silence,
    status,
    thought_too_long,
    wrong_shape,
)
from sightline.config.bundled import bundled_recipes
from sightline.config.loading import load_recipe
from sightline.errors import BadInput, RunFailed
from sightline.models.chat import calling
from sightline.models.chat.anthropic import Anthropic
from sightline.models.chat.calling import (
    Limits,
    RateLimitedClient,
    TokenBucket,
    check,
    error_from_status,
    seconds_to_wait,
)
from sightline.models.chat.gemini import Gemini
from sightline.models.chat.messages import (
    Ask,
    ChatModel,
    ChatReply,
    ChatRequest,
    NoReply,
    Picture,
    QuotaReached,
    Refused,
    Rejected,
    Transient,
)
from sightline.models.chat.openai_compatible import OpenAICompatible
from sightline.models.chat.retiring import retirement_of
from sightline.models.chat.streaming import stream_async
from sightline.teachers.chat import ChatTeacherConfig

SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
PICTURES = np.random.default_rng(0).integers(0, 256, (2, 12, 20, 3), np.uint8)
REQUEST = ChatRequest(("One:", Picture(PICTURES[0]), "Two:", Picture(PICTURES[1]), "Which?"), SCHEMA, 0.5, 77, 5)
ONCE = Limits(retries=0)
PROVIDERS = ("openai", "gemini", "anthropic")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY", "OWN_KEY"):
        monkeypatch.setenv(name, "right")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long `calling` would have waited, each time; it waits for nothing, and its clock runs by these waits."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds > 0:
            waited.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(
        calling,
        "asyncio",
        SimpleNamespace(sleep=sleep, timeout=asyncio.timeout, CancelledError=asyncio.CancelledError),
    )
    monkeypatch.setattr(calling, "time", SimpleNamespace(monotonic=lambda: sum(waited)))
    return waited


def model_at(server: FaultServer, provider: str, model: str = "m", **options: Any) -> ChatModel:
    if provider == "openai":
        return OpenAICompatible(model, server.url, "OWN_KEY", options, timeout=5)
    if provider == "gemini":
        pytest.importorskip("google.genai")
        return Gemini(model, server.root, "OWN_KEY", options, timeout=10)
    pytest.importorskip("anthropic")
    return Anthropic(model, server.root, "OWN_KEY", options, timeout=5)


def ask(model: ChatModel, *requests: ChatRequest, limits: Limits = ONCE) -> list[calling.Attempt]:
    """The attempts at the last request."""
    calls = RateLimitedClient(limits)
    return list(stream_async(model.connected, calls.attempts, requests or (REQUEST,), at_once=1))[-1][1]


# -- what is sent and what comes back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_pictures_text_and_settings_arrive(provider: str) -> None:
    with FaultServer(answers("second"), key="right", model="m") as server:
        (attempt,) = ask(model_at(server, provider))
        (asked,) = server.asked
    assert asked.texts == ["One:", "Two:", "Which?"]
    assert [picture.tolist() for picture in asked.pictures] == PICTURES.tolist()
    text = str(asked.body)
    assert "0.5" in text and "77" in text and "'answer'" in text  # temperature, length, schema
    assert attempt.error is None and attempt.reply is not None
    assert attempt.reply.text == '{"reason": "because", "answer": "second"}'
    assert (attempt.reply.input_tokens, attempt.reply.output_tokens) == (203, 4)
    assert attempt.reply.model == VERSION


@pytest.mark.parametrize(
    ("model", "sent"), [("gemini-2.5-flash", True), ("gemini-3.5-flash-lite", False), ("models/gemini-10-pro", False)]
)
def test_newer_models_of_gemini_keep_their_own_temperature(model: str, sent: bool) -> None:
    with FaultServer(answers("first")) as server:
        ask(model_at(server, "gemini", model))
    assert ("temperature" in server.asked[0].body["generationConfig"]) is sent


@pytest.mark.parametrize(
    ("provider", "model", "end"),
    [
        ("gemini", "gemini-2.5-flash", "gemini-2.5-flash ends on 01 December 2026, and requests are answered by "),
        ("gemini", "models/gemini-2.5-flash-001", "gemini-2.5-flash ends"),
        ("gemini", "gemini-2.5-flash-lite", None),
        ("gemini", "gemini-3.5-flash-lite", None),
        ("openai", "gemini-2.5-flash", None),
    ],
)
def test_the_announced_end_of_a_model_is_known(provider: str, model: str, end: str | None) -> None:
    retirement = retirement_of(provider, model)
    assert (retirement is None) is (end is None)
    assert str(retirement).startswith(end or "None")


def test_no_recipe_of_ours_names_a_model_that_ends() -> None:
    for name in bundled_recipes():
        teacher = getattr(load_recipe(name).reward, "teacher", None)
        if isinstance(teacher, ChatTeacherConfig):
            assert retirement_of(teacher.provider, teacher.model) is None, name


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_log_probabilities_come_back(provider: str) -> None:
    with FaultServer(answers("7"), digits={"7": 0.75, "8": 0.25}) as server:
        (attempt,) = ask(model_at(server, provider))
    assert attempt.reply is not None
    assert "".join(token.text for token in attempt.reply.tokens) == attempt.reply.text
    at_digit = next(token for token in attempt.reply.tokens if token.text == "7")
    assert [(text, round(float(np.exp(p)), 6)) for text, p in at_digit.alternatives] == [("7", 0.75), ("8", 0.25)]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_further_options_are_sent(provider: str) -> None:
    with FaultServer() as server:
        ask(model_at(server, provider, top_p=0.25))
    assert "0.25" in str(server.asked[0].body)


def test_options_can_take_fields_out() -> None:
    with FaultServer() as server:
        ask(model_at(server, "openai", temperature=None, seed=3))
    assert "temperature" not in server.asked[0].body and server.asked[0].body["seed"] == 3


def test_replies_in_parts_and_cut_off_replies_are_read() -> None:
    message = {"content": [{"type": "text", "text": "fir"}, {"type": "text", "text": "st"}]}
    with FaultServer(faults=[as_json({"choices": [{"message": message, "finish_reason": "length"}]})]) as server:
        (attempt,) = ask(model_at(server, "openai"))
    assert attempt.reply == ChatReply("first", cut_off=True)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_reply_that_was_all_thinking_is_cut_off(provider: str) -> None:
    with FaultServer(faults=[thought_too_long[provider]]) as server:
        (attempt,) = ask(model_at(server, provider))
    assert attempt.reply is not None and (attempt.reply.text, attempt.reply.cut_off) == ("", True)


def said_by(provider: str, *parts: dict[str, Any], ended: str) -> Fault:
    """A reply of these parts, in the provider's own form."""
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "input_tokens": 9, "output_tokens": 5}
    if provider == "openai":
        return as_json({"choices": [{"message": parts[0], "finish_reason": ended}], "usage": usage})
    if provider == "gemini":
        counts = {"promptTokenCount": 9, "candidatesTokenCount": 5}
        candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": ended}
        return as_json({"candidates": [candidate], "usageMetadata": counts})
    message = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": list(parts)}
    return as_json(message | {"stop_reason": ended, "usage": usage})


@pytest.mark.parametrize(
    ("provider", "part", "ended", "told"),
    [
        ("openai", {"content": None, "reasoning_content": "first?"}, "stop", r"only thoughts \(reasoning_content\)"),
        ("openai", {"content": "", "reasoning": "first?"}, "stop", r"only thoughts \(reasoning\)"),
        ("openai", {"tool_calls": [{"function": {"name": "look"}}]}, "tool_calls", r"calls a tool \('look'\)"),
        ("openai", {"content": None, "function_call": {"name": "look"}}, "function_call", r"calls a tool \('look'\)"),
        ("openai", {"content": " "}, "weary", r"is empty \(weary\)"),
        ("openai", {"content": None}, "stop", "is empty$"),
        ("gemini", {"text": "first?", "thought": True}, "STOP", r"only thoughts \(thought\)"),
        ("gemini", {"functionCall": {"name": "look", "args": {}}}, "STOP", r"calls a tool \('look'\)"),
        ("gemini", {"text": ""}, "MALFORMED_FUNCTION_CALL", r"is empty \(MALFORMED_FUNCTION_CALL\)"),
        ("anthropic", {"type": "thinking", "thinking": "?", "signature": "s"}, "end_turn", r"only thoughts \(thinking"),
        ("anthropic", {"type": "tool_use", "id": "t", "name": "look", "input": {}}, "tool_use", r"a tool \('look'\)"),
        ("anthropic", {"type": "text", "text": ""}, "pause_turn", r"is empty \(pause_turn\)"),
    ],
)
def test_it_is_told_why_a_reply_has_no_text(provider: str, part: dict[str, Any], ended: str, told: str) -> None:
    with FaultServer(faults=[said_by(provider, part, ended=ended)]) as server:
        (attempt,) = ask(model_at(server, provider), limits=Limits(retries=3))
    assert type(attempt.error) is NoReply and re.search(told, str(attempt.error))
    assert (attempt.error.input_tokens, attempt.error.output_tokens) == (9, 5)  # they are paid for


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        ({"code": 503, "message": "no worker is free"}, Transient, "503 .*no worker is free"),
        ({"code": 402, "message": "no credits"}, Rejected, "paid first .*no credits"),
        ({"message": "provider gone"}, Transient, "502 .*provider gone"),
        (None, Transient, "502"),
    ],
)
def test_errors_within_a_choice_are_errors(error: Any, kind: type[NoReply], told: str) -> None:
    """As gateways report those of whoever is behind them; half a reply may stand beside one."""
    choice = {"message": {"content": '{"answer": "fi'}, "finish_reason": "error", "error": error}
    with FaultServer(faults=[as_json({"choices": [choice]})]) as server:
        (attempt,) = ask(model_at(server, "openai"))
    assert isinstance(attempt.error, kind) and re.search(told, str(attempt.error))


# -- keys and addresses ------------------------------------------------------------------------------------------------

MAKE: dict[str, Callable[..., ChatModel]] = {"openai": OpenAICompatible, "gemini": Gemini, "anthropic": Anthropic}
HOSTS = {
    "openai": "api.openai.com",
    "gemini": "generativelanguage.googleapis.com",
    "anthropic": "api.anthropic.com",
}


def test_no_key_goes_to_another_server() -> None:
    with FaultServer() as server:
        ask(OpenAICompatible("m", server.url))
    assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("provider", ["gemini", "anthropic"])
@pytest.mark.parametrize(
    "url", ["https://proxy.example", "http://127.0.0.1:9", "http://{host}.example", "http://{host}"]
)
def test_usual_keys_go_to_their_provider_alone(provider: str, url: str) -> None:
    """Also not to the provider's own host in plain text."""
    with pytest.raises(BadInput, match=f"the key in {provider.upper()}_API_KEY is not sent to .*key_env") as told:
        MAKE[provider]("m", url.format(host=HOSTS[provider]))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_keys_travel_in_plain_text_within_this_machine_only(provider: str) -> None:
    for host in ("proxy.example", "10.0.0.5", "127.0.0.1.example", "localhost.example", HOSTS[provider]):
        with pytest.raises(BadInput, match=rf"the key in OWN_KEY would go to {host} in plain text; say https://"):
            MAKE[provider]("m", f"http://{host}:8000", "OWN_KEY")
    for url in ("http://localhost:8000", "http://127.1.2.3", "http://[::1]:8000", "https://proxy.example"):
        MAKE[provider]("m", url, "OWN_KEY")
    MAKE[provider]("m", f"https://{HOSTS[provider]}")


@pytest.mark.parametrize("host", ["10.0.0.5", "gpu-box", "127.0.0.1.example", "localhost.example", "[fe80::1]"])
def test_pictures_travel_in_plain_text_only_where_the_recipe_allows_it(host: str) -> None:
    url = f"http://{host}:8000/v1"
    told = rf"pictures would go to {re.escape(host.strip('[]'))} in plain text; .*insecure_http=true"
    with pytest.raises(BadInput, match=told) as error:
        OpenAICompatible("m", url)
    assert "\n" not in str(error.value)
    assert OpenAICompatible("m", url, insecure_http=True).where == f"{host}:8000"
    with pytest.raises(BadInput, match="the key in OWN_KEY"):
        OpenAICompatible("m", url, "OWN_KEY", insecure_http=True)
    for near in ("http://localhost:8000/v1", "http://127.0.0.1/v1", "http://[::1]:8000/v1", f"https://{host}/v1"):
        OpenAICompatible("m", near)


def test_the_recipes_word_on_plain_http_reaches_the_model() -> None:
    said = {"kind": "chat", "model": "m", "url": "http://gpu-box:8000/v1"}
    with pytest.raises(BadInput, match="insecure_http=true"):
        ChatTeacherConfig.model_validate(said).open()
    ChatTeacherConfig.model_validate(said | {"insecure_http": True}).open()


@pytest.mark.parametrize(
    ("url", "where"),
    [
        *((None, "api.openai.com"), ("https://api.openai.com/v1/", "api.openai.com")),
        *(("http://localhost:8000/v1", "localhost:8000"), ("http://localhost:8001/v1", "localhost:8001")),
        *(("http://localhost/v1", "localhost"), ("http://localhost:80/v1", "localhost")),
        *(("https://h.example:443/v1", "h.example"), ("https://h.example:80/v1", "h.example:80")),
        *(("https://h.example/a/v1", "h.example/a/v1"), ("https://h.example/b/v1/", "h.example/b/v1")),
        *(("http://[::1]:8000/v1", "[::1]:8000"),),
    ],
)
def test_servers_are_told_apart_by_port_and_path(url: str | None, where: str) -> None:
    assert OpenAICompatible("m", url).where == where


def test_addresses_of_the_other_providers() -> None:
    for provider in ("gemini", "anthropic"):
        assert MAKE[provider]("m").where == HOSTS[provider]
        assert MAKE[provider]("m", "https://h.example:8443/a", "OWN_KEY").where == "h.example:8443/a"


# -- asking less -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["response_format", "logprobs", "temperature"])
def test_what_a_server_turns_down_is_left_out_from_then_on(field: str) -> None:
    with FaultServer(unknown_fields=[field]) as server:
        model = model_at(server, "openai")
        attempts = [ask(model), ask(model)]
    assert all(len(made) == 1 and made[0].reply is not None for made in attempts)
    assert [field in asked.body for asked in server.asked] == [True] + [False] * (len(server.asked) - 1)
    kept = {"response_format", "logprobs", "temperature"} - {field}
    assert kept <= set(server.asked[-1].body)  # nothing else was given up


def test_forbidden_log_probabilities_are_left_out() -> None:
    with FaultServer(faults=[status(403, "You are not allowed to request logprobs from this model")]) as server:
        (attempt,) = ask(model_at(server, "openai"))
    assert attempt.reply is not None and "logprobs" not in server.asked[-1].body


def test_keys_refused_with_a_400_are_refused() -> None:
    with FaultServer(faults=[status(400, "API key not valid. Please pass a valid API key.")]) as server:
        (attempt,) = ask(model_at(server, "openai"))
    assert isinstance(attempt.error, Rejected) and "refuses the key in OWN_KEY" in str(attempt.error)


def test_newer_names_of_the_limit_are_learned() -> None:
    complaint = status(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    with FaultServer(faults=[complaint]) as server:
        ask(model_at(server, "openai"), REQUEST, REQUEST)
    assert ["max_tokens" in asked.body for asked in server.asked] == [True, False, False]
    assert server.asked[-1].body["max_completion_tokens"] == 77


def test_less_is_not_remembered_if_it_does_not_help() -> None:
    too_large = status(400, "the image is too large")
    with FaultServer(faults=[too_large, too_large]) as server:
        model = model_at(server, "openai")
        (attempt,) = ask(model)
        ask(model)
    assert isinstance(attempt.error, Rejected) and "too large" in str(attempt.error)
    assert ["response_format" in asked.body for asked in server.asked] == [True, False, True]
    assert "logprobs" in server.asked[-1].body


@pytest.mark.parametrize(
    ("unknown", "complaint", "lost"),
    [
        ("logprobs", "Request contains an invalid argument.", {"logprobs", "top_logprobs", "response_format"}),
        ("response_format", "'json_schema' is not supported by this model", {"response_format"}),
        ("logprobs", "top_logprobs must be 0", {"logprobs", "top_logprobs"}),
        ("temperature", "`temperature` may only be 1", {"temperature"}),
    ],
)
def test_only_what_is_complained_of_is_left_out(unknown: str, complaint: str, lost: set[str]) -> None:
    """Above all, no complaint costs the schema that says nothing of schemas, unless nobody knows what it says."""
    with FaultServer(unknown_fields=[unknown], complaint=complaint) as server:
        attempts = ask(model_at(server, "openai"), REQUEST, REQUEST)
    assert attempts[-1].reply is not None and len(server.asked) == 3
    first, *later = (set(asked.body) for asked in server.asked)
    assert [first - body for body in later] == [lost, lost]


def test_a_complaint_about_something_else_costs_one_request(waits: list[float]) -> None:
    with FaultServer(unknown_fields=["messages"], complaint="the context is too long") as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=5))
    assert len(made) == 1 and len(server.asked) == 2 and isinstance(made[0].error, Rejected)


# -- faults ------------------------------------------------------------------------------------------------------------

PASSING: dict[str, Fault] = {
    "429": status(429, retry_after="2"),
    "500": status(500),
    "503": status(503),
    "garbage": garbage,
    "half": half,
    "not json": not_json,
    "wrong shape": wrong_shape,
    "no choices": empty_choices,
    "hangs up": hangs_up,
    "error within 200": error_within_200,
}


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_may_pass_are_tried_again(name: str, waits: list[float]) -> None:
    fault = PASSING[name]
    with FaultServer(answers("first"), faults=[fault, fault]) as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=5))
    assert [type(attempt.error) for attempt in made] == [Transient, Transient, type(None)]
    assert made[-1].reply is not None and "first" in made[-1].reply.text
    assert all("\n" not in str(attempt.error) for attempt in made)


@pytest.mark.parametrize("name", PASSING)
def test_faults_that_do_not_pass_are_given_up(name: str, waits: list[float]) -> None:
    with FaultServer(faults=[PASSING[name]] * 10) as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=3))
    assert len(made) == len(server.asked) == 4 and made[-1].reply is None


@pytest.mark.parametrize("provider", ["gemini", "anthropic"])
@pytest.mark.parametrize("fault", [status(429, retry_after="2"), status(529), not_json, half, hangs_up, as_json({})])
def test_other_clients_try_again_as_well(provider: str, fault: Fault, waits: list[float]) -> None:
    with FaultServer(answers("first"), faults=[fault]) as server:
        made = ask(model_at(server, provider), limits=Limits(retries=5))
    assert [type(attempt.error) for attempt in made] == [Transient, type(None)]
    assert len(server.asked) == 2  # the clients' own retries are off


def test_a_server_that_says_nothing_is_given_up() -> None:
    with FaultServer(faults=[silence, silence]) as server:
        made = ask(model_at(server, "openai"), limits=Limits(timeout=0.2, retries=1, first_wait=0.01))
    assert [str(attempt.error) for attempt in made] == ["no reply within 0.2 s"] * 2


@pytest.mark.parametrize(
    "fault",
    [filtered, refusal, status(400, "flagged by content_filter"), status(400, "rejected by our safety system")],
)
def test_refusals_are_not_tried_again(fault: Fault) -> None:
    with FaultServer(faults=[fault]) as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=5))
    assert [type(attempt.error) for attempt in made] == [Refused] and len(server.asked) == 1


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 9}}),
        ("gemini", {"candidates": [{"finishReason": "PROHIBITED_CONTENT"}], "usageMetadata": {"promptTokenCount": 9}}),
        (
            "anthropic",
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "x",
                "content": [],
                "stop_reason": "refusal",
                "usage": {"input_tokens": 9, "output_tokens": 0},
            },
        ),
    ],
)
def test_other_clients_refuse_as_well(provider: str, body: dict[str, Any]) -> None:
    with FaultServer(faults=[as_json(body)]) as server:
        (attempt,) = ask(model_at(server, provider), limits=Limits(retries=5))
    assert isinstance(attempt.error, Refused) and attempt.error.input_tokens == 9


@pytest.mark.parametrize("code", [401, 402, 403, 404, 413])
def test_what_is_turned_down_for_good_is_not_tried_again(code: int) -> None:
    with FaultServer(faults=[status(code)]) as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=5))
    assert isinstance(made[0].error, Rejected) and len(server.asked) == 1


def test_used_up_quota_is_not_tried_again() -> None:
    with FaultServer(faults=[status(429, "You exceeded your current quota: insufficient_quota")]) as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=5))
    assert isinstance(made[0].error, Rejected) and len(server.asked) == 1


def test_a_reply_without_words_is_none_and_was_paid_for() -> None:
    """It is asked again some day, and not at once: most likely it would be empty again."""
    with FaultServer(faults=[nothing_said]) as server:
        (attempt,) = ask(model_at(server, "openai"))
    assert attempt.reply is None and type(attempt.error) is NoReply
    assert str(attempt.error) == "the reply is empty"


@pytest.mark.parametrize("charset", ["utf-16", "no-such-encoding", "idna"])
@pytest.mark.parametrize("code", [200, 401])
def test_an_encoding_that_the_header_names_wrongly(charset: str, code: int) -> None:
    def fault(handler: Handler) -> None:
        body = {"choices": [{"message": {"content": "é first"}, "finish_reason": "stop"}]} if code == 200 else {"é": 1}
        text = json.dumps(body, ensure_ascii=False).encode()
        handler.send(code, text, **{"Content-Type": f"application/json; charset={charset}"})

    with FaultServer(faults=[fault]) as server:
        (attempt,) = ask(model_at(server, "openai"), limits=Limits(retries=0))
    if code == 200:
        assert attempt.reply is not None and attempt.reply.text == "é first"
    else:
        assert isinstance(attempt.error, Rejected)


@pytest.mark.parametrize(
    ("text", "usage", "said", "read"),
    [
        ('"first \\ud83d"', '{"prompt_tokens": 3}', "first ?", 3),
        ('"first"', '{"prompt_tokens": 99999999999999999999}', "first", 0),
        ('"first"', '{"prompt_tokens": -3}', "first", 0),
        ('"first"', '{"prompt_tokens": 1e999}', "first", 0),
        ('"first"', '{"prompt_tokens": NaN}', "first", 0),
        ('"first"', '{"prompt_tokens": "many"}', "first", 0),
        ('"first"', '{"prompt_tokens": "12"}', "first", 12),
        ('"first"', '{"prompt_tokens": 12.0}', "first", 12),
        ('"first"', '{"prompt_tokens": [3]}', "first", 0),
        ('"first"', '"none"', "first", 0),
        ('"first"', "[3]", "first", 0),
    ],
)
def test_nonsense_beside_a_reply_ends_at_the_door(text: str, usage: str, said: str, read: int) -> None:
    """A reply is paid for and read, whatever is said of its length, and no database could hold some numbers."""
    body = f'{{"error": null, "choices": [{{"message": {{"content": {text}}}}}], "usage": {usage}}}'
    with FaultServer(faults=[says_200(body.encode())]) as server:
        (attempt,) = ask(model_at(server, "openai"), limits=Limits(retries=0))
    assert attempt.reply is not None and (attempt.reply.text, attempt.reply.input_tokens) == (said, read)


def test_half_characters_of_a_refusal_are_replaced() -> None:
    message = {"content": None, "refusal": "no \ud83d"}
    with FaultServer(faults=[as_json({"choices": [{"message": message}]})]) as server:
        (attempt,) = ask(model_at(server, "openai"))
    assert isinstance(attempt.error, Refused) and str(attempt.error) == "no ?"


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_back_off_doubles_with_jitter(waits: list[float]) -> None:
    with FaultServer(faults=[status(500)] * 9) as server:
        ask(model_at(server, "openai"), limits=Limits(retries=8, first_wait=1.0))
    longest = [min(2**i, 120) for i in range(8)]
    assert [most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True)] == [True] * 8


def test_retry_after_is_honoured(waits: list[float]) -> None:
    with FaultServer(faults=[status(429, retry_after="37"), status(503, retry_after="11.5")]) as server:
        ask(model_at(server, "openai"), limits=Limits(retries=5, first_wait=0.0))
    assert waits == [37.0, 11.5]


@pytest.mark.parametrize(("delay", "seconds"), [("37s", 37.0), ("1.25s", 1.25)])
def test_gemini_says_in_the_body_how_long_to_wait(delay: str, seconds: float, waits: list[float]) -> None:
    with FaultServer(answers("first"), faults=[gemini_429(delay)]) as server:
        made = ask(model_at(server, "gemini"), limits=Limits(retries=5, first_wait=0.0))
    assert waits == [seconds] and made[-1].reply is not None
    assert isinstance(made[0].error, Transient), "a limit of the minute, though the text speaks of billing"


def test_a_header_comes_before_the_body(waits: list[float]) -> None:
    def fault(handler: Any) -> None:
        body = b'{"error": {"code": 429, "details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "37s"}]}}'
        handler.send(429, body, Retry_After="5")

    with FaultServer(answers("first"), faults=[fault]) as server:
        ask(model_at(server, "gemini"), limits=Limits(retries=5, first_wait=0.0))
    assert waits == [5.0]


@pytest.mark.parametrize(
    "body", [{}, {"error": "no"}, {"error": {"details": "no"}}, {"error": {"details": ["no", {"@type": 3}, {}]}}, []]
)
def test_strange_errors_of_gemini_are_errors(body: Any, waits: list[float]) -> None:
    def fault(handler: Any) -> None:
        handler.send(429, json.dumps(body).encode())

    with FaultServer(answers("first"), faults=[fault]) as server:
        made = ask(model_at(server, "gemini"), limits=Limits(retries=1))
    assert [type(attempt.error) for attempt in made] == [Transient, type(None)]


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_quotas_of_the_day_are_told_from_those_of_the_minute(provider: str, waits: list[float]) -> None:
    """Also where the server asks for a pause of seconds, as Gemini does for both."""
    with FaultServer(answers("first"), faults=[gemini_429("3s"), gemini_429("3s", per="Day")]) as server:
        made = ask(model_at(server, provider), limits=Limits(retries=5))
    assert [type(attempt.error) for attempt in made] == [Transient, QuotaReached]
    assert "a quota is used up" in str(made[-1].error) and len(server.asked) == 2


@pytest.mark.parametrize(
    ("message", "retry_after", "kind"),
    [
        ("Rate limit reached for requests per day (RPD): Limit 200, Used 200. Please try again in 7m12s", "432", "day"),
        ("Rate limit reached for requests per day (RPD): Please try again in 8.64s", "8.64", "minute"),
        ("Rate limit reached for tokens per minute (TPM): Limit 8000", None, "minute"),
        ("Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000", None, "day"),
        ("Daily token limit exceeded", None, "day"),
        ("You have used your monthly allowance", None, "day"),
        ("You exceeded your current quota (insufficient_quota)", None, "day"),
        ("Too many requests", "86400", "minute"),  # which is told by the pause
        ("slow down today", None, "minute"),
    ],
)
def test_words_of_quotas(message: str, retry_after: str | None, kind: str) -> None:
    error = error_from_status(429, message, "KEY", retry_after)
    assert type(error) is (QuotaReached if kind == "day" else Transient)


def test_nothing_is_sent_after_a_quota_is_used_up() -> None:
    """Of requests that wait for their turn, too."""
    with FaultServer(faults=[status(429, "requests per day")] * 50) as server:
        model, calls = model_at(server, "openai"), RateLimitedClient(Limits(retries=5))
        made = dict(stream_async(model.connected, calls.attempts, [REQUEST] * 20, at_once=4))
    assert len(server.asked) <= 4
    assert all(isinstance(attempts[-1].error, QuotaReached) for attempts in made.values())


def test_a_quota_that_is_used_up_is_no_bad_input() -> None:
    with FaultServer(faults=[status(429, "requests per day")]) as server, pytest.raises(RunFailed, match="used up"):
        check(model_at(server, "openai"), Limits(), REQUEST)


def test_a_wish_to_be_left_alone_is_for_all_requests(waits: list[float]) -> None:
    with FaultServer(faults=[status(429, retry_after="30")]) as server:
        calls = RateLimitedClient(ONCE)
        model = model_at(server, "openai")
        (_, given_up), (_, answered) = stream_async(model.connected, calls.attempts, [REQUEST] * 2, at_once=1)
    assert given_up[-1].error is not None and answered[-1].reply is not None
    assert waits == [30.0]


def test_pauses_of_hours_are_not_waited_for(waits: list[float]) -> None:
    with FaultServer(faults=[status(429, retry_after="3600")]) as server:
        made = ask(model_at(server, "openai"), limits=Limits(retries=5))
    assert waits == [] and "wants a pause of 3600 s" in str(made[-1].error)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *((None, None), ("5", 5.0), ("0.25", 0.25), ("-3", 0.0), ("soon", None), ("", None), ("nan", None)),
        *(("inf", None), ("Wed, 21 Oct 2026 07:28:00 GMT", 60.0), ("Wed, 21 Oct 2026 07:26:00 GMT", 0.0)),
        *(("Wed, 21 Oct 2026 09:28:00 +0200", 60.0), ("Wed, 99 Oct 2026 07:28:00 GMT", None)),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    at_0727 = 1792567620.0
    assert seconds_to_wait(header, now=at_0727) == seconds


def test_pace_keeps_to_the_limit_in_every_minute() -> None:
    now = [0.0]
    bucket = TokenBucket(120, clock=lambda: now[0])
    starts = []
    for _ in range(500):
        now[0] += bucket.reserve(1)
        starts.append(now[0])
    in_a_minute = max(sum(start <= other < start + 60 for other in starts) for start in starts)
    assert 118 <= in_a_minute <= 122 and starts[-1] == pytest.approx((500 - 2 - 1) / 2)


def test_pace_starts_at_once_however_slow() -> None:
    now = [100.0]
    bucket = TokenBucket(1, clock=lambda: now[0])
    assert bucket.reserve(1) == 0.0
    assert bucket.reserve(1) == pytest.approx(59.0)


def test_pace_lets_corrections_count() -> None:
    now = [0.0]
    bucket = TokenBucket(600, clock=lambda: now[0])
    bucket.reserve(100)
    bucket.adjust(-90)
    assert bucket.reserve(10) == pytest.approx(0.0)
    bucket.adjust(600)
    assert bucket.reserve(10) == pytest.approx(61.0)


def test_no_limit_means_no_wait() -> None:
    bucket = TokenBucket(None)
    assert [bucket.reserve(1e9) for _ in range(3)] == [0.0] * 3


def test_limits_slow_requests_down(waits: list[float]) -> None:
    with FaultServer(says("x " * 100)) as server:
        calls = RateLimitedClient(Limits(requests_per_minute=30, tokens_per_minute=None))
        list(stream_async(model_at(server, "openai").connected, calls.attempts, [REQUEST] * 11, at_once=1))
        assert sum(waits) == pytest.approx(19.0)  # ten more after the first, 2 s each, less the second's worth
        waits.clear()
        calls = RateLimitedClient(Limits(tokens_per_minute=3030))  # 203 to read and 100 to write: ten a minute
        list(stream_async(model_at(server, "openai").connected, calls.attempts, [REQUEST] * 11, at_once=1))
        assert sum(waits) == pytest.approx(59.0)


# -- failing before anything else --------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_check_is_quiet_if_all_is_well(provider: str) -> None:
    with FaultServer(key="right", model="m") as server:
        check(model_at(server, provider), Limits(), REQUEST)
    assert len(server.asked) == 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_check_fails_for_a_missing_key(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", " ")
    with FaultServer() as server:
        with pytest.raises(BadInput, match=r"no key in the environment variable \w+; set it") as told:
            check(model_at(server, provider), Limits(), REQUEST)
        assert not server.asked and "\n" not in str(told.value)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_check_fails_for_a_refused_key(provider: str) -> None:
    with FaultServer(key="another") as server:
        with pytest.raises(BadInput, match=r"refuses the key in \w+ \(Incorrect API key provided") as told:
            check(model_at(server, provider), Limits(), REQUEST)
        assert len(server.asked) == 1 and "\n" not in str(told.value) and "right" not in str(told.value)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_check_fails_for_an_unknown_model(provider: str) -> None:
    with FaultServer(model="m") as server, pytest.raises(BadInput, match="knows no such model"):
        check(model_at(server, provider, "n"), Limits(), REQUEST)


def test_check_fails_for_a_key_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "two words")
    with FaultServer() as server, pytest.raises(BadInput, match="does not hold a key"):
        check(model_at(server, "openai"), Limits(), REQUEST)


def test_check_fails_if_nobody_answers(waits: list[float]) -> None:
    with FaultServer() as server:
        url = server.url
    with pytest.raises(RunFailed, match="cannot be reached"):
        check(OpenAICompatible("m", url), Limits(), REQUEST)


def test_check_fails_if_the_server_says_nothing() -> None:
    with FaultServer(faults=[silence] * 3) as server, pytest.raises(RunFailed, match=r"no reply within 0\.2 s"):
        check(model_at(server, "openai"), Limits(timeout=0.2), REQUEST)


@pytest.mark.parametrize(
    "url",
    [*("localhost:8000", "ftp://x/v1", "http://", "nonsense"), *("http://h:x/v1", "http://h:99999/v1", "http://[::1")],
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(BadInput, match="no address of a server"):
        OpenAICompatible("m", url)


@pytest.mark.parametrize(("make", "package"), [(Gemini, "google"), (Anthropic, "anthropic")])
def test_missing_clients_are_named(
    make: Callable[[str], ChatModel], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"pip install 'sightline\[(gemini|anthropic)\]'"):
        check(make("m"), Limits(), REQUEST)


# -- the loop in the background ----------------------------------------------------------------------------------------


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "sightline-chat"]


def test_no_more_requests_at_once_than_allowed() -> None:
    with FaultServer(latency=0.05) as server:
        calls = RateLimitedClient(Limits())
        done = list(stream_async(model_at(server, "openai").connected, calls.attempts, [REQUEST] * 20, at_once=4))
    assert sorted(index for index, _ in done) == list(range(20))
    assert server.most_at_once == 4


def test_stopping_early_begins_nothing_more_and_ends_the_rest() -> None:
    with FaultServer(faults=[lambda handler: handler.send(200, b"{}"), *[silence] * 50]) as server:
        calls = RateLimitedClient(Limits(retries=0))
        arriving = stream_async(model_at(server, "openai").connected, calls.attempts, [REQUEST] * 50, at_once=5)
        next(arriving)
        arriving.close()  # type: ignore[attr-defined]
        assert len(server.asked) <= 5 and not threads()


def test_the_next_item_is_begun_only_when_the_caller_comes_back() -> None:
    with FaultServer() as server:
        calls = RateLimitedClient(Limits())
        arriving = stream_async(model_at(server, "openai").connected, calls.attempts, [REQUEST] * 9, at_once=2)
        next(arriving)
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            assert len(server.asked) <= 2
            time.sleep(0.01)
        assert len(list(arriving)) == 8


def test_nothing_to_do_needs_no_connection() -> None:
    assert (
        list(
            stream_async(
                OpenAICompatible("m", key_env="NOT_THERE").connected, RateLimitedClient(Limits()).attempts, [], 3
            )
        )
        == []
    )


def test_errors_of_the_program_are_raised() -> None:
    async def work(ask: Ask, item: int) -> int:
        return 1 // item

    model = OpenAICompatible("m", "http://localhost:1/v1")
    with pytest.raises(ZeroDivisionError):
        list(stream_async(model.connected, work, [1, 1, 0, 1], at_once=2))
    assert not threads()
