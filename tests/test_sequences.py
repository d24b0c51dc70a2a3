"""From turns to passages, and how an update is divided: no sampled token is lost, doubled or shown the wrong past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.agents.sequences import (
    TrainingSequence,
    build_sequences,
    build_targets,
    count_turns,
    microbatches,
    minibatches,
)
from sightline.agents.types import Advantages, Trajectory, Turn
from sightline.models.vlm.types import Prompt
from small_trajectories import turn

PICTURE = 99


def prompt_of(ids: Sequence[int]) -> Prompt:
    """With a row of pixels for each picture token, numbered by what follows it, and a type for each token."""
    array = np.array(ids, np.int64)
    shown = [float(ids[i + 1]) for i in range(len(ids)) if ids[i] == PICTURE]
    return Prompt(array, {"types": torch.tensor(array == PICTURE)}, {"pixels": torch.tensor(shown)[:, None]})


def windowed(replies: Sequence[Sequence[int]], window: int) -> Trajectory:
    """An episode as a model is shown it: the last turns, each a picture, its number, the reply and an end."""
    turns: list[Turn] = []
    for i, reply in enumerate(replies):
        ids: list[int] = [1]
        for j in range(max(0, i - window + 1), i):
            ids += [PICTURE, 50 + j, *replies[j], 2]
        turns.append(turn(prompt=prompt_of([*ids, PICTURE, 50 + i]), ids=reply, value=float(i)))
    return Trajectory(0, 0, turns)


def advantages_for(trajectory: Trajectory, values: bool = True) -> Advantages:
    advantages = np.arange(len(trajectory.turns)) + 0.5
    return Advantages(advantages, advantages + 10 if values else None)


def sequences_of(*trajectories: Trajectory) -> list[TrainingSequence]:
    return build_sequences(trajectories, [advantages_for(each) for each in trajectories])


def ids_of(sequence: TrainingSequence) -> np.ndarray:
    return np.concatenate([sequence.tokens.prompt.ids, sequence.tokens.reply])


class TestMerging:
    def test_a_growing_conversation_is_one_passage(self) -> None:
        played = windowed([[7, 8], [9], [7, 7, 7]], window=3)
        (sequence,) = sequences_of(played)
        # 1, picture, 50, [7, 8], 2, picture, 51, [9], 2, picture, 52, [7, 7, 7]
        assert ids_of(sequence).tolist() == [1, 99, 50, 7, 8, 2, 99, 51, 9, 2, 99, 52, 7, 7, 7]
        assert [(span.start, span.end) for span in sequence.tokens.spans] == [(3, 5), (8, 9), (12, 15)]
        assert [one.span for one in sequence.turns] == list(sequence.tokens.spans)
        assert sequence.tokens.length == 15
        assert sequence.tokens.prompt.per_picture["pixels"].flatten().tolist() == [50, 51, 52]

    def test_what_is_learned_of_each_turn(self) -> None:
        played = windowed([[7, 8], [9, 5]], window=2)
        played.turns[1] = replace(played.turns[1], choice=1, choices=(5, 6), on_policy=False)
        ((first, second),) = [sequence.turns for sequence in sequences_of(played)]
        assert [first.turn, second.turn] == played.turns
        assert (first.advantage, first.value_target) == (0.5, 10.5)
        assert (second.advantage, second.value_target) == (1.5, 11.5)
        assert first.span.choice is None
        assert (second.span.start, second.span.choice, second.span.choices) == (8, 9, (5, 6))

    def test_sequences_that_are_only_scored_have_no_advantages(self) -> None:
        played = windowed([[7, 8], [9, 5]], window=2)
        ((first, second),) = [sequence.turns for sequence in build_sequences([played])]
        assert [(one.advantage, one.value_target) for one in (first, second)] == [(0.0, None)] * 2
        assert [one.span for one in (first, second)] == [one.span for one in sequences_of(played)[0].turns]

    def test_a_short_window_is_not_merged(self) -> None:
        assert len(sequences_of(windowed([[7], [7], [7]], window=1))) == 3
        # the second prompt extends the first; the third has dropped it
        assert [count_turns([sequence]) for sequence in sequences_of(windowed([[7], [7], [7]], window=2))] == [2, 1]

    def test_episodes_are_never_merged(self) -> None:
        played = windowed([[7], [8]], window=2)
        halves = [Trajectory(0, i, [one]) for i, one in enumerate(played.turns)]
        assert len(sequences_of(*halves)) == 2

    def test_another_reply_than_the_sampled_one_is_not_merged(self) -> None:
        played = windowed([[7, 8], [9]], window=2)
        assert played.turns[1].prompt is not None
        ids = played.turns[1].prompt.ids.copy()
        ids[4] = 6
        played.turns[1] = replace(played.turns[1], prompt=replace(played.turns[1].prompt, ids=ids))
        assert len(sequences_of(played)) == 2

    @pytest.mark.parametrize(
        "tensors",
        [
            {"per_picture": {"pixels": torch.tensor([[51.0], [50.0]])}},  # other order
            {"per_picture": {"pixels": torch.tensor([[50.0, 0.0], [51.0, 0.0]])}},  # other shape
            {"per_picture": {"pixels": torch.tensor([[50], [51]])}},  # other dtype
            {"per_picture": {}},
            {"per_token": {"types": torch.tensor([True] * 8)}},
            {"per_token": {}},
            {"per_token": {"types": torch.tensor([0, 1, 0, 0, 0, 0, 1, 0]) == 1, "more": torch.zeros(8)}},
        ],
    )
    def test_other_tensors_are_not_merged(self, tensors: dict[str, dict[str, torch.Tensor]]) -> None:
        played = windowed([[7, 8], [9]], window=2)
        assert len(sequences_of(played)) == 1
        assert played.turns[1].prompt is not None
        played.turns[1] = replace(played.turns[1], prompt=replace(played.turns[1].prompt, **tensors))
        assert len(sequences_of(played)) == 2

    def test_what_cannot_be_learned_from_is_left_out(self) -> None:
        played = windowed([[7], [8], [9]], window=1)
        played.turns[1] = replace(played.turns[1], prompt=None)
        others = windowed([[7]], window=1)
        found = build_sequences([others, played], [None, advantages_for(played)])
        assert [sequence.turns[0].advantage for sequence in found] == [0.5, 2.5]
        assert sequences_of(windowed([[]], window=1)) == []

    @given(
        st.lists(st.lists(st.integers(3, 9), min_size=1, max_size=4), min_size=1, max_size=6),
        st.integers(1, 6),
    )
    def test_every_sampled_token_once_with_its_own_past(self, replies: list[list[int]], window: int) -> None:
        played = windowed(replies, window)
        found = sequences_of(played)
        scored = [(sequence, one) for sequence in found for one in sequence.turns]
        assert len(scored) == len(replies)
        for original, (sequence, one) in zip(played.turns, scored, strict=True):
            assert original.prompt is not None
            ids = ids_of(sequence)
            assert ids[one.span.start : one.span.end].tolist() == original.sample.ids.tolist()
            assert ids[: one.span.start].tolist() == original.prompt.ids.tolist()
            pictures = int((original.prompt.ids == PICTURE).sum())
            shown = sequence.tokens.prompt.per_picture["pixels"][:pictures]
            assert torch.equal(shown, original.prompt.per_picture["pixels"])
        assert all(sequence.tokens.spans[-1].end == sequence.tokens.length for sequence in found)
        if window >= len(replies):
            assert len(found) == 1


class TestTargets:
    def test_flat(self) -> None:
        played = windowed([[7, 8], [9, 5, 5]], window=2)
        played.turns[1] = replace(played.turns[1], choice=1, choices=(5, 6), on_policy=False)
        found = build_targets(sequences_of(played, windowed([[4]], 1)))
        assert found.turn_of.tolist() == [0, 0, 1, 1, 1, 2]
        assert found.action.tolist() == [False, True, False, False, True, True]
        assert found.old_logprobs.tolist() == [-0.5] * 6
        assert found.advantages.tolist() == [0.5, 1.5, 0.5]
        assert found.returns is not None and found.returns.tolist() == [10.5, 11.5, 10.5]
        assert found.old_values.tolist() == [0, 1, 0]
        assert found.on_policy.tolist() == [True, False, True]
        assert found.has_choice.tolist() == [False, True, False]
        assert found.advantages.dtype == found.old_logprobs.dtype == torch.float32

    def test_without_values(self) -> None:
        played = windowed([[7]], 1)
        found = build_sequences([played], [advantages_for(played, values=False)])
        assert build_targets(found).returns is None
        with pytest.raises(ValueError, match="some have none"):
            build_targets([*found, *sequences_of(played)])


def many(lengths: Sequence[int]) -> list[TrainingSequence]:
    """Lessons of so many turns."""
    return sequences_of(*(windowed([[3 + i % 7]] * n, window=n) for i, n in enumerate(lengths)))


class TestDivision:
    @given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(1, 12))
    def test_nothing_is_lost(self, lengths: list[int], per_step: int) -> None:
        found = many(lengths)
        turns = [len(sequence.turns) for sequence in found]
        indices = minibatches(turns, per_step, seed=1, update=2, epoch=3)
        assert sorted(chain.from_iterable(indices)) == list(range(len(found)))
        steps = [[found[i] for i in step] for step in indices]
        assert max(map(count_turns, steps)) <= per_step + 4
        for step in steps:
            passes = microbatches(step, 3)
            assert sorted(map(id, chain.from_iterable(passes))) == sorted(map(id, step))
            assert all(count_turns(part) <= 3 or len(part) == 1 for part in passes)

    @given(st.integers(1, 100), st.integers(1, 40))
    def test_steps_are_alike(self, count: int, per_step: int) -> None:
        sizes = [len(step) for step in minibatches([1] * count, per_step, 1, 2, 3)]
        assert len(sizes) == -(-count // per_step)
        assert max(sizes) <= per_step and max(sizes) - min(sizes) <= 1

    def test_order_follows_seed_update_and_epoch(self) -> None:
        def order(**which: int) -> list[int]:
            return list(chain.from_iterable(minibatches([1] * 20, 4, **which)))

        first = order(seed=1, update=2, epoch=3)
        assert first == order(seed=1, update=2, epoch=3)
        others = [order(seed=2, update=2, epoch=3), order(seed=1, update=3, epoch=3), order(seed=1, update=2, epoch=2)]
        assert first not in others and first != list(range(20))

    def test_nothing_to_learn(self) -> None:
        assert minibatches([], 4, 1, 2, 3) == [] and microbatches([], 4) == []

    def test_similar_lengths_share_a_pass(self) -> None:
        replies = [[5] * n for n in (9, 1, 8, 2)]
        found = sequences_of(*(windowed([reply], 1) for reply in replies))
        assert [[len(one.tokens.reply) for one in part] for part in microbatches(found, 2)] == [[1, 2], [8, 9]]
