"""Models whose provider has announced their end: their names go on to be answered by others, or by errors."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

AS_OF = datetime.date(2026, 11, 28)
"""Day on which the announcements were read."""


@dataclass(frozen=True)
class Retirement:
    """The announced end of a model.

    Attributes:
        provider: see `ChatModelConfig.provider`.
        model: its name; those that go on with a hyphen and a date or number are meant, too.
        on: the day on which it ends.
        successor: that the provider names.
        is_routed: whether requests are answered by the successor from then on, instead of being refused.
    """

    provider: str
    model: str
    on: datetime.date
    successor: str
    is_routed: bool = False

    def __str__(self) -> str:
        consequence = "requests are refused"
        if self.is_routed:
            consequence = f"requests are answered by {self.successor}"
        return f"{self.model} ends on {self.on:%d %B %Y}, and {consequence} from then on; say model={self.successor}"


RETIREMENTS = (
    Retirement("gemini", "gemini-2.5-flash", datetime.date(2026, 12, 1), "gemini-3.5-flash-lite", is_routed=True),
    Retirement("gemini", "gemini-2.5-pro", datetime.date(2026, 12, 1), "gemini-3.8-flash", is_routed=True),
    Retirement("gemini", "gemini-2.0-flash", datetime.date(2026, 6, 1), "gemini-3.5-flash-lite"),
    Retirement("anthropic", "claude-opus-4-20250514", datetime.date(2026, 6, 15), "claude-opus-4-8"),
    Retirement("anthropic", "claude-sonnet-4-20250514", datetime.date(2026, 6, 15), "claude-sonnet-4-6"),
)
"""Sources: ai.google.dev/gemini-api/docs/deprecations, platform.claude.com/docs/en/about-claude/model-deprecations."""


def retirement_of(provider: str, model: str) -> Retirement | None:
    """The announced end of a model; None where none is known."""
    name = model.removeprefix("models/")
    for retirement in RETIREMENTS:
        if provider != retirement.provider or not name.startswith(retirement.model):
            continue
        # `gemini-2.5-flash-001` is the same model, `gemini-2.5-flash-lite` and `-image` are others.
        suffix = name.removeprefix(retirement.model)
        is_version = suffix.startswith("-") and suffix[1:].isdigit()
        if not suffix or is_version:
            return retirement
    return None
