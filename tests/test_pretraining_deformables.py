"""The making of the bundled encoder of cloth, rope and water: states laid by geometry, and sentences about them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pretraining.encoder.deformables import (
    CLOTH,
    FAR,
    LANGUAGE,
    QUANTITIES,
    ROPE,
    WATER,
    bent,
    cloth_quantities,
    lay_rope,
    lay_water,
    sample_scenes,
    stages,
)
from pretraining.encoder.language import UNKNOWN, Scenes
from pretraining.encoder.train import WORLDS, train
from sightline.models.encoders import load_encoder
from sightline_tasks.deformables import cloth, rope, water
from sightline_tasks.deformables.cloth import FoldCloth
from sightline_tasks.deformables.rope import StraightenRope
from sightline_tasks.deformables.water import PassWater
from sightline_tasks.mujoco_rendering import import_mujoco

AT = np.linspace(-cloth.SIDE / 2, cloth.SIDE / 2, cloth.NODES)
FLAT = np.array([(x, y, cloth.RADIUS) for x in AT for y in AT])


@pytest.mark.parametrize("target", [(0.125, 0.125), (0.0, 0.0), (-0.05, 0.1), (0.15, -0.02)])
def test_a_bent_cloth_is_not_stretched_and_its_corner_is_where_it_was_laid(target: tuple[float, float]) -> None:
    points = bent(FLAT, np.array(target), 0.01, 0.0)
    np.testing.assert_allclose(points[0, :2], target, atol=1e-9)
    grid = points.reshape(cloth.NODES, cloth.NODES, 3)
    spacing = cloth.SIDE / (cloth.NODES - 1)
    for neighbours in (np.diff(grid, axis=0), np.diff(grid, axis=1)):
        assert np.linalg.norm(neighbours[..., :2], axis=-1).max() < spacing + 1e-9
    assert points[:, 2].min() == pytest.approx(cloth.RADIUS)
    assert points[:, 2].max() <= 2 * 0.01 + cloth.RADIUS + 1e-9, "the height of the cylinder"
    stays = np.linalg.norm(points - FLAT, axis=1) < 1e-12
    assert 0.3 < stays.mean() < 0.95


def test_a_corner_that_is_pulled_outwards_drags_the_cloth() -> None:
    points = bent(FLAT, np.array([-0.2, -0.2]), 0.01, 0.0)
    np.testing.assert_allclose(points[0, :2], (-0.2, -0.2))
    moved = np.linalg.norm(points - FLAT, axis=1)
    assert moved[-1] < 0.4 * moved[0]
    assert (np.diff(moved.reshape(cloth.NODES, cloth.NODES).diagonal()) < 1e-12).all()
    assert points[:, 2].max() == cloth.RADIUS


@pytest.mark.when_changed("pretraining")
def test_quantities_are_what_the_tasks_measure() -> None:
    """Of states that the simulator made, and of those that were laid here."""
    folding = FoldCloth()
    for seed in range(3):
        folding.reset(seed=seed)
        flat = folding.points.copy()
        folding.step(folding.solution() if seed == 0 else folding.action_space.sample())
        found = cloth_quantities(folding.points, flat)
        assert found["unfolded"] == pytest.approx(1 - folding.progress, abs=1e-6)
    assert cloth_quantities(flat, flat)["unfolded"] == pytest.approx(1)
    assert cloth_quantities(flat, flat)["moved"] == 0

    mujoco, rng = import_mujoco(), np.random.default_rng(0)
    straightening, passing = StraightenRope(), PassWater()
    for _ in range(20):
        slack = lay_rope(straightening, rng)["slack"]
        mujoco.mj_kinematics(straightening.model, straightening.data)
        mujoco.mj_flex(straightening.model, straightening.data)
        assert straightening.gap == pytest.approx((1 - slack) * rope.LENGTH, abs=1e-6)
        seen = lay_water(passing, rng)
        mujoco.mj_kinematics(passing.model, passing.data)
        assert abs(passing.place - water.TARGET) == pytest.approx(seen["away"], abs=1e-9)
        outside = (~passing.inside).sum() / water.BALLS
        assert outside == pytest.approx(seen["spilled"], abs=2.5 / water.BALLS), "a heap may rise above the rim"


@pytest.mark.when_changed("pretraining")
def test_scenes_show_their_worlds() -> None:
    scenes = sample_scenes(60, 64, np.random.default_rng(0))
    assert scenes.frames.shape == (60, 64, 64, 3)
    assert set(scenes.world.tolist()) == {CLOTH, ROPE, WATER}
    assert min(np.ptp(frame) for frame in scenes.frames) > 30
    for world, own in (
        (CLOTH, ("unfolded", "moved", "corner")),
        (ROPE, ("slack", "bend")),
        (WATER, ("away", "spilled")),
    ):
        for name in QUANTITIES:
            known = scenes.quantities[name][scenes.world == world] != FAR
            assert known.all() if name in own else not known.any()
    again = sample_scenes(60, 64, np.random.default_rng(0))
    np.testing.assert_array_equal(scenes.frames, again.frames)
    # As the task itself draws what it simulates.
    env = FoldCloth(render_mode="rgb_array", render_size=(64, 64), starts="fixed")
    env.reset()
    stage = stages(CLOTH)[0]
    stage.env.data.qpos[:], stage.env.data.mocap_pos[:] = env.data.qpos, env.data.mocap_pos
    drawn = stage.picture(next(iter(cloth.CAMERAS.values())), 64)
    assert np.abs(drawn.astype(int) - env.render()).max() <= 2
    env.close()


def shown(world: int, **known: float) -> Scenes:
    quantities = {name: np.array([known.get(name, FAR)]) for name in QUANTITIES}
    return Scenes(np.array([world]), quantities, np.zeros((1, 4, 4, 3), np.uint8))


def truth(sentence: str, scenes: Scenes) -> float:
    (phrase, *_) = [p for ps in LANGUAGE.phrases.values() for p in ps if sentence in map(LANGUAGE.plain, p.wordings)]
    return float(phrase.region.truth(scenes)[0])


def test_goals_are_truer_the_nearer_they_are() -> None:
    """The words of the three tasks, on the way to what they ask for."""
    ways = (
        (cloth.TASK, [shown(CLOTH, unfolded=value) for value in (1.2, 0.8, 0.4, 0.2, 0.12, 0.05)]),
        (rope.TASK, [shown(ROPE, slack=value) for value in (0.95, 0.5, 0.2, 0.1, 0.05, 0.01)]),
        (water.TASK, [shown(WATER, away=value, spilled=0.0) for value in (0.7, 0.4, 0.2, 0.1, 0.05, 0.01)]),
    )
    for task, way in ways:
        truths = [truth(task.goal[0].removeprefix("the "), scenes) for scenes in way]
        assert truths[0] == 0
        assert truths[-1] == 1
        assert (np.diff(truths) > 0).all()
    said = water.TASK.goal[0].removeprefix("the ")
    spilled = [truth(said, shown(WATER, away=0.0, spilled=balls / water.BALLS)) for balls in (0, 1, 5, 30, 100)]
    assert spilled[0] == 1
    assert (np.diff(spilled) < 0).all()


def test_words() -> None:
    known, drawn = set(LANGUAGE.vocabulary()), LANGUAGE.sample(2000, np.random.default_rng(0))
    for caption in drawn:
        assert set(re.findall(r"[a-z]+", caption.text.replace(UNKNOWN, ""))) <= known, caption.text
    held_out = [LANGUAGE.plain(w) for phrases in LANGUAGE.phrases.values() for p in phrases for w in p.held_out]
    assert len(held_out) >= 5
    bare = {re.sub(r"\b(a|the) ", "", caption.text) for caption in LANGUAGE.sample(5000, np.random.default_rng(1))}
    assert not bare & {re.sub(r"\b(a|the) ", "", sentence) for sentence in held_out}
    for task in (cloth.TASK, rope.TASK, water.TASK):
        assert all(set(re.findall(r"[a-z]+", sentence)) <= known for sentence in (*task.goal, *task.baseline))


@pytest.mark.when_changed("pretraining")
def test_a_few_updates_run_and_give_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretraining.encoder.train.POOL", 64)
    train(tmp_path / "encoder", seed=3, updates=2, batch_size=16, worlds=WORLDS["deformables"])
    encoder = load_encoder(f"local-dir:{tmp_path / 'encoder'}", device="cpu")
    embedded = encoder.embed_frames(sample_scenes(4, 64, np.random.default_rng(0)).frames)
    np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-5)
    assert encoder.unknown_words(["the rope and a wombat"]) == ["wombat"]
    assert sum(LANGUAGE.shares) == pytest.approx(1)
