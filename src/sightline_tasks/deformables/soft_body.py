"""What environments with something soft share: MuJoCo's physics, cameras, pictures, states, and what happens if the
physics diverges.

    reset ──► _arrange: the first state of an episode
    step  ──► _act: move what holds the object, and step the physics ──► _observe; _judge: reward, success
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.errors import BadInput, one_of
from sightline_tasks.cameras import Camera, View, view_of
from sightline_tasks.drawing import Colour
from sightline_tasks.mujoco_rendering import OffscreenRenderer, import_mujoco

STARTS = ("random", "fixed")


class SoftBody(gymnasium.Env[np.ndarray, np.ndarray]):
    """Base of environments with one MuJoCo model. Metres, seconds, z is up.

    An observation is float32[…], an action float32[…] in [-1, 1]. Infos: `success`, whether the present state is one;
    `diverged`, whether MuJoCo gave up the physics, which terminates the episode in the state before that action, with
    the reward `worst`. Otherwise only the time limit of the registration ends it. The same seed and actions give the
    same numbers, on one version of MuJoCo.

    Args:
        xml: the model in MuJoCo's text.
        observations, actions: how many numbers each has.
        cameras: the presets; the first is used if nothing else is said.
        starts: `random`; or `fixed`, the same in every episode.
        camera: one of the presets, or a :class:`View` (or its fields).
        render_mode: `"rgb_array"` or None.
        render_size: height and width of the frames in pixels.
        shadows: draw them, and smooth edges, which takes several times as long.

    Raises:
        BadInput: an unknown choice.
        gymnasium.error.DependencyNotInstalled: `mujoco` is missing.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
    worst = 0.0

    def __init__(
        self,
        xml: str,
        observations: int,
        actions: int,
        cameras: Mapping[str, View],
        starts: str,
        camera: Camera | None,
        render_mode: str | None,
        render_size: Size,
        shadows: bool,
    ) -> None:
        self._mujoco = import_mujoco()
        self.model = self._mujoco.MjModel.from_xml_string(xml)
        self.data = self._mujoco.MjData(self.model)
        self._kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        self._episode = np.zeros(0)
        self._random_starts = one_of("starts", starts, STARTS) == "random"
        if camera is None:
            camera = next(iter(cameras))
        self._view = view_of(camera, cameras)
        self.observation_space = spaces.Box(-np.inf, np.inf, (observations,), np.float32)
        self.action_space = spaces.Box(-1, 1, (actions,), np.float32)
        self.render_mode = render_mode
        self.render_size = (int(render_size[0]), int(render_size[1]))
        # With shadows, edges are smoothed by MuJoCo's own number of samples.
        samples = None if shadows else 0
        self._renderer = OffscreenRenderer(self.model, self.render_size, shadows, False, samples)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._mujoco.mj_resetData(self.model, self.data)
        self._arrange(self.np_random if self._random_starts else None)
        self._mujoco.mj_forward(self.model, self.data)
        return self._observe(), {"success": bool(self._judge()[1])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        action = np.clip(np.asarray(action, np.float64), -1, 1)
        diverged = self._act_or_restore(action)
        # A step of MuJoCo leaves derived places, such as those of a cloth's points, as they were before it.
        self._mujoco.mj_forward(self.model, self.data)
        reward = self.worst
        success = False
        if not diverged:
            reward, success = self._judge()
        return self._observe(), float(reward), diverged, False, {"success": bool(success), "diverged": diverged}

    def _act_or_restore(self, action: np.ndarray) -> bool:
        """Carry out an action; returns whether MuJoCo gave up, and then the state is that of before."""
        before = self.state
        try:
            self._act(action)
            diverged = bool(self.data.warning.number.any())
        except self._mujoco.FatalError:  # of too many contacts
            diverged = True
        if diverged:
            # MuJoCo's default state could be the goal itself: its rope is straight.
            self._mujoco.mj_resetData(self.model, self.data)
            self.state = before
        return diverged

    def render(self) -> np.ndarray:
        """Render the present state: uint8[height, width, 3]."""
        return self._renderer.render(self.data, self._view)

    def close(self) -> None:
        """Release OpenGL."""
        self._renderer.close()

    @property
    def state(self) -> np.ndarray:
        """float64[…], all that an episode goes on from: MuJoCo's state, and what `_begin` takes. It can be set."""
        physics = np.empty(self._mujoco.mj_stateSize(self.model, self._kind))
        self._mujoco.mj_getState(self.model, self.data, physics, self._kind)
        return np.concatenate([physics, self._episode])

    @state.setter
    def state(self, state: np.ndarray) -> None:
        size = self._mujoco.mj_stateSize(self.model, self._kind)
        total = size + len(self._episode)
        if np.shape(state) != (total,):
            raise BadInput(f"a state of this environment has {total} numbers, not {np.shape(state)}")
        self._begin(np.array(state[size:], np.float64))
        physics = np.array(state[:size], np.float64)
        self._mujoco.mj_setState(self.model, self.data, physics, self._kind)
        self._mujoco.mj_forward(self.model, self.data)
        # What is derived stays; but where the solver begins, which is a part of the state, was moved on.
        self._mujoco.mj_setState(self.model, self.data, physics, self._kind)

    def solution(self) -> np.ndarray:
        """Next action, from the present state, of a script that solves the task."""
        raise NotImplementedError

    def _arrange(self, rng: np.random.Generator | None) -> None:
        """Put the object into a first state, drawn from a generator, or always the same one if that is None."""
        raise NotImplementedError

    def _begin(self, episode: np.ndarray) -> None:
        """Take over what stays the same in an episode."""
        self._episode = episode

    def _act(self, action: np.ndarray) -> None:
        """Carry out an action, in [-1, 1]."""
        raise NotImplementedError

    def _observe(self) -> np.ndarray:
        """float32[…]."""
        raise NotImplementedError

    def _judge(self) -> tuple[float, bool]:
        """Reward of the present state, and whether it is a success."""
        raise NotImplementedError

    def _advance(self, steps: int) -> None:
        self._mujoco.mj_step(self.model, self.data, steps)


class HeldFlex(SoftBody):
    """Base of environments with one flex, MuJoCo's body of points, which grippers (mocap bodies) hold for good."""

    @property
    def points(self) -> np.ndarray:
        """float64[points, 3], where the points are."""
        return np.asarray(self.data.flexvert_xpos)

    @property
    def _rest(self) -> np.ndarray:
        """float64[points, 3], where the points are in the model's text."""
        return np.asarray(self.model.body_pos[self.model.flex_vertbodyid])

    def lay(self, points: np.ndarray, grips: Sequence[int]) -> None:
        """Put the points, and the grippers at those that they hold."""
        self.data.qpos[:] = (points - self._rest).reshape(-1)
        self.data.mocap_pos[:] = points[grips]

    def _shift(self, targets: np.ndarray, steps: int) -> None:
        """Move the grippers to targets [grippers, 3], a little in each step of physics: jumps would tear."""
        starts = self.data.mocap_pos.copy()
        shifts = targets - starts
        for share in np.linspace(1 / steps, 1, steps):
            self.data.mocap_pos[:] = starts + shifts * share
            self._advance(1)

    def _places(self, key_points: np.ndarray, unit: float) -> np.ndarray:
        """float32[3 (key points + grippers)], their places in a unit (metres)."""
        places = np.concatenate([self.points[key_points], self.data.mocap_pos])
        return (places / unit).astype(np.float32).reshape(-1)


def scene(timestep: float, iterations: int, table: tuple[Colour, Colour], body: str, options: str = "") -> str:
    """MuJoCo's text of a table, lit from above, with something on it.

    Args:
        timestep: of the physics, in seconds.
        iterations: of the solver (conjugate gradients).
        table: its two colours, in a checkered pattern of 10 cm.
        body: elements of the model: `asset`, `worldbody`, `equality` and so on.
        options: further attributes of the element `option`.
    """
    light, dark = (_rgb(colour) for colour in table)
    return f"""
<mujoco>
  <option timestep="{timestep}" solver="CG" iterations="{iterations}" tolerance="1e-6" {options}/>
  <visual><headlight ambient=".45 .45 .45" diffuse=".35 .35 .35" specular="0 0 0"/><map znear=".01"/></visual>
  <asset>
    <texture name="sky" type="skybox" builtin="flat" rgb1=".93 .93 .95" rgb2=".93 .93 .95" width="8" height="48"/>
    <texture name="table" type="2d" builtin="checker" rgb1="{light}" rgb2="{dark}" width="256" height="256"/>
    <material name="table" texture="table" texrepeat="5 5" texuniform="true" reflectance="0" specular="0"/>
  </asset>
  <worldbody>
    <light directional="true" pos=".3 -.4 1.5" dir="-.2 .3 -1" diffuse=".5 .5 .5" specular="0 0 0"/>
  </worldbody>
{body}
</mujoco>
"""


def numbers(*values: float) -> str:
    """Numbers as MuJoCo's text has them."""
    return " ".join(f"{value:.6g}" for value in values)


def rgba(colour: Colour) -> str:
    """An opaque colour as MuJoCo's text has it."""
    return f"{_rgb(colour)} 1"


def _rgb(colour: Colour) -> str:
    return numbers(*(part / 255 for part in colour))


def positive(name: str, value: float) -> float:
    """Return an option that must be a number above 0.

    Raises:
        BadInput: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadInput(f"{name}={value!r:.60} must be a number above 0")
    return float(value)


def time_constant(stiffness: float, usual: float, timestep: float) -> float:
    """Seconds in which a stretched edge returns, as a share of what is usual.

    Raises:
        BadInput: the physics cannot hold something as stiff: MuJoCo wants two steps or more.
    """
    most = usual / (2 * timestep)
    if positive("stiffness", stiffness) > most:
        raise BadInput(f"stiffness={stiffness:g} is more than the physics can hold; it may be up to {most:g}")
    return usual / stiffness
