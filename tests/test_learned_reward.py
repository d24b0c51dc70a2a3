"""The learned reward's parts: what is kept to ask about, novelty, the networks, the standardised reward, fitting."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import BadInput, RunFailed
from sightline.evaluation.statistics import ranks, spearman
from sightline.labels.types import Segment
from sightline.preferences.config import LearnedConfig
from sightline.preferences.feedback.ladder import LadderConfig
from sightline.preferences.feedback.pairs import PairsConfig
from sightline.preferences.feedback.ratings import RatingsConfig
from sightline.preferences.feedback.scores import ScoresConfig
from sightline.preferences.pool import SegmentPool, whole_segments
from sightline.rewards.learned import fitting
from sightline.rewards.learned.config import CNNConfig, EmbeddingHeadConfig, FittingConfig, ResNetConfig, StatesConfig
from sightline.rewards.learned.fitting import Examples, Fit
from sightline.rewards.learned.networks import FrameEnsemble, cnn
from sightline.rewards.learned.reward import (
    BOUND,
    EnsembleReward,
    LadderReward,
    LearnedReward,
    build_ensemble,
)
from sightline.rewards.learned_state import as_learned, save_reward
from sightline.rewards.novelty import NoveltyReward, flat
from sightline.runs.archive import Archive
from sightline.runs.state import read_state, write_state
from sightline_tasks.control.cartpole import LOOKS, draw_cartpole

# -- the pool ---------------------------------------------------------------------------------------------------------


def pool_of(size: int = 5, length: int = 2) -> SegmentPool:
    return SegmentPool(size, length, (4, 6, 3), (3,), np.float16)


def numbered(first: int, count: int, length: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Segments whose every pixel, feature and reward is their number."""
    numbers = np.arange(first, first + count)
    shape = (count, length)
    return (
        np.broadcast_to(numbers[:, None, None, None, None], (*shape, 4, 6, 3)).astype(np.uint8),
        np.broadcast_to(numbers[:, None, None], (*shape, 3)).astype(np.float16),
        np.broadcast_to(numbers[:, None], shape).astype(np.float32),
    )


def check_pool(pool: SegmentPool, expected: set[int]) -> None:
    assert len(pool) == len(expected)
    assert {int(pool.segment(i).frames[0, 0, 0, 0]) for i in range(len(pool))} == expected
    for i in range(len(pool)):
        segment = pool.segment(i)
        number = int(segment.frames[0, 0, 0, 0])
        assert (segment.frames == number).all()
        assert (segment.true_rewards == number).all()
        assert (pool.features[i] == number).all()
        assert pool.true_returns[i] == number * pool.length
        assert pool.digests[i] == segment.digest


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), max_size=8))
def test_the_pool_holds_the_latest(batches: list[int]) -> None:
    pool, added = pool_of(), 0
    for count in batches:
        pool.add(*numbered(added, count))
        added += count
        check_pool(pool, set(range(max(0, added - 5), added)))


def test_what_the_pool_gives_is_a_copy() -> None:
    pool = pool_of(2)
    pool.add(*numbered(0, 2))
    segment = pool.segment(0)
    pool.add(*numbered(7, 2))
    assert (segment.frames == 0).all()
    assert pool.digests[0] == Segment(np.full((2, 4, 6, 3), 7, np.uint8), np.zeros(2)).digest


