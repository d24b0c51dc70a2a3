"""Success as people see it: how often, and how far they agree with each other, with themselves and the environment.

The human evaluation of vlmrm (Rocamonde et al., ICLR 2024) reports the share of frames or episodes that people call a
success; the agreement says how far that share can be relied on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.datasets.human_labels import HumanLabel, labels_by_frame
from sightline.evaluation.agreement import Agreement, Share, cohens_kappa, share

ENVIRONMENT = "the environment"


@dataclass(frozen=True)
class HumanSuccess:
    """What people say of a data set.

    Attributes:
        success: of the frames or episodes that somebody is sure about, those that more than half call a success.
        undecided: of these, those that as many call a success as not; they count as none.
        unsure: answers that say neither.
        units: what was judged: "episodes", "frames", or "frames and episodes".
        raters: names of the people.
        between: agreement of every two people on what both are sure about.
        again: the same person's two answers to the same question, of all people together.
        by_environment: of the same frames or episodes, those that the environment calls a success, where it says.
        with_environment: agreement of people, by their majority, with the environment; None where nothing is decided by
            both.
    """

    success: Share
    undecided: int
    unsure: int
    units: str
    raters: tuple[str, ...]
    between: tuple[Agreement, ...]
    again: Share
    by_environment: Share
    with_environment: Agreement | None


def human_success(labels: Sequence[HumanLabel]) -> HumanSuccess:
    """Sum up what people say."""
    opinions = {place: float(np.mean(values)) for place, values in labels_by_frame(labels).items()}
    raters = tuple(dict.fromkeys(label.rater for label in labels))
    # What each said the first time, and the second.
    first: dict[str, dict[tuple[int, int], float]] = {rater: {} for rater in raters}
    second: dict[str, dict[tuple[int, int], float]] = {rater: {} for rater in raters}
    for label in labels:
        if label.value is not None:
            answers = second if label.again else first
            answers[label.rater][label.episode, label.step] = label.value

    between = []
    for one, other in itertools.combinations(raters, 2):
        agreement = _agreement(one, first[one], other, first[other])
        if agreement is not None:
            between.append(agreement)
    again = [value == first[rater].get(place) for rater in raters for place, value in second[rater].items()]

    flags: dict[tuple[int, int], float] = {}
    for label in labels:
        place = (label.episode, label.step)
        if label.success is not None and place in opinions:
            flags[place] = float(label.success)
    majority = {place: float(value > 0.5) for place, value in opinions.items() if value != 0.5}
    units = {label.is_episode: "episodes" if label.is_episode else "frames" for label in labels}
    return HumanSuccess(
        success=share(value > 0.5 for value in opinions.values()),
        undecided=list(opinions.values()).count(0.5),
        unsure=sum(label.value is None for label in labels),
        units=" and ".join(units[is_episode] for is_episode in sorted(units)),
        raters=raters,
        between=tuple(between),
        again=share(again),
        by_environment=share(value == 1 for value in flags.values()),
        with_environment=_agreement("people", majority, ENVIRONMENT, flags),
    )


def _agreement(
    first: str, ours: dict[tuple[int, int], float], second: str, theirs: dict[tuple[int, int], float]
) -> Agreement | None:
    """Agreement on what two have both judged; None where that is nothing."""
    common = [place for place in ours if place in theirs]
    if not common:
        return None
    pairs = [(ours[place], theirs[place]) for place in common]
    kappa = cohens_kappa(*zip(*pairs, strict=True))
    return Agreement(first, second, share(one == other for one, other in pairs), kappa)
