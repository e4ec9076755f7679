"""Shows what steps cost beside the time that reading the weights takes."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from engine.bench.steps import StepCost
from engine.types import ModelInfo


def steps_table(costs: Iterable[StepCost], info: ModelInfo, *, num_bytes_read: int, bandwidth: float) -> Table:
    """
    Args:
        num_bytes_read: bytes of weights that a step cannot do without.
        bandwidth: bytes a second.
    """
    floor = num_bytes_read / bandwidth
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{info.name}, {info.device}, {info.dtype}"
        + ("" if info.quantization == "none" else f", {info.quantization} weights"),
        caption=f"Floor: {num_bytes_read / 2**20:,.0f} MiB of weights at {bandwidth / 1e9:.1f} GB/s "
        f"take {floor * 1e3:.2f} ms. Against 1: against one row.",
        caption_justify="left",
    )
    for heading in ("rows", "as", "step ms", "against 1", "against floor", "not forward %"):
        table.add_column(heading, justify="right")
    single: float | None = None
    for cost in costs:
        single = single or cost.seconds
        table.add_row(
            str(cost.num_rows),
            "a draft" if cost.is_verifying else "streams",
            f"{cost.seconds * 1e3:.2f}",
            f"{cost.seconds / single:.2f}",
            f"{cost.seconds / floor:.2f}",
            f"{(1 - cost.forward_seconds / cost.seconds) * 100:.0f}",
        )
    return table
