"""Rows written to slots through our C++."""

from __future__ import annotations

import ctypes

import torch

from engine.native.functions import Arguments, NativeLibrary


class _Scatter(Arguments):
    """Mirrors ``Scatter`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("row_bytes", "row_stride")),
        *((name, ctypes.c_void_p) for name in ("rows", "slots", "positions")),
    )


class NativeScatter:
    """What ``index_copy_`` does along the first dimension."""

    def __init__(self, library: NativeLibrary) -> None:
        self._scatter = library.function("scatter")

    def __call__(self, slots: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> None:
        """
        Args:
            slots: ``[num_slots, ...]``, contiguous.
            positions: int64 ``[num_rows]``.
            rows: ``[num_rows, ...]``.
        """
        if not rows[0].is_contiguous():
            rows = rows.contiguous()
        self._scatter(
            _Scatter(
                num_rows=len(rows),
                row_bytes=slots[0].nbytes,
                row_stride=rows.stride(0) * rows.itemsize,
                rows=rows.data_ptr(),
                slots=slots.data_ptr(),
                positions=positions.data_ptr(),
            )
        )
