"""The figures of a benchmark. Plain data: knows what each figure means, refuses to know how it comes about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.bench.load import Load
from engine.bench.measurement import BenchMode
from engine.bench.options import BenchOptions
from engine.bench.target import ServerInfo
from engine.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of times in seconds, linear between neighbours."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """Where the time of the engine's steps goes.

    Attributes:
        num_steps: steps with a forward of the model.
        seconds_per_step: mean of the phases' sum.
        shares: for each phase its share of all steps' time, 0..1.
    """

    num_steps: int
    seconds_per_step: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """The figures of one mode over all repeats. Times are seconds; None where a figure was not told.

    Attributes:
        seconds: wall time, summed over the chunks.
        tokens_per_second: output tokens of all requests in flight together.
        ttft: time to first token.
        itl: inter-token latency; None too where no token had a gap.
        tokens_per_step: output tokens / steps that brought them to their request. Of the steps that read a prompt
            only the last brings a token, so the others are not in it.
        mean_acceptance_length, acceptance_rate: as in ``SpeculationStats``.
        step_split: None too where no step ran.
        num_cached_tokens: prompt tokens found in a prefix cache, as far as is told.
        num_single_token: requests that ended with at most one token, and so have no inter-token latency.
        num_without_usage: requests whose tokens are the number of chunks.
        num_with_shared_gaps: requests whose tokens were shared out over the chunks by the length of the text.
    """

    num_requests: int
    num_output_tokens: int
    seconds: float
    tokens_per_second: float
    ttft: Percentiles
    itl: Percentiles | None
    tokens_per_step: float | None
    mean_acceptance_length: float | None
    acceptance_rate: float | None
    num_drafts: int | None
    num_draft_tokens: int | None
    num_accepted_tokens: int | None
    step_split: StepSplit | None
    num_cached_tokens: int
    num_single_token: int
    num_without_usage: int
    num_with_shared_gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Tokens per second with speculation / without it, each repeat compared with itself."""

    per_repeat: tuple[float, ...]
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One row: the same prompts in every mode.

    Attributes:
        modes: in the order in which they are shown; ``PLAIN`` is the matched run of ``SPECULATIVE``.
        speedup: None where there is nothing to compare.
        num_identical: prompts whose output was the same in every run, in every mode; None if each ran only once.
        differing_prompt_ids: the others.
    """

    task: str
    num_prompts: int
    modes: Mapping[BenchMode, ModeResult]
    speedup: Speedup | None
    num_identical: int | None
    differing_prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Everything measured at one load.

    Attributes:
        tasks: in the order of ``TASKS``.
        overall: all requests together, so that long answers weigh more.
        itl_percentiles: for each mode the 1st to the 99th of the inter-token latency over all requests, in seconds;
            empty where no token had a gap.
    """

    load: Load
    tasks: tuple[TaskResult, ...]
    overall: TaskResult
    itl_percentiles: Mapping[BenchMode, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A whole benchmark run.

    Attributes:
        info: what was measured.
        uses_chat_template: False if at least one prompt went to the model as bare text.
        differing_prompt_ids: prompts whose output was not the same in every run, whatever the mode and the load.
        peak_rss_mib: most memory that the process of the engine held at once; None if not told.
    """

    options: BenchOptions
    info: ModelInfo | ServerInfo
    uses_chat_template: bool
    loads: tuple[LoadResult, ...]
    num_prompts: int
    differing_prompt_ids: tuple[int, ...]
    peak_rss_mib: float | None
