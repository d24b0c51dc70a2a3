"""A cloth on a table, held at one corner, is to be folded along its diagonal; after the task of SoftGym (Lin et al.,
CoRL 2020) that RL-VLM-F (Wang et al., ICML 2024) learns. Another simulator: scores are not comparable."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from sightline.envs.frames import Size
from sightline.envs.tasks import Task
from sightline.errors import one_of
from sightline_tasks.cameras import Camera, View
from sightline_tasks.deformables.soft_body import HeldFlex, numbers, positive, rgba, scene, time_constant
from sightline_tasks.drawing import Colour, choose_look
from sightline_tasks.registration import CLOTH_ID

Control = Literal["place", "steps"]

NODES = 15
"""Points along each side."""
SIDE = 0.25
"""Metres."""
MASS = 0.05
"""Kilograms."""
RADIUS = 0.003
"""Half the thickness, metres."""
KEY_POINTS = 6
"""Of the observation, along each side."""
REACH = 0.21
"""Greatest distance of a placed corner from the middle of the table along each axis, metres."""
STEP = 0.03
"""Greatest shift of a step along each axis, metres."""
SECONDS: dict[Control, float] = {"place": 1.0, "steps": 0.1}
"""Of an action; a placed cloth has as long again to come to rest."""
TIMESTEP = 0.004
EDGE_SECONDS = 0.02
"""In which a stretched edge returns. Half of it pulls the other half of the cloth along, which folds worse."""
DRAG = 0.2
"""Seconds in which air takes most of a point's speed."""
CEILING = 0.25
SHIFT = 0.03
"""Random starts: greatest shift along x and y, metres."""
TURN = 30.0
"""Random starts: greatest turn, degrees."""
FOLDED = 0.8
"""Share of the way from flat to folded that is a success."""

CAMERAS = {
    "above": View((0.0, 0.0, 0.0), 0.6, 90, -89.9),
    "oblique": View((0.0, 0.0, 0.0), 0.62, 90, -55),
}
CLOTHS: dict[str, tuple[Colour, Colour, tuple[Colour, Colour]]] = {
    "red": ((205, 40, 45), (240, 205, 70), ((200, 205, 205), (190, 195, 195))),
    "green": ((50, 140, 80), (235, 235, 225), ((120, 105, 90), (112, 97, 83))),
    "violet": ((110, 70, 165), (240, 170, 60), ((225, 225, 215), (216, 216, 205))),
}
"""Colours of the upper side, the lower side, and the table."""


