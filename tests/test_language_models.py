"""Language models, which read no pictures, wherever a model plays in words: random ones of two families."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version

import sightline as sl
import smollm2
from fault_server import FaultServer, says
from sightline import roles
from sightline.agents.agent_setup import build, load_model
from sightline.agents.resolving import resolve
from sightline.agents.samplers.weight_check import PROBES, probes
from sightline.config.agents import LoRA
from sightline.config.loading import for_agent, load_recipe
from sightline.config.recipe import AgentRecipe
from sightline.errors import BadInput
from sightline.images import Picture
from sightline.labels.types import Question, Segment
from sightline.models.chat.local import LocalModel
from sightline.models.chat.messages import ChatRequest, Rejected
from sightline.models.vlm.loading import load_pretrained, reads_pictures
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.scoring import collate
from sightline.models.vlm.shared_prompts import common_prefix
from sightline.models.vlm.types import ChatTurn, Prompt, TokenSequence, TurnSpan
from sightline.runs.metrics import read_metrics
from tiny_families import IDS, TEXT, WORDS_ONLY, build_family

SAID: tuple[tuple[ChatTurn, ...], ...] = (
    (ChatTurn("Which way do you go?", ()),),
    (ChatTurn("You see a game at 3. Which way do you go? Two words: ž€.", ()),),
    (ChatTurn("Go", ()),),
)
PLAY = (
    *("numberline", "text_only=true", "replies.thoughts=false", "replies.facts=false", "replies.max_tokens=24"),
    *("steps=8", "episode_steps=3", "rollouts.tasks=2", "rollouts.parallel=4", "evaluation.episodes=2"),
    *("evaluation.test_episodes=2", "evaluation.stop_at=null", "videos.final=false", "tensorboard=false", "device=cpu"),
)
"""Arguments of a run of seconds in words; its model is named by those who use it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a family -> folder of a model."""
    root = tmp_path_factory.mktemp("families")

    def made(family: str) -> Path:
        if not (root / family).exists():
            build_family(family, root / family)
        return root / family

    return made


@pytest.fixture
def fresh(folder: Callable[[str], Path]) -> Callable[..., VLM]:
    def load(family: str, **policy: Any) -> VLM:
        return load_vlm(str(folder(family)), **{"value_head": True, "device": "cpu"} | policy)

    return load


def save_random(config: Any, tokenizer: Any, folder: Path) -> None:
    """Write a language model of a configuration, with random weights so large that its replies differ."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def recipe_of(*arguments: str) -> AgentRecipe:
    name, *overrides = arguments
    return for_agent(load_recipe(name, overrides))


def uniforms(rows: int, places: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, places))


