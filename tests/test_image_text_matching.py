"""The image-text matching reward: small models of both families, whose answers are computed again by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import TINY
from sightline.errors import BadInput, RunFailed
from sightline.rewards.base import Clip
from sightline.rewards.image_text_matching import ImageTextMatchingReward
from sightline.runs.files import parse_json

GOAL = "a straight rope"
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["a", "the", "rope", "cloth", "is", "straight", "folded", "on", "table"],
]
SIZE, QUERIES = 32, 4


def processor(folder: Path, kind: Any, **options: Any) -> Any:
    from transformers import BertTokenizer, BlipImageProcessor

    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=16)
    return kind(BlipImageProcessor(size={"height": SIZE, "width": SIZE}), tokenizer, **options)


def write_blip2(folder: Path) -> None:
    """A random BLIP-2 as `Salesforce/blip2-itm-vit-g` is one: the processor puts places for the picture into the text,
    and the model takes them out."""
    from transformers import Blip2Config, Blip2ForImageTextRetrieval, Blip2Processor

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    made = processor(folder, Blip2Processor, num_query_tokens=QUERIES)
    config = Blip2Config(
        vision_config={**small, "image_size": SIZE, "patch_size": 8},
        qformer_config={
            **small,
            "encoder_hidden_size": 16,
            "vocab_size": len(made.tokenizer),
            "use_qformer_text_input": True,
            "max_position_embeddings": 32,
        },
        num_query_tokens=QUERIES,
        image_text_hidden_size=8,
        image_token_index=made.tokenizer.convert_tokens_to_ids("<image>"),
    )
    write(Blip2ForImageTextRetrieval(config), made, folder)


def write_blip(folder: Path) -> None:
    from transformers import BlipConfig, BlipForImageTextRetrieval, BlipProcessor

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BlipConfig(
        text_config={**small, "vocab_size": len(WORDS), "encoder_hidden_size": 16, "max_position_embeddings": 32},
        vision_config={**small, "image_size": SIZE, "patch_size": 8},
        projection_dim=8,
        image_text_hidden_size=8,
    )
    write(BlipForImageTextRetrieval(config), processor(folder, BlipProcessor), folder)


def write(model: Any, made: Any, folder: Path) -> None:
    with torch.no_grad():  # fresh weights tell no two pictures apart
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    made.save_pretrained(folder)


@pytest.fixture(params=[write_blip2, write_blip], ids=["blip-2", "blip"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    request.param(tmp_path)
    return tmp_path


def by_hand(folder: Path, frame: np.ndarray, sentence: str) -> float:
    """Probability of one frame, from the model's own parts."""
    from transformers import AutoProcessor, Blip2ForImageTextRetrieval, BlipForImageTextRetrieval

    blip2 = parse_json((folder / "config.json").read_bytes(), "config")["model_type"] == "blip-2"
    made = AutoProcessor.from_pretrained(folder)
    pixels = made.image_processor(images=[frame], return_tensors="pt")["pixel_values"]
    said = made.tokenizer([sentence], return_tensors="pt")
    ids, seen = said["input_ids"], said["attention_mask"]
    with torch.no_grad():
        if blip2:
            model = Blip2ForImageTextRetrieval.from_pretrained(folder).eval()
            picture = model.vision_model(pixels).last_hidden_state
            asked = model.embeddings(input_ids=ids, query_embeds=model.query_tokens)
            mask = torch.cat([torch.ones(1, QUERIES, dtype=torch.long), seen], dim=1)
            read = model.qformer(
                query_embeds=asked, query_length=QUERIES, attention_mask=mask, encoder_hidden_states=picture
            ).last_hidden_state
            no, yes = model.itm_head(read[:, :QUERIES]).mean(dim=1)[0].tolist()
        else:
            model = BlipForImageTextRetrieval.from_pretrained(folder).eval()
            picture = model.vision_model(pixels).last_hidden_state
            read = model.text_encoder(ids, attention_mask=seen, encoder_hidden_states=picture).last_hidden_state
            no, yes = model.itm_head(read[:, 0])[0].tolist()
    return float(1 / (1 + np.exp(no - yes)))


