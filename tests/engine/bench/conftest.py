from __future__ import annotations

import pytest

from engine.bench.prompts import BenchPrompt


@pytest.fixture
def prompts() -> list[BenchPrompt]:
    """Four of chat, two of maths."""
    return [
        *(BenchPrompt(number, "chat", f"chat {number}") for number in (1, 2, 3, 4)),
        *(BenchPrompt(number, "maths", f"maths {number}") for number in (11, 12)),
    ]
