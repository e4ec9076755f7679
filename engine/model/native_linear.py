"""Linear layers of a CPU model through our C++: weights packed once, read once for all rows of a step.

Bit for bit the same for any number of rows, by construction: each output is one sum in one order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Seq

import torch
from torch import nn
from torch.nn import functional

from engine.model.quantisation import BLOCK, QuantisedType, pack_blocks, quantise
from engine.native.functions import Arguments, NativeLibrary

PANEL = 32  # outputs packed together, as in the C++
DTYPES = (torch.float32, torch.bfloat16)
_OUTPUTS_AT_ONCE = 4096  # whole panels
_ROW_BLOCK_BYTES = BLOCK + 8  # numbers of 8 bits, a scale and a sum, as in the C++


class _Product(Arguments):
    """Mirrors ``Product`` of the C++."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("row_stride", "num_inputs", "num_outputs", "is_gated")),
        *((name, ctypes.c_void_p) for name in ("rows", "panels", "bias", "output", "quantised_rows")),
    )


class NativeLinear(nn.Module):
    """``x W^T + b``, or with two weights ``silu(x G^T) * (x U^T)``.

    Args:
        weights: ``[W]``, or the gate and the up weight of a gated layer: ``[out_features, in_features]`` with an even
            number of inputs, a multiple of ``BLOCK`` to be quantised.
        bias: ``[out_features]``; None with a gate.
        to: the type to keep them in; None is their own, float32 or bfloat16. Rows are float32 for float32 weights
            and bfloat16 for all others; those that meet quantised weights are rounded to 8 bits in blocks.
    """

    _panels: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(
        self,
        library: NativeLibrary,
        weights: Seq[torch.Tensor],
        bias: torch.Tensor | None = None,
        *,
        to: QuantisedType | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weights[0].shape
        self._dtype = weights[0].dtype if to is None else torch.bfloat16
        self._row_bytes = 0 if to is None else self.in_features // BLOCK * _ROW_BLOCK_BYTES
        panels = pack(weights) if to is None else pack_quantised(weights, to)
        self.register_buffer("_panels", panels, persistent=False)
        self.register_buffer("_bias", None if bias is None else bias.detach().float().contiguous(), persistent=False)
        self._is_gated = len(weights) == 2
        kind = to or str(self._dtype).removeprefix("torch.")
        self._library = library
        self._multiply = library.function(f"multiply_{kind}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input: ``[..., in_features]``.
        """
        if input.dtype is not self._dtype:
            raise TypeError(f"a product of {self._dtype} was given rows of {input.dtype}")
        rows = input.reshape(-1, self.in_features)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        quantised_rows = self._library.empty(len(rows), self._row_bytes, torch.uint8)
        output = self._library.empty(len(rows), self.out_features, self._dtype)
        product = _Product(
            rows=rows.data_ptr(),
            panels=self._panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            output=output.data_ptr(),
            quantised_rows=quantised_rows.data_ptr(),
            num_rows=len(rows),
            row_stride=rows.stride(0),
            num_inputs=self.in_features,
            num_outputs=self.out_features,
            is_gated=self._is_gated,
        )
        self._multiply(product)
        return output.view(*input.shape[:-1], self.out_features)


class JointProjection(nn.Module):
    """One product for several layers that are called one after the other with the same rows, in one thread.

    Args:
        linear: all their outputs, one layer's after the other's.
        widths: outputs of each.
    """

    def __init__(self, linear: NativeLinear, widths: list[int]) -> None:
        super().__init__()
        self._linear = linear
        self._widths = widths
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, index: int, input: torch.Tensor) -> torch.Tensor:
        """The outputs of one layer, ``[..., widths[index]]``."""
        if input is not self._input:
            self._parts = self._linear(input).split(self._widths, dim=-1)
            self._input = input
        part = self._parts[index]
        if index == len(self._widths) - 1:  # nobody asks again: the rows need not be kept
            self._input, self._parts = None, ()
        return part


class JointPart(nn.Module):
    """One layer of a joint projection."""

    def __init__(self, joint: JointProjection, index: int) -> None:
        super().__init__()
        self._joint = joint
        self._index = index

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._joint.part(self._index, input)


def pack(weights: Seq[torch.Tensor]) -> torch.Tensor:
    """The weights in the order in which they are multiplied.

    Args:
        weights: one or two, each ``[out_features, in_features]``.

    Returns:
        ``[num_panels, in_features / step, PANEL, step]``, where ``step`` is 1 for float32 and 2 for bfloat16; outputs
        beyond the last are 0. Two weights share each panel half and half.
    """
    step = 2 if weights[0].dtype is torch.bfloat16 else 1
    width = PANEL // len(weights)
    parts = []
    for weight in weights:
        out_features, in_features = weight.shape
        padded = functional.pad(weight.detach(), (0, 0, 0, -out_features % width))
        parts.append(padded.view(-1, width, in_features // step, step).transpose(1, 2))
    return torch.cat(parts, dim=2).contiguous()


def pack_quantised(weights: Seq[torch.Tensor], to: QuantisedType) -> torch.Tensor:
    """The same for blocks: two packed panels of 16 make one of 32, of two weights one each."""
    packed = [_pack_in_slices(weight, to) for weight in weights]
    if len(packed) == 2:
        return torch.stack(packed, dim=1).contiguous()
    (panels,) = packed
    return functional.pad(panels, (0, 0, 0, 0, 0, len(panels) % 2))


def _pack_in_slices(weight: torch.Tensor, to: QuantisedType) -> torch.Tensor:
    """A few outputs at a time, as quantising takes many times the memory of its result."""
    return torch.cat([pack_blocks(quantise(part, to)) for part in weight.split(_OUTPUTS_AT_ONCE)])
