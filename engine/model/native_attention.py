"""Paged attention on the CPU through our C++: no copy of the context, no Python per row.

As exact as the tiled reference: each row's sums have a fixed order that nothing else in the batch can change.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from engine.model.attention import AttentionOptions, AttentionShape
from engine.model.forward_batch import ForwardBatch

# Query rows of one sequence that share a pass over its keys; more would leave a thread idle sooner.
_CHUNK_ROWS = 32
# As in the C++, which is compiled for these.
_HEAD_DIMS = frozenset({16, 32, 64, 80, 96, 128, 256})


class _Shape(ctypes.Structure):
    """Mirrors ``Shape`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size", "table_width")),
        *((name, ctypes.c_int64) for name in ("query_row_stride", "query_head_stride", "window")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


@dataclass(frozen=True, slots=True)
class NativePlan:
    """
    Attributes:
        chunks: int32 ``[num_chunks, 4]``: sequence, first row, number of rows, first position.
        block_tables: int32 ``[num_sequences, longest table]``.
    """

    chunks: torch.Tensor
    block_tables: torch.Tensor
    block_size: int


class NativeAttention:
    """See the module. Made by ``open_native_attention``."""

    name = "native"
    is_capturable = False

    def __init__(self, library: ctypes.CDLL) -> None:
        self._attend = {
            torch.float32: library.draftahead_attend_float32,
            torch.bfloat16: library.draftahead_attend_bfloat16,
        }

    def plan(self, batch: ForwardBatch, block_size: int) -> NativePlan:
        flat = batch.flat
        chunks = []
        first_row = 0
        for sequence, (num_rows, length) in enumerate(zip(flat.row_counts, flat.context_lengths, strict=True)):
            for offset in range(0, num_rows, _CHUNK_ROWS):
                count = min(_CHUNK_ROWS, num_rows - offset)
                chunks.append((sequence, first_row + offset, count, length - num_rows + offset))
            first_row += num_rows
        # The longest first, so that no thread is left with a long one at the end.
        chunks.sort(key=lambda chunk: -(chunk[2] + chunk[3]))
        return NativePlan(torch.tensor(chunks, dtype=torch.int32), batch.block_tables, block_size)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: NativePlan,
        options: AttentionOptions,
    ) -> torch.Tensor:
        num_rows, num_heads, head_dim = query.shape
        if query.stride(2) != 1:
            query = query.contiguous()
        output = torch.empty((num_rows, num_heads, head_dim), dtype=query.dtype)
        shape = _Shape(
            num_heads=num_heads,
            num_kv_heads=keys.shape[1],
            head_dim=head_dim,
            block_size=plan.block_size,
            table_width=plan.block_tables.shape[1],
            query_row_stride=query.stride(0),
            query_head_stride=query.stride(1),
            window=options.window or 0,
            scale=options.scale,
            softcap=options.softcap or 0.0,
        )
        tensors = (query, keys, values, output, plan.block_tables, plan.chunks)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        failure = self._attend[query.dtype](*pointers, ctypes.c_int64(len(plan.chunks)), ctypes.byref(shape))
        assert not failure, f"no attention for head dimension {head_dim}"
        return output


def open_native_attention(shape: AttentionShape, library: ctypes.CDLL) -> NativeAttention | None:
    """The backend, or None where it does not serve this model."""
    serves = shape.head_dim in _HEAD_DIMS and shape.dtype in (torch.float32, torch.bfloat16)
    return NativeAttention(library) if serves else None
