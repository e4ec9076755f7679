"""Times of steps of so many rows, measured at the start on rows that nobody reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from engine.model.flat_batch import NULL_BATCH, BatchShape
from engine.model.runner import ModelRunner

_ROW_COUNTS = (1, 2, 4, 8, 16, 32)
_NUM_RUNS = 3


def profile_steps(runner: ModelRunner, *, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Seconds of a forward by its number of rows, the logits of every row among what is computed."""
    return {num_rows: _seconds(runner, num_rows, clock) for num_rows in _ROW_COUNTS}


def _seconds(runner: ModelRunner, num_rows: int, clock: Callable[[], float]) -> float:
    step = runner.send(NULL_BATCH.pad(BatchShape(num_rows, num_rows, num_rows, 1)))
    runner.run(step)  # the first of its kind may set something up
    times = []
    for _ in range(_NUM_RUNS):
        began = clock()
        runner.run(step)
        times.append(clock() - began)
    return median(times)
