"""A vision-language model of a few seconds: it sees which of two pictures is brighter, and says `first` or `second`.

A LLaVA of 0.2 million parameters (SigLIP tower, Qwen2 text model) with a byte-level BPE tokenizer that is trained on
our own prompts, saved as Hugging Face saves any model: whatever serves such models serves this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIDE = 16
"""Height and width of its pictures."""
GOAL = ("a bright picture",)
CHAT_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|reply|>{% endif %}"
)


def grey(brightness: float) -> np.ndarray:
    """uint8[16, 16, 3] of one brightness, 0 to 255."""
    return np.full((SIDE, SIDE, 3), round(brightness), np.uint8)


def build_tiny_vlm(folder: Path, parts: list[str], updates: int = 150, seed: int = 0) -> None:
    """Make, teach and save the model.

    Args:
        parts: the texts of the prompt that it is taught to answer, in order; the pictures come after all of them but
            the last, as in a comparison of one frame each.
        updates: steps of Adam on 64 random pairs each.
    """
    import torch

    torch.manual_seed(seed)
    processor = _processor(parts)
    model = _model(processor)
    prompt = "".join(f"{text}<image>" for text in parts[:-1]) + parts[-1] + "<|reply|>"
    said = processor(text=[prompt], images=[grey(0), grey(0)], return_tensors="pt")["input_ids"][0]
    answers = torch.tensor([processor.tokenizer(word)["input_ids"][0] for word in ("first", "second")])
    end = torch.full((64, 1), processor.tokenizer.eos_token_id)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, updates)
    for _ in range(updates):
        brightness = torch.rand(64, 2)
        right = answers[(brightness[:, 1] > brightness[:, 0]).long()][:, None]
        pixels = (brightness * 2 - 1).reshape(128, 1, 1, 1).expand(128, 3, SIDE, SIDE)
        inputs = torch.cat([said.expand(64, -1), right], 1)
        logits = model(input_ids=inputs, pixel_values=pixels, attention_mask=torch.ones_like(inputs)).logits[:, -2:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.cat([right, end], 1).flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)


def _processor(parts: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlavaProcessor, PreTrainedTokenizerFast, SiglipImageProcessor

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<image>", "<|reply|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*parts, "first", "second"] * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<image>", "<|reply|>"]})
    return LlavaProcessor(
        image_processor=SiglipImageProcessor(size={"height": SIDE, "width": SIDE}),
        tokenizer=fast,
        patch_size=8,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        num_additional_image_tokens=0,
    )


def _model(processor: Any) -> Any:
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, SiglipVisionConfig

    tokenizer = processor.tokenizer
    sizes = {"num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128}
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(**sizes, num_hidden_layers=1, image_size=SIDE, patch_size=8),
        text_config=Qwen2Config(
            **sizes, num_hidden_layers=2, num_key_value_heads=4, vocab_size=len(tokenizer), max_position_embeddings=4096
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():  # with the usual 0.02 a net this narrow stays blind
        for name, weight in model.named_parameters():
            if "embed" in name and "patch" not in name:
                torch.nn.init.normal_(weight, std=0.5)
            elif weight.ndim > 1:
                torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
