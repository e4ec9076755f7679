"""How fast a device reads its memory: the floor under every step, whose weights must be read once."""

from __future__ import annotations

import time
from statistics import median

import torch

_NUM_BYTES = {"cpu": 512 << 20, "cuda": 4 << 30}
_NUM_TRIALS = 7


def measure_bandwidth(device: torch.device) -> float:
    """Bytes a second of summing a tensor that fits no cache; the median of some trials."""
    numbers = torch.ones(_NUM_BYTES[device.type] // 4, device=device)
    seconds = []
    for _ in range(_NUM_TRIALS + 1):
        began = time.perf_counter()
        float(numbers.sum())  # brings the result to the host, so that the device has finished
        seconds.append(time.perf_counter() - began)
    return numbers.nbytes / median(seconds[1:])
