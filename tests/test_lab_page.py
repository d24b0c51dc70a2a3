"""The lab's page: verdicts in words, what its figures rest on, and the file itself."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from sightline.reports.lab_page import summary, table, verdict_on, write_lab_page
from sightline.reward_lab.figures import figures, frame_rows
from sightline.reward_lab.measures.result import CONSTANT_REWARD
from sightline.reward_lab.measures.table import ScoredFrames
from sightline.reward_lab.scoring import LabScores
from sightline.reward_lab.sources import Source

# -- verdicts ----------------------------------------------------------------------------------------------------------


def measure(value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": 100, "missing": 0, **more}


GOOD = {"auroc": measure(0.97, 0.95, 0.99), "fooling": measure(0.01, 0, 0.02), "noise": measure(0.1)}
NO_SUCCESS = measure(None, undefined="it is not stated which frames show the goal")


@pytest.mark.parametrize(
    ("reward", "answer", "because"),
    [
        (GOOD, "worth training on", "paid more than another one in 97"),
        (GOOD | {"auroc": measure(0.97, no_interval="few")}, "doubtful", "AUROC 0.97, but nobody knows how far"),
        (GOOD | {"auroc": measure(0.2), "epic": measure(0.01, 0, 0.02)}, "worth training on", "It is the ground truth"),
        (GOOD | {"auroc": measure(0.2), "epic": measure(0.01)}, "blind", "no better than chance"),
        (GOOD | {"auroc": measure(0.8, 0.7, 0.9)}, "weak", "0.70 to 0.90"),
        (GOOD | {"auroc": measure(0.8, 0.45, 0.95)}, "blind", "no better than chance"),
        (GOOD | {"auroc": measure(0.3)}, "blind", "no better than chance"),
        (GOOD | {"auroc": measure(0.3, 0.2, 0.55)}, "blind", "no better than chance"),
        (GOOD | {"auroc": measure(0.1, 0.05, 0.2)}, "pays the opposite", "other frames more than those of the goal"),
        ({"auroc": NO_SUCCESS, "spearman": measure(-0.6, -0.7, -0.5)}, "pays the opposite", "−0.60"),
        (GOOD | {"controls": {"nonsense": {"difference": measure(0.1, -0.1, 0.2)}}}, "blind", "a meaningless goal"),
        (GOOD | {"controls": {"blank": {"difference": measure(0.0)}}}, "blind", "blank frames"),
        (GOOD | {"controls": {"blank": {"difference": measure(0.4, 0.3, 0.5)}}}, "worth training on", "97"),
        (GOOD | {"fooling": measure(0.2)}, "doubtful", "are paid more than the goal’s median"),
        (GOOD | {"noise": measure(0.7)}, "doubtful", "one pixel changes the reward by 0.700"),
        (GOOD | {"after_success": measure(0.5)}, "doubtful", "of the reward is left"),
        ({"auroc": NO_SUCCESS, "spearman": measure(0.7, 0.6, 0.8)}, "worth training on", "with the ground truth"),
        ({"auroc": NO_SUCCESS, "spearman": measure(0.3, 0.2, 0.4)}, "weak", "Spearman 0.30"),
        ({"auroc": NO_SUCCESS, "spearman": measure(-0.3)}, "blind", "Spearman −0.30"),
        (
            {"auroc": NO_SUCCESS, "preference_accuracy": measure(0.95, 0.9, 1)},
            "worth training on",
            "What was preferred",
        ),
        ({"auroc": measure(None, undefined=CONSTANT_REWARD)}, "blind", "It pays the same for all frames."),
        ({"auroc": NO_SUCCESS, "spearman": measure(None, undefined=CONSTANT_REWARD)}, "blind", "the same"),
        ({"auroc": NO_SUCCESS}, "not judged", "It is not stated which frames show the goal."),
        (GOOD | {"failure": "the server is away"}, "not judged", "the server is away"),
    ],
)
def test_verdicts(reward: dict[str, Any], answer: str, because: str) -> None:
    verdict = verdict_on("own", reward)
    assert verdict.answer == answer and because in verdict.because
    assert verdict.good == (answer == "worth training on")


def test_the_first_sentence_names_the_reward_to_train_on() -> None:
    def said(**rewards: Any) -> str:
        return summary([verdict_on(name, reward) for name, reward in rewards.items()], rewards)

    better = GOOD | {"auroc": measure(0.99, 0.98, 1)}
    bad = GOOD | {"auroc": measure(0.5)}
    unjudged = {"auroc": NO_SUCCESS}
    assert said(a=GOOD, b=bad) == "“a” is worth training on"
    assert said(a=GOOD, b=better) == "“b” is worth training on, and so is one other"
    assert said(a=GOOD, b=GOOD) == "“a” is worth training on, and so is one other"
    assert said(a=GOOD, b=GOOD, c=GOOD) == "“a” is worth training on, and so are 2 others"
    assert said(a=bad, b=GOOD | {"noise": measure(2)}) == "“b” may be worth training on, with doubts"
    assert said(a=bad, b=unjudged) == "None of these rewards is worth training on"
    assert said(a=bad) == "This reward is not worth training on"
    assert said(a=unjudged, b=unjudged) == "Nothing can be said of these rewards yet"


def test_the_table_holds_numbers_intervals_and_gaps() -> None:
    headings, rows = table({"a": GOOD, "b": {"auroc": NO_SUCCESS, "epic": measure(0.3)}})
    assert [cell.text for cell in headings] == ["reward", "AUROC", "EPIC", "Fooled", "Noise"]
    assert [cell.text for cell in rows[0]] == ["a", "0.97", "", "0.01", "0.10"]
    assert rows[0][1].note.replace("\u00a0", " ") == "0.95 to 0.99" and rows[0][4].note == "no interval"
    assert (rows[1][1].text, rows[1][1].note) == ("–", "undefined")


# -- figures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridAxis:
    name: str
    unit: str
    low: float
    high: float
    points: int


@dataclass(frozen=True)
class GridTask:
    axes: tuple[GridAxis, ...] = (GridAxis("x", "m", 0, 1, 2), GridAxis("y", "", 0, 2, 3))
    state_at: Any = "any"


def source(name: str, still: bool = False) -> Source:
    return Source(name, lambda *_: iter(()), still=still)


SOURCES = [source("random"), source("scripted"), source("states", still=True)]
LENGTHS = [4, 5, 3, *[1] * 6]
NAMES = ["random", "scripted", "scripted", *["states"] * 6]


def scores() -> LabScores:
    """A random episode, two scripted ones of which the second fails, and six states of a grid."""
    count = sum(LENGTHS)
    success = np.zeros(count, bool)
    success[[8, 17]] = True
    frames = ScoredFrames(
        np.full(count, np.nan),
        np.repeat(np.arange(9), LENGTHS),
        np.concatenate([np.arange(length) for length in LENGTHS]),
        NAMES,
        truth=np.arange(count) * 2.0,
        success=success,
    )
    rewards = np.arange(count) * 1.0
    rewards[5] = np.nan
    return LabScores(frames, {"rising": rewards, "flat": np.ones(count)}, {}, {}, ())


def test_landscapes_are_the_grid_in_the_order_of_its_axes() -> None:
    found = figures(scores(), ["rising"], GridTask(), SOURCES)["landscapes"]  # type: ignore[arg-type]
    assert found["rewards"] == {"rising": [[12, 13, 14], [15, 16, 17]]}
    assert found["truth"] == [[24, 26, 28], [30, 32, 34]]
    assert found["goal"] == [[False] * 3, [False, False, True]]
    assert found["axes"][1] == {"name": "y", "unit": "", "values": [0, 1, 2]}
    without = GridTask(axes=(GridAxis("x", "m", 0, 1, 7),))
    assert figures(scores(), ["rising"], without, SOURCES)["landscapes"] is None  # type: ignore[arg-type]


def test_curves_are_of_the_successful_episodes_of_the_expert() -> None:
    found = figures(scores(), ["rising", "flat"], GridTask(), SOURCES)["progress"]  # type: ignore[arg-type]
    assert found["source"] == "scripted" and found["episodes"] == 1
    assert list(found["curves"]) == ["ground truth", "rising"]  # what is constant has no range
    # Rows 4 to 8 of rewards from 0 to 17; row 5 has none, and lies on the line between its neighbours.
    assert found["curves"]["rising"]["mean"][::25] == pytest.approx([4 / 17, 6 / 17, 8 / 17])


def test_no_expert_no_curves() -> None:
    found = figures(scores(), ["rising"], GridTask(), [SOURCES[0], SOURCES[2]])  # type: ignore[arg-type]
    assert found["progress"] is None and found["strip"] is None


def test_frames_are_of_different_episodes_and_have_a_reward() -> None:
    found = figures(scores(), ["rising"], GridTask(), SOURCES)  # type: ignore[arg-type]
    shown = found["frames"]["rising"]
    assert shown["best"] == [17, 16, 15, 14, 13]
    assert shown["worst"] == [0, 4, 9, 12, 13]
    assert shown["fooling"][:3] == [16, 15, 14] and 17 not in shown["fooling"] and 5 not in shown["fooling"]
    assert found["strip"]["rows"] == [4, 5, 6, 7, 8] and found["strip"]["curves"]["rising"][1] is None
    assert frame_rows(found) == sorted(set(sum(shown.values(), found["strip"]["rows"])))
    json.dumps(found, allow_nan=False)


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.plots
def test_the_page_stands_alone_and_escapes_what_it_is_told(tmp_path: Path) -> None:
    found = figures(scores(), ["rising", "flat"], GridTask(), SOURCES)  # type: ignore[arg-type]
    rewards = {"rising": GOOD, "flat": {"auroc": measure(None, undefined="the reward is <b>constant</b>")}}
    document = {
        "frames": 18,
        "episodes": 9,
        "sources": {"random": 1, "scripted": 2, "states": 6},
        "rewards": rewards,
        "warnings": ["<script>alert(1)</script>"],
        "ranking": [{"reward": "rising", "chosen_by": measure(0.9), "held_out": NO_SUCCESS}],
    }
    pictures = {row: np.full((8, 8, 3), row, np.uint8) for row in frame_rows(found) if row != 4}
    text = write_lab_page(tmp_path / "lab.html", "<i>task</i>", document, found, pictures).read_text()
    assert "<h1>“rising” is worth training on</h1>" in text
    assert "<script" not in text and "<b>constant" not in text and "<i>task" not in text
    assert "flat: AUROC is undefined: the reward is &lt;b&gt;constant" in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert text.count("<svg") == 3 + 2 + 1  # maps with the truth, curves with the truth, the strip
    strip = text[text.index("An episode") : text.index("What it pays for")]
    assert strip.count('<img src="data:image/png') == 4  # one of the five frames has no picture
    assert "Most fooling" in text


def test_the_lab_writes_its_page(tmp_path: Path) -> None:
    document = sl.lab("mountain-car", episodes=2, play=["random", "states"], out=tmp_path)
    assert document["page"] == str(tmp_path / "lab.html")
    text = (tmp_path / "lab.html").read_text()
    assert "What it pays for" in text and "data:image/png" in text
    kept = json.loads((tmp_path / "lab.json").read_text())
    assert kept.keys() == {"format", *document}  # and no figures: a map of each reward would be most of it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features", "lab.html", "lab.json"]
