"""How conditions, figures and verdicts are worded, the same in every report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.bench.context import BenchContext
from engine.bench.measurement import PHASES, BenchMode
from engine.bench.result import BenchResult, LoadResult, ModeResult, Percentiles, TaskResult
from engine.bench.target import ServerInfo


class Column(NamedTuple):
    """One figure of a mode.

    Attributes:
        heading: its name and its unit, on two lines.
        cell: the figure as text, a dash where there is none.
        is_brief: whether it belongs into a table for a terminal.
        is_told: whether the measured side tells it at all.
    """

    heading: str
    cell: Callable[[ModeResult], str]
    is_brief: bool = True
    is_told: Callable[[ModeResult], bool] = lambda mode: True


def conditions(result: BenchResult, context: BenchContext) -> list[str]:
    """What was measured, on what, and how; a line each."""
    options = result.options
    sampling = "greedy" if options.temperature == 0 else f"T={options.temperature:g} seed={options.seed}"
    if options.request_rate is None:
        loads = f"concurrency {' and '.join(str(load.concurrency) for load in options.loads)}"
    else:
        loads = f"{options.loads[0]}, Poisson with seed {options.seed}"
    return [
        *_subject(result, context),
        f"{sampling}, max_tokens {options.max_tokens}{' (ignore_eos)' if options.ignore_eos else ''}, {loads}, "
        f"repeats {options.repeats}, chat template {'yes' if result.uses_chat_template else 'no'}",
    ]


def verdict(result: BenchResult) -> str:
    """One sentence on whether the outputs were the same."""
    what = "text" if isinstance(result.info, ServerInfo) else "tokens"
    differing = result.differing_prompt_ids
    overall = [load.overall for load in result.loads]
    is_promised = all(BenchMode.PLAIN in row.modes for row in overall)
    if len(overall) == 1 and overall[0].num_identical is None:
        return f"Each of the {result.num_prompts} prompts ran once: nothing to compare."
    if differing:
        return (
            f"{'NOT EXACT: ' if is_promised else ''}{len(differing)} of {result.num_prompts} prompts gave other {what} "
            f"in some run: {', '.join(map(str, differing))}"
        )
    how = "with and without speculation" if is_promised else "in every run"
    if is_promised and len(overall) > 1:
        how += " and at every load"
    return f"All {result.num_prompts} prompts gave the same {what} {how}."


def notes(result: BenchResult) -> list[str]:
    """What a reader must know to take the figures for what they are; a line each."""
    modes = [mode for load in result.loads for mode in load.overall.modes.values()]
    num_requests = sum(mode.num_requests for mode in modes)
    without_usage = sum(mode.num_without_usage for mode in modes)
    shared = sum(mode.num_with_shared_gaps for mode in modes)
    cached = sum(mode.num_cached_tokens for mode in modes)
    single = sum(mode.num_single_token for mode in modes)
    lines = [*_unreached(result)]
    if single and result.options.max_tokens > 1:
        lines.append(f"{single} of {num_requests} answers ended at once, with at most one token: see --ignore-eos.")
    if without_usage:
        lines.append(f"No usage in {without_usage} of {num_requests} answers: there a chunk is counted as one token.")
    if shared:
        lines.append(
            f"ITL is estimated in {shared} of {num_requests} answers: "
            "the tokens of a chunk are guessed from the length of its text."
        )
    if cached:
        lines.append(f"{cached} prompt tokens came from the server's prefix cache: TTFT is lower than for new prompts.")
    if result.peak_rss_mib is not None:
        lines.append(f"Peak memory of the process (RSS): {result.peak_rss_mib:,.0f} MiB.")
    return lines


def step_splits(load: LoadResult) -> Iterator[str]:
    """Where the time of steps went over all requests, a line for each mode that tells it."""
    for name, mode in load.overall.modes.items():
        if (split := mode.step_split) is not None:
            shares = ", ".join(f"{phase} {split.shares[phase] * 100:.1f}" for phase in PHASES)
            yield f"Step, {name}: {split.seconds_per_step * 1e3:.1f} ms (%: {shares})"


def columns(load: LoadResult, *, is_brief: bool) -> list[Column]:
    """The figures that ``load`` has; ``is_brief`` leaves out those that a terminal has no room for."""
    modes = load.overall.modes.values()
    return [
        column
        for column in _COLUMNS
        if (column.is_brief or not is_brief) and any(column.is_told(mode) for mode in modes)
    ]


def speedup_cells(row: TaskResult) -> tuple[str, str]:
    """The speed-up, and its range over the repeats if there are several."""
    if (speedup := row.speedup) is None:
        return "-", ""
    spread = f"{speedup.lowest:.2f}-{speedup.highest:.2f}" if len(speedup.per_repeat) > 1 else ""
    return f"{speedup.median:.2f}", spread


def identity_cell(row: TaskResult) -> str:
    """Prompts with the same output in every run, of all."""
    return "-" if row.num_identical is None else f"{row.num_identical}/{row.num_prompts}"


def _unreached(result: BenchResult) -> Iterator[str]:
    """Tasks run one after the other, so one with few prompts does not fill a high concurrency."""
    for load in result.loads:
        fewest = min(row.num_prompts for row in load.tasks)
        if load.load.concurrency is not None and fewest < load.load.concurrency:
            yield f"{str(load.load).capitalize()} is not reached in tasks of fewer prompts, at least {fewest}."


def _subject(result: BenchResult, context: BenchContext) -> list[str]:
    info = result.info
    if isinstance(info, ServerInfo):
        kind = "a Draftahead" if info.is_draftahead else "as served, speculation unknown"
        return [
            f"{info.model} at {info.url} ({kind}), endpoint {info.endpoint}",
            f"measured from {context.cpu}, cores {context.num_cores}",
        ]
    hardware = f"{context.accelerator}, host {context.cpu}" if context.accelerator else context.cpu
    return [
        f"{info.name} ({info.dtype}), drafter {info.drafter}, up to {info.num_speculative_tokens} speculative tokens",
        f"{hardware}, cores {context.num_cores}, threads {info.num_threads}, torch {context.versions['torch']}",
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _time(name: str, times: Callable[[ModeResult], Percentiles | None], percent: int) -> Column:
    return Column(
        f"{name}{percent}\nms",
        lambda mode: _milliseconds(getattr(times(mode), f"p{percent}", None)),
        is_brief=percent != 90,
    )


# Without a draft the two figures of acceptance would be made up.
_COLUMNS = (
    Column("tokens\n/s", lambda mode: f"{mode.tokens_per_second:.1f}"),
    *(_time("TTFT", lambda mode: mode.ttft, percent) for percent in (50, 90, 99)),
    *(_time("ITL", lambda mode: mode.itl, percent) for percent in (50, 90, 99)),
    Column(
        "tokens\n/request",
        lambda mode: f"{mode.num_output_tokens / mode.num_requests:.1f}",
        is_brief=False,
    ),
    Column(
        "tokens\n/step",
        lambda mode: "-" if mode.tokens_per_step is None else f"{mode.tokens_per_step:.2f}",
        is_told=lambda mode: mode.tokens_per_step is not None,
    ),
    Column(
        "accept\nlength",
        lambda mode: f"{mode.mean_acceptance_length:.2f}" if mode.num_drafts else "-",
        is_told=lambda mode: mode.num_drafts is not None,
    ),
    Column(
        "accept\n%",
        lambda mode: f"{(mode.acceptance_rate or 0) * 100:.0f}" if mode.num_draft_tokens else "-",
        is_told=lambda mode: mode.num_draft_tokens is not None,
    ),
)
