"""CartPole for rewards from frames: it never terminates, and the pole may swing all the way round.

The physics are those of Barto, Sutton and Anderson (1983) with the constants and the Euler integration of Gymnasium's
`CartPole-v1`. The differences follow the task of "Vision-Language Models are Zero-Shot Reward Models" (Rocamonde et
al., ICLR 2024): no termination, the angle wraps to [-pi, pi), the cart stops at the ends of its track.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.envs.tasks import Axis, Task
from sightline_tasks.drawing import Canvas, Colour, choose_look, texture, turn
from sightline_tasks.registration import CARTPOLE_ID

TRACK = 2.4
"""The cart moves within [-TRACK, TRACK] metres."""
UPRIGHT = math.radians(12)
"""A pole within this angle of the vertical counts as upright (radians)."""
LEANING = math.radians(2)
"""Least angle that is called leaning (radians)."""
FALLING = math.radians(0.1)
"""Least change between two frames that is called falling (radians). A pole that is being balanced turns by 0.05 to 0.8
degrees a step."""


@dataclass(frozen=True)
class CartPoleLook:
    """Colours and proportions of the frame; lengths are fractions of its height."""

    background: Colour = (255, 255, 255)
    horizon: Colour | None = None
    """If given, the background runs from `background` at the top to this colour at the bottom."""
    roughness: float = 0.0
    noise_seed: int = 0
    cart: Colour = (0, 0, 0)
    pole: Colour = (202, 152, 101)
    axle: Colour = (129, 132, 203)
    rail: Colour = (0, 0, 0)
    pole_length: float = 0.36
    pole_width: float = 0.05
    cart_width: float = 0.2
    cart_height: float = 0.1
    axle_height: float = 0.5
    """Distance of the axle from the middle of the cart, as a fraction of the cart's height."""
    rail_height: float = 0.62
    """Distance of the rail from the top."""
    rail_width: float = 0.012


def draw_cartpole(position: float, angle: float, size: Size, look: CartPoleLook) -> np.ndarray:
    """Draw the frame of a state.

    Args:
        position: of the cart in metres, within [-2.4, 2.4].
        angle: of the pole in radians, 0 is upright, positive leans to the right.
        size: height and width in pixels.
        look: colours and proportions.

    Returns:
        uint8[height, width, 3].
    """
    if look.horizon is None and look.roughness == 0:
        canvas = Canvas(size, look.background)
    else:
        bottom = look.horizon or look.background
        canvas = Canvas(size, texture(size, look.background, bottom, look.roughness, look.noise_seed))
    # Lengths are fractions of the height; along x, the canvas counts in fractions of the width.
    aspect = size[1] / size[0]
    half_cart = look.cart_width / 2 / aspect
    margin = half_cart + 0.01
    x = 0.5 + position / TRACK * (0.5 - margin)
    rail = look.rail_height
    canvas.rectangle(0, rail - look.rail_width / 2, 1, rail + look.rail_width / 2, look.rail)
    half_height = look.cart_height / 2
    canvas.rectangle(x - half_cart, rail - half_height, x + half_cart, rail + half_height, look.cart)
    top = rail - look.axle_height * look.cart_height
    half_pole = look.pole_width / 2 / aspect
    foot = look.pole_width / 2
    # Upright, then turned about the axle.
    pole = [
        (x - half_pole, top + foot),
        (x - half_pole, top - look.pole_length),
        (x + half_pole, top - look.pole_length),
        (x + half_pole, top + foot),
    ]
    canvas.polygon(turn(pole, angle, (x, top), aspect), look.pole)
    canvas.disc((x, top), look.pole_width / 2.2, look.axle)
    return canvas.pixels()


LOOKS = {
    "plain": CartPoleLook(),
    "dusk": CartPoleLook(
        background=(58, 66, 110),
        horizon=(214, 142, 108),
        roughness=12,
        cart=(38, 30, 46),
        pole=(250, 226, 140),
    ),
}
PUBLISHED_LOOK = CartPoleLook(
    pole_length=0.6, cart_width=0.25, cart_height=0.15, axle_height=0.25, rail_height=0.8, rail_width=0.005
)
"""Proportions of the picture that RL-VLM-F draws (200 x 200)."""


