"""Meta-World (Yu et al., CoRL 2019) for rewards from frames: an upright, unmirrored camera that sees the object; seeds
that determine everything; the goal kept out of the observation; the robot shown or hidden.

The simulation is Farama's package `metaworld` (extra `sightline[metaworld]`), unchanged. Deliberate differences from
the variants in RL-VLM-F (Wang et al., ICML 2024): starts are random unless `starts="fixed"`; the hand starts where
Meta-World puts it, so that the drawer is closed at first; frames are not mirrored. `view="rlvlmf"` takes all three
back, so that its published label caches show what a policy of ours sees.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.envs.tasks import Task
from sightline.errors import BadInput, one_of
from sightline_tasks.cameras import Camera, View, view_of
from sightline_tasks.mujoco_rendering import OffscreenRenderer
from sightline_tasks.registration import METAWORLD_ID

FRAMES_A_SECOND = 80
ROBOT = "base"
"""Root body of the arm and its gripper."""
STATE = 18
"""Numbers per time step; an observation holds the present step, the one before, and three numbers for the goal."""


VIEWS = {
    "drawer-open": View((-0.02, 0.78, 0.06), 0.82, 28, -30),
    "sweep-into": View((0.0, 0.73, 0.0), 0.68, -70, -50),
    "soccer": View((0.0, 0.76, 0.03), 0.78, 25, -38),
}
"""Our cameras: from the left or from beyond the table, since the arm's elbow swings out to the right."""
OVERVIEW = View((0.0, 0.7, 0.08), 1.0, 145, -35)
"""Camera of all other tasks."""

PAINT = {"sweep-into": {"objGeom": (0.1, 0.8, 0.2, 1.0)}}
"""Colours that replace Meta-World's: its wooden cube can hardly be told from its wooden table."""

NEAR_ENOUGH = {"drawer-open": 0.04}
"""Distances (metres) that count as success in addition to Meta-World's own rule. That rule requires 0.03 of the drawer,
which is where its stop is, and it springs back from there: a drawer pulled out all the way would fail once released."""


@dataclass(frozen=True)
class PublishedView:
    """Camera and start of a task in RL-VLM-F. Its cameras hang upside down, and its pictures are turned over by their
    rows: upright, and mirrored.

    Attributes:
        place: of the camera, metres.
        right, up: axes of its picture, before that is turned over; need not be of unit length.
        hand: where the hand starts, metres.
        crop: the part of the picture that is kept, as fractions of its height and width.
    """

    place: tuple[float, float, float]
    right: tuple[float, float, float]
    up: tuple[float, float, float]
    hand: tuple[float, float, float]
    crop: tuple[float, float] = (0.0, 1.0)


_INNER = (100 / 480, 400 / 480)
PUBLISHED = {
    "drawer-open": PublishedView((-0.6, 0.2, 0.35), (-1, 1, 0), (-0.2, -0.2, -1), (0, 0.75, 0.15), _INNER),
    "sweep-into": PublishedView((0, 1.1, 0.75), (1, 0, 0), (0, 0.8776, -0.4794), (0, 0.53, 0.05), _INNER),
    "soccer": PublishedView((0.2, 0.6, 0.5), (-0.4885, -0.869, -0.0789), (0.7608, -0.3798, -0.5263), (0, 0.56, 0.05)),
}
"""Views of RL-VLM-F, vertical field of view 45 degrees. The axes of the last two are those of its Euler angles, in
radians about x, y and z: (-0.5, 0, 0) and (3.5, 2.7, 1)."""


