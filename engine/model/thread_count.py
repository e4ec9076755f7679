"""How many threads suit this machine, by trial: more than the memory can feed, or others leave free, only wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_NUM_TRIALS = 7
# So much faster must more threads be: they also keep others from their cores.
_LEAST_GAIN = 1.03


def choose_num_threads(run: Callable[[], object], most: int, *, clock: Callable[[], float] = time.perf_counter) -> int:
    """Set and give the number of threads with which ``run`` is fastest, at most ``most``.

    Args:
        run: what is to be fast, in the calling thread.
        clock: seconds.
    """
    seconds = {}
    for number in _candidates(most):
        torch.set_num_threads(number)
        run()  # wakes the threads
        seconds[number] = median(_time(run, clock) for _ in range(_NUM_TRIALS))
    best = 1
    for number in sorted(seconds):
        if seconds[number] * _LEAST_GAIN < seconds[best]:
            best = number
    torch.set_num_threads(best)
    return best


def _candidates(most: int) -> list[int]:
    """All down to 1 in halves and three quarters."""
    numbers = {1, most}
    part = most
    while part > 1:
        numbers |= {max(part * 3 // 4, 1), part // 2}
        part //= 2
    return sorted(numbers)


def _time(run: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    run()
    return clock() - began
