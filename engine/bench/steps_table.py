"""Shows what steps cost beside the time that moving their bytes takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.table import Table

from engine.bench.steps import StepCost
from engine.types import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFloor:
    """The time below which no step can be, for it reads the weights and its contexts once.

    Attributes:
        weight_bytes: of weights that a step cannot do without.
        bytes_per_token: of keys and values of one token.
        bandwidth: bytes a second.
    """

    weight_bytes: int
    bytes_per_token: int
    bandwidth: float

    def seconds(self, cost: StepCost) -> float:
        return (self.weight_bytes + cost.num_context_tokens * self.bytes_per_token) / self.bandwidth


def steps_table(costs: Iterable[StepCost], info: ModelInfo, floor: MemoryFloor) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{info.name}, {info.device}, {info.dtype}"
        + ("" if info.quantization == "none" else f", {info.quantization} weights"),
        caption=f"Floor: {floor.weight_bytes / 2**20:,.0f} MiB of weights, and {floor.bytes_per_token / 2**10:,.0f} "
        f"KiB for each token of context, at {floor.bandwidth / 1e9:.1f} GB/s. Against 1: against one row.",
        caption_justify="left",
    )
    for heading in ("rows", "as", "step ms", "floor ms", "against 1", "against floor", "not forward %"):
        table.add_column(heading, justify="right")
    single: float | None = None
    for cost in costs:
        single = single or cost.seconds
        least = floor.seconds(cost)
        table.add_row(
            str(cost.num_rows),
            "a draft" if cost.is_verifying else "streams",
            f"{cost.seconds * 1e3:.2f}",
            f"{least * 1e3:.2f}",
            f"{cost.seconds / single:.2f}",
            f"{cost.seconds / least:.2f}",
            _share_outside(cost, info),
        )
    return table


def _share_outside(cost: StepCost, info: ModelInfo) -> str:
    """Percent of the step beside its forward; unknown on CUDA, where the host runs ahead of the forward."""
    if info.device.startswith("cuda"):
        return "-"
    return f"{(1 - cost.forward_seconds / cost.seconds) * 100:.0f}"
