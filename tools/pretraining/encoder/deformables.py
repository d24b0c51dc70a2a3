"""What the bundled encoder of cloth, rope and water sees, and what is said of it.

Bodies are laid by geometry, never by physics: a cloth is bent about a cylinder, a rope is a random curve, balls lie in
a glass as they settled or anywhere on the table. MuJoCo draws them with the models of our tasks, so that nothing but
the bodies' states is guessed. What the physics makes of them is left for the card, which measures the encoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from pretraining.encoder.language import AllOf, Language, Phrase, Region, Scenes, any_phrase, fit
from sightline_tasks.cameras import View
from sightline_tasks.deformables import cloth, rope, water
from sightline_tasks.deformables.cloth import FoldCloth
from sightline_tasks.deformables.rope import StraightenRope
from sightline_tasks.deformables.soft_body import HeldFlex, SoftBody
from sightline_tasks.deformables.water import PassWater
from sightline_tasks.mujoco_rendering import OffscreenRenderer, import_mujoco

CLOTH, ROPE, WATER = 0, 1, 2
SHARES = (0.45, 0.25, 0.3)
"""Of the three worlds among the pictures."""
STANDARD_LOOK, LARGER = 0.6, 0.15
"""Shares of pictures in the first look and from the first camera of our tasks, and of those that are drawn larger."""
QUANTITIES = ("unfolded", "moved", "corner", "slack", "bend", "away", "spilled")
FAR = 9.0
"""Value of a quantity of another world."""


# Scenes


@dataclass(frozen=True, eq=False)
class Stage:
    """A task's model in one look: draws whatever state it is given."""

    env: SoftBody
    views: Mapping[str, View]

    def picture(self, view: View, size: int) -> np.ndarray:
        """uint8[size, size, 3] of the state in `env.data`."""
        mujoco, model, data = import_mujoco(), self.env.model, self.env.data
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mj_flex(model, data)
        return _renderer(self, size).render(data, view)


@cache
def _renderer(stage: Stage, size: int) -> OffscreenRenderer:
    """A stage's renderer of pictures of `size` x `size` pixels."""
    return OffscreenRenderer(stage.env.model, (size, size), samples=0)


@cache
def stages(world: int) -> list[Stage]:
    """One for each look of a world."""
    makers: dict[int, tuple[Callable[..., SoftBody], Mapping[str, Any], Mapping[str, View]]] = {
        CLOTH: (FoldCloth, cloth.CLOTHS, cloth.CAMERAS),
        ROPE: (StraightenRope, rope.ROPES, rope.CAMERAS),
        WATER: (PassWater, water.WATERS, water.CAMERAS),
    }
    make, looks, views = makers[world]
    return [Stage(make(look=look), views) for look in looks]


def sample_scenes(
    count: int,
    image_size: int,
    rng: np.random.Generator,
    standard_looks: bool = True,
    shares: tuple[float, ...] = SHARES,
) -> Scenes:
    """Draw `count` random scenes; a share of them in the first look and from the first camera of our tasks, unless
    `standard_looks` is false.

    Quantities: `unfolded`, mean distance of the cloth's points from an exact fold along the diagonal, and `moved`, from
    where they lay, both as shares of the distance between the two; `corner`, distance of the held corner from the
    middle of the cloth, in half diagonals; `slack`, what the distance between the rope's ends lacks of its length, and
    `bend`, that distance, both in lengths; `away`, distance of the glass from its target in metres; `spilled`, share
    of the balls outside of it.
    """
    world = rng.choice(len(shares), size=count, p=shares)
    quantities = {name: np.full(count, FAR) for name in QUANTITIES}
    frames = np.empty((count, image_size, image_size, 3), np.uint8)
    lay: dict[int, Callable[[Any, np.random.Generator], dict[str, float]]]
    lay = {CLOTH: lay_cloth, ROPE: lay_rope, WATER: lay_water}
    for i, shown in enumerate(world.tolist()):
        standard = standard_looks and rng.random() < STANDARD_LOOK
        stage = stages(shown)[0 if standard else int(rng.integers(len(stages(shown))))]
        for name, value in lay[shown](stage.env, rng).items():
            quantities[name][i] = value
        first, *_ = views = list(stage.views.values())
        view = first if standard else _shaken(views[int(rng.integers(len(views)))], rng)
        size = image_size if rng.random() > LARGER else 224
        frames[i] = fit(stage.picture(view, size), image_size)
    return Scenes(world, quantities, frames)


