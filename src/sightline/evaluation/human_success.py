"""Success as people see it: how often, and how far they agree with each other and with themselves.

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


@dataclass(frozen=True)
class HumanSuccess:
    """What people say of a data set.

    Attributes:
        success: of the frames or episodes that somebody is sure about, those that more than half call a success.
        undecided: of these, those that as many call a success as not; they count as none.
        unsure: answers that say neither.
        raters: names of the people.
        between: agreement of every two people on what both are sure about.
        again: the same person's two answers to the same question, of all people together.
    """

    success: Share
    undecided: int
    unsure: int
    raters: tuple[str, ...]
    between: tuple[Agreement, ...]
    again: Share


def human_success(labels: Sequence[HumanLabel]) -> HumanSuccess:
    """Sum up what people say."""
    said = [float(np.mean(values)) for values in labels_by_frame(labels).values()]
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
        common = [place for place in first[one] if place in first[other]]
        if common:
            ours = [first[one][place] for place in common]
            theirs = [first[other][place] for place in common]
            same = share(a == b for a, b in zip(ours, theirs, strict=True))
            between.append(Agreement(one, other, same, cohens_kappa(ours, theirs)))
    again = [value == first[rater].get(place) for rater in raters for place, value in second[rater].items()]
    return HumanSuccess(
        share(value > 0.5 for value in said),
        said.count(0.5),
        sum(label.value is None for label in labels),
        raters,
        tuple(between),
        share(again),
    )
