"""Parts of a model (vision tower, projector, language model): freezing, LoRA adapters, dropout, quantisation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from sightline.config.agents import LoRA, TrainablePart
from sightline.errors import BadInput, nearest

PROJECTORS = {
    *("multi_modal_projector", "mm_projector", "projector", "connector", "merger", "deepstack_merger_list"),
    *("aligner", "image_newline", "embed_vision"),
}
VISION = {"vision_tower", "visual", "vision_model", "vision_encoder", "vision_backbone", "image_encoder"}


def part_of(name: str) -> TrainablePart:
    """Part to which a parameter belongs, by the names of the modules that contain it."""
    around = set(name.split("."))
    # first, since many models keep their projector inside of the vision tower
    if around & PROJECTORS:
        return "projector"
    return "vision" if around & VISION else "language"


def freeze(model: nn.Module, parts: Collection[TrainablePart]) -> None:
    """Freeze the parameters of some parts.

    Raises:
        BadInput: the model has no such part, or its modules have names that are not listed here.
    """
    # Freezing nothing in silence would train what the user wanted to keep.
    found = {part_of(name) for name, _ in model.named_parameters()}
    for part in parts:
        if part not in found:
            around = {".".join(name.split(".")[:-1][:2]) for name, _ in model.named_parameters()}
            known = ", ".join(sorted(around))
            raise BadInput(
                f"policy.freeze: cannot tell which part of this model is its {part}; its modules are {known}"
            )
    for name, parameter in model.named_parameters():
        if part_of(name) in parts:
            parameter.requires_grad_(False)


def with_adapters(model: Any, lora: LoRA, frozen: Collection[TrainablePart]) -> Any:
    """Add LoRA adapters (PEFT) to linear layers and freeze everything else.

    Raises:
        BadInput: PEFT is not installed, or there are no such layers.
    """
    try:
        import peft
    except ImportError as error:
        raise BadInput("policy.lora needs PEFT; pip install 'sightline[lora]'") from error
    library: Any = peft
    names = _linear_layers(model, lora, frozen)
    settings = library.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", target_modules=names
    )
    return library.get_peft_model(model, settings)


def without_adapters(model: Any) -> Any:
    """The Hugging Face model itself, where PEFT has wrapped it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _linear_layers(model: Any, lora: LoRA, frozen: Collection[TrainablePart]) -> list[str]:
    """Full names of the linear layers that get adapters.

    Full, because PEFT matches by the end of a name, and layers of the vision tower and of the language model often
    share it.
    """
    # The output layer gets none either: `scoring` hooks into it, and its adapter would be the largest of all.
    head = model.get_output_embeddings()
    # `nn.MultiheadAttention` reads this layer's weight without calling the layer, so an adapter on it would do nothing
    unused = nn.modules.linear.NonDynamicallyQuantizableLinear
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not isinstance(module, unused) and module is not head
        if part_of(name) not in frozen
    ]
    if lora.targets == "all-linear":
        chosen = names
    else:
        ends = {name.rpartition(".")[2] for name in names}
        for target in lora.targets:
            if target not in ends:
                raise BadInput(f"policy.lora.targets: no linear layer is called '{target}'{nearest(target, ends)}")
        chosen = [name for name in names if name.rpartition(".")[2] in lora.targets]
    if not chosen:
        raise BadInput("policy.lora: all parts with linear layers are frozen; take one out of policy.freeze")
    return chosen


def without_dropout(model: nn.Module) -> None:
    """Switch off all dropout, in modules and in attributes that attention reads.

    With dropout, the ratio of new to old probabilities would differ from 1 before the first update.
    """
    kinds = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
    for module in model.modules():
        if isinstance(module, kinds):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def quantised(device: torch.device, has_adapters: bool) -> Any:
    """Quantisation settings for 4-bit weights (NF4, double quantisation; Dettmers et al. 2023, arXiv 2305.14314).

    Raises:
        BadInput: there is no GPU, no adapters are trained, or bitsandbytes is not installed.
    """
    import importlib.util

    import torch
    import transformers

    if not has_adapters:
        raise BadInput("policy.four_bit: 4-bit weights cannot be trained; add adapters with policy.lora={}")
    if device.type != "cuda":
        raise BadInput("policy.four_bit needs a GPU; set policy.four_bit=false")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise BadInput("policy.four_bit needs bitsandbytes; pip install 'sightline[quantised]'")
    library: Any = transformers  # its types change with its version
    return library.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
