from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from fake_client import FakeClient
from rich.console import Console

from engine.bench import report
from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt
from engine.bench.report import BenchContext, describe_run, print_report, show_progress, write_json
from engine.bench.result import BenchResult
from engine.bench.run import BenchProgress, run_bench
from engine.errors import ConfigError

CONTEXT = BenchContext(
    command="draftahead bench --repeats 2",
    started_at="2030-01-02T03:04:05+00:00",
    cpu="Some CPU",
    num_cores=2,
    accelerator=None,
    versions={"torch": "2.13.0"},
)


async def measured(prompts: list[BenchPrompt], client: FakeClient, *, repeats: int = 2) -> BenchResult:
    options = BenchOptions(tasks=("chat", "maths"), repeats=repeats)
    return await run_bench(client, prompts, options, lambda state: None, clock=client.clock)


def printed(result: BenchResult, context: BenchContext = CONTEXT) -> str:
    page = io.StringIO()
    print_report(result, context, Console(width=80, file=page))
    return page.getvalue()


def rows(text: str, task: str) -> tuple[list[str], list[str]]:
    """The cells of a task: plain, speculative."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(f" {task} "))
    return lines[first].split(), lines[first + 1].split()


class TestTable:
    async def test_has_a_row_for_each_task_and_one_for_all(self, prompts: list[BenchPrompt]) -> None:
        text = printed(await measured(prompts, FakeClient()))
        plain = ["50.0", "100.0", "10.0", "10.0", "1.00", "-", "-", "1.36"]
        speculative = ["speculative", "68.2", "100.0", "4.0", "4.0", "3.00", "4.00", "75", "1.36-1.36"]
        assert rows(text, "chat") == (["chat", *plain, "4/4"], speculative)
        assert rows(text, "overall") == (["overall", *plain, "6/6"], speculative)

    async def test_states_the_conditions(self, prompts: list[BenchPrompt]) -> None:
        result = await measured(prompts, FakeClient())
        text = printed(result)
        assert "fake (float32), drafter suffix, up to 4 speculative tokens" in text
        assert "Some CPU, cores 2, threads 2, torch 2.13.0" in text
        assert "greedy, max_tokens 128, concurrency 1, repeats 2, chat template yes" in text
        sampled = replace(result, options=BenchOptions(temperature=0.7, seed=5))
        assert "T=0.7 seed=5" in printed(sampled)
        assert "Some GPU, host Some CPU" in printed(result, replace(CONTEXT, accelerator="Some GPU"))

    async def test_makes_up_no_figure(self, prompts: list[BenchPrompt]) -> None:
        text = printed(await measured(prompts, FakeClient(num_output_tokens=1), repeats=1))
        assert rows(text, "chat") == (
            ["chat", "10.0", "100.0", "-", "-", "1.00", "-", "-", "1.00", "4/4"],
            ["speculative", "10.0", "100.0", "-", "-", "1.00", "-", "-"],  # one repeat has no spread
        )

    async def test_fits_a_terminal_of_eighty_columns(self, prompts: list[BenchPrompt]) -> None:
        lines = printed(await measured(prompts, FakeClient())).splitlines()
        assert "…" not in "".join(lines)
        assert max(map(len, lines)) <= 80

    async def test_says_whether_the_output_was_exact(self, prompts: list[BenchPrompt]) -> None:
        good = await measured(prompts, FakeClient())
        assert "All 6 prompts gave the same tokens with and without speculation." in printed(good)
        bad = await measured(prompts, FakeClient(differing=frozenset({"chat 2", "maths 12"})))
        assert "NOT EXACT: 2 of 6 prompts gave other tokens in some run: 2, 12" in printed(bad)


class TestDocument:
    async def test_holds_the_run_and_its_conditions(self, prompts: list[BenchPrompt], tmp_path: Path) -> None:
        result = await measured(prompts, FakeClient())
        write_json(result, CONTEXT, tmp_path / "bench.json")
        document = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
        assert document["context"]["command"] == "draftahead bench --repeats 2"
        assert document["model"]["dtype"] == "float32"
        assert document["options"]["concurrency"] == 1
        assert [task["task"] for task in document["tasks"]] == ["chat", "maths"]
        assert document["overall"]["speedup"]["per_repeat"] == list(result.overall.speedup.per_repeat)
        assert document["overall"]["plain"]["tokens_per_second"] == pytest.approx(50)
        assert document["overall"]["differing_prompt_ids"] == []

    async def test_that_cannot_be_written_is_named(self, prompts: list[BenchPrompt], tmp_path: Path) -> None:
        result = await measured(prompts, FakeClient())
        with pytest.raises(ConfigError, match=r"json: cannot write .*absent"):
            write_json(result, CONTEXT, tmp_path / "absent" / "bench.json")


class TestContext:
    def test_describes_this_machine(self) -> None:
        started_at = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
        context = describe_run(FakeClient().info, command="draftahead bench", started_at=started_at)
        assert (context.command, context.started_at) == ("draftahead bench", "2030-01-02T03:04:05+00:00")
        assert context.cpu
        assert context.num_cores >= 1
        assert context.accelerator is None
        assert context.versions["torch"].startswith(torch.__version__.partition("+")[0])

    def test_names_the_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU at {device}")
        info = replace(FakeClient().info, device="cuda:0")
        context = describe_run(info, command="", started_at=datetime.now(UTC))
        assert context.accelerator == "Some GPU at cuda:0"

    def test_reads_the_processor_where_linux_tells_it(self, tmp_path: Path) -> None:
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU: 9000\n", encoding="utf-8")
        assert report._cpu_model(cpuinfo) == "Some CPU: 9000"
        cpuinfo.write_text("processor\t: 0\n", encoding="utf-8")
        assert report._cpu_model(cpuinfo) == report._cpu_model(tmp_path / "absent")


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