def refused(folder: Path, match: str) -> None:
    with pytest.raises(BadInput, match=match) as told:
        load_pretrained(str(folder))
    assert "\n" not in str(told.value)


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", WORDS_ONLY)
def test_prompts_are_those_of_the_chat_template(family: str, fresh: Callable[..., VLM]) -> None:
    vlm = fresh(family)
    tokenizer = vlm._processor.tokenizer
    reply = (*tokenizer('the "action": "+"', add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
    ids = vlm.encode([ChatTurn("Which way?", (), reply), ChatTurn("Go", (), reply), ChatTurn("the end", ())], "Play.")
    messages = [{"role": "system", "content": "Play."}]
    for words in ("Which way?", "Go", "the end"):
        messages += [{"role": "user", "content": words}, {"role": "assistant", "content": 'the "action": "+"'}]
    text = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    if family == "qwen3":
        # In a conversation, replies stand behind the empty thought that the prompt before them ended with.
        text = text.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert tokenizer.decode(ids.ids) == text
    assert not ids.per_picture and vlm.tokens.thinking.opened_by_prompt is False


@pytest.mark.parametrize("family", WORDS_ONLY)
def test_a_prompt_begins_with_the_one_before_and_its_reply(family: str, fresh: Callable[..., VLM]) -> None:
    vlm = fresh(family)
    said: list[ChatTurn] = []
    for number in range(3):
        prompt = vlm.encode([*said, ChatTurn(f"turn {number}", ())])
        (sample,) = vlm.generate([prompt], uniforms(1, 9, number), 1.0, 9)
        said.append(ChatTurn(f"turn {number}", (), tuple(sample.ids.tolist())))
        begun = [*prompt.ids.tolist(), *sample.ids.tolist()]
        assert vlm.encode([*said, ChatTurn("next", ())]).ids.tolist()[: len(begun)] == begun


# -- sampling, scoring, sharing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", WORDS_ONLY)
def test_what_was_sampled_is_scored_alike_with_shared_prompts_and_without(
    family: str, lora: LoRA | None, fresh: Callable[..., VLM]
) -> None:
    vlm = fresh(family, lora=lora)
    assert vlm.exact and vlm.shares_prompts and not vlm.reads_pictures
    prompts = [vlm.encode(turns) for turns in SAID]
    of = [0, 1, 2, 0, 1, 0, 2, 1, 0]
    samples = vlm.generate(prompts, uniforms(len(of), 9), 0.7, 9, of=of)
    apart = vlm.generate([prompts[i] for i in of], uniforms(len(of), 9), 0.7, 9)
    assert [one.ids.tolist() for one in samples] == [one.ids.tolist() for one in apart]
    sequences = [TokenSequence.of_reply(prompts[which], one.ids) for which, one in zip(of, samples, strict=True)]
    expected = torch.from_numpy(np.concatenate([one.logprobs for one in samples]))
    gradients = []
    for shares in (True, False):
        vlm.shares_prompts = shares
        vlm.shares_prefixes = False
        assert len(vlm.collate(sequences).of) == (len(of) if shares else 0)
        scores = vlm.score(sequences, temperature=0.7)
        torch.testing.assert_close(scores.logprobs.detach(), expected, atol=1e-5, rtol=1e-5)
        vlm.scorer.zero_grad(set_to_none=True)
        scores.logprobs.sum().backward()
        gradients.append(torch.cat([one.grad.flatten() for one in vlm.scorer.parameters() if one.grad is not None]))
    torch.testing.assert_close(*gradients, atol=1e-5 * float(gradients[1].abs().max()), rtol=1e-3)


@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", WORDS_ONLY)
def test_what_all_prompts_begin_with_is_read_once(family: str, lora: LoRA | None, fresh: Callable[..., VLM]) -> None:
    """Replies, their scores and gradients are those of reading it with each prompt."""
    vlm = fresh(family, lora=lora)
    prompts = [vlm.encode(turns, "Bring the current number to the target number. " * 5) for turns in SAID]
    prefix = common_prefix(prompts)
    assert prefix > 30 and len({len(prompt.ids) for prompt in prompts}) > 1
    read: list[int] = []
    vlm.model.get_input_embeddings().register_forward_pre_hook(lambda _, given: read.append(given[0].numel()))
    found = []
    for shares in (True, False):
        vlm.shares_prefixes = shares
        read.clear()
        samples = vlm.generate(prompts, uniforms(3, 9), 0.7, 9)
        several = vlm.generate(prompts, uniforms(4, 9), 0.7, 9, of=[2, 0, 2, 1])
        sequences = [TokenSequence.of_reply(prompt, one.ids) for prompt, one in zip(prompts, samples, strict=True)]
        # Earlier turns that are scored as well begin before the last prompt ends.
        start = prefix + 3
        earlier = replace(sequences[0], spans=(TurnSpan(start, start + 2), *sequences[0].spans))
        assert len(vlm.collate([*sequences, earlier]).of) == (4 if shares else 0)
        scores = vlm.score([*sequences, earlier], temperature=0.7)
        expected = torch.from_numpy(np.concatenate([one.logprobs for one in samples]))
        torch.testing.assert_close(scores.logprobs.detach()[: len(expected)], expected, atol=1e-5, rtol=1e-5)
        vlm.scorer.zero_grad(set_to_none=True)
        (scores.logprobs.sum() + scores.values.sum()).backward()
        gradients = torch.cat([one.grad.flatten() for one in vlm.scorer.parameters() if one.grad is not None])
        found.append((samples + several, scores, gradients, sum(read)))
    (once, of_once, from_once, few), (each, of_each, from_each, many) = found
    assert few < 0.6 * many
    assert [one.ids.tolist() for one in once] == [one.ids.tolist() for one in each]
    for name in ("logprobs", "values", "entropy"):
        torch.testing.assert_close(getattr(of_once, name), getattr(of_each, name), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(from_once, from_each, atol=1e-5 * float(from_each.abs().max()), rtol=1e-3)


def test_no_prefix_is_shared_where_it_does_not_pay_or_more_is_shown(
    fresh: Callable[..., VLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    vlm = fresh("llama")
    prompts = [vlm.encode(turns) for turns in SAID]
    assert vlm._prefix_to_share(prompts[:1]) == 0
    alike = Prompt(np.arange(9)), Prompt(np.arange(9)), Prompt(np.arange(12))
    assert common_prefix(alike) == 7, "the last token is read before each reply, and one more with the prompt"
    assert common_prefix([Prompt(np.array([1, 2, 3, 4, 5])), Prompt(np.array([1, 2, 4, 4, 5]))]) == 2
    assert common_prefix([Prompt(np.array([1]))] * 2) == 0
    pictured = Prompt(np.arange(9), per_picture={"pixel_values": torch.zeros(1)})
    assert common_prefix([alike[0], pictured]) == 0
    # Options of generation may look at whole prompts.
    stacked: list[int] = []
    monkeypatch.setattr("sightline.models.vlm.sampling.sample", lambda *_, prefix, **__: stacked.append(prefix))
    prompts = [vlm.encode(turns, "Bring the current number to the target number. " * 5) for turns in SAID]
    vlm.generate(prompts, None)
    vlm.generate(prompts, None, options={"no_repeat_ngram_size": 3})
    assert stacked[0] > 30 and stacked[1] == 0
    # Two equal prompts of three: they are shared as wholes where that reads fewer tokens.
    ids = [np.array([1, *range(2, 40)]), np.array([1, *range(40, 2, -1)])]
    sequences = [TokenSequence.of_reply(Prompt(ids[which]), np.array([7, 8])) for which in (0, 0, 0, 1, 1)]
    assert collate(sequences, 0, shares_prompts=True, shares_prefixes=True).of.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_merged_while_sampling_and_weights_put_back_bit_for_bit(
    dtype: str, fresh: Callable[..., VLM]
) -> None:
    vlm = fresh("llama", lora=LoRA(rank=4), dtype=dtype)
    with torch.no_grad():
        for name, weight in vlm.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.linspace(-0.3, 0.3, weight.numel()).reshape(weight.shape))
    before = {name: tensor.clone() for name, tensor in vlm.model.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in vlm.model.state_dict().items()}
    prompt = vlm.encode(SAID[1])
    products: list[str] = []
    for name, module in vlm.model.named_modules():
        if ".lora_A." in name:
            module.register_forward_hook(lambda module, inputs, output: products.append("of adapters"))
    assert vlm.merges_adapters
    (merged,) = vlm.generate([prompt], uniforms(1, 12), 1.0, 12)
    assert not products
    vlm.merges_adapters = False
    (apart,) = vlm.generate([prompt], uniforms(1, 12), 1.0, 12)
    assert products
    after = vlm.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(tensor.data_ptr() == places[name] for name, tensor in after.items())
    if dtype == "float32":
        assert merged.ids.tolist() == apart.ids.tolist()
    np.testing.assert_allclose(merged.logprobs[0], apart.logprobs[0], atol=1e-5 if dtype == "float32" else 0.3)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
        ("GPTNeo", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}),
        pytest.param(
            *("Lfm2", TEXT | {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}),
            marks=pytest.mark.skipif(
                Version(transformers.__version__) < Version("5"), reason="Transformers 4 cannot copy rows of its cache"
            ),
        ),
        (
            "Llama4Text",
            TEXT | {"intermediate_size_mlp": 64, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2},
        ),
    ],
    ids=["transposed weights", "windows", "states", "experts"],
)
def test_layers_of_other_kinds_are_scored_as_they_were_sampled(
    family: str, sizes: dict[str, Any], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Prompts are read once for all their replies, and adapters count, whatever a layer keeps of earlier tokens."""
    config = getattr(transformers, f"{family}Config")
    if family == "GPTNeo":
        sizes = sizes | {"window_size": 16}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder("llama"))
    save_random(config(**sizes, **IDS, vocab_size=len(tokenizer)), tokenizer, tmp_path)
    vlm = load_vlm(str(tmp_path), lora=LoRA(rank=2), value_head=True, device="cpu")
    with torch.no_grad():
        for name, weight in vlm.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
    prompts = [vlm.encode(turns) for turns in SAID]
    of = [0, 1, 2, 0, 1, 0, 2, 1, 0]
    samples = vlm.generate(prompts, uniforms(len(of), 40), 0.7, 40, of=of)
    assert vlm.shares_prompts == (family == "GPT2")
    sequences = [TokenSequence.of_reply(prompts[which], one.ids) for which, one in zip(of, samples, strict=True)]
    expected = torch.from_numpy(np.concatenate([one.logprobs for one in samples]))
    torch.testing.assert_close(vlm.score(sequences, temperature=0.7).logprobs.detach(), expected, atol=1e-4, rtol=1e-4)


def test_nothing_is_read_apart_where_positions_turn_by_the_length_of_a_pass(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """LongRoPE has other angles beyond a length: all prompts are longer, and what they begin with is shorter."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder("llama"))
    prefix, limit = 40, 42
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0]}
    scaling = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": limit, **factors}
    rope = {"rope_parameters": scaling | {"rope_theta": 1e4}}
    if Version(transformers.__version__) < Version("5"):
        rope = {"rope_scaling": scaling}
    sizes = TEXT | IDS | {"num_key_value_heads": 2, "max_position_embeddings": 128, "vocab_size": len(tokenizer)}
    save_random(transformers.LlamaConfig(**sizes, **rope), tokenizer, tmp_path)
    vlm = load_vlm(str(tmp_path), value_head=True, device="cpu")
    assert not vlm.shares_prompts and not vlm.shares_prefixes
    ids = np.random.default_rng(0).integers(5, len(tokenizer), (4, prefix + 8))
    ids[:, :prefix] = ids[0, :prefix]
    prompts = [Prompt(row) for row in ids]
    samples = vlm.generate(prompts, uniforms(4, 9), 0.7, 9)
    sequences = [TokenSequence.of_reply(prompt, one.ids) for prompt, one in zip(prompts, samples, strict=True)]
    expected = torch.from_numpy(np.concatenate([one.logprobs for one in samples]))
    torch.testing.assert_close(vlm.score(sequences, temperature=0.7).logprobs.detach(), expected, atol=1e-4, rtol=1e-4)


