"""The bundled encoder's making: captions that are true, scenes that show them, and a training that runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pretraining.encoder import captions
from pretraining.encoder.captions import LANGUAGE
from pretraining.encoder.humanoid import PARTS, distances, skeleton, to_actions
from pretraining.encoder.language import FUNCTION_WORDS, UNKNOWN, Scenes, fit
from pretraining.encoder.scenes import CARTPOLE, FAR, HUMANOID, MOUNTAIN_CAR, ROD, sample_scenes
from pretraining.encoder.train import train
from sightline.models.encoders import load_encoder
from sightline_tasks.humanoid.body import make_model, to_control
from sightline_tasks.humanoid.poses import POSES, place

TRAINED = [LANGUAGE.plain(w) for phrases in LANGUAGE.phrases.values() for phrase in phrases for w in phrase.wordings]
HELD_OUT = [LANGUAGE.plain(w) for phrases in LANGUAGE.phrases.values() for phrase in phrases for w in phrase.held_out]


def words_of(sentence: str) -> set[str]:
    return set(re.findall(r"[a-z]+", sentence.replace(UNKNOWN, "")))


def test_every_training_word_is_in_the_vocabulary() -> None:
    known = set(LANGUAGE.vocabulary())
    drawn = [caption.text for caption in LANGUAGE.sample(2000, np.random.default_rng(0))]
    for sentence in [*TRAINED, *drawn]:
        assert words_of(sentence) <= known, sentence
    assert not any("{" in sentence for sentence in drawn)


def test_held_out_wordings_are_new_sentences_of_known_words() -> None:
    known = set(LANGUAGE.vocabulary())
    assert len(HELD_OUT) >= 5
    assert not set(HELD_OUT) & set(TRAINED)
    assert all(words_of(sentence) <= known for sentence in HELD_OUT)
    drawn = {caption.text for caption in LANGUAGE.sample(5000, np.random.default_rng(1))}
    bare = {re.sub(r"\b(a|the) ", "", text) for text in drawn}
    assert not bare & {re.sub(r"\b(a|the) ", "", text) for text in HELD_OUT}, "the trainer never says them"


def scene(world: int, position: float = 0.0, degrees: float = 0.0) -> Scenes:
    frames = np.zeros((1, 4, 4, 3), np.uint8)
    quantities = {"position": position, "angle": np.deg2rad(degrees)} | dict.fromkeys(PARTS, FAR)
    return Scenes(np.array([world]), {name: np.array([value]) for name, value in quantities.items()}, frames)


def posed(pose: str) -> Scenes:
    """A humanoid in the example of a pose."""
    bones, example = skeleton(), POSES[pose]
    posture = bones.posture(place(bones, example.angles, example.lean)[None])
    shown = scene(HUMANOID)
    return Scenes(shown.world, {**shown.quantities, **distances(posture)}, shown.frames)


UPRIGHT, DOWN = "pole standing upright on top of the cart", "pole pointing straight down"
RIGHT, LEFT, MIDDLE = "cart at the right edge", "cart at the left edge", "cart in the middle"
FLAG, VALLEY, ROD_UP = "car at the flag", "car at the bottom of the valley", "rod standing upright"


@pytest.mark.parametrize(
    ("sentence", "shown", "truth"),
    [
        (UPRIGHT, scene(CARTPOLE, 0.5, 0), True),
        (UPRIGHT, scene(CARTPOLE, 0.5, -3), True),
        (UPRIGHT, scene(CARTPOLE, 0.5, 91), False),
        (UPRIGHT, scene(CARTPOLE, 0.5, 180), False),
        (UPRIGHT, scene(ROD, 0, 0), False),
        (UPRIGHT, scene(MOUNTAIN_CAR, 0.45), False),
        (DOWN, scene(CARTPOLE, 0, -180), True),
        (DOWN, scene(CARTPOLE, 0, 178), True),
        (DOWN, scene(CARTPOLE, 0, 0), False),
        ("pole leaning to the left", scene(CARTPOLE, 0, -45), True),
        ("pole leaning to the left", scene(CARTPOLE, 0, 45), False),
        ("pole leaning to the right", scene(CARTPOLE, 0, 45), True),
        (RIGHT, scene(CARTPOLE, 1.0, 100), True),
        (RIGHT, scene(CARTPOLE, -1.0, 0), False),
        (LEFT, scene(CARTPOLE, -1.0, 0), True),
        (LEFT, scene(CARTPOLE, 1.0, 0), False),
        (MIDDLE, scene(CARTPOLE, 0.0, 20), True),
        (MIDDLE, scene(CARTPOLE, 0.9, 20), False),
        (FLAG, scene(MOUNTAIN_CAR, 0.5), True),
        (FLAG, scene(MOUNTAIN_CAR, -1.2), False),
        (VALLEY, scene(MOUNTAIN_CAR, -0.52), True),
        (VALLEY, scene(MOUNTAIN_CAR, 0.5), False),
        (ROD_UP, scene(ROD, 0, 2), True),
        (ROD_UP, scene(ROD, 0, 180), False),
        (ROD_UP, scene(CARTPOLE, 0, 0), False),
    ],
)
def test_truth_table(sentence: str, shown: Scenes, truth: bool) -> None:
    """At the centre of its region a sentence is quite true, far from it quite false."""
    (phrase,) = [p for ps in LANGUAGE.phrases.values() for p in ps if sentence in map(LANGUAGE.plain, p.wordings)]
    (world,) = [w for w, ps in LANGUAGE.phrases.items() if phrase in ps]
    said = phrase.region.truth(shown)[0] if shown.world[0] == world else 0.0
    assert said == truth


@pytest.mark.parametrize("pose", POSES)
def test_of_a_pose_its_own_sentence_is_truest(pose: str) -> None:
    """Said of the examples that test the checks, the words of the eight tasks are true of the right one."""
    shown = posed(pose)
    truths = {}
    for name, other in POSES.items():
        words = other.goal.removeprefix("a humanoid robot ")
        (phrase,) = [p for p in captions.HUMANOID_POSES if "{robot} " + words in p.wordings]
        truths[name] = float(phrase.region.truth(shown)[0])
    assert truths[pose] > 0.8
    assert all(truths[name] < 0.7 * truths[pose] for name in truths if name != pose), truths


def test_captions_say_the_truth_as_a_whole() -> None:
    """The rule that goes with a drawn caption: only its own world, and nonsense of everything."""
    rng = np.random.default_rng(2)
    everything = sample_scenes(300, 16, rng)
    seen = {"nonsense": 0, "generic": 0, "state": 0}
    for caption in LANGUAGE.sample(600, rng):
        truth = caption.truth(everything)
        assert ((truth >= 0) & (truth <= 1)).all()
        assert truth.shape == (300,)
        if words_of(caption.text) <= set(FUNCTION_WORDS):
            assert (truth == 1).all()
            assert UNKNOWN in caption.text
            seen["nonsense"] += 1
            continue
        worlds = set(everything.world[truth > 0].tolist())
        assert len(worlds) <= 1, caption.text
        whole = worlds and np.array_equal(truth, everything.world == next(iter(worlds)))
        seen["generic" if whole else "state"] += 1
    assert seen["nonsense"] > 10
    assert seen["generic"] > 30
    assert seen["state"] > 300


def test_upright_is_truer_the_nearer_to_the_vertical() -> None:
    region = captions.CARTPOLE_ANGLES[0].region
    shares = [region.truth(scene(CARTPOLE, 0, degrees))[0] for degrees in (3, 10, 25, 60, 95)]
    assert shares[0] == 1
    assert shares[-1] == 0
    assert (np.diff(shares) < 0).all()


@pytest.mark.when_changed("pretraining")
@pytest.mark.parametrize("size", [32, 64])
def test_scenes(size: int) -> None:
    scenes = sample_scenes(120, size, np.random.default_rng(0))
    assert scenes.frames.dtype == np.uint8
    assert scenes.frames.shape == (120, size, size, 3)
    assert set(scenes.world.tolist()) == {CARTPOLE, MOUNTAIN_CAR, ROD, HUMANOID}
    assert (np.abs(scenes.quantities["angle"]) <= np.pi).all()
    assert (np.abs(scenes.quantities["position"]) <= 1.2).all()
    assert (scenes.quantities["angle"][scenes.world == MOUNTAIN_CAR] == 0).all()
    assert min(np.ptp(frame) for frame in scenes.frames) > 30, "something can be seen in each"
    again = sample_scenes(120, size, np.random.default_rng(0))
    assert np.array_equal(scenes.frames, again.frames)
    assert np.array_equal(scenes.quantities["angle"], again.quantities["angle"])
    other = sample_scenes(120, size, np.random.default_rng(1))
    assert not np.array_equal(scenes.quantities["angle"], other.quantities["angle"])


def test_frames_are_fitted_as_the_encoder_would() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (48, 96, 3), np.uint8)
    assert fit(frame, 32).shape == (32, 32, 3)
    assert fit(fit(frame, 32), 32).shape == (32, 32, 3)


def test_actions_that_ask_for_angles() -> None:
    model = make_model("fast", "position")
    low, high = model.actuator_ctrlrange.T
    angles = np.random.default_rng(0).uniform(low, np.clip(high, -0.1, None))
    np.testing.assert_allclose(to_control(model, to_actions(model, angles)), np.clip(angles, low, high), atol=1e-12)
    assert np.abs(to_actions(model, np.full(17, 9.0))).max() == 1


@pytest.mark.when_changed("pretraining")
def test_a_few_updates_run_and_give_an_encoder(tmp_path: Path) -> None:
    train(tmp_path / "encoder", seed=3, updates=5, batch_size=24)
    encoder = load_encoder(f"local-dir:{tmp_path / 'encoder'}", device="cpu")
    frames = sample_scenes(4, 64, np.random.default_rng(0)).frames
    for embedded in (encoder.embed_frames(frames), encoder.embed_texts(["a pole", "a cart at the left edge", "??"])):
        np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-5)
    assert encoder.unknown_words(["the upright pole and a wombat"]) == ["wombat"]
