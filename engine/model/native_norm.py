"""Root mean square normalisation through our C++, each row by itself."""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from engine.native.functions import Arguments, NativeLibrary

LANES = 16  # the width must be a multiple of it


class _Norm(Arguments):
    """Mirrors ``Norm`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_heads", "width", "row_stride", "head_stride")),
        *((name, ctypes.c_void_p) for name in ("rows", "weight", "output")),
        ("epsilon", ctypes.c_float),
    )


class NativeNorm(nn.Module):
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last dimension.

    Args:
        weight: ``[width]``, a multiple of ``LANES``.
        dtype: of the rows, float32 or bfloat16.
    """

    _weight: torch.Tensor

    def __init__(self, library: NativeLibrary, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("_weight", weight.detach().float().contiguous(), persistent=False)
        self._dtype = dtype
        self._epsilon = epsilon
        self._library = library
        self._normalise = library.function_for("normalise", dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input: ``[..., width]``; of four dimensions the third are the heads of a row.
        """
        if input.dtype is not self._dtype:
            raise TypeError(f"a norm of {self._dtype} was given rows of {input.dtype}")
        width = input.shape[-1]
        rows = input.reshape(-1, input.shape[-2] if input.dim() == 4 else 1, width)
        if rows.stride(2) != 1:
            rows = rows.contiguous()
        num_rows, num_heads, _ = rows.shape
        output = self._library.empty(num_rows, num_heads * width, self._dtype)
        self._normalise(
            _Norm(
                num_rows=num_rows,
                num_heads=num_heads,
                width=width,
                row_stride=rows.stride(0),
                head_stride=rows.stride(1),
                rows=rows.data_ptr(),
                weight=self._weight.data_ptr(),
                output=output.data_ptr(),
                epsilon=self._epsilon,
            )
        )
        return output.view(input.shape)