def test_rewards_are_the_models_probabilities(folder: Path, frames_of: Callable[..., np.ndarray]) -> None:
    frames = frames_of(5, 40, 56)
    reward = ImageTextMatchingReward(GOAL, str(folder), batch_size=2, device="cpu")
    assert reward.image_size == SIZE
    rewards = reward(frames)
    assert rewards.dtype == np.float32
    np.testing.assert_allclose(rewards, [by_hand(folder, frame, GOAL) for frame in frames], atol=1e-5)
    assert np.ptp(rewards) > 1e-3, "the pictures are told apart"
    both = ImageTextMatchingReward((GOAL, "the cloth is folded"), str(folder), device="cpu")(frames)
    other = ImageTextMatchingReward("the cloth is folded", str(folder), device="cpu")(frames)
    np.testing.assert_allclose(both, (rewards + other) / 2, atol=1e-6)
    assert not np.allclose(rewards, other, atol=1e-4), "and so are sentences"


def test_two_devices_reward_as_one_does(folder: Path, frames_of: Callable[..., np.ndarray]) -> None:
    one = ImageTextMatchingReward((GOAL, "the cloth is folded"), str(folder), batch_size=2, device="cpu")
    two = ImageTextMatchingReward((GOAL, "the cloth is folded"), str(folder), batch_size=2, device="cpu:0,cpu:1")
    for count in (0, 1, 7):
        np.testing.assert_array_equal(two(frames_of(count)), one(frames_of(count)), strict=True)


def test_frames_of_torch_are_rewarded_as_arrays(folder: Path, frames_of: Callable[..., np.ndarray]) -> None:
    reward = ImageTextMatchingReward(GOAL, str(folder), batch_size=2, device="cpu")
    assert reward.reads_tensors
    frames = frames_of(5)
    clip = Clip(np.ones((1, 5), bool), frames=torch.from_numpy(frames)[None])
    np.testing.assert_array_equal(reward(clip)[0], reward(frames))


def test_a_run_learns_from_it(folder: Path, train_run: Callable[..., Path]) -> None:
    reward = "reward={kind: image_text_matching, model: " + str(folder) + "}"
    run = train_run("cartpole", reward, *TINY, "goal=a straight rope")
    assert (run / "result.json").is_file()


def test_models_without_a_matching_head(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no folder"):
        ImageTextMatchingReward(GOAL, "/nowhere/at/all")
    with pytest.raises(BadInput, match="there is no folder"):
        ImageTextMatchingReward(GOAL, "nowhere/at/all")
    torch.manual_seed(0)
    write_blip(tmp_path)
    from safetensors.torch import load_file, save_file

    weights = tmp_path / "model.safetensors"
    save_file(
        {k: v for k, v in load_file(weights).items() if not k.startswith("itm_head")},
        weights,
        metadata={"format": "pt"},
    )
    with pytest.raises(BadInput, match="no image-text matching head"):
        ImageTextMatchingReward(GOAL, str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInput, match="no image-text matching head"):
        ImageTextMatchingReward(GOAL, str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunFailed, match="cannot be read"):
        ImageTextMatchingReward(GOAL, str(tmp_path))
    with pytest.raises(BadInput, match="goal"):
        ImageTextMatchingReward((), str(tmp_path))


def test_a_sentence_that_the_model_would_cut_off_is_refused(folder: Path) -> None:
    """The tokenizer reads 16 tokens, two of them special: what comes after was never seen, and nobody was told."""
    fits = " ".join(["rope"] * 14)
    ImageTextMatchingReward(fits, str(folder), device="cpu")
    with pytest.raises(BadInput, match=r"reads 16 tokens of a sentence: .* never see the end, 'folded'"):
        ImageTextMatchingReward(f"{fits} folded", str(folder), device="cpu")