def _shaken(view: View, rng: np.random.Generator) -> View:
    """About the same view."""
    x, y, z = (np.asarray(view.look_at) + rng.uniform(-0.02, 0.02, 3)).tolist()
    return replace(
        view,
        look_at=(x, y, z),
        distance=view.distance * rng.uniform(0.9, 1.15),
        azimuth=view.azimuth + rng.uniform(-10, 10),
        elevation=max(view.elevation + rng.uniform(-5, 5), -89.9),
    )


def lay_cloth(env: HeldFlex, rng: np.random.Generator) -> dict[str, float]:
    """Lay a cloth flat, folded in any way, or half lifted; returns its quantities."""
    turn, shift = math.radians(rng.uniform(-35, 35)), rng.uniform(-0.035, 0.035, 2)
    rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    at = np.linspace(-cloth.SIDE / 2, cloth.SIDE / 2, cloth.NODES)
    grid = np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
    flat = np.column_stack([grid @ rotation + shift, np.full(len(grid), cloth.RADIUS)])
    kind, points = rng.random(), flat.copy()
    if kind > 0.1:
        target = rng.uniform(-cloth.REACH, cloth.REACH, 2)
        if kind < 0.6:  # about where it is folded in half
            target = flat[-1, :2] + rng.normal(0, np.exp(rng.uniform(np.log(0.003), np.log(0.12))), 2)
        opening = 0.0 if rng.random() < 0.8 else float(rng.uniform(0, math.pi))
        points = bent(flat, target, float(np.exp(rng.uniform(np.log(0.003), np.log(0.025)))), opening)
        points += _wrinkles(rng) * rng.uniform(0, 0.006)
        points[:, 2] = np.maximum(points[:, 2], cloth.RADIUS)
    env.lay(points, [0])
    return cloth_quantities(points, flat)


