"""What the rewards of a server or a judge have cost, in words, from the metrics of a run."""

from __future__ import annotations

from sightline.reports import plots
from sightline.reports.pages import duration, money, whole

COUNTED = (
    ("requests", "requests"),
    ("failed_requests", "failed"),
    ("frames", "frames"),
    ("asked", "questions"),
    ("unanswered", "without an answer"),
    ("input_tokens", "tokens read"),
    ("output_tokens", "tokens written"),
)
"""What a metric reward/… counts, and its name in a sentence."""


def reward_costs(metrics: plots.Metrics) -> str:
    """What rewards have cost over all sessions of a run, such as `12 requests, 1 536 frames, 4.2 s`; empty where none
    were asked for elsewhere."""
    if plots.last_value(metrics, "reward/requests") is None:
        return ""
    amounts = []
    for name, words in COUNTED:
        count = plots.last_value(metrics, f"reward/{name}")
        # That nothing failed goes without saying.
        if count:
            amounts.append(f"{whole(round(count))} {words}")
    seconds = plots.last_value(metrics, "reward/seconds")
    if seconds is not None:
        amounts.append(f"{duration(seconds)} until answers came")
    # In the currency of the prices; where none was stated, nothing is known.
    spent = plots.last_value(metrics, "reward/money")
    if spent:
        amounts.append(f"{money(spent)} paid")
    return ", ".join(amounts)