@pytest.mark.parametrize("added", [0, 3, 5, 8])
def test_a_restored_pool_goes_on_alike(added: int, tmp_path: Path) -> None:
    pool, other, archive = pool_of(), pool_of(), Archive(tmp_path, "segments")
    for number in range(added):
        pool.add(*numbered(number, 1))
        if number % 3 == 2:  # as a checkpoint does now and then
            pool.archive_to(archive)
    pool.archive_to(archive)
    other.restore(added, archive)
    for number in range(added, added + 3):
        for each in (pool, other):
            each.add(*numbered(number, 1))
    assert pool.digests == other.digests
    np.testing.assert_array_equal(pool.features, other.features)
    check_pool(other, set(range(max(0, added - 2), added + 3)))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_segments_lie_within_one_episode(data: st.DataObject) -> None:
    steps, envs = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    ended = np.array(data.draw(st.lists(st.booleans(), min_size=steps * envs, max_size=steps * envs)))
    ended = ended.reshape(steps, envs)
    length, count = data.draw(st.integers(1, 10)), data.draw(st.integers(0, 30))
    chosen = whole_segments(ended, length, count, np.random.default_rng(0))
    possible = {
        (start, env)
        for env in range(envs)
        for start in range(steps - length + 1)
        if not any(ended[step, env] for step in range(start, start + length - 1))
    }
    found = [tuple(place) for place in chosen.tolist()]
    assert len(set(found)) == len(found) == min(count, len(possible))
    assert set(found) <= possible


def test_every_segment_is_as_likely() -> None:
    ended = np.zeros((6, 3), bool)
    ended[2, 1] = ended[3, 2] = True
    rng = np.random.default_rng(0)
    drawn = Counter(tuple(place) for _ in range(3000) for place in whole_segments(ended, 3, 2, rng).tolist())
    assert set(drawn) == {(s, 0) for s in range(4)} | {(0, 1), (3, 1), (0, 2), (1, 2)}
    expected = 6000 / 8
    assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in drawn.values())


# -- novelty ----------------------------------------------------------------------------------------------------------


def novelty_of(states: np.ndarray, among: np.ndarray, seed: int = 0) -> np.ndarray:
    """Novelty of some states among others, as float32[N]."""
    model = NoveltyReward(lambda: among, seed)
    return model(states)


def brute_distances(states: np.ndarray, among: np.ndarray, k: int = 5) -> list[float]:
    return [sorted(math.dist(state, other) for other in among)[min(k, len(among) - 1)] for state in states]


def test_novelty_is_the_distance_to_the_fifth_other_over_the_running_deviation() -> None:
    """The deviation is of all distances so far; PEBBLE's published code mixes up its running mean (defect P10)."""
    rng, novelty, seen, distances = np.random.default_rng(0), NoveltyReward(lambda: seen), np.zeros((0, 3)), []
    for count in (1, 3, 40, 7, 64, 2):
        states = rng.normal(loc=len(seen) / 20, scale=1 + count / 10, size=(count, 3)).astype(np.float32)
        seen = np.concatenate([seen, states])
        new = brute_distances(states, seen)
        distances += new
        paid = novelty(states)
        assert paid.dtype == np.float32
        deviation = float(np.std(distances))
        if deviation > 1e-6:
            np.testing.assert_allclose(paid, np.array(new) / deviation, rtol=1e-4)
    assert (novelty.count, novelty.mean) == (len(distances), pytest.approx(np.mean(distances)))
    assert novelty.squares / novelty.count == pytest.approx(np.var(distances))


def test_new_states_pay_more_than_known_ones() -> None:
    known = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    states = np.array([[0, 0], [6, 6]], np.float32)
    near, far = novelty_of(states, np.concatenate([known, states]))
    assert far > 5 * near > 0
    assert (novelty_of(np.ones((9, 2)), np.ones((20, 2))) == 0).all()


def test_novelty_among_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.rewards.novelty.AMONG", 50)
    states = np.random.default_rng(0).normal(size=(500, 2))
    one, two = (novelty_of(states[:9], states, seed) for seed in (1, 1))
    np.testing.assert_array_equal(one, two)
    sample = states[np.random.default_rng([1, 0]).choice(500, 50, replace=False)]
    expected = np.array(brute_distances(states[:9], sample))
    np.testing.assert_allclose(one, expected / expected.std(), rtol=1e-5)


