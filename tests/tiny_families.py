"""Tiny random models of six families that see, and of two that only read, saved as Hugging Face saves any: what is not
family-specific must do for all.

Weights are drawn so that the models see and prefer (with the usual deviation of 0.02 they would be blind and bored).
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

FAMILIES = ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "smolvlm", "gemma3")
TEXTS = (
    "You see a game. Which way do you go?",
    'Reply with {"seen": "a red dot at 3", "thoughts": "the target is to the right", "action": "+"}',
    "the quick brown fox jumps over 0 1 2 3 4 5 6 7 8 9 lazy dogs",
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS_ONLY = ("llama", "qwen3")
"""Families of language models."""
WORDS_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou play.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}THINK{% endif %}"
)
"""As those of SmolLM2 and Qwen3: contents are texts; a system message stands there in any case; Qwen3 thinks unless it
is told not to."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def build_family(name: str, folder: Path, seed: int = 0) -> None:
    """Make a model of a family and save it with its processor."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    processor, model = {
        "llava": _llava,
        "llava_next": _llava_next,
        "qwen2_5_vl": _qwen2_5_vl,
        "qwen3_vl": _qwen3_vl,
        "smolvlm": _smolvlm,
        "gemma3": _gemma3,
        "llama": _llama,
        "qwen3": _qwen3,
    }[name]()
    _awake(model)
    tokenizer = processor if name in WORDS_ONLY else processor.tokenizer
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    # habits that must not have any effect
    model.generation_config.do_sample = True
    model.generation_config.top_k, model.generation_config.temperature = 3, 0.3
    model.generation_config.repetition_penalty = 1.7
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)


def byte_level(*special: str, kind: str = "PreTrainedTokenizerFast", **names: Any) -> Any:
    """A byte-level BPE tokenizer (GPT-2, Llama 3, Qwen).

    Args:
        kind: name of its class; Qwen's processors of Transformers 4 take no other than Qwen's.
    """
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=[*SPECIAL, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return getattr(transformers, kind)(
        tokenizer_object=tokenizer,
        **({"pad_token": SPECIAL[0], "eos_token": SPECIAL[2], "additional_special_tokens": [*special]} | names),
    )


def metaspace(*special: str, first: str = "never", **names: Any) -> Any:
    """A tokenizer like SentencePiece's (Llama 2, Gemma): spaces are letters, unknown characters are bytes.

    Args:
        first: whether a space is put before the text (`first`) and dropped when decoding, as Llama 2 does.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=first, split=False)
    strip = [decoders.Strip(" ", 1, 0)] if first == "first" else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=450,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *SPECIAL, *special, *every_byte],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    import json

    document = json.loads(tokenizer.to_str())
    plain = set(every_byte)
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in plain]
    settings = {"pad_token": "<pad>", "eos_token": "<|im_end|>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(document)),
        additional_special_tokens=[*SPECIAL, *special],
        **(settings | names),
    )


def _awake(model: Any) -> None:
    import torch

    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if tied and weight is model.get_input_embeddings().weight:
                torch.nn.init.normal_(weight, std=0.15)
            elif "embed" in name and "patch" not in name and "position" not in name:
                torch.nn.init.normal_(weight, std=0.5)
            elif weight.ndim > 1:
                torch.nn.init.normal_(weight, std=1.5 * weight[0].numel() ** -0.5)


def _llava() -> tuple[Any, Any]:
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = byte_level("<image>", bos_token="<|endoftext|>")
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template="{{ bos_token }}" + CHATML.replace("IMAGE", "<image>"),
        num_additional_image_tokens=1,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**TEXT | {"num_hidden_layers": 3}, image_size=32, patch_size=8),
        text_config=LlamaConfig(**TEXT, num_key_value_heads=2, vocab_size=len(tokenizer) + 3),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
    )
    return processor, LlavaForConditionalGeneration(config)


def _llava_next() -> tuple[Any, Any]:
    """LLaVA 1.6 with Mistral: pictures in tiles, as RL4VLM's model reads them, and Mistral's own template."""
    from transformers import (
        CLIPVisionConfig,
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaNextImageProcessor,
        LlavaNextProcessor,
        MistralConfig,
    )

    tokenizer = metaspace("<image>", eos_token="<eos>")
    tiles = [[32, 64], [64, 32], [64, 64]]
    template = (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {% endif %}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}"
        "{% endif %}{% endfor %}{% if message['role'] == 'user' %} [/INST]{% else %}{{ eos_token }}{% endif %}"
        "{% endfor %}"
    )
    processor = LlavaNextProcessor(
        image_processor=LlavaNextImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=tiles
        ),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=template,
        num_additional_image_tokens=1,
    )
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**TEXT | {"num_hidden_layers": 3}, image_size=32, patch_size=8),
        text_config=MistralConfig(**TEXT, num_key_value_heads=2, vocab_size=len(tokenizer) + 3, sliding_window=None),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=tiles,
        vision_feature_layer=-2,
    )
    return processor, LlavaNextForConditionalGeneration(config)


def _qwen_processor(image_processor: Any, processor_class: Any, video_processor: Any) -> Any:
    marks = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
    kind = "Qwen2TokenizerFast" if _transformers_4() else "PreTrainedTokenizerFast"
    tokenizer = byte_level(*marks, kind=kind)
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    return processor_class(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=video_processor,
        chat_template=CHATML.replace("IMAGE", picture),
    )


