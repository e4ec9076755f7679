"""How much memory is offered to the key-value cache, and what is said when it is too little."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import ConfigError
from engine.model import memory
from engine.model.memory import choose_kv_bytes, out_of_memory_explained

CPU = torch.device("cpu")
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def ten_gib_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10 * GIB)


def choose(asked: int | None, *, needed: int, working: int = 0) -> int:
    return choose_kv_bytes(asked, needed=needed, working=working, max_model_len=4096, device=CPU)


def refusal(asked: int | None, *, needed: int, working: int = 0) -> str:
    with pytest.raises(ConfigError) as caught:
        choose(asked, needed=needed, working=working)
    return str(caught.value)


@pytest.mark.parametrize(
    ("needed", "working", "chosen"),
    [
        (MIB, 0, 2 * GIB),  # enough, and not all that is free
        (MIB, 8 * GIB, GIB),  # half of what a step leaves
        (4 * GIB, 0, 4 * GIB),  # one whole request, however long
        (10 * GIB, 0, 10 * GIB),
    ],
)
def test_what_is_chosen(needed: int, working: int, chosen: int) -> None:
    assert choose(None, needed=needed, working=working) == chosen


def test_what_is_asked_for_is_taken() -> None:
    assert choose(3 * GIB, needed=3 * GIB) == 3 * GIB
    assert choose(10 * GIB, needed=1) == 10 * GIB


def test_too_little_memory_for_one_request() -> None:
    message = refusal(None, needed=10 * GIB, working=GIB)
    for number in ("4096 tokens needs 10240 MiB", "only 9216 MiB", "1024 MiB"):
        assert number in message


def test_too_little_asked_for() -> None:
    message = refusal(GIB, needed=2 * GIB)
    assert "kv_cache_memory is 1024 MiB, but one request of 4096 tokens needs 2048 MiB" in message
    assert "not enough memory" not in message


def test_too_much_asked_for() -> None:
    assert "kv_cache_memory is 11264 MiB, but only 10240 MiB" in refusal(11 * GIB, needed=1)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9")],
)
def test_a_failed_allocation_is_explained(error: Exception) -> None:
    with pytest.raises(ConfigError, match="not enough memory for the cache"), out_of_memory_explained("the cache"):
        raise error


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), out_of_memory_explained("the cache"):
        raise RuntimeError("shapes differ")


def _write_group(root: Path, limit: str) -> None:
    (root / "memory.max").write_text(limit)
    (root / "memory.current").write_text("700\n")
    (root / "memory.stat").write_text("anon 500\ninactive_file 150\n")


def test_the_limit_of_a_container_counts_without_cached_files(tmp_path: Path) -> None:
    _write_group(tmp_path, "1000\n")
    assert memory._left_in_control_groups(tmp_path) == [450]


def test_no_limit(tmp_path: Path) -> None:
    assert memory._left_in_control_groups(tmp_path) == []
    _write_group(tmp_path, "max\n")
    assert memory._left_in_control_groups(tmp_path) == []
