"""A trainable vision-language model of six families: prompts, sampling, scoring, parts that learn, and files."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer
from transformers.generation import utils as generation

from sightline.agents.parsing import read_reply
from sightline.config.agents import LoRA, Replies, TrainablePart
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture
from sightline.models.vlm import model as model_module
from sightline.models.vlm import prompts as prompts_module
from sightline.models.vlm.batches import join_pictures
from sightline.models.vlm.caching import PreallocatedLayer
from sightline.models.vlm.loading import load_pretrained
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.parts import freeze, part_of, without_dropout
from sightline.models.vlm.sampling import draw, sampling_support
from sightline.models.vlm.template import end_of_turn, thinking_of
from sightline.models.vlm.tokens import Tokens
from sightline.models.vlm.types import ChatTurn, Prompt, Sample, TokenSequence, TokenStats, Truncation, TurnSpan
from sightline.replies import Thinking
from tiny_families import CHATML, FAMILIES, SPECIAL, build_family, byte_level, metaspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a family -> folder of a model."""
    root = tmp_path_factory.mktemp("families")

    def made(family: str) -> Path:
        if not (root / family).exists():
            build_family(family, root / family)
        return root / family

    return made


@pytest.fixture(scope="module")
def loaded(folder: Callable[[str], Path]) -> Callable[[str], VLM]:
    """Name of a family -> a model with a value head, shared by tests that do not change it."""
    kept: dict[str, VLM] = {}

    def load(family: str) -> VLM:
        if family not in kept:
            kept[family] = load_vlm(str(folder(family)), value_head=True, device="cpu")
        return kept[family]

    return load


@pytest.fixture
def fresh(folder: Callable[[str], Path]) -> Callable[..., VLM]:
    """`fresh(family, freeze=…, …)`: a model that may be changed."""

    def load(family: str, value_head: bool = True, seed: int = 0, **policy: Any) -> VLM:
        return load_vlm(str(folder(family)), **policy, value_head=value_head, device="cpu", seed=seed)

    return load


def picture(seed: int, height: int = 48, width: int = 64) -> Picture:
    return Picture(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def uniforms(rows: int, places: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, places))


def passage(prompt: Prompt, sample: Sample, **choice: Any) -> TokenSequence:
    start = len(prompt.ids)
    return TokenSequence(prompt, sample.ids, (TurnSpan(start, start + len(sample.ids), **choice),))


SHOWN: tuple[tuple[ChatTurn, ...], ...] = (
    (ChatTurn("Which way do you go?", (picture(0),)),),
    (ChatTurn("You see a game. Which way do you go? Two pictures are shown: ž€.", (picture(1), picture(2, 30, 30))),),
    (ChatTurn("No picture", ()),),
    (ChatTurn("Go", (picture(3, 80, 40),)),),
)


def grow(vlm: VLM, shown: tuple[ChatTurn, ...], turns: int, temperature: float) -> tuple[TokenSequence, np.ndarray]:
    """Some turns of conversation as one passage, with the log-probabilities of sampling."""
    exchanges: list[ChatTurn] = []
    spans, told = [], []
    for turn in range(turns):
        exchanges.append(ChatTurn(f"{shown[0].text} {turn}", shown[0].pictures))
        prompt = vlm.encode(exchanges)
        (sample,) = vlm.generate([prompt], uniforms(1, 6, turn), temperature, 6)
        spans.append(TurnSpan(len(prompt.ids), len(prompt.ids) + len(sample.ids)))
        told.append(sample.logprobs)
        exchanges[-1] = ChatTurn(exchanges[-1].text, exchanges[-1].pictures, tuple(sample.ids.tolist()))
    return TokenSequence(prompt, sample.ids, tuple(spans)), np.concatenate(told)


# -- what was sampled is scored alike ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_ratio_is_one(family: str, temperature: float, loaded: Callable[[str], VLM]) -> None:
    vlm = loaded(family)
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    samples = vlm.generate(prompts, uniforms(4, 9), temperature, 9)
    passages = [passage(prompt, sample) for prompt, sample in zip(prompts, samples, strict=True)]
    told = [sample.logprobs for sample in samples]
    for number, turns in enumerate((2, 3)):
        merged, logprobs = grow(vlm, SHOWN[number], turns, temperature)
        passages.append(merged)
        told.append(logprobs)
    whole = vlm.score(passages, temperature)
    np.testing.assert_allclose(whole.logprobs.detach(), np.concatenate(told), atol=1e-4)
    assert whole.logprobs.dtype == torch.float32 and whole.logprobs.requires_grad and not whole.entropy.requires_grad
    assert len(whole.values) == len(whole.choice_entropy) == 4 + 2 + 3
    in_parts = [vlm.score([passages[place] for place in places], temperature) for places in ([4, 0], [2], [5, 1, 3])]
    expected = [told[place] for place in (4, 0, 2, 5, 1, 3)]
    together = torch.cat([part.logprobs for part in in_parts])
    np.testing.assert_allclose(together.detach(), np.concatenate(expected), atol=1e-4)


def test_scores_are_of_the_model_as_hugging_face_runs_it(loaded: Callable[[str], VLM], folder: Any) -> None:
    """Log-probabilities, entropies and values by plain arithmetic on one passage without any padding."""
    vlm = copy.copy(loaded("llava"))
    vlm.scorer = copy.deepcopy(vlm.scorer)
    assert vlm.scorer.value_head is not None
    torch.nn.init.normal_(vlm.scorer.value_head.value.weight)
    prompt = vlm.encode(SHOWN[0])
    (sample,) = vlm.generate([prompt], uniforms(1, 8), 0.7, 8)
    length, total = len(prompt.ids), len(prompt.ids) + len(sample.ids)
    choices = (5, 9, 9, 30)
    scores = vlm.score([passage(prompt, sample, choice=length + 2, choices=choices), *_two_more(vlm)], 0.7)

    _, plain = load_pretrained(str(folder("llava")), torch.float32)
    ids = torch.from_numpy(np.concatenate([prompt.ids, sample.ids]))[None]
    with torch.no_grad():
        hidden = plain.model(input_ids=ids, pixel_values=prompt.per_picture["pixel_values"]).last_hidden_state[0]
        logits = plain.lm_head(hidden).numpy().astype(np.float64)[length - 1 : total - 1] / 0.7
        value = vlm.scorer.value_head(hidden[length - 1 : length])
    logits[:, vlm.tokens.banned.numpy()] = -np.inf
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    n = len(sample.ids)
    np.testing.assert_allclose(scores.logprobs[:n].detach(), np.log(p[np.arange(n), sample.ids]), atol=1e-4)
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
    np.testing.assert_allclose(scores.entropy[:n], entropy, atol=1e-4)
    among = p[2, [5, 9, 30]] / p[2, [5, 9, 30]].sum()
    assert scores.choice_entropy[0].item() == pytest.approx(-(among * np.log(among)).sum(), abs=1e-4)
    assert scores.choice_entropy[1:].tolist() == [0.0, 0.0]
    assert scores.values[0].item() == pytest.approx(value.item(), abs=1e-5) and abs(value.item()) > 1e-3
    scores.choice_entropy.sum().backward()
    assert vlm.model.lm_head.weight.grad.abs().sum() > 0 and vlm.model.lm_head.weight.grad.isfinite().all()


