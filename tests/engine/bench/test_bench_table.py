from __future__ import annotations

import io
from dataclasses import replace

from fake_client import FakeClient, run
from reports import CONTEXT, served
from rich.console import Console

from engine.bench.context import BenchContext
from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt
from engine.bench.result import BenchResult
from engine.bench.table import print_report


async def measured(
    prompts: list[BenchPrompt], client: FakeClient, *, repeats: int = 2, concurrency: tuple[int, ...] | None = None
) -> BenchResult:
    return await run(client, prompts, repeats=repeats, concurrency=concurrency)


def printed(result: BenchResult, context: BenchContext = CONTEXT) -> str:
    page = io.StringIO()
    print_report(result, context, Console(width=100, file=page))
    return page.getvalue()


def rows(text: str, task: str) -> tuple[list[str], list[str]]:
    """The cells of a task: plain, speculative."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(f" {task} "))
    return lines[first].split(), lines[first + 1].split()


class TestTable:
    async def test_has_a_row_for_each_task_and_one_for_all(self, prompts: list[BenchPrompt]) -> None:
        text = printed(await measured(prompts, FakeClient()))
        plain = ["50.0", "100.0", "100.0", "10.0", "10.0", "1.00", "-", "-", "1.36"]
        speculative = ["speculative", "68.2", "100.0", "100.0", "4.0", "4.0", "3.00", "4.00", "75", "1.36-1.36"]
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
            ["chat", "10.0", "100.0", "100.0", "-", "-", "1.00", "-", "-", "1.00", "4/4"],
            ["speculative", "10.0", "100.0", "100.0", "-", "-", "1.00", "-", "-"],  # one repeat has no spread
        )

    async def test_fits_a_terminal_of_a_hundred_columns(self, prompts: list[BenchPrompt]) -> None:
        lines = printed(await measured(prompts, FakeClient())).splitlines()
        assert "…" not in "".join(lines)
        assert max(map(len, lines)) <= 100

    async def test_says_whether_the_output_was_exact(self, prompts: list[BenchPrompt]) -> None:
        good = await measured(prompts, FakeClient())
        assert "All 6 prompts gave the same tokens with and without speculation." in printed(good)
        bad = await measured(prompts, FakeClient(differing=frozenset({"chat 2", "maths 12"})))
        assert "NOT EXACT: 2 of 6 prompts gave other tokens in some run: 2, 12" in printed(bad)

    async def test_each_load_has_its_own(self, prompts: list[BenchPrompt]) -> None:
        text = printed(await measured(prompts, FakeClient(), concurrency=(1, 2)))
        assert "concurrency 1 and 2, repeats 2" in text
        assert text.index("\nconcurrency 1\n") < text.index(" overall ") < text.index("\nconcurrency 2\n")
        assert text.count(" overall ") == 2
        assert "All 6 prompts gave the same tokens with and without speculation and at every load." in text

    async def test_says_where_steps_and_memory_went(self, prompts: list[BenchPrompt]) -> None:
        result = await measured(prompts, FakeClient())
        text = printed(result)
        split = "(%: schedule 0.0, propose 0.0, forward 75.0, verify 25.0, commit 0.0)"
        assert f"Step, plain: 20.0 ms {split}" in text
        assert f"Step, speculative: 44.0 ms {split}" in text
        assert result.peak_rss_mib is not None
        assert "Peak memory of the process (RSS): 2,048 MiB." in printed(replace(result, peak_rss_mib=2048.4))

    async def test_names_the_request_rate(self, prompts: list[BenchPrompt]) -> None:
        text = printed(await run(FakeClient(), prompts, request_rate=2.5, seed=4))
        assert "greedy, max_tokens 128, request rate 2.5/s, Poisson with seed 4, repeats 1" in text

    async def test_says_where_prompts_are_too_few_for_the_load(self, prompts: list[BenchPrompt]) -> None:
        text = printed(await measured(prompts, FakeClient(), concurrency=(2, 3)))
        assert "Concurrency 3 is not reached in tasks of fewer prompts, at least 2." in text
        assert "Concurrency 2 is not reached" not in text

    async def test_says_where_answers_ended_at_once(self, prompts: list[BenchPrompt]) -> None:
        note = "12 of 12 answers ended at once, with at most one token"
        assert note in printed(await run(FakeClient(num_output_tokens=1), prompts))
        assert note not in printed(await run(FakeClient(num_output_tokens=1), prompts, max_tokens=1))
        assert "max_tokens 128 (ignore_eos)," in printed(await run(FakeClient(), prompts, ignore_eos=True))


class TestOfAServer:
    def test_another_has_one_line_a_task_and_no_speed_up(self) -> None:
        text = printed(served(num_repeats=1))
        assert "m at http://host (as served, speculation unknown), endpoint completions" in text
        assert "measured from Some CPU, cores 2" in text
        assert "chat template no" in text
        lines = [line for line in text.splitlines() if line.startswith(" chat ")]
        assert [line.split() for line in lines] == [["chat", "2.0", "500.0", "500.0", "250.0", "250.0", "-"]]
        assert "speed-up" not in text
        assert "accept" not in text
        assert "Peak memory" not in text
        assert "Each of the 1 prompts ran once: nothing to compare." in text

    def test_another_is_compared_with_itself_without_a_promise(self) -> None:
        assert "All 1 prompts gave the same text in every run." in printed(served(num_repeats=2))
        text = printed(served(num_repeats=2, texts=("a", "b")))
        assert "1 of 1 prompts gave other text in some run: 1" in text
        assert "NOT EXACT" not in text

    def test_what_it_does_not_tell_is_said(self) -> None:
        text = printed(served(num_repeats=2, has_usage=False, has_shared_gaps=True, num_cached_tokens=7))
        assert "No usage in 2 of 2 answers: there a chunk is counted as one token." in text
        assert "ITL is estimated in 2 of 2 answers" in text
        assert "14 prompt tokens came from the server's prefix cache" in text
