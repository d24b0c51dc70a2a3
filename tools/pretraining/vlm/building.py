"""A small vision-language model of stock classes: LLaVA with a SigLIP tower and a Llama, and its processor."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

import torch

IMAGE_SIZE, PATCH, WORDS = 96, 16, 1000
PAD, IMAGE, REPLY, END = "<pad>", "<image>", "<|reply|>", "<|end|>"
MATCH = 3.0
"""Scale of the scores of equals in `with_a_matching_layer`."""
NEAR = 7
"""Of the 16 angles by which a head's numbers are turned with the distance (RoPE), those that turn fast: they tell what
lies within a few tokens."""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|reply|>{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|reply|>{% endif %}"
)


def build_processor(texts: Iterable[str], phrases: Iterable[str], patch: int = PATCH, words: int = WORDS) -> Any:
    """A processor whose tokenizer reads any text byte by byte at worst, and known phrases at once.

    Args:
        texts: from which the byte-level BPE (Sennrich et al. 2016) learns its words; numbers and signs stay apart.
        phrases: texts that are one token each wherever they occur, so that prompts of our games are a few tokens long.
        patch: pixels of a side of the patches that pictures are cut into.
        words: tokens of the BPE, phrases not counted.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlavaProcessor, PreTrainedTokenizerFast, SiglipImageProcessor

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[A-Za-z]+|\d+|\s+|[^\sA-Za-z\d]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=[PAD, IMAGE, REPLY, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(list(phrases))
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END
    )
    fast.add_special_tokens({"additional_special_tokens": [IMAGE, REPLY]})
    processor: Any = LlavaProcessor
    return processor(
        image_processor=SiglipImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}),
        tokenizer=fast,
        patch_size=patch,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        num_additional_image_tokens=0,
    )


def build_model(processor: Any, width: int = 128, vision_layers: int = 3, text_layers: int = 3) -> Any:
    """A model with fresh weights.

    Weights are drawn wider than transformers does: with its 0.02 a net this narrow never learns to use the picture.
    """
    from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    tokenizer = processor.tokenizer
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=vision_layers,
            num_attention_heads=4,
            image_size=IMAGE_SIZE,
            patch_size=processor.patch_size,
            vision_use_head=False,
        ),
        text_config=LlamaConfig(
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=text_layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=len(tokenizer),
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model: Any = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_tokens" in name or "position_embedding" in name:
                torch.nn.init.normal_(weight, std=0.5)
            elif weight.ndim > 1:
                torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def with_a_matching_layer(model: Any, at: int = 0) -> Any:
    """The same model with one more layer of the language model, which looks for equals.

    Small language models find it hard to learn to look for what a word names: queries and keys of fresh weights have
    nothing to do with each other. Here both begin as the normalised input itself, a slice of it for each head. So a
    word attends to tokens like it: the same word elsewhere, and tokens of pictures that look like it. Not to itself,
    which is most like it: numbers that turn fast with the distance count against, and cancel out but nearby. Outputs
    begin at zero, so the model says at first what it said before.

    Before all others it compares bare words and cells of pictures; after some layers words have taken up what stands
    around them, so that one word in two lists need not look the same.

    Args:
        at: how many layers come before it.
    """
    from transformers import LlavaForConditionalGeneration

    config = copy.deepcopy(model.config)
    config.text_config.num_hidden_layers += 1
    deeper: Any = LlavaForConditionalGeneration(config)
    weights = {
        re.sub(
            r"(?<=language_model\.layers\.)\d+", lambda found: str(int(found[0]) + (int(found[0]) >= at)), name
        ): tensor
        for name, tensor in model.state_dict().items()
    }
    deeper.load_state_dict(weights, strict=False)
    fresh = deeper.model.language_model.layers[at]
    half = torch.ones(config.text_config.head_dim // 2)
    half[:NEAR] = -1
    against = torch.cat([half, half]).repeat(config.text_config.num_attention_heads)
    with torch.no_grad():
        fresh.self_attn.q_proj.weight.copy_(torch.diag(MATCH * against))
        fresh.self_attn.k_proj.weight.copy_(torch.eye(len(against)))
        for drawn in (fresh.self_attn.v_proj, fresh.mlp.gate_proj, fresh.mlp.up_proj):
            torch.nn.init.normal_(drawn.weight, std=drawn.in_features**-0.5)
        for silent in (fresh.self_attn.o_proj, fresh.mlp.down_proj):
            silent.weight.zero_()
    deeper.generation_config = model.generation_config
    return deeper