def test_novelty_of_pictures_and_of_states_with_more_than_one_axis() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (40, 3, 64, 48), np.uint8)
    thin = flat(pictures)
    assert thin.shape == (40, 3 * 16 * 16)
    np.testing.assert_allclose(thin, pictures[:, :, ::4, ::3].reshape(40, -1) / 255, rtol=1e-6)
    assert np.array_equal(novelty_of(pictures[:7], pictures), novelty_of(thin[:7], thin))
    tables = rng.normal(size=(40, 2, 5))
    plain = tables.reshape(40, 10)
    assert np.array_equal(flat(tables), plain)
    assert np.array_equal(novelty_of(tables[:7], tables), novelty_of(plain[:7], plain))


# -- networks ---------------------------------------------------------------------------------------------------------

NETWORKS = {
    "embeddings": (EmbeddingHeadConfig(hidden=(8, 8)), (6,), np.float32),
    "states": (StatesConfig(kind="states", hidden=(8,)), (4,), np.float32),
    "cnn": (CNNConfig(kind="cnn", channels=(4, 6), size=(20, 28)), (20, 28, 3), np.uint8),
    "resnet": (ResNetConfig(kind="resnet", size=(40, 40)), (40, 40, 3), np.uint8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_members_differ_and_equal_seeds_do_not(name: str) -> None:
    config, shape, dtype = NETWORKS[name]
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.integers(0, 200, (7, *shape)).astype(dtype))
    if dtype != np.uint8:
        features = features / 100
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (build_ensemble(config, shape, 2, seed).eval() for seed in (1, 1, 2))
    assert torch.rand(1) == expected, "nobody else's random numbers are used up"
    with torch.inference_mode():
        outs = [network(features) for network in (first, again, other)]
    assert outs[0].shape == (2, 7)
    assert torch.equal(outs[0], outs[1])
    assert not torch.allclose(outs[0], outs[2])
    assert not torch.allclose(outs[0][0], outs[0][1]), "members differ"
    assert (outs[0].std(dim=1) > 0).all(), "and so do states"


def test_the_batched_members_are_ordinary_networks() -> None:
    network: Any = build_ensemble(StatesConfig(kind="states", hidden=(5, 3)), (4,), 2, 0)
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    for member in range(2):
        h = x
        for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
            h = h @ weight[member].detach().numpy() + bias[member].detach().numpy()
            h = h if i == 2 else np.where(h > 0, h, 0.01 * h)
        np.testing.assert_allclose(network(torch.from_numpy(x))[member].detach().numpy(), h[:, 0], rtol=1e-4, atol=1e-6)


def test_the_published_convolutions() -> None:
    network: Any = build_ensemble(CNNConfig(kind="cnn", channels=(16, 32, 64, 128)), (200, 200, 3), 1, 0)
    layers = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [(m.kernel_size[0], m.stride[0], m.out_channels) for m in layers] == [
        *((5, 3, 16), (3, 2, 32), (3, 2, 64), (3, 2, 128)),
    ]  # fmt: skip
    (linear,) = (m for m in network.modules() if isinstance(m, torch.nn.Linear))
    assert linear.in_features == 128 * 7 * 7  # 200 -> 66 -> 32 -> 15 -> 7


def test_frames_that_are_too_small() -> None:
    for config in (CNNConfig(kind="cnn"), ResNetConfig(kind="resnet")):
        with pytest.raises(BadInput, match=r"20x20 .*reward\.model\.size"):
            build_ensemble(config, (20, 20, 3), 1, 0)


# -- the reward -------------------------------------------------------------------------------------------------------


def config_of(kind: str = "states", feedback: Any = None, **keys: Any) -> LearnedConfig:
    fast = {"ensemble": 2, "epochs": 40, "learning_rate": 5e-3} | keys.pop("fitting", {})
    models = {
        "states": StatesConfig(kind="states", hidden=(32, 32)),
        "embeddings": EmbeddingHeadConfig(hidden=(32, 32)),
        "cnn": CNNConfig(kind="cnn", channels=(8, 8, 8), size=(32, 32)),
        "resnet": ResNetConfig(kind="resnet", size=(40, 40)),
    }
    return LearnedConfig(
        kind="learned",
        model=models[kind],
        feedback=feedback or PairsConfig(),
        fitting=FittingConfig(**fast),
        device="cpu",
        **keys,
    )


def made(config: LearnedConfig, seen_shape: tuple[int, ...], encoder: Any, seed: int) -> Any:
    """The reward of a block, which remembers its block so that `fit` below finds it."""
    reward: Any = config.make_reward(seen_shape, encoder, seed)
    reward.config = config
    return reward


def fit(reward: Any, examples: Examples, seed: int) -> Fit:
    return fitting.fit(reward, examples, reward.config.feedback, reward.config.segment, seed)


def reward_on_states(seed: int = 0, **keys: Any) -> EnsembleReward:
    return made(config_of(**keys), (3,), None, seed)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_reward_is_standardised_and_bounded(scale: float) -> None:
    reward = reward_on_states(scale=scale)
    judged = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    assert not reward.ready
    reward.fit_normalizer(judged)
    assert reward.ready
    paid = reward.rewards_of(judged)
    worth = reward.raw_reward(judged).astype(np.float64)
    standard = (worth - worth.mean()) / worth.std()
    np.testing.assert_allclose(paid, scale * 5 * np.tanh(standard / 5), rtol=1e-3, atol=1e-4)
    assert abs(paid.mean()) < 0.05 * scale
    assert paid.std() == pytest.approx(scale, rel=0.1)
    assert paid.dtype == np.float32
    assert spearman(paid, worth) == pytest.approx(1)
    far = reward.rewards_of(judged * 1e4)
    assert np.abs(far).max() <= scale * BOUND + 1e-6
    np.testing.assert_array_equal(reward(judged), paid)


def test_a_reward_that_is_the_same_everywhere_is_zero() -> None:
    reward = reward_on_states()
    reward.fit_normalizer(np.ones((9, 3), np.float32))
    np.testing.assert_allclose(reward.rewards_of(np.ones((4, 3), np.float32)), 0, atol=1e-3)
    assert reward.rewards_of(np.zeros((0, 3), np.float32)).shape == (0,)


@pytest.mark.parametrize("feedback", [PairsConfig(), RatingsConfig(kind="ratings"), ScoresConfig(kind="scores")])
def test_ratings_and_scores_are_learned_between_zero_and_one(feedback: Any) -> None:
    reward = reward_on_states(feedback=feedback)
    out = reward.members(100 * np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32))
    assert out.shape == (2, 500)
    within = bool((out >= 0).all() and (out <= 1).all())
    assert within == (feedback.kind != "pairs")


