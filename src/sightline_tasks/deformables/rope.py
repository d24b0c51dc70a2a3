"""A rope on a table, held at both ends, is to be pulled straight; after the task of SoftGym (Lin et al., CoRL 2020)
that RL-VLM-F (Wang et al., ICML 2024) learns. Another simulator: scores are not comparable."""

from __future__ import annotations

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.tasks import Task
from sightline_tasks.cameras import Camera, View
from sightline_tasks.deformables.soft_body import HeldFlex, numbers, positive, rgba, scene, time_constant
from sightline_tasks.drawing import Colour, choose_look
from sightline_tasks.registration import ROPE_ID

NODES = 31
"""Points of the rope."""
LENGTH = 0.5
"""Metres."""
MASS = 0.05
"""Kilograms."""
RADIUS = 0.007
"""Metres. Capsules of neighbours that touched would stretch the rope."""
KEY_POINTS = 10
REACH = 0.02
"""Greatest shift of a gripper along each axis by one action, metres."""
STEPS = 24
"""Steps of physics in an action."""
TIMESTEP = 0.0025
"""Seconds of a step of physics."""
EDGE_SECONDS = 0.005
"""In which a stretched edge returns."""
ITERATIONS = 50
"""Of the solver. With 10 iterations and twice the time above, the edges of a rope that is jerked about stay half as
long again, and it may lie in waves though its ends are far apart."""
TABLE = 0.4
"""Grippers stay within this distance of the middle, along x and along y, metres."""
CEILING = 0.05
"""Grippers stay below this height, metres. A rope that is held higher sags, which cannot be seen from above, and looks
longer, being nearer to the camera: a policy whose reward comes from pictures lifts it as high as it can."""
SHORTEST_GAP = 0.6
"""At the start the ends are nearer to each other than this share of the length."""
TAUT = 1.03
"""Greatest distance between the grippers, as a share of the length. A little more than the length: a rope whose ends
are just that far apart still lies in a visible bow."""
STRAIGHT = 0.95
"""A rope is straight if its ends are at least this share of its length apart …"""
BOW = 0.1
"""… and no point is farther than this share of it from the line through them."""

CAMERAS = {
    "above": View((0.0, 0.0, 0.0), 0.95, 90, -89.9),
    "oblique": View((0.0, 0.0, 0.0), 0.95, 90, -50),
}
ROPES: dict[str, tuple[Colour, tuple[Colour, Colour]]] = {
    "blue": ((30, 90, 200), ((205, 195, 180), (196, 186, 170))),
    "red": ((200, 40, 40), ((120, 130, 125), (112, 122, 117))),
    "white": ((240, 240, 235), ((70, 60, 55), (64, 54, 49))),
}
"""Colours of the rope, and of the table."""


class StraightenRope(HeldFlex):
    """Pull a rope straight by both of its ends.

    Observation: float32[36], x, y and z of ten points along the rope and of both grippers, in lengths of the rope.
    Action: float32[6], shifts of the left and the right gripper along x, y and z, times 2 cm. Grippers never let go,
    and never get farther from each other than 1.03 lengths. Reward (the ground truth): distance between the ends, up to
    1.1 lengths, minus the farthest that a point is from the line through them, in metres. `info["success"]`: the ends
    are 95 % of the length apart or more, and no point is farther from that line than 10 % of it. Starts: random curves
    that do not cross themselves, with ends nearer than 60 % of the length. The time limit is 40 actions.

    Args:
        starts, camera, render_mode, render_size, shadows: see `SoftBody`.
        length: of the rope, metres; it is as much thicker as it is longer.
        mass: of the rope, kilograms.
        stiffness: against stretching, as a multiple of what it is otherwise, up to 1.
        look: one of `ROPES`.
    """

    def __init__(
        self,
        starts: str = "random",
        camera: Camera | None = None,
        render_mode: str | None = None,
        render_size: Size = (224, 224),
        shadows: bool = False,
        length: float = LENGTH,
        mass: float = MASS,
        stiffness: float = 1.0,
        look: str = "blue",
    ) -> None:
        self.length = positive("length", length)
        self.worst = -self.length
        self._radius = RADIUS * length / LENGTH
        edge = time_constant(stiffness, EDGE_SECONDS, TIMESTEP)
        xml = _xml(self.length, self._radius, positive("mass", mass), edge, *choose_look(look, ROPES))
        super().__init__(xml, 3 * (KEY_POINTS + 2), 6, CAMERAS, starts, camera, render_mode, render_size, shadows)
        self._key_points = np.linspace(0, NODES - 1, KEY_POINTS).round().astype(int)

    @property
    def gap(self) -> float:
        """Distance between the ends, metres."""
        return float(np.linalg.norm(self.points[-1] - self.points[0]))

    @property
    def bow(self) -> float:
        """Farthest that a point is from the line through the ends, metres."""
        return bow(self.points)

    def solution(self) -> np.ndarray:
        """Both ends away from the middle between them, along the line through them."""
        left_hand, right_hand = self.data.mocap_pos
        apart = right_hand - left_hand
        distance = np.linalg.norm(apart)
        # Grippers that touch have no direction: x is as good as any.
        along = np.array([1.0, 0.0, 0.0])
        if distance > 0.02:
            along = apart / distance
        middle = (left_hand + right_hand) / 2
        middle[2] = self._radius
        half = along * TAUT * self.length / 2
        target = np.stack([middle - half, middle + half])
        return np.asarray(np.clip((target - self.data.mocap_pos) / REACH, -1, 1).reshape(-1), np.float32)

    def _arrange(self, rng: np.random.Generator | None) -> None:
        curve = random_curve(rng or np.random.default_rng(0), self.length, self._radius)
        self.lay(curve, [0, -1])
        # Let the solver stretch the edges to their lengths, and take away the speed that this gives.
        self._advance(2 * STEPS)
        self.data.qvel[:] = 0

    def _act(self, action: np.ndarray) -> None:
        target = self.data.mocap_pos + REACH * action.reshape(2, 3)
        target[:, :2] = np.clip(target[:, :2], -TABLE, TABLE)
        target[:, 2] = np.clip(target[:, 2], self._radius, CEILING)
        apart = target[1] - target[0]
        distance = np.linalg.norm(apart)
        # Farther apart they would tear: both are moved back to the greatest distance, around their middle.
        if distance > TAUT * self.length:
            target = target.mean(axis=0) + np.outer([-0.5, 0.5], apart * TAUT * self.length / distance)
        self._shift(target, STEPS)

    def _observe(self) -> np.ndarray:
        return self._places(self._key_points, self.length)

    def _judge(self) -> tuple[float, bool]:
        gap = self.gap
        bow = self.bow
        reward = min(gap, 1.1 * self.length) - bow
        is_straight = gap >= STRAIGHT * self.length and bow <= BOW * self.length
        return reward, is_straight


