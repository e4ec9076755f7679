"""The noise of sampling, named and not drawn: a pure function of (seed, output index, token id).

There is no generator state anywhere, so the same token gets the same noise whatever was drafted, in whatever batch, and
however often the request was preempted. The C++ that draws on the CPU makes the same noise, but for the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.model.upload import upload
from engine.params import mix64

_MASK32 = (1 << 32) - 1


def gumbel_noise(keys: Seq[tuple[int, int]], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise ``g(seed, t, v)`` for every token id ``v``.

    Args:
        keys: ``(seed, t)`` for each row; ``t`` is the absolute output index.

    Returns:
        float32 ``[len(keys), vocab_size]``, finite everywhere.

    ``g = -log(-log(1 - u))`` with ``u = (x + 1/2) / 2^31``. Large noise, the kind that wins, belongs to small ``u``,
    where float32 is fine-grained; ``log1p`` keeps it so.
    """
    words = upload([[_signed32(w) for w in key_words(*key)] for key in keys], device)
    low, high = words.to(torch.int32).unbind(1)
    x = torch.arange(vocab_size, dtype=torch.int32, device=device).unsqueeze(0)
    x = _mix32(x * -1640531535 + low.unsqueeze(1))  # 0x9E3779B1, an odd constant: distinct ids stay distinct
    x = _mix32(x ^ high.unsqueeze(1))
    u = ((x & 0x7FFFFFFF).to(torch.float32) + 0.5).mul_(2.0**-31)
    u.clamp_(max=1 - 2.0**-24)  # near 1 float32 would round to 1, whose noise is infinite
    return u.neg_().log1p_().neg_().log_().neg_()


def key_words(seed: int, output_index: int) -> tuple[int, int]:
    """Two 32-bit words that depend on every bit of seed and index."""
    key = mix64(mix64(seed) + output_index)
    return key & _MASK32, key >> 32


def _signed32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit bijection in which every input bit flips each output bit with a chance near 1/2.

    Constants: Ettinger, "hash-prospector" (two-round xorshift-multiply with low bias).
    """
    x ^= _shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= _shift_right(x, 15)
    x *= -2073254261  # 0x846CA68B
    x ^= _shift_right(x, 16)
    return x


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int32, which torch shifts arithmetically."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
