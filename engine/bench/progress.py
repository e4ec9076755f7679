"""Shows how far a benchmark is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.bench.run import BenchProgress


@contextmanager
def show_progress(console: Console) -> Iterator[Callable[[BenchProgress], None]]:
    """A progress bar on ``console``, if that is a terminal; gives the callback that ``run_bench`` wants."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # drawing takes time from the cores that are being measured
    progress = Progress(
        *columns, console=console, transient=True, refresh_per_second=1, disable=not console.is_terminal
    )
    with progress:
        bar = progress.add_task("", total=None)

        def on_progress(state: BenchProgress) -> None:
            progress.update(bar, completed=state.num_done, total=state.num_total, description=state.task)

        yield on_progress