def test_many_states_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = reward_on_states()
    states = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    whole = reward.rewards_of(states)
    monkeypatch.setattr("sightline.rewards.learned.reward.FEATURES_AT_ONCE", 7)
    np.testing.assert_allclose(reward.rewards_of(states), whole, rtol=1e-5)


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    write_state(folder / "state.safetensors", state)
    loaded: dict[str, Any] = read_state(folder / "state.safetensors")
    return loaded


@pytest.mark.parametrize("kind", ["states", "cnn", "resnet"])
def test_a_restored_reward_pays_the_same(kind: str, tmp_path: Path) -> None:
    shape, dtype = ((3,), np.float32) if kind == "states" else ((48, 48, 3), np.uint8)
    seen = np.random.default_rng(0).integers(0, 255, (9, *shape)).astype(dtype)
    first, second = (made(config_of(kind), shape, None, seed) for seed in (0, 1))
    first.fit_normalizer(first.features_of(seen))
    assert not np.array_equal(first(seen), second(seen))
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
    np.testing.assert_array_equal(first(seen), second(seen))
    assert second.ready


def test_a_reward_that_was_an_earlier_one_for_a_while_is_itself_again(tmp_path: Path) -> None:
    """As where an evaluation that the other process began is made in this one, after the reward has learned more."""
    reward, states = reward_on_states(), np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    reward.fit_normalizer(states)
    save_reward(tmp_path, reward)
    before = reward(states)
    with torch.no_grad():
        for weights in reward.ensemble.parameters():
            weights.mul_(-2)
    reward.fit_normalizer(states)
    after = reward(states)
    with as_learned(tmp_path, reward):
        np.testing.assert_array_equal(reward(states), before)
    np.testing.assert_array_equal(reward(states), after)
    assert not np.array_equal(before, after)


