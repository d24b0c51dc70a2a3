"""Stop requests by Ctrl-C, SIGTERM and SIGHUP: recorded, then obeyed at the next point where the run can be saved.

first request     a flag ──► saved at the next pause ──► Stopped
second request, or a wait that does not end ──► GivenUp: what was saved before counts
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Any, ClassVar, TypeVar

Result = TypeVar("Result")

COPIES_SECONDS = 1.0
"""Time within which a second SIGTERM is a copy of the first: shells, schedulers and torchrun pass signals on."""


def stop_signals() -> list[int]:
    """Signals that ask to stop. That of a terminal that is gone is none where it is ignored, as under `nohup`."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    return numbers


class Stopped(Exception):
    """Raised when a run has stopped on request.

    Attributes:
        signal_number: the signal that requested it.
        saved_step: step of the checkpoint to resume from, None if there is none.
    """

    def __init__(self, signal_number: int, saved_step: int | None) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.saved_step = saved_step

    @property
    def saved(self) -> str:
        """What was saved, in words."""
        if self.saved_step is None:
            return "nothing was collected yet"
        return f"saved at step {self.saved_step}"

    @property
    def advice(self) -> str:
        """How to go on, in words."""
        return "go on with the same command and --resume"


class GivenUp(KeyboardInterrupt):
    """Raised where a run cannot be stopped as it should be: it was asked to a second time, or something that it waits
    for does not answer. It passes through `except Exception`, which surrounds other people's code.

    Attributes:
        signal_number: the signal that requested the stop.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class StopRequests:
    """Context in which SIGINT, SIGTERM and SIGHUP only set a flag; a second one interrupts at once.

    A second SIGHUP does not: when a terminal ends, its shell sends one, too.

    Python allows signal handlers in the main thread only; in other threads the context does nothing.
    """

    active: ClassVar[StopRequests | None] = None
    """The context that this process is in."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._asked_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in stop_signals():
            self._previous[number] = signal.signal(number, self._note)
        StopRequests.active = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if StopRequests.active is self:
            StopRequests.active = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """True once a stop was requested."""
        return self.signal_number is not None

    def waited(self) -> float:
        """Seconds since a stop was requested; 0 if none was."""
        return time.monotonic() - self._asked_at if self.requested() else 0.0

    def overdue(self, seconds: float = 5.0) -> bool:
        """True if the request has waited longer than `seconds`, so that unsaved work has to be given up."""
        return self.waited() > seconds

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is None:
            self.signal_number = number
            self._asked_at = time.monotonic()
        # A second Ctrl-C means now, and so does a SIGTERM that is no copy of the first.
        elif number == signal.SIGINT or (number == signal.SIGTERM and self.overdue(COPIES_SECONDS)):
            raise GivenUp(number)


class Interruption:
    """The signal that has ended this process's command, outside of `StopRequests`.

    Attributes:
        signal_number: None if there was none.
    """

    signal_number: ClassVar[int | None] = None

    @classmethod
    def enable(cls) -> None:
        """Have every signal that asks to stop raise `GivenUp`, so that everything is closed and removed as it should
        be: by itself SIGTERM ends a process on the spot."""
        for number in stop_signals():
            signal.signal(number, cls._raise)

    @classmethod
    def _raise(cls, number: int, frame: FrameType | None) -> None:
        cls.signal_number = number
        raise GivenUp(number)


def asks_to_stop(error: BaseException) -> bool:
    """True for what a user's Ctrl-C raises; other people's code may raise KeyboardInterrupt, too, which is an error."""
    return isinstance(error, GivenUp) or (isinstance(error, KeyboardInterrupt) and StopRequests.active is None)


def give_up_if_overdue() -> None:
    """Give up a wait for something that may never answer, if a stop was requested long ago.

    Raises:
        GivenUp: it was.
    """
    stop = StopRequests.active
    if stop is not None and stop.signal_number is not None and stop.overdue():
        raise GivenUp(stop.signal_number)


def awaited(future: Future[Result]) -> Result:
    """The result of work in another thread, as `give_up_if_overdue` allows."""
    while True:
        try:
            # Not without end, so that signals are heeded meanwhile.
            return future.result(timeout=0.5)
        except TimeoutError:
            if future.done():  # the work itself raised it
                raise
            give_up_if_overdue()


def exit_now(code: int) -> None:
    """End this process with its clean-up, but without waiting for threads that others have left running."""
    atexit._run_exitfuncs()  # noqa: SLF001  # as the interpreter does; there is no public name for it
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(code)
