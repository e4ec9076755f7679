from __future__ import annotations

from typing import Any

import pytest

from engine.bench.load import Load
from engine.bench.options import BenchOptions, ServerOptions
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"tasks": ()}, "tasks must be some of chat, .*, not none"),
        ({"tasks": ("chat", "poetry")}, "not poetry"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"concurrency": (2, 0)}, "concurrency must be at least 1, not 0"),
        ({"concurrency": ()}, "concurrency must be at least 1, not 0"),
        ({"concurrency": (2, 4, 2)}, "concurrency names a number twice: 2 4 2"),
        ({"request_rate": 0.0}, r"request_rate must be a number above 0, not 0\.0"),
        ({"request_rate": float("nan")}, "request_rate must be a number above 0, not nan"),
        ({"request_rate": float("inf")}, "request_rate must be a number above 0, not inf"),
        ({"request_rate": 2.0, "concurrency": (1,)}, "request_rate .* give no concurrency with it"),
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
    BenchOptions(max_tokens=1, concurrency=(1,), repeats=1, num_warmup=0, limit_per_task=1, temperature=2)
    BenchOptions(seed=-(2**63))


def test_each_concurrency_is_a_load_and_so_is_a_request_rate() -> None:
    assert BenchOptions().loads == (Load(1),)
    assert BenchOptions(concurrency=(1, 8)).loads == (Load(1), Load(8))
    assert BenchOptions(request_rate=0.5).loads == (Load(None, 0.5),)
    assert [str(load) for load in (Load(8), Load(None, 0.5))] == ["concurrency 8", "request rate 0.5/s"]


@pytest.mark.parametrize("url", ["http://host:80", "http://host:80/", "http://host:80/v1", "http://host:80/v1/"])
def test_a_url_may_end_as_clients_write_it(url: str) -> None:
    assert ServerOptions(url=url).base_url == "http://host:80"


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://host", "http://", "http://:80", "http://host:port", "http://[::1", "http://h?q=1"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"url must look like http://host:port, not '"):
        ServerOptions(url=url)