def _two_more(vlm: VLM) -> list[TokenSequence]:
    prompts = [vlm.encode(SHOWN[1]), vlm.encode(SHOWN[2])]
    first, second = vlm.generate(prompts, uniforms(2, 5), 1.0, 5)
    one_choice = len(prompts[0].ids)
    return [passage(prompts[0], first, choice=one_choice, choices=(7, 7)), passage(prompts[1], second)]


def test_states_before_which_nothing_was_said_have_values(fresh: Callable[..., VLM]) -> None:
    vlm = fresh("llava")
    disturb(vlm)
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    none = np.zeros(0, np.int64)
    ends = [TokenSequence(prompt, none, (TurnSpan(len(prompt.ids), len(prompt.ids)),)) for prompt in prompts]
    scores = vlm.score(ends)
    assert scores.logprobs.shape == scores.entropy.shape == (0,)
    samples = vlm.generate(prompts, uniforms(4, 3), 1.0, 3)
    replied = vlm.score([passage(p, s) for p, s in zip(prompts, samples, strict=True)])
    torch.testing.assert_close(scores.values, replied.values, atol=1e-5, rtol=0)
    assert scores.values.std() > 1e-3


def test_values_begin_at_zero_and_can_be_left_out(loaded: Callable[[str], VLM], fresh: Callable[..., VLM]) -> None:
    vlm = loaded("llava")
    assert vlm.score(_two_more(vlm)).values.tolist() == [0.0, 0.0]
    without = fresh("llava", value_head=False)
    assert without.scorer.value_head is None and without.score(_two_more(vlm)).values.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_matter(family: str, loaded: Callable[[str], VLM]) -> None:
    vlm = loaded(family)
    seen, other = (vlm.encode([ChatTurn("Which way?", (picture(seed),))]) for seed in (0, 1))
    (sample,) = vlm.generate([seen], uniforms(1, 6), 1.0, 6)
    scores = [vlm.score([passage(prompt, sample)]).logprobs.detach() for prompt in (seen, other)]
    assert (scores[0] - scores[1]).abs().max() > 0.01


# -- sampling ----------------------------------------------------------------------------------------------------------


def test_replies_do_not_depend_on_neighbours(loaded: Callable[[str], VLM]) -> None:
    vlm = loaded("llava")
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    numbers = uniforms(4, 12)
    together = vlm.generate(prompts, numbers, 1.0, 12)
    for row, prompt in enumerate(prompts):
        (alone,) = vlm.generate([prompt], numbers[row : row + 1], 1.0, 12)
        assert alone.ids.tolist() == together[row].ids.tolist() and alone.text == together[row].text
    assert vlm.generate([], uniforms(0, 12)) == []


def test_greedy_replies_ignore_habits_of_the_model(loaded: Callable[[str], VLM]) -> None:
    vlm = loaded("llava")
    habits = vlm.model.generation_config
    assert habits.top_k == 3 and habits.repetition_penalty == 1.7
    prompt = vlm.encode(SHOWN[0])
    (sample,) = vlm.generate([prompt], None, 0.5, 10)
    ids = prompt.ids.tolist()
    for token, told in zip(sample.ids.tolist(), sample.logprobs.tolist(), strict=True):
        with torch.no_grad():
            logits = vlm.model(input_ids=torch.tensor([ids]), **prompt.per_picture).logits[0, -1] / 0.5
        logits[vlm.tokens.banned] = -torch.inf
        assert token == logits.argmax().item()
        assert told == pytest.approx(logits.log_softmax(-1)[token].item(), abs=1e-4)
        ids.append(token)
    assert vlm.model.generation_config is habits


def test_a_reply_ends_with_its_stop_or_is_cut_off(fresh: Callable[..., VLM]) -> None:
    vlm = fresh("llava")
    (stop,) = vlm.tokens.stops
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    with torch.no_grad():
        vlm.model.lm_head.weight.mul_(0.2)  # ends early, but not all at the same time
    samples = vlm.generate(prompts * 8, uniforms(32, 300), 1.0, 300)
    lengths = {len(sample.ids) for sample in samples}
    assert len(lengths) > 5
    for sample in samples:
        assert sample.finished == (sample.ids[-1] == stop) and stop not in sample.ids[:-1]
        assert sample.finished or len(sample.ids) == 300
        assert len(sample.ids) == len(sample.logprobs) and sample.ids.dtype == np.int64
        assert SPECIAL[2] not in sample.text
    scored = vlm.score([passage(p, s) for p, s in zip(prompts * 8, samples, strict=True)][:4]).logprobs
    np.testing.assert_allclose(scored.detach(), np.concatenate([s.logprobs for s in samples[:4]]), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_are_never_said(family: str, loaded: Callable[[str], VLM]) -> None:
    vlm = loaded(family)
    tokenizer = vlm._processor.tokenizer
    said = {vlm.tokens.banned[token].item() for token in vlm.tokens.stops}
    assert said == {False}
    for token in {*tokenizer.all_special_ids, *range(len(tokenizer), len(vlm.tokens.banned))} - vlm.tokens.stops:
        assert vlm.tokens.banned[token], tokenizer.convert_ids_to_tokens(token)
    assert (~vlm.tokens.banned).sum() > 250
    prompt = vlm.encode(SHOWN[0])
    samples = vlm.generate([prompt] * 32, uniforms(32, 20), 50.0, 20)  # nearly uniform
    assert not vlm.tokens.banned[np.concatenate([sample.ids for sample in samples])].any()
    no_tokens = range(len(tokenizer), len(vlm.tokens.banned))
    for token in (tokenizer.convert_tokens_to_ids("<|im_start|>"), *no_tokens):
        forged = Sample(np.array([token]), np.zeros(1, np.float32), "", False)
        assert vlm.score([passage(prompt, forged)]).logprobs.item() == -np.inf


def test_tokens_that_are_banned_can_be_choices(loaded: Callable[[str], VLM]) -> None:
    vlm = loaded("llava")
    prompt = vlm.encode(SHOWN[0])
    (sample,) = vlm.generate([prompt], None, 1.0, 2)
    banned = tuple(np.flatnonzero(vlm.tokens.banned)[:2].tolist())
    entropy = vlm.score([passage(prompt, sample, choice=len(prompt.ids), choices=banned)]).choice_entropy
    assert 0 < entropy.item() < np.log(2)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 2**20 - 1),
)
def test_draw_inverts_the_cumulative_probability(logits: list[float], uniform: float, mask: int) -> None:
    allowed = [place for place in range(len(logits)) if not mask >> place & 1] or [0]
    row = torch.full((1, len(logits)), -torch.inf)
    row[0, allowed] = torch.tensor(logits)[allowed]
    chosen = int(draw(row, torch.tensor([uniform], dtype=torch.float64)))
    assert chosen in allowed
    p = np.exp(row[0].double().numpy() - max(row[0].tolist()))
    p /= p.sum()
    assert p[:chosen].sum() <= uniform + 1e-9 and (uniform <= p[: chosen + 1].sum() + 1e-9)


