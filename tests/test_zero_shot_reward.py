"""The zero-shot reward against independent arithmetic of its definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SENTENCES
from sightline.errors import BadInput
from sightline.models.encoders import load_encoder
from sightline.rewards.progress import ProgressReward
from sightline.rewards.zero_shot import GoalBaselineHead, ZeroShotReward

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
ONE = (SENTENCES[:1], SENTENCES[2:3])
SEVERAL = (SENTENCES[:2], SENTENCES[2:])
UNEVEN = (SENTENCES[:3], SENTENCES[3:])


def embeddings_in_float64(folder: Path, frames: np.ndarray, sentences: tuple[str, ...]) -> tuple[Any, Any]:
    """Frames and sentences embedded by open_clip itself, in double precision: nothing of ours takes part."""
    import open_clip
    import torch
    from PIL import Image

    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    model = model.eval().double()
    pixels = torch.stack([transform(Image.fromarray(frame)) for frame in frames]).double()
    model.transformer.get_cast_dtype = lambda: torch.float64
    with torch.no_grad():
        images, texts = model.encode_image(pixels).numpy(), model.encode_text(tokenizer(list(sentences))).numpy()
    assert images.dtype == texts.dtype == np.float64
    return tuple(e / np.linalg.norm(e, axis=1, keepdims=True) for e in (images, texts))


def by_projection_on_the_line(x: np.ndarray, g: np.ndarray, b: np.ndarray, alpha: float) -> np.ndarray:
    """Form (a) of the specification: 1 - 1/2 |alpha proj_L(x) + (1 - alpha) x - g|^2."""
    u = (g - b) / np.linalg.norm(g - b)
    projected = np.array([b + np.dot(row - b, u) * u for row in x])
    return 1 - 0.5 * np.sum((alpha * projected + (1 - alpha) * x - g) ** 2, axis=1)


def by_matrix(x: np.ndarray, g: np.ndarray, b: np.ndarray, alpha: float) -> np.ndarray:
    """The specification's matrix: 1 - 1/2 |P_alpha (x - g)|^2."""
    d = g - b
    matrix = alpha * np.outer(d, d) / np.dot(d, d) + (1 - alpha) * np.eye(len(d))
    return 1 - 0.5 * np.linalg.norm((x - g) @ matrix.T, axis=1) ** 2


@pytest.mark.parametrize("words", [ONE, SEVERAL, UNEVEN], ids=["one", "several", "uneven"])
@pytest.mark.parametrize("size", ["small", "middle", "large"])
def test_reward_equals_both_definitions(
    encoder_folder: Callable[[str], Path], frames_of: Callable[..., np.ndarray], size: str, words: Any
) -> None:
    goal, baseline = words
    folder, frames = encoder_folder(size), frames_of(7)
    x, texts = embeddings_in_float64(folder, frames, (*goal, *baseline))
    g, b = texts[: len(goal)].mean(axis=0), texts[len(goal) :].mean(axis=0)
    assert np.linalg.norm(g - b) > 0.01
    assert np.ptp(x @ g) > 1e-3
    encoder = load_encoder(f"local-dir:{folder}", device="cpu", dtype="float32", resizing="pillow")
    for alpha in ALPHAS:
        reward = ZeroShotReward(goal, baseline, alpha=alpha, encoder=encoder)(frames)
        assert reward.dtype == np.float32
        assert reward.shape == (7,)
        for definition in (by_projection_on_the_line, by_matrix):
            np.testing.assert_allclose(reward, definition(x, g, b, alpha), rtol=0, atol=1e-5)


def test_the_goal_is_the_mean_of_unit_vectors_not_normalised_again(bundled: Any) -> None:
    goal = ZeroShotReward(SENTENCES, encoder=bundled).head.goal
    np.testing.assert_allclose(goal, bundled.embed_texts(SENTENCES).mean(axis=0), atol=1e-7)
    assert np.linalg.norm(goal) < 0.99


@pytest.mark.parametrize("size", ["small", "middle", "large"])
def test_alpha_zero_with_one_sentence_is_the_cosine(
    encoder_folder: Callable[[str], Path], frames_of: Callable[..., np.ndarray], size: str
) -> None:
    frames = frames_of(5)
    x, (g, _) = embeddings_in_float64(encoder_folder(size), frames, (SENTENCES[0], SENTENCES[2]))
    encoder = load_encoder(f"local-dir:{encoder_folder(size)}", device="cpu", resizing="pillow")
    reward = ZeroShotReward(SENTENCES[:1], SENTENCES[2:3], alpha=0.0, encoder=encoder)(frames)
    np.testing.assert_allclose(reward, x @ g, rtol=0, atol=1e-5)


def test_without_baseline_the_reward_is_the_mean_cosine(bundled: Any, frames_of: Callable[..., np.ndarray]) -> None:
    frames = frames_of(6)
    cosines = bundled.embed_frames(frames).astype(float) @ bundled.embed_texts(SENTENCES).astype(float).T
    reward = ZeroShotReward(SENTENCES, encoder=bundled)(frames)
    np.testing.assert_allclose(reward, cosines.mean(axis=1), atol=1e-6)


