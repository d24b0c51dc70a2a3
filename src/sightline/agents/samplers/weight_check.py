"""Check that a server has loaded the weights that it says it has, by its answers to some probes.

When weights are published, the policy answers the probes greedily; when a server has loaded them, so does the server,
and their log-probabilities agree up to rounding. By then the policy may have learned on, so its answers are stored.

The size of rounding errors is not known beforehand, and one update may change the answers by less. So a server is said
to have older weights if its answers are clearly nearer to those of the older weights than to those of the new ones. The
older weights are the last ones that were clearly different from those before, so that small changes add up.

    weights        0      1      2      3           one number stands for all log-probabilities
    policy        -.50   -.41   -.40   -.10
    server        -.50   -.41   -.40   -.40         says to have loaded 3: refused, for .01 to 1 is nearer than .30 to 3
    told apart     0      1      1                  2 is not told apart from 1, up to rounding
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sightline.agents.samplers import Conversation
from sightline.errors import RunFailed
from sightline.images import Picture
from sightline.models.vlm.types import ChatTurn, Sample

PROBES = 4
"""Number of probes."""
PROBED = 16
"""Tokens of an answer to a probe, at most."""
FAR_OFF = 0.2
"""Mean difference, in nats, between log-probabilities from which on a server is said to serve something else; rounding
makes some thousandths, some hundredths in bfloat16."""
TELLING = 1e-3
"""Mean difference, in nats, below which two sets of weights are not told apart."""
CLEARLY = 3.0
"""Times that answers have to be nearer to some weights than to others."""


def probes(with_pictures: bool = True) -> list[Conversation]:
    """Prompts with pictures of noise: no model is sure of its answer, so the answer changes with any weight.

    Args:
        with_pictures: False for a language model, which is shown noise in digits.
    """
    if not with_pictures:
        digits = np.random.default_rng(0).integers(0, 10, (PROBES, 60))
        return [[ChatTurn(f"What is this? {''.join(map(str, line))}", ())] for line in digits]
    noise = np.random.default_rng(0).integers(0, 256, (PROBES, 96, 96, 3), np.uint8)
    conversations: list[Conversation] = []
    for number, pixels in enumerate(noise):
        conversations.append([ChatTurn(f"What is this? ({number})", (Picture(pixels),))])
    return conversations


class WeightCheck:
    """The policy's answers to the probes by the number of its weights, and their comparison with those of a server."""

    def __init__(self) -> None:
        self._expected: dict[int, Sequence[Sample]] = {}
        self._told_apart: Sequence[Sample] | None = None

    def expect(self, version: int, answers: Sequence[Sample]) -> None:
        """Store the policy's answers with weights of that number."""
        self._expected[version] = answers

    def forget(self, version: int) -> None:
        """Drop the answers of weights that will not be loaded any more."""
        self._expected.pop(version, None)

    def compare(self, version: int, answers: Sequence[Sample], who: str) -> None:
        """Compare a server's answers with the policy's answers with weights of that number, if those are stored.

        Args:
            answers: to each probe, greedy, with log-probabilities at temperature 1.
            who: the server, for messages.

        Raises:
            RunFailed: it has older weights, or another model.
        """
        expected = self._expected.get(version)
        if expected is None:
            return
        gap = _gap(answers, expected)
        older = math.inf if self._told_apart is None else _gap(answers, self._told_apart)
        if gap > max(TELLING, CLEARLY * older):
            raise RunFailed(
                f"{who} says that it has loaded weights {version}, but finds its replies as probable as older ones do "
                f"({older:.1g} nats a token from them, {gap:.1g} from the new ones)"
            )
        if gap > FAR_OFF:
            raise RunFailed(
                f"{who} finds its replies {gap:.1f} nats a token more or less probable than the policy does: it serves "
                "another model"
            )
        if older > max(TELLING, CLEARLY * gap):
            self._told_apart = expected


def _gap(answers: Sequence[Sample], expected: Sequence[Sample]) -> float:
    """Mean difference, in nats, between the log-probabilities of two greedy answers to each probe.

    Tokens count up to the first different one, and that one, too: if only rounding differs, the most probable token is
    about as probable in both answers.
    """
    gaps = []
    for answer, reference in zip(answers, expected, strict=True):
        end = min(len(answer.ids), len(reference.ids))
        different = np.flatnonzero(answer.ids[:end] != reference.ids[:end])
        if len(different):
            end = different[0] + 1
        gaps.append(np.abs(answer.logprobs[:end] - reference.logprobs[:end]))
    return float(np.mean(np.concatenate(gaps)))
