"""Sensitivity in the lab: other words, other views, and how much they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sightline as sl
from sightline.errors import BadInput
from sightline.reports.lab_page import alterations, changes
from sightline.reward_lab.contenders import parse_rewards
from sightline.reward_lab.measures.sensitivity import rank_agreement, relative_change, spread_of_variants
from sightline.reward_lab.measures.table import ScoredFrames

REWARDS = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
"""Their interquartile range is 2."""


def frames(rewards: Any = REWARDS) -> ScoredFrames:
    count = np.arange(len(rewards))
    return ScoredFrames(np.asarray(rewards, float), count, count * 0, ["x"] * len(rewards))


def test_changes_in_units_of_the_spread() -> None:
    changed = REWARDS + np.array([0.1, -0.3, 0.2, np.nan, 5.0])
    found = relative_change(frames(), changed)
    assert found.value == pytest.approx((0.2 + 0.3) / 2 / 2) and found.n == 4
    assert relative_change(frames(), np.full(5, np.nan)).undefined.startswith("no frame was changed")
    assert relative_change(frames(np.ones(5)), np.zeros(5)).undefined == "the reward is constant"


def test_spread_over_all_variants() -> None:
    # Of each frame 0, +1 and +2 beside each other: a standard deviation of sqrt(2/3).
    found = spread_of_variants(frames(), [REWARDS + 1, REWARDS + 2])
    assert found.value == pytest.approx(np.sqrt(2 / 3) / 2)
    assert spread_of_variants(frames(), [np.full(5, np.nan)]).value is None


def test_order_is_all_that_ranks_know() -> None:
    assert rank_agreement(frames(), REWARDS**3 - 7).value == pytest.approx(1)
    assert rank_agreement(frames(), -REWARDS).value == pytest.approx(-1)
    assert rank_agreement(frames(), np.ones(5)).undefined == "the variant is constant"
    assert rank_agreement(frames(np.ones(5)), REWARDS).undefined == "the reward is constant"


def test_views_are_read_as_rewards_are() -> None:
    assert parse_rewards(["side=camera=side,look=plain"], "--view") == {"side": ["camera=side", "look=plain"]}
    with pytest.raises(BadInput, match="--view '=camera': say NAME=key=value"):
        parse_rewards(["=camera"], "--view")
    with pytest.raises(BadInput, match="two views are called 'a'"):
        parse_rewards(["a=x=1", "a=x=2"], "--view")


def test_words_and_views_of_a_task() -> None:
    document = sl.lab(
        "mountain-car",
        {"own": {}, "truth": {"reward": {"kind": "ground_truth"}}},
        episodes=1,
        play=["states"],
        paraphrases=["the car has climbed the mountain on the right", "a telephone"],
        views={"rough": {"look": "textured"}},
    )
    own = document["rewards"]["own"]
    assert list(own["paraphrases"]["each"]) == ["the car has climbed the mountain on the right", "a telephone"]
    assert list(own["views"]["each"]) == ["rough"]
    shown = own["views"]["each"]["rough"]
    assert shown["change"]["value"] > 0 and -1 <= shown["spearman"]["value"] <= 1
    # A reward that reads neither words nor pictures has neither.
    assert document["rewards"]["truth"]["paraphrases"] == document["rewards"]["truth"]["views"] == {}
    rows = alterations(document["rewards"])
    assert [row[1].text for row in rows] == [
        *own["paraphrases"]["each"],
        "all of them",
        "rough",
    ]
    assert [row[0].text for row in rows] == ["own", "", "", ""]
    assert [row[0].text for row in changes(document["rewards"])] == ["own"]


def test_what_an_environment_does_not_take_is_refused() -> None:
    with pytest.raises(BadInput, match=r"does not take these options: env_options\.camera"):
        sl.lab("mountain-car", episodes=1, play=["states"], views={"side": {"camera": "side"}})
    with pytest.raises(BadInput, match="--view 'side': say NAME=key=value"):
        sl.lab("mountain-car", episodes=1, play=["states"], views={"side": {}})


def test_one_text_is_one_sentence(tmp_path: Path) -> None:
    document = sl.lab("mountain-car", episodes=1, play=["states"], paraphrases="a car on the hill")
    assert list(document["paraphrases"]["each"]) == ["a car on the hill"]