def test_draw_survives_the_largest_number() -> None:
    row = torch.tensor([[0.0, 1.0, -torch.inf, 2.0, -torch.inf, -torch.inf]]).expand(2, -1)
    assert draw(row, torch.tensor([np.nextafter(1.0, 0), 0.0], dtype=torch.float64)).tolist() == [3, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_is_read_once_for_all_its_replies(family: str, loaded: Callable[[str], VLM]) -> None:
    """With pictures of several sizes, several, and none; in any order; and what was read before leaves nothing."""
    vlm, of = loaded(family), [0, 1, 1, 3, 0, 2, 3, 3, 1]
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    apart = vlm.generate([prompts[i] for i in of], uniforms(9, 12), 0.8, 12)
    read: list[int] = []
    hook = vlm.model.get_input_embeddings().register_forward_hook(lambda module, inputs, out: read.append(out.numel()))
    together = vlm.generate(prompts, uniforms(9, 12), 0.8, 12, of=of)
    shared = sum(read)
    again = vlm.generate([prompts[i] for i in of], uniforms(9, 12), 0.8, 12)
    hook.remove()
    assert shared < 0.8 * (sum(read) - shared)
    for one, other, third in zip(apart, together, again, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        np.testing.assert_array_equal(one.ids, third.ids)


@pytest.mark.parametrize("way", ["shared", "apart", "late"])
@pytest.mark.parametrize("family", FAMILIES)
def test_replies_that_have_ended_are_left_behind(
    family: str, way: str, loaded: Callable[[str], VLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies of very different lengths are written in several passes, to the same effect as in one: with prompts that
    are shared or not, and where the library asks a token late whether it may stop, as on Apple's GPUs."""
    shared = way == "shared"
    vlm, of = loaded(family), [0, 1, 1, 3, 0, 2, 3, 3, 1, 0, 2, 2]
    ordinary = (~vlm.tokens.banned.numpy()).nonzero()[0]
    ends = frozenset(np.random.default_rng(0).permutation(ordinary)[: len(ordinary) // 16].tolist())
    monkeypatch.setattr(vlm.tokens, "stops", ends | vlm.tokens.stops)  # one of sixteen
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    chosen = {"of": of} if shared else {}
    asked = prompts if shared else [prompts[i] for i in of]

    def written(worth: int) -> tuple[list[Sample], int]:
        monkeypatch.setattr("sightline.models.vlm.sampling.WORTH_A_PASS", worth)
        read: list[int] = []
        hook = vlm.model.get_input_embeddings().register_forward_hook(lambda _, __, out: read.append(len(out)))
        further: dict[str, Any] = {"truncation": Truncation(top_k=200), "alternatives": 3, **chosen}
        samples = vlm.generate(asked, uniforms(12, 100), 0.9, 100, **further)
        hook.remove()
        return samples, sum(read)

    at_once, all_rows = written(1000)
    if way == "late":
        if not hasattr(generation, "DeferredStopCheck"):
            pytest.skip("Transformers 4 never checks late")
        check: Any = generation.DeferredStopCheck
        monkeypatch.setattr(check, "is_supported", staticmethod(lambda *_, **__: True))
        monkeypatch.setattr(torch, "Event", lambda **_: Mock())  # which a CPU does not need
    in_passes, rows = written(2)
    lengths = [len(one.ids) for one in in_passes]
    assert min(lengths) <= 8 and max(lengths) >= 12, lengths
    assert rows < 0.75 * all_rows
    for one, other in zip(at_once, in_passes, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        assert one.finished == other.finished and len(one.support) == len(one.alternatives) == len(one.ids)
        assert all(map(np.array_equal, one.support, other.support))
        assert [[token for token, _ in place] for place in one.alternatives] == [
            [token for token, _ in place] for place in other.alternatives
        ]


def test_a_cache_with_room_holds_what_the_usual_one_does() -> None:
    """In steps of one and of several tokens, beyond its room, and after rows were chosen or tokens taken away."""
    chance, usual, roomy = torch.Generator().manual_seed(0), DynamicLayer(), PreallocatedLayer()
    for step in range(120):
        rows = 3 if step < 60 else 2
        new = [torch.randn((rows, 2, 5 if step % 20 == 0 else 1, 4), generator=chance) for _ in range(2)]
        for one, other in zip(usual.update(*new), roomy.update(*new), strict=True):
            assert torch.equal(one, other)
        if step == 59:
            for layer in (usual, roomy):
                layer.reorder_cache(torch.tensor([2, 0]))  # type: ignore[arg-type]
        if step == 90:
            for layer in (usual, roomy):
                layer.crop(-7)
    assert usual.get_seq_length() == roomy.get_seq_length() == 120 + 6 * 4 - 7
    assert roomy.keys is not None and usual.keys is not None and torch.equal(roomy.keys, usual.keys)


# -- a part of the vocabulary ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_replies_to_shared_prompts_are_scored_as_each_after_its_own(
    family: str, lora: LoRA | None, fresh: Callable[..., VLM]
) -> None:
    """Log-probabilities, entropies, values and gradients, for prompts of different lengths with and without pictures;
    models with windows of attention, in which a gap before the reply counts, read each prompt."""
    vlm = fresh(family, lora=lora)
    assert vlm.shares_prompts == (family != "gemma3")
    assert vlm.scorer.value_head is not None
    values = vlm.scorer.value_head.value.weight
    values.data.copy_(torch.linspace(-1, 1, values.numel()).reshape(values.shape))
    prompts = [vlm.encode(turns) for turns in SHOWN]
    of = [0, 1, 2, 0, 3, 1, 0, 2, 1, 0]
    samples = vlm.generate(prompts, uniforms(len(of), 9), 1.0, 9, of=of)
    cut = [Sample(one.ids[: 1 + i % 9], one.logprobs, one.text, False) for i, one in enumerate(samples)]
    assert len({len(one.ids) for one in cut}) > 4
    sequences = [passage(prompts[which], one) for which, one in zip(of, cut, strict=True)]
    found = []
    for shares in (True, False):
        vlm.shares_prompts = vlm.shares_prompts and shares
        batch = vlm.collate(sequences)
        assert len(batch.of) == (len(of) if vlm.shares_prompts else 0)
        assert len(batch.inputs["input_ids"]) == (len(prompts) if vlm.shares_prompts else len(of))
        scores = vlm.score(sequences, temperature=0.7)
        vlm.scorer.zero_grad(set_to_none=True)
        (scores.logprobs.sum() + scores.values.square().sum()).backward()
        learned = [one.grad for one in vlm.scorer.parameters() if one.grad is not None]
        found.append([scores.logprobs, scores.entropy, scores.values, torch.cat([one.flatten() for one in learned])])
    *scores_found, gradients = zip(*found, strict=True)
    for together, apart in scores_found:
        torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=1e-5 * float(gradients[1].abs().max()), rtol=1e-3)


def test_prompts_are_shared_only_where_it_is_worth_it(loaded: Callable[[str], VLM]) -> None:
    vlm = loaded("llava")
    prompts = [vlm.encode(turns) for turns in SHOWN]
    samples = vlm.generate(prompts, uniforms(4, 5), 1.0, 5)
    once, twice = [passage(*pair) for pair in zip(prompts, samples, strict=True)], passage(prompts[0], samples[1])
    assert len(vlm.collate([*once[:2], twice]).of) == 3
    assert len(vlm.collate([*once, twice]).of) == 0, "four prompts of five are different"
    grown, _ = grow(vlm, SHOWN[0], 2, 1.0)
    assert len(vlm.collate([grown] * 4).of) == 0, "replies within a sequence are not read apart from it"
    same = vlm.encode(SHOWN[0])
    assert same is not prompts[0] and same.digest == prompts[0].digest
    assert len({prompt.digest for prompt in prompts}) == 4
    other = vlm.encode((ChatTurn(SHOWN[0][0].text, (picture(9),)),))
    assert np.array_equal(other.ids, same.ids) and other.digest != same.digest, "pictures are shown as well"


def test_truncations_by_hand() -> None:
    """Probabilities .5, .25, .125, .0625, .0625 and a banned token."""
    row = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625, 0.0]]).log()
    for truncation, kept in (
        (Truncation(), [0, 1, 2, 3, 4]),
        (Truncation(top_k=2), [0, 1]),
        (Truncation(top_k=4), [0, 1, 2, 3, 4]),  # equal ones are kept together
        (Truncation(top_k=99), [0, 1, 2, 3, 4]),
        (Truncation(top_p=0.5), [0]),
        (Truncation(top_p=0.51), [0, 1]),
        (Truncation(top_p=1e-9), [0]),
        (Truncation(min_p=0.25), [0, 1, 2]),
        (Truncation(min_p=0.3), [0, 1]),
        (Truncation(top_k=2, top_p=0.6), [0]),  # 2/3 of what top_k has left is enough
    ):
        assert sampling_support(row, truncation)[0].nonzero().flatten().tolist() == kept, truncation
    sampling_support(
        torch.full((1, 6), torch.nan), Truncation(top_k=2, top_p=0.6, min_p=0.1)
    )  # left to whoever looks next


@pytest.mark.parametrize("truncation", [Truncation(top_k=3), Truncation(top_p=0.6), Truncation(min_p=0.2)], ids=str)
def test_what_was_sampled_from_a_part_is_scored_over_that_part(
    truncation: Truncation, loaded: Callable[[str], VLM]
) -> None:
    vlm = loaded("llava")
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN[:2]]
    samples = vlm.generate(prompts, uniforms(2, 9), 1.3, 9, truncation=truncation)
    passages = [passage(p, s, support=s.support) for p, s in zip(prompts, samples, strict=True)]
    whole = vlm.score([*passages, passage(prompts[0], samples[0], support=samples[0].support)], 1.3)
    told = np.concatenate([one.logprobs for one in (*samples, samples[0])])
    np.testing.assert_allclose(whole.logprobs.detach(), told, atol=1e-4)
    for sample in samples:
        assert len(sample.support) == len(sample.ids)
        assert all(
            token in kept and len(kept) < len(vlm.tokens.banned)
            for token, kept in zip(sample.ids, sample.support, strict=True)
        )
    # over the whole vocabulary the same tokens are less probable
    over_all = vlm.score([passage(p, s) for p, s in zip(prompts, samples, strict=True)], 1.3)
    assert (over_all.logprobs.detach().numpy() <= told[: -len(samples[0].ids)] + 1e-5).all()
    assert float(over_all.logprobs.detach().sum()) < told[: -len(samples[0].ids)].sum() - 1
    # without one, nothing is kept apart
    assert all(not sample.support for sample in vlm.generate(prompts, uniforms(2, 9), 1.3, 9))


# -- prompts -----------------------------------------------------------------------------------------------------------


def chat(vlm: VLM, exchanges: Sequence[ChatTurn]) -> dict[str, torch.Tensor]:
    """What Hugging Face itself makes of a conversation."""
    from PIL import Image

    messages: list[dict[str, Any]] = []
    for exchange in exchanges:
        images = [{"type": "image", "image": Image.fromarray(shown.pixels)} for shown in exchange.pictures]
        messages.append({"role": "user", "content": [*images, {"type": "text", "text": exchange.text}]})
        if exchange.reply:
            said = vlm.decode(exchange.reply)
            messages.append({"role": "assistant", "content": [{"type": "text", "text": said}]})
    arguments = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return dict(vlm._processor.apply_chat_template(messages, **arguments))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_those_of_the_chat_template(family: str, loaded: Callable[[str], VLM]) -> None:
    vlm = loaded(family)
    (stop,) = {vlm._processor.tokenizer.eos_token_id}
    words = vlm._processor.tokenizer('the "action": "+"', add_special_tokens=False)["input_ids"]
    exchanges = [ChatTurn("Which way?", (picture(0), picture(1, 40, 90)), (*words, stop)), *SHOWN[2], *SHOWN[3]]
    exchanges[1] = ChatTurn(exchanges[1].text, (), (*words, stop))
    for count in (1, 3):
        shown = [*exchanges[: count - 1], ChatTurn(exchanges[count - 1].text, exchanges[count - 1].pictures)]
        ours, theirs = vlm.encode(shown), chat(vlm, shown)
        assert ours.ids.tolist() == theirs.pop("input_ids")[0].tolist()
        theirs.pop("attention_mask")
        assert {*ours.per_token, *ours.per_picture} == set(theirs)
        for name, tensor in ours.per_token.items():
            assert tensor.tolist() == theirs[name][0].tolist()
        for name, tensor in ours.per_picture.items():
            expected = theirs[name]
            assert torch.equal(tensor, expected[0] if family == "smolvlm" else expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_pictures_are_shown_in_the_order_of_their_parts(family: str, loaded: Callable[[str], VLM]) -> None:
    vlm = loaded(family)
    one, two = picture(0), picture(1)
    mixed = vlm.encode([ChatTurn.of_parts(("first:", one, "second:", two, "which?"))])
    words = vlm._processor.tokenizer.decode(mixed.ids)
    places = [words.index(word) for word in ("first:", "second:", "which?")]
    assert places == sorted(places) and places[1] - places[0] > len("first:") + 5, "a picture is between them"
    plain = vlm.encode([ChatTurn("which?", (one, two))])
    assert vlm.encode([ChatTurn.of_parts((one, two, "which?"))]).ids.tolist() == plain.ids.tolist()


def test_the_most_probable_tokens_are_told_and_replies_can_be_stopped(loaded: Callable[[str], VLM]) -> None:
    vlm = loaded("llava")
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN[:2]]
    for told in vlm.generate(prompts, None, 0.5, 6, alternatives=3):
        assert len(told.alternatives) == len(told.ids)
        for token, best in zip(told.ids.tolist(), told.alternatives, strict=True):
            assert best[0][0] == token and [p for _, p in best] == sorted((p for _, p in best), reverse=True)
    at_one = vlm.generate(prompts, None, 1.0, 6, alternatives=1)
    for told in at_one:  # greedy, so the first of them is what was said
        np.testing.assert_allclose([best[0][1] for best in told.alternatives], told.logprobs, atol=1e-5)
    assert [len(told.ids) for told in vlm.generate(prompts, uniforms(2, 50), 1.0, 50, stop=lambda: True)] == [1, 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_begins_with_the_one_before_and_its_reply(family: str, loaded: Callable[[str], VLM]) -> None:
    vlm = loaded(family)
    stop = vlm._processor.tokenizer.eos_token_id
    free = np.flatnonzero(~vlm.tokens.banned)
    rng = np.random.default_rng(1)
    cut_off, ended = (tuple(rng.choice(free[free != stop], 9).tolist()) for _ in range(2))
    exchanges = [ChatTurn("a", (picture(0),), cut_off), ChatTurn("b", (picture(1),), (*ended, stop))]
    exchanges += [ChatTurn("c", (picture(2),), ended[:1]), ChatTurn("d", (picture(3),))]
    for count in range(1, 4):
        last = exchanges[count - 1]
        before = vlm.encode([*exchanges[: count - 1], ChatTurn(last.text, last.pictures)])
        begun = [*before.ids.tolist(), *last.reply]
        assert vlm.encode(exchanges[: count + 1]).ids.tolist()[: len(begun)] == begun
    ids = vlm.encode(exchanges).ids.tolist()
    assert all(ids[place : place + 2] != [stop, stop] for place in range(len(ids)))


@pytest.mark.parametrize("template", ["trims", "ends with a space"])
def test_a_prompt_begins_with_the_one_before_whatever_the_template(template: str, fresh: Callable[..., VLM]) -> None:
    """LLaVA 1.5 asks with `ASSISTANT:`, but writes `ASSISTANT: ` before what was replied."""
    vlm = fresh("llava")
    mark = " " if template == "ends with a space" else ""
    vlm._processor.chat_template = (
        "{% for m in messages %}{{ m['role'].upper() + ': ' }}{% for part in m['content'] %}"
        "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
        "{{ '<|im_end|>' if m['role'] == 'assistant' else '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:" + mark + "{% endif %}"
    )
    first = vlm.encode([ChatTurn("a", (picture(0),))])
    second = vlm.encode([ChatTurn("a", (picture(0),), (300, 301, 2)), ChatTurn("b", (picture(1),))])
    begun = [*first.ids.tolist(), 300, 301, 2]
    assert second.ids.tolist()[: len(begun)] == begun
    rest = vlm._processor.tokenizer.decode(second.ids[len(begun) :])
    assert rest == f"USER: {'<image>' * 16}b\nASSISTANT:{mark}"


def test_words_that_look_like_a_mark_are_words(loaded: Callable[[str], VLM]) -> None:
    vlm = loaded("llava")
    mark = prompts_module.MARK.format(0, 0)
    prompt = vlm.encode([ChatTurn(f"x {mark}", (), (300, 2)), ChatTurn(f"y {mark} {mark}", ())])
    text = vlm._processor.tokenizer.decode(prompt.ids)
    assert text.count(mark) == 3 and text.count("user") == 2


def test_prompts_are_remembered_within_bounds(loaded: Callable[[str], VLM], monkeypatch: pytest.MonkeyPatch) -> None:
    processor, stops = loaded("llava")._processor, loaded("llava").tokens.stops
    bytes_of_one = 3 * 32 * 32 * 4
    encoder = prompts_module.PromptEncoder(processor, stops, cache_bytes=3 * (bytes_of_one + 500))
    made: list[str] = []
    real = encoder._build_segment
    monkeypatch.setattr(
        encoder, "_build_segment", lambda text, *rest, **more: made.append(text) or real(text, *rest, **more)
    )
    for seed in (0, 0, 1, 0, 1):
        encoder.encode([ChatTurn("a", (picture(seed),))])
    assert len(made) == 2
    encoder.encode([ChatTurn("b", (picture(0),))])
    assert len(made) == 3
    for seed in range(2, 20):
        encoder.encode([ChatTurn("a", (picture(seed),))])
    assert len(encoder._cache) <= 3 and encoder._free_bytes >= 0
    encoder.encode([ChatTurn("a", (picture(19),))])
    assert len(made) == 21
    encoder.encode([ChatTurn("a", (picture(0),))])
    assert len(made) == 22


def test_pictures_of_different_sizes_are_filled_up() -> None:
    small, large = torch.ones(2, 3, 4, 5), 2 * torch.ones(1, 3, 6, 4)
    joined = join_pictures([small, large])
    assert joined.shape == (3, 3, 6, 5)
    assert joined[:2, :, :4].eq(1).all() and joined[:2, :, 4:].eq(0).all() and joined[2, :, :, 4].eq(0).all()


def test_templates_that_fail_say_so(fresh: Callable[..., VLM]) -> None:
    vlm = fresh("llava")
    vlm._processor.chat_template = "{{ raise_exception('no turns') }}"
    with pytest.raises(BadInput, match="cannot write 1 turns of words and pictures: no turns"):
        vlm.encode([ChatTurn("a", ())])
    vlm._processor.chat_template = "{{ messages[-1]['content'][-1]['text'] }}"
    with pytest.raises(BadInput, match="leaves earlier replies out"):
        vlm.encode([ChatTurn("a", (), (5, 2)), ChatTurn("b", ())])
    if transformers.__version__.startswith("4."):
        return  # its processors do not count pictures
    with pytest.raises(
        BadInput, match=r"cannot read 1 pictures.*holds .<image>., which stands for a picture: leave it out"
    ):
        vlm.encode([ChatTurn("<image><image>", (picture(0),))])


def test_tokenizers_that_number_their_texts(folder: Callable[[str], Path], tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(folder("llava"), place)
    config = place / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_input_names": names}))
    vlm = load_vlm(str(place), device="cpu")
    (sample,) = vlm.generate([vlm.encode([ChatTurn("a", (picture(0),))])], None, max_tokens=2)
    assert 1 <= len(sample.ids) <= 2


# -- tokens and text ---------------------------------------------------------------------------------------------------

TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte level": byte_level,
    "metaspace": metaspace,
    "metaspace, first": lambda: metaspace(first="first"),
}


PLACEHOLDER = 200
"""An id that is said to stand for pictures: no letter in any of these."""


class _Stub:
    """As much of a processor and of a model as `Tokens` asks for."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.generation_config = type("", (), {"eos_token_id": [tokenizer.eos_token_id, 0]})
        self.config = type("", (), {})()
        self.config.image_token_id = PLACEHOLDER
        self._head = torch.nn.Linear(1, len(tokenizer) + 5)

    def get_output_embeddings(self) -> Any:
        return self._head


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokens(request: pytest.FixtureRequest) -> Tokens:
    stub = _Stub(TOKENIZERS[request.param]())
    return Tokens(stub, stub)


def check_spans(tokens: Tokens, ids: list[int]) -> None:
    text, spans = tokens.decode(ids), tokens.offsets(ids)
    assert len(spans) == len(ids)
    covered, place = set(), 0
    for token, (start, end) in zip(ids, spans, strict=True):
        assert 0 <= start <= end <= len(text) and start >= place - 1
        covered |= set(range(start, end))
        place = max(place, end)
        if token in tokens.stops or (token < len(tokens.banned) and tokens.banned[token]):
            assert start == end
    assert covered == set(range(len(text)))


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30), extra=st.lists(st.integers(0, 299), max_size=8), data=st.data())
def test_spans_cover_the_text(tokens: Tokens, text: str, extra: list[int], data: st.DataObject) -> None:
    ids = tokens._tokenizer(text, add_special_tokens=False)["input_ids"]
    check_spans(tokens, ids)
    place = data.draw(st.integers(0, len(ids)))
    check_spans(tokens, [*ids[:place], *extra, *ids[place:]])  # also bytes that are no character, and special tokens


@pytest.mark.parametrize("text", ['{"action": "+"}', " two  spaces ", "žluťoučký € 🙂🙂 end", "", "\n\n", "🙂"])
def test_spans_hold_the_text_of_their_tokens(tokens: Tokens, text: str) -> None:
    stop = min(tokens.stops)
    ids = [*tokens._tokenizer(text, add_special_tokens=False)["input_ids"], stop]
    shown, spans = tokens.decode(ids), tokens.offsets(ids)
    drops_a_space = tokens._plain(tokens._tokenizer(" a", add_special_tokens=False)["input_ids"]) == "a"
    assert shown == (text.removeprefix(" ") if drops_a_space else text) and spans[-1] == (len(shown), len(shown))
    check_spans(tokens, ids)
    encoding = tokens._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if text.isascii() and not drops_a_space:  # the tokenizer's own are of what it read, and say nothing of replies
        assert spans[:-1] == [tuple(pair) for pair in encoding["offset_mapping"]]


def test_the_bytes_of_a_character_share_its_span() -> None:
    stub = _Stub(byte_level())
    tokens = Tokens(stub, stub)
    ids = tokens._tokenizer("a€b", add_special_tokens=False)["input_ids"]
    assert len(ids) == 5 and tokens.offsets(ids) == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert tokens.offsets(ids[:3]) == [(0, 1), (1, 2), (1, 2)] and tokens.decode(ids[:3]) == "a\ufffd"
    assert tokens.offsets([ids[0], 1, ids[4], 2]) == [(0, 1), (1, 1), (1, 2), (2, 2)]
    assert (
        tokens.banned[1] and not tokens.banned[[0, 2]].any() and tokens.banned[PLACEHOLDER] and tokens.banned[-5:].all()
    )


def test_texts_are_encoded_as_they_are(loaded: Callable[[str], VLM]) -> None:
    for family in ("llava", "gemma3", "smolvlm"):
        vlm = loaded(family)
        ids = vlm.tokens.encode('{"action": "+"}')
        assert vlm.decode(ids) == '{"action": "+"}' and not vlm.tokens.banned[ids].any()
        assert vlm.tokens.stop == vlm._processor.tokenizer.eos_token_id


def test_the_usual_stop_is_that_of_the_template(folder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder("llava"), tmp_path / "model")
    path = tmp_path / "model/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": SPECIAL[0]}))
    vlm = load_vlm(str(tmp_path / "model"), device="cpu")
    assert vlm._processor.tokenizer.eos_token_id == 0 and vlm.tokens.stops == {0, 2} and vlm.tokens.stop == 2


def test_prompts_that_are_longer_than_the_model_reads_are_refused(
    loaded: Callable[[str], VLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    vlm = loaded("llava")
    prompt = vlm.encode([ChatTurn("Which way do you go?", (picture(0),))])
    monkeypatch.setattr(vlm, "_positions", len(prompt.ids) + 1)
    vlm.generate([prompt], None, max_tokens=1)
    monkeypatch.setattr(vlm, "_positions", len(prompt.ids))
    with pytest.raises(BadInput, match=f"a prompt has {len(prompt.ids)} tokens, pictures included"):
        vlm.generate([prompt], None, max_tokens=1)


def test_a_prompt_that_the_processor_would_cut_is_refused(folder: Callable[[str], Path], monkeypatch: Any) -> None:
    vlm = load_vlm(str(folder("llava")), device="cpu")
    whole = vlm._processor.__class__.__call__

    def cut(self: Any, *args: Any, **options: Any) -> Any:
        made = whole(self, *args, **options)
        return {name: tensor[:, :12] if tensor.ndim == 2 else tensor for name, tensor in made.items()}

    monkeypatch.setattr(vlm._processor.__class__, "__call__", cut)
    with pytest.raises(BadInput, match=r"cuts prompts at 12 tokens: this one would lose its end, '.*to the right"):
        vlm.encode([ChatTurn("Which way do you go, to the left or to the right?", ())])


@pytest.mark.parametrize("special", [True, False])
def test_the_templates_own_end_ends_a_reply_whatever_the_configurations_say(
    folder: Callable[[str], Path], tmp_path: Path, special: bool
) -> None:
    """After fine-tuning both often name another token: the template's was banned then, or was read as text."""
    shutil.copytree(folder("llava"), tmp_path / "model")
    for file, change in (
        ("tokenizer_config.json", {"eos_token": SPECIAL[0]}),
        ("generation_config.json", {"eos_token_id": 0}),
    ):
        path = tmp_path / "model" / file
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    path = tmp_path / "model/tokenizer.json"
    document = json.loads(path.read_text())
    for token in document["added_tokens"]:
        token["special"] = token["special"] and (special or token["content"] != SPECIAL[2])
    path.write_text(json.dumps(document))
    vlm = load_vlm(str(tmp_path / "model"), device="cpu")
    assert vlm.tokens.stops == {0, 2} and vlm.tokens.stop == 2 and not vlm.tokens.banned[2]
    assert vlm.decode([*vlm.tokens.encode("go"), 2]) == "go"


REASONING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.reasoning_content %}<muse>\n{{ m.reasoning_content }}\n</muse>\n\n{% endif %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<muse>\n{% endif %}"
)
HIDING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'].split('</muse>')[-1] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHUNKS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'thinking' %}[MUSE]{{ part['thinking'] }}[/MUSE]"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "thinking"),
    [
        (REASONING, Thinking(("<muse>",), ("</muse>",), True)),
        (HIDING, Thinking((), ("</muse>",))),
        (CHUNKS, Thinking(("[MUSE]",), ("[/MUSE]",))),
        (CHATML.replace("IMAGE", "<image>"), Thinking()),
        (
            CHATML.replace("IMAGE", "<image>").replace("assistant\n{% endif", "assistant\n<think>\n{% endif"),
            Thinking(opened_by_prompt=True),
        ),
        (
            CHATML.replace("IMAGE", "<image>").replace("assistant\n{% endif", "assistant\n<think>\n\n</think>{% endif"),
            Thinking(),
        ),
    ],
    ids=["reasoning", "hiding", "chunks", "none", "begun", "begun and ended"],
)
def test_marks_of_thoughts_are_those_of_the_template(
    loaded: Callable[[str], VLM], monkeypatch: pytest.MonkeyPatch, template: str, thinking: Thinking
) -> None:
    processor = loaded("llava")._processor
    monkeypatch.setattr(processor, "chat_template", template)
    assert thinking_of(processor) == thinking and end_of_turn(processor) == 2


