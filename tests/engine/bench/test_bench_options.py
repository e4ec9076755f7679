from __future__ import annotations

from typing import Any

import pytest

from engine.bench.options import BenchOptions
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"tasks": ()}, "tasks must be some of chat, .*, not none"),
        ({"tasks": ("chat", "poetry")}, "not poetry"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"num_warmup": -1}, "num_warmup must be at least 0, not -1"),
        ({"limit_per_task": 0}, "limit_per_task must be at least 1, not 0"),
        ({"temperature": 2.5}, r"temperature must lie between 0 and 2, not 2\.5"),
        ({"temperature": float("nan")}, "temperature must lie between 0 and 2, not nan"),
        ({"seed": 2**63}, "seed must be an integer of 64 bits"),
    ],
)
def test_an_option_out_of_bounds_is_refused_with_its_number(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        BenchOptions(**fields)


def test_the_bounds_themselves_are_allowed() -> None:
    BenchOptions(max_tokens=1, concurrency=1, repeats=1, num_warmup=0, limit_per_task=1, temperature=2)
    BenchOptions(seed=-(2**63))