class FoldCloth(HeldFlex):
    """Fold a square cloth along its diagonal: bring the corner that is held to the opposite one.

    Observation: float32[111], x, y and z of 6 x 6 points of the cloth and of the gripper, in sides of the cloth.
    Action with `control=place`: float32[2] in [-1, 1], where the corner is laid down, times 0.84 sides (21 cm) from the
    middle of the table; the gripper goes there along an arc, as a page is turned, and the episode has this one action.
    With `control=steps`: float32[3], shifts of the gripper along x, y and z, times 3 cm; 20 actions. The gripper never
    lets go. Reward (the ground truth): -10 times the mean distance (metres) of the cloth's points from where they are
    in an exact fold. `info["success"]`: that distance is a fifth or less of what it was when the cloth was flat. The
    upper and the lower side have different colours. Starts: shifted by up to 3 cm and turned by up to 30 degrees.

    Args:
        control: `place` or `steps`.
        starts, camera, render_mode, render_size, shadows: see `SoftBody`.
        side: of the cloth, metres; it is as much thicker as it is larger.
        mass: of the cloth, kilograms.
        stiffness: against stretching, as a multiple of what it is otherwise, up to 2.5.
        look: one of `CLOTHS`.
    """

    worst = -5.0

    def __init__(
        self,
        control: Control = "place",
        starts: str = "random",
        camera: Camera | None = None,
        render_mode: str | None = None,
        render_size: Size = (224, 224),
        shadows: bool = False,
        side: float = SIDE,
        mass: float = MASS,
        stiffness: float = 1.0,
        look: str = "red",
    ) -> None:
        one_of("control", control, get_args(Control))
        self.control = control
        self.side = positive("side", side)
        self._radius = RADIUS * self.side / SIDE
        self._reach = REACH * self.side / SIDE
        edge = time_constant(stiffness, EDGE_SECONDS, TIMESTEP)
        xml = _xml(self.side, self._radius, positive("mass", mass), edge, *choose_look(look, CLOTHS))
        actions = 2 if control == "place" else 3
        observations = 3 * (KEY_POINTS**2 + 1)
        super().__init__(xml, observations, actions, CAMERAS, starts, camera, render_mode, render_size, shadows)
        rows = np.linspace(0, NODES - 1, KEY_POINTS).round().astype(int)
        self._key_points = (rows[:, None] * NODES + rows).reshape(-1)
        # Air: without it, a cloth that is thrown about gains speed.
        self.model.dof_damping[:] = mass / NODES**2 / DRAG
        # Points of one triangle or of neighbours must not push each other apart. MuJoCo 4 has no such contacts.
        if hasattr(self.model, "flex_internal"):
            self.model.flex_internal[:] = 0
        self._begin(np.zeros(3))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        # Nothing comes after the one action that places the corner.
        return observation, reward, terminated or self.control == "place", truncated, info

    @property
    def progress(self) -> float:
        """Share of the way from flat (0) to an exact fold (1); below 0 if the cloth is farther from that than flat."""
        return 1 - self._distance(self.points) / self._distance(self._flat)

    def solution(self) -> np.ndarray:
        """The corner onto the opposite one; in steps along the same arc."""
        gripper = self.data.mocap_pos[0]
        goal = self._flat[-1]
        if self.control == "place":
            return np.asarray(np.clip(goal[:2] / self._reach, -1, 1), np.float32)
        # Half a circle above the diagonal, from the corner that is held to the goal.
        start = self._flat[0]
        middle = (start + goal) / 2
        radius = float(np.linalg.norm(goal - start)) / 2
        along = (goal - start) / (2 * radius)
        angle = math.atan2(gripper[2] - middle[2], np.dot(gripper - middle, -along))  # 0 at the start, pi at the goal
        # A little farther than a step reaches: the gripper lags behind the arc.
        next_angle = min(max(angle, 0.0) + 1.2 * STEP / radius, math.pi)
        height = radius * math.sin(next_angle) + 2 * self._radius
        target = middle - along * radius * math.cos(next_angle) + (0, 0, height)
        return np.asarray(np.clip((target - gripper) / STEP, -1, 1), np.float32)

    def _arrange(self, rng: np.random.Generator | None) -> None:
        pose = np.zeros(3)
        if rng is not None:
            pose = rng.uniform(-1, 1, 3) * (SHIFT, SHIFT, math.radians(TURN))
        self._begin(pose)
        self.lay(self._flat, [0])

    def _begin(self, episode: np.ndarray) -> None:
        """Take over where the cloth lies at first: its shift along x and y in metres, and its turn in radians."""
        x, y, turn = episode.tolist()
        self._episode = episode
        cosine = math.cos(turn)
        sine = math.sin(turn)
        rotation = np.array([[cosine, sine], [-sine, cosine]])
        self._flat = self._rest.copy()
        self._flat[:, :2] = self._flat[:, :2] @ rotation + (x, y)
        self._flat[:, 2] = self._radius
        # The half around the corner that is held is mirrored at the diagonal, and lies upon the other half.
        rows, columns = np.divmod(np.arange(NODES**2), NODES)
        is_turned = rows + columns < NODES - 1
        mirrored = (NODES - 1 - columns) * NODES + NODES - 1 - rows
        above = self._flat[mirrored] + (0, 0, 2 * self._radius)
        self._folded = np.where(is_turned[:, None], above, self._flat)

    def _act(self, action: np.ndarray) -> None:
        start = self.data.mocap_pos[0].copy()
        steps = round(SECONDS[self.control] / TIMESTEP)
        if self.control == "steps":
            target = start + STEP * action
            target[:2] = np.clip(target[:2], -2 * self._reach, 2 * self._reach)
            target[2] = np.clip(target[2], self._radius, CEILING)
            self._shift(target[None], steps)
            return
        target = np.array([*self._reach * action, 3 * self._radius])
        middle = (start + target) / 2
        half = (target - start) / 2
        height = np.linalg.norm(half)
        # Along an arc, as a page is turned: a corner that is lifted to one height and moved there drags the cloth.
        for angle in np.linspace(0, math.pi, steps + 1)[1:]:
            self.data.mocap_pos[0] = middle - half * math.cos(angle) + (0, 0, height * math.sin(angle))
            self._advance(1)
        # As long again to come to rest.
        self._advance(steps)

    def _observe(self) -> np.ndarray:
        return self._places(self._key_points, self.side)

    def _judge(self) -> tuple[float, bool]:
        return -10 * self._distance(self.points), self.progress >= FOLDED

    def _distance(self, points: np.ndarray) -> float:
        """Mean distance of points from the exact fold, metres."""
        return float(np.linalg.norm(points - self._folded, axis=1).mean())


