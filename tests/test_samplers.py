"""Samplers other than the policy itself: scripts, models that chat, and vLLM (a stand-in for its package)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fault_server import Asked, FaultServer, garbage, refusal, says, status, thought_too_long
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text, reply_schema
from sightline.agents.samplers.chat import ChatSampler, as_one_turn
from sightline.agents.samplers.vllm import VLLMSampler
from sightline.agents.types import Failure
from sightline.config.agents import VLLM, Replies
from sightline.config.loading import for_agent, load_recipe
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture
from sightline.models.chat.config import ChatModelConfig
from sightline.models.vlm.types import ChatTurn, Prompt

SIGNS = ("-", "+")
FORM = Replies()


def grey(brightness: int) -> Picture:
    return Picture(np.full((8, 8, 3), brightness, np.uint8))


def shown(brightness: int, words: str = "Lead it home.") -> list[ChatTurn]:
    return [ChatTurn(prompt_text(words, FORM, ("current",), SIGNS), (grey(brightness),))]


def brightness_as_action(asked: Asked) -> str:
    return (
        f'{{"current": "{asked.pictures[-1][0, 0, 0]}", "action": "{"+" if asked.pictures[-1].mean() > 99 else "-"}"}}'
    )


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "right")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)


def sampler_at(
    server: FaultServer, provider: str = "openai", said: list[str] | None = None, **keys: Any
) -> ChatSampler:
    url = server.url if provider == "openai" else server.root
    config = ChatModelConfig(
        **{"provider": provider, "model": "m", "url": url, "retries": 0, "timeout": 20.0}
        | {"key_env": f"{provider.upper()}_API_KEY"}
        | keys
    )
    return ChatSampler(config, reply_schema(FORM, ("current",), SIGNS), (said if said is not None else []).append)


# -- models that chat --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["openai", "gemini", "anthropic"])
def test_each_conversation_gets_the_reply_to_its_own_picture(provider: str) -> None:
    levels = [10, 200, 30, 250, 90, 100]
    with FaultServer(brightness_as_action, key="right", model="m", latency=0.02) as server:
        sampler = sampler_at(server, provider, concurrency=3)
        asked = sampler.generate([shown(level) for level in levels], [(i,) for i in range(6)])
        assert server.most_at_once <= 3
    replies = [read_reply(one.sample.text, FORM, SIGNS, ("current",), one.sample.finished) for one in asked]
    assert [reply.stated["current"] for reply in replies] == [str(level) for level in levels]
    assert [reply.action for reply in replies] == ["-", "+", "-", "+", "-", "+"]
    assert sampler.input_tokens == sum(one.tokens for one in server.asked) and sampler.output_tokens > 0
    assert not sampler.failures


def test_the_reply_is_asked_for_by_schema_unless_it_shall_not_be() -> None:
    with FaultServer(brightness_as_action) as server:
        sampler_at(server).generate([shown(1)], [(0,)])
        sampler_at(server, structured=False).generate([shown(1)], [(0,)])
    with_schema, without = (asked.body.get("response_format") for asked in server.asked)
    assert with_schema["json_schema"]["schema"]["properties"]["action"]["enum"] == ["-", "+"]
    assert without is None


def test_earlier_turns_are_told_in_order_with_what_was_replied() -> None:
    conversation = [
        ChatTurn("first", (grey(1),), reply_text="went up"),
        ChatTurn("second", (grey(2), grey(3)), reply_text="went down"),
        ChatTurn("third", (grey(4),)),
    ]
    parts = as_one_turn(conversation)
    assert [part if isinstance(part, str) else int(part.pixels[0, 0, 0]) for part in parts] == [
        *("Turn 1 of 3:", 1, "first", "You replied: went up"),
        *("Turn 2 of 3:", 2, 3, "second", "You replied: went down"),
        *("Turn 3 of 3, now:", 4, "third"),
    ]
    assert as_one_turn(conversation[-1:]) == (*conversation[-1].pictures, "third")


def test_missing_replies_are_empty_counted_and_said_once() -> None:
    said: list[str] = []
    with FaultServer(brightness_as_action, faults=[refusal, status(500), garbage, refusal]) as server:
        sampler = sampler_at(server, said=said, concurrency=1)
        asked = sampler.generate([shown(200) for _ in range(5)], [(i,) for i in range(5)])
    assert [one.sample.text == "" for one in asked] == [True, True, True, True, False]
    assert not any(one.sample.finished for one in asked[:4]) and asked[4].sample.finished
    assert sampler.failures == {"refused": 2, "failed": 2}
    assert len(said) == 2 and "refused" in said[0] and "failed" in said[1]
    assert all("\n" not in line for line in said)
    reply = read_reply(asked[0].sample.text, FORM, SIGNS, (), asked[0].sample.finished)
    assert reply.failure is Failure.EMPTY


def test_a_server_that_dies_leaves_what_was_replied() -> None:
    with FaultServer(brightness_as_action, lives=2) as server:
        sampler = sampler_at(server, concurrency=1)
        asked = sampler.generate([shown(200) for _ in range(4)], [(i,) for i in range(4)])
    assert [bool(one.sample.text) for one in asked] == [True, True, False, False]
    assert sampler.failures == {"failed": 2}


def test_what_may_pass_is_tried_again() -> None:
    with FaultServer(brightness_as_action, faults=[status(429, retry_after="0.01"), None]) as server:
        sampler = sampler_at(server, retries=1, concurrency=1)
        asked = sampler.generate([shown(200)], [(0,)])
    assert asked[0].sample.text and not sampler.failures and len(server.asked) == 2


def test_a_rejected_key_ends_it_in_one_line() -> None:
    with FaultServer(brightness_as_action, key="another") as server:
        sampler = sampler_at(server)
        with pytest.raises(BadInput, match=r"^the chat model at 127\.0\.0\.1\S* cannot be asked: .*key.*") as raised:
            sampler.generate([shown(1) for _ in range(50)], [(i,) for i in range(50)])
        with pytest.raises(BadInput, match="cannot be asked"):
            sampler.check()
    assert "\n" not in str(raised.value)


def test_a_reply_that_was_cut_off_says_so() -> None:
    with FaultServer(says("so"), faults=[thought_too_long["openai"]]) as server:
        asked = sampler_at(server).generate([shown(1)], [(0,)])
    assert not asked[0].sample.finished and asked[0].sample.text == ""


def test_check_asks_with_a_picture() -> None:
    with FaultServer(says('{"action": "+"}')) as server:
        sampler_at(server).check()
    assert len(server.asked[0].pictures) == 1


def test_nothing_to_ask_needs_no_server() -> None:
    with FaultServer() as server:
        assert sampler_at(server).generate([], []) == []
    assert not server.asked


# -- vLLM --------------------------------------------------------------------------------------------------------------

IMAGE, STOP = 7, 2


class FakeLLM:
    """Replies as vLLM does, with as many of token 11 as the last word of the prompt says, and then the stop token."""

    def __init__(self, **options: Any) -> None:
        self.options, self.forgotten = options, []
        self.loaded: dict[str, Any] = {}
        self.busy = False
        self.calls: list[tuple[dict[str, Any], Any]] = []
        self.llm_engine = SimpleNamespace(reset_encoder_cache=lambda: self.forgotten.append("pictures"))

    def generate(self, prompts: list[dict[str, Any]], sampling: list[Any], use_tqdm: bool) -> list[Any]:
        assert len(prompts) == len(sampling) and use_tqdm is False
        self.calls += zip(prompts, sampling, strict=True)
        return [self._reply(prompt, parameters) for prompt, parameters in zip(prompts, sampling, strict=True)]

    def _reply(self, prompt: dict[str, Any], parameters: Any) -> Any:
        read = [again for token in prompt["prompt_token_ids"] for again in [token] * (4 if token == IMAGE else 1)]
        ids = ([11] * prompt["prompt_token_ids"][-1] + [STOP])[: parameters.max_tokens]
        logprobs = [{token: SimpleNamespace(logprob=-0.5 - place)} for place, token in enumerate(ids)]
        written = SimpleNamespace(token_ids=tuple(ids), logprobs=logprobs, text="not used", finish_reason="stop")
        return SimpleNamespace(prompt_token_ids=read, outputs=[written])

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        model = SimpleNamespace(load_weights=lambda weights: self.loaded.update(dict(weights)))
        return [function(model)]

    def reset_prefix_cache(self) -> bool:
        self.forgotten.append("prompts")
        return not self.busy


def fake_vlm() -> Any:
    """Two tokens of prompt, 4 for each picture, and the number of exchanges."""
    banned = torch.zeros(20, dtype=torch.bool)
    banned[[0, IMAGE]] = True

    def encode(conversation: list[ChatTurn]) -> Prompt:
        pictures = sum(len(exchange.pictures) for exchange in conversation)
        return Prompt(np.array([1, *[IMAGE] * 4 * pictures, 5, len(conversation)], np.int64))

    return SimpleNamespace(
        tokens=SimpleNamespace(stops=frozenset({STOP, 3}), banned=banned),
        encode=encode,
        decode=lambda ids: "a" * sum(token == 11 for token in ids),
        unexpanded=unexpanded,
        merge_and_save=lambda folder: save_file(
            {"model.layer.weight": torch.full((2,), 3.0)}, f"{folder}/a.safetensors"
        ),
    )


def unexpanded(conversation: Any) -> list[int]:
    return [1, *[IMAGE] * sum(len(exchange.pictures) for exchange in conversation), 5, len(conversation)]


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=SimpleNamespace))


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_gets_unexpanded_prompts_and_gives_what_is_learned_from() -> None:
    sampler = VLLMSampler(fake_vlm(), temperature=0.7, max_tokens=5, settings=VLLM(max_length=99))
    conversations = [shown(9), [*shown(1), *shown(2), *shown(3)]]
    asked = sampler.generate(conversations, [(0, 1), (0, 2)])
    llm = sampler._llm
    assert Path(llm.options["model"], "a.safetensors").is_file() and llm.options["max_model_len"] == 99
    assert sampler.at(0.0).generate(conversations[:1], [(0, 1)]) and llm.calls.pop()[1].temperature == 0
    assert llm.options["logprobs_mode"] == "processed_logprobs" and llm.options["generation_config"] == "vllm"
    (first, sampling), (second, others) = llm.calls
    assert first["prompt_token_ids"] == [1, IMAGE, 5, 1] and second["prompt_token_ids"] == [1, *[IMAGE] * 3, 5, 3]
    assert [np.asarray(image)[0, 0, 0] for image in second["multi_modal_data"]["image"]] == [1, 2, 3]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.7, 1.0, 0, 5)
    assert sampling.logit_bias == {0: -100.0, IMAGE: -100.0} and sampling.stop_token_ids == [2, 3]
    assert sampling.logprobs == 0 and sampling.seed != others.seed and 0 <= sampling.seed < 2**31
    assert asked[1].sample.ids.tolist() == [11, 11, 11, STOP] and asked[1].sample.text == "aaa"
    assert asked[1].sample.logprobs.tolist() == [-0.5, -1.5, -2.5, -3.5] and asked[1].sample.finished
    assert asked[1].prompt is not None and asked[1].prompt.ids.tolist() == [1, *[IMAGE] * 12, 5, 3]


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_leaves_the_learner_its_memory_as_the_recipe_says() -> None:
    def told(**settings: Any) -> tuple[Any, ...]:
        said = VLLMSampler(fake_vlm(), settings=VLLM(**settings))._llm.options
        return said["gpu_memory_utilization"], said["max_model_len"], said["enforce_eager"]

    assert told() == (0.4, None, False)
    assert told(memory_share=0.2, max_length=2048, compiled=False) == (0.2, 2048, True)
    keys = [*("policy.vllm.memory_share=0.3", "policy.vllm.max_length=9", "policy.vllm.compiled=false")]
    assert for_agent(load_recipe("numberline", keys)).policy.vllm == VLLM(
        memory_share=0.3, max_length=9, compiled=False
    )
    with pytest.raises(BadInput, match=r"policy\.vllm\.memory_share"):
        load_recipe("numberline", ["policy.vllm.memory_share=1.5"])


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_draws_by_the_key_and_replies_can_be_cut_off() -> None:
    sampler = VLLMSampler(fake_vlm(), max_tokens=1)
    asked = sampler.generate([shown(1), shown(1)], [(4, 5), (4, 5)])
    assert not asked[0].sample.finished and asked[0].sample.text == "a"
    assert len({sampling.seed for _, sampling in sampler._llm.calls}) == 1
    assert sampler.generate([], []) == []
    sampler.generate([[ChatTurn("no picture", ())]], [(1,)])
    assert "multi_modal_data" not in sampler._llm.calls[-1][0]


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_must_read_what_the_learner_reads() -> None:
    vlm = fake_vlm()
    vlm.unexpanded = lambda conversation: vlm.encode(conversation).ids.tolist()
    expanded_twice = VLLMSampler(vlm)
    with pytest.raises(RunFailed, match="of 19 tokens where the learner reads another of 7"):
        expanded_twice.generate([shown(1)], [(0,)])


@pytest.mark.usefixtures("fake_vllm")
def test_new_weights_make_vllm_forget() -> None:
    sampler = VLLMSampler(fake_vlm())
    weight = torch.ones(2, requires_grad=True)
    sampler.sync([("model.layer.weight", weight)])
    assert sampler._llm.loaded["model.layer.weight"].tolist() == [1, 1]
    assert not sampler._llm.loaded["model.layer.weight"].requires_grad
    assert sampler._llm.forgotten == ["prompts", "pictures"]
    sampler.take_over_weights()
    assert sampler._llm.loaded["model.layer.weight"].tolist() == [3, 3]
    with pytest.raises(BadInput, match="merge the adapters"):
        sampler.sync([("model.layer.lora_A.weight", weight)])
    sampler._llm.busy = True
    with pytest.raises(RunFailed, match="between rollouts"):
        sampler.sync([("model.layer.weight", weight)])


def test_vllm_that_is_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(BadInput, match=r"pip install 'sightline\[vllm\]'"):
        VLLMSampler(fake_vlm())

    class Old(FakeLLM):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            del self.llm_engine.reset_encoder_cache

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Old, SamplingParams=SimpleNamespace))
    with pytest.raises(BadInput, match="upgrade"):
        VLLMSampler(fake_vlm())
