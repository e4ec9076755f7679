"""Rotary position embedding through our C++, in one pass instead of ten.

Model code calls a function of its own module for it, which transformers itself may exchange for a kernel. So do we,
where ours gives the same numbers; whatever it does not serve still goes to the function that was there.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.native.functions import Arguments, NativeLibrary

_NAME = "apply_rotary_pos_emb"
_LANES = 16
_TOLERANCE = 1e-5

Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class _Rotation(Arguments):
    """Mirrors ``Rotation`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_heads", "width", "row_stride", "head_stride")),
        *((name, ctypes.c_void_p) for name in ("input", "cosines", "sines", "output")),
    )


class NativeRotary:
    """Stands in for a model's own function.

    Args:
        original: called for everything that this does not serve.
    """

    def __init__(self, library: NativeLibrary, original: Rotate) -> None:
        self.original = original
        self._library = library
        self._rotate = {dtype: library.function_for("rotate", dtype) for dtype in (torch.float32, torch.bfloat16)}

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            q, k: ``[1, num_heads, num_rows, width]``.
            cos, sin: ``[1, num_rows, width]``.

        Returns:
            The two turned, in their own shapes.
        """
        if more or options or not (self._serves(q, cos, sin) and self._serves(k, cos, sin)):
            return self.original(q, k, cos, sin, *more, **options)
        cos, sin = cos.contiguous(), sin.contiguous()
        return self._turn(q, cos, sin), self._turn(k, cos, sin)

    def _serves(self, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
        return (
            rows.device.type == "cpu"
            and rows.dtype == cos.dtype == sin.dtype
            and rows.dtype in self._rotate
            and rows.dim() == 4
            and cos.shape == sin.shape == (1, rows.shape[2], rows.shape[3])
            and len(rows) == 1
            and rows.shape[3] % (2 * _LANES) == 0
            and rows.stride(3) == 1
        )

    def _turn(self, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        _, num_heads, num_rows, width = rows.shape
        output = self._library.empty(num_rows, num_heads * width, rows.dtype)
        rotation = _Rotation(
            input=rows.data_ptr(),
            cosines=cos.data_ptr(),
            sines=sin.data_ptr(),
            output=output.data_ptr(),
            num_rows=num_rows,
            num_heads=num_heads,
            width=width,
            row_stride=rows.stride(2),
            head_stride=rows.stride(1),
        )
        self._rotate[rows.dtype](rotation)
        return output.view(1, num_rows, num_heads, width).transpose(1, 2)


def nativise_rotary(model: nn.Module, library: NativeLibrary) -> None:
    """Exchange the function in the modules that the model's classes come from, where that changes nothing."""
    for name in {type(module).__module__ for module in model.modules()}:
        home = sys.modules[name]
        original = getattr(home, _NAME, None)
        if original is None or isinstance(original, NativeRotary):
            continue
        native = NativeRotary(library, original)
        if _agree(native, original):
            setattr(home, _NAME, native)


def _agree(native: NativeRotary, original: Rotate) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 2 * _LANES, generator=generator) for heads in (4, 2))
    angles = torch.rand(1, 3, _LANES, generator=generator).repeat(1, 1, 2)
    try:
        expected = original(q, k, angles.cos(), angles.sin())
    except Exception:  # another function of that name
        return False
    given = native(q, k, angles.cos(), angles.sin())
    return all(
        isinstance(theirs, torch.Tensor)
        and theirs.shape == ours.shape
        and bool((theirs - ours).abs().max() <= _TOLERANCE)
        for theirs, ours in zip(expected, given, strict=True)
    )
