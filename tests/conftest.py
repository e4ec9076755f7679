"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exactness",
        choices=("quick", "full"),
        default="quick",
        help="how many prompts and tokens the comparisons on the default model take",
    )
