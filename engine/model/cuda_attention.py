"""Paged attention on CUDA through torch's variable-length flash attention.

One split of the keys, so that a sequence's result does not depend on who else is in the batch.
"""

from __future__ import annotations

import inspect
import logging

import torch

from engine.model.attention import AttentionOptions, AttentionShape
from engine.model.flat_batch import NULL_BATCH
from engine.model.forward_batch import ForwardBatch, send

try:
    from torch.nn.attention import varlen
except ImportError:  # an older torch
    _HAS_VARLEN = False
else:
    _HAS_VARLEN = "block_table" in inspect.signature(varlen.varlen_attn).parameters


logger = logging.getLogger(__name__)


class VarlenAttention:
    """See the module. Made by ``open_varlen_attention``."""

    name = "varlen"
    is_capturable = True

    def plan(self, batch: ForwardBatch, block_size: int) -> tuple[ForwardBatch, int]:
        return batch, block_size

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: tuple[ForwardBatch, int],
        options: AttentionOptions,
    ) -> torch.Tensor:
        assert options.softcap is None
        batch, block_size = plan
        left = -1 if options.window is None else options.window - 1
        paged = (-1, block_size, *keys.shape[1:])
        output = varlen.varlen_attn(
            query.contiguous(),
            keys.view(paged),
            values.view(paged),
            batch.cumulative_rows,
            None,
            batch.max_rows,
            batch.max_context,
            scale=options.scale,
            window_size=(left, 0),
            enable_gqa=query.shape[1] != keys.shape[1],
            seqused_k=batch.context_lengths,
            block_table=batch.block_tables,
            num_splits=1,
        )
        assert isinstance(output, torch.Tensor)
        return output


def open_varlen_attention(shape: AttentionShape, device: torch.device) -> VarlenAttention | None:
    """The backend, or None, with one line in the log that says why, where it does not serve this model."""
    reason = _reason_against(shape, device)
    if reason is None:
        return VarlenAttention()
    logger.warning("attention runs in plain torch, which is slower, as varlen_attn does not serve: %s", reason)
    return None


def _reason_against(shape: AttentionShape, device: torch.device) -> str | None:
    if not _HAS_VARLEN:
        return "this torch has no varlen_attn with a block table"
    if shape.softcap is not None:
        return "it knows no soft-capping"
    try:
        is_finite = bool(_try_out(shape, device).isfinite().all())
    # Which types, head dimensions, block sizes and devices it takes is its own affair, and differs between releases.
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        return str(error).strip().split("\n")[0]
    return None if is_finite else "it gave numbers that are not finite"


def _try_out(shape: AttentionShape, device: torch.device) -> torch.Tensor:
    """What it makes of zeros."""
    backend = VarlenAttention()
    query = torch.zeros(1, shape.num_heads, shape.head_dim, dtype=shape.dtype, device=device)
    keys, values = torch.zeros(
        2, shape.block_size, shape.num_kv_heads, shape.head_dim, dtype=shape.dtype, device=device
    )
    plan = backend.plan(send(NULL_BATCH, device), shape.block_size)
    return backend.attend(query, keys, values, plan, AttentionOptions(1.0))