def cloth_quantities(points: np.ndarray, flat: np.ndarray) -> dict[str, float]:
    """Quantities of a cloth whose points [225, 3] were at `flat` at first; see `sample_scenes`."""
    middle, diagonal = flat[len(flat) // 2], flat[-1] - flat[0]
    along = diagonal / np.linalg.norm(diagonal)
    # The half of the corner that is held, mirrored, lies upon the other.
    before = np.minimum((flat - middle) @ along, 0.0)
    folded = flat - 2 * np.outer(before, along) + np.outer(before < -1e-9, (0, 0, 2 * cloth.RADIUS))
    whole = np.linalg.norm(flat - folded, axis=1).mean()
    return {
        "unfolded": float(np.linalg.norm(points - folded, axis=1).mean() / whole),
        "moved": float(np.linalg.norm(points - flat, axis=1).mean() / whole),
        "corner": float(np.linalg.norm(points[0] - middle) / np.linalg.norm(flat[0] - middle)),
    }


def bent(flat: np.ndarray, target: np.ndarray, radius: float, opening: float) -> np.ndarray:
    """A flat cloth after its first corner was laid on a target, float[2].

    Beyond the crease, which is perpendicular to the way of the corner, the cloth goes half around a cylinder and back:

        flat ────────────╮  radius
              back ──────╯          ▲ u: the way of the corner

    A corner that is not carried over the cloth drags it along. An `opening` (radians) lifts what was folded.
    """
    corner, middle = flat[0, :2], flat[len(flat) // 2, :2]
    way = target - corner
    length = float(np.linalg.norm(way))
    if way @ (middle - corner) <= 0 or length < 0.02:
        # The more of the cloth follows, the nearer it is to the corner.
        distance = np.linalg.norm(flat[:, :2] - corner, axis=1)
        follows = np.exp(-np.maximum(distance - length, 0) / (2 * length + 1e-9))
        dragged: np.ndarray = flat + np.column_stack([np.outer(follows, way), np.zeros(len(flat))])
        return dragged
    u, around = way / length, math.pi * radius
    beyond = (length + around) / 2 - (flat[:, :2] - corner) @ u
    on, back = np.clip(beyond, 0, around), np.maximum(beyond - around, 0)
    along = radius * np.sin(on / radius) - back
    # What lies back sinks from the height of the cylinder onto the cloth.
    lies = 3 * cloth.RADIUS + max(2 * radius - 2 * cloth.RADIUS, 0.0) * np.exp(-back / (1.5 * radius))
    height = np.where(beyond < around, cloth.RADIUS + radius * (1 - np.cos(on / radius)), lies)
    if opening:
        along, height = np.where(back > 0, -back * math.cos(opening), along), height + back * math.sin(opening)
    is_beyond = beyond > 0
    moved = flat[:, :2] + np.outer(np.where(is_beyond, beyond - along, 0.0), u)
    return np.column_stack([moved, np.where(is_beyond, height, cloth.RADIUS)])


def _wrinkles(rng: np.random.Generator) -> np.ndarray:
    """float64[points, 3]: a smooth random displacement of about 1."""
    place = np.linspace(0, 1, cloth.NODES)
    x, y = np.meshgrid(place, place, indexing="ij")
    waves = [
        np.sin(2 * np.pi * (rng.uniform(0.3, 1.5) * x + rng.uniform(0.3, 1.5) * y * rng.choice([-1, 1]) + rng.random()))
        for _ in range(3)
    ]
    return np.stack(waves, -1).reshape(-1, 3)


def lay_rope(env: HeldFlex, rng: np.random.Generator) -> dict[str, float]:
    """Lay a rope in a random curve, from straight to curled; returns its quantities."""
    links = rope.NODES - 1
    place = np.arange(links) / links
    amount = (
        float(np.exp(rng.uniform(np.log(0.03), np.log(0.8)))) if rng.random() < 0.55 else float(rng.uniform(0.5, 3))
    )
    turns = rng.normal(size=3) * np.array([1.0, 0.6, 0.3]) * amount
    curl = rng.uniform(-1.3, 1.3) * amount
    heading = rng.uniform(0, 2 * np.pi) + curl * place
    for wave, turn in enumerate(turns, 1):
        heading = heading + turn * np.sin(np.pi * wave * place + rng.uniform(0, 2 * np.pi))
    # Ends that are held in the air: the rope rises towards them.
    rise = np.where(rng.random(2) < 0.3, rng.uniform(0, 0.12, 2), 0.0)
    height = rise[0] * np.exp(-8 * place) + rise[1] * np.exp(-8 * (1 - place))
    steps = np.stack([np.cos(heading), np.sin(heading)], 1) * rope.LENGTH / links
    slope = np.gradient(height) * links / rope.LENGTH
    points = np.zeros((rope.NODES, 3))
    points[1:, :2] = np.cumsum(steps / np.sqrt(1 + slope**2)[:, None], axis=0)
    points[:, 2] = rope.RADIUS + np.interp(np.linspace(0, 1, rope.NODES), place, height)
    points[:, :2] += rng.uniform(-0.12, 0.12, 2) * (rng.random() < 0.6) - points[:, :2].mean(axis=0)
    env.lay(points, [0, -1])
    gap = float(np.linalg.norm(points[-1] - points[0])) / rope.LENGTH
    return {"slack": max(1 - gap, 0.0), "bend": gap}


@cache
def _settled() -> list[np.ndarray]:
    """How balls lie in a glass at 0, for each of the task's fillings."""
    env = PassWater(starts="random")
    found: dict[bytes, np.ndarray] = {}
    for seed in range(4 * water.FILLINGS):
        env.reset(seed=seed)
        state = env.data.qpos.copy()
        state[1::3] -= state[0]
        state[0] = 0
        found.setdefault(state[2::3].tobytes(), state)
    return list(found.values())


def lay_water(env: SoftBody, rng: np.random.Generator) -> dict[str, float]:
    """Put the glass somewhere and lay some of the balls beside it; returns the quantities."""
    state = _settled()[int(rng.integers(len(_settled())))].copy()
    balls = state[1:].reshape(-1, 3)
    place = rng.uniform(-0.25, 0.85)
    if rng.random() < 0.5:
        place = water.TARGET + rng.normal(0, np.exp(rng.uniform(np.log(0.01), np.log(0.2))))
    kind = rng.random()
    lost = 0 if kind < 0.4 else int(rng.integers(1, 8)) if kind < 0.75 else int(rng.integers(8, water.BALLS + 1))
    tilt = rng.normal(0, 0.5)
    # The upper ones go first, rather those of one side.
    order = np.argsort(-(balls[:, 2] + tilt * balls[:, 0] + rng.normal(0, water.BALL, water.BALLS)))
    balls[:, 0] += place
    middle = rng.uniform(-0.2, 0.8)
    for ball in order[:lost]:
        while True:
            x = rng.normal(middle, 0.15) if rng.random() < 0.7 else rng.uniform(-0.3, 0.9)
            y = rng.normal(0, 0.12)
            if abs(x - place) > water.WIDTH / 2 + 2 * water.BALL or abs(y) > water.DEPTH / 2 + 2 * water.BALL:
                break
        balls[ball] = x, y, water.BALL - 0.03
    state[0] = place
    env.data.qpos[:] = state
    return {"away": abs(place - water.TARGET), "spilled": lost / water.BALLS}


# Sentences

_FOLDED, _THERE, _ALL = Region("unfolded", 0, 0.06, 1.1), Region("away", 0, 0.02, 0.6), Region("spilled", 0, 0.004, 0.5)

CLOTHS: tuple[Phrase, ...] = (
    Phrase(
        _FOLDED,
        (
            "{cloth} is folded in half along its diagonal",
            "{cloth} folded in half along the diagonal",
            "{cloth} folded along its diagonal",
            "{cloth} folded into a triangle",
            "{cloth} folded diagonally in half",
            "{cloth} with one corner folded onto the opposite corner",
        ),
        ("{cloth} is folded diagonally into a triangle",),
    ),
    Phrase(
        Region("moved", 0, 0.05, 1.0),
        ("{cloth} lying flat on the table", "{cloth} is not folded", "flat {cloth}", "{cloth} spread out on the table"),
        ("{cloth} spread out flat",),
    ),
    Phrase(
        Region("corner", 0, 0.1, 1.0),
        ("{cloth} with one corner folded to its middle", "{cloth} with a corner folded to the centre"),
    ),
)

ROPES: tuple[Phrase, ...] = (
    Phrase(
        Region("slack", 0, 0.02, 0.9),
        (
            "{rope} is pulled straight",
            "{rope} pulled straight on the table",
            "straight {rope}",
            "{rope} stretched out straight",
            "{rope} in a straight line",
        ),
        ("{rope} stretched straight on the table",),
    ),
    Phrase(
        Region("bend", 0, 0.1, 0.8),
        (
            "{rope} with its ends together",
            "curled {rope}",
            "{rope} lying in a loop",
            "{rope} with both ends at one place",
        ),
        ("curled {rope} on the table",),
    ),
    Phrase(Region("bend", 0.6, 0.1, 0.4), ("{rope} lying in a bow", "bent {rope}", "{rope} is half straight")),
)

WATERS: tuple[Phrase, ...] = (
    Phrase(
        AllOf((_THERE, _ALL)),
        (
            "{glass} with all of the {balls} stands on the green square",
            "{glass} with all of the {balls} on the green square",
            "{glass} full of {balls} on the green square",
            "{glass} stands on the green square with all the {balls} inside",
        ),
        ("{glass} full of {balls} stands on the green square",),
    ),
    Phrase(_THERE, ("{glass} on the green square", "{glass} stands on the green square", "{glass} at the target")),
    Phrase(
        _ALL, ("all of the {balls} are in the {glass}", "{glass} with all of the {balls}", "no {balls} on the table")
    ),
    Phrase(
        Region("away", 0.5, 0.1, 0.45),
        ("{glass} far from the green square", "{glass} away from the green square"),
    ),
    Phrase(
        Region("spilled", 1.0, 0.15, 0.98),
        ("{balls} spilled on the table", "empty {glass}", "spilled {balls}", "{balls} lying on the table"),
        ("{balls} spilled on the table beside the {glass}",),
    ),
)


def _choose(world: int, rng: np.random.Generator) -> tuple[Phrase, ...]:
    """Any phrase; in half of the sentences the goal of our task, which is what people ask for most."""
    phrases = LANGUAGE.phrases[world]
    return (phrases[0] if rng.random() < 0.35 else any_phrase(phrases, rng),)


LANGUAGE = Language(
    phrases={CLOTH: CLOTHS, ROPE: ROPES, WATER: WATERS},
    generic={
        CLOTH: (
            "{cloth} on a table",
            "{cloth}",
            "square {cloth}",
            "{cloth} on the floor",
            "{cloth} held at one corner",
        ),
        ROPE: ("{rope} on a table", "{rope}", "{rope} on the floor", "{rope} held at both ends"),
        WATER: ("{glass} with {balls} on a table", "{glass} and {balls}", "{glass}", "{balls} and a green square"),
    },
    synonyms={
        "cloth": ("cloth", "cloth", "cloth", "towel", "napkin", "fabric"),
        "rope": ("rope", "rope", "rope", "string", "cord"),
        "glass": ("glass", "glass", "glass", "cup", "box"),
        "balls": ("blue balls", "blue balls", "balls", "water"),
    },
    shares=(0.4, 0.25, 0.35),
    choose=_choose,
)
