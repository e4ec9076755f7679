"""Steps on paper: what is written is what happened, and can be read again."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.speculation.trace import TracedStep, TraceFile, read_trace
from engine.step_stats import StepStats
from tests.drafters import SometimesRightDrafter
from tests.scripted import VOCAB_SIZE, ScriptedEngine, next_token
from tests.sequences import make_sequence


def traced(path: Path, **sizes: int) -> tuple[list[StepStats], list[TracedStep]]:
    """A run of three requests: its own account, and the trace of it."""
    drafter = SometimesRightDrafter(next_token, VOCAB_SIZE, accuracy=0.7)
    engine = ScriptedEngine(drafter=drafter, recorder=TraceFile(path), **sizes)
    for number in range(3):
        engine.core.add(make_sequence(f"r{number}", [number + 1] * (5 + number), num_speculative_tokens=4))
    stats = []
    while engine.core.has_unfinished:
        stats.append(engine.core.step().stats)
    return stats, list(read_trace(path))


@pytest.mark.parametrize("sizes", [{}, {"num_blocks": 9}, {"max_num_batched_tokens": 8, "max_num_seqs": 2}], ids=str)
def test_a_trace_has_every_step(tmp_path: Path, sizes: dict[str, int]) -> None:
    stats, steps = traced(tmp_path / "trace", **sizes)
    assert len(steps) == len(stats) > 5
    for account, step in zip(stats, steps, strict=True):
        assert step.num_rows == account.num_rows
        assert sum(part.num_rows + part.length for part in step.requests) == account.num_rows
        assert sum(part.length for part in step.requests) == account.num_draft_tokens
        assert sum(part.accepted for part in step.requests) == account.num_accepted_tokens
        assert step.seconds == pytest.approx(account.seconds, abs=1e-6)
        assert step.num_preemptions == account.num_preemptions
        for reason, number in account.decisions.items():
            assert sum(part.reason == reason for part in step.requests) == number
    assert sum(step.num_preemptions for step in steps) == (0 if "num_blocks" not in sizes else pytest.approx(2, abs=2))


def test_positions_follow_each_other(tmp_path: Path) -> None:
    _, steps = traced(tmp_path / "trace")
    for name in ("r0", "r1", "r2"):
        parts = [part for step in steps for part in step.requests if part.id == name and part.reason is not None]
        assert parts[0].position == 0
        for before, after in pairwise(parts):
            assert after.position == before.position + before.accepted + 1


def test_no_token_is_written(tmp_path: Path) -> None:
    traced(tmp_path / "trace")
    assert "token_ids" not in (tmp_path / "trace").read_text()


def test_a_cut_last_line_and_a_compressed_file_are_read(tmp_path: Path) -> None:
    _, steps = traced(tmp_path / "trace")
    text = (tmp_path / "trace").read_text()
    (tmp_path / "cut").write_text(text[:-20])
    assert list(read_trace(tmp_path / "cut")) == steps[:-1]
    (tmp_path / "small.gz").write_bytes(gzip.compress(text.encode()))
    assert list(read_trace(tmp_path / "small.gz")) == steps


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "No such file"),
        ("words", "not json\n", "line 1"),
        ("other", '{"a": 1}\n', "line 1"),
        ("list", "[1]\n", "line 1"),
        ("cut.gz", "not gzip", "gzip"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        list(read_trace(tmp_path / name))


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        TraceFile(tmp_path / "no" / "such" / "folder")


@pytest.mark.parametrize("max_bytes", [1 << 30, 3000])
def test_a_trace_that_cannot_go_on_ends_and_the_engine_does_not(
    tmp_path: Path, max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path("/dev/full") if max_bytes > 3000 else tmp_path / "trace"
    recorder = TraceFile(tmp_path / "trace", max_bytes=max_bytes)
    recorder._path = path
    engine = ScriptedEngine(recorder=recorder)
    engine.core.add(make_sequence("a", [1] * 9, max_tokens=40, ignore_eos=True))
    while engine.core.has_unfinished:
        engine.core.step()
    assert len(caplog.records) == 1
    assert (tmp_path / "trace").stat().st_size <= max_bytes