def test_weights_are_put_back_if_sampling_fails(fresh: Callable[..., VLM], monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = fresh("llama", lora=LoRA(rank=4))
    layer = next(module for name, module in vlm.model.named_modules() if hasattr(module, "lora_A"))
    weight = layer.base_layer.weight.data

    def fails(*_: Any, **__: Any) -> Any:
        assert layer.merged and layer.base_layer.weight.data_ptr() != weight.data_ptr()
        raise MemoryError

    monkeypatch.setattr("sightline.models.vlm.sampling.sample", fails)
    with pytest.raises(MemoryError):
        vlm.generate([vlm.encode(SAID[0])], None)
    assert not layer.merged and layer.base_layer.weight.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    ("fast", "small", "further", "expected"),
    [
        (True, False, ("policy.lora.rank=2",), "bfloat16"),
        (False, False, ("policy.lora.rank=2",), "auto"),
        (True, True, ("policy.lora.rank=2",), "auto"),
        (True, False, (), "auto"),
        (True, False, ("policy.lora.rank=2", "policy.dtype=float32"), "float32"),
    ],
)
def test_bfloat16_on_a_cpu_stands_in_the_recipe(
    fast: bool,
    small: bool,
    further: tuple[str, ...],
    expected: str,
    folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sightline.agents.resolving.fast_dtype", lambda _: torch.bfloat16 if fast else torch.float32)
    monkeypatch.setattr("sightline.agents.resolving.SMALL_MODEL", 10**9 if small else 1)
    resolved = resolve(recipe_of(*PLAY, f"policy.model={folder('llama')}", *further))
    assert resolved.policy.dtype == expected


def test_the_recipe_of_smollm2_starts_with_any_language_model(folder: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = resolve(recipe_of("numberline-smollm2"))
    assert recipe.text_only and recipe.warm_start is not None and recipe.warm_start.samples <= 300
    # A tokenizer of 380 tokens writes longer replies.
    small = ("steps=8", "warm_start.samples=8", "warm_start.batch=4", "rollouts.tasks=2", "replies.max_tokens=80")
    panels = ("evaluation.episodes=2", "evaluation.test_episodes=2", "episode_steps=2", "videos.final=false")
    recipe = recipe_of("numberline-smollm2", f"policy.model={folder('llama')}", *small, *panels, "device=cpu")
    roles.train(resolve(recipe), tmp_path / "run", "numberline-smollm2", resume=False)
    assert (tmp_path / "run/result.json").is_file()


def test_what_is_not_a_token_is_never_said(fresh: Callable[..., VLM]) -> None:
    vlm = fresh("qwen3")
    rows = vlm.model.get_output_embeddings().weight.shape[0]
    names = ("<|endoftext|>", "<|im_start|>")
    special = vlm._processor.tokenizer.convert_tokens_to_ids(names)
    assert vlm.tokens.banned[[*special, rows - 1, rows - 5]].all() and not vlm.tokens.banned[vlm.tokens.stop]


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", WORDS_ONLY)
def test_what_was_saved_is_loaded_by_name(
    family: str, lora: LoRA | None, fresh: Callable[..., VLM], tmp_path: Path
) -> None:
    vlm = fresh(family, lora=lora)
    with torch.no_grad():
        for name, weight in vlm.model.named_parameters():
            if weight.requires_grad:
                weight.add_(torch.linspace(-0.1, 0.1, weight.numel()).reshape(weight.shape))
                assert "lora_" in name or lora is None
    vlm.save(tmp_path / "mine")
    again = load_vlm(str(tmp_path / "mine"), device="cpu")
    prompt = vlm.encode(SAID[0])
    said, said_again = (one.generate([prompt], None, 1.0, 9)[0] for one in (vlm, again))
    assert said.ids.tolist() == said_again.ids.tolist()
    np.testing.assert_allclose(said.logprobs, said_again.logprobs, atol=1e-5)
    assert not reads_pictures(str(tmp_path / "mine"))
    if lora is None:
        whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
        assert torch.equal(whole.get_input_embeddings().weight, vlm.model.get_input_embeddings().weight)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "further",
    [
        ("policy.lora.rank=2", "algorithm.kind=grpo", "algorithm.group=2", "update.kl_actions=0.1"),
        ("rollouts.window=3", "warm_start.samples=8", "warm_start.batch=4"),
    ],
    ids=["grpo", "ppo"],
)
@pytest.mark.parametrize("family", WORDS_ONLY)
def test_it_learns_and_plays(
    family: str, further: tuple[str, ...], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = recipe_of(*PLAY, f"policy.model={folder(family)}", *further)
    roles.train(resolve(recipe), tmp_path / "run", "words", resume=False)
    numbers = read_metrics(tmp_path / "run/metrics.jsonl")
    mismatches = [record["update/mismatch"] for record in numbers if "update/mismatch" in record]
    assert mismatches and max(mismatches) < 1e-4
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["episodes"] == 2


def test_a_text_game_needs_no_pictures(folder: Callable[[str], Path]) -> None:
    recipe = recipe_of(*PLAY, "env=test_language_models:hall", "text_only=false", f"policy.model={folder('llama')}")
    assert not build(resolve(recipe)).vlm.reads_pictures


class _Hall:
    """A game of two commands that is told in words alone."""

    def reset(self) -> str:
        return "You stand in a hall."

    def step(self, command: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "You have gone.", float(command == "go north"), True, {}


def hall() -> gym.Env[Any, Any]:
    return sl.text_game(_Hall, commands=("go north", "wait"))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_pictures_are_refused_before_weights_are_read(
    folder: Callable[[str], Path], tmp_path: Path, fresh: Callable[..., VLM]
) -> None:
    shutil.copytree(folder("llama"), tmp_path / "bare")
    (tmp_path / "bare/model.safetensors").unlink()
    recipe = recipe_of(*PLAY, "text_only=false", f"policy.model={tmp_path / 'bare'}")
    for refuse in (load_model, build):
        with pytest.raises(BadInput, match=r"bare' is a language model, which reads no pictures; say text_only=true"):
            refuse(recipe)
    model = LocalModel(str(tmp_path / "bare"))
    shown = ChatRequest(("which", Picture(np.zeros((8, 8, 3), np.uint8))))
    with pytest.raises(BadInput, match="reads no pictures"):
        model.replies([shown])
    with pytest.raises(BadInput, match="reads no pictures"):
        fresh("llama").encode([ChatTurn("which", (Picture(np.zeros((8, 8, 3), np.uint8)),))])


def test_a_language_model_reads_the_reports_of_a_teacher(folder: Callable[[str], Path]) -> None:
    """Pictures go to the model that sees, and the report alone to the one that reads."""
    reader = {"provider": "local", "model": str(folder("llama")), "max_tokens": 4, "options": {"device": "cpu"}}
    frames = np.stack([np.full((1, 8, 8, 3), grey, np.uint8) for grey in (10, 200)])
    segments = tuple(Segment(frame, np.zeros(1, np.float32)) for frame in frames)
    with FaultServer(says("The second is brighter.")) as server:
        teacher = sl.ChatTeacher("seer", url=server.url, stages=2, swap=False, reader=reader)
        ((_, said),) = teacher.answers([Question("compare", segments, ("a bright picture",))])
    describe, label = said.exchanges
    assert (describe.stage, label.stage, label.error) == ("describe", "label", "")
    assert label.output_tokens == 4 and "The second is brighter." in label.prompt


async def _asked(model: LocalModel, *requests: ChatRequest) -> list[str]:
    async with model.connected() as ask:
        return [(await ask(request)).text for request in requests]


def test_a_language_model_chats_and_turns_pictures_down(folder: Callable[[str], Path], tmp_path: Path) -> None:
    words = ChatRequest(("which",), max_tokens=5)
    said = asyncio.run(_asked(LocalModel(str(folder("llama")), {"device": "cpu"}), words))
    assert said == [LocalModel(str(folder("llama")), {"device": "cpu"}).replies([words])[0].text]
    shutil.copytree(folder("llama"), tmp_path / "bare")
    (tmp_path / "bare/model.safetensors").unlink()
    shown = ChatRequest((Picture(np.zeros((8, 8, 3), np.uint8)),))
    with pytest.raises(Rejected, match="reads no pictures"):
        asyncio.run(_asked(LocalModel(str(tmp_path / "bare")), shown))


def test_games_without_words_are_refused(folder: Callable[[str], Path]) -> None:
    recipe = recipe_of(*PLAY, f"policy.model={folder('llama')}", "env=MountainCar-v0", "actions=[left, stay, right]")
    with pytest.raises(BadInput, match="cannot describe its pictures in words"):
        resolve(recipe.model_copy(update={"prompt": "A car."}))


@pytest.mark.parametrize("positions", [60, 400])
def test_a_context_shorter_than_prompt_and_reply_is_refused(
    positions: int, folder: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(folder("llama"), tmp_path / "short")
    config = json.loads((tmp_path / "short/config.json").read_text())
    (tmp_path / "short/config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    recipe = recipe_of(*PLAY, f"policy.model={tmp_path / 'short'}", "replies.max_tokens=300")
    match = rf"a prompt has \d{{3}} tokens, .* its reply up to 300; the model reads {positions} in all: .*max_tokens"
    with pytest.raises(BadInput, match=match):
        build(resolve(recipe))


def test_a_token_that_the_model_does_not_know_is_named(folder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder("llama"), tmp_path / "small")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    tokenizer.add_tokens(["current"])
    tokenizer.save_pretrained(tmp_path / "small")
    with pytest.raises(BadInput, match=r"a token for 'current' \(id \d+\), .*resize_token_embeddings") as told:
        build(resolve(recipe_of(*PLAY, f"policy.model={tmp_path / 'small'}")))
    assert "\n" not in str(told.value)


def test_adapters_without_peft_are_refused_before_the_model_is_read(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.agents.agent_setup.importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("sightline.agents.agent_setup.load_model", pytest.fail)
    with pytest.raises(BadInput, match=r"policy.lora needs PEFT; pip install 'sightline\[lora\]'"):
        build(recipe_of(*PLAY, f"policy.model={folder('llama')}", "policy.lora.rank=2"))


def test_models_of_other_kinds_are_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder("llama"), tmp_path / "silent")
    (tmp_path / "silent/chat_template.jinja").unlink()
    refused(tmp_path / "silent", "the tokenizer of .*silent' has no chat template; take an instruction-tuned model")
    transformers.T5Config(d_model=8, d_ff=8, num_layers=1).save_pretrained(tmp_path / "t5")
    refused(tmp_path / "t5", r"t5' is an encoder-decoder, which reads a prompt apart .* such as Llama, Qwen3")
    transformers.BertConfig(hidden_size=8, num_hidden_layers=1).save_pretrained(tmp_path / "bert")
    refused(tmp_path / "bert", r"bert' is an encoder \(bert\), which fills gaps .* such as Llama, Qwen3 or SmolLM2")
    document = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps(document | {"model_type": "esm"}))
    refused(tmp_path / "bert", r"bert' is an encoder \(esm\), which fills gaps")
    transformers.OpenAIGPTConfig(n_embd=8, n_layer=1, n_head=1).save_pretrained(tmp_path / "gpt")
    refused(tmp_path / "gpt", r"gpt' is openai-gpt, which keeps no cache .* such as Llama, Qwen3 or SmolLM2")
    transformers.ViTConfig(hidden_size=8, num_hidden_layers=1).save_pretrained(tmp_path / "vit")
    refused(tmp_path / "vit", "cannot be loaded as an image-text-to-text model or a language model")


def test_a_template_that_leaves_words_out_is_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder("llama"), tmp_path / "deaf")
    (tmp_path / "deaf/chat_template.jinja").write_text("{{ 'Once upon a time' }}")
    with pytest.raises(BadInput, match="chat template leaves the user's words out"):
        load_vlm(str(tmp_path / "deaf"), device="cpu")
    (tmp_path / "deaf/chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    with pytest.raises(BadInput, match=r"chat template leaves earlier replies out; take rollouts.window=1"):
        build(recipe_of(*PLAY, f"policy.model={tmp_path / 'deaf'}", "rollouts.window=2"))


def test_a_model_without_an_end_is_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder("llama"), tmp_path / "endless")
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        document = json.loads((tmp_path / "endless" / file).read_text())
        ends = {name: None for name in ("eos_token_id", "eos_token") if name in document}
        (tmp_path / "endless" / file).write_text(json.dumps(document | ends))
    (tmp_path / "endless/chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(BadInput, match=r"no stop token \(eos_token\)"):
        load_vlm(str(tmp_path / "endless"), device="cpu")


def test_adapters_without_a_tokenizer_have_that_of_their_base(
    folder: Callable[[str], Path], fresh: Callable[..., VLM], tmp_path: Path
) -> None:
    vlm = fresh("llama", lora=LoRA(rank=2))
    vlm.model.save_pretrained(tmp_path / "adapters")
    assert not (tmp_path / "adapters/tokenizer_config.json").exists()
    again = load_vlm(str(tmp_path / "adapters"), device="cpu")
    np.testing.assert_array_equal(again.encode(SAID[0]).ids, vlm.encode(SAID[0]).ids)
    assert all(weight.requires_grad for weight in again.model.parameters()), "merged weights learn like any"
    shutil.copytree(folder("llama"), tmp_path / "mute")
    for file in (tmp_path / "mute").glob("tokenizer*"):
        file.unlink()
    refused(tmp_path / "mute", r"it has no tokenizer \(tokenizer.json\)")


def test_a_game_is_evaluated_without_the_parts_that_its_recipe_freezes(folder: Callable[[str], Path]) -> None:
    keys = ("text_only=true", "policy.freeze=[vision]", "episode_steps=1", "replies.thoughts=false")
    _, numbers = roles.evaluate_model("numberline", keys, str(folder("llama")), None, None, 1, 0)
    assert numbers["episodes"] == 1


def test_adapters_whose_base_is_gone_are_refused(
    folder: Callable[[str], Path], fresh: Callable[..., VLM], tmp_path: Path
) -> None:
    fresh("llama", lora=LoRA(rank=2)).save(tmp_path / "adapters")
    file = tmp_path / "adapters/adapter_config.json"
    document = json.loads(file.read_text())
    assert document["base_model_name_or_path"] == str(folder("llama"))
    file.write_text(json.dumps(document | {"base_model_name_or_path": str(tmp_path / "gone")}))
    refused(tmp_path / "adapters", r"holds adapters for the model in '.*gone', which is not there; put it back")
    file.write_text(json.dumps(document | {"base_model_name_or_path": str(tmp_path / "adapters")}))
    refused(tmp_path / "adapters", r"\(adapters for '.*adapters'\) cannot be loaded")


def test_a_gguf_file_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "model.Q4.gguf").write_bytes(b"GGUF")
    for name in (tmp_path, tmp_path / "model.Q4.gguf"):
        refused(name, r"model\.Q4\.gguf' is a GGUF file, .*; make a folder of it by 'python tools/smollm2\.py --gguf")


def test_weights_of_a_server_are_checked_with_words() -> None:
    with_words = probes(with_pictures=False)
    assert len({turn.text for (turn,) in with_words}) == PROBES and not any(turn.pictures for (turn,) in with_words)
    assert all(turn.pictures for (turn,) in probes())


# -- folders made of GGUF files ----------------------------------------------------------------------------------------


def test_what_was_read_from_gguf_is_saved_without_its_quantisation(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder("llama"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder("llama"))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # As the library marks what it has read from GGUF, which it then refuses to save.
    model.config.quantization_config = {"quant_method": "gguf"}
    model.generation_config.eos_token_id = None
    smollm2.without_quantisation(model, tokenizer).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    vlm = load_vlm(str(tmp_path / "plain"), device="cpu")
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in vlm.model.state_dict().items())
    assert vlm.tokens.stop == tokenizer.eos_token_id
