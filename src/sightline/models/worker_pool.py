"""Pool of workers elsewhere, such as servers, or actors on other machines, of which some may be lost.

    pieces 0 1 2 3 …  ──► each worker takes the next one ──► a result: it counts
            ▲                                            └─► none: the worker is doubted until it answers a probe
            └───────────── back to the end ──────────────────┘

Each piece has one result, whoever computes it, so results depend on nobody's loss. A worker that fails too often in a
row is given up for this call. The next call probes it again, and waits for nobody.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sightline.runs.stopping import GivenUp, awaited

Worker = TypeVar("Worker")
Result = TypeVar("Result")

LONGEST_PAUSE = 60.0
"""Seconds between two probes of a worker, at most."""


class NoResult(Exception):
    """Raised where a worker gives no result, which another one may give.

    Attributes:
        is_final: whether it would not help to ask this one again.
    """

    def __init__(self, reason: object, is_final: bool = False) -> None:
        super().__init__(str(reason))
        self.is_final = is_final


@dataclass(eq=False)
class _Member(Generic[Worker]):
    """A worker, and what is thought of it.

    Attributes:
        failures: in a row.
        doubt: why it is doubted; None if it is not.
        lock: held while it is probed, once for all of its pieces.
    """

    worker: Worker
    failures: int = 0
    doubt: NoResult | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class WorkerPool(Generic[Worker]):
    """Workers that share pieces of work, and take over those of a lost one.

    Args:
        workers: at least one.
        probe: asks a worker whether it is there; raises `NoResult` if it is not.
        at_once: pieces that a worker is given at a time.
        retries: failures in a row that a worker is forgiven.
        first_wait: seconds before a doubted worker is probed; each further wait is twice as long.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        probe: Callable[[Worker], Awaitable[None]],
        *,
        at_once: int,
        retries: int,
        first_wait: float,
    ) -> None:
        self._members = [_Member(worker) for worker in workers]
        self._probe = probe
        self._at_once = at_once
        self._retries = retries
        self._first_wait = first_wait

    async def carry_out(self, count: int, work: Callable[[Worker, int], Awaitable[None]]) -> None:
        """Have pieces of work done, by their numbers from 0.

        Args:
            work: has a worker do a piece; raises `NoResult` if it does not.

        Raises:
            NoResult: no worker is remaining; the reason of the last one.
        """
        if not count:
            return
        for member in self._members:
            # What was given up in an earlier call may be there again.
            member.failures = 0
            if member.doubt is not None:
                member.doubt.is_final = False
        queue: asyncio.Queue[int] = asyncio.Queue()
        for number in range(count):
            queue.put_nowait(number)
        remaining = count
        complete = asyncio.Event()
        last_reason: NoResult | None = None

        async def serve(member: _Member[Worker]) -> None:
            nonlocal remaining, last_reason
            while await self._is_there(member):
                number = await queue.get()
                if member.doubt is not None:  # since it began to wait
                    queue.put_nowait(number)
                    continue
                try:
                    await work(member.worker, number)
                except NoResult as reason:
                    queue.put_nowait(number)
                    last_reason = reason
                    self._doubt(member, reason)
                    continue
                member.failures = 0
                remaining -= 1
                if not remaining:
                    complete.set()
                # It may have been doubted for another piece while it did this one.
                if member.doubt is not None and not member.doubt.is_final:
                    member.doubt = None

        shared_work = asyncio.gather(*(serve(member) for member in self._members for _ in range(self._at_once)))
        completion = asyncio.ensure_future(complete.wait())
        try:
            # Nobody waits for those that are still being probed when all is done.
            either: list[asyncio.Future[Any]] = [shared_work, completion]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if shared_work.done():
                shared_work.result()  # raises what the work itself has raised
        finally:
            for task in (shared_work, completion):
                task.cancel()
            await asyncio.gather(shared_work, completion, return_exceptions=True)
        if remaining:
            assert last_reason is not None, "a worker is given up for a reason"
            raise last_reason

    async def _is_there(self, member: _Member[Worker]) -> bool:
        """Whether a worker can be given a piece; one that is doubted is probed first."""
        async with member.lock:
            while member.doubt is not None:
                if member.doubt.is_final or member.failures > self._retries:
                    return False
                await asyncio.sleep(self._pause(member.failures))
                try:
                    await self._probe(member.worker)
                except NoResult as reason:
                    member.failures += 1
                    member.doubt = reason
                else:
                    member.doubt = None
        return True

    def _doubt(self, member: _Member[Worker], reason: NoResult) -> None:
        # Pieces that were with it at the same time fail for the same reason, which counts once.
        if member.doubt is None:
            member.failures += 1
            member.doubt = reason
        elif reason.is_final:
            member.doubt = reason

    def _pause(self, failures: int) -> float:
        """Seconds before a probe, the longer the more has failed."""
        if not failures:
            return 0.0
        return min(self._first_wait * 2.0 ** (failures - 1), LONGEST_PAUSE)


class LoopThread:
    """An event loop in a thread of its own, from the first work on.

    Whoever asks waits, and may be in any thread, also in one with an event loop, such as a notebook's.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def result(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work in the loop's thread.

        Raises:
            GivenUp: a stop was asked for long ago; the work is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return awaited(future)
        except GivenUp:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="remote-work", daemon=True).start()
                weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
            return self._loop