class CartPole(gymnasium.Env[np.ndarray, np.int64]):
    """Push a cart left or right so that the pole on it stays up.

    Observation: float32[4], cart position (m) and velocity (m/s), pole angle (rad, 0 upright) and velocity (rad/s).
    Action: 0 pushes left, 1 pushes right. Reward (the ground truth): 1 for each step that ends with the pole within
    12 degrees of the vertical, otherwise 0. Infos: `success`, the same as a boolean; `away_from_wall`, true while the
    cart is not at an end of its track. The environment never terminates; the time limit of its registration (200
    steps) truncates.

    Args:
        render_mode: `"rgb_array"` or None.
        render_size: height and width of the frames in pixels.
        look: a name in `LOOKS`, or a :class:`CartPoleLook`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
    action_names = ("left", "right")
    asked = ("cart", "leaning", "falling")

    def __init__(
        self, render_mode: str | None = None, render_size: Size = (256, 256), look: str | CartPoleLook = "plain"
    ) -> None:
        self.render_mode = render_mode
        self.render_size = (int(render_size[0]), int(render_size[1]))
        self.look = choose_look(look, LOOKS)
        high = np.array([TRACK, np.inf, math.pi, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.state = np.zeros(4)
        self._last_angle = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.05, 0.05, size=4)
        self._last_angle = float(self.state[2])
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._last_angle = float(self.state[2])
        force = 10.0 if action == 1 else -10.0
        self.state = advance(self.state, force)
        # The cart stops at the ends of its track, and the angle goes round.
        self.state[0] = min(max(self.state[0], -TRACK), TRACK)
        self.state[2] = (self.state[2] + math.pi) % (2 * math.pi) - math.pi
        info = self._info()
        return self._observation(), float(info["success"]), False, False, info

    def render(self) -> np.ndarray:
        return draw_cartpole(self.state[0], self.state[2], self.render_size, self.look)

    def facts(self) -> dict[str, str]:
        """What the last two frames show, in words: where the cart is, how the pole leans, and how it moves."""
        position, _, angle, _ = self.state
        # Within half a turn: a pole that passes straight down has not turned all the way round.
        change = (angle - self._last_angle + math.pi) % (2 * math.pi) - math.pi
        return {
            "cart": _side(position, TRACK / 3, "middle"),
            "leaning": _side(angle, LEANING, "no"),
            "falling": _side(change, FALLING, "no"),
        }

    def oracle(self) -> str:
        """Push to where the pole falls, which keeps it up; if it does not move, to where it leans."""
        facts = self.facts()
        # How it moves says more than how it leans: a pole that swings back needs no push.
        side = facts["falling"]
        if side == "no":
            side = facts["leaning"]
        if side == "no":
            side = "right"
        return side

    def caption(self) -> str:
        """Description of what the frames show, for models without vision."""
        position, _, angle, _ = self.state
        facts = self.facts()
        movement = "does not move"
        if facts["falling"] != "no":
            movement = f"turns to the {facts['falling']}"
        return (
            f"The cart is {position:+.1f} m from the middle of its track of {TRACK:.1f} m to each side. The pole leans "
            f"{math.degrees(angle):+.0f} degrees to the right, and {movement}."
        )

    def _observation(self) -> np.ndarray:
        return self.state.astype(np.float32)

    def _info(self) -> dict[str, Any]:
        position, _, angle, _ = self.state
        return {"success": bool(abs(angle) <= UPRIGHT), "away_from_wall": bool(abs(position) < TRACK)}


def _side(value: float, least: float, between: str) -> str:
    if value >= least:
        return "right"
    if value <= -least:
        return "left"
    return between


def advance(state: np.ndarray, force: float) -> np.ndarray:
    """Integrate the dynamics by one Euler step of 0.02 s, without track ends.

    Args:
        state: float64[4], x, x_dot, theta, theta_dot in metres, radians and seconds.
        force: on the cart, in newtons.
    """
    gravity = 9.8
    cart_mass = 1.0
    pole_mass = 0.1
    half_length = 0.5
    dt = 0.02
    x, x_dot, theta, theta_dot = (float(value) for value in state)
    cos = math.cos(theta)
    sin = math.sin(theta)
    total_mass = cart_mass + pole_mass
    moment = pole_mass * half_length
    push = (force + moment * theta_dot**2 * sin) / total_mass
    inertia = half_length * (4.0 / 3.0 - pole_mass * cos**2 / total_mass)
    theta_acc = (gravity * sin - cos * push) / inertia
    x_acc = push - moment * theta_acc * cos / total_mass
    # Explicit Euler: places move with the velocities from before the step.
    return np.array([x + dt * x_dot, x_dot + dt * x_acc, theta + dt * theta_dot, theta_dot + dt * theta_acc])


TASK = Task(
    name="cartpole",
    env=CARTPOLE_ID,
    goal=("pole vertically upright on top of the cart",),
    baseline=("pole and cart",),
    success="every",
    measures=("away_from_wall",),
    axes=(Axis("pole angle", "degrees", -180, 180, 61), Axis("cart position", "m", -2.4, 2.4, 25)),
    state_at=lambda angle, position: [position, 0.0, angle * 3.141592653589793 / 180, 0.0],
    prompt="The pictures show a pole on a cart, first as it was before the last push and then as it is now. "
    "Push the cart to the left or to the right.",
    frames=2,
    summary="Balance a pole on a cart; success: within 12 degrees of upright through the whole episode.",
)
