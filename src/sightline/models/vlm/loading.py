"""Loading of Hugging Face vision-language models, and of language models, with their processors, by name."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput, Damaged
from sightline.models.hub import means_folder, quiet_hub
from sightline.models.vlm.words_only import WordsOnly
from sightline.models.weights import count_weights
from sightline.requirements import wheel_of
from sightline.runs.files import parse_json, read_bytes

if TYPE_CHECKING:
    import torch

BUNDLED = {"bundled": "vlm", "bundled-rooms": "rooms_vlm", "bundled-cards": "cards_vlm"}
"""Models of ours -> their folders: small games and CartPole; households and BabyAI; sums and plans with cards."""
CROSS_ATTENTION = {"mllama": "Llama 3.2 Vision"}
"""Model types that read pictures by cross-attention, and their names: their pictures are not tokens of the prompt."""
CACHES = {"past_key_values", "cache", "cache_params"}
"""Arguments by which language models take what they have read before."""
ADAPTERS = "adapter_config.json"
"""File by which a folder of adapters (PEFT) is known."""
NEEDS_PEFT = "policy.lora needs PEFT; pip install 'sightline[lora]'"
_MISSING_PACKAGE = re.compile(
    r"requires? the `?(\w+)`? library|[Pp]ackage `?(\w+)`?|No module named '(\w+)|pip install (\w+)"
)
"""Ways in which libraries say which package they lack."""


def bundled_vlm_folder(name: str = "bundled") -> Path:
    """Folder of a bundled vision-language model, in Hugging Face's format, with its model card."""
    return Path(str(resources.files("sightline.models") / "bundled" / BUNDLED[name]))


def folder_of(name: str) -> Path | None:
    """Folder of a model: one of ours, or one that the name says; None for models of the hub."""
    if name in BUNDLED:
        return bundled_vlm_folder(name)
    # Whether a folder is meant is asked of the name as it was written: a `Path` drops the `./` that says so.
    return Path(os.path.expanduser(name)) if means_folder(name) else None


def weights_known(name: str, four_bit: bool = False) -> int | None:
    """Number of a model's weights by its files, by which its device is chosen; None where they do not tell, or where
    it can only be a GPU, which alone computes with weights of 4 bits."""
    folder = folder_of(name)
    if folder is None or four_bit:
        return None
    return count_weights(folder)


def reads_pictures(name: str) -> bool:
    """Whether a model reads pictures, by its configuration alone: no weights are read, or fetched.

    Raises:
        BadInput: there is no such model, or it is of a kind that cannot play.
    """
    source = _source_of(name)
    with _failures_explained(name, source):
        return not _is_language_model(source)


def load_pretrained(name: str, dtype: torch.dtype | str = "auto", **options: Any) -> tuple[Any, Any]:
    """Load a processor and an image-text-to-text model or a language model, on the CPU unless `options` say otherwise.

    Args:
        name: `bundled`, `bundled-rooms`, `bundled-cards`, `owner/name` on the hub, or a folder, which may hold only
            adapters (PEFT).
        dtype: dtype of the weights; `auto` keeps the one they were saved in.
        options: further arguments of the model's `from_pretrained`.

    Returns:
        Processor, which is a `WordsOnly` for language models, and model.

    Raises:
        BadInput: there is no such model, it has no chat template, it is of another kind, or a package is missing.
    """
    import torch
    import transformers

    auto: Any = transformers  # its types change with its version
    auto.utils.logging.disable_progress_bar()
    source = _source_of(name)
    # Some versions of the library draw random numbers while they load.
    with _failures_explained(name, source), torch.random.fork_rng(devices=[]):
        is_language_model = _is_language_model(source)
        # Unless told, the library asks on the terminal whether it may run code that lies beside the weights.
        if is_language_model:
            processor: Any = WordsOnly(auto.AutoTokenizer.from_pretrained(_texts_of(source), trust_remote_code=False))
            kind = auto.AutoModelForCausalLM
        else:
            processor = auto.AutoProcessor.from_pretrained(_texts_of(source), trust_remote_code=False)
            kind = auto.AutoModelForImageTextToText
        model = _load_model(kind, source, {"dtype": dtype, "trust_remote_code": False, **options})
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or not hasattr(processor, "image_processor"):
        raise BadInput(f"'{name}' does not read both pictures and words; take an image-text-to-text model")
    if not getattr(processor, "chat_template", None):
        owner = "tokenizer" if is_language_model else "processor"
        raise BadInput(f"the {owner} of '{name}' has no chat template; take an instruction-tuned model")
    # Padding is always masked, so any token will do.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    _leave_out_token_types(tokenizer, model)
    return processor, model


