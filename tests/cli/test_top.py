"""``draftahead top`` before a server that says what it is told to, on a terminal and off one."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from engine.errors import ConfigError
from engine.step_stats import DraftCounts, StepStats
from server.cli import main
from server.metrics import ServerMetrics
from server.top import TopOptions, run_top
from server.top_figures import Figures, figures_between
from server.top_reading import parse_reading
from server.top_view import draw, sparkline
from tests.fakes import fake_info

ROOT = Path(__file__).parents[2]


def busy_step() -> StepStats:
    """Ten tokens, of which six were drafted by two drafters that proposed eight."""
    return StepStats(
        num_running=3,
        num_waiting=2,
        kv_cache_usage=0.25,
        num_rows=20,
        num_prompt_tokens=4,
        num_generated_tokens=10,
        num_drafts=4,
        num_draft_tokens=8,
        num_accepted_tokens=6,
        num_bonus_tokens=4,
        by_drafter={"suffix": DraftCounts(3, 6, 5), "model": DraftCounts(1, 2, 1)},
        schedule_seconds=0.01,
        propose_seconds=0.01,
        forward_seconds=0.06,
        verify_seconds=0.01,
        commit_seconds=0.01,
    )


def make_metrics() -> ServerMetrics:
    return ServerMetrics(fake_info(), model_name="fake", version="0", is_healthy=lambda: True)


def figures_of(steps: int, *, seconds: float = 2.0, before: int = 1) -> Figures:
    """Between two looks, ``steps`` busy steps apart."""
    metrics = make_metrics()
    for _ in range(before):
        metrics.observe_step(busy_step())
    first = parse_reading(metrics.exposition().decode(), 10.0)
    for _ in range(steps):
        metrics.observe_step(busy_step())
    return figures_between(first, parse_reading(metrics.exposition().decode(), 10.0 + seconds))


@contextmanager
def answering(metrics: ServerMetrics, *, text: bytes | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server that takes a step between two answers, and the keys that it was shown."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            body = metrics.exposition() if text is None else text
            metrics.observe_step(busy_step())
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", keys
        finally:
            server.shutdown()
            thread.join()


def test_figures_are_of_what_happened_in_between() -> None:
    figures = figures_of(3)
    assert figures.about["model_name"] == "fake"
    assert figures.is_up
    assert figures.tokens_per_second == 15
    assert figures.prompt_tokens_per_second == 6
    assert figures.acceptance_rate == 0.75
    assert figures.mean_acceptance_length == 2.5
    assert figures.share_from_drafts == 0.6
    assert (figures.num_running, figures.num_waiting, figures.kv_cache_usage) == (3, 2, 0.25)
    assert figures.steps_per_second == 1.5
    assert figures.step_seconds == pytest.approx(0.1)
    assert figures.phase_shares == pytest.approx(
        {"schedule": 0.1, "propose": 0.1, "forward": 0.6, "verify": 0.1, "commit": 0.1}
    )
    model, suffix = figures.drafters
    assert (model.name, model.acceptance_rate, model.mean_acceptance_length) == ("model", 0.5, 2.0)
    assert (suffix.name, suffix.proposed_per_second, suffix.acceptance_rate) == ("suffix", 9.0, pytest.approx(5 / 6))


def test_an_idle_server_has_no_rates_to_be_divided_by_nothing() -> None:
    figures = figures_of(0)
    assert figures.tokens_per_second == 0
    assert figures.acceptance_rate is figures.mean_acceptance_length is figures.step_seconds is None
    assert figures.phase_shares == {}
    assert [drafter.acceptance_rate for drafter in figures.drafters] == [None, None]
    assert re.search(r"acceptance rate +-", spoken(figures))


def test_a_server_that_began_anew_counts_from_there() -> None:
    long, short = make_metrics(), make_metrics()
    for _ in range(5):
        long.observe_step(busy_step())
    short.observe_step(busy_step())
    first, second = (parse_reading(m.exposition().decode(), at) for m, at in ((long, 1.0), (short, 2.0)))
    assert figures_between(first, second).tokens_per_second == 10


def spoken(figures: Figures) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(draw(figures, "http://host", [1.0, 2.0]))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_view_says_it_all() -> None:
    view = spoken(figures_of(3))
    for line in (
        r"fake  cpu, float32  drafter auto, up to 4  http://host  up",
        r"tokens a second +15\.0  ▅█",
        r"acceptance rate +75%  ━{22}┄{8}",
        r"mean acceptance length +2\.50",
        r"output from drafts +60%",
        r"running, waiting +3, 2",
        r"KV cache in use +25%  ━{8}┄{22}",
        r"steps a second +1\.5  100\.0 ms each",
        r"schedule 10%  propose 10%  forward 60%  verify 10%  commit 10%",
        r"suffix +9\.0 +83% +2\.67",
        r"model +3\.0 +50% +2\.00",
    ):
        assert re.search(line, view), line


@pytest.mark.parametrize(("values", "line"), [([], ""), ([0, 0], "▁▁"), ([0, 7], "▁█"), ([7, 4, 1, 0], "█▅▂▁")])
def test_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_once_prints_one_view_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(make_metrics()) as (url, keys):
        assert main(["top", url, "--once", "--interval", "0.1", "--api-key", "mine"]) == 0
    assert re.search(r"acceptance rate +75%", capsys.readouterr().out)
    assert keys == ["Bearer mine"] * 2


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTAHEAD_API_KEY", "one two")
    with answering(make_metrics()) as (url, keys):
        assert main(["top", url, "--once", "--interval", "0.1"]) == 0
    assert keys == ["Bearer one"] * 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["http://127.0.0.1:1", "--once"], 1, "no server answers at http://127.0.0.1:1"),
        (["127.0.0.1:8000"], 2, "url must be an address such as http://127.0.0.1:8000, not '127.0.0.1:8000'"),
        (["--interval", "0"], 2, "interval must lie between 0.1 and 3600 seconds, not 0"),
        (["--interval", "nan"], 2, "interval must lie between 0.1 and 3600 seconds, not nan"),
        ([], 2, "top draws on a terminal; --once prints one view anywhere"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("draftahead: error: ")
    assert said in line


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("", b"<html>", "not in Prometheus' text format"),
        ("", b"other_total 3\n", "no metric that begins with draftahead_"),
        ("/elsewhere", None, "answered 404 Not Found"),
    ],
)
def test_another_server_is_none_of_ours(path: str, text: bytes | None, said: str) -> None:
    with answering(make_metrics(), text=text) as (url, _), pytest.raises(ConfigError, match=said):
        run_top(TopOptions(url=url + path, once=True), Console(file=io.StringIO()))


def test_on_a_terminal_it_goes_on_until_interrupted() -> None:
    """Also while the server is away, and when it is back."""
    with answering(make_metrics()) as (url, _):
        terminal, inner = pty.openpty()
        command = [sys.executable, "-m", "server", "top", url, "--interval", "0.1"]
        with subprocess.Popen(command, cwd=ROOT, stdout=inner, stderr=inner, stdin=inner) as process:
            os.close(inner)
            seen = _read_until(terminal, b"(?s)acceptance rate.*acceptance rate.*\xe2\x96\x88")
            process.send_signal(signal.SIGINT)
            rest = _read_until(terminal, None)
            assert process.wait(timeout=10) == 0
    assert b"tokens a second" in seen
    assert b"Traceback" not in seen + rest
    assert b"\x1b[?25h" in rest, "the cursor is shown again"


def test_a_server_that_goes_away_is_waited_for() -> None:
    terminal, inner = pty.openpty()
    with answering(make_metrics()) as (url, _):
        command = [sys.executable, "-m", "server", "top", url, "--interval", "0.1"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=inner, stderr=inner, stdin=inner)
        os.close(inner)
        _read_until(terminal, b"acceptance rate")
    with process:
        assert _read_until(terminal, b"no server answers")
        process.send_signal(signal.SIGINT)
        _read_until(terminal, None)
        assert process.wait(timeout=10) == 0


def _read_until(terminal: int, pattern: bytes | None) -> bytes:
    """What was written up to a pattern, or to the end."""
    seen, until = b"", time.monotonic() + 30
    while time.monotonic() < until:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        seen += piece
        if pattern is not None and re.search(pattern, seen):
            return seen
    assert pattern is None, seen.decode(errors="replace")
    return seen
