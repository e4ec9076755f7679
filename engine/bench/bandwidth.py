"""How fast a device reads its memory: the floor under every step, whose weights must be read once."""

from __future__ import annotations

import time
from statistics import median

import torch

from engine.model.memory import available_bytes

_NUM_BYTES = {"cpu": 512 << 20, "cuda": 4 << 30}
# The engine that is measured has taken most of the rest.
_SHARE_OF_FREE_MEMORY = 0.25
_NUM_TRIALS = 7


def measure_bandwidth(device: torch.device) -> float:
    """Bytes a second of summing a tensor that fits no cache; the median of some trials."""
    num_bytes = min(_NUM_BYTES[device.type], int(available_bytes(device) * _SHARE_OF_FREE_MEMORY))
    numbers = torch.ones(num_bytes // 4, device=device)
    seconds = []
    for _ in range(_NUM_TRIALS + 1):
        began = time.perf_counter()
        float(numbers.sum())  # brings the result to the host, so that the device has finished
        seconds.append(time.perf_counter() - began)
    return numbers.nbytes / median(seconds[1:])
