"""Figures that are made and not drawn: drawing takes longer than the tiny runs of tests do."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from sightline.reports import plots

draw = plots._saved
"""What draws a figure: (figure, format, options of matplotlib) -> the file's content."""


def leave_plots_empty() -> None:
    """Have the reports of this process hold empty pictures from now on."""
    plots._saved = _empty_picture


def _empty_picture(figure: Any, kind: str, **options: Any) -> bytes:
    if kind == "svg":
        return b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, kind)
    return buffer.getvalue()
