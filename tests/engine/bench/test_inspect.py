"""A trace in words."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from engine.bench.inspect_trace import explain_trace
from engine.errors import ConfigError
from tests.engine.speculation.test_trace import traced


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    traced(tmp_path / "trace")
    return tmp_path / "trace"


def shown(trace: Path, *, request: str | None = None, first: int = 0, num_steps: int = 3) -> str:
    console = Console(width=140, file=StringIO())
    for part in explain_trace(trace, request=request, first=first, num_steps=num_steps):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_steps_are_explained_and_summed_up(trace: Path) -> None:
    text = shown(trace)
    assert text.count("Step ") == 3
    assert "all that was proposed" in text
    assert "r0" in text
    assert "r2" in text
    assert "why: whole" in text


def test_a_part_can_be_asked_for(trace: Path) -> None:
    text = shown(trace, request="r1", first=2, num_steps=1)
    assert "Step 2," in text
    assert "r0" not in text
    assert shown(trace, num_steps=0).count("Step ") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"first": 10_000}, "but no step 10000"),
        ({"request": "nobody"}, "with request nobody"),
        ({"first": -1}, "at least 0, not -1"),
        ({"num_steps": -2}, "not 0 and -2"),
    ],
)
def test_what_is_not_there_is_refused(trace: Path, words: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shown(trace, **words)  # type: ignore[arg-type]


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(ConfigError, match="has no step"):
        shown(tmp_path / "empty")