def test_marks_of_thoughts_are_written_and_read_though_they_are_special(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """They were banned and left out of texts: who was taught to think could not, or its thoughts were read."""
    shutil.copytree(folder("llava"), tmp_path / "model")
    processor, model = load_pretrained(str(tmp_path / "model"))
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "[THINK]", "[/THINK]"]})
    model.resize_token_embeddings(len(processor.tokenizer))
    tokens = Tokens(processor, model)
    begin, end = processor.tokenizer.convert_tokens_to_ids(["[THINK]", "[/THINK]"])
    assert not tokens.banned[[begin, end]].any() and tokens.banned[processor.tokenizer.convert_tokens_to_ids("<image>")]
    text = '[THINK]{"action": "-"}[/THINK]{"action": "+"}'
    assert tokens.decode([*tokens.encode(text), tokens.stop]) == text
    assert read_reply(text, Replies(), ("-", "+")).action == "+"


def test_a_model_that_never_ends_is_refused() -> None:
    stub = _Stub(byte_level(eos_token=None))
    stub.generation_config = type("", (), {"eos_token_id": None})
    with pytest.raises(BadInput, match="no stop token"):
        Tokens(stub, stub)


# -- parts that learn --------------------------------------------------------------------------------------------------


def learn(vlm: VLM, temperature: float = 1.0) -> TokenStats:
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN[:2]]
    samples = vlm.generate(prompts, uniforms(2, 5), temperature, 5)
    scores = vlm.score([passage(p, s) for p, s in zip(prompts, samples, strict=True)], temperature)
    (scores.logprobs.sum() + (scores.values - 1).square().sum()).backward()
    return scores


