"""Games in worker processes, so that all episodes of a batch take their turn at the same time.

    rollout worker     begin: actions ──► processes ──► every game steps ──► result: observations ──► next batch

It pays for environments whose steps take long, such as simulators and browsers; a card is drawn faster than sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium

from sightline.envs.egl import drawing_variables
from sightline.envs.games.contract import Observation
from sightline.envs.games.wrapping import has_oracle, oracle
from sightline.envs.stepping import close_env
from sightline.envs.workers import Worker, end_all

MakeGame = Callable[[], gymnasium.Env[Any, Any]]


class GameProcess:
    """A process that holds games, and plays one call after the other.

    Args:
        make: makes one game; it is sent to the process, so it must be picklable.
        step_timeout: seconds that a reset or a step may take; the process of one that takes longer has died.
        number: of the process, from 0: of several GPUs each draws with one.

    Attributes:
        worker: the process.
    """

    def __init__(self, make: MakeGame, step_timeout: float | None = None, number: int = 0) -> None:
        self.worker = Worker(functools.partial(_Games, make), drawing_variables(number))
        self._step_timeout = step_timeout
        self._games = 0

    @property
    def alive(self) -> bool:
        """False once the process has ended, by itself or by `close`."""
        return self.worker.alive

    def make(self) -> RemoteGame:
        """Make one more game there."""
        self._games += 1
        return RemoteGame(self, self._games)

    def begin(self, game: int, method: str, *args: Any, **options: Any) -> Callable[[], Any]:
        """Begin a call of a game's method.

        Returns:
            Function that waits for the call's result and returns it, or raises what the method raised; `WorkerDied` if
            the process dies.
        """
        seconds = None
        if method in ("reset", "step"):
            seconds = self._step_timeout
        return self.worker.begin("call", game, method, args, options, seconds=seconds)

    def close(self) -> None:
        """End the process with all its games."""
        end_all([self.worker])


class RemoteGame(gymnasium.Env[Observation, str]):
    """Game that lives in a process.

    Args:
        process: holds the game.
        number: of the game in its process.
    """

    def __init__(self, process: GameProcess, number: int) -> None:
        self.process = process
        self._number = number
        game: _GameDescription = self.begin("make")()
        self.action_names = game.action_names
        self.asked = game.asked
        self.action_space = game.action_space
        self.metadata = game.metadata
        if game.has_oracle:
            self.oracle = lambda: self.begin("oracle")()

    def begin(self, method: str, *args: Any, **options: Any) -> Callable[[], Any]:
        """See `GameProcess.begin`."""
        return self.process.begin(self._number, method, *args, **options)

    def reset(self, **options: Any) -> tuple[Observation, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        result: tuple[Observation, dict[str, Any]] = self.begin("reset", **options)()
        return result

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        result: tuple[Observation, float, bool, bool, dict[str, Any]] = self.begin("step", action)()
        return result

    def render(self) -> Any:
        """See `gymnasium.Env.render`."""
        return self.begin("render")()

    def close(self) -> None:
        """Close the game; its process goes on."""
        if self.process.alive:
            self.begin("close")()


def begin(game: gymnasium.Env[Any, Any], method: str, *args: Any, **options: Any) -> Callable[[], Any]:
    """Begin a call of an environment's method: at once where it has a process, else when the result is asked for."""
    if isinstance(game, RemoteGame):
        return game.begin(method, *args, **options)
    return lambda: getattr(game, method)(*args, **options)


class GamePool:
    """Games by slot: in this process, or spread over several.

    Args:
        make: makes one game.
        processes: number of processes, 0 for none.
        step_timeout: see `GameProcess`.
    """

    def __init__(self, make: MakeGame, processes: int = 0, step_timeout: float | None = None) -> None:
        self._make = make
        self._step_timeout = step_timeout
        self._processes: list[GameProcess | None] = [None] * processes
        self._games: dict[int, gymnasium.Env[Any, Any]] = {}

    def __getitem__(self, slot: int) -> gymnasium.Env[Any, Any]:
        """The game of a slot, made when it is first needed, and made again if its process has died."""
        game = self._games.get(slot)
        if game is None or (isinstance(game, RemoteGame) and not game.process.alive):
            game = self._make_game(slot)
            self._games[slot] = game
        return game

    def discard(self, slot: int) -> None:
        """Close the game of a slot, which broke down; the slot has a new one when it is needed."""
        close_env(self._games.pop(slot))

    def close(self) -> None:
        """Close all games, and end their processes."""
        # A process closes its own games when it ends.
        for game in self._games.values():
            if not isinstance(game, RemoteGame):
                close_env(game)
        end_all([process.worker for process in self._processes if process is not None])
        self._games.clear()
        self._processes = [None] * len(self._processes)

    def _make_game(self, slot: int) -> gymnasium.Env[Any, Any]:
        if not self._processes:
            return self._make()
        place = slot % len(self._processes)
        # Slots are dealt out to the processes in turn.
        process = self._processes[place]
        if process is None or not process.alive:
            process = GameProcess(self._make, self._step_timeout, place)
            self._processes[place] = process
        return process.make()


class _GameDescription(NamedTuple):
    """What a process tells of a game that it has made."""

    action_names: tuple[str, ...]
    asked: tuple[str, ...]
    action_space: Any
    metadata: dict[str, Any]
    has_oracle: bool


class _Games:
    """The games of a process, by their numbers.

    Args:
        make: makes one of them.
    """

    def __init__(self, make: MakeGame) -> None:
        self._make = make
        self._games: dict[int, gymnasium.Env[Any, Any]] = {}

    def call(self, number: int, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method of a game; `make`, `oracle` and `close` do more than that."""
        if method == "make":
            game = self._make()
            self._games[number] = game
            return _GameDescription(
                action_names=tuple(game.get_wrapper_attr("action_names")),
                asked=tuple(game.get_wrapper_attr("asked")),
                action_space=game.action_space,
                metadata=dict(game.metadata or {}),
                has_oracle=has_oracle(game),
            )
        if method == "close":
            return close_env(self._games.pop(number))
        if method == "oracle":
            return oracle(self._games[number])
        return getattr(self._games[number], method)(*args, **options)

    def close(self) -> None:
        """Close all of them."""
        for game in self._games.values():
            close_env(game)
