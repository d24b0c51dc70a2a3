"""What the files of an encoder say, without loading it."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

from sightline.models.hub import means_folder
from sightline.models.weights import FILES, count_weights
from sightline.runs.files import parse_json, read_bytes

BUNDLED = {"bundled": "encoder", "bundled-deformables": "deformables_encoder"}
"""Encoders of ours -> their folders: the worlds of most bundled recipes; cloth, rope and water."""

CONFIG = "open_clip_config.json"
"""File of an encoder's folder, in open_clip's format."""


def bundled_folder(name: str = "bundled") -> Path:
    """Folder of a bundled encoder, in open_clip's format, with its model card."""
    return Path(str(resources.files("sightline.models") / "bundled" / BUNDLED[name]))


def encoder_folder(name: str) -> Path:
    """Folder of an encoder that is one."""
    if name in BUNDLED:
        return bundled_folder(name)
    folder = re.sub("^(local-dir|hf):", "", name)
    # Not `Path.expanduser`, which raises where nobody knows the home of a user who is named.
    return Path(os.path.expanduser(folder))


def model_config(name: str) -> dict[str, Any] | None:
    """Model configuration that open_clip has for a name or a folder; None if it has none."""
    config: Any = None
    if name in BUNDLED or name.startswith("local-dir:"):
        file = encoder_folder(name) / CONFIG
        if not file.is_file():
            return None
        document = parse_json(read_bytes(file), f"'{file}'")
        if isinstance(document, dict):
            config = document.get("model_cfg")
    else:
        import open_clip

        config = open_clip.get_model_config(name.partition("/")[0])
    return config if isinstance(config, dict) else None


def encoder_weights(name: str) -> int | None:
    """Number of weights of both towers of an encoder, without loading it; None where its files do not tell."""
    return count_weights(encoder_folder(name)) if _is_folder(name) else None


def _is_folder(name: str) -> bool:
    if name.startswith("hf:"):
        return means_folder(name.removeprefix("hf:"))
    return name in BUNDLED or name.startswith("local-dir:")


def weights_stamp(name: str) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of change of the files of weights of an encoder that is a folder, which may hold others
    tomorrow. Empty for those of a hub, whose names stand for their weights."""
    if not _is_folder(name):
        return ()
    stamps = []
    for pattern in FILES:
        for file in sorted(encoder_folder(name).glob(pattern)):
            status = file.stat()
            stamps.append((file.name, status.st_size, status.st_mtime_ns))
    return tuple(stamps)


def embedding_size(name: str) -> int | None:
    """Embedding dimension of an encoder, without loading it; None if its files would have to be downloaded."""
    config = model_config(name) or {}
    return _whole_number(config.get("embed_dim"))


def picture_side(name: str) -> int | None:
    """Side in pixels of the picture that an encoder reads, without loading it; None if its files would have to be
    downloaded."""
    config = model_config(name) or {}
    tower = config.get("vision_cfg")
    if not isinstance(tower, dict):
        return None
    return _whole_number(tower.get("image_size"))


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def model_card(name: str) -> str | None:
    """Model card of an encoder that is a folder; None if the folder has none."""
    card = encoder_folder(name) / "README.md"
    if not card.is_file():
        return None
    return card.read_text()
