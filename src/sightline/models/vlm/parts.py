"""Parts of a model: which of them learn, and where adapters go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from sightline.config.agents import LoRA, ModelConfig, TrainablePart
from sightline.errors import BadInput, nearest

PROJECTORS = {
    *("multi_modal_projector", "mm_projector", "projector", "connector", "merger", "deepstack_merger_list"),
    *("aligner", "image_newline", "embed_vision"),
}
VISION = {"vision_tower", "visual", "vision_model", "vision_encoder", "vision_backbone", "image_encoder"}


def part_of(name: str) -> TrainablePart:
    """The part to which a parameter belongs, by the names of the modules around it."""
    around = set(name.split("."))
    if around & PROJECTORS:
        return "projector"
    return "vision" if around & VISION else "language"


def freeze(model: nn.Module, parts: Collection[TrainablePart]) -> None:
    """Parameters of some parts learn no more.

    Raises:
        BadInput: the model has no such part, or none that is known here by its name.
    """
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
    """The model with adapters (PEFT) on linear layers; nothing but these learns.

    Raises:
        BadInput: PEFT is not there, or there are no such layers.
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


def _linear_layers(model: Any, lora: LoRA, frozen: Collection[TrainablePart]) -> list[str]:
    """Full names, since layers of the picture tower and of the language model often share the ends of theirs."""
    head = model.get_output_embeddings()
    # attention in one module reads this layer's weight, and never calls the layer
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
    """What was sampled must be scored by the same function, also while learning."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def quantised(policy: ModelConfig, device: Any) -> Any:
    """Settings for weights of 4 bits (NF4, quantised twice; Dettmers et al. 2023, arXiv 2305.14314).

    Raises:
        BadInput: without a GPU, without adapters, or without bitsandbytes.
    """
    import importlib.util

    import torch
    import transformers

    if policy.lora is None:
        raise BadInput("policy.four_bit: weights of 4 bits cannot learn; say policy.lora={} as well")
    if device.type != "cuda":
        raise BadInput("policy.four_bit needs a GPU; say policy.four_bit=false")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise BadInput("policy.four_bit needs bitsandbytes; pip install 'sightline[quantised]'")
    library: Any = transformers  # its types change with its version
    return library.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