class MetaWorld(gymnasium.Env[np.ndarray, np.ndarray]):
    """Robot arm on a table, with one Meta-World task.

    Observation: float32[39]: 18 numbers of this moment (hand x, y, z in metres; gripper opening 0 to 1; position and
    quaternion of up to two objects, padded with zeros), the same 18 of the moment before, and the goal's position,
    which is zeros unless `show_goal`. Action: float32[4] in [-1, 1]: three shifts of the hand, times 1 cm, and the
    gripper's effort (positive closes). Reward (the ground truth): Meta-World's dense one, in [0, 10]. `info["success"]`
    is Meta-World's, of the present state (see `NEAR_ENOUGH`), and `info["distance"]` the distance from object to target
    (metres). The environment never terminates; the time limit of its registration (500 steps) truncates.

    Args:
        task: `drawer-open`, `sweep-into`, `soccer`, or any other of Meta-World's tasks by its name without version.
        render_mode: `"rgb_array"` or None.
        render_size: height and width of the frames in pixels.
        camera: None for ours, the name of one of Meta-World's (rendered upright), or a :class:`View` (or its fields).
        robot: `shown`, or `hidden`: still there, but invisible.
        starts: `random` samples the positions of object and target at every reset; `fixed` uses the middle of their
            ranges (which for the three tasks above is where RL-VLM-F puts them), or always the same sample if they
            would be too close to each other there.
        show_goal: put the goal's position into the observation, and Meta-World's markers into the frame.
        shadows: draw shadows, reflections and smoothed edges, which takes several times as long.
        view: `rlvlmf` for the camera, the part of its picture, the hidden robot and the start of RL-VLM-F, in its three
            tasks and in square frames; `camera`, `robot` and `starts` do not count then. Its pictures are 300 x 300.
        frame_skip: steps of Meta-World (12.5 ms each) that an action is held for. The reward is their mean, the rest is
            of the last. A hand moves 1 cm a step at most, so that noise of single steps hardly moves it.

    Raises:
        BadInput: an unknown task, camera or choice; a view of a task that has none; no step to hold an action for.
        gymnasium.error.DependencyNotInstalled: `metaworld` is missing.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_A_SECOND}

    def __init__(
        self,
        task: str = "drawer-open",
        render_mode: str | None = None,
        render_size: Size = (224, 224),
        camera: Camera | None = None,
        robot: str = "shown",
        starts: str = "random",
        show_goal: bool = False,
        shadows: bool = False,
        view: str | None = None,
        frame_skip: int = 1,
    ) -> None:
        if not isinstance(frame_skip, int) or isinstance(frame_skip, bool) or frame_skip < 1:
            raise BadInput(f"frame_skip={frame_skip!r}: say for how many steps an action is held, at least 1")
        self.task = task.removesuffix("-v3")
        self._frame_skip = frame_skip
        self.metadata = self.metadata | {"render_fps": max(1, round(FRAMES_A_SECOND / frame_skip))}
        self._inner = _simulation(self.task)
        self._published: PublishedView | None = None
        if view is not None:
            one_of("view", view, ("rlvlmf",))
            self._published = PUBLISHED[one_of("the task of view=rlvlmf", self.task, PUBLISHED)]
            camera = None
            robot = "hidden"
            starts = "fixed"
        self._random_starts = one_of("starts", starts, ("random", "fixed")) == "random"
        self._show_goal = show_goal
        self.render_mode = render_mode
        self.render_size = (int(render_size[0]), int(render_size[1]))
        self._camera_name, self._view = _camera(self._inner.model, camera, self.task)
        one_of("robot", robot, ("shown", "hidden"))
        self._set_appearance(hide_robot=robot == "hidden")
        # Shadows come with all that is dear: reflections, and edges smoothed by MuJoCo's own number of samples.
        samples = None if shadows else 0
        picture_size = self.render_size
        if self._published is not None:
            picture_size = _size_before_cropping(self.render_size, self._published.crop)
        self._renderer = OffscreenRenderer(self._inner.model, picture_size, shadows, shadows, samples)
        if self._published is not None:
            self._mounted = _mount(self._inner.model, self._published)
            self._inner.hand_init_pos = np.array(self._published.hand)
        self._placement = np.empty(0)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2 * STATE + 3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (4,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        import mujoco

        super().reset(seed=seed)
        inner = self._inner
        # A Meta-World reset places things twice and would sample other positions each time. So they are sampled in the
        # first pass and held in the second.
        inner._get_state_rand_vec = self._placements().__next__
        mujoco.mj_resetData(inner.model, inner.data)
        inner.reset_model()
        inner._get_state_rand_vec = lambda: self._placement
        inner.reset()
        # Its own first observation can lag behind the state, if a joint or a body was moved after it was taken.
        mujoco.mj_forward(inner.model, inner.data)
        now = inner._prev_obs = inner._get_curr_obs_combined_no_goal()
        return self._observation(np.concatenate([now, now, np.zeros(3)])), {"success": False}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        action = np.clip(np.asarray(action, np.float32), -1, 1)
        rewards = []
        for _ in range(self._frame_skip):
            observation, reward, _, _, inner_info = self._inner.step(action)
            rewards.append(float(reward))
        mean_reward = sum(rewards) / len(rewards)
        distance = float(inner_info["obj_to_target"])
        success = bool(inner_info["success"]) or distance <= NEAR_ENOUGH.get(self.task, 0)
        info = {"success": success, "distance": distance}
        return self._observation(observation), mean_reward, False, False, info

    def render(self) -> np.ndarray:
        """Render the present state: uint8[height, width, 3]."""
        if self._published is not None:
            # Turned over by its rows, as theirs are.
            picture = self._renderer.render(self._inner.data, self._mounted)[::-1]
            first = round(self._published.crop[0] * len(picture))
            rows, columns = (slice(first, first + side) for side in self.render_size)
            return np.ascontiguousarray(picture[rows, columns])
        view = self._view or _upright_view(self._inner, self._camera_name)
        return self._renderer.render(self._inner.data, view)

    def close(self) -> None:
        self._renderer.close()
        self._inner.close()

    def _placements(self) -> Iterator[np.ndarray]:
        """Proposals for the positions of object and target; Meta-World takes the first with enough distance."""
        low = self._inner._random_reset_space.low
        high = self._inner._random_reset_space.high
        if self._random_starts:
            rng = self.np_random
            self._placement = rng.uniform(low, high)
        else:
            rng = np.random.default_rng(0)
            self._placement = (low + high) / 2
        while True:
            yield self._placement
            self._placement = rng.uniform(low, high)

    def _observation(self, observation: np.ndarray) -> np.ndarray:
        observation = observation.astype(np.float32)
        # A policy that reads where the goal is needs no picture of it.
        observation[2 * STATE :] = 0
        if self._show_goal:
            observation[2 * STATE :] = self._inner._target_pos
        return observation

    def _set_appearance(self, hide_robot: bool) -> None:
        """Set colours and visibility of the model; its dynamics stay the same."""
        model = self._inner.model
        for name, colour in PAINT.get(self.task, {}).items():
            model.geom(name).matid = -1
            model.geom(name).rgba = colour
        robot = set(_subtree(model, ROBOT))
        for site in range(model.nsite):
            if not self._show_goal or model.site_bodyid[site] in robot:
                model.site_rgba[site, 3] = 0
        if hide_robot:
            for geom in range(model.ngeom):
                if model.geom_bodyid[geom] in robot:
                    model.geom_rgba[geom, 3] = 0


def _simulation(task: str) -> Any:
    """Make Meta-World's own environment of a task, ready to be reset.

    Raises:
        BadInput: there is no such task.
        gymnasium.error.DependencyNotInstalled: `metaworld` is missing.
    """
    try:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ImportError as error:
        raise gymnasium.error.DependencyNotInstalled(f"{error}; pip install 'sightline[metaworld]'") from error
    tasks = [name.removesuffix("-v3") for name in ALL_V3_ENVIRONMENTS]
    one_of("task", task, tasks)
    inner: Any = ALL_V3_ENVIRONMENTS[f"{task}-v3"]()
    inner._set_task_called = True  # Meta-World's "task" is a choice of positions, which is made at every reset here
    # Only the registration limits the episode; Meta-World would raise at 500 steps.
    inner.max_path_length = sys.maxsize
    return inner


def _camera(model: Any, camera: Camera | None, task: str) -> tuple[str, View | None]:
    """Resolve a camera to the name of one of the model's cameras, or to a view.

    Raises:
        BadInput: the model has no camera of that name.
    """
    if camera is None:
        return "", VIEWS.get(task, OVERVIEW)
    if not isinstance(camera, str):
        return "", view_of(camera, {})
    names = [model.camera(i).name for i in range(model.ncam)]
    return one_of("camera", camera, names), None


def _size_before_cropping(size: Size, crop: tuple[float, float]) -> tuple[int, int]:
    """Size of a picture of which the part that is kept has this size.

    Raises:
        BadInput: it is not square.
    """
    if size[0] != size[1]:
        raise BadInput(f"view=rlvlmf draws square pictures, not {size[0]}x{size[1]}; say render_size=[300,300]")
    first, last = crop
    side = round(size[0] / (last - first))
    return side, side


def _mount(model: Any, published: PublishedView) -> int:
    """Put one of the model's cameras, that hangs on no body, to a published place; gives its index."""
    import mujoco

    index = int(np.flatnonzero(model.cam_bodyid == 0)[0])
    right = np.array(published.right, float)
    up = np.array(published.up, float)
    # Unit length, and at right angles: the published axes are rounded.
    right /= np.linalg.norm(right)
    up -= (up @ right) * right
    up /= np.linalg.norm(up)
    axes = np.stack([right, up, np.cross(right, up)], axis=1)
    model.cam_mode[index] = mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    model.cam_pos[index] = published.place
    model.cam_fovy[index] = 45.0
    mujoco.mju_mat2Quat(model.cam_quat[index], axes.ravel())
    return index


