"""Shows a benchmark result on a terminal. Knows how it is laid out there; refuses to know what the figures mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from engine.bench.context import BenchContext
from engine.bench.result import BenchResult, LoadResult, TaskResult
from engine.bench.target import ServerInfo
from engine.bench.wording import (
    Column,
    columns,
    conditions,
    identity_cell,
    notes,
    speedup_cells,
    step_splits,
    verdict,
)


def print_report(result: BenchResult, context: BenchContext, console: Console) -> None:
    """A table for each load, with the conditions above them and the verdict on exactness below."""
    _print(console, conditions(result, context))
    for load in result.loads:
        if len(result.loads) > 1:
            _print(console, ["", str(load.load)])
        console.print(_table(load, what="text" if isinstance(result.info, ServerInfo) else "tokens"))
        _print(console, [*_legend(load), *step_splits(load)])
    _print(console, [*notes(result), verdict(result)])


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(load: LoadResult, *, what: str) -> Table:
    modes = list(load.overall.modes)
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    shown = columns(load, is_brief=True)
    table.add_column("task", no_wrap=True)
    headings = [column.heading for column in shown]
    for heading in [*headings, *(["speed-up"] if len(modes) > 1 else []), f"same\n{what}"]:
        table.add_column(heading, justify="right", overflow="fold")  # a figure may break, never lose a digit
    for row in load.tasks:
        table.add_row(*_cells(row, shown))
    table.add_section()
    table.add_row(*_cells(load.overall, shown), style="bold")
    return table


def _legend(load: LoadResult) -> Iterator[str]:
    modes = list(load.overall.modes)
    if len(modes) > 1:
        yield f"Each task: {' above, '.join(modes)} below, under the speed-up its range."
    yield "TTFT: time to first token, ITL: inter-token latency, both with their percentile."


def _cells(row: TaskResult, shown: Sequence[Column]) -> list[str]:
    """One cell a column, with a line for each mode."""
    others = list(row.modes)[1:]
    return [
        "\n".join([row.task, *(f"  {mode}" for mode in others)]),
        *("\n".join(column.cell(mode) for mode in row.modes.values()) for column in shown),
        *(["\n".join(speedup_cells(row))] if others else []),
        identity_cell(row),
    ]
