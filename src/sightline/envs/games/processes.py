"""Games in worker processes, so that all episodes of a batch take their turn at the same time.

    rollout worker     begin: actions ──► processes ──► every game steps ──► result: observations ──► next batch

It pays for environments whose steps take long, such as simulators and browsers; a card is drawn faster than sent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from sightline.envs.games.contract import Observation
from sightline.envs.games.wrapping import has_oracle, oracle
from sightline.envs.vector import leave_stops_to_parent
from sightline.errors import RunFailed, reason_of

MakeGame = Callable[[], gymnasium.Env[Any, Any]]


class GameProcess:
    """A process that holds games, and plays one call after the other.

    Args:
        make: makes one game; it is sent to the process, so it must be picklable.
    """

    def __init__(self, make: MakeGame) -> None:
        # Spawned, not forked: OpenGL and torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, make), daemon=True)
        self._process.start()
        there.close()
        self._calls, self._games, self._dead = 0, 0, False
        self._replies: dict[int, tuple[bool, Any]] = {}

    @property
    def alive(self) -> bool:
        """False once the process has ended, by itself or by `close`."""
        return not self._dead and self._process.is_alive()

    def make(self) -> RemoteGame:
        """Make one more game there."""
        self._games += 1
        return RemoteGame(self, self._games)

    def begin(self, game: int, method: str, *args: Any, **options: Any) -> Callable[[], Any]:
        """Begin a call of a game's method.

        Returns:
            Function that waits for the call's result and returns it, or raises what the method raised.

        Raises:
            RunFailed: the process has died.
        """
        self._calls += 1
        call = self._calls
        try:
            self._pipe.send((call, game, method, args, options))
        except OSError as error:
            raise self._died() from error

        def result() -> Any:
            while call not in self._replies:
                try:
                    number, *reply = self._pipe.recv()
                except (EOFError, OSError) as error:
                    raise self._died() from error
                self._replies[number] = (reply[0], reply[1])
            fine, value = self._replies.pop(call)
            if not fine:
                raise value
            return value

        return result

    def close(self) -> None:
        """End the process with all its games."""
        self._pipe.close()
        self._process.join(timeout=5)
        self._process.kill()
        self._process.join()

    def _died(self) -> RunFailed:
        self._dead = True  # which the system may learn later than the pipe
        return RunFailed("the process of an environment died (out of memory?)")


class RemoteGame(gymnasium.Env[Observation, str]):
    """Game that lives in a process.

    Args:
        process: holds the game.
        number: of the game in its process.
    """

    def __init__(self, process: GameProcess, number: int) -> None:
        self.process, self._number = process, number
        self.action_names: tuple[str, ...]
        self.asked: tuple[str, ...]
        self.action_names, self.asked, self.action_space, self.metadata, advises = self.begin("make")()
        if advises:
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
    """

    def __init__(self, make: MakeGame, processes: int = 0) -> None:
        self._make = make
        self._processes: list[GameProcess | None] = [None] * processes
        self._games: dict[int, gymnasium.Env[Any, Any]] = {}

    def __getitem__(self, slot: int) -> gymnasium.Env[Any, Any]:
        """The game of a slot, made when it is first needed, and made again if its process has died."""
        game = self._games.get(slot)
        if game is None or (isinstance(game, RemoteGame) and not game.process.alive):
            game = self._games[slot] = self._make_game(slot)
        return game

    def discard(self, slot: int) -> None:
        """Close the game of a slot, which broke down; the slot has a new one when it is needed."""
        _close_all([self._games.pop(slot)])

    def close(self) -> None:
        """Close all games, and end their processes."""
        _close_all([*self._games.values(), *(process for process in self._processes if process is not None)])
        self._games.clear()
        self._processes = [None] * len(self._processes)

    def _make_game(self, slot: int) -> gymnasium.Env[Any, Any]:
        if not self._processes:
            return self._make()
        place = slot % len(self._processes)
        process = self._processes[place]
        if process is None or not process.alive:
            process = self._processes[place] = GameProcess(self._make)
        return process.make()


def _close_all(closing: Sequence[gymnasium.Env[Any, Any] | GameProcess]) -> None:
    for one in closing:
        with contextlib.suppress(Exception):  # it would hide the error that ended the rollout
            one.close()


def _serve(pipe: Any, make: MakeGame) -> None:
    """Reply to calls until the pipe is closed, which also happens if the other process is killed."""
    leave_stops_to_parent()
    games: dict[int, gymnasium.Env[Any, Any]] = {}
    while True:
        try:
            call, game, method, args, options = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            reply = pickle.dumps((call, True, _carry_out(games, make, game, method, args, options)))
        except Exception as error:
            reply = pickle.dumps((call, False, _portable(error)))
        try:
            pipe.send_bytes(reply)
        except OSError:
            break
    _close_all(list(games.values()))


def _carry_out(
    games: dict[int, gymnasium.Env[Any, Any]],
    make: MakeGame,
    number: int,
    method: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    if method == "make":
        game = games[number] = make()
        of_game = [tuple(game.get_wrapper_attr(name)) for name in ("action_names", "asked")]
        return *of_game, game.action_space, dict(game.metadata), has_oracle(game)
    if method == "close":
        return games.pop(number).close()
    if method == "oracle":
        return oracle(games[number])
    return getattr(games[number], method)(*args, **options)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunFailed(reason_of(error))
    return error
