"""The replay buffer that waits for rewards, and relabelling from kept embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sightline.control.relabelling import relabel_with_words
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.reward_worker import RewardWorker
from sightline.errors import BadInput, RunFailed
from sightline.models.encoders import load_encoder
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.zero_shot import ZeroShotReward
from sightline.runs.archive import Archive
from sightline.runs.state import read_state, write_state

ENVS = 3
HALF_A_STEP = np.array([0.5, 0], np.float32)


def make(
    rows: int, envs: int = ENVS, feature_shape: tuple[int, ...] | None = None, **options: Any
) -> CommittedReplayBuffer:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return CommittedReplayBuffer(
        rows * envs, space, spaces.Discrete(5), "cpu", n_envs=envs, feature_shape=feature_shape, **options
    )


def add(buffer: CommittedReplayBuffer, step: int, done: bool = False, timeout: bool = False) -> None:
    """A transition says in its states which one it is: (step, env) -> (step + 0.5, env)."""
    envs = np.arange(buffer.n_envs)
    states = np.stack([np.full(buffer.n_envs, step), envs], axis=1).astype(np.float32)
    infos: list[dict[str, Any]] = [{"TimeLimit.truncated": timeout} for _ in envs]
    actions = (step + envs)[:, None] % 5
    buffer.add(states, states + HALF_A_STEP, actions, -envs.astype(np.float32) - 1, np.full(len(envs), done), infos)


def reward_of(step: Any, env: Any) -> Any:
    return np.asarray(step) * 10.0 + env


def commit(buffer: CommittedReplayBuffer, steps: list[int], rows: np.ndarray) -> None:
    buffer.commit(rows, reward_of(np.array(steps)[:, None], np.arange(buffer.n_envs)[None]))


def check_sample(buffer: CommittedReplayBuffer, committed: set[int], count: int = 64) -> None:
    drawn = buffer.sample(count)
    states = drawn.observations.numpy()
    assert set(states[:, 0].astype(int)) <= committed, "drawn before its reward was committed, or overwritten"
    assert drawn.observations.shape == (count, 2)
    assert drawn.rewards.shape == drawn.dones.shape == (count, 1)
    np.testing.assert_array_equal(drawn.rewards.numpy()[:, 0], reward_of(states[:, 0], states[:, 1]))
    np.testing.assert_array_equal(drawn.next_observations.numpy(), states + HALF_A_STEP)
    np.testing.assert_array_equal(drawn.actions.numpy()[:, 0], (states[:, 0] + states[:, 1]) % 5)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(2, 9),
    doings=st.lists(st.sampled_from(["add", "add", "take", "commit", "sample"]), max_size=70),
    seed=st.integers(0, 1000),
)
def test_only_committed_transitions_are_drawn(rows: int, doings: list[str], seed: int) -> None:
    """A model of the buffer: which steps wait to be taken, which were taken, which are committed and still stored."""
    np.random.seed(seed)
    buffer = make(rows)
    stored: dict[int, int] = {}
    fresh: list[int] = []
    taken: list[tuple[list[int], np.ndarray]] = []
    committed: set[int] = set()
    step = 0
    for doing in doings:
        if doing == "add":
            overwritten = stored.get(step % rows)
            if overwritten is not None and overwritten not in committed:
                with pytest.raises(RunFailed, match="too small"):
                    add(buffer, step)
                continue
            add(buffer, step)
            committed.discard(-1 if overwritten is None else overwritten)
            stored[step % rows] = step
            fresh.append(step)
            step += 1
        elif doing == "take" and fresh:
            taken.append((fresh, buffer.take_new_rows()))
            assert taken[-1][1].tolist() == [s % rows for s in fresh]
            fresh = []
        elif doing == "commit" and taken:
            steps, places = taken.pop(0)
            commit(buffer, steps, places)
            committed |= set(steps)
        elif committed:
            check_sample(buffer, committed)
        else:
            with pytest.raises(RunFailed, match="no transition has a reward yet"):
                buffer.sample(4)
    assert len(buffer.filled_rows()) == len(committed)


def test_drawing_is_uniform_over_what_is_committed() -> None:
    np.random.seed(0)
    buffer = make(10)
    for step in range(14):  # rows 0 to 3 hold steps 10 to 13
        add(buffer, step)
        if step < 11:
            commit(buffer, [step], buffer.take_new_rows())
    states = buffer.sample(20_000).observations.numpy()
    which, counts = np.unique(states, axis=0, return_counts=True)
    assert sorted(set(which[:, 0])) == [4, 5, 6, 7, 8, 9, 10]
    assert len(which) == 7 * ENVS
    assert chisquare(counts).pvalue > 1e-3
    # and it notices what is not uniform: twice the weight on one of 21
    assert chisquare(counts + (np.arange(len(counts)) == 0) * 900).pvalue < 1e-6


def test_wrapping_onto_an_uncommitted_row_is_refused_and_harms_nothing() -> None:
    buffer = make(4)
    for step in range(4):
        add(buffer, step)
    rows = buffer.take_new_rows()
    commit(buffer, [0, 1], rows[:2])
    for step in (4, 5):
        add(buffer, step)
    with pytest.raises(RunFailed, match="too small") as caught:
        add(buffer, 6)
    assert "\n" not in str(caught.value)
    commit(buffer, [2, 3], rows[2:])
    check_sample(buffer, {2, 3})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rewards_that_are_no_numbers_are_refused(bad: float) -> None:
    buffer = make(5)
    add(buffer, 0)
    commit(buffer, [0], buffer.take_new_rows())
    add(buffer, 1)
    add(buffer, 2)
    rewards = np.zeros((2, ENVS))
    rewards[1, 2] = bad
    with pytest.raises(RunFailed, match="1 of 6 rewards are not finite") as caught:
        buffer.commit(buffer.take_new_rows(), rewards)
    assert "\n" not in str(caught.value)
    assert buffer.filled_rows().tolist() == [0]
    check_sample(buffer, {0})


@pytest.mark.parametrize("every", [1, 4, 100], ids=["often", "now and then", "once"])
def test_state_and_restore(tmp_path: Path, every: int) -> None:
    """Through files, whose rows were archived at several times, also when rows were overwritten in between."""

    def fill(steps: int, archive: Archive) -> CommittedReplayBuffer:
        buffer = make(6, feature_shape=(4,))
        for step in range(steps):
            add(buffer, step, done=step % 3 == 2, timeout=step % 2 == 0)
            if step < steps - 2:
                rows = buffer.take_new_rows()
                commit(buffer, [step], rows)
            if step % every == every - 1:
                buffer.archive_to(archive)
        buffer.archive_to(archive)
        return buffer

    for steps in (3, 6, 10, 23):
        folder = tmp_path / str(steps)
        folder.mkdir()
        archive = Archive(folder, "transitions")
        buffer, other = fill(steps, archive), make(6, feature_shape=(4,))
        write_state(folder / "state.safetensors", {"buffer": buffer.state(), "archive": archive.state()})
        state, again = read_state(folder / "state.safetensors"), Archive(folder, "transitions")
        again.restore(state["archive"])
        other.restore(state["buffer"], again)
        for name in ("observations", "next_observations", "actions", "rewards", "true_rewards", "features", "dones"):
            np.testing.assert_array_equal(getattr(other, name), getattr(buffer, name), err_msg=name)
        np.testing.assert_array_equal(other.committed, buffer.committed)
        assert sum(part.end - part.start for part in archive.parts) < 6 + max(every, 6), "what is overwritten is let go"
        for one in (buffer, other):  # what was pending goes on
            np.random.seed(1)
            commit(one, [steps - 2, steps - 1], one.take_new_rows())
            add(one, steps)
        assert buffer.pos == other.pos
        assert buffer.full == other.full
        assert buffer.size() == other.size()
        np.random.seed(1)
        drawn = buffer.sample(50)
        np.random.seed(1)
        for one, two in zip(drawn, other.sample(50), strict=True):
            assert (one is None and two is None) or (one == two).all()


def test_time_limits_bootstrap_and_true_ends_do_not() -> None:
    buffer = make(4)
    for step, (done, timeout) in enumerate([(False, False), (True, False), (True, True)]):
        add(buffer, step, done, timeout)
    commit(buffer, [0, 1, 2], buffer.take_new_rows())
    drawn = buffer.sample(200)
    expected = {0: 0.0, 1: 1.0, 2: 0.0}
    assert {(int(s), float(d)) for s, d in zip(drawn.observations[:, 0], drawn.dones[:, 0], strict=True)} == set(
        expected.items()
    )


def test_ground_truth_is_kept_beside_the_reward() -> None:
    buffer = make(4)
    add(buffer, 0)
    assert np.isnan(buffer.rewards[0]).all()
    commit(buffer, [0], buffer.take_new_rows())
    np.testing.assert_array_equal(buffer.true_rewards[0], [-1, -2, -3])
    np.testing.assert_array_equal(buffer.rewards[0], [0, 1, 2])


# -- returns over several steps ---------------------------------------------------------------------------------------


def fill_at_random(buffer: CommittedReplayBuffer, steps: int, waiting: int, seed: int) -> dict[tuple[int, int], Any]:
    """Add steps, the last `waiting` without reward; returns what was added: (step, env) -> reward, end, time limit."""
    rng = np.random.default_rng(seed)
    story: dict[tuple[int, int], Any] = {}
    for step in range(steps):
        ended, by_time = rng.random(ENVS) < 0.25, rng.random(ENVS) < 0.5
        timeouts = ended & by_time
        states = np.stack([np.full(ENVS, step), np.arange(ENVS)], axis=1).astype(np.float32)
        infos = [{"TimeLimit.truncated": bool(timeout)} for timeout in timeouts]
        buffer.add(states, states + HALF_A_STEP, np.zeros((ENVS, 1)), np.zeros(ENVS, np.float32), ended, infos)
        rewards = rng.normal(size=ENVS).astype(np.float32)
        if step < steps - waiting:
            buffer.commit(buffer.take_new_rows(), rewards[None])
        for env in range(ENVS):
            story[step, env] = float(rewards[env]), bool(ended[env]), bool(timeouts[env])
    return story


@pytest.mark.parametrize("n_steps", [2, 3, 5, 12])
@pytest.mark.parametrize(("rows", "steps"), [(20, 14), (20, 20), (9, 31), (9, 36)])
@pytest.mark.parametrize("waiting", [0, 3])
def test_returns_over_several_steps_by_independent_arithmetic(
    n_steps: int, rows: int, steps: int, waiting: int
) -> None:
    np.random.seed(0)
    buffer = make(rows, n_steps=n_steps, gamma=0.9)
    story = fill_at_random(buffer, steps, waiting, seed=steps)
    drawn = buffer.sample(400)
    assert drawn.discounts is not None
    assert all(part.dtype == drawn.rewards.dtype for part in (drawn.dones, drawn.discounts))
    lengths = set()
    for i, state in enumerate(drawn.observations.numpy()):
        first, env = int(state[0]), int(state[1])
        total, discount, last = 0.0, 1.0, first
        for step in range(first, min(first + n_steps, steps - waiting)):
            reward, ended, timeout = story[step, env]
            total, discount, last = total + discount * reward, discount * 0.9, step
            if ended:
                break
        _, ended, timeout = story[last, env]
        assert float(drawn.rewards[i, 0]) == pytest.approx(total, abs=1e-5)
        assert float(drawn.discounts[i, 0]) == pytest.approx(discount, rel=1e-5)
        assert float(drawn.dones[i, 0]) == float(ended and not timeout)
        assert drawn.next_observations[i].tolist() == [last + 0.5, env]
        lengths.add(last - first + 1)
    assert lengths >= set(range(1, min(n_steps, 3) + 1))


@pytest.mark.parametrize("n_steps", [2, 4])
def test_returns_over_several_steps_are_those_of_stable_baselines(n_steps: int) -> None:
    """Where everything is committed, cell by cell; the ring has wrapped."""
    from stable_baselines3.common.buffers import NStepReplayBuffer

    ours = make(9, n_steps=n_steps, gamma=0.9)
    fill_at_random(ours, 31, 0, seed=3)
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    theirs = NStepReplayBuffer(
        9 * ENVS, space, spaces.Discrete(5), "cpu", n_envs=ENVS, n_steps=n_steps, gamma=0.9
    )  # fmt: skip
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "pos", "full"):
        setattr(theirs, name, getattr(ours, name))
    rows = np.arange(9)
    for seed in range(20):
        np.random.seed(seed)
        columns = np.random.randint(0, ENVS, size=rows.shape)
        np.random.seed(seed)
        expected = theirs._get_samples(rows)
        for mine, its in zip(ours._sample_returns(rows, columns, None), expected, strict=True):
            assert mine is not None
            np.testing.assert_array_equal(mine.numpy(), its.numpy())  # type: ignore[union-attr]


def test_one_step_is_what_it_was() -> None:
    plain, one = make(9), make(9, n_steps=1, gamma=0.5)
    for buffer in (plain, one):
        fill_at_random(buffer, 31, 2, seed=3)
    np.random.seed(1)
    expected = plain.sample(50)
    np.random.seed(1)
    drawn = one.sample(50)
    assert drawn.discounts is None
    assert all((a == b).all() for a, b in zip(drawn[:5], expected[:5], strict=True))


# -- scoring one chunk behind -----------------------------------------------------------------------------------------


class Brightness(RewardModel):
    """Rewards the frame's first pixel: it shows where each frame's reward ends up."""

    def embed(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        return clip.frames[:, :, 0, 0, :2].astype(np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return reward_of(features[..., 0], features[..., 1]).astype(np.float32)


def clip_of(frames: np.ndarray) -> Clip:
    return Clip(np.zeros(frames.shape[:2], bool), frames=frames)


def frames_of_steps(steps: list[int]) -> np.ndarray:
    frames = np.zeros((len(steps), ENVS, 2, 2, 3), np.uint8)
    frames[..., 0] = np.array(steps)[:, None, None, None]
    frames[..., 1] = np.arange(ENVS)[None, :, None, None]
    return frames


@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_rewards_land_on_their_transitions_when_the_ring_wraps(chunk: int) -> None:
    buffer = make(13)
    scorer = RewardWorker(buffer, Brightness())
    step, committed = 0, set[int]()
    for turn in range(20):
        steps = list(range(step, step + chunk))
        for s in steps:
            add(buffer, s)
            committed.discard(s - 13)
        step += chunk
        before = scorer.end_of_chunk(clip_of(frames_of_steps(steps)))
        assert (before is None) == (turn == 0)
        if turn:
            committed |= set(range(step - 2 * chunk, step - chunk))
            check_sample(buffer, committed)
    scorer.finish()
    check_sample(buffer, set(range(step - 13, step)))
    scorer.close()


def test_a_pending_chunk_survives_saving() -> None:
    buffer = make(8)
    scorer = RewardWorker(buffer, Brightness())
    for s in range(3):
        add(buffer, s)
    scorer.end_of_chunk(clip_of(frames_of_steps([0, 1, 2])))
    state = scorer.state()
    scorer.close()
    assert len(buffer.filled_rows()) == 0
    other = RewardWorker(buffer, Brightness())
    other.restore(state)
    other.finish()
    other.close()
    check_sample(buffer, {0, 1, 2})


def test_an_error_while_scoring_comes_out() -> None:
    class Broken(Brightness):
        def embed(self, clip: Clip) -> np.ndarray:
            raise RuntimeError("out of memory")

    buffer = make(8)
    scorer = RewardWorker(buffer, Broken())
    add(buffer, 0)
    scorer.end_of_chunk(clip_of(frames_of_steps([0])))
    with pytest.raises(RunFailed, match=r"Broken\.embed failed: RuntimeError: out of memory"):
        scorer.finish()
    scorer.close()


# -- relabelling ------------------------------------------------------------------------------------------------------

FIRST: Any = {"goal": "pole vertically upright on top of the cart", "baseline": "pole and cart", "alpha": 0.5}
OTHERS: Any = [
    FIRST | {"alpha": 0.9},
    {"goal": "the cart at the right edge", "baseline": "pole and cart", "alpha": 0.25},
    {"goal": ("the cart at the left edge", "cart on the far left")},
]


@pytest.mark.parametrize("words", OTHERS)
@pytest.mark.parametrize("steps", [5, 17])
def test_relabelling_equals_encoding_again(steps: int, words: Any, frames_of: Callable[..., np.ndarray]) -> None:
    encoder = load_encoder("bundled", device="cpu")
    first = ZeroShotReward(**FIRST, encoder=encoder)
    buffer = make(8, feature_shape=(128,))
    scorer = RewardWorker(buffer, first)
    frames = frames_of(steps * ENVS, 64, 64).reshape(steps, ENVS, 64, 64, 3)
    for step in range(steps):
        add(buffer, step)
        scorer.end_of_chunk(clip_of(frames[step : step + 1]))
    scorer.close()  # the last chunk stays uncommitted
    rewards = relabel_with_words(buffer, ZeroShotReward(**words, encoder=encoder))
    fresh = ZeroShotReward(**words, encoder=encoder)
    kept = [step for step in range(steps - 1) if step >= steps - 8]
    assert rewards.shape == (len(kept), ENVS)
    for step in kept:
        np.testing.assert_allclose(buffer.rewards[step % 8], fresh(frames[step]), rtol=0, atol=1e-3)
    assert np.isnan(buffer.rewards[(steps - 1) % 8]).all(), "what waits for its first reward goes on waiting"
    np.testing.assert_array_equal(rewards, buffer.rewards[[step % 8 for step in kept]])
    drawn = set(buffer.sample(200).observations[:, 0].numpy().astype(int).tolist())
    assert drawn == set(kept)


def test_relabelling_needs_embeddings_of_the_same_encoder(bundled: Any, encoder_folder: Callable[[str], Path]) -> None:
    words = ZeroShotReward(**FIRST, encoder=bundled)
    with pytest.raises(BadInput, match="keep_embeddings") as caught:
        relabel_with_words(make(4), words)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="different encoders"):
        relabel_with_words(make(4, feature_shape=(16,)), words)
    assert relabel_with_words(make(4, feature_shape=(128,)), words).shape == (0, ENVS)


@pytest.mark.parametrize("combine", ["mean", "min"])
def test_several_views_are_relabelled_as_they_are_scored(
    bundled: Any, frames_of: Callable[..., np.ndarray], combine: Any
) -> None:
    words = ZeroShotReward(**FIRST, encoder=bundled, views=2, combine=combine)
    buffer = make(4, feature_shape=(256,))
    scorer = RewardWorker(buffer, words)
    frames = frames_of(2 * ENVS, 64, 128).reshape(2, ENVS, 64, 128, 3)
    for step in range(2):
        add(buffer, step)
        scorer.end_of_chunk(clip_of(frames[step : step + 1]))
    scorer.close()  # the last chunk stays uncommitted
    other = ZeroShotReward(**OTHERS[1], encoder=bundled, views=2, combine=combine)
    np.testing.assert_allclose(relabel_with_words(buffer, other)[0], other(frames[0]), rtol=0, atol=1e-3)
    with pytest.raises(BadInput, match="256 numbers and the words' 128: they come from different encoders"):
        relabel_with_words(buffer, ZeroShotReward(**FIRST, encoder=bundled))