def test_alpha_is_one_half_unless_said_otherwise(bundled: Any, frames_of: Callable[..., np.ndarray]) -> None:
    half, default = (ZeroShotReward(*ONE, alpha=alpha, encoder=bundled)(frames_of(4)) for alpha in (0.5, None))
    assert np.array_equal(half, default)


def test_golden_values_by_hand() -> None:
    """g = (1, 0), b = (0, 0): the line is the first axis, so alpha = 1 forgets the second coordinate."""
    x = np.array([[0.6, 0.8], [1, 0], [0, 1]], np.float32)
    goal, baseline = np.array([1, 0], np.float32), np.zeros(2, np.float32)
    for alpha, expected in ((0.0, [0.6, 1, 0]), (1.0, [0.92, 1, 0.5]), (0.5, [0.84, 1, 0.375])):
        np.testing.assert_allclose(GoalBaselineHead(goal, baseline, alpha)(x), expected, atol=1e-6)


def test_too_far_along_the_line_is_punished_too() -> None:
    """The reward is quadratic about the goal, not a margin."""
    scores = GoalBaselineHead(np.array([0.5, 0], np.float32), np.array([0, 0], np.float32), 1.0)(
        np.array([[0.5, 0], [0.9, 0], [0.1, 0]])
    )
    assert scores[0] == 1
    assert scores[1] == pytest.approx(scores[2])


unit_vectors = st.integers(0, 2**32 - 1).map(np.random.default_rng).map(lambda rng: rng.standard_normal((9, 6)))


@settings(max_examples=80, deadline=None)
@given(unit_vectors, st.floats(0, 1), st.integers(1, 4), st.randoms(use_true_random=False))
def test_properties(vectors: np.ndarray, alpha: float, goals: int, shuffle: Any) -> None:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts, x = vectors[:5], vectors[5:]

    def score(goal: list[Any], baseline: list[Any], of: np.ndarray) -> np.ndarray:
        return GoalBaselineHead(np.mean(goal, axis=0), np.mean(baseline, axis=0), alpha)(of)

    goal, baseline = list(texts[:goals]), list(texts[goals:])
    reward = score(goal, baseline, x)
    assert (reward <= 1 + 1e-6).all()
    assert np.isfinite(reward).all()
    shuffle.shuffle(goal)
    shuffle.shuffle(baseline)
    np.testing.assert_allclose(score(goal, baseline, x), reward, atol=1e-5)
    np.testing.assert_allclose([score(goal, baseline, row[None])[0] for row in x], reward, atol=1e-5)


def test_order_of_sentences_changes_nothing(bundled: Any, frames_of: Callable[..., np.ndarray]) -> None:
    goal, baseline = SEVERAL
    reward = ZeroShotReward(goal, baseline, encoder=bundled)(frames_of(5))
    other = ZeroShotReward(goal[::-1], baseline[::-1], encoder=bundled)(frames_of(5))
    np.testing.assert_allclose(reward, other, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_batches_change_nothing(bundled: Any, frames_of: Callable[..., np.ndarray], batch_size: int) -> None:
    frames = frames_of(11)
    whole = ZeroShotReward(*ONE, encoder=bundled)(frames)
    encoder = load_encoder("bundled", device="cpu", batch_size=batch_size)
    model = ZeroShotReward(*ONE, encoder=encoder)
    np.testing.assert_allclose(model(frames), whole, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([model(frames[:3]), model(frames[3:])]), whole, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 64, 64, 3), (0, 10, 20, 3)])
def test_no_frames_give_no_rewards(bundled: Any, shape: tuple[int, ...]) -> None:
    reward = ZeroShotReward(*ONE, encoder=bundled)(np.zeros(shape, np.uint8))
    assert reward.shape == (0,)
    assert reward.dtype == np.float32


@pytest.mark.parametrize(
    "frames",
    [np.zeros((2, 8, 8, 4), np.uint8), np.zeros((2, 8, 8, 3), np.float32), np.zeros((8, 8, 3), np.uint8)],
    ids=["four channels", "floats", "no batch"],
)
def test_what_is_no_batch_of_frames_is_refused(bundled: Any, frames: np.ndarray) -> None:
    with pytest.raises(BadInput, match="uint8"):
        ZeroShotReward(*ONE, encoder=bundled)(frames)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((("a pole",), ("a pole",)), "same words"),
        ((("a pole", "a cart"), ("a cart", "a pole")), "same words"),
        ((("a pole",), ("a cart",), 1.01), "outside"),
        ((("a pole",), ("a cart",), -0.01), "outside"),
        ((("a pole",), ("a cart",), float("nan")), "outside"),
        (((), ("a cart",)), "no goal"),
        ((("",), ("a cart",)), "empty"),
        ((("a pole", "   "),), "empty"),
        ((("a pole",), ("\t",)), "empty"),
        ((("a pole",), (), 0.5), "baseline"),
        ((None,), "no goal"),
        (([1],), "goal must be a sentence, or several in a list, not int$"),
        ((3,), "goal must be a sentence, or several in a list, not int$"),
        ((("a pole",), (None,)), "baseline must be a sentence, or several in a list, not NoneType$"),
        ((("a pole",), ("a cart",), "half"), "alpha must be a number in .0, 1., not str"),
    ],
)
def test_words_that_make_no_reward(bundled: Any, words: Any, expected: str) -> None:
    goal, baseline, alpha = (*words, (), None)[:3] if len(words) == 1 else (*words, None)[:3]
    with pytest.raises(BadInput, match=expected) as caught:
        ZeroShotReward(goal, baseline, alpha=alpha, encoder=bundled)
    assert "\n" not in str(caught.value)


