"""What was measured, and the arithmetic from single requests to one row a task.

Knows how each figure is defined. Refuses to know how requests are run and how rows are shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from engine.bench.options import BenchOptions
from engine.params import SpeculationMode
from engine.types import ModelInfo, RequestMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One counted request.

    Attributes:
        token_ids: its output.
        ttft: seconds from handing it to the engine to the end of the step with its first token.
        token_gaps: for each later token, in seconds, the time since the step before divided by the number of
            tokens that came in its step.
        metrics: the engine's own account.
    """

    prompt_id: int
    token_ids: tuple[int, ...]
    ttft: float
    token_gaps: tuple[float, ...]
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRun:
    """A chunk of prompts of one task, run once in one mode; ``seconds`` from first submission to last end."""

    task: str
    mode: SpeculationMode
    repeat: int
    seconds: float
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """The figures of one mode over all repeats. Times are seconds; None where no token had a gap.

    Attributes:
        seconds: wall time, summed over the chunks.
        tokens_per_second: output tokens of all requests in flight together.
        tokens_per_step: output tokens / steps of the requests that they belong to, prefill steps included.
    """

    num_requests: int
    num_output_tokens: int
    seconds: float
    tokens_per_second: float
    ttft_p50: float
    itl_p50: float | None
    itl_p90: float | None
    itl_p99: float | None
    tokens_per_step: float
    mean_acceptance_length: float
    acceptance_rate: float
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Tokens per second with speculation / without it, each repeat compared with itself."""

    per_repeat: tuple[float, ...]
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One row: both modes on the same prompts.

    Attributes:
        plain: without speculation, the matched run.
        speculative: with the engine's own choice of drafts.
        num_identical: prompts whose output was the same in every run, in both modes.
        differing_prompt_ids: the others.
    """

    task: str
    num_prompts: int
    plain: ModeResult
    speculative: ModeResult
    speedup: Speedup
    num_identical: int
    differing_prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A whole benchmark run.

    Attributes:
        uses_chat_template: False if at least one prompt went to the model as bare text.
        tasks: in the order of ``TASKS``.
        overall: all requests together, so that long answers weigh more.
    """

    options: BenchOptions
    info: ModelInfo
    uses_chat_template: bool
    tasks: tuple[TaskResult, ...]
    overall: TaskResult


def summarise(task: str, runs: Sequence[ChunkRun]) -> TaskResult:
    """Add up runs that hold the same prompts in both modes; ``task`` is the name of the row."""
    plain = [run for run in runs if run.mode is SpeculationMode.OFF]
    speculative = [run for run in runs if run.mode is not SpeculationMode.OFF]
    outputs: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for run in runs:
        for measurement in run.measurements:
            outputs[measurement.prompt_id].add(measurement.token_ids)
    differing = tuple(prompt_id for prompt_id, seen in outputs.items() if len(seen) > 1)
    return TaskResult(
        task=task,
        num_prompts=len(outputs),
        plain=_mode_result(plain),
        speculative=_mode_result(speculative),
        speedup=_speedup(plain, speculative),
        num_identical=len(outputs) - len(differing),
        differing_prompt_ids=differing,
    )


def _mode_result(runs: Sequence[ChunkRun]) -> ModeResult:
    measurements = [measurement for run in runs for measurement in run.measurements]
    drafts = [measurement.metrics.speculation for measurement in measurements]
    num_drafts = sum(stats.num_drafts for stats in drafts)
    num_draft_tokens = sum(stats.num_draft_tokens for stats in drafts)
    num_accepted_tokens = sum(stats.num_accepted_tokens for stats in drafts)
    num_output_tokens = _num_output_tokens(runs)
    itl_p50, itl_p90, itl_p99 = _percentiles([gap for measurement in measurements for gap in measurement.token_gaps])
    return ModeResult(
        num_requests=len(measurements),
        num_output_tokens=num_output_tokens,
        seconds=sum(run.seconds for run in runs),
        tokens_per_second=_tokens_per_second(runs),
        ttft_p50=median(measurement.ttft for measurement in measurements),
        itl_p50=itl_p50,
        itl_p90=itl_p90,
        itl_p99=itl_p99,
        tokens_per_step=num_output_tokens / sum(measurement.metrics.num_steps for measurement in measurements),
        mean_acceptance_length=1 + num_accepted_tokens / num_drafts if num_drafts else 1.0,
        acceptance_rate=num_accepted_tokens / num_draft_tokens if num_draft_tokens else 0.0,
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
    )


def _speedup(plain: Sequence[ChunkRun], speculative: Sequence[ChunkRun]) -> Speedup:
    ratios = tuple(
        _tokens_per_second([run for run in speculative if run.repeat == repeat])
        / _tokens_per_second([run for run in plain if run.repeat == repeat])
        for repeat in sorted({run.repeat for run in plain})
    )
    return Speedup(per_repeat=ratios, median=median(ratios), lowest=min(ratios), highest=max(ratios))


def _tokens_per_second(runs: Sequence[ChunkRun]) -> float:
    return _num_output_tokens(runs) / sum(run.seconds for run in runs)


def _num_output_tokens(runs: Sequence[ChunkRun]) -> int:
    return sum(len(measurement.token_ids) for run in runs for measurement in run.measurements)


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The 50th, 90th and 99th, linear between neighbours."""
    if not values:
        return None, None, None
    if len(values) == 1:  # ``quantiles`` takes two or more before Python 3.13
        return values[0], values[0], values[0]
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[89], cuts[98]
