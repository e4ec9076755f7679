"""Options of the whole suite."""

from __future__ import annotations

from ctypes import CDLL

import pytest

from engine.config import EngineConfig
from engine.native.library import load_native


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exactness",
        choices=("quick", "full"),
        default="quick",
        help="how many prompts and tokens the comparisons on the default model take",
    )


@pytest.fixture(scope="session")
def native_library() -> CDLL:
    """Our C++, compiled for this machine."""
    library = load_native(EngineConfig().cache_dir)
    if library is None:
        pytest.skip("no C++ compiler")
    return library