def bow(points: np.ndarray) -> float:
    """Farthest that one of the points [N, 3] is from the line through the first and the last."""
    points = points - points[0]
    along = points[-1] / max(float(np.linalg.norm(points[-1])), 1e-9)
    aside = points - np.outer(points @ along, along)
    return float(np.linalg.norm(aside, axis=1).max())


def random_curve(rng: np.random.Generator, length: float, radius: float) -> np.ndarray:
    """float64[31, 3]: a curve on the table around its middle that does not cross itself, with ends near each other."""
    step = length / (NODES - 1)
    place = np.arange(NODES - 1)[:, None] / (NODES - 1)
    while True:
        # A direction that turns smoothly: sines of the place along the rope.
        waves = np.arange(1, 4)
        turns = rng.normal(size=3) * np.array([2.0, 1.2, 0.6])
        heading = rng.uniform(0, 2 * np.pi) + rng.uniform(-4, 4) * place[:, 0]
        phases = rng.uniform(0, 2 * np.pi, 3)
        heading = heading + (turns * np.sin(np.pi * waves * place + phases)).sum(axis=1)
        edges = step * np.stack([np.cos(heading), np.sin(heading)], 1)
        points = np.concatenate([np.zeros((1, 2)), np.cumsum(edges, 0)])
        # Drawn again if it crosses itself, or nearly: points that are not neighbours have to be apart.
        distances = np.linalg.norm(points[:, None] - points[None], axis=2)
        are_neighbours = np.abs(np.subtract.outer(np.arange(NODES), np.arange(NODES))) <= 3
        if distances[~are_neighbours].min() > 3 * radius and distances[0, -1] < SHORTEST_GAP * length:
            points -= points.mean(axis=0)
            return np.column_stack([points, np.full(NODES, radius)])


def _xml(length: float, radius: float, mass: float, edge: float, colour: Colour, table: tuple[Colour, Colour]) -> str:
    spacing = numbers(*[length / (NODES - 1)] * 3)
    gripper = 'type="sphere" contype="0" conaffinity="0" rgba=".15 .15 .15 1"'
    return scene(
        TIMESTEP,
        ITERATIONS,
        table,
        f"""
  <worldbody>
    <geom type="plane" size="1 1 .1" material="table" friction="1"/>
    <flexcomp name="rope" type="grid" dim="1" count="{NODES} 1 1" spacing="{spacing}" radius="{radius}" mass="{mass}"
        rgba="{rgba(colour)}" pos="0 0 {radius}">
      <edge equality="true" solref="{edge} 1"/>
      <contact selfcollide="auto" condim="3"/>
    </flexcomp>
    <body name="left" mocap="true" pos="{-length / 2} 0 {radius}"><geom {gripper} size=".013"/></body>
    <body name="right" mocap="true" pos="{length / 2} 0 {radius}"><geom {gripper} size=".013"/></body>
  </worldbody>
  <equality>
    <connect body1="rope_0" body2="left" anchor="0 0 0"/>
    <connect body1="rope_{NODES - 1}" body2="right" anchor="0 0 0"/>
  </equality>""",
    )


TASK = Task(
    name="straighten-rope",
    env=ROPE_ID,
    goal=("the rope is pulled straight",),
    baseline=("a rope on a table",),
    success="end",
    summary="Pull a rope straight by both ends (MuJoCo); success: straight at the end.",
)
