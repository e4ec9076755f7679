from __future__ import annotations

import io

from rich.console import Console

from engine.bench.progress import show_progress
from engine.bench.run import BenchProgress


def test_progress_shows_task_and_count() -> None:
    screen = io.StringIO()
    with show_progress(Console(width=80, file=screen, force_terminal=True, color_system=None)) as on_progress:
        on_progress(BenchProgress(0, 12, "warm-up"))
        on_progress(BenchProgress(5, 12, "maths"))
    assert "maths" in screen.getvalue()
    assert "5/12" in screen.getvalue()


def test_progress_stays_out_of_a_file() -> None:
    page = io.StringIO()
    with show_progress(Console(file=page)) as on_progress:
        on_progress(BenchProgress(5, 12, "maths"))
    assert page.getvalue() == ""
