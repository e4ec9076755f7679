"""How requests arrive at what is measured, and keeping to it.

Knows when a request begins. Refuses to know what a request is, and what becomes of it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class Load(NamedTuple):
    """One way in which requests arrive.

    Attributes:
        concurrency: closed loop: so many are in flight, and the next begins when one ends. None is no bound.
        request_rate: open loop: so many begin each second in the mean, as a Poisson process. None in a closed loop.
    """

    concurrency: int | None = 1
    request_rate: float | None = None

    def __str__(self) -> str:
        if self.request_rate is not None:
            return f"request rate {self.request_rate:g}/s"
        return f"concurrency {self.concurrency}"


def arrival_times(request_rate: float, *, seed: str) -> Iterator[float]:
    """Seconds since the start at which requests begin, without end; the first is 0. ``seed`` names the sequence."""
    gaps = random.Random(seed)
    due = 0.0
    while True:
        yield due
        due += gaps.expovariate(request_rate)


async def run_load(
    load: Load,
    items: Iterable[Item],
    run: Callable[[Item], Awaitable[None]],
    *,
    arrival_seed: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call ``run`` once for each item, as ``load`` says; after a failure none of the calls lives on.

    Raises:
        Exception: what the first call that failed raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            if load.request_rate is None:
                _run_closed(group, load.concurrency or 1, items, run)
            else:
                arrivals = arrival_times(load.request_rate, seed=arrival_seed)
                started = clock()
                for item, due in zip(items, arrivals, strict=False):
                    if (wait := started + due - clock()) > 0:
                        await sleep(wait)
                    group.create_task(_call(run, item))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _run_closed(
    group: asyncio.TaskGroup, concurrency: int, items: Iterable[Item], run: Callable[[Item], Awaitable[None]]
) -> None:
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:  # shared: each worker takes the next item when its last one has ended
            await run(item)

    for _ in range(concurrency):
        group.create_task(work())


async def _call(run: Callable[[Item], Awaitable[None]], item: Item) -> None:
    await run(item)
