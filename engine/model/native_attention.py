"""Paged attention on the CPU through our C++: no copy of the context, no Python per row.

As exact as the tiled reference: each row's sums have a fixed order that nothing else in the batch can change.
"""

from __future__ import annotations

import ctypes

import torch

from engine.model.attention import AttentionOptions, AttentionShape
from engine.model.forward_batch import ForwardBatch
from engine.native.functions import Arguments, NativeLibrary

# Query rows of one sequence that share a pass over its keys; more would leave a thread idle sooner.
_CHUNK_ROWS = 32
# As in the C++, which is compiled for these.
_HEAD_DIMS = frozenset({16, 32, 64, 80, 96, 128, 256})


class _Shape(ctypes.Structure):
    """Mirrors ``Shape`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size")),
        *((name, ctypes.c_int64) for name in ("query_row_stride", "query_head_stride", "window")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


class _Step(ctypes.Structure):
    """Mirrors ``Step`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("block_tables", "chunks")),
        *((name, ctypes.c_int64) for name in ("num_chunks", "table_width")),
    )


class _Attention(Arguments):
    """Mirrors ``Arguments`` of the C++."""

    _fields_ = (
        ("step", ctypes.POINTER(_Step)),
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "output")),
        ("shape", _Shape),
    )


class NativePlan:
    """The numbers of one step, behind an address that can come to stand for another.

    Args:
        chunks: int32 ``[num_chunks, 4]``: sequence, first row, number of rows, first position.
        block_tables: int32 ``[num_sequences, longest table]``.
    """

    def __init__(self, chunks: torch.Tensor, block_tables: torch.Tensor, block_size: int) -> None:
        self.block_size = block_size
        self._tensors = chunks, block_tables
        self.step = _Step(
            block_tables=block_tables.data_ptr(),
            chunks=chunks.data_ptr(),
            num_chunks=len(chunks),
            table_width=block_tables.shape[1],
        )

    def become(self, plan: NativePlan) -> None:
        """Stand for the step of ``plan``: calls that know the address of this one then see that one."""
        self._tensors = plan._tensors
        ctypes.pointer(self.step)[0] = plan.step


class NativeAttention:
    """See the module. Made by ``open_native_attention``."""

    name = "native"
    is_capturable = False

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._attend = {dtype: library.function_for("attend", dtype) for dtype in (torch.float32, torch.bfloat16)}

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
        output = self._library.empty(num_rows, num_heads * head_dim, query.dtype)
        self._attend[query.dtype](
            _Attention(
                num_rows=num_rows,
                step=ctypes.pointer(plan.step),
                query=query.data_ptr(),
                keys=keys.data_ptr(),
                values=values.data_ptr(),
                output=output.data_ptr(),
                shape=_Shape(
                    num_heads=num_heads,
                    num_kv_heads=keys.shape[1],
                    head_dim=head_dim,
                    block_size=plan.block_size,
                    query_row_stride=query.stride(0),
                    query_head_stride=query.stride(1),
                    window=options.window or 0,
                    scale=options.scale,
                    softcap=options.softcap or 0.0,
                ),
            )
        )
        return output.view(num_rows, num_heads, head_dim)


def open_native_attention(shape: AttentionShape, library: NativeLibrary) -> NativeAttention | None:
    """The backend, or None where it does not serve this model."""
    serves = shape.head_dim in _HEAD_DIMS and shape.dtype in (torch.float32, torch.bfloat16)
    return NativeAttention(library) if serves else None
