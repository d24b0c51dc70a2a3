"""Feedback for an Elo ladder of goal frames: matches between candidates (GoalLadder, NeurIPS 2025).

The ladder itself, and the reward that is nearness to its top, are in `sightline.rewards.learned.ladder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from sightline.preferences.feedback.base import FeedbackConfig, Learner
from sightline.rewards.learned.config import FittingConfig, RewardNetConfig

if TYPE_CHECKING:
    from sightline.labels.types import Question, Segment
    from sightline.rewards.learned.ladder import Candidate
    from sightline.rewards.learned.reward import LadderReward


class LadderConfig(FeedbackConfig):
    """An Elo ladder of candidate goal frames; the reward is nearness to its top (GoalLadder, NeurIPS 2025)."""

    kind: Literal["ladder"] = "ladder"
    size: int = Field(default=10, ge=2)
    """Candidates on the ladder."""
    k_factor: float = Field(default=32.0, gt=0)
    """Elo K-factor: the most that one comparison moves a rating."""

    noun: ClassVar[str] = "pairs"

    def check(self, network: RewardNetConfig, segment: int) -> None:
        if network.encoder_name is None:
            raise ValueError("feedback.kind=ladder measures nearness between embeddings; say model.kind=embeddings")
        if segment != 1:
            raise ValueError("feedback.kind=ladder judges single frames; say segment=1")

    def facts(self) -> str:
        return f"ladder, {self.size} rungs"

    def build_reward(self, network: RewardNetConfig, fitting: FittingConfig, **options: Any) -> LadderReward:
        from sightline.rewards.learned.reward import LadderReward

        # Nothing is drawn or trained: these two are of networks.
        options.pop("seed")
        options.pop("device")
        return LadderReward(network, **options)

    def memory(self) -> LadderMemory:
        return LadderMemory(self.size, self.k_factor)

    def compose(
        self, learner: Learner, count: int, rng: np.random.Generator
    ) -> list[tuple[tuple[Segment, ...], tuple[np.ndarray, ...]]]:
        from sightline.rewards.learned.ladder import Candidate

        memory: LadderMemory = learner.memory
        pool = learner.pool

        # Any segment of the pool may challenge; of those that look the same, one does.
        places = {digest: i for i, digest in enumerate(pool.digests)}
        newcomers = []
        for digest, i in places.items():
            embedding = _flat(pool.features[i : i + 1])[0]
            newcomers.append(Candidate(digest, embedding))
        previous = {frozenset(pair) for pair in learner.asked}

        def segment_of(candidate: Candidate) -> Segment:
            # One on the ladder may have left the pool long ago.
            return memory.segments.get(candidate.digest) or pool.segment(places[candidate.digest])

        questions: list[tuple[tuple[Segment, ...], tuple[np.ndarray, ...]]] = []
        for first, second in memory.ladder.propose(count, newcomers, rng, previous):
            segments = (segment_of(first), segment_of(second))
            features = (first.embedding[None], second.embedding[None])
            questions.append((segments, features))
        return questions

    def learn(
        self, learner: Learner, labels: Sequence[tuple[Question, tuple[np.ndarray, ...], float]]
    ) -> dict[str, float | None]:
        from sightline.rewards.learned.ladder import Candidate

        memory: LadderMemory = learner.memory
        by_digest = dict(memory.segments)
        for question, features, value in labels:
            first, second = question.segments
            by_digest[first.digest] = first
            by_digest[second.digest] = second
            memory.ladder.record(
                Candidate(first.digest, features[0][0]), Candidate(second.digest, features[1][0]), value
            )
        # Only the candidates on the ladder can be asked about again.
        on_ladder = [entry.candidate.digest for entry in memory.ladder.entries]
        memory.segments = {digest: by_digest[digest] for digest in on_ladder}
        reward: Any = learner.reward
        reward.top = memory.ladder.top()
        return {}


class LadderMemory:
    """The ladder, and the segments of the candidates on it.

    Args:
        size: candidates on the ladder.
        k_factor: how far one comparison moves a rating.
    """

    def __init__(self, size: int, k_factor: float) -> None:
        from sightline.rewards.learned.ladder import Ladder

        self.ladder = Ladder(size, k_factor)
        self.segments: dict[str, Segment] = {}

    def state(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {
            "ladder": self.ladder.state(),
            "segments": {digest: segment.state() for digest, segment in self.segments.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        from sightline.labels.types import Segment

        self.ladder.restore(state["ladder"])
        self.segments = {digest: Segment.of(segment) for digest, segment in state["segments"].items()}


def _flat(features: np.ndarray) -> np.ndarray:
    """Flat features [N, L, …] -> float32[N, D], between which distances are measured."""
    from sightline.rewards.novelty import flat

    return flat(features).astype(np.float32)
