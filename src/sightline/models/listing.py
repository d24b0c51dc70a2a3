"""List of the available encoders."""

from __future__ import annotations

from pathlib import Path

from sightline.errors import BadInput, nearest
from sightline.models.encoder_files import BUNDLED

NAMES = Path(__file__).with_name("open_clip_names.txt")
"""Names of open_clip's pretrained encoders, `Architecture/tag` in each line (`tools/open_clip_names.py`)."""
FORMS = (
    ("bundled", "ours, tiny, offline: for trying Sightline, not for science"),
    ("bundled-deformables", "the same for cloth, rope and water"),
    ("hf:owner/name", "any Hugging Face CLIP, SigLIP or SigLIP 2; also hf:/folder"),
    ("local-dir:/folder", "a folder in open_clip's format"),
)


def list_encoders(containing: str | None = None) -> list[tuple[str, str]]:
    """List encoders as (name, description), the general forms first.

    Args:
        containing: list only names that contain this text, ignoring case.

    Raises:
        BadInput: no name contains it; the message names the nearest ones.
    """
    names = NAMES.read_text().split()
    rows = _matching_rows(names, containing or "")
    # The installed open_clip may be newer than our list, but takes seconds to import.
    if not rows:
        import open_clip

        names = [f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()]
        rows = _matching_rows(names, containing or "")
    if not rows:
        architectures = sorted({name.partition("/")[0] for name in names})
        hint = nearest(containing or "", [*BUNDLED, *architectures])
        raise BadInput(f"no encoder's name contains '{containing}'{hint}")
    return rows


def _matching_rows(names: list[str], text: str) -> list[tuple[str, str]]:
    rows = list(FORMS)
    rows += [(name, "open_clip") for name in names]
    return [(name, description) for name, description in rows if text.lower() in name.lower()]
