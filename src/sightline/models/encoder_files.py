"""What the files of an encoder say, without loading it."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

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
    # Not `Path.expanduser`, which raises where nobody knows the home of a user who is named.
    return bundled_folder(name) if name in BUNDLED else Path(os.path.expanduser(re.sub("^(local-dir|hf):", "", name)))


def model_config(name: str) -> dict[str, Any] | None:
    """Model configuration that open_clip has for a name or a folder; None if it has none."""
    if name in BUNDLED or name.startswith("local-dir:"):
        file = encoder_folder(name) / CONFIG
        document = parse_json(read_bytes(file), f"'{file}'") if file.is_file() else {}
        config = document.get("model_cfg") if isinstance(document, dict) else None
    else:
        import open_clip

        config = open_clip.get_model_config(name.partition("/")[0])
    return config if isinstance(config, dict) else None


def embedding_size(name: str) -> int | None:
    """Embedding dimension of an encoder, without loading it; None if its files would have to be downloaded."""
    size = (model_config(name) or {}).get("embed_dim")
    return size if isinstance(size, int) else None


def picture_side(name: str) -> int | None:
    """Side in pixels of the picture that an encoder reads, without loading it; None if its files would have to be
    downloaded."""
    tower = (model_config(name) or {}).get("vision_cfg")
    size = tower.get("image_size") if isinstance(tower, dict) else None
    return size if isinstance(size, int) else None


def model_card(name: str) -> str | None:
    """Model card of an encoder that is a folder; None if the folder has none."""
    card = encoder_folder(name) / "README.md"
    return card.read_text() if card.is_file() else None