@pytest.mark.parametrize("part", ["vision", "projector", "language"])
@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_parts_do_not_learn_and_others_do(family: str, part: TrainablePart, fresh: Callable[..., VLM]) -> None:
    vlm = fresh(family, freeze=(part,))
    learn(vlm)
    moved: dict[TrainablePart, float] = {"vision": 0.0, "projector": 0.0, "language": 0.0}
    for name, parameter in vlm.model.named_parameters():
        if parameter.grad is not None:
            moved[part_of(name)] += float(parameter.grad.abs().sum())
    assert {name for name, amount in moved.items() if amount == 0} == {part}
    counts = {name: sum(part_of(p) == name for p, _ in vlm.model.named_parameters()) for name in moved}
    assert counts["language"] > counts["projector"] > 0 and counts["vision"] > 10


def test_unknown_structures_cannot_be_frozen() -> None:
    with pytest.raises(BadInput, match=r"cannot tell which part of this model is its vision; its modules are 0, 1$"):
        freeze(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)), ("vision",))


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_where_they_belong(family: str, fresh: Callable[..., VLM]) -> None:
    vlm = fresh(family, lora=LoRA(rank=2), freeze=("vision",))
    learn(vlm)
    learning = [name for name, parameter in vlm.scorer.named_parameters() if parameter.requires_grad]
    adapters = [name for name in learning if "lora_" in name]
    assert {name for name in learning if name not in adapters} == {
        f"value_head.{name}" for name, _ in vlm.scorer.value_head.named_parameters()
    }
    assert not any(part_of(name) == "vision" or "lm_head" in name for name in adapters)
    layers = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    language = {name.split(".lora_")[0] for name in adapters if part_of(name) == "language"}
    assert {name.rpartition(".")[2] for name in language} == layers and len(language) == 2 * len(layers)
    gradients = [p.grad.abs().sum() for n, p in vlm.model.named_parameters() if n in learning or "lora_B" in n]
    assert all(float(amount) > 0 for amount in gradients)


