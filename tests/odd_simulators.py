"""Simulators that die, hang, leave, print or are left behind, for tests of what holds them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from small_envs import Clock


class Troubled(Clock):
    """Gets into trouble at its second step: once, and only in episodes of one seed."""

    def __init__(self, render_mode: str | None = None, trouble: str = "", seed: int = 0, once: str = "") -> None:
        super().__init__(render_mode)
        self.trouble, self.unlucky_seed, self.once = trouble, seed, Path(once)
        self.unlucky = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.unlucky = seed == self.unlucky_seed
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.unlucky and self.time == 1 and not self.once.exists():
            self.once.touch()
            get_into(self.trouble)
        return super().step(action)

    def close(self) -> None:
        if self.trouble == "raises in close":
            raise RuntimeError("nothing to close")
        if self.trouble == "leaves in close":
            sys.exit(5)


def get_into(trouble: str) -> None:
    if trouble == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if trouble == "hangs":
        time.sleep(1000)
    if trouble == "ends":
        os._exit(3)
    if trouble == "leaves":
        sys.exit(0)
    if trouble == "raises":
        raise ValueError("the simulator exploded")
    if trouble == "prints":
        print_from_c("from C")


def print_from_c(text: str) -> None:
    library = ctypes.CDLL(None)
    library.puts(text.encode())
    library.fflush(None)


def troubled_game(**options: Any) -> Troubled:
    """The same as a game."""
    env = Troubled("rgb_array", **options)
    env.action_names, env.asked = (), ()  # type: ignore[attr-defined]
    return env


class Leaving(Clock):
    """Calls sys.exit() in one of its methods, as pygame's examples do when a window is closed."""

    def __init__(self, render_mode: str | None = None, method: str = "step", by: str = "SystemExit") -> None:
        super().__init__(render_mode)
        self.method, self.by = method, by
        self._leave("constructor")

    def _leave(self, method: str) -> None:
        if method == self.method:
            ends = {
                "SystemExit": SystemExit(0),
                "KeyboardInterrupt": KeyboardInterrupt(),
                "cancelled": CancelledError(),
            }
            raise ends[self.by]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._leave("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._leave("step")
        return super().step(action)

    def render(self) -> np.ndarray:
        self._leave("render")
        return super().render()

    def close(self) -> None:
        self._leave("close")


class Talkative(Clock):
    """Prints from C, from Python and by a program of its own; reads what is typed; leaves a thread behind."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        print_from_c("made, from C")
        sys.stdin.readline()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        print_from_c("a step, from C")
        print("a step, from Python", flush=True)
        return super().step(action)


class Threaded(Clock):
    """Leaves a thread behind that never ends."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        threading.Thread(target=time.sleep, args=(1000,)).start()


class Hanging(Clock):
    """Starts a program of its own, writes down both processes, and hangs at its first step."""

    def __init__(self, render_mode: str | None = None, pids: str = "") -> None:
        super().__init__(render_mode)
        self.pids = pids

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        program = subprocess.Popen(["sleep", "1000"])
        with open(self.pids, "a") as file:
            file.write(f"{os.getpid()} {program.pid}\n")
        time.sleep(1000)
        return super().step(action)


class HangingWhenMade(Clock):
    """Hangs when it is made in a worker process."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if multiprocessing.parent_process() is not None:
            time.sleep(1000)


class Rounding(gymnasium.Env[np.ndarray, np.int64]):
    """A chaotic map, whose state every picture moves by what is lost in rounding."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, noise: float = 1e-15) -> None:
        self.render_mode, self.noise = render_mode, noise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(0.2, 0.8))
        return np.array([self.x]), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x = 3.9 * self.x * (1 - self.x)
        return np.array([self.x]), self.x, False, False, {}

    def render(self) -> np.ndarray:
        self.x += self.noise
        return np.full((4, 4, 3), int(255 * self.x), np.uint8)


class Shortened(Clock):
    """Ends its episodes after two steps once a file is there, and raises when it is stepped after an end."""

    def __init__(self, render_mode: str | None = None, sign: str = "", how: str = "ends") -> None:
        super().__init__(render_mode, shortest=8)
        self.sign, self.how, self.over = Path(sign), how, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.over = False
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.over:
            raise RuntimeError("the episode is over; call reset()")
        state, reward, ended, truncated, info = super().step(action)
        changed = self.sign.exists() and self.time >= 2
        if changed and self.how == "raises":
            raise RuntimeError("it is another day")
        self.over = ended or changed
        return state, reward, self.over, truncated, info


class Paying(Clock):
    """Pays whatever it is told to."""

    def __init__(self, render_mode: str | None = None, reward: Any = None, informs: bool = False) -> None:
        super().__init__(render_mode)
        self.reward, self.informs = reward, informs

    def step(self, action: np.int64) -> tuple[Any, Any, Any, Any, Any]:
        state, _, ended, truncated, info = super().step(action)
        reward = np.array(self.reward) if isinstance(self.reward, list) else self.reward
        return state, reward, np.array([ended]), truncated, info if self.informs else None


class Secretive(Clock):
    """Its infos cannot be sent to another process."""

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, reward, ended, truncated, info = super().step(action)
        return state, reward, ended, truncated, info | {"lock": threading.Lock(), "why": lambda: None, "half": 0.5}


class Emulator(Clock):
    """There can be one in a process, as of many emulators."""

    alive = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if Emulator.alive:
            raise RuntimeError("Cannot create multiple emulator instances per process")
        Emulator.alive += 1

    def close(self) -> None:
        Emulator.alive -= 1


class SharedDisplay(Clock):
    """Closes the display of all others with its own, as pygame.quit() does."""

    display = False

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        SharedDisplay.display = True

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not SharedDisplay.display:
            raise OSError("video system not initialized")
        return super().step(action)

    def close(self) -> None:
        SharedDisplay.display = False
