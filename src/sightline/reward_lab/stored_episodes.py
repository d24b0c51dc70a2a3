"""Episodes of a data set as a source of the lab, with what people said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sightline.datasets.episode import Episode
from sightline.datasets.reading import read_dataset
from sightline.datasets.stored import StoredEpisode
from sightline.reward_lab.scoring import QUALITIES
from sightline.reward_lab.sources import Source

PEOPLE = "people"


def stored_sources(folder: Path, camera: str | None, warn: Callable[[str], None]) -> list[Source]:
    """The episodes of a data set; and, where people labelled frames of it, those frames with people's word for success,
    which then takes the place of the environment's.

    Raises:
        BadInput: there is no such data set.
    """
    labelled = 0
    unread: list[str] = []
    for episode in read_dataset(folder, frames=False):
        if episode.human is not None:
            labelled += int(np.isfinite(episode.human).sum())
        if episode.quality is not None and episode.quality not in QUALITIES:
            unread.append(episode.quality)
    if unread:
        words = ", ".join(repr(word) for word in sorted(set(unread))[:5])
        known = ", ".join(QUALITIES)
        warn(f"episodes of '{folder}' whose quality_label is none of {known}, and is left out: {len(unread)} ({words})")

    def read(*_: object) -> Iterator[Episode]:
        for episode in read_dataset(folder, camera):
            yield replace(episode, success=None, quality=None) if labelled else episode

    sources = [Source(folder.resolve().name, read, plays=False)]
    if labelled:
        warn(f"success is what people say of {labelled} frames of '{folder}', and not what its environment states")
        sources.append(Source(PEOPLE, lambda *_: _judged(read_dataset(folder, camera)), plays=False, still=True))
    return sources


def _judged(episodes: Iterator[StoredEpisode]) -> Iterator[Episode]:
    """The frames that people are sure about, some at a time; half and half is no success."""
    for episode in episodes:
        if episode.human is None or episode.frames is None:
            continue
        is_known = np.isfinite(episode.human)
        if is_known.any():
            states = None if episode.states is None else episode.states[is_known]
            yield Episode(PEOPLE, frames=episode.frames[is_known], states=states, success=episode.human[is_known] > 0.5)