def test_adapters_on_named_layers_and_all_parts(fresh: Callable[..., VLM]) -> None:
    vlm = fresh("llava", lora=LoRA(rank=2, targets=("q_proj",)))
    names = {name.split(".lora_")[0] for name, _ in vlm.model.named_parameters() if "lora_" in name}
    assert len(names) == 2 + 3 and all(name.endswith("q_proj") for name in names)
    with pytest.raises(BadInput, match=r"no linear layer is called 'q_prj'; did you mean 'q_proj'"):
        fresh("llava", lora=LoRA(targets=("q_prj",)))
    with pytest.raises(BadInput, match="all parts with linear layers are frozen"):
        fresh("llava", lora=LoRA(), freeze=("vision", "projector", "language"))


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointed_gradients_are_the_same(family: str, lora: LoRA | None, fresh: Callable[..., VLM]) -> None:
    plain, checkpointed = fresh(family, lora=lora), fresh(family, lora=lora, gradient_checkpointing=True)
    assert checkpointed.scorer.training
    expected, made = learn(plain), learn(checkpointed)
    assert checkpointed.scorer.training  # sampling has put it back
    np.testing.assert_allclose(made.logprobs.detach(), expected.logprobs.detach(), atol=1e-5)
    for (name, one), (_, other) in zip(
        plain.scorer.named_parameters(), checkpointed.scorer.named_parameters(), strict=True
    ):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_dropout_is_switched_off(folder: Callable[[str], Path], tmp_path: Path, fresh: Callable[..., VLM]) -> None:
    shutil.copytree(folder("llava"), tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["text_config"]["attention_dropout"] = config["vision_config"]["attention_dropout"] = 0.5
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    vlm = load_vlm(str(tmp_path / "model"), gradient_checkpointing=True, device="cpu")
    prompt = vlm.encode(SHOWN[0])
    (sample,) = vlm.generate([prompt], uniforms(1, 5), 1.0, 5)
    scored = vlm.score([passage(prompt, sample)]).logprobs.detach()
    np.testing.assert_allclose(scored, sample.logprobs, atol=1e-4)
    layers = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Sequential(torch.nn.Dropout1d(0.5)))
    without_dropout(layers)
    assert torch.equal(layers.train()(torch.ones(2, 9, 9)), torch.ones(2, 9, 9))


