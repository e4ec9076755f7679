"""Settings that go together for a kind of use. Numbers alone: each can be set by itself too, none is a path in code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from engine.config import EngineConfig

Workload = Literal["throughput", "interactive", "long-output"]

_PRESETS: Mapping[Workload, Mapping[str, Any]] = {
    # Many requests a step; few of their rows are then left for long drafts.
    "throughput": {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "num_speculative_tokens": 4},
    # Few at once, no gap that a reader notices, prompts read in pieces so that they hold nobody up for long.
    "interactive": {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "num_speculative_tokens": 4,
        "itl_slo_ms": 50.0,
    },
    # Summaries, edits and code repeat long runs of their text.
    "long-output": {"max_num_seqs": 16, "num_speculative_tokens": 16},
}


def config_for(workload: Workload | None) -> EngineConfig:
    """The defaults, with those of a workload in their place."""
    return EngineConfig(**(_PRESETS[workload] if workload else {}))
