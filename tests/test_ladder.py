"""The ladder: Elo's numbers, who comes on it and who leaves, and whether the best ends on top."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.rewards.learned.ladder import START, Candidate, Ladder, expected, nearness
from sightline.runs.state import read_state, write_state


def candidates(*values: float, name: str = "") -> list[Candidate]:
    return [Candidate(f"{name}{value}", np.array([value, 0], np.float32)) for value in values]


def on(ladder: Ladder) -> dict[str, float]:
    """Digest -> rating."""
    return {entry.candidate.digest: entry.rating for entry in ladder.entries}


def key(match: tuple[Candidate, Candidate]) -> frozenset[str]:
    return frozenset(candidate.digest for candidate in match)


def test_elo_by_hand() -> None:
    assert expected(1000, 1000) == 0.5
    assert expected(1400, 1000) == pytest.approx(10 / 11)
    assert expected(1000, 1200) == pytest.approx(0.2402531)
    a, b = candidates(1, 2)
    ladder = Ladder(4, 32)
    ladder.record(a, b, 1.0)
    assert on(ladder) == {b.digest: 1016, a.digest: 984} or on(ladder) == {a.digest: 984, b.digest: 1016}
    ladder.record(a, b, 0.0)  # expected of a: 1 / (1 + 10^(32/400)) = 0.4540768, so 32 * 0.5459232 = 17.4695
    assert on(ladder) == pytest.approx({a.digest: 1001.46954, b.digest: 998.53046})
    ladder.record(b, a, 0.5)  # expected of b: 0.4957705, so b gains 32 * 0.0042295 = 0.1353
    assert on(ladder) == pytest.approx({a.digest: 1001.33420, b.digest: 998.66580})
    assert [entry.matches for entry in ladder.entries] == [3, 3]


def test_winners_come_onto_a_full_ladder_and_the_weakest_leaves() -> None:
    a, b, c, d = candidates(1, 2, 3, 4)
    ladder = Ladder(2, 32)
    ladder.record(a, b, 0.0)
    assert on(ladder) == {a.digest: 1016, b.digest: 984}
    ladder.record(c, a, 1.0)  # a newcomer that loses does not stay
    assert set(on(ladder)) == {a.digest, b.digest}
    ladder.record(c, b, 0.5)  # nor does one that draws
    assert set(on(ladder)) == {a.digest, b.digest}
    foot = on(ladder)[b.digest]
    ladder.record(b, d, 1.0)  # this one starts as low as the weakest, and beats it
    assert on(ladder) == pytest.approx({a.digest: on(ladder)[a.digest], d.digest: foot + 16})


def test_a_loser_comes_on_while_there_is_room() -> None:
    a, b, c = candidates(1, 2, 3)
    ladder = Ladder(3, 32)
    ladder.record(a, b, 0.0)
    ladder.record(b, c, 0.0)
    assert set(on(ladder)) == {a.digest, b.digest, c.digest}
    assert sum(on(ladder).values()) == pytest.approx(3 * START)


def test_first_rounds_are_pairs_of_the_pool() -> None:
    pool = candidates(*range(30))
    matches = Ladder(5, 32).propose(10, pool, np.random.default_rng(0))
    met = {digest for match in matches for digest in key(match)}
    assert len(matches) == 10
    assert all(len(key(match)) == 2 for match in matches)
    assert len(met) == 10, "five stand in for the ladder, five challenge them"
    assert Ladder(5, 32).propose(10, [], np.random.default_rng(0)) == []
    assert Ladder(5, 32).propose(10, pool[:1], np.random.default_rng(0)) == []
    assert len(Ladder(5, 32).propose(10, pool[:2], np.random.default_rng(0))) == 1


def test_half_of_the_matches_are_challenges_and_half_are_among_the_candidates() -> None:
    standing, pool = candidates(*range(6), name="on "), candidates(*range(50))
    ladder = Ladder(6, 32)
    for a, b in zip(standing[::2], standing[1::2], strict=True):
        ladder.record(a, b, 0.5)
    matches = ladder.propose(9, pool, np.random.default_rng(0))
    challenges = [match for match in matches if len(key(match) & set(on(ladder))) == 1]
    among = [match for match in matches if key(match) <= set(on(ladder))]
    assert (len(challenges), len(among)) == (5, 4)
    assert len({key(match) for match in matches}) == 9
    assert len(ladder.propose(9, [], np.random.default_rng(0))) == 9
    assert len(ladder.propose(90, pool, np.random.default_rng(0))) == 50 + 15


def test_challengers_meet_the_strong_more_often() -> None:
    weak, strong, *pool = candidates(*range(2002))
    ladder = Ladder(2, 32)
    ladder.restore(
        {
            "embeddings": np.stack([weak.embedding, strong.embedding]),
            "digests": np.array([weak.digest, strong.digest]),
            "ratings": np.array([1000.0, 1400.0]),
            "matches": np.array([3, 3]),
        }
    )
    met = [key(match) for match in ladder.propose(2000, pool, np.random.default_rng(0), {key((weak, strong))})]
    share = sum(strong.digest in match for match in met) / len(met)
    assert len(met) == 2000
    assert share == pytest.approx(10 / 11, abs=0.03)


def test_whoever_has_played_least_plays_next() -> None:
    old, older, new = candidates(1, 2, 3)
    ladder = Ladder(3, 32)
    for _ in range(3):
        ladder.record(old, older, 0.0)
    ladder.record(new, older, 1.0)
    first = ladder.propose(1, [], np.random.default_rng(0))
    assert key(first[0]) == key((new, old)), "the least tested meets the strongest"


def test_everybody_plays_about_as_often() -> None:
    standing = candidates(*range(6))
    ladder = Ladder(6, 32)
    for a, b in zip(standing[::2], standing[1::2], strict=True):
        ladder.record(a, b, 0.5)
    for count, spread in ((3, 0), (6, 2), (9, 2)):
        played = [c.digest for match in ladder.propose(count, [], np.random.default_rng(0)) for c in match]
        times = [played.count(candidate.digest) for candidate in standing]
        assert max(times) - min(times) <= spread


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_match_is_proposed_twice_and_nobody_plays_itself(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    ladder = Ladder(data.draw(st.integers(2, 4), "size"), 32)
    asked: set[frozenset[str]] = set()
    for _ in range(3):
        pool = candidates(*data.draw(st.lists(st.integers(0, 6), max_size=7), "pool"))
        matches = ladder.propose(data.draw(st.integers(0, 9), "count"), pool, rng, asked)
        keys = [key(match) for match in matches]
        assert all(len(k) == 2 for k in keys)
        assert len(set(keys)) == len(keys) and not set(keys) & asked
        asked |= set(keys)
        for first, second in matches:
            ladder.record(first, second, data.draw(st.sampled_from([0.0, 0.5, 1.0]), "value"))
        assert len(on(ladder)) == len(ladder.entries) <= ladder.size


def climb(seed: int, wrong: float, rounds: int = 8) -> tuple[Ladder, float]:
    """A ladder after some rounds with a comparer that errs, and how many of the frames are better than its top."""
    rng = np.random.default_rng(seed)
    ladder, asked, seen = Ladder(10, 32), set[frozenset[str]](), np.empty(0)
    for _ in range(rounds):
        values = rng.random(200)
        seen = np.append(seen, values)
        for first, second in ladder.propose(60, candidates(*values), rng, asked):
            asked.add(key((first, second)))
            second_wins = bool(second.embedding[0] > first.embedding[0])
            ladder.record(first, second, float(second_wins != (rng.random() < wrong)))
    top = ladder.top()
    assert top is not None
    return ladder, float((seen > top[0]).mean())


@pytest.mark.parametrize(("wrong", "share"), [(0.0, 0.04), (0.2, 0.15)])
def test_one_of_the_best_ends_on_top(wrong: float, share: float) -> None:
    assert np.median([climb(seed, wrong)[1] for seed in range(9)]) < share


def test_the_state_goes_through_a_file_and_back(tmp_path: Path) -> None:
    ladder, _ = climb(0, 0.2, rounds=2)
    copy = Ladder(10, 32)
    write_state(tmp_path / "ladder.safetensors", ladder.state())
    copy.restore(read_state(tmp_path / "ladder.safetensors"))
    pool = candidates(*np.linspace(0, 1, 40))
    for one in (ladder, copy):
        for first, second in one.propose(20, pool, np.random.default_rng(5)):
            one.record(first, second, float(second.embedding[0] > first.embedding[0]))
    assert on(copy) == on(ladder)
    for a, b in zip(ladder.state().values(), copy.state().values(), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def test_an_empty_ladder_has_no_top_and_a_state() -> None:
    ladder = Ladder(3, 32)
    assert ladder.top() is None
    ladder.restore(ladder.state())
    assert ladder.entries == [] and ladder.top() is None


def test_nearness_by_hand() -> None:
    rewards = nearness(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]], np.float16), np.zeros(2, np.float32))
    assert rewards.dtype == np.float32
    assert rewards.tolist() == [-5, 0, -1]