def _qwen_ids(tokenizer: Any) -> dict[str, int]:
    return {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{mark}|>")
        for name, mark in (
            *(("image", "image_pad"), ("video", "video_pad")),
            *(("vision_start", "vision_start"), ("vision_end", "vision_end")),
        )
    }


def _rotations(**parameters: Any) -> dict[str, Any]:
    """Settings of rotary position embeddings, as the version of the library names them."""
    whole = {"rope_type": "default", **parameters}
    if _transformers_4():
        return {"rope_scaling": whole, "rope_theta": 10000.0}
    return {"rope_parameters": whole | {"rope_theta": 10000.0}}


def _transformers_4() -> bool:
    return version("transformers").startswith("4.")


def _qwen2_5_vl() -> tuple[Any, Any]:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    sizes = {"patch_size": 8, "merge_size": 2, "min_pixels": 16 * 16, "max_pixels": 64 * 64}
    processor = _qwen_processor(Qwen2VLImageProcessor(**sizes), Qwen2_5_VLProcessor, Qwen2VLVideoProcessor(**sizes))
    tokenizer = processor.tokenizer
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "out_hidden_size": 32,
            "patch_size": 8,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        text_config={
            **TEXT,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            **IDS,
            **_rotations(mrope_section=[1, 1, 2]),
        },
        **_qwen_ids(tokenizer),
    )
    return processor, Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vl() -> tuple[Any, Any]:
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    return qwen3_vl(
        {"patch_size": 8, "merge_size": 2, "min_pixels": 16 * 16, "max_pixels": 64 * 64},
        vision | {"patch_size": 8, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        TEXT | {"num_key_value_heads": 2, "head_dim": 8},
        [2, 1, 1],
    )


def qwen3_vl(
    pictures: dict[str, int], vision: dict[str, Any], text: dict[str, Any], sections: list[int]
) -> tuple[Any, Any]:
    """Processor and random model of Qwen3-VL's kind.

    Args:
        pictures: settings of the image processor.
        vision, text: of the towers; without a `vocab_size` the text tower has a row for each token.
        sections: parts of a head's dimensions that are rotated by time, height and width.
    """
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    videos = Qwen3VLVideoProcessor(patch_size=pictures["patch_size"])
    processor = _qwen_processor(Qwen2VLImageProcessor(**pictures), Qwen3VLProcessor, videos)
    tokenizer = processor.tokenizer
    rotations = _rotations(mrope_section=sections, mrope_interleaved=True)
    config = Qwen3VLConfig(
        vision_config=vision,
        text_config={"vocab_size": len(tokenizer), **text, **IDS, **rotations},
        tie_word_embeddings=True,
        **_qwen_ids(tokenizer),
    )
    return processor, Qwen3VLForConditionalGeneration(config)


def _smolvlm() -> tuple[Any, Any]:
    from transformers import (
        LlamaConfig,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)]
    tokenizer = byte_level(
        *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tiles),
        eos_token="<end_of_utterance>",
    )
    tokenizer.image_token = "<image>"
    template = CHATML.replace("IMAGE", "<image>").replace("<|im_end|>", "<end_of_utterance>")
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_image_splitting=True
        ),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(size={"longest_edge": 32}, max_image_size={"longest_edge": 32}),
        image_seq_len=4,
        chat_template=template,
    )
    config = SmolVLMConfig(
        vision_config={**TEXT, "image_size": 32, "patch_size": 8},
        text_config=LlamaConfig(**TEXT, num_key_value_heads=2, vocab_size=len(tokenizer)).to_dict(),
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    return processor, SmolVLMForConditionalGeneration(config)


def _gemma3() -> tuple[Any, Any]:
    from transformers import (
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        Gemma3ImageProcessor,
        Gemma3Processor,
        Gemma3TextConfig,
        SiglipVisionConfig,
    )

    tokenizer = metaspace(
        *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        extra_special_tokens={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
    )
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template="{{ bos_token }}" + CHATML.replace("IMAGE", "<start_of_image>"),
    )
    config = Gemma3Config(
        text_config=Gemma3TextConfig(
            **TEXT,
            num_key_value_heads=2,
            head_dim=8,
            vocab_size=len(tokenizer),
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        vision_config=SiglipVisionConfig(**TEXT, image_size=32, patch_size=8),
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    return processor, Gemma3ForConditionalGeneration(config)


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level(chat_template=WORDS_TEMPLATE.replace("THINK", ""))
    config = LlamaConfig(**TEXT, **IDS, num_key_value_heads=2, vocab_size=len(tokenizer), tie_word_embeddings=True)
    return tokenizer, LlamaForCausalLM(config)


def _qwen3() -> tuple[Any, Any]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    unthinking = "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    tokenizer = byte_level("<think>", "</think>", chat_template=WORDS_TEMPLATE.replace("THINK", unthinking))
    # Rows beyond the tokenizer's, as those of Qwen are padded.
    config = Qwen3Config(**TEXT, **IDS, num_key_value_heads=2, head_dim=8, vocab_size=len(tokenizer) + 5)
    return tokenizer, Qwen3ForCausalLM(config)
