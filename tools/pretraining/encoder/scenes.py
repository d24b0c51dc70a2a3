"""What the bundled encoder sees: random states of four small worlds in random looks, sizes and textures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretraining.encoder.humanoid import PARTS, distances, picture_bodies, sample_bodies, skeleton
from pretraining.encoder.language import Scenes, fit
from sightline.envs.frames import Size
from sightline_tasks.control.cartpole import LOOKS as CARTPOLE_LOOKS
from sightline_tasks.control.cartpole import TRACK, CartPoleLook, draw_cartpole
from sightline_tasks.control.mountain_car import LEFT, RIGHT, MountainCarLook, draw_mountain_car
from sightline_tasks.control.mountain_car import LOOKS as MOUNTAIN_CAR_LOOKS
from sightline_tasks.drawing import Canvas, Colour, texture, turn

CARTPOLE, MOUNTAIN_CAR, ROD, HUMANOID = 0, 1, 2, 3
SHARES = (0.24, 0.17, 0.09, 0.5)
"""Of the four worlds among the pictures."""
STANDARD_LOOK, BODIES_STANDARD_LOOK = 0.35, 0.7
"""Share of pictures in the looks of our tasks; and of humanoids, also from the cameras of our tasks."""
FAR = 9.0
"""Distance in metres of what is not there."""


def sample_scenes(
    count: int,
    image_size: int,
    rng: np.random.Generator,
    standard_looks: bool = True,
    shares: tuple[float, ...] = SHARES,
) -> Scenes:
    """Draw `count` random scenes; a share of them in the looks that our tasks use, unless `standard_looks` is false.

    Quantities are `position`: CartPole's cart from -1 (left end) to 1 (right end), or where the car on the mountain is;
    `angle` of the pole or the rod: radians from upright, positive to the right, in [-pi, pi); and distances in metres
    of the humanoid's parts from what words say of them (see `pretraining.encoder.humanoid`), far in other worlds.
    """
    world = rng.choice(len(shares), size=count, p=shares)
    position, angle = np.zeros(count), np.zeros(count)
    frames = np.empty((count, image_size, image_size, 3), np.uint8)
    parts = {name: np.full(count, FAR) for name in PARTS}
    bodies = np.flatnonzero(world == HUMANOID)
    if len(bodies):
        states = sample_bodies(len(bodies), rng)
        for name, distance in distances(skeleton().posture(states)).items():
            parts[name][bodies] = distance
        frames[bodies] = picture_bodies(states, image_size, rng, BODIES_STANDARD_LOOK if standard_looks else 0.0)
    for i in np.flatnonzero(world != HUMANOID):
        if world[i] == MOUNTAIN_CAR:
            position[i] = rng.uniform(LEFT, RIGHT) if rng.random() < 0.7 else rng.normal(0.45, 0.08)
            position[i] = np.clip(position[i], LEFT, RIGHT)
        else:
            angle[i] = rng.uniform(-np.pi, np.pi) if rng.random() < 0.6 else rng.normal(0, 0.25)
            if world[i] == CARTPOLE:
                position[i] = np.clip(rng.uniform(-1.15, 1.15), -1, 1)
        frame = _draw(world[i], position[i], angle[i], image_size, rng, standard_looks and rng.random() < STANDARD_LOOK)
        frames[i] = fit(frame, image_size)
    return Scenes(world, {"position": position, "angle": angle} | parts, frames)


def _draw(
    world: int, position: float, angle: float, image_size: int, rng: np.random.Generator, standard: bool
) -> np.ndarray:
    size = (image_size, image_size) if standard else _random_size(rng)
    if world == CARTPOLE:
        look = CARTPOLE_LOOKS[str(rng.choice(list(CARTPOLE_LOOKS)))] if standard else random_cartpole_look(rng)
        return draw_cartpole(position * TRACK, angle, size, look)
    if world == MOUNTAIN_CAR:
        car_look = (
            MOUNTAIN_CAR_LOOKS[str(rng.choice(list(MOUNTAIN_CAR_LOOKS)))] if standard else random_mountain_car_look(rng)
        )
        return draw_mountain_car(position, size, car_look)
    return draw_rod(angle, size, RodLook() if standard else random_rod_look(rng))


def _random_size(rng: np.random.Generator) -> Size:
    height = int(rng.integers(48, 129))
    return height, int(height * rng.choice([1.0, 1.0, 1.25, 1.5]))


def _colour(rng: np.random.Generator, low: int = 0, high: int = 256) -> Colour:
    r, g, b = rng.integers(low, high, 3)
    return int(r), int(g), int(b)


def _contrasting(rng: np.random.Generator, background: Colour, distance: float = 110) -> Colour:
    while True:
        colour = _colour(rng)
        if np.linalg.norm(np.subtract(colour, background)) > distance:
            return colour


def random_cartpole_look(rng: np.random.Generator) -> CartPoleLook:
    background = (255, 255, 255) if rng.random() < 0.3 else _colour(rng)
    return CartPoleLook(
        background=background,
        horizon=_near(rng, background) if rng.random() < 0.5 else None,
        roughness=float(rng.choice([0, 0, 8, 16])),
        noise_seed=int(rng.integers(40)),
        cart=_contrasting(rng, background),
        pole=_contrasting(rng, background),
        axle=_colour(rng),
        rail=_contrasting(rng, background),
        pole_length=rng.uniform(0.24, 0.42),
        pole_width=rng.uniform(0.025, 0.07),
        cart_width=rng.uniform(0.12, 0.26),
        cart_height=rng.uniform(0.06, 0.13),
        rail_height=rng.uniform(0.52, 0.78),
    )


def random_mountain_car_look(rng: np.random.Generator) -> MountainCarLook:
    sky = (255, 255, 255) if rng.random() < 0.3 else _colour(rng, 90)
    ground = _contrasting(rng, sky, 90) if rng.random() < 0.6 else None
    return MountainCarLook(
        sky_top=sky,
        sky_bottom=_near(rng, sky),
        sky_roughness=float(rng.choice([0, 8, 16])),
        ground=ground,
        ground_roughness=float(rng.choice([0, 12, 24])),
        noise_seed=int(rng.integers(40)),
        road=_contrasting(rng, sky, 60),
        car=_contrasting(rng, sky),
        wheels=_colour(rng),
        flag=(int(rng.integers(200, 256)), int(rng.integers(180, 226)), int(rng.integers(0, 60))),
        pole=_contrasting(rng, sky),
        car_length=rng.uniform(0.1, 0.15),
        car_height=rng.uniform(0.045, 0.075),
    )


def _near(rng: np.random.Generator, colour: Colour) -> Colour:
    r, g, b = np.clip(np.asarray(colour) + rng.integers(-45, 46, 3), 0, 255)
    return int(r), int(g), int(b)


@dataclass(frozen=True)
class RodLook:
    """A rod that turns about its end in the middle of the picture, as pendulum simulators show it."""

    background: Colour = (255, 255, 255)
    roughness: float = 0.0
    noise_seed: int = 0
    rod: Colour = (204, 77, 77)
    axle: Colour = (0, 0, 0)
    length: float = 0.24
    width: float = 0.05


def random_rod_look(rng: np.random.Generator) -> RodLook:
    background = (255, 255, 255) if rng.random() < 0.4 else _colour(rng)
    return RodLook(
        background=background,
        roughness=float(rng.choice([0, 0, 10])),
        noise_seed=int(rng.integers(40)),
        rod=_contrasting(rng, background),
        axle=_contrasting(rng, background),
        length=rng.uniform(0.2, 0.42),
        width=rng.uniform(0.03, 0.08),
    )


def draw_rod(angle: float, size: Size, look: RodLook) -> np.ndarray:
    """Picture of a rod at an angle (radians from upright, positive to the right): uint8[height, width, 3]."""
    background = texture(size, look.background, look.background, look.roughness, look.noise_seed)
    canvas = Canvas(size, background)
    aspect = size[1] / size[0]
    half = look.width / 2 / aspect
    rod = [(0.5 - half, 0.5), (0.5 - half, 0.5 - look.length), (0.5 + half, 0.5 - look.length), (0.5 + half, 0.5)]
    canvas.polygon(turn(rod, angle, (0.5, 0.5), aspect), look.rod)
    canvas.disc((0.5, 0.5), look.width / 2, look.rod)
    tip = turn([(0.5, 0.5 - look.length)], angle, (0.5, 0.5), aspect)[0]
    canvas.disc(tip, look.width / 2, look.rod)
    canvas.disc((0.5, 0.5), look.width / 4, look.axle)
    return canvas.pixels()
