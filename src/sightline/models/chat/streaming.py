"""Asynchronous work as a plain generator: an event loop in a thread of its own yields each result as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

Connection = TypeVar("Connection")
Item = TypeVar("Item")
Result = TypeVar("Result")


class CancelToken:
    """Cancels `stream_async`, from any thread and at any time.

    Attributes:
        cancelled: whether it was asked to end.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._callback: Callable[[float], None] = lambda grace: None
        self._lock = threading.Lock()

    def cancel(self, grace: float) -> None:
        """Begin nothing new, and cancel what is still under way after so many seconds."""
        with self._lock:
            self.cancelled = True
            callback = self._callback
        callback(grace)

    def on_cancel(self, callback: Callable[[float], None]) -> None:
        """Set what is called with the seconds that are left, if `cancel` is called from now on."""
        with self._lock:
            self._callback = callback


def stream_async(
    connected: Callable[[], AbstractAsyncContextManager[Connection]],
    work: Callable[[Connection, Item], Awaitable[Result]],
    items: Iterable[Item],
    at_once: int,
    cancel_token: CancelToken | None = None,
) -> Generator[tuple[int, Result]]:
    """Yield (index of the item, result of `work`) as they come.

    No more than `at_once` items are under way or wait to be taken: the next is begun only when whoever iterates has
    come back for more, so that stopping early loses little. Closing the generator cancels what is under way.

    Args:
        connected: entered once, in the loop's thread; what it gives is handed to `work`.
        work: may be cancelled. If that is because `cancel_token` was used, it may still return a result, which is
            yielded like any other.
        items: taken one by one as they are begun, in the loop's thread; when they end, what is under way is finished.
        cancel_token: for other threads, to end early.

    Raises:
        Whatever `connected` or `work` raises; the rest is cancelled then.
    """
    cancel_token = cancel_token or CancelToken()
    ready: queue.SimpleQueue[tuple[int, Result, asyncio.Event] | None] = queue.SimpleQueue()
    workers: list[asyncio.Task[None]] = []
    failure: list[BaseException] = []

    async def worker(connection: Connection) -> None:
        while not cancel_token.cancelled:
            numbered_item = next(remaining, None)
            if numbered_item is None:
                return
            index, item = numbered_item
            is_yielded = asyncio.Event()
            ready.put((index, await work(connection, item), is_yielded))
            # Nothing new is begun before whoever iterates has come back for more.
            if not cancel_token.cancelled:
                await is_yielded.wait()

    async def everything() -> None:
        async with connected() as connection, asyncio.TaskGroup() as group:
            workers.extend(group.create_task(worker(connection)) for _ in range(at_once))

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as several:
            failure.append(several.exceptions[0])
        except BaseException as error:
            failure.append(error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            ready.put(None)

    def cancel_workers() -> None:
        for running in workers or [task]:
            running.cancel()

    def in_the_loop(call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything was done, or something has failed
            loop.call_soon_threadsafe(call, *arguments)

    # A loop in a thread of its own: the caller may be within another loop, as in a notebook, where none can be run.
    loop = asyncio.new_event_loop()
    cancel_token.on_cancel(lambda grace: in_the_loop(loop.call_later, grace, cancel_workers))
    remaining: Iterator[tuple[int, Item]] = enumerate(items)
    try:
        # Without items there is nothing to connect for.
        first = None if cancel_token.cancelled else next(remaining, None)
    except BaseException:
        loop.close()
        raise
    if first is None:
        loop.close()
        return
    # The first item was taken here only to see whether there is any; the workers get it back.
    remaining = itertools.chain([first], remaining)
    task = loop.create_task(everything())
    thread = threading.Thread(target=run, name="sightline-chat", daemon=True)
    thread.start()
    try:
        while (ready_result := ready.get()) is not None:
            index, result, is_yielded = ready_result
            yield index, result
            in_the_loop(is_yielded.set)
    finally:
        # Reached also when the caller closes the generator: nothing may be under way after that.
        in_the_loop(task.cancel)
        thread.join()
    if failure:
        raise failure[0]