# -- the model before RL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)])
def test_the_reference_stays_what_it_was(lora: LoRA | None, fresh: Callable[..., VLM]) -> None:
    vlm = fresh("llava", lora=lora)
    prompt = vlm.encode(SHOWN[1])
    (sample,) = vlm.generate([prompt], uniforms(1, 8), 0.7, 8)
    said = [passage(prompt, sample)]
    if lora is None:
        with pytest.raises(RunFailed, match="keep_reference"):
            vlm.reference_logprobs(said)
        vlm.keep_reference()
    before = vlm.score(said, 0.7).logprobs.detach()
    optimiser = torch.optim.SGD([p for p in vlm.scorer.parameters() if p.requires_grad], lr=0.05)
    for _ in range(2):
        optimiser.zero_grad()
        learn(vlm)
        optimiser.step()
    after = vlm.score(said, 0.7).logprobs
    reference = vlm.reference_logprobs(said, 0.7)
    assert not reference.requires_grad and (after - before).abs().max() > 1e-2
    if lora is None:  # exchanged without a copy, for which there may be no memory
        places = [parameter.data_ptr() for parameter in vlm.model.parameters()]
        with vlm._as_reference():
            assert not {parameter.data_ptr() for parameter in vlm.model.parameters()} & set(places)
        assert [parameter.data_ptr() for parameter in vlm.model.parameters()] == places
    torch.testing.assert_close(reference, before, atol=1e-5, rtol=0)
    assert torch.equal(vlm.score(said, 0.7).logprobs, after)
    if lora is not None:  # after a warm start it is no longer the one without adapters
        vlm.keep_reference()
        optimiser.step()
        torch.testing.assert_close(vlm.reference_logprobs(said, 0.7), after.detach(), atol=1e-5, rtol=0)
        assert (vlm.score(said, 0.7).logprobs - after).abs().max() > 1e-4


# -- files -------------------------------------------------------------------------------------------------------------


def disturb(vlm: VLM) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in vlm.scorer.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def weights(vlm: VLM) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in vlm.scorer.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_weights_come_back_bit_for_bit(family: str, fresh: Callable[..., VLM], tmp_path: Path) -> None:
    vlm = fresh(family)
    disturb(vlm)
    vlm.save(tmp_path / "saved")
    assert not [path for path in (tmp_path / "saved").iterdir() if path.is_dir()]
    again = fresh(family, seed=3)
    again.load_weights(tmp_path / "saved")
    mine, theirs = weights(vlm), weights(again)
    assert set(mine) == set(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)
    _, plain = load_pretrained(str(tmp_path / "saved"))
    state = plain.state_dict()
    assert all(torch.equal(value, mine[f"model.{name}"]) for name, value in state.items())
    assert plain.generation_config.top_k == 3  # its habits are still its own


