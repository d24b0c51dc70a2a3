"""MountainCarContinuous for rewards from frames: the episode continues after the flag is reached.

The dynamics are those of Moore (1990) with the constants of Gymnasium's `MountainCarContinuous-v0`. The differences
follow the task of "Vision-Language Models are Zero-Shot Reward Models" (Rocamonde et al., ICLR 2024): no termination,
and once the flag has been reached the car cannot pass the peak. Every reset clears the success of the last episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.envs.tasks import Axis, Task
from sightline_tasks.drawing import Canvas, Colour, Point, choose_look, texture, turn
from sightline_tasks.registration import MOUNTAIN_CAR_ID

LEFT = -1.2
RIGHT = 0.6
"""Ends of the road."""
FLAG = 0.45
"""Position of the flag."""
MAX_SPEED = 0.07
POWER = 0.0015
GRAVITY = 0.0025
VALLEY = -math.pi / 6
"""Lowest point of the road."""
VISIBLE_SPEED = 0.005
"""Least speed that two frames of 96 pixels show."""


@dataclass(frozen=True)
class MountainCarLook:
    """Colours and proportions of the frame; lengths are fractions of its height."""

    sky_top: Colour = (255, 255, 255)
    sky_bottom: Colour = (255, 255, 255)
    sky_roughness: float = 0.0
    ground: Colour | None = None
    """Colour of the mountain; None draws the road as a thin line only."""
    ground_roughness: float = 0.0
    noise_seed: int = 0
    road: Colour = (0, 0, 0)
    car: Colour = (0, 0, 0)
    wheels: Colour = (128, 128, 128)
    flag: Colour = (204, 204, 0)
    pole: Colour = (0, 0, 0)
    car_length: float = 0.12
    car_height: float = 0.06


def _on_picture(x: float) -> Point:
    """Point of the frame at which the road is drawn at position x."""
    height = math.sin(3 * x) * 0.45 + 0.55
    across = 0.09 + 0.82 * (x - LEFT) / (RIGHT - LEFT)
    down = 0.92 - 0.66 * height
    return across, down


@lru_cache(maxsize=512)
def _scenery(size: Size, look: MountainCarLook) -> np.ndarray:
    """Background of every frame, at the canvas's size: everything but the car."""
    sky = texture(size, look.sky_top, look.sky_bottom, look.sky_roughness, look.noise_seed)
    canvas = Canvas(size, sky)
    road = [_on_picture(LEFT + (RIGHT - LEFT) * i / 80) for i in range(-10, 91)]
    if look.ground is not None:
        ground = Canvas(size, look.ground)
        if look.ground_roughness:
            red, green, blue = look.ground
            darker: Colour = (red // 2, green // 2, blue // 2)
            ground = Canvas(size, texture(size, look.ground, darker, look.ground_roughness, look.noise_seed + 1))
        # The ground is where a white polygon under the road would be.
        mask = Canvas(size, (0, 0, 0))
        mask.polygon([(0.0, 1.0), *road, (1.0, 1.0)], (255, 255, 255))
        inside = mask.canvas_pixels()[:, :, :1] > 0
        canvas = Canvas(size, np.where(inside, ground.canvas_pixels(), canvas.canvas_pixels()))
    thickness = 0.006
    # Along its upper edge, and back along the lower one.
    upper = [(x, y - thickness) for x, y in road]
    lower = [(x, y + thickness) for x, y in reversed(road)]
    canvas.polygon([*upper, *lower], look.road)
    x, y = _on_picture(FLAG)
    canvas.rectangle(x - 0.005, y - 0.17, x + 0.005, y, look.pole)
    canvas.polygon([(x, y - 0.17), (x, y - 0.1), (x + 0.09, y - 0.135)], look.flag)
    return canvas.canvas_pixels()


def draw_mountain_car(position: float, size: Size, look: MountainCarLook) -> np.ndarray:
    """Draw the frame of a state.

    Args:
        position: of the car, within [-1.2, 0.6]; the flag is at 0.45.
        size: height and width in pixels.
        look: colours and proportions.

    Returns:
        uint8[height, width, 3].
    """
    canvas = Canvas(size, _scenery(size, look))
    aspect = size[1] / size[0]
    x, y = _on_picture(position)
    # The road's slope where the car stands, in the units of the picture: see `_on_picture`.
    slope = 0.45 * 3 * math.cos(3 * position)
    angle = -math.atan2(slope * 0.66, 0.82 * aspect / (RIGHT - LEFT))
    half = look.car_length / 2 / aspect
    tall = look.car_height
    radius = look.car_height / 3
    # Level, on its wheels, then turned about the point of the road below its middle.
    body = [
        (x - half, y - radius),
        (x - half, y - radius - tall),
        (x + half, y - radius - tall),
        (x + half, y - radius),
    ]
    canvas.polygon(turn(body, angle, (x, y), aspect), look.car)
    axles = [(x - 0.6 * half, y - radius), (x + 0.6 * half, y - radius)]
    for wheel in turn(axles, angle, (x, y), aspect):
        canvas.disc(wheel, radius, look.wheels)
    return canvas.pixels()


LOOKS = {
    "plain": MountainCarLook(),
    "textured": MountainCarLook(
        sky_top=(90, 150, 225),
        sky_bottom=(215, 232, 248),
        sky_roughness=14,
        ground=(116, 132, 78),
        ground_roughness=26,
        road=(74, 66, 52),
        car=(205, 38, 38),
        wheels=(28, 28, 28),
        flag=(250, 214, 20),
        pole=(240, 240, 240),
    ),
}


class MountainCar(gymnasium.Env[np.ndarray, np.ndarray]):
    """Swing a weak car up a hill until it reaches the flag.

    Observation: float32[2], position in [-1.2, 0.6] and velocity in [-0.07, 0.07]. Action: float32[1] in [-1, 1], the
    throttle. Reward (the ground truth): -0.1 action^2, and 100 once when the flag at 0.45 is reached.
    `info["success"]` is true from then on until the next reset. The environment never terminates; the time limit of
    its registration (200 steps) truncates.

    Args:
        render_mode: `"rgb_array"` or None.
        render_size: height and width of the frames in pixels.
        look: a name in `LOOKS`, or a :class:`MountainCarLook`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    asked = ("car", "moving")

    def __init__(
        self, render_mode: str | None = None, render_size: Size = (256, 256), look: str | MountainCarLook = "plain"
    ) -> None:
        self.render_mode = render_mode
        self.render_size = (int(render_size[0]), int(render_size[1]))
        self.look = choose_look(look, LOOKS)
        low = np.array([LEFT, -MAX_SPEED], np.float32)
        high = np.array([RIGHT, MAX_SPEED], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32)
        self.state = np.zeros(2)
        self._reached_flag = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-0.6, -0.4), 0.0])
        self._reached_flag = False
        return self.state.astype(np.float32), {"success": False}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        position, velocity = (float(value) for value in self.state)
        throttle = min(max(float(action[0]), -1.0), 1.0)
        velocity += throttle * POWER - GRAVITY * math.cos(3 * position)
        velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
        # Once the flag is reached the car cannot roll on over the peak, out of the goal.
        end = FLAG if self._reached_flag else RIGHT
        position = min(max(position + velocity, LEFT), end)
        # The left end is a wall.
        if position == LEFT and velocity < 0:
            velocity = 0.0
        reward = -0.1 * throttle**2
        if position >= FLAG and not self._reached_flag:
            self._reached_flag = True
            reward += 100.0
        self.state = np.array([position, velocity])
        return self.state.astype(np.float32), reward, False, False, {"success": self._reached_flag}

    def facts(self) -> dict[str, str]:
        """What the last two frames show, in words: where the car is, and to which side it moves."""
        position, velocity = (float(value) for value in self.state)
        if abs(position - VALLEY) <= 0.1:
            place = "valley"
        elif position >= FLAG:
            place = "flag"
        elif position < VALLEY - 0.1:
            place = "left"
        else:
            place = "right"
        if abs(velocity) < VISIBLE_SPEED:
            moving = "no"
        elif velocity > 0:
            moving = "right"
        else:
            moving = "left"
        return {"car": place, "moving": moving}

    def oracle(self) -> str:
        """Push to where the car moves, which swings it higher and higher."""
        if self.facts()["moving"] == "left":
            return "left"
        return "right"

    def render(self) -> np.ndarray:
        return draw_mountain_car(float(self.state[0]), self.render_size, self.look)


PROMPT = (
    "The pictures show a car in the mountains, first as it was a moment ago and then as it is now. Its engine is weak: "
    "it has to swing from side to side to reach the yellow flag."
)
"""What an agent is told; its actions are three throttles of the continuous ones."""
ACTIONS = {"left": [-1.0], "coast": [0.0], "right": [1.0]}
GOAL = ("a car at the peak of the mountain, next to the yellow flag",)
BASELINE = ("a car in the mountain",)

TASK = Task(
    name="mountain-car",
    env=MOUNTAIN_CAR_ID,
    goal=GOAL,
    baseline=BASELINE,
    axes=(Axis("car position", "", -1.2, 0.6, 91),),
    state_at=lambda position: [position, 0.0],
    prompt=PROMPT,
    actions=ACTIONS,
    frames=2,
    summary="Swing a weak car up to the flag; success: the flag is reached. Plain look.",
)


TEXTURED = Task(
    name="mountain-car-textured",
    env=MOUNTAIN_CAR_ID,
    goal=GOAL,
    baseline=BASELINE,
    env_options={"look": "textured"},
    axes=(Axis("car position", "", -1.2, 0.6, 91),),
    state_at=lambda position: [position, 0.0],
    prompt=PROMPT,
    actions=ACTIONS,
    frames=2,
    summary="The same under a sky, on a green mountain.",
)
