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


def in_background(
    connected: Callable[[], AbstractAsyncContextManager[Connection]],
    work: Callable[[Connection, Item], Awaitable[Result]],
    items: Iterable[Item],
    at_once: int,
    tell_how_to_cancel: Callable[[Callable[[], None]], None] = lambda cancel: None,
) -> Generator[tuple[int, Result]]:
    """Yield (index of the item, result of `work`) as they come.

    No more than `at_once` items are under way or wait to be taken: the next is begun only when whoever iterates has
    come back for more, so that stopping early loses little. Closing the generator cancels what is under way.

    Args:
        connected: entered once, in the loop's thread; what it gives is handed to `work`.
        items: taken one by one as they are begun, in the loop's thread; when they end, what is under way is finished.
        tell_how_to_cancel: is given a function that ends everything soon, to be called from any thread.

    Raises:
        Whatever `connected` or `work` raises; the rest is cancelled then.
    """
    ready: queue.SimpleQueue[tuple[int, Result, asyncio.Event] | None] = queue.SimpleQueue()
    remaining: Iterator[tuple[int, Item]] = enumerate(items)
    first = next(remaining, None)
    if first is None:
        return
    remaining = itertools.chain([first], remaining)
    failure: list[BaseException] = []

    async def worker(connection: Connection) -> None:
        for index, item in remaining:
            taken = asyncio.Event()
            ready.put((index, await work(connection, item), taken))
            await taken.wait()

    async def everything() -> None:
        async with connected() as connection, asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker(connection))

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

    def cancel() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything was done
            loop.call_soon_threadsafe(task.cancel)

    loop = asyncio.new_event_loop()
    task = loop.create_task(everything())
    tell_how_to_cancel(cancel)
    thread = threading.Thread(target=run, name="sightline-chat", daemon=True)
    thread.start()
    try:
        while (found := ready.get()) is not None:
            index, result, taken = found
            yield index, result
            with contextlib.suppress(RuntimeError):  # the loop is closed: another item has failed
                loop.call_soon_threadsafe(taken.set)
    finally:
        cancel()
        thread.join()
    if failure:
        raise failure[0]
