"""Runs the same prompts in every mode of a target, side by side.

Knows when which prompt runs in which mode. Refuses to know what the target is made of, and the arithmetic.

Two modes take turns chunk by chunk, and the one that goes first changes each time, so that a machine that grows
hot or busy slows both alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise, zip_longest
from typing import NamedTuple

from engine.bench.load import Load, run_load
from engine.bench.measurement import BenchMode, ChunkRun, Measurement
from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt, select_prompts
from engine.bench.result import BenchResult, LoadResult
from engine.bench.summary import differing_prompts, summarise, summarise_load
from engine.bench.target import Target

# Towards the end of a chunk fewer than ``concurrency`` requests are in flight; several rounds a chunk keep
# that part small.
_ROUNDS_PER_CHUNK = 4


class BenchProgress(NamedTuple):
    """How far a run is: counted requests done and in all, and the task at work, at first ``warm-up``."""

    num_done: int
    num_total: int
    task: str


@dataclass(frozen=True, slots=True)
class BenchTime:
    """The time that a run lives in; tests have their own.

    Attributes:
        clock: seconds.
        sleep: waits for so many of them.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def run_bench(
    target: Target,
    prompts: Sequence[BenchPrompt],
    options: BenchOptions,
    on_progress: Callable[[BenchProgress], None],
    *,
    bench_time: BenchTime = BenchTime(),
) -> BenchResult:
    """Measure ``prompts`` on a target that nobody else is using, at each load by itself.

    Args:
        on_progress: called on the event loop, before each warm-up and after each counted request.

    Raises:
        ConfigError: a task has no prompt, or a prompt cannot be run as asked.
        DraftaheadError: a request ended without its whole output.
    """
    selected = select_prompts(prompts, tasks=options.tasks, limit_per_task=options.limit_per_task)
    chosen = list(chain.from_iterable(selected.values()))
    await target.prepare(chosen)
    bench = _Bench(target, options, num_prompts=len(chosen), on_progress=on_progress, bench_time=bench_time)
    loads: list[LoadResult] = []
    runs: list[ChunkRun] = []
    for load in options.loads:
        load_runs = await bench.run_load(load, selected)
        runs += load_runs
        tasks = tuple(summarise(task, [run for run in load_runs if run.task == task]) for task in selected)
        loads.append(summarise_load(load, tasks, load_runs))
    return BenchResult(
        options=options,
        info=target.info,
        uses_chat_template=target.uses_chat_template,
        loads=tuple(loads),
        num_prompts=len(chosen),
        differing_prompt_ids=differing_prompts(runs),
        peak_rss_mib=target.peak_rss_mib(),
    )


class _Bench:
    """One run in progress: everything that stays the same from request to request, and the counter."""

    def __init__(
        self,
        target: Target,
        options: BenchOptions,
        *,
        num_prompts: int,
        on_progress: Callable[[BenchProgress], None],
        bench_time: BenchTime,
    ) -> None:
        self._target = target
        self._options = options
        self._on_progress = on_progress
        self._time = bench_time
        self._num_total = num_prompts * len(target.modes) * options.repeats * len(options.loads)
        self._num_done = 0

    async def run_load(self, load: Load, selected: Mapping[str, Sequence[BenchPrompt]]) -> list[ChunkRun]:
        """Everything at one load, after a warm-up."""
        await self._warm_up(load, list(selected.values()))
        return [
            await self._run_chunk(load, task, chunk, mode, repeat)
            for task, chunk, mode, repeat in self._schedule(load, selected)
        ]

    async def _warm_up(self, load: Load, prompts_by_task: Sequence[Sequence[BenchPrompt]]) -> None:
        """Run some prompts of different tasks in each mode, uncounted."""
        self._announce(load, "warm-up")
        if self._options.num_warmup == 0:
            return
        in_flight = load.concurrency or self._options.num_warmup
        mixed = (prompt for row in zip_longest(*prompts_by_task) for prompt in row if prompt is not None)
        warmup = list(islice(cycle(mixed), max(self._options.num_warmup, in_flight)))
        for mode in self._target.modes:

            async def run(prompt: BenchPrompt, mode: BenchMode = mode) -> None:
                await self._target.measure(prompt, mode)

            await run_load(Load(in_flight), warmup, run, arrival_seed="")

    async def _run_chunk(
        self, load: Load, task: str, chunk: Sequence[BenchPrompt], mode: BenchMode, repeat: int
    ) -> ChunkRun:
        """Run and count each prompt of ``chunk`` once."""
        measurements: list[Measurement] = []

        async def run(prompt: BenchPrompt) -> None:
            measurements.append(await self._target.measure(prompt, mode))
            self._num_done += 1
            self._announce(load, task)

        self._target.take_step_times()  # drops those of before
        started = self._time.clock()
        # the same arrivals in each mode
        arrival_seed = f"{self._options.seed} {task} {repeat}"
        await run_load(load, chunk, run, arrival_seed=arrival_seed, clock=self._time.clock, sleep=self._time.sleep)
        return ChunkRun(
            task=task,
            mode=mode,
            repeat=repeat,
            seconds=self._time.clock() - started,
            measurements=tuple(measurements),
            step_times=self._target.take_step_times(),
        )

    def _schedule(
        self, load: Load, selected: Mapping[str, Sequence[BenchPrompt]]
    ) -> Iterator[tuple[str, Sequence[BenchPrompt], BenchMode, int]]:
        chunks = [(task, chunk) for task, prompts in selected.items() for chunk in _chunks(prompts, load)]
        modes = self._target.modes
        for repeat in range(self._options.repeats):
            for index, (task, chunk) in enumerate(chunks):
                # with the repeat in the sum, each chunk itself is begun by both modes in turn
                for mode in modes if (index + repeat) % 2 == 0 else modes[::-1]:
                    yield task, chunk, mode, repeat

    def _announce(self, load: Load, task: str) -> None:
        where = task if len(self._options.loads) == 1 else f"{task}, {load}"
        self._on_progress(BenchProgress(self._num_done, self._num_total, where))


def _chunks(prompts: Sequence[BenchPrompt], load: Load) -> list[Sequence[BenchPrompt]]:
    """``prompts`` in order, in chunks of nearly equal size: single ones where one request runs at a time.

    Without a bound they stay together: a chunk that ends early would cut the queue that arrivals build up.
    """
    if load.concurrency is None:
        return [prompts]
    largest = 1 if load.concurrency == 1 else load.concurrency * _ROUNDS_PER_CHUNK
    num_chunks = -(-len(prompts) // largest)
    bounds = [len(prompts) * index // num_chunks for index in range(num_chunks + 1)]
    return [prompts[start:end] for start, end in pairwise(bounds)]
