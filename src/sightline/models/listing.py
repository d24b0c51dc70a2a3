"""List of the available encoders."""

from __future__ import annotations

from sightline.errors import BadInput, nearest
from sightline.models.encoder_files import BUNDLED


def list_encoders(containing: str | None = None) -> list[tuple[str, str]]:
    """List encoders as (name, description), the general forms first.

    Args:
        containing: list only names that contain this text, ignoring case.

    Raises:
        BadInput: no name contains it; the message names the nearest ones.
    """
    import open_clip

    forms = [
        ("bundled", "ours, tiny, offline: for trying Sightline, not for science"),
        ("bundled-deformables", "the same for cloth, rope and water"),
        ("hf:owner/name", "any Hugging Face CLIP, SigLIP or SigLIP 2; also hf:/folder"),
        ("local-dir:/folder", "a folder in open_clip's format"),
    ]
    named = [(f"{architecture}/{tag}", "open_clip") for architecture, tag in open_clip.list_pretrained()]
    if containing is None:
        return [*forms, *named]
    found = [row for row in [*forms, *named] if containing.lower() in row[0].lower()]
    if not found:
        architectures = sorted({name.partition("/")[0] for name, _ in named})
        raise BadInput(f"no encoder's name contains '{containing}'{nearest(containing, [*BUNDLED, *architectures])}")
    return found
