"""CartPole with a continuous force, after RL-VLM-F (Wang et al., ICML 2024): the pole cannot fall over, and the reward
is minus its angle from the vertical."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import Size
from sightline.envs.tasks import Axis, Task
from sightline.errors import one_of
from sightline_tasks.control.cartpole import LOOKS, PUBLISHED_LOOK, CartPoleLook, advance, draw_cartpole
from sightline_tasks.drawing import choose_look
from sightline_tasks.registration import CARTPOLE_CONTINUOUS_ID

TRACK = 1.92
"""The cart stays within [-TRACK, TRACK] metres."""
LEAN = math.radians(30)
"""The pole stays within this angle of the vertical (radians)."""
UPRIGHT = math.radians(5)


class CartPoleContinuous(gymnasium.Env[np.ndarray, np.ndarray]):
    """Push a cart so that the pole on it stays up.

    Observation: float32[4], cart position (m) and velocity (m/s), pole angle (rad, 0 upright) and velocity (rad/s).
    Action: float32[1] in [-1, 1], times 10 N. Reward (the ground truth): minus the angle from the vertical in degrees,
    [-30, 0]. `info["success"]`: the pole is within 5 degrees. At the limits of track and lean, positions are clipped
    but velocities are kept, as in the reference. The environment never terminates; the time limit of its registration
    (100 steps) truncates. The frame keeps the cart in the middle, so only the angle can be seen.

    Args:
        render_mode: `"rgb_array"` or None.
        render_size: height and width of the frames in pixels.
        look: a name in `sightline_tasks.control.cartpole.LOOKS`, or a `CartPoleLook`.
        view: `rlvlmf` for the picture of RL-VLM-F, 200 x 200, whatever the look.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(
        self,
        render_mode: str | None = None,
        render_size: Size = (200, 200),
        look: str | CartPoleLook = "plain",
        view: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.render_size = (int(render_size[0]), int(render_size[1]))
        self.look = choose_look(look, LOOKS)
        if view is not None:
            one_of("view", view, ("rlvlmf",))
            self.look = PUBLISHED_LOOK
        high = np.array([TRACK, np.inf, LEAN, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.state = np.zeros(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.05, 0.05, size=4)
        return self.state.astype(np.float32), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        throttle = np.asarray(action, np.float64).reshape(())
        push = float(np.clip(throttle, -1, 1))
        self.state = advance(self.state, 10 * push)
        # Positions are clipped and velocities kept, as in the reference.
        self.state[0] = min(max(self.state[0], -TRACK), TRACK)
        self.state[2] = min(max(self.state[2], -LEAN), LEAN)
        reward = -math.degrees(abs(self.state[2]))
        return self.state.astype(np.float32), reward, False, False, self._info()

    def render(self) -> np.ndarray:
        # The cart stays in the middle of the picture: the reward is about the angle alone.
        return draw_cartpole(0.0, self.state[2], self.render_size, self.look)

    def _info(self) -> dict[str, Any]:
        return {"success": bool(abs(self.state[2]) <= UPRIGHT)}


TASK = Task(
    name="cartpole-continuous",
    env=CARTPOLE_CONTINUOUS_ID,
    goal=("pole vertically upright on top of the cart",),
    baseline=("pole and cart",),
    success="every",
    axes=(Axis("pole angle", "degrees", -30, 30, 61),),
    state_at=lambda angle: [0.0, 0.0, angle * 3.141592653589793 / 180, 0.0],
    prompt="The pictures show a pole on a cart, first as it was before the last push and then as it is now. "
    "Push the cart so that the pole stays up.",
    actions={"left": [-1.0], "slightly left": [-0.3], "slightly right": [0.3], "right": [1.0]},
    frames=2,
    summary="Balance a pole with a free force; success: within 5 degrees of upright through the whole episode.",
)
