"""The benchmark as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.cli import main
from tests.cli.conftest import Served


@pytest.fixture
def bench(tmp_path: Path) -> list[str]:
    """The words of a benchmark of one short prompt."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"question_id": 1, "category": "qa", "turns": ["the end of the"]}) + "\n")
    return ["bench", "--prompts", str(prompts), "--tasks", "qa", "--max-tokens", "8", "--num-warmup", "0"]


def test_bench_measures_and_reports(
    folder: Path, tmp_path: Path, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    written, page = tmp_path / "result.json", tmp_path / "result.html"
    words = [*bench, "--device", "cpu", "--threads", "1", "--json", str(written), "--html", str(page)]
    assert main([*words, "--concurrency", "1", "2", "--", str(folder)]) == 0
    assert "qa" in capsys.readouterr().out
    document = json.loads(written.read_text())
    assert document["context"]["command"].startswith("draftahead bench --prompts ")
    for load in document["loads"]:
        split = load["overall"]["modes"]["speculative"]["step_split"]
        assert sum(split["shares"].values()) == pytest.approx(1)
    assert document["peak_rss_mib"] > 50
    assert page.read_text("utf-8").count("<svg") == 2 * 4


def test_bench_measures_our_own_server(
    serve: Served, tmp_path: Path, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "result.json"
    words = [*bench, "--temperature", "1", "--seed", "3", "--ignore-eos", "--json", str(written)]
    codes: list[int] = []
    assert serve(lambda url: codes.append(main([*words, "--url", url])), "--no-prefix-caching") == 0
    assert codes == [0]
    assert "All 1 prompts gave the same text with and without speculation." in capsys.readouterr().out
    document = json.loads(written.read_text())
    assert document["server"]["model"] == "small"
    modes = document["loads"][0]["overall"]["modes"]
    assert list(modes) == ["plain", "speculative"]
    assert modes["plain"]["num_drafts"] == 0
    assert modes["plain"]["num_output_tokens"] == modes["speculative"]["num_output_tokens"] == 8


def test_bench_says_in_one_line_why_a_server_failed(
    serve: Served, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    assert serve(lambda url: codes.append(main([*bench, "--url", url, "--served-model", "none"]))) == 0
    assert codes == [1]
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("draftahead: error: ")]
    assert "prompt 1 (qa) failed: " in error
    assert "/v1/completions answered 404: " in error


def test_bench_simulates_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--simulate", "--concurrency", "2", "--num-speculative-tokens", "3"]) == 0
    shown = capsys.readouterr().out
    assert "Simulated on h200-8b" in shown
    assert all(name in shown for name in ("plain", "fixed 7", "adaptive"))


def test_a_traced_run_can_be_inspected_and_simulated(
    folder: Path, tmp_path: Path, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace"
    words = [*bench, "--device", "cpu", "--threads", "1", "--draft-length", "fixed", "--trace", str(trace)]
    assert main([*words, "--ignore-eos", "--max-tokens", "40", "--", str(folder)]) == 0
    assert main(["inspect", str(trace)]) == 0
    assert "why: whole" in capsys.readouterr().out
    assert main(["bench", "--simulate", "--recorded", str(trace), "--concurrency", "1"]) == 0
    assert "adaptive" in capsys.readouterr().out