def test_saved_adapters_come_back_bit_for_bit(
    fresh: Callable[..., VLM], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    vlm = fresh("llava", lora=LoRA(rank=2))
    disturb(vlm)
    vlm.save(tmp_path / "saved")
    again = fresh("llava", lora=LoRA(rank=2), seed=3)
    again.load_weights(tmp_path / "saved")
    mine, theirs = weights(vlm), weights(again)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    size = sum(path.stat().st_size for path in (tmp_path / "saved").glob("*.safetensors"))
    assert size < (folder("llava") / "model.safetensors").stat().st_size

    vlm.merge_and_save(tmp_path / "merged")
    prompt = vlm.encode(SHOWN[1])
    (sample,) = vlm.generate([prompt], uniforms(1, 8), 1.0, 8)
    assert all(torch.equal(mine[name], value) for name, value in weights(vlm).items())
    for saved in ("merged", "saved"):  # adapters alone can be loaded by name as well
        other = load_vlm(str(tmp_path / saved), device="cpu")
        scored = other.score([passage(prompt, sample)]).logprobs.detach()
        np.testing.assert_allclose(scored, sample.logprobs, atol=1e-3)


def test_weights_that_do_not_fit_are_refused(fresh: Callable[..., VLM], tmp_path: Path) -> None:
    fresh("llava", value_head=False).save(tmp_path / "no value")
    with pytest.raises(BadInput, match="holds no value head"):
        fresh("llava").load_weights(tmp_path / "no value")
    with pytest.raises(BadInput, match="holds no adapters"):
        fresh("llava", lora=LoRA()).load_weights(tmp_path / "no value")
    fresh("llava", lora=LoRA(rank=4)).save(tmp_path / "rank 4")
    with pytest.raises(BadInput, match=r"adapters .* do not fit"):
        fresh("llava", lora=LoRA(rank=2)).load_weights(tmp_path / "rank 4")
    with pytest.raises(BadInput, match="do not fit this model"):
        fresh("qwen3_vl").load_weights(tmp_path / "no value")
    with pytest.raises(BadInput, match="there is no folder"):
        fresh("llava").load_weights(tmp_path / "nowhere")


def test_first_weights_come_from_the_seed(fresh: Callable[..., VLM]) -> None:
    state = torch.get_rng_state()
    one, same, other = (weights(fresh("llava", seed=seed, lora=LoRA(rank=2))) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    differing = {name for name in one if not torch.equal(one[name], other[name])}
    assert differing and all("lora_A" in name or name.startswith("value_head.hidden") for name in differing)


def test_strange_settings_of_sampling_can_be_saved(folder: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(folder("llava"), tmp_path / "model")
    path = tmp_path / "model/generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": False, "temperature": 0.9}))
    load_vlm(str(tmp_path / "model"), device="cpu").save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/generation_config.json").read_text())["temperature"] == 0.9


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_bfloat16_arithmetic_keeps_weights_and_logits_in_float32(
    fresh: Callable[..., VLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = fresh("llava")
    monkeypatch.setattr(model_module, "_dtypes", lambda *_: (torch.float32, torch.bfloat16))
    vlm = fresh("llava")
    prompts = [vlm.encode(exchanges) for exchanges in SHOWN]
    samples = vlm.generate(prompts, uniforms(4, 6), 1.0, 6)
    said = [passage(p, s) for p, s in zip(prompts, samples, strict=True)]
    with torch.no_grad():
        scores, expected = vlm.score(said).logprobs, exact.score(said).logprobs
    difference = (scores - expected).abs()
    assert 1e-4 < difference.max() < 0.3
    seen: list[torch.dtype] = []
    vlm.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    learn(vlm)
    assert set(seen) == {torch.float32} and not torch.is_autocast_enabled("cpu")
    assert vlm.model.lm_head.weight.grad.dtype == torch.float32


def test_weights_of_bfloat16(fresh: Callable[..., VLM]) -> None:
    vlm = fresh("llava", dtype="bfloat16", lora=LoRA(rank=2))
    scores = learn(vlm)
    assert scores.logprobs.dtype == scores.values.dtype == torch.float32
    head = vlm.model.get_output_embeddings().weight
    rest = {name: parameter for name, parameter in vlm.model.named_parameters() if parameter is not head}
    kinds = {"lora" in name: parameter.dtype for name, parameter in rest.items()}
    assert kinds == {True: torch.float32, False: torch.bfloat16} and head.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_adapters_are_in_float32(family: str, fresh: Callable[..., VLM]) -> None:
    vlm = fresh(family, dtype="bfloat16", lora=LoRA(rank=2))
    seen: list[torch.Tensor] = []
    vlm.model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: seen.append(output))
    learn(vlm)
    assert not vlm.exact and {logits.dtype for logits in seen} == {torch.float32}
    assert any((logits != logits.bfloat16()).any() for logits in seen), "not rounded before either"


def test_types_follow_the_device_and_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = model_module._dtypes
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    half, whole = torch.bfloat16, torch.float32
    monkeypatch.setattr(model_module, "fast_dtype", lambda device: half)
    assert chosen("auto", cpu, False, False) == (whole, None)
    assert chosen("auto", gpu, False, False) == (whole, half)
    assert chosen("auto", cpu, True, False) == (whole, None)
    assert chosen("auto", gpu, True, False) == (half, half)
    assert chosen("auto", gpu, True, True) == (half, half)
    assert chosen("float32", gpu, False, False) == (whole, None)
    assert chosen("bfloat16", gpu, False, False) == (half, half)
    assert chosen("bfloat16", cpu, True, False) == (half, half)


# -- names and errors --------------------------------------------------------------------------------------------------


def test_four_bits_ask_for_what_they_need(folder: Callable[[str], Path]) -> None:
    model = str(folder("llava"))
    with pytest.raises(BadInput, match=r"cannot be trained; add adapters with policy\.lora"):
        load_vlm(model, four_bit=True, device="cpu")
    with pytest.raises(BadInput, match="needs a GPU"):
        load_vlm(model, four_bit=True, lora=LoRA(), device="cpu")


def test_models_that_cannot_be_loaded(folder: Callable[[str], Path], tmp_path: Path) -> None:
    def refused(name: Path | str, match: str) -> None:
        with pytest.raises(BadInput, match=match) as told:
            load_pretrained(str(name))
        assert "\n" not in str(told.value)

    refused(tmp_path / "nowhere", "there is no folder")
    for typo in ("./typo", "../typo", "~/typo", "runs/sft/checkpoints/typo"):
        refused(typo, "^there is no folder '.*typo'")
    refused("nobody/nothing", "cannot be loaded as an image-text-to-text model or a language model")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "cannot be loaded")
    shutil.copytree(folder("llava"), tmp_path / "silent")
    (tmp_path / "silent/chat_template.jinja").unlink()
    refused(tmp_path / "silent", "no chat template")
    (tmp_path / "silent/config.json").write_text('{"model_type": "llava", "text_config": {"hidden_size": 7}}')
    refused(tmp_path / "silent", "cannot be loaded")
    (tmp_path / "silent/config.json").write_text('{"model_type": "mllama"}')
    refused(
        tmp_path / "silent", r"is Llama 3\.2 Vision, which reads pictures by cross-attention .*; take another family"
    )
    (tmp_path / "silent/config.json").write_text('{"model_type": "florence2"}')
    refused(tmp_path / "silent", r"is an encoder-decoder, which reads pictures by cross-attention .*; take another")


@pytest.mark.parametrize(
    ("said", "package"),
    [
        (
            "Qwen2VLVideoProcessor requires the Torchvision library but it was not found in your environment.",
            "torchvision",
        ),
        (
            "Package `num2words` is required to run SmolVLM processor. Install it with `pip install num2words`.",
            "num2words",
        ),
        ("No module named 'timm'", "timm"),
    ],
)
def test_missing_packages_are_named(
    said: str, package: str, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError(said)

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", missing)
    with pytest.raises(BadInput, match=f"needs a package that is not installed: pip install {package}"):
        load_pretrained(str(folder("llava")))