def _upright_view(inner: Any, name: str) -> View:
    """View of one of Meta-World's cameras, without its roll: several of them are mounted upside down."""
    place = inner.data.camera(name)
    axes = place.xmat.reshape(3, 3)
    sight = -axes[:, 2]
    up = axes[:, 1]
    level = sight[:2]
    if np.linalg.norm(level) < 1e-6:  # straight down or up, where only the camera itself says what is up
        level = -np.sign(sight[2]) * up[:2]
    azimuth = math.degrees(math.atan2(level[1], level[0]))
    elevation = math.degrees(math.asin(min(max(sight[2], -1.0), 1.0)))
    field_of_view = inner.model.camera(name).fovy.item()
    return View(tuple(place.xpos + sight), 1.0, azimuth, elevation, field_of_view)


def _subtree(model: Any, name: str) -> Iterator[int]:
    """Indices of a body and all its descendants."""
    inside = {model.body(name).id}
    for body in range(model.nbody):  # parents come before their children
        if body in inside or model.body_parentid[body] in inside:
            inside.add(body)
            yield body


ACTIONS = {
    "right": [1.0, 0.0, 0.0, 0.0],
    "left": [-1.0, 0.0, 0.0, 0.0],
    "away": [0.0, 1.0, 0.0, 0.0],
    "back": [0.0, -1.0, 0.0, 0.0],
    "up": [0.0, 0.0, 1.0, 0.0],
    "down": [0.0, 0.0, -1.0, 0.0],
    "close": [0.0, 0.0, 0.0, 1.0],
    "open": [0.0, 0.0, 0.0, -1.0],
}
"""Actions of an agent: full speed along one axis of the robot, or the gripper."""
PROMPT = (
    "The picture shows a robot arm at a table. Move its hand: right and left, away from the robot and back, up and "
    "down; or close and open the gripper. "
)