def test_a_string_is_one_sentence(bundled: Any, frames_of: Callable[..., np.ndarray]) -> None:
    strings = ZeroShotReward("a pole", "a cart", encoder=bundled)
    assert (strings.goal, strings.baseline) == (("a pole",), ("a cart",))
    frames = frames_of(3)
    assert np.array_equal(strings(frames), ZeroShotReward(["a pole"], ["a cart"], encoder=bundled)(frames))


def test_no_baseline_is_none(bundled: Any) -> None:
    assert ZeroShotReward("a pole", None, encoder=bundled).baseline == ()


@pytest.mark.parametrize("kind", [ZeroShotReward, ProgressReward])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"aspect": "foo"}, "^aspect: "),
        ({"dtype": "float99"}, "^dtype: "),
        ({"views": 0}, "^views: "),
        ({"combine": "median"}, "^combine: "),
        ({"batch_size": 0}, "^batch_size: "),
        ({"batch_size": -1}, "^batch_size: "),
        ({"batch_size": "many"}, "^batch_size: "),
        ({"encoder": None}, "^encoder must be a name, such as 'bundled', or a loaded encoder, not NoneType$"),
        ({"encoder": 3}, "^encoder must be a name"),
        ({"device": None}, "^a device is named by text, such as 'auto' or 'cpu:0,cpu:1', not by NoneType$"),
    ],
)
def test_settings_that_are_none(kind: type[ZeroShotReward], options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput, match=expected) as caught:
        kind("a pole", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("level", ["x", None, float("nan"), True])
def test_a_level_that_is_no_number(bundled: Any, level: Any) -> None:
    with pytest.raises(BadInput, match=r"^level: ") as caught:
        ProgressReward("a pole", encoder=bundled, level=level)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_frames_that_are_read_only_are_scored_without_a_word(bundled: Any) -> None:
    frames = np.zeros((1, 64, 64, 3), np.uint8)
    frames.flags.writeable = False
    ZeroShotReward(("pole",), ("cart",), encoder=bundled, warn=False)(frames)


def test_words_that_the_encoder_cannot_tell_apart(bundled: Any) -> None:
    with pytest.raises(BadInput, match="apart") as caught:
        ZeroShotReward(("A pole",), ("a pole!",), encoder=bundled)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("goal", "baseline", "listed"),
    [
        ("a zorb", "a blorb", "words 'zorb', 'blorb'; use other words, or another encoder"),
        ("a zorb", "a zorb!", ""),  # the same word says the same
        ("A pole", "a pole!", ""),
    ],
)
def test_unknown_words_are_named_where_they_make_goal_and_baseline_equal(
    bundled: Any, goal: str, baseline: str, listed: str
) -> None:
    with pytest.raises(BadInput, match="embeddings are equal") as caught:
        ZeroShotReward(goal, baseline, encoder=bundled, warn=False)
    error = str(caught.value)
    assert ("does not know the" in error) == bool(listed)
    assert listed in error and "\n" not in error


def test_the_text_tower_can_be_freed(frames_of: Callable[..., np.ndarray]) -> None:
    encoder = load_encoder("bundled", device="cpu")
    model = ZeroShotReward(*ONE, encoder=encoder)
    before = model(frames_of(4))
    encoder.free_text_tower()
    assert np.array_equal(model(frames_of(4)), before)
    with pytest.raises(RuntimeError, match="freed"):
        encoder.embed_texts(["a pole"])


@pytest.mark.parametrize(("combine", "by"), [("mean", np.mean), ("min", np.min)])
def test_views_of_several_cameras_are_scored_each_by_itself(bundled: Any, combine: str, by: Any) -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.integers(0, 256, (5, 40, 30, 3), np.uint8) for _ in range(2))
    alone = ZeroShotReward(*ONE, encoder=bundled)
    both = ZeroShotReward(*ONE, encoder=bundled, views=2, combine=combine)  # type: ignore[arg-type]
    expected = by([alone(left), alone(right)], axis=0)
    np.testing.assert_allclose(both(np.concatenate([left, right], axis=2)), expected, atol=1e-6)


def test_a_frame_that_does_not_hold_so_many_views(bundled: Any) -> None:
    with pytest.raises(BadInput, match="of 64 pixels' width does not hold 3 views"):
        ZeroShotReward(*ONE, encoder=bundled, views=3)(np.zeros((1, 64, 64, 3), np.uint8))
