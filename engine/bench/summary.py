"""The arithmetic from single requests to one row a task.

Knows how each figure is defined. Refuses to know how requests are run and how rows are shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from engine.bench.load import Load
from engine.bench.measurement import PHASES, BenchMode, ChunkRun, DraftCounts, Measurement, StepTimes
from engine.bench.result import LoadResult, ModeResult, Percentiles, Speedup, StepSplit, TaskResult


def summarise(task: str, runs: Sequence[ChunkRun]) -> TaskResult:
    """Add up runs that hold the same prompts in every mode; ``task`` is the name of the row."""
    by_mode = _by_mode(runs)
    num_prompts = len({measurement.prompt_id for run in runs for measurement in run.measurements})
    differing = differing_prompts(runs)
    ran_once = sum(len(run.measurements) for run in runs) == num_prompts
    return TaskResult(
        task=task,
        num_prompts=num_prompts,
        modes={mode: _mode_result(of_mode) for mode, of_mode in by_mode.items()},
        speedup=_speedup(by_mode.get(BenchMode.PLAIN, []), by_mode.get(BenchMode.SPECULATIVE, [])),
        num_identical=None if ran_once else num_prompts - len(differing),
        differing_prompt_ids=differing,
    )


def summarise_load(load: Load, tasks: tuple[TaskResult, ...], runs: Sequence[ChunkRun]) -> LoadResult:
    """What was measured at ``load``: its rows, and all of its ``runs`` together."""
    return LoadResult(
        load=load,
        tasks=tasks,
        overall=summarise("overall", runs),
        itl_percentiles={mode: _percentiles(_gaps(of_mode)) for mode, of_mode in _by_mode(runs).items()},
    )


def differing_prompts(runs: Iterable[ChunkRun]) -> tuple[int, ...]:
    """The prompts whose output was not the same in all of ``runs``."""
    outputs: dict[int, set[tuple[int, ...] | str]] = defaultdict(set)
    for run in runs:
        for measurement in run.measurements:
            outputs[measurement.prompt_id].add(measurement.output)
    return tuple(prompt_id for prompt_id, seen in outputs.items() if len(seen) > 1)


def _by_mode(runs: Sequence[ChunkRun]) -> dict[BenchMode, list[ChunkRun]]:
    """In the order of ``BenchMode``."""
    met = {run.mode for run in runs}
    return {mode: [run for run in runs if run.mode is mode] for mode in BenchMode if mode in met}


def _mode_result(runs: Sequence[ChunkRun]) -> ModeResult:
    measurements = [measurement for run in runs for measurement in run.measurements]
    num_output_tokens = _num_output_tokens(runs)
    drafts = _sum_drafts(measurements)
    acceptance_length, acceptance_rate = _acceptance(drafts)
    steps = [measurement.num_steps for measurement in measurements if measurement.num_steps is not None]
    gaps = _gaps(runs)
    return ModeResult(
        num_requests=len(measurements),
        num_output_tokens=num_output_tokens,
        seconds=sum(run.seconds for run in runs),
        tokens_per_second=_tokens_per_second(runs),
        ttft=_three(_percentiles([measurement.ttft for measurement in measurements])),
        itl=_three(_percentiles(gaps)) if gaps else None,
        tokens_per_step=num_output_tokens / sum(steps) if len(steps) == len(measurements) else None,
        mean_acceptance_length=acceptance_length,
        acceptance_rate=acceptance_rate,
        num_drafts=drafts.num_drafts if drafts else None,
        num_draft_tokens=drafts.num_draft_tokens if drafts else None,
        num_accepted_tokens=drafts.num_accepted_tokens if drafts else None,
        step_split=_step_split([run.step_times for run in runs if run.step_times is not None]),
        num_cached_tokens=sum(measurement.num_cached_tokens for measurement in measurements),
        num_single_token=sum(measurement.num_tokens <= 1 for measurement in measurements),
        num_without_usage=sum(not measurement.has_usage for measurement in measurements),
        num_with_shared_gaps=sum(measurement.has_shared_gaps for measurement in measurements),
    )


def _sum_drafts(measurements: Sequence[Measurement]) -> DraftCounts | None:
    counts = [measurement.drafts for measurement in measurements if measurement.drafts is not None]
    if len(counts) < len(measurements):
        return None
    return DraftCounts(*(sum(column) for column in zip(*counts, strict=True)))


def _acceptance(drafts: DraftCounts | None) -> tuple[float | None, float | None]:
    """Length and rate, with the values of ``SpeculationStats`` where nothing was drafted."""
    if drafts is None:
        return None, None
    length = 1 + drafts.num_accepted_tokens / drafts.num_drafts if drafts.num_drafts else 1.0
    rate = drafts.num_accepted_tokens / drafts.num_draft_tokens if drafts.num_draft_tokens else 0.0
    return length, rate


def _step_split(times: Sequence[StepTimes]) -> StepSplit | None:
    num_steps = sum(entry.num_steps for entry in times)
    by_phase = [sum(column) for column in zip(*(entry.seconds for entry in times), strict=True)]
    total = sum(by_phase)
    if num_steps == 0 or total <= 0:
        return None
    return StepSplit(
        num_steps=num_steps,
        seconds_per_step=total / num_steps,
        shares={phase: seconds / total for phase, seconds in zip(PHASES, by_phase, strict=True)},
    )


def _speedup(plain: Sequence[ChunkRun], speculative: Sequence[ChunkRun]) -> Speedup | None:
    repeats = sorted({run.repeat for run in plain})
    rates = [
        tuple(_tokens_per_second([run for run in of_mode if run.repeat == repeat]) for of_mode in (plain, speculative))
        for repeat in repeats
    ]
    if not rates or not speculative or any(before == 0 for before, _ in rates):
        return None
    ratios = tuple(after / before for before, after in rates)
    return Speedup(per_repeat=ratios, median=median(ratios), lowest=min(ratios), highest=max(ratios))


def _tokens_per_second(runs: Sequence[ChunkRun]) -> float:
    return _num_output_tokens(runs) / sum(run.seconds for run in runs) if runs else 0.0


def _num_output_tokens(runs: Sequence[ChunkRun]) -> int:
    return sum(measurement.num_tokens for run in runs for measurement in run.measurements)


def _gaps(runs: Sequence[ChunkRun]) -> list[float]:
    return [gap for run in runs for measurement in run.measurements for gap in measurement.token_gaps]


def _percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """The 1st to the 99th, linear between neighbours; empty without a value."""
    if len(values) < 2:  # ``quantiles`` takes two or more before Python 3.13
        return tuple(values) * 99
    return tuple(quantiles(values, n=100, method="inclusive"))


def _three(percentiles: Sequence[float]) -> Percentiles:
    return Percentiles(p50=percentiles[49], p90=percentiles[89], p99=percentiles[98])
