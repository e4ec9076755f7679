"""Shows simulated runs, those of as many streams together, each against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import groupby

from rich import box
from rich.table import Table

from engine.bench.simulate import SimulatedRun


def simulation_table(runs: Seq[SimulatedRun], *, machine: str) -> Table:
    """
    Args:
        runs: for each number of streams one after the other, plain decoding first.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Simulated on {machine}",
        caption="Simulated time: the real scheduler and controller, recorded drafts, and a table of step times.",
        caption_justify="left",
    )
    for heading in ("streams", "lengths", "tokens/s", "against plain", "drafted", "accept %", "gap50 ms", "gap99 ms"):
        table.add_column(heading, justify="left" if heading == "lengths" else "right")
    for _, group in groupby(runs, key=lambda run: run.num_streams):
        of_streams = list(group)
        plain = of_streams[0]
        for run in of_streams:
            table.add_row(
                str(run.num_streams),
                run.policy,
                f"{run.tokens_per_second:,.0f}",
                f"{run.tokens_per_second / plain.tokens_per_second:.2f}",
                f"{run.mean_draft_length:.2f}",
                f"{run.acceptance_rate * 100:.0f}",
                f"{run.gap_p50 * 1e3:.1f}",
                f"{run.gap_p99 * 1e3:.1f}",
            )
        table.add_section()
    return table
