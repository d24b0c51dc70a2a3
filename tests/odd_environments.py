"""Odd environments as people bring them: stand-ins that are unusual in one way each, for `test_odd_environments.py`.

All are `Walk`: a point on a line that is pushed left and right, and drawn as a bright bar. Subclasses change one of its
parts: spaces, `observe`, `picture`, `pay`, `tell`, `ends`, `reset`, `close`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 24
UNIT = spaces.Box(-1, 1, (2,), np.float32)


class Walk(gymnasium.Env[Any, Any]):
    metadata: Any = {"render_modes": ["rgb_array"], "render_fps": 30}
    observed: Any = UNIT
    acted: Any = spaces.Discrete(2)
    actions: list[Any] = []

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = self.observed, self.acted
        self.time, self.place = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time, self.place = 0, float(self.np_random.uniform(-1, 1))
        return self.observe(), self.tell()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is no action of {self.action_space}"
        self.time += 1
        chosen = isinstance(action, np.ndarray) and action.size
        push = float(np.mean(action)) if chosen else (1.0 if self.time % 14 < 7 else -1.0)
        self.place = float(np.clip(self.place + 0.2 * np.clip(push, -1, 1), -1, 1))
        return self.observe(), self.pay(), *self.ends(), self.tell()

    def render(self) -> Any:
        return self.picture()

    def observe(self) -> Any:
        return np.array([self.place, self.time / 100], np.float32)

    def picture(self) -> Any:
        frame = np.full((SIDE, SIDE, 3), 40, np.uint8)
        column = int((self.place + 1) / 2 * (SIDE - 4))
        frame[:, column : column + 4] = (250, 200, 30)
        return frame

    def pay(self) -> Any:
        return -abs(self.place)

    def tell(self) -> Any:
        return {}

    def ends(self) -> Any:
        return self.time >= 15, False


# -- actions -----------------------------------------------------------------------------------------------------------


class FromOne(Walk):
    acted = spaces.Discrete(2, start=1)


class OneAction(Walk):
    acted = spaces.Discrete(1)


class Levers(Walk):
    acted = spaces.MultiDiscrete([2, 3])


class Switches(Walk):
    acted = spaces.MultiBinary(3)


class Steps(Walk):
    acted = spaces.Box(-3, 3, (2,), np.int8)


class Halves(Walk):
    acted = spaces.Box(-1, 1, (2,), np.float16)


class Doubles(Walk):
    acted = spaces.Box(-1, 1, (2,), np.float64)


class Jammed(Walk):
    acted = spaces.Box(np.array([-1, 0.5], np.float32), np.array([1, 0.5], np.float32))


class Boundless(Walk):
    acted = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class NearlyBoundless(Walk):
    acted = spaces.Box(-3e38, 3e38, (2,), np.float32)


class NoActions(Walk):
    acted = spaces.Box(-1, 1, (0,), np.float32)


class Grid(Walk):
    acted = spaces.Box(-1, 1, (2, 2), np.float32)


class ActsInParts(Walk):
    acted = spaces.Dict({"arm": spaces.Box(-1, 1, (2,), np.float32), "hand": spaces.Discrete(2)})


class ActsInPairs(Walk):
    acted = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))


class Speaks(Walk):
    acted = spaces.Text(10)


class ActsInSequence(Walk):
    acted = spaces.Sequence(spaces.Discrete(2))


# -- observations ------------------------------------------------------------------------------------------------------


class Room(Walk):
    observed = spaces.Discrete(16)

    def observe(self) -> Any:
        return self.time


class RoomAndFloor(Walk):
    observed = spaces.MultiDiscrete([16, 3])

    def observe(self) -> Any:
        return np.array([self.time, self.time % 3])


class Lights(Walk):
    observed = spaces.MultiBinary(4)

    def observe(self) -> Any:
        return np.array([self.time % 2, 1, 0, self.time % 3 == 0], np.int8)


class Scalar(Walk):
    observed = spaces.Box(-1, 1, (), np.float32)

    def observe(self) -> Any:
        return np.float32(self.place)


class SeesNothing(Walk):
    observed = spaces.Box(-1, 1, (0,), np.float32)

    def observe(self) -> Any:
        return np.zeros(0, np.float32)


class SeesHalves(Walk):
    observed = spaces.Box(-1, 1, (2,), np.float16)

    def observe(self) -> Any:
        return super().observe().astype(np.float16)


class SeesDoubles(Walk):
    observed = spaces.Box(-1, 1, (2,), np.float64)

    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class SaysSinglesGivesDoubles(Walk):
    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class SeesWholeNumbers(Walk):
    observed = spaces.Box(0, 100, (3,), np.int64)

    def observe(self) -> Any:
        return np.array([self.time, 2, 3])


class SeesTruths(Walk):
    observed = spaces.Box(0, 1, (3,), np.bool_)

    def observe(self) -> Any:
        return np.array([self.time % 2 == 0, True, False])


class Ram(Walk):
    observed = spaces.Box(0, 255, (128,), np.uint8)

    def observe(self) -> Any:
        return np.full(128, self.time, np.uint8)


class Parts(Walk):
    observed = spaces.Dict({"place": UNIT, "mode": spaces.Discrete(3)})

    def observe(self) -> Any:
        return {"place": super().observe(), "mode": self.time % 3}


class NestedParts(Walk):
    observed = spaces.Dict({"arm": spaces.Dict({"place": UNIT}), "mode": spaces.Discrete(3)})

    def observe(self) -> Any:
        return {"arm": {"place": super().observe()}, "mode": self.time % 3}


class Robot(Walk):
    observed = spaces.Dict({"image": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8), "state": UNIT})

    def observe(self) -> Any:
        return {"image": self.picture(), "state": super().observe()}


class RobotInFloats(Walk):
    observed = spaces.Dict({"image": spaces.Box(0, 1, (SIDE, SIDE, 3), np.float32), "state": UNIT})

    def observe(self) -> Any:
        return {"image": (self.picture() / 255).astype(np.float32), "state": super().observe()}


class Pair(Walk):
    observed = spaces.Tuple((UNIT, spaces.Discrete(3)))

    def observe(self) -> Any:
        return super().observe(), self.time % 3


class Mission(Walk):
    observed = spaces.Dict({"place": UNIT, "mission": spaces.Text(20)})

    def observe(self) -> Any:
        return {"place": super().observe(), "mission": "go left"}


class Reads(Walk):
    observed = spaces.Text(20)

    def observe(self) -> Any:
        return "a door"


class SeesSequence(Walk):
    observed = spaces.Sequence(spaces.Discrete(3))

    def observe(self) -> Any:
        return (0, 1)


class SeesGraph(Walk):
    observed = spaces.Graph(UNIT, None)

    def observe(self) -> Any:
        return spaces.GraphInstance(np.zeros((1, 2), np.float32), None, None)


class Camera40(Walk):
    observed = spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((40, 40, 3), self.time, np.uint8)


class CameraChannelsFirst(Walk):
    observed = spaces.Box(0, 255, (3, 40, 40), np.uint8)

    def observe(self) -> Any:
        return np.full((3, 40, 40), self.time, np.uint8)


class CameraStacked(Walk):
    observed = spaces.Box(0, 255, (4, 40, 40, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((4, 40, 40, 3), self.time, np.uint8)


class CameraInFloats(Walk):
    observed = spaces.Box(0, 1, (40, 40, 3), np.float32)

    def observe(self) -> Any:
        return np.full((40, 40, 3), self.time / 100, np.float32)


class CameraGrey(Walk):
    observed = spaces.Box(0, 255, (40, 40, 1), np.uint8)

    def observe(self) -> Any:
        return np.full((40, 40, 1), self.time, np.uint8)


class SeesList(Walk):
    def observe(self) -> Any:
        return [self.place, 0.5]


class SeesTensor(Walk):
    def observe(self) -> Any:
        import torch

        return torch.tensor([self.place, 0.5])


class SeesOneTooMany(Walk):
    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class SeesNone(Walk):
    def observe(self) -> Any:
        return None


class SeesNaN(Walk):
    def observe(self) -> Any:
        return np.array([0, np.nan if self.time > 2 else 0], np.float32)


class SeesInfinity(Walk):
    def observe(self) -> Any:
        return np.array([0, np.inf if self.time > 2 else 0], np.float32)


class LeavesItsBounds(Walk):
    def observe(self) -> Any:
        return np.array([7, self.time], np.float32)


class OneBuffer(Walk):
    """Gives one and the same array all the time."""

    def observe(self) -> Any:
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = self.place, self.time / 100
        return self.buffer


# -- frames ------------------------------------------------------------------------------------------------------------


class Transparent(Walk):
    def picture(self) -> Any:
        return np.dstack([super().picture(), np.full((SIDE, SIDE), 255, np.uint8)])


class DrawsFloats(Walk):
    def picture(self) -> Any:
        return super().picture() / 255.0


class DrawsGrey(Walk):
    def picture(self) -> Any:
        return super().picture()[..., 0]


class DrawsOne(Walk):
    def picture(self) -> Any:
        return super().picture()[None]


class DrawsTensor(Walk):
    def picture(self) -> Any:
        import torch

        return torch.from_numpy(super().picture())


class DrawsReadOnly(Walk):
    def picture(self) -> Any:
        frame = super().picture()
        frame.flags.writeable = False
        return frame


class DrawsFlipped(Walk):
    def picture(self) -> Any:
        return super().picture()[::-1, ::-1]


class DrawsLargeFloats(Walk):
    def picture(self) -> Any:
        return super().picture().astype(np.float32)


class DrawsWholeNumbers(Walk):
    def picture(self) -> Any:
        return super().picture().astype(np.int64)


class DrawsNone(Walk):
    def picture(self) -> Any:
        return None


class DrawsTwo(Walk):
    def picture(self) -> Any:
        return [super().picture(), super().picture()]


class DrawsText(Walk):
    def picture(self) -> Any:
        return "|..x..|"


class Grows(Walk):
    def picture(self) -> Any:
        side = SIDE + (self.time > 3)
        return np.arange(side * side * 3, dtype=np.uint8).reshape(side, side, 3)


class Black(Walk):
    def picture(self) -> Any:
        return np.zeros((SIDE, SIDE, 3), np.uint8)


class LooksAway(Walk):
    def picture(self) -> Any:
        frame = np.zeros((SIDE, SIDE, 3), np.uint8)
        frame[::2] = 90
        return frame


class OneCanvas(Walk):
    """Draws on one and the same canvas all the time."""

    def picture(self) -> Any:
        if not hasattr(self, "canvas"):
            self.canvas = np.zeros((SIDE, SIDE, 3), np.uint8)
        self.canvas[:] = super().picture()
        return self.canvas


class CannotDraw(Walk):
    def picture(self) -> Any:
        raise KeyError("texture")


class CannotDrawLater(Walk):
    def picture(self) -> Any:
        if self.time > 4:
            raise KeyError("texture")
        return super().picture()


class DrawsAfterReset(Walk):
    def picture(self) -> Any:
        self.np_random  # noqa: B018  made by the first reset in most simulators
        assert hasattr(self, "begun"), "reset first"
        return super().picture()

    def reset(self, **options: Any) -> Any:
        self.begun = True
        return super().reset(**options)


class NoPictures(Walk):
    metadata: Any = {"render_modes": []}

    def __init__(self) -> None:
        super().__init__(None)

    def picture(self) -> Any:
        raise NotImplementedError


class DrawsUnasked(Walk):
    metadata: Any = None

    def __init__(self) -> None:
        super().__init__(None)


# -- rewards -----------------------------------------------------------------------------------------------------------


class PaysArray(Walk):
    def pay(self) -> Any:
        return np.array([super().pay()])


class PaysTensor(Walk):
    def pay(self) -> Any:
        import torch

        return torch.tensor(super().pay())


class PaysHalf(Walk):
    def pay(self) -> Any:
        return np.float16(super().pay())


class PaysTruth(Walk):
    def pay(self) -> Any:
        return self.place > 0


class PaysVector(Walk):
    def pay(self) -> Any:
        return np.array([1.0, 2.0, 3.0])


class PaysNone(Walk):
    def pay(self) -> Any:
        return None


class PaysText(Walk):
    def pay(self) -> Any:
        return "much"


class PaysNaN(Walk):
    def pay(self) -> Any:
        return np.nan if self.time > 3 else 0.0


class PaysInfinity(Walk):
    def pay(self) -> Any:
        return np.inf if self.time > 3 else 0.0


class PaysNothing(Walk):
    def pay(self) -> Any:
        return 0.0


# -- infos -------------------------------------------------------------------------------------------------------------


class NoInfo(Walk):
    def tell(self) -> Any:
        return None


class InfoOfText(Walk):
    def tell(self) -> Any:
        return "fine"


class SaysFalse(Walk):
    def tell(self) -> Any:
        return {"success": "False"}


class SuccessNaN(Walk):
    def tell(self) -> Any:
        return {"success": np.nan}


class SuccessInParts(Walk):
    def tell(self) -> Any:
        return {"success": {"arm": True}}


class SuccessArray(Walk):
    def tell(self) -> Any:
        return {"is_success": np.array([self.time > 3])}


class SuccessAtTheEnd(Walk):
    def tell(self) -> Any:
        return {"success": True} if self.time >= 15 else {}


class ChangingInfo(Walk):
    def tell(self) -> Any:
        return {f"at {self.time}": np.zeros(self.time), "shape": np.zeros((self.time, 2)), "kind": self.time % 2 or "x"}


class InfoWithCode(Walk):
    def tell(self) -> Any:
        return {"callback": lambda: None, "self": self, "file": sys.stderr}


# -- ends, seeds, and the world around ---------------------------------------------------------------------------------


class EndsAtOnce(Walk):
    def ends(self) -> Any:
        return True, False


class NeverEnds(Walk):
    def ends(self) -> Any:
        return False, False


class EndsInNumbers(Walk):
    def ends(self) -> Any:
        return int(self.time >= 15), np.bool_(False)


class EndsInArrays(Walk):
    def ends(self) -> Any:
        return np.array([self.time >= 15, False]), False


class FourTuple(Walk):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class SixTuple(Walk):
    def step(self, action: Any) -> Any:
        return (*super().step(action), 0)


class ObservationAlone(Walk):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class NoSeed(Walk):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class IgnoresSeed(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.np_random = np.random.default_rng()
        return super().reset()


class SeedsEverybody(Walk):
    """Seeds NumPy's global generator at every reset."""

    def reset(self, **options: Any) -> Any:
        np.random.seed(0)
        return super().reset(**options)


