"""Options of the whole suite."""

from __future__ import annotations

import shutil

import pytest

from engine.config import EngineConfig
from engine.native.functions import NativeLibrary
from engine.native.library import load_native


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exactness",
        choices=("quick", "full"),
        default="quick",
        help="how many prompts and tokens the comparisons on the default model take",
    )


@pytest.fixture(scope="session")
def native_library() -> NativeLibrary:
    """Our C++, compiled for this machine."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    library = load_native(EngineConfig().cache_dir)
    assert library is not None
    return library
