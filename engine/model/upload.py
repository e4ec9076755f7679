"""Numbers from the host to a device without waiting for either.

A copy from ordinary memory to a GPU blocks the host until all work before it is done; one from pinned memory does not.
The pinned memory comes from torch's allocator, which gives a piece out again only after the copies from it are done, so
that the numbers of the next step never overwrite those of this one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

import torch


def upload(
    numbers: array[int] | Seq[int] | Seq[float] | Seq[Seq[int]], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """
    Args:
        numbers: an ``array`` of 64-bit integers is taken as it is, without looking at each.

    Returns:
        A tensor of type ``dtype`` on ``device``, shaped as ``numbers``.
    """
    return _on_host(numbers, device, dtype).to(device, non_blocking=True)


def upload_into(target: torch.Tensor, numbers: array[int]) -> None:
    """Fill ``target``, int64 ``[len(numbers)]``."""
    target.copy_(_on_host(numbers, target.device, torch.int64), non_blocking=True)


def _on_host(
    numbers: array[int] | Seq[int] | Seq[float] | Seq[Seq[int]], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    if isinstance(numbers, array):
        host = torch.frombuffer(numbers, dtype=torch.int64)
    else:
        host = torch.tensor(numbers, dtype=dtype)
    has_memory_to_pin = device.type == "cuda" and host.numel() > 0
    return host.pin_memory() if has_memory_to_pin else host