class RaisesInReset(Walk):
    def reset(self, **options: Any) -> Any:
        raise KeyError("no map")


class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        if self.time == 4:
            raise ZeroDivisionError("the simulator exploded")
        return super().step(action)


class RaisesInClose(Walk):
    def close(self) -> None:
        raise RuntimeError("closed twice")


class LeavesInStep(Walk):
    def step(self, action: Any) -> Any:
        if self.time == 4:
            sys.exit()
        return super().step(action)


class LeavesInReset(Walk):
    def reset(self, **options: Any) -> Any:
        sys.exit(0)


class LeavesInClose(Walk):
    def close(self) -> None:
        sys.exit(0)


class NoSpaces(gymnasium.Env[Any, Any]):
    render_mode = "rgb_array"

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


class NoMetadata(Walk):
    metadata: Any = None


class SlowFilm(Walk):
    metadata: Any = {"render_modes": ["rgb_array"], "render_fps": 0.5}


class ManyAtOnce(Walk):
    num_envs = 8

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.single_action_space, self.single_observation_space = self.acted, self.observed


class OneAtATime(Walk):
    """Only one of it can exist in a process, as emulators have it."""

    alive = 0

    def __init__(self, render_mode: str | None = None) -> None:
        if OneAtATime.alive:
            raise RuntimeError("cannot create multiple emulator instances per process")
        OneAtATime.alive += 1
        super().__init__(render_mode)

    def close(self) -> None:
        OneAtATime.alive = 0


class MovesTheWorkingFolder(Walk):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        os.chdir("/")


class Prints(Walk):
    def step(self, action: Any) -> Any:
        print("stepping")
        return super().step(action)


class OldGym:
    """As environments of gym were written."""

    observation_space, action_space = UNIT, spaces.Discrete(2)

    def reset(self) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, {}