def test_a_reward_is_saved_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for place in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(BadInput, match=r"cannot be made .*; name another$") as caught:
            reward_on_states().save(place)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "taken").read_text() == "a file"


def test_beginning_anew_gives_the_first_weights_back() -> None:
    reward, states = reward_on_states(), np.ones((1, 3), np.float32)
    before = reward.members(states)
    with torch.no_grad():
        for weights in reward.ensemble.parameters():
            weights.add_(1)
    assert not np.array_equal(reward.members(states), before)
    reward.reset_weights()
    np.testing.assert_array_equal(reward.members(states), before)


def test_the_ladders_reward(bundled: Any, tmp_path: Path) -> None:
    config = config_of("embeddings", LadderConfig(kind="ladder"))
    reward = made(config, (64, 64, 3), bundled, 0)
    assert isinstance(reward, LadderReward)
    assert reward.feature_shape == (128,)
    assert reward.feature_dtype == np.float16
    features = reward.features_of(np.random.default_rng(0).integers(0, 255, (6, 64, 64, 3), np.uint8))
    assert (reward.raw_reward(features) == 0).all()
    reward.top = features[2].astype(np.float32)
    reward.fit_normalizer(features)
    paid = reward.rewards_of(features)
    assert paid.argmax() == 2
    other = made(config, (64, 64, 3), bundled, 0)
    other.load_state_dict(through_a_file(reward.state_dict(), tmp_path))
    np.testing.assert_array_equal(other.rewards_of(features), paid)


def test_what_is_kept_of_a_frame(bundled: Any) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (3, 64, 64, 3), np.uint8)
    cnn = made(config_of("cnn"), (64, 64, 3), None, 0)
    assert (cnn.feature_shape, cnn.feature_dtype, cnn.needs) == ((32, 32, 3), np.uint8, {"frames"})
    assert cnn.features_of(frames).shape == (3, 32, 32, 3)
    head = made(config_of("embeddings"), (64, 64, 3), bundled, 0)
    np.testing.assert_allclose(head.features_of(frames), bundled.embed_frames(frames), atol=1e-3)
    states = made(config_of("states"), (5,), None, 0)
    assert (states.feature_shape, states.needs) == ((5,), {"states"})


# -- fitting ----------------------------------------------------------------------------------------------------------


def pole_frames(angles: np.ndarray, size: int = 64) -> np.ndarray:
    return np.stack([draw_cartpole(0.0, float(angle), (size, size), LOOKS["plain"]) for angle in angles])


def judged_pairs(
    reward: LearnedReward, seen: np.ndarray, worth: np.ndarray, count: int, length: int = 1, seed: int = 0
) -> Examples:
    """Pairs of segments, each preferred for the sum of its steps' worth."""
    rng, examples, features = np.random.default_rng(seed), Examples(), reward.features_of(seen)
    for _ in range(count):
        a, b = rng.integers(0, len(seen), (2, length))
        examples.add((features[a], features[b]), float(worth[b].sum() > worth[a].sum()))
    return examples


