"""Paged attention on CUDA through torch's variable-length flash attention.

One split of the keys, so that a sequence's result does not depend on who else is in the batch.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import accumulate

import torch

from engine.errors import ConfigError
from engine.model.attention import AttentionOptions
from engine.model.forward_batch import ForwardBatch

try:
    from torch.nn.attention import varlen
except ImportError:  # an older torch
    _HAS_VARLEN = False
else:
    _HAS_VARLEN = "block_table" in inspect.signature(varlen.varlen_attn).parameters


def has_paged_varlen() -> bool:
    """Whether this torch has ``varlen_attn`` with a block table."""
    return _HAS_VARLEN


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """
    Attributes:
        cumulative_rows: int32 ``[num_sequences + 1]``.
        context_lengths: int32 ``[num_sequences]``.
        block_tables: int32 ``[num_sequences, longest table]``.
    """

    cumulative_rows: torch.Tensor
    context_lengths: torch.Tensor
    block_tables: torch.Tensor
    block_size: int
    max_rows: int
    max_context: int


class VarlenAttention:
    """See the module."""

    def plan(self, batch: ForwardBatch, block_size: int) -> VarlenPlan:
        device = batch.positions.device
        return VarlenPlan(
            cumulative_rows=torch.tensor([0, *accumulate(batch.row_counts)], dtype=torch.int32, device=device),
            context_lengths=torch.tensor(batch.context_lengths, dtype=torch.int32, device=device),
            block_tables=batch.block_tables,
            block_size=block_size,
            max_rows=max(batch.row_counts),
            max_context=max(batch.context_lengths),
        )

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: VarlenPlan,
        options: AttentionOptions,
    ) -> torch.Tensor:
        if options.softcap is not None:
            raise ConfigError("attention soft-capping is not supported on CUDA")
        left = -1 if options.window is None else options.window - 1
        paged = (-1, plan.block_size, *keys.shape[1:])
        output = varlen.varlen_attn(
            query.contiguous(),
            keys.view(paged),
            values.view(paged),
            plan.cumulative_rows,
            None,
            plan.max_rows,
            plan.max_context,
            scale=options.scale,
            window_size=(left, 0),
            enable_gqa=query.shape[1] != keys.shape[1],
            seqused_k=plan.context_lengths,
            block_table=plan.block_tables,
            num_splits=1,
        )
        assert isinstance(output, torch.Tensor)
        return output
