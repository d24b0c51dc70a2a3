"""An event loop in a thread of its own that works through a list, and hands over each result as it comes."""

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
    """How `stream_async` is told, from any thread and at any time, to come to an end.

    Attributes:
        asked: whether it was.
    """

    def __init__(self) -> None:
        self.asked = False
        self._tell: Callable[[float], None] = lambda grace: None
        self._lock = threading.Lock()

    def ask(self, grace: float) -> None:
        """Begin nothing new, and cancel what is still under way after so many seconds."""
        with self._lock:
            self.asked, tell = True, self._tell
        tell(grace)

    def when_asked(self, tell: Callable[[float], None]) -> None:
        """Be told how many seconds are left, if `ask` is called from now on."""
        with self._lock:
            self._tell = tell


def stream_async(
    connected: Callable[[], AbstractAsyncContextManager[Connection]],
    work: Callable[[Connection, Item], Awaitable[Result]],
    items: Iterable[Item],
    at_once: int,
    ending: CancelToken | None = None,
) -> Generator[tuple[int, Result]]:
    """Yield (index of the item, result of `work`) as they come.

    No more than `at_once` items are under way or wait to be taken: the next is begun only when whoever iterates has
    come back for more, so that stopping early loses little. Closing the generator cancels what is under way.

    Args:
        connected: entered once, in the loop's thread; what it gives is handed to `work`.
        work: may be cancelled. If that is because `ending` was asked for, it may still return a result, which is
            yielded like any other.
        items: taken one by one as they are begun, in the loop's thread; when they end, what is under way is finished.
        ending: a way to end early, for other threads.

    Raises:
        Whatever `connected` or `work` raises; the rest is cancelled then.
    """
    ending = ending or CancelToken()
    ready: queue.SimpleQueue[tuple[int, Result, asyncio.Event] | None] = queue.SimpleQueue()
    workers: list[asyncio.Task[None]] = []
    failure: list[BaseException] = []

    async def worker(connection: Connection) -> None:
        while not ending.asked and (found := next(remaining, None)) is not None:
            index, item = found
            taken = asyncio.Event()
            ready.put((index, await work(connection, item), taken))
            if not ending.asked:
                await taken.wait()

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
        for one in workers or [task]:
            one.cancel()

    def in_the_loop(call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything was done, or something has failed
            loop.call_soon_threadsafe(call, *arguments)

    loop = asyncio.new_event_loop()
    ending.when_asked(lambda grace: in_the_loop(loop.call_later, grace, cancel_workers))
    remaining: Iterator[tuple[int, Item]] = enumerate(items)
    try:
        first = None if ending.asked else next(remaining, None)
    except BaseException:
        loop.close()
        raise
    if first is None:
        loop.close()
        return
    remaining = itertools.chain([first], remaining)
    task = loop.create_task(everything())
    thread = threading.Thread(target=run, name="sightline-chat", daemon=True)
    thread.start()
    try:
        while (found := ready.get()) is not None:
            index, result, taken = found
            yield index, result
            in_the_loop(taken.set)
    finally:
        in_the_loop(task.cancel)
        thread.join()
    if failure:
        raise failure[0]
