"""Plots that are left empty: making and drawing figures takes longer than the tiny runs of tests do."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from PIL import Image

from sightline.reports import plots

EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
PLOTS = ("learning_curves", "agent_vitals", "teaching_curves", "landscape")
"""The functions that make a report's figures."""
_WHOLE = {name: getattr(plots, name) for name in (*PLOTS, "_saved")}


def leave_plots_empty() -> None:
    """Have the reports of this process hold empty pictures from now on."""
    for name in PLOTS:
        setattr(plots, name, lambda *arguments, **named: EMPTY)
    plots._saved = _empty_picture


@contextlib.contextmanager
def plots_made(drawn: bool = True) -> Iterator[None]:
    """Context in which reports hold plots again.

    Args:
        drawn: whether figures are drawn, too; else they are made, which shows whether their numbers can be read.
    """
    names = [*PLOTS, "_saved"] if drawn else PLOTS
    try:
        for name in names:
            setattr(plots, name, _WHOLE[name])
        yield
    finally:
        leave_plots_empty()


def _empty_picture(figure: Any, kind: str, **options: Any) -> bytes:
    if kind == "svg":
        return EMPTY.encode()
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, kind)
    return buffer.getvalue()
