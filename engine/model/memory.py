"""How much memory there is, and how much a key-value pool may take of it.

Knows devices and the limits of containers. Refuses to allocate anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from engine.errors import ConfigError

# On the CPU the pool shares memory with everything else; beyond this it would only hold idle prefixes.
_ENOUGH_ON_CPU = 2 << 30
_SHARE_OF_FREE_MEMORY = {"cpu": 0.5, "cuda": 0.9}
# Limit, usage, and the account that tells how much of the usage is cached files, which give way.
_CONTROL_GROUPS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes(device: torch.device) -> int:
    """Memory that this process can still take on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_left_in_control_groups()])


def choose_kv_bytes(asked: int | None, *, needed: int, working: int, max_model_len: int, device: torch.device) -> int:
    """Bytes for the key-value pool.

    Args:
        asked: what the operator wants; None takes a share of what is free, and always enough for one request.
        needed: bytes that one request of ``max_model_len`` tokens takes.
        working: bytes that a step takes besides the pool.

    Raises:
        ConfigError: the operator wants too little or too much, or there is too little.
    """
    if asked is not None and asked < needed:
        raise ConfigError(
            f"kv_cache_memory is {_mib(asked)}, but one request of {max_model_len} tokens needs {_mib(needed)} "
            "(raise it or lower max_model_len)"
        )
    available = max(available_bytes(device) - working, 0)
    chosen = max(_share_of(available, device), needed) if asked is None else asked
    if chosen <= available:
        return chosen
    left = f"only {_mib(available)} are left beside the weights and a step's own {_mib(working)}"
    if asked is not None:
        raise ConfigError(f"not enough memory on {device}: kv_cache_memory is {_mib(asked)}, but {left}")
    raise ConfigError(
        f"not enough memory on {device} for the key-value cache: one request of {max_model_len} tokens needs "
        f"{_mib(needed)}, but {left} (lower max_model_len or max_num_batched_tokens)"
    )


def _share_of(available: int, device: torch.device) -> int:
    share = int(available * _SHARE_OF_FREE_MEMORY[device.type])
    return min(share, _ENOUGH_ON_CPU) if device.type == "cpu" else share


@contextlib.contextmanager
def out_of_memory_explained(what: str) -> Iterator[None]:
    """Turn a failed allocation into one line that says for what it was."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ConfigError(f"not enough memory for {what}") from error
    except RuntimeError as error:  # how torch's CPU allocator says it
        if "allocate memory" not in str(error):
            raise
        raise ConfigError(f"not enough memory for {what}") from error


def _left_in_control_groups(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What the limits of the container leave; empty without one."""
    left = []
    for limit, usage, account in _CONTROL_GROUPS:
        try:
            taken = int((root / usage).read_text()) - _cached_file_bytes((root / account).read_text())
            left.append(int((root / limit).read_text()) - taken)
        except (OSError, ValueError):  # no such group, or its limit is "max"
            continue
    return left


def _cached_file_bytes(account: str) -> int:
    entries = dict(line.split() for line in account.splitlines())
    return int(entries.get("total_inactive_file", entries.get("inactive_file", 0)))


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)} MiB"
