"""Weights in blocks of 32 inputs with a scale each: 8-bit numbers, or 4-bit numbers with an offset.

The formats are GGUF's Q8_0 and Q4_1, and Q4_0 is a Q4_1 whose offset is -8 scales. Weights that were in one of these
before come out as they were, bit for bit, wherever a block uses its full range; any others are rounded to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from engine.errors import ConfigError

BLOCK = 32
PANEL = 16  # outputs packed together, as in the C++

QuantisedType = Literal["int8", "int4"]


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """``scales * numbers + offsets``, block by block.

    Attributes:
        numbers: ``[out_features, num_blocks, BLOCK]``; int8, or uint8 of 0..15.
        scales: float16 ``[out_features, num_blocks]``.
        offsets: the same for 4 bits; None for 8.
    """

    numbers: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None

    def dequantise(self) -> torch.Tensor:
        """float32 ``[out_features, in_features]``."""
        values = self.numbers * self.scales.float().unsqueeze(-1)
        if self.offsets is not None:
            values += self.offsets.float().unsqueeze(-1)
        return values.flatten(1)


def quantise(weight: torch.Tensor, to: QuantisedType) -> QuantisedWeight:
    """
    Args:
        weight: float32 ``[out_features, in_features]``, the inputs a multiple of ``BLOCK``.

    Raises:
        ConfigError: a scale is beyond float16.
    """
    blocks = weight.detach().float().unflatten(1, (-1, BLOCK))
    quantised = _to_8_bits(blocks) if to == "int8" else _to_4_bits(blocks)
    if not quantised.dequantise().isfinite().all():
        raise ConfigError(f"weights as large as {float(weight.abs().max()):g} cannot be quantised to {to}")
    return quantised


def _to_8_bits(blocks: torch.Tensor) -> QuantisedWeight:
    scales = (blocks.abs().amax(-1) / 127).half()
    return QuantisedWeight(_nearest(blocks, scales, None, -127, 127).to(torch.int8), scales)


def _to_4_bits(blocks: torch.Tensor) -> QuantisedWeight:
    """The better, block by block, of a range that fits the numbers and one that lies around 0 as Q4_0's does."""
    lowest, highest = blocks.aminmax(dim=-1)
    extreme = torch.where(-lowest > highest, lowest, highest)
    fitted = ((highest - lowest) / 15).half(), lowest.half()
    centred = (extreme / -8).half(), extreme.half()
    candidates = []
    for scales, offsets in (fitted, centred):
        numbers = _nearest(blocks, scales, offsets, 0, 15)
        candidate = QuantisedWeight(numbers.to(torch.uint8), scales, offsets)
        error = (candidate.dequantise().view_as(blocks) - blocks).square().sum(-1)
        candidates.append((candidate, error))
    (first, first_error), (second, second_error) = candidates
    assert first.offsets is not None
    assert second.offsets is not None
    is_first = first_error <= second_error
    return QuantisedWeight(
        torch.where(is_first.unsqueeze(-1), first.numbers, second.numbers),
        torch.where(is_first, first.scales, second.scales),
        torch.where(is_first, first.offsets, second.offsets),
    )


def _nearest(
    blocks: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, low: int, high: int
) -> torch.Tensor:
    if offsets is not None:
        blocks = blocks - offsets.float().unsqueeze(-1)
    divisors = scales.float().unsqueeze(-1)
    return (blocks / torch.where(divisors == 0, 1.0, divisors)).round_().clamp_(low, high)


def pack_blocks(weight: QuantisedWeight) -> torch.Tensor:
    """The blocks in the order in which they are multiplied.

    Returns:
        uint8 ``[num_panels, num_blocks, bytes]`` for panels of ``PANEL`` outputs: their scales, their offsets if they
        have any, their numbers; outputs beyond the last are 0.
    """
    parts = [_panels(weight.scales).view(torch.uint8)]
    quads = _panels(weight.numbers).unflatten(-1, (-1, 4)).transpose(2, 3)  # [..., four inputs, output, 4]
    if weight.offsets is None:
        parts.append((quads.to(torch.int16) + 128).to(torch.uint8).flatten(2))
    else:
        parts.append(_panels(weight.offsets).view(torch.uint8))
        parts.append((quads[:, :, 0::2] | quads[:, :, 1::2] << 4).flatten(2))
    return torch.cat(parts, dim=2)


def _panels(values: torch.Tensor) -> torch.Tensor:
    """``[out_features, num_blocks, ...]`` as ``[num_panels, num_blocks, PANEL, ...]``, filled up with 0."""
    flat = values.flatten(2) if values.dim() > 2 else values.unsqueeze(-1)
    padded = functional.pad(flat, (0, 0, 0, 0, 0, -len(values) % PANEL))
    panels: torch.Tensor = padded.unflatten(0, (-1, PANEL)).transpose(1, 2)
    return panels.contiguous() if values.dim() > 2 else panels.squeeze(-1).contiguous()
