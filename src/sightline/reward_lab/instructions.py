"""Instructions of a data set's episodes: does each episode get the highest reward under its own?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sightline.datasets.reading import read_dataset
from sightline.errors import BadInput
from sightline.models.encoders import shared_encoders
from sightline.reward_lab.measures.confusion import confusion_margin
from sightline.reward_lab.measures.result import Measure, undefined
from sightline.reward_lab.scoring import LabScores, ReadyReward, under_goal

MOST_INSTRUCTIONS = 12
"""Instructions that rewards are tried with, at most: the first ones of the data set."""


class Instructions:
    """The instructions of a data set, and each reward under each of them.

    Args:
        folder: of the data set.
        rewards: of which those in words are tried.
        warn: is told of instructions that are left out.

    Attributes:
        rewards: each reward under each instruction.
    """

    def __init__(self, folder: Path, rewards: Sequence[ReadyReward], warn: Callable[[str], None]) -> None:
        self._of_episodes = [episode.instruction for episode in read_dataset(folder, frames=False)]
        said = dict.fromkeys(words for words in self._of_episodes if words)
        self._sentences = list(said)[:MOST_INSTRUCTIONS]
        self._source = folder.resolve().name
        self._refusals: dict[str, str] = {}
        self.rewards: list[ReadyReward] = []
        if len(said) > MOST_INSTRUCTIONS:
            warn(
                f"instructions of '{folder}' that are left out, beyond the first {MOST_INSTRUCTIONS}: "
                f"{len(said) - MOST_INSTRUCTIONS}"
            )
        if len(self._sentences) < 2:
            return
        with shared_encoders():
            for reward in rewards:
                try:
                    under_each = [under_goal(reward, words, f"{reward.name} ({words})") for words in self._sentences]
                except BadInput as error:  # such as the words of the baseline
                    self._refusals[reward.name] = str(error)
                    continue
                self.rewards += [one for one in under_each if one is not None]

    def margin(self, name: str, scores: LabScores) -> Measure | None:
        """The confusion margin of a reward, by the mean of each episode; None where it has no other words, or the data
        set has one instruction."""
        if name in self._refusals:
            return undefined(self._refusals[name], 0, "videos")
        names = [f"{name} ({words})" for words in self._sentences]
        if not names or any(one not in scores.rewards for one in names):
            return None
        # The data set's episodes, in its order; play and frames that people judged are other sources.
        frames = scores.frames
        rows_of = [
            rows for rows, source in zip(frames.episodes(), frames.sources, strict=True) if source == self._source
        ]
        videos: list[list[float]] = []
        own: list[int] = []
        for rows, words in zip(rows_of, self._of_episodes, strict=False):
            if words in self._sentences:
                videos.append([float(scores.rewards[one][rows].mean()) for one in names])
                own.append(self._sentences.index(words))
        return confusion_margin(np.array(videos), np.array(own))