def _xml(
    side: float, radius: float, mass: float, edge: float, top: Colour, bottom: Colour, table: tuple[Colour, Colour]
) -> str:
    spacing = numbers(*[side / (NODES - 1)] * 3)
    return scene(
        TIMESTEP,
        20,
        table,
        f"""
  <worldbody>
    <geom type="plane" size="1 1 .1" material="table" friction="1.5"/>
    <flexcomp name="cloth" type="grid" dim="2" count="{NODES} {NODES} 1" spacing="{spacing}" radius="{radius}"
        mass="{mass}" group="4" pos="0 0 {radius}">
      <edge equality="true" solref="{edge} 1"/>
      <contact selfcollide="auto" friction="1.5" condim="3"/>
    </flexcomp>
    <body name="gripper" mocap="true" pos="{-side / 2} {-side / 2} {radius}">
      <geom type="sphere" size=".008" contype="0" conaffinity="0" rgba=".15 .15 .15 1"/>
    </body>
  </worldbody>
  <equality><connect body1="cloth_0" body2="gripper" anchor="0 0 0"/></equality>
  <deformable>{_skin("top", top, side, radius, False)}{_skin("bottom", bottom, side, radius, True)}</deformable>""",
        'impratio="5" cone="pyramidal"',
    )


def _skin(name: str, colour: Colour, side: float, radius: float, turned: bool) -> str:
    """One side of the cloth: triangles between its points, which are seen from one side only."""
    grid = np.linspace(-side / 2, side / 2, NODES)
    places = [numbers(x, y, radius) for x in grid for y in grid]
    faces: list[int] = []
    for row in range(NODES - 1):
        for column in range(NODES - 1):
            #   a ── b
            #   │  ╱ │      two triangles; seen from where their corners go round in one direction
            #   c ── d
            a = row * NODES + column
            b = a + 1
            c = a + NODES
            d = c + 1
            if turned:
                faces += (b, c, a, d, c, b)
            else:
                faces += (a, c, b, b, c, d)
    # Each corner of the skin is moved by one point of the cloth alone.
    bones: list[str] = []
    for n, place in enumerate(places):
        bones.append(f'<bone body="cloth_{n}" bindpos="{place}" bindquat="1 0 0 0" vertid="{n}" vertweight="1"/>')
    shape = f'vertex="{" ".join(places)}" face="{" ".join(map(str, faces))}"'
    return f'<skin name="{name}" rgba="{rgba(colour)}" {shape}>{"".join(bones)}</skin>'


TASK = Task(
    name="fold-cloth",
    env=CLOTH_ID,
    goal=("the cloth is folded in half along its diagonal",),
    baseline=("a cloth on a table",),
    success="end",
    summary="Fold a cloth along its diagonal (MuJoCo); success: folded at the end.",
)