def problem(kind: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What is seen of N states, and what they are worth: an upright pole, or a small first coordinate."""
    rng = np.random.default_rng(seed)
    if kind == "states":
        states = rng.normal(size=(count, 3)).astype(np.float32)
        return states, -np.abs(states[:, 0])
    angles = rng.uniform(-0.5, 0.5, count)
    return pole_frames(angles), -np.abs(angles) if kind == "embeddings" else angles


EPOCHS = {"states": 60, "embeddings": 60, "cnn": 25, "resnet": 3}


@pytest.mark.parametrize(("kind", "length"), [("states", 1), ("states", 4), ("embeddings", 1), ("cnn", 1), ("cnn", 3)])
def test_pairs_teach_the_order(kind: str, length: int, bundled: Any) -> None:
    check_order(kind, length, bundled, at_least=0.85)


def test_pairs_teach_a_resnet(bundled: Any) -> None:
    check_order("resnet", 1, bundled, at_least=0.7)


def check_order(kind: str, length: int, encoder: Any, at_least: float) -> None:
    count = 60 if kind == "resnet" else 150
    seen, worth = problem(kind, count, seed=1)
    fast = {"epochs": EPOCHS[kind], "ensemble": 1, "batch_size": 16, "learning_rate": 2e-3}
    config = config_of(kind, segment=length, fitting=fast)
    reward = made(config, seen.shape[1:], encoder, 0)
    new, truth = problem(kind, 40, seed=2)
    untaught = spearman(reward.raw_reward(reward.features_of(new)), truth)
    fitted = fit(reward, judged_pairs(reward, seen, worth, count, length), seed=0)
    assert fitted.labels == count
    assert 1 <= fitted.epochs <= config.fitting.epochs
    assert fitted.held_out_accuracy > 0.75
    found = spearman(reward.raw_reward(reward.features_of(new)), truth)
    assert found is not None
    assert found > at_least
    assert untaught is None or found > untaught


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("feedback", [RatingsConfig(kind="ratings"), ScoresConfig(kind="scores")])
def test_levels_and_scores_teach_the_order(feedback: Any, length: int) -> None:
    """Of ratings most are in the middle, as in practice: held-out levels must weigh alike, or fitting stops at once."""
    seen, worth = problem("states", 600, seed=1)
    reward = reward_on_states(feedback=feedback, segment=length, fitting={"epochs": 80, "learning_rate": 1e-3})
    examples, rng = Examples(), np.random.default_rng(0)
    position = np.clip((worth + 2) / 2, 0, 1)
    for _ in range(400):
        steps = rng.integers(0, len(seen), length)
        mean = float(position[steps].mean())
        value = min(int(mean * 3), 2) if feedback.kind == "ratings" else mean
        examples.add((seen[steps],), float(value))
    fitted = fit(reward, examples, seed=0)
    new, truth = problem("states", 100, seed=2)
    found = spearman(reward(new), truth)
    assert found is not None
    assert found > 0.85
    assert math.isnan(fitted.accuracy)
    assert math.isnan(fitted.held_out_accuracy)


def test_equal_seeds_give_equal_fits() -> None:
    def run(seed: int) -> tuple[Fit, np.ndarray]:
        reward = reward_on_states(fitting={"epochs": 5, "batch_size": 8})
        seen, worth = problem("states", 50, seed=1)
        fitted = fit(reward, judged_pairs(reward, seen, worth, 40), seed=seed)
        return fitted, reward.members(seen)

    (one, first), (two, second), (_, third) = run(1), run(1), run(2)
    assert one == two
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 200), st.integers(0, 200), st.floats(0, 0.9))
def test_labels_stay_held_out_or_not(fewer: int, more: int, share: float) -> None:
    fewer, more = sorted((fewer, more))
    early, late = fitting.held_out(fewer, share), fitting.held_out(more, share)
    np.testing.assert_array_equal(late[:fewer], early)
    if more:
        assert not late[0]
    if more == 200:
        assert abs(late.mean() - share) < 0.15


def test_held_out_labels_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimiser's losses carry gradients; those that only measure do not."""
    seen, worth = problem("states", 50, seed=1)
    trained: set[int] = set()
    measured: set[int] = set()
    loss = fitting.Labels.loss

    def spying(labels: Any, batch: np.ndarray) -> Any:
        (trained if torch.is_grad_enabled() else measured).update(batch.tolist())
        return loss(labels, batch)

    monkeypatch.setattr(fitting.Labels, "loss", spying)
    reward = reward_on_states(fitting={"epochs": 3, "held_out": 0.3})
    examples = judged_pairs(reward, seen, worth, 60)
    fit(reward, examples, seed=0)
    held_out = set(np.flatnonzero(fitting.held_out(60, 0.3)).tolist())
    assert 8 < len(held_out) < 30
    assert trained == set(range(60)) - held_out
    assert measured == set(range(60))


def test_what_is_held_out_changes_nothing_but_when_to_stop() -> None:
    """Were a held-out label trained on, turning it round would change the weights."""
    seen, worth = problem("states", 50, seed=1)

    def weights(turned: bool) -> np.ndarray:
        reward = reward_on_states(fitting={"epochs": 1})
        examples = judged_pairs(reward, seen, worth, 30)
        if turned:
            for i in np.flatnonzero(fitting.held_out(30, 0.2)):
                examples.values[i] = 1 - examples.values[i]
        fit(reward, examples, seed=0)
        return reward.members(seen)

    np.testing.assert_array_equal(weights(False), weights(True))


def test_fitting_stops_early_and_the_best_weights_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels without meaning: what is learned by heart does not hold on held-out ones."""
    states = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    examples, rng = Examples(), np.random.default_rng(1)
    for _ in range(60):
        a, b = rng.integers(0, 80, (2, 1))
        examples.add((states[a], states[b]), float(rng.random() < 0.5))
    reward = reward_on_states(fitting={"epochs": 500, "patience": 5, "held_out": 0.4, "batch_size": 8})
    heard: list[float] = []
    evaluate = fitting.Labels.mean_loss

    def listening(*arguments: Any) -> float:
        heard.append(evaluate(*arguments))
        return heard[-1]

    monkeypatch.setattr(fitting.Labels, "mean_loss", listening)
    fitted = fit(reward, examples, seed=0)
    *epochs, _, at_the_end = heard
    assert len(epochs) < 500
    assert fitted.epochs == int(np.argmin(epochs)) + 1 == len(epochs) - 5
    assert at_the_end == min(epochs) == fitted.held_out_loss
    assert fitted.loss < 0.75


def test_without_held_out_labels_all_epochs_are_made() -> None:
    seen, worth = problem("states", 30, seed=1)
    reward = reward_on_states(fitting={"epochs": 7, "held_out": 0.0, "patience": 1})
    fitted = fit(reward, judged_pairs(reward, seen, worth, 20), seed=0)
    assert fitted.epochs == 7
    assert math.isnan(fitted.held_out_loss)
    assert math.isnan(fitted.held_out_accuracy)
    assert fitted.accuracy > 0.7


def test_one_label_is_enough_to_fit() -> None:
    reward = reward_on_states(fitting={"epochs": 30, "held_out": 0.9})
    examples = Examples()
    examples.add((np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)), 1.0)
    assert fit(reward, examples, seed=0).accuracy == 1


@pytest.mark.parametrize("count", [1, 9])
def test_a_resnet_learns_from_a_minibatch_of_one(count: int) -> None:
    """Its batch normalisation must have something to normalise by."""
    config = config_of("resnet", ScoresConfig(kind="scores"), fitting={"epochs": 1, "batch_size": 8, "held_out": 0})
    smallest = config.model_copy(update={"model": ResNetConfig(kind="resnet", size=(33, 33))})
    reward = made(smallest, (33, 33, 3), None, 0)
    examples = Examples()
    for i in range(count):
        examples.add((reward.features_of(np.full((1, 33, 33, 3), 20 * i, np.uint8)),), i / 10)
    assert math.isfinite(fit(reward, examples, seed=0).loss)


def test_ties_pull_together_and_count_as_no_mistake() -> None:
    states = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    examples = Examples()
    for i in range(20):
        examples.add((states[i][None], states[i + 20][None]), 0.5)
    reward = reward_on_states(fitting={"epochs": 60, "held_out": 0.2})
    before = np.abs(np.diff(reward.raw_reward(states).reshape(2, 20), axis=0)).mean()
    fitted = fit(reward, examples, seed=0)
    assert np.abs(np.diff(reward.raw_reward(states).reshape(2, 20), axis=0)).mean() < before
    assert math.isnan(fitted.accuracy)
    assert fitted.loss == pytest.approx(math.log(2), abs=0.01)


def test_fresh_weights_or_those_of_the_round_before() -> None:
    seen, worth = problem("states", 50, seed=1)

    def twice(fresh: bool) -> tuple[np.ndarray, np.ndarray]:
        reward = reward_on_states(fitting={"epochs": 3, "reset_weights": fresh, "held_out": 0.0})
        examples, members = judged_pairs(reward, seen, worth, 30), []
        for _ in range(2):
            fit(reward, examples, seed=0)
            members.append(reward.members(seen))
        return members[0], members[1]

    np.testing.assert_array_equal(*twice(fresh=True))
    assert not np.array_equal(*twice(fresh=False))


def test_a_loss_that_is_no_number() -> None:
    reward = reward_on_states()
    examples = Examples()
    examples.add((np.full((1, 3), np.nan, np.float32), np.zeros((1, 3), np.float32)), 1.0)
    with pytest.raises(RunFailed, match=r"learning_rate") as failed:
        fit(reward, examples, seed=0)
    assert "\n" not in str(failed.value)


def test_accuracy_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = reward_on_states(fitting={"epochs": 1, "held_out": 0.0, "learning_rate": 1e-12})
    worths = reward.raw_reward(np.eye(3, dtype=np.float32))
    order = np.argsort(worths)
    low, middle, high = (np.eye(3, dtype=np.float32)[[i]] for i in order)
    examples = Examples()
    for first, second, value in ((low, high, 1.0), (high, low, 1.0), (middle, low, 0.0), (low, middle, 0.5)):
        examples.add((first, second), value)
    assert fit(reward, examples, seed=0).accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("feedback", ["pairs", "scores"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_examples_through_a_file(feedback: str, count: int, tmp_path: Path) -> None:
    rng, examples, places = np.random.default_rng(0), Examples(), 2 if feedback == "pairs" else 1
    archive = Archive(tmp_path, "examples")
    for i in range(count):
        examples.add(tuple(rng.normal(size=(3, 5)).astype(np.float16) for _ in range(places)), i / 4)
        if i % 2:
            examples.archive_to(archive)
    examples.archive_to(archive)
    again = Examples()
    again.restore(archive)
    assert again.values == examples.values
    assert len(again) == count
    for mine, theirs in zip(again.features, examples.features, strict=True):
        assert len(mine) == places
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.float16
    if count:
        assert examples.steps().shape == (count * places * 3, 5)
        np.testing.assert_array_equal(again.segments(0, np.array([count - 1])), [examples.features[-1][0]])


# -- ranks ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=20))
def test_rank_correlation_is_scipys(values: list[tuple[int, int]]) -> None:
    from scipy.stats import rankdata, spearmanr

    x, y = (np.array(column, float) for column in zip(*values, strict=True))
    np.testing.assert_allclose(ranks(x), rankdata(x) - 1)
    found = spearman(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(x, y).statistic)


def test_rank_correlation_of_nothing() -> None:
    assert spearman(np.zeros(0), np.zeros(0)) is None
    assert spearman(np.array([1, np.nan, 2]), np.array([1, 2, 3])) is None
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 1e9])) == pytest.approx(1)


@pytest.mark.parametrize("size", [(84, 84), (50, 61)])
@pytest.mark.parametrize("lower", [False, True])
def test_members_side_by_side_say_what_they_say_one_after_the_other(size: tuple[int, int], lower: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    ensemble = FrameEnsemble([cnn((*size, 3), (8, 12, 16)) for _ in range(3)]).eval()
    frames = torch.randint(0, 256, (7, *size, 3), dtype=torch.uint8, generator=generator)
    with torch.autocast("cpu", torch.bfloat16, enabled=lower):
        with torch.no_grad():
            apart = ensemble(frames)
        with torch.inference_mode():
            together = ensemble(frames)
    assert together.shape == (3, 7)
    # Kernels for other shapes may add in another order.
    torch.testing.assert_close(together, apart, rtol=0, atol=2e-3 if lower else 1e-6)
