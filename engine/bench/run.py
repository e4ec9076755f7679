"""Runs the same prompts without and with speculation, side by side on one engine.

Knows when which request runs in which mode. Refuses to know what the engine is made of, and the arithmetic.

The two modes take turns chunk by chunk, and the one that goes first changes each time, so that a machine
that grows hot or busy slows both alike. The second mode meets prompts that the first has just run: the engine
must be built with ``enable_prefix_caching=False``, and a run in which a prompt was found in the cache is
refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain, count, cycle, islice, pairwise, zip_longest
from typing import NamedTuple

from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt, select_prompts
from engine.bench.result import BenchResult, ChunkRun, Measurement, summarise
from engine.client import EngineClient, GenerateRequest
from engine.errors import ConfigError, EngineUnavailable, InvalidRequest
from engine.params import SamplingParams, SpeculationMode, SpeculationParams
from engine.types import FinishReason, RequestMetrics, RequestOutput

_MODES = (SpeculationMode.OFF, SpeculationMode.AUTO)
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)

# Towards the end of a chunk fewer than ``concurrency`` requests are in flight; several rounds a chunk keep
# that part small.
_ROUNDS_PER_CHUNK = 4


class BenchProgress(NamedTuple):
    """How far a run is: counted requests done and in all, and the task at work, at first ``warm-up``."""

    num_done: int
    num_total: int
    task: str


async def run_bench(
    client: EngineClient,
    prompts: Sequence[BenchPrompt],
    options: BenchOptions,
    on_progress: Callable[[BenchProgress], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> BenchResult:
    """Measure ``prompts`` on a started engine that nobody else is using.

    Args:
        on_progress: called on the event loop, before the warm-up and after each counted request.
        clock: seconds; must be the clock of ``RequestOutput.time``.

    Raises:
        ConfigError: a task has no prompt, a prompt is too long for the model, or the prefix cache is on.
        EngineUnavailable: a request ended without its whole output.
        QueueFull: ``concurrency`` is more than the engine's queue takes.
    """
    selected = select_prompts(prompts, tasks=options.tasks, limit_per_task=options.limit_per_task)
    chosen = list(chain.from_iterable(selected.values()))
    texts = {prompt.prompt_id: _render(client, prompt.text) for prompt in chosen}
    await _check_lengths(client, chosen, texts, options)
    bench = _Bench(client, options, texts=texts, on_progress=on_progress, clock=clock)
    await bench.warm_up(list(selected.values()))
    runs = [
        await bench.run_chunk(task, chunk, mode, repeat=repeat)
        for task, chunk, mode, repeat in _schedule(selected, options)
    ]
    return BenchResult(
        options=options,
        info=client.info,
        uses_chat_template=all(texts[prompt.prompt_id] != prompt.text for prompt in chosen),
        tasks=tuple(summarise(task, [run for run in runs if run.task == task]) for task in selected),
        overall=summarise("overall", runs),
    )


class _Bench:
    """One run in progress: everything that stays the same from request to request, and the two counters."""

    def __init__(
        self,
        client: EngineClient,
        options: BenchOptions,
        *,
        texts: Mapping[int, str],
        on_progress: Callable[[BenchProgress], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._texts = texts
        self._options = options
        self._on_progress = on_progress
        self._clock = clock
        self._num_total = len(texts) * len(_MODES) * options.repeats
        self._num_done = 0
        self._request_numbers = count()
        self._params = SamplingParams(seed=options.seed, max_tokens=options.max_tokens, temperature=options.temperature)

    async def warm_up(self, prompts_by_task: Sequence[Sequence[BenchPrompt]]) -> None:
        """Run some prompts of different tasks in both modes, uncounted."""
        self._on_progress(BenchProgress(0, self._num_total, "warm-up"))
        if self._options.num_warmup == 0:
            return
        mixed = (prompt for row in zip_longest(*prompts_by_task) for prompt in row if prompt is not None)
        warmup = list(islice(cycle(mixed), max(self._options.num_warmup, self._options.concurrency)))
        for mode in _MODES:
            await self._run_concurrently(warmup, mode, lambda measurement: None)

    async def run_chunk(
        self, task: str, chunk: Sequence[BenchPrompt], mode: SpeculationMode, *, repeat: int
    ) -> ChunkRun:
        """Run and count each prompt of ``chunk`` once."""
        measurements: list[Measurement] = []

        def on_measured(measurement: Measurement) -> None:
            measurements.append(measurement)
            self._num_done += 1
            self._on_progress(BenchProgress(self._num_done, self._num_total, task))

        started = self._clock()
        await self._run_concurrently(chunk, mode, on_measured)
        seconds = self._clock() - started
        return ChunkRun(task=task, mode=mode, repeat=repeat, seconds=seconds, measurements=tuple(measurements))

    async def _run_concurrently(
        self,
        prompts: Iterable[BenchPrompt],
        mode: SpeculationMode,
        on_measured: Callable[[Measurement], None],
    ) -> None:
        waiting = iter(prompts)

        async def work() -> None:
            for prompt in waiting:  # shared: each worker takes the next prompt when its last one has ended
                on_measured(await self._measure(prompt, mode))

        workers = [asyncio.create_task(work()) for _ in range(self._options.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:  # after a failure no request of ours may live on in the engine
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _measure(self, prompt: BenchPrompt, mode: SpeculationMode) -> Measurement:
        request = GenerateRequest(
            request_id=f"bench-{next(self._request_numbers)}",
            prompt=self._texts[prompt.prompt_id],
            params=self._params,
            speculation=SpeculationParams(mode=mode),
        )
        submitted = self._clock()
        async with aclosing(await self._client.submit(request)) as stream:
            outputs = [output async for output in stream]
        metrics = _checked_metrics(prompt, outputs)
        brought = [output for output in outputs if output.token_ids]
        return Measurement(
            prompt_id=prompt.prompt_id,
            token_ids=tuple(chain.from_iterable(output.token_ids for output in brought)),
            ttft=brought[0].time - submitted,
            token_gaps=tuple(
                gap
                for before, output in pairwise(brought)
                for gap in [(output.time - before.time) / len(output.token_ids)] * len(output.token_ids)
            ),
            metrics=metrics,
        )


def _render(client: EngineClient, text: str) -> str:
    try:
        return client.render_chat([{"role": "user", "content": text}])
    except InvalidRequest:  # a base model without a template continues the bare text
        return text


async def _check_lengths(
    client: EngineClient, prompts: Sequence[BenchPrompt], texts: Mapping[int, str], options: BenchOptions
) -> None:
    limit = client.info.max_model_len
    for prompt in prompts:
        num_tokens = len(await client.encode(texts[prompt.prompt_id]))
        if num_tokens + options.max_tokens > limit:
            raise ConfigError(
                f"max_tokens: prompt {prompt.prompt_id} ({prompt.task}) has {num_tokens} tokens; with "
                f"max_tokens={options.max_tokens} that is more than max_model_len={limit}"
            )


def _schedule(
    selected: Mapping[str, Sequence[BenchPrompt]], options: BenchOptions
) -> Iterator[tuple[str, Sequence[BenchPrompt], SpeculationMode, int]]:
    chunks = [(task, chunk) for task, prompts in selected.items() for chunk in _chunks(prompts, options.concurrency)]
    for repeat in range(options.repeats):
        for index, (task, chunk) in enumerate(chunks):
            # with the repeat in the sum, each chunk itself is begun by both modes in turn
            for mode in _MODES if (index + repeat) % 2 == 0 else _MODES[::-1]:
                yield task, chunk, mode, repeat


def _chunks(prompts: Sequence[BenchPrompt], concurrency: int) -> list[Sequence[BenchPrompt]]:
    """``prompts`` in order, in chunks of nearly equal size: single ones where one request runs at a time."""
    largest = 1 if concurrency == 1 else concurrency * _ROUNDS_PER_CHUNK
    num_chunks = -(-len(prompts) // largest)
    bounds = [len(prompts) * index // num_chunks for index in range(num_chunks + 1)]
    return [prompts[start:end] for start, end in pairwise(bounds)]


def _checked_metrics(prompt: BenchPrompt, outputs: Sequence[RequestOutput]) -> RequestMetrics:
    last = outputs[-1] if outputs else None
    if last is None or last.metrics is None or last.finish_reason not in _WHOLE:
        error = last.error if last is not None and last.error else "its output broke off"
        raise EngineUnavailable(f"prompt {prompt.prompt_id} ({prompt.task}) failed: {error}")
    if last.metrics.num_cached_tokens:
        raise ConfigError(
            f"enable_prefix_caching must be False for a benchmark: prompt {prompt.prompt_id} ({prompt.task}) "
            f"found {last.metrics.num_cached_tokens} of its tokens in the cache"
        )
    return last.metrics
