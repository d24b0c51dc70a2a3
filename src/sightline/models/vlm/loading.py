"""Vision-language models of Hugging Face by name, with their processors."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput, Damaged
from sightline.models.hub import quiet_hub
from sightline.runs.files import parse_json, read_bytes

if TYPE_CHECKING:
    import torch

BUNDLED = "bundled"


def bundled_vlm_folder() -> Path:
    """Folder of the vision-language model that comes with Sightline, as Hugging Face saves any."""
    return Path(str(resources.files("sightline.models") / "bundled" / "vlm"))


def load_pretrained(name: str, dtype: torch.dtype | str = "auto", **options: Any) -> tuple[Any, Any]:
    """A processor and a model of the image-text-to-text kind, on the CPU unless options say otherwise.

    Args:
        name: `bundled`, `owner/name` on the hub, or a folder; also one with adapters (PEFT) only.
        dtype: of the weights; `auto` as they were saved.
        options: further arguments of the model's `from_pretrained`.

    Raises:
        BadInput: there is no such model, it does not read pictures and chat, or a package is missing.
    """
    import transformers

    auto: Any = transformers  # its types change with its version
    auto.utils.logging.disable_progress_bar()
    place = str(bundled_vlm_folder()) if name == BUNDLED else str(Path(name).expanduser() if _is_path(name) else name)
    if _is_path(place) and not Path(place).is_dir():
        raise BadInput(f"there is no folder '{place}'; say bundled, owner/name of the Hugging Face hub, or a folder")
    try:
        with quiet_hub(offline=Path(place).exists()):
            # Without a word about it, the library would ask on the terminal whether code beside the weights may run.
            processor = auto.AutoProcessor.from_pretrained(place, trust_remote_code=False)
            choices = {"dtype": dtype, "trust_remote_code": False, **options}
            model = _load_model(auto.AutoModelForImageTextToText, place, choices)
    except BadInput:
        raise
    except Exception as error:  # files of others make libraries raise anything
        raise BadInput(
            f"'{name}' cannot be loaded as a model that sees and chats: {_reason(error)}; "
            "say bundled, owner/name of the Hugging Face hub, or a folder"
        ) from error
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or not hasattr(processor, "image_processor"):
        raise BadInput(f"'{name}' does not read both pictures and words; take an image-text-to-text model")
    if not getattr(processor, "chat_template", None):
        raise BadInput(f"the processor of '{name}' has no chat template; take a model that was tuned to chat")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return processor, model


def read_weights(like: Any, folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint, by the names that a model of the same kind has for them.

    Nothing else in the folder is believed: what is built is the class and the configuration of `like`.

    Args:
        like: the model that they are for.

    Raises:
        Damaged: there are none, or those of another model.
    """
    if not folder.is_dir():
        raise BadInput(f"there is no folder '{folder}' with weights")
    for name in _shards(folder):
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name) or not (folder / name).is_file():
            raise Damaged(f"'{folder}' is damaged: it names weights '{name[:80]}', which are not there")
    try:
        with quiet_hub(offline=True):
            model, loaded = type(like).from_pretrained(
                str(folder),
                config=like.config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # files of others make libraries raise anything
        raise Damaged(f"the weights in '{folder}' cannot be read: {_reason(error)}") from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found := sorted(map(str, loaded.get(what) or ())):
            raise Damaged(
                f"the weights in '{folder}' do not fit this model: {what.replace('_', ' ')} such as {found[0]}"
            )
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


def _shards(folder: Path) -> set[str]:
    """Names of the files that the weights of a checkpoint lie in."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {"model.safetensors"}
    document = parse_json(read_bytes(index), f"'{index}'")
    named = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(named, dict) or not named:
        raise Damaged(f"'{index}' is damaged: it names no weights")
    return set(map(str, named.values()))


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Within, libraries do not tell users about names of theirs that they will give up some day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _load_model(kind: Any, place: str, options: dict[str, Any]) -> Any:
    """A model; adapters saved without their model are built into the weights of the one they were made for."""
    adapters = Path(place) / "adapter_config.json"
    if not adapters.exists():
        return kind.from_pretrained(place, **options)
    try:
        import peft
    except ImportError as error:
        raise BadInput(f"'{place}' holds adapters, which need PEFT; pip install 'sightline[lora]'") from error
    document = parse_json(read_bytes(adapters), f"'{adapters}'")
    base = document.get("base_model_name_or_path") if isinstance(document, dict) else None
    if not isinstance(base, str):
        raise BadInput(f"'{adapters}' does not say which model the adapters are for (base_model_name_or_path)")
    with without_notices():
        return peft.PeftModel.from_pretrained(kind.from_pretrained(base, **options), place).merge_and_unload()


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or Path(name).exists()


def _reason(error: Exception) -> str:
    """What a library said, in a few words; for a missing package what to install."""
    said = " ".join(str(error).split())
    if "configuration class" in said and "AutoModel" in said:
        return "it is no image-text-to-text model"
    forms = (
        *(r"requires? the `?(\w+)`? library", r"[Pp]ackage `?(\w+)`?"),
        *(r"No module named '(\w+)", r"pip install (\w+)"),
    )
    missing = re.search("|".join(forms), said)
    if isinstance(error, ImportError) and missing:
        package = next(name for name in missing.groups() if name).lower()
        return f"it needs a package that is not here: pip install {package}"
    return said[:200].rstrip(".; ")
