"""A stand-in for the flash attention of a GPU, and one for its graphs, so that all around them runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from engine.model.cuda_attention import VarlenAttention, varlen
from engine.model.graph_runner import GraphRunner, capture_forwards
from engine.model.row_buckets import RowBucket
from engine.model.runner import ModelRunner


@contextmanager
def varlen_on_cpu() -> Iterator[VarlenAttention]:
    """The CUDA backend over an attention that computes row by row, and holds every call to what the kernel demands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "varlen_attn", _attend)
        yield VarlenAttention()


class FakeCapture:
    """Does the work again at every replay; what the host knew at the capture stays as it was, as in a real graph.

    Attributes:
        num_captured: how often it was called.
        num_replayed: how often what it gave was.
        fails_at: the capture that fails, counted from 0.
    """

    def __init__(self, error: Exception | None = None, fails_at: int = 0) -> None:
        self.num_captured = self.num_replayed = 0
        self._error = error
        self._fails_at = fails_at

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        if self._error is not None and self.num_captured == self._fails_at:
            raise self._error
        work()
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            work()

        return replay


def captured(runner: ModelRunner, buckets: list[RowBucket], capture: FakeCapture) -> GraphRunner:
    graphs = capture_forwards(runner, buckets, capture, lambda stage, fraction: None)
    assert graphs is not None
    return graphs


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cumulative_rows: torch.Tensor,
    cumulative_keys: None,
    max_rows: int,
    max_context: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:
    assert num_splits == 1, "results would depend on the batch"
    assert {cumulative_rows.dtype, seqused_k.dtype, block_table.dtype} == {torch.int32}
    assert cumulative_rows.is_contiguous()
    assert seqused_k.is_contiguous()
    assert query.is_contiguous()
    assert enable_gqa == (query.shape[1] != keys.shape[2])
    assert 0 <= int(block_table.min()) <= int(block_table.max()) < len(keys)
    ends = cumulative_rows.tolist()
    contexts = seqused_k.tolist()
    assert ends[0] == 0
    assert ends[-1] == len(query), "rows of no sequence would be garbage"
    assert block_table.shape[0] == len(contexts) == len(ends) - 1
    output = torch.full_like(query, torch.nan)
    for table, first, end, context in zip(block_table.long(), ends, ends[1:], contexts, strict=False):
        assert 0 <= end - first <= max_rows
        assert end - first <= context <= min(max_context, len(table) * keys.shape[1])
        own_keys, own_values = (pool[table].flatten(0, 1) for pool in (keys, values))
        for row in range(first, end):
            position = context - end + row
            start = 0 if window_size[0] < 0 else max(0, position - window_size[0])
            output[row] = _attend_one(
                query[row], own_keys[start : position + 1], own_values[start : position + 1], scale
            )
    return output


def _attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One row; its sums have a shape that depends on nothing but its position."""
    group = query.shape[0] // keys.shape[1]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (keys, values))
    weights = ((query.float() * keys).sum(-1) * scale).softmax(0)
    return (weights.unsqueeze(-1) * values).sum(0).to(query.dtype)