DRAWER_OPEN = Task(
    name="drawer-open",
    env=METAWORLD_ID,
    goal=("the drawer of the green cabinet is pulled out all the way",),
    baseline=("a green cabinet with a drawer on a table",),
    env_options={"task": "drawer-open"},
    prompt=PROMPT + "Pull the drawer of the green cabinet open.",
    actions=ACTIONS,
    summary="Meta-World: pull a drawer open with a robot arm; success: it is open at any time (and at the end).",
)


SWEEP_INTO = Task(
    name="sweep-into",
    env=METAWORLD_ID,
    goal=("the green cube lies in the middle of the square hole in the table",),
    baseline=("a green cube on a table with a square hole",),
    env_options={"task": "sweep-into"},
    prompt=PROMPT + "Sweep the green cube into the hole in the table.",
    actions=ACTIONS,
    summary="Meta-World: sweep a cube into a hole; success: it is there at any time (and at the end).",
)


SOCCER = Task(
    name="soccer",
    env=METAWORLD_ID,
    goal=("the soccer ball is inside the goal",),
    baseline=("a soccer ball and a goal on a table",),
    env_options={"task": "soccer"},
    prompt=PROMPT + "Push the ball into the goal.",
    actions=ACTIONS,
    summary="Meta-World: push a ball into a goal; success: it is there at any time (and at the end).",
)
