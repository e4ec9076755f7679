"""Root mean square normalisation through our C++, each row by itself."""

from __future__ import annotations

import ctypes

import torch
from torch import nn

LANES = 16  # the width must be a multiple of it


class NativeNorm(nn.Module):
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last dimension.

    Args:
        weight: ``[width]``, a multiple of ``LANES``.
        dtype: of the rows, float32 or bfloat16.
    """

    _weight: torch.Tensor

    def __init__(self, library: ctypes.CDLL, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("_weight", weight.detach().float().contiguous(), persistent=False)
        self._dtype = dtype
        self._epsilon = ctypes.c_float(epsilon)
        self._normalise = getattr(library, f"draftahead_normalise_{str(dtype).removeprefix('torch.')}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input: ``[..., width]``.
        """
        if input.dtype is not self._dtype:
            raise TypeError(f"a norm of {self._dtype} was given rows of {input.dtype}")
        rows = input.contiguous()
        output = torch.empty_like(rows)
        width = len(self._weight)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (rows, self._weight, output)]
        self._normalise(*pointers, ctypes.c_int64(rows.numel() // width), ctypes.c_int64(width), self._epsilon)
        return output