def _source_of(name: str) -> str:
    """Folder or name on the hub that a model is loaded from.

    Raises:
        BadInput: it is meant to be a folder, and is none.
    """
    folder = folder_of(name)
    if folder is None:
        return name
    quantised = [folder] if folder.suffix == ".gguf" and folder.is_file() else sorted(folder.glob("*.gguf"))
    if quantised and not (folder / "config.json").exists():
        raise BadInput(
            f"'{quantised[0]}' is a GGUF file, which is for running and not for training; make a folder of it by "
            "'python tools/smollm2.py --gguf FILE --out FOLDER' (in Sightline's repository), or take the model that it "
            "was made of"
        )
    if not folder.is_dir():
        raise BadInput(f"there is no folder '{folder}'; use bundled, owner/name of the Hugging Face hub, or a folder")
    return str(folder)


@contextlib.contextmanager
def _failures_explained(name: str, source: str) -> Iterator[None]:
    """Within the context, whatever goes wrong while a model is loaded becomes one line."""
    try:
        with quiet_hub(offline=Path(source).exists()):
            yield
    except BadInput:
        raise
    except Exception as error:  # on malformed files the libraries raise exceptions of any type
        needs = f" (adapters for '{_base_of(source)}')" if _holds_adapters(source) else ""
        raise BadInput(
            f"'{name}'{needs} cannot be loaded as an image-text-to-text model or a language model: {_reason(error)}; "
            "use bundled, owner/name of the Hugging Face hub, or a folder"
        ) from error


