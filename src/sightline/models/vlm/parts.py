"""Parts of a model (vision tower, projector, language model): freezing, LoRA adapters, dropout, quantisation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from sightline.config.agents import LoRA, TrainablePart
from sightline.errors import BadInput, nearest
from sightline.models.vlm.loading import NEEDS_PEFT

PROJECTORS = {
    "multi_modal_projector",
    "mm_projector",
    "projector",
    "connector",
    "merger",
    "deepstack_merger_list",
    "aligner",
    "image_newline",
    "embed_vision",
}
"""Names of modules, in the families of Hugging Face, that map pictures into the language model's embeddings."""
VISION = {"vision_tower", "visual", "vision_model", "vision_encoder", "vision_backbone", "image_encoder"}
"""Names of vision towers."""


def part_of(name: str) -> TrainablePart:
    """Part to which a parameter belongs, by the names of the modules that contain it."""
    modules = set(name.split("."))
    # First, since many models keep their projector inside of the vision tower.
    if modules & PROJECTORS:
        return "projector"
    if modules & VISION:
        return "vision"
    return "language"


def freeze(model: nn.Module, parts: Collection[TrainablePart]) -> None:
    """Freeze the parameters of some parts.

    Raises:
        BadInput: the model has no such part, or its modules have names that are not listed here.
    """
    # Freezing nothing in silence would train what the user wanted to keep.
    own_parts = {part_of(name) for name, _ in model.named_parameters()}
    for part in parts:
        if part not in own_parts:
            modules = {".".join(name.split(".")[:-1][:2]) for name, _ in model.named_parameters()}
            raise BadInput(
                f"policy.freeze: cannot tell which part of this model is its {part}; its modules are "
                f"{', '.join(sorted(modules))}"
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
        raise BadInput(NEEDS_PEFT) from error
    library: Any = peft
    names = _linear_layers(model, lora, frozen)
    settings = library.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", target_modules=names
    )
    try:
        return library.get_peft_model(model, settings)
    except ValueError as error:  # as of Mamba's output projections
        raise BadInput(f"policy.lora: {' '.join(str(error).split())[:200]}; name policy.lora.targets") from error


def without_adapters(model: Any) -> Any:
    """The Hugging Face model itself, where PEFT has wrapped it."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def _linear_layers(model: Any, lora: LoRA, frozen: Collection[TrainablePart]) -> list[str]:
    """Full names of the linear layers that get adapters.

    Full, because PEFT matches by the end of a name, and layers of the vision tower and of the language model often
    share it.
    """
    # The output layer gets none either: `scoring` hooks into it, and its adapter would be the largest of all.
    head = model.get_output_embeddings()
    # `nn.MultiheadAttention` reads this layer's weight without calling the layer, so an adapter on it would do nothing.
    uncalled = nn.modules.linear.NonDynamicallyQuantizableLinear
    names = []
    for name, module in model.named_modules():
        # GPT-2's linear layers are the library's `Conv1D`, whose weight is transposed.
        is_linear = isinstance(module, (nn.Linear, Conv1D)) and not isinstance(module, uncalled)
        # Routers of experts (Llama 4, PhiMoE) are subclasses that return more than a product.
        is_router = type(module).__name__.endswith("Router")
        is_adaptable = is_linear and not is_router and module is not head
        if is_adaptable and part_of(name) not in frozen:
            names.append(name)
    if lora.targets != "all-linear":
        ends = {name.rpartition(".")[2] for name in names}
        for target in lora.targets:
            if target not in ends:
                raise BadInput(f"policy.lora.targets: no linear layer is called '{target}'{nearest(target, ends)}")
        names = [name for name in names if name.rpartition(".")[2] in lora.targets]
    if not names:
        raise BadInput("policy.lora: all parts with linear layers are frozen; take one out of policy.freeze")
    return names


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
