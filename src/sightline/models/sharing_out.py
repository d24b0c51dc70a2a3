"""Work shared out among devices: blocks from one queue, and a thread for each device.

A slow device, or one that others use as well, takes fewer blocks. Results come back in the order of the blocks, so that
who computed which one shows nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Worker = TypeVar("Worker")
Block = TypeVar("Block")
Result = TypeVar("Result")


def shared_out(
    work: Callable[[Worker, Block], Result], workers: Sequence[Worker], blocks: Sequence[Block]
) -> list[Result]:
    """Results of all blocks, in their order.

    Args:
        work: computes one block; it is called in several threads at once, but for one worker in one thread alone.
        workers: what a block is given to, such as a model on its device; each takes the next block as soon as it is
            free.

    Raises:
        Exception: what `work` raised first; blocks that nobody has begun are left then.
    """
    if len(blocks) <= 1 or len(workers) == 1:
        return [work(workers[0], block) for block in blocks]
    waiting = deque(enumerate(blocks))
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def take_blocks(worker: Worker) -> None:
        while True:
            try:
                number, block = waiting.popleft()
            except IndexError:  # none is left
                return
            try:
                results[number] = work(worker, block)
            except BaseException as error:
                errors.append(error)
                # The others end with the blocks that they are at.
                waiting.clear()

    with ThreadPoolExecutor(len(workers), thread_name_prefix="device") as pool:
        list(pool.map(take_blocks, workers))
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(blocks))]
