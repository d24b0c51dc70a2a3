"""A glass of water is to be moved to a place without spilling; after the task of SoftGym (Lin et al., CoRL 2020) that
RL-VLM-F (Wang et al., ICML 2024) learns. The water is made of balls, and the simulator is another: scores are not
comparable."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.tasks import Task
from sightline.errors import BadInput
from sightline_tasks.cameras import Camera, View
from sightline_tasks.deformables.soft_body import SoftBody, numbers, positive, rgba, scene
from sightline_tasks.drawing import Colour, choose_look
from sightline_tasks.mujoco_rendering import import_mujoco
from sightline_tasks.registration import WATER_ID

BALLS = 112
"""How many."""
BALL = 0.015
"""Radius of a ball, metres."""
MASS = 0.001
"""Mass of a ball, kilograms."""
WIDTH = 0.14
"""Inside of the glass along x, metres."""
DEPTH = 0.11
"""Inside of the glass along y, metres."""
HEIGHT = 0.18
"""Inside of the glass along z, metres."""
WALL = 0.005
"""Thickness of the walls, metres."""
TARGET = 0.5
"""Distance to the target, metres."""
SPEED = 1.1
"""Greatest speed of the glass, m/s."""
SLEW = 2.5
"""Greatest acceleration of the script, m/s^2."""
STEPS = 16
"""Steps of physics in an action."""
TIMESTEP = 0.005
"""Seconds of a step of physics."""
FILLINGS = 8
"""Random starts: different ways in which the balls lie."""
SHIFT = 0.1
"""Random starts: greatest distance of the glass from its place, metres."""
SPILL_COST = 10.0
"""Cost of a glass that is empty."""
SUCCESS = -0.15
"""Reward above which a state is a success."""

CAMERAS = {
    "front": View((0.21, 0.0, 0.06), 1.05, 90, -18),
    "oblique": View((0.21, 0.0, 0.04), 1.1, 65, -35),
}
WATERS: dict[str, tuple[Colour, tuple[Colour, Colour]]] = {
    "blue": ((40, 120, 225), ((214, 208, 198), (205, 199, 188))),
    "green": ((60, 165, 90), ((150, 140, 160), (141, 131, 151))),
    "orange": ((235, 130, 40), ((105, 115, 120), (97, 107, 112))),
}
"""Colours of the balls, and of the table."""


class PassWater(SoftBody):
    """Move a glass of balls to a target without losing any.

    Observation: float32[8]: place (m) and speed (m/s) of the glass along x, its inner width and height (m), the height
    of the highest ball inside (m), the shares of balls inside and outside, and how far the balls' centre is beside the
    glass's (m). Action: float32[1], the glass's speed, times 1.1 m/s, for 0.08 s. Reward (the ground truth): -10 times
    the share of balls that are outside, minus the distance from the target in metres. `info["success"]`: that is above
    -0.15, so at most one of 112 balls is lost. Starts: the glass within 10 cm of its place, the balls in one of eight
    arrangements. The time limit is 50 actions.

    Args:
        starts, camera, render_mode, render_size, shadows: see `SoftBody`.
        height: of the glass, metres; the balls must fit.
        mass: of a ball, kilograms.
        look: one of `WATERS`.
    """

    worst = -SPILL_COST - TARGET - 50 * STEPS * TIMESTEP * SPEED  # all spilled, away from the target all the time

    def __init__(
        self,
        starts: str = "random",
        camera: Camera | None = None,
        render_mode: str | None = None,
        render_size: Size = (224, 224),
        shadows: bool = False,
        height: float = HEIGHT,
        mass: float = MASS,
        look: str = "blue",
    ) -> None:
        self._height = positive("height", height)
        self._mass = positive("mass", mass)
        # Refused here, rather than at the first reset, if the balls do not fit.
        _filled(0, self._height, self._mass)
        xml = _xml(self._height, self._mass, *choose_look(look, WATERS))
        super().__init__(xml, 8, 1, CAMERAS, starts, camera, render_mode, render_size, shadows)

    @property
    def balls(self) -> np.ndarray:
        """float64[112, 3], centres of the balls, metres; x is from the first place of the glass to the target."""
        return np.asarray(self.data.xpos[-BALLS:])

    @property
    def place(self) -> float:
        """Where the glass is, metres; the target is at 0.5."""
        return float(self.data.qpos[0])

    @property
    def inside(self) -> np.ndarray:
        """bool[112], which balls are in the glass."""
        x, y, z = self.balls.T
        is_between_walls = (np.abs(x - self.place) < WIDTH / 2) & (np.abs(y) < DEPTH / 2)
        return np.asarray(is_between_walls & (z > 0) & (z < self._height + BALL))

    def solution(self) -> np.ndarray:
        """Towards the target, as fast as the balls bear to be started and stopped."""
        distance = TARGET - self.place
        speed = float(self.data.qvel[0])
        seconds = STEPS * TIMESTEP
        # The speed from which it can still be stopped at the target, and no more than half the way in one action.
        target_speed = np.sign(distance) * min(0.6 * SPEED, np.sqrt(1.0 * abs(distance)), abs(distance) / (2 * seconds))
        change = np.clip(target_speed - speed, -SLEW * seconds / 2, SLEW * seconds / 2)
        return np.array([np.clip((speed + change) / SPEED, -1, 1)], np.float32)

    def _arrange(self, rng: np.random.Generator | None) -> None:
        filling = 0
        shift = 0.0
        if rng is not None:
            filling = int(rng.integers(FILLINGS))
            shift = float(rng.uniform(-SHIFT, SHIFT))
        # The glass and all that is in it: x is the first of a ball's three places.
        self.data.qpos[:] = _filled(filling, self._height, self._mass)
        self.data.qpos[0] += shift
        self.data.qpos[1::3] += shift

    def _act(self, action: np.ndarray) -> None:
        self.data.ctrl[0] = SPEED * action[0]
        self._advance(STEPS)

    def _observe(self) -> np.ndarray:
        inside = self.inside
        share = inside.mean()
        top = 0.0
        aside = 0.0
        if inside.any():
            balls = self.balls[inside]
            top = balls[:, 2].max()
            aside = balls[:, 0].mean() - self.place
        speed = self.data.qvel[0]
        return np.array([self.place, speed, WIDTH, self._height, top, share, 1 - share, aside], np.float32)

    def _judge(self) -> tuple[float, bool]:
        reward = -SPILL_COST * (1 - self.inside.mean()) - abs(TARGET - self.place)
        return reward, reward > SUCCESS


@lru_cache(maxsize=64)
def _filled(filling: int, height: float, mass: float) -> np.ndarray:
    """float64[1 + 3 * 112], `qpos` of a glass at rest in which balls have settled that were poured at random.

    Raises:
        BadInput: they do not fit.
    """
    mujoco = import_mujoco()
    # Walls that go on above the glass keep what piles up at first.
    model = mujoco.MjModel.from_xml_string(_xml(3 * height, mass, *WATERS["blue"]))
    data = mujoco.MjData(model)
    rng = np.random.default_rng(filling)
    # In layers of a grid, a little apart and a little out of line, from where they fall.
    across = int((WIDTH - BALL) / (2.1 * BALL))
    deep = int((DEPTH - BALL) / (2.1 * BALL))
    places = np.array([(n % across, n // across % deep, n // (across * deep)) for n in range(BALLS)], float)
    places = (places - np.array([(across - 1) / 2, (deep - 1) / 2, -0.6])) * 2.1 * BALL
    noise = rng.uniform(-0.04, 0.04, places.shape) * BALL
    data.qpos[1:] = (places + noise).reshape(-1)
    mujoco.mj_step(model, data, 600)
    settled: np.ndarray = data.qpos.copy()
    top = settled[3::3].max()
    if top >= height + BALL:
        raise BadInput(f"height={height:g} is too low: {BALLS} balls lie {top:.2g} m high; say more")
    settled[0] = 0
    return settled


def _xml(height: float, mass: float, colour: Colour, table: tuple[Colour, Colour]) -> str:
    glass = 'type="box" rgba=".55 .7 .8 .3" friction="0" condim="1"'
    # Halves, as MuJoCo gives the sizes of boxes.
    w = WIDTH / 2
    d = DEPTH / 2
    h = height / 2
    t = WALL / 2
    boxes = (
        ((w + 2 * t, d + 2 * t, t), (0, 0, -t)),
        ((t, d + 2 * t, h), (w + t, 0, h)),
        ((t, d + 2 * t, h), (-w - t, 0, h)),
        ((w, t, h), (0, d + t, h)),
        ((w, t, h), (0, -d - t, h)),
    )
    walls = "".join(f'<geom {glass} size="{numbers(*size)}" pos="{numbers(*place)}"/>' for size, place in boxes)
    slides = "".join(f'<joint type="slide" axis="{axis}"/>' for axis in ("1 0 0", "0 1 0", "0 0 1"))
    ball = f'<geom type="sphere" size="{BALL}" mass="{mass}" rgba="{rgba(colour)}" condim="1"/>'
    balls = "".join(f"<body>{slides}{ball}</body>" for _ in range(BALLS))
    # The floor brakes what was spilled, so that it stays in the picture.
    return scene(
        TIMESTEP,
        20,
        table,
        f"""
  <worldbody>
    <geom type="plane" size="2 2 .1" pos="0 0 -.03" material="table" condim="3" friction="1"/>
    <geom type="box" size="{numbers(w + 2 * t, d + 2 * t, 0.001)}" pos="{TARGET} 0 -.029" rgba=".2 .65 .3 1"
        contype="0" conaffinity="0"/>
    <body name="glass"><joint name="glass" type="slide" axis="1 0 0"/>{walls}</body>
    {balls}
  </worldbody>
  <actuator><velocity joint="glass" kv="200"/></actuator>""",
    )


TASK = Task(
    name="pass-water",
    env=WATER_ID,
    goal=("the glass with all of the blue balls stands on the green square",),
    baseline=("a glass with blue balls on a table",),
    success="end",
    summary="Move a glass of balls to a target without losing any (MuJoCo); success: there, at the end.",
)