def _is_language_model(source: str) -> bool:
    """Whether a model, or that which adapters are for, is a language model, by its configuration.

    Raises:
        BadInput: it reads pictures or prompts by cross-attention, is an encoder, or keeps no cache.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    library: Any = transformers  # its types change with its version
    mappings: Any = modeling_auto
    if _holds_adapters(source):
        return _is_language_model(_base_of(source))
    config = library.AutoConfig.from_pretrained(source, trust_remote_code=False)
    reads_both = type(config) in mappings.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    family = CROSS_ATTENTION.get(config.model_type)
    if family is None and config.is_encoder_decoder:
        family = "an encoder-decoder"
    if family is not None and reads_both:
        raise BadInput(
            f"'{source}' is {family}, which reads pictures by cross-attention and not as tokens of "
            "the prompt; take another family, such as Qwen3-VL or Gemma 3"
        )
    if family is not None:
        raise BadInput(
            f"'{source}' is {family}, which reads a prompt apart from its reply; take a language model that goes on "
            "from its prompt, such as Llama, Qwen3 or SmolLM2"
        )
    if type(config) in mappings.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        raise BadInput(
            f"'{source}' is an encoder ({config.model_type}), which fills gaps in a text and does not go on from it; "
            "take a language model such as Llama, Qwen3 or SmolLM2"
        )
    # Families such as Gemma 3 and Qwen3.5 are in both: with their tower they stay models of pictures.
    if reads_both or type(config) not in mappings.MODEL_FOR_CAUSAL_LM_MAPPING:
        return False
    forward = mappings.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].forward
    if CACHES.isdisjoint(inspect.signature(forward).parameters):
        raise BadInput(
            f"'{source}' is {config.model_type}, which keeps no cache of what it has read, by which replies are "
            "written; take a language model such as Llama, Qwen3 or SmolLM2"
        )
    return True


def _leave_out_token_types(tokenizer: Any, model: Any) -> None:
    """Let the tokenizer make no `token_type_ids` for a model that does not read them: `generate` would refuse them."""
    parameters = inspect.signature(model.forward).parameters
    if "token_type_ids" not in parameters:
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]


def read_weights(like: Any, folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint into a state dict.

    The class and configuration of `like` are used; nothing but the weights is read from the folder, which may come
    from a stranger.

    Args:
        like: the model that the weights are for.
        folder: a folder with `model.safetensors`, or its shards and their index.
        dtype: dtype of the returned weights.

    Raises:
        BadInput: there is no such folder.
        Damaged: its weights are missing, unreadable, or belong to another model.
    """
    if not folder.is_dir():
        raise BadInput(f"there is no folder '{folder}' with weights")
    # The index may come from a stranger: its names must be plain files of this folder, not paths or pickles.
    for name in _shards(folder):
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name) or not (folder / name).is_file():
            raise Damaged(f"'{folder}' is damaged: it names weights '{name[:80]}', which are not there")
    try:
        with quiet_hub(offline=True):
            model, report = type(like).from_pretrained(
                str(folder),
                config=like.config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # on malformed files the libraries raise exceptions of any type
        raise Damaged(f"the weights in '{folder}' cannot be read: {_reason(error)}") from error
    # The library fills missing weights with random numbers, and only warns.
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = sorted(map(str, report.get(problem) or ()))
        if keys:
            raise Damaged(
                f"the weights in '{folder}' do not fit this model: {problem.replace('_', ' ')} such as {keys[0]}"
            )
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


def _shards(folder: Path) -> set[str]:
    """Names of the weight files of a checkpoint: `model.safetensors`, or the shards listed in its index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {"model.safetensors"}
    document = parse_json(read_bytes(index), f"'{index}'")
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise Damaged(f"'{index}' is damaged: it names no weights")
    return set(map(str, weight_map.values()))


@contextlib.contextmanager
def without_future_warnings() -> Iterator[None]:
    """Hide the deprecation notices of libraries (`FutureWarning`), which users of Sightline can do nothing about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _load_model(kind: Any, source: str, options: dict[str, Any]) -> Any:
    """Load a model; a folder with only adapters loads their base model and merges the adapters into it.

    Args:
        kind: the library's class that loads such models.

    Raises:
        BadInput: adapters are incomplete or cannot be read.
    """
    if not _holds_adapters(source):
        return kind.from_pretrained(source, **options)
    try:
        import peft
    except ImportError as error:
        raise BadInput(f"'{source}' holds adapters, which need PEFT; pip install 'sightline[lora]'") from error
    # Merged, so that new adapters can be trained on top of the loaded ones.
    with without_future_warnings():
        adapted = peft.PeftModel.from_pretrained(_load_model(kind, _base_of(source), options), source)
        model = adapted.merge_and_unload()
    # PEFT has frozen the weights beneath the adapters, which are the model's own now, and may learn.
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return model


def _holds_adapters(source: str) -> bool:
    return (Path(source) / ADAPTERS).exists()


def _base_of(source: str) -> str:
    """The model that the adapters in a folder are for.

    Raises:
        BadInput: they do not say what they are for, or it is not there.
    """
    file = Path(source) / ADAPTERS
    document = parse_json(read_bytes(file), f"'{file}'")
    base = document.get("base_model_name_or_path") if isinstance(document, dict) else None
    if not isinstance(base, str):
        raise BadInput(f"'{file}' does not say which model the adapters are for (base_model_name_or_path)")
    if means_folder(base) and not Path(base).is_dir():
        raise BadInput(
            f"'{source}' holds adapters for the model in '{base}', which is not there; put it back, or write its place "
            f"as base_model_name_or_path into '{file}'"
        )
    return base


def _texts_of(source: str) -> str:
    """Where the tokenizer lies: of adapters, which are often saved without one, in their base model."""
    if _holds_adapters(source) and not (Path(source) / "tokenizer_config.json").exists():
        return _texts_of(_base_of(source))
    return source


def _reason(error: Exception) -> str:
    """One-line reason of a library's exception; for a missing package, the package to install."""
    reason = " ".join(str(error).split())
    if "configuration class" in reason and "AutoModel" in reason:
        return "it is neither"
    if "instantiate the backend tokenizer" in reason:
        return "it has no tokenizer (tokenizer.json); save that beside it"
    if "connect to 'https" in reason:
        return "it is not on this machine, and the hub of models cannot be reached"
    match = _MISSING_PACKAGE.search(reason)
    if isinstance(error, ImportError) and match:
        package = next(name for name in match.groups() if name)
        return f"it needs a package that is not installed: pip install {wheel_of(package).lower()}"
    return reason[:200].rstrip(".; ")
