from __future__ import annotations

from typing import Any

import pytest
from fake_client import FakeClient, run

from engine.bench.measurement import BenchMode
from engine.bench.prompts import BenchPrompt
from engine.bench.run import BenchProgress
from engine.errors import ConfigError, EngineUnavailable
from engine.params import SpeculationMode


def order(client: FakeClient) -> list[tuple[str, str]]:
    return [
        (
            str(request.prompt).removeprefix("<user>").removesuffix("<assistant>"),
            request.speculation.mode.value,
        )
        for request in client.requests
    ]


class TestOrder:
    async def test_modes_take_turns_in_going_first(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        await run(client, prompts, limit_per_task=2)
        assert order(client) == [
            ("chat 1", "off"),
            ("chat 1", "auto"),
            ("chat 2", "auto"),
            ("chat 2", "off"),
            ("maths 11", "off"),
            ("maths 11", "auto"),
            ("maths 12", "auto"),
            ("maths 12", "off"),
        ]

    async def test_the_next_repeat_begins_each_chunk_with_the_other_mode(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        await run(client, prompts, limit_per_task=1, repeats=2)
        assert order(client) == [
            ("chat 1", "off"),
            ("chat 1", "auto"),
            ("maths 11", "auto"),
            ("maths 11", "off"),
            ("chat 1", "auto"),
            ("chat 1", "off"),
            ("maths 11", "off"),
            ("maths 11", "auto"),
        ]

    async def test_a_machine_that_slows_down_steadily_looks_the_same_to_both_modes(
        self, prompts: list[BenchPrompt]
    ) -> None:
        # four tokens in one step that takes as long as four steps: speculation gains nothing here
        client = FakeClient(slowdown_per_request=0.05, speculative_step_seconds=0.04)
        result = await run(client, prompts, tasks=("chat",))
        assert result.loads[0].overall.speedup.median == pytest.approx(1)

    async def test_concurrency_is_kept_within_one_mode(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        await run(client, prompts, concurrency=(2,))
        assert client.max_in_flight == 2
        assert client.modes_met == {frozenset({SpeculationMode.OFF}), frozenset({SpeculationMode.AUTO})}
        assert [mode for _, mode in order(client)] == ["off"] * 4 + ["auto"] * 4 + ["auto"] * 2 + ["off"] * 2

    async def test_chunks_are_cut_evenly(self) -> None:
        prompts = [BenchPrompt(number, "chat", f"chat {number}") for number in range(10)]
        client = FakeClient()
        await run(client, prompts, tasks=("chat",), concurrency=(2,))  # chunks of at most 8: 5 and 5
        assert [mode for _, mode in order(client)] == ["off"] * 5 + ["auto"] * 10 + ["off"] * 5


class TestRequests:
    async def test_carry_the_chat_template_and_the_options(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        result = await run(client, prompts, max_tokens=7, temperature=0.5, seed=3, ignore_eos=True)
        request = client.requests[0]
        assert request.prompt == "<user>chat 1<assistant>"
        params = request.params
        assert (params.max_tokens, params.temperature, params.seed) == (7, 0.5, 3)
        assert params.ignore_eos
        assert result.uses_chat_template
        assert len({request.request_id for request in client.requests}) == len(client.requests) == 12

    async def test_are_bare_text_where_there_is_no_template(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient(has_template=False)
        result = await run(client, prompts)
        assert client.requests[0].prompt == "chat 1"
        assert not result.uses_chat_template

    async def test_of_the_warm_up_come_first_and_are_not_counted(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        result = await run(client, prompts, num_warmup=3)
        assert order(client)[:6] == [
            *((text, "off") for text in ("chat 1", "maths 11", "chat 2")),
            *((text, "auto") for text in ("chat 1", "maths 11", "chat 2")),
        ]
        assert len(client.requests) == 6 + 12
        assert result.loads[0].overall.modes[BenchMode.PLAIN].num_requests == 6

    async def test_of_the_warm_up_fill_the_concurrency(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        await run(client, prompts, tasks=("maths",), num_warmup=1, concurrency=(3,))
        assert [text for text, _ in order(client)[:3]] == ["maths 11", "maths 12", "maths 11"]

    async def test_are_announced_as_they_end(self, prompts: list[BenchPrompt]) -> None:
        seen: list[BenchProgress] = []
        client = FakeClient()
        await run(client, prompts, seen.append, limit_per_task=1, num_warmup=1)
        assert seen == [(0, 4, "warm-up"), (1, 4, "chat"), (2, 4, "chat"), (3, 4, "maths"), (4, 4, "maths")]


class TestFigures:
    """Nine tokens: 0.1 s of prefill, then 8 plain steps of 10 ms, or 2 of 16 ms with 3 of 4 accepted."""

    async def test_of_one_task(self, prompts: list[BenchPrompt]) -> None:
        row = (await run(FakeClient(), prompts, tasks=("maths",))).loads[0].tasks[0]
        plain, speculative = row.modes[BenchMode.PLAIN], row.modes[BenchMode.SPECULATIVE]
        assert (row.task, row.num_prompts) == ("maths", 2)
        assert (plain.num_requests, plain.num_output_tokens) == (2, 18)
        assert plain.seconds == pytest.approx(2 * 0.18)
        assert plain.tokens_per_second == pytest.approx(50)
        assert plain.ttft.p50 == speculative.ttft.p99 == pytest.approx(0.1)
        assert plain.itl is not None
        assert plain.itl.p50 == plain.itl.p99 == pytest.approx(0.01)
        assert (plain.tokens_per_step, plain.mean_acceptance_length, plain.acceptance_rate) == (1, 1, 0)
        assert speculative.seconds == pytest.approx(2 * 0.132)
        assert speculative.itl is not None
        assert speculative.itl.p50 == speculative.itl.p90 == pytest.approx(0.004)
        assert speculative.tokens_per_step == 3
        assert (speculative.num_drafts, speculative.num_draft_tokens) == (4, 16)
        assert speculative.num_accepted_tokens == 12
        assert speculative.acceptance_rate == 0.75
        assert speculative.mean_acceptance_length == 4
        assert row.speedup is not None
        assert row.speedup.median == pytest.approx(0.18 / 0.132)

    async def test_overall_adds_the_tasks_up(self, prompts: list[BenchPrompt]) -> None:
        result = await run(FakeClient(), prompts, repeats=3)
        assert [row.task for row in result.loads[0].tasks] == ["chat", "maths"]
        overall = result.loads[0].overall
        assert (overall.task, overall.num_prompts, overall.modes[BenchMode.PLAIN].num_requests) == ("overall", 6, 18)
        assert overall.modes[BenchMode.PLAIN].seconds == pytest.approx(
            sum(row.modes[BenchMode.PLAIN].seconds for row in result.loads[0].tasks)
        )
        assert len(overall.speedup.per_repeat) == 3

    async def test_a_single_token_has_no_inter_token_latency(self, prompts: list[BenchPrompt]) -> None:
        result = await run(FakeClient(), prompts, max_tokens=1)
        assert result.loads[0].overall.modes[BenchMode.PLAIN].itl is None
        assert result.loads[0].overall.modes[BenchMode.SPECULATIVE].mean_acceptance_length == 1

    async def test_prompts_that_differ_are_named(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient(differing=frozenset({"chat 2", "maths 12"}))
        result = await run(client, prompts)
        assert [row.num_identical for row in result.loads[0].tasks] == [3, 1]
        assert result.loads[0].overall.differing_prompt_ids == (2, 12)

    async def test_prompts_that_agree_are_all_counted(self, prompts: list[BenchPrompt]) -> None:
        overall = (await run(FakeClient(), prompts, repeats=2)).loads[0].overall
        assert (overall.num_identical, overall.differing_prompt_ids) == (6, ())


class TestRefusals:
    async def test_a_warm_prefix_cache(self, prompts: list[BenchPrompt]) -> None:
        with pytest.raises(ConfigError, match=r"enable_prefix_caching must be False.*prompt 1 .*found 16 of"):
            await run(FakeClient(num_cached_tokens=16), prompts)

    async def test_a_prompt_that_does_not_fit_before_anything_runs(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient(max_model_len=40)  # the template makes "chat 1" 23 tokens and "maths 11" 25
        await run(client, prompts, max_tokens=15)
        client.requests.clear()
        with pytest.raises(ConfigError, match=r"prompt 11 \(maths\) has 25 tokens; .*=16 .*max_model_len=40"):
            await run(client, prompts, max_tokens=16)
        assert client.requests == []

    async def test_a_failed_request_ends_the_run_and_leaves_none_behind(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient(failing=frozenset({"chat 2"}))
        with pytest.raises(EngineUnavailable, match=r"prompt 2 \(chat\) failed: the forward went up in smoke"):
            await run(client, prompts, concurrency=(3,))
        assert client.in_flight == {}
        assert len(client.requests) == 3


class TestLoads:
    async def test_each_concurrency_is_measured_by_itself(self, prompts: list[BenchPrompt]) -> None:
        seen: list[BenchProgress] = []
        client = FakeClient()
        result = await run(client, prompts, seen.append, concurrency=(1, 2))
        assert [str(load.load) for load in result.loads] == ["concurrency 1", "concurrency 2"]
        assert [load.overall.modes[BenchMode.PLAIN].num_requests for load in result.loads] == [6, 6]
        assert seen[0] == (0, 24, "warm-up, concurrency 1")
        assert seen[-1] == (24, 24, "maths, concurrency 2")
        assert [mode for _, mode in order(client)[-4:]] == ["auto", "auto", "off", "off"]

    async def test_arrivals_are_the_same_in_both_modes(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient()
        result = await run(client, prompts, tasks=("chat",), request_rate=0.5)
        assert [str(load.load) for load in result.loads] == ["request rate 0.5/s"]
        assert order(client) == [(f"chat {number}", mode) for mode in ("off", "auto") for number in (1, 2, 3, 4)]
        assert client.in_flight == {}

    async def test_other_seeds_and_repeats_arrive_otherwise(self, prompts: list[BenchPrompt]) -> None:
        async def waits(**options: Any) -> list[float]:
            client = FakeClient(num_output_tokens=1)
            await run(client, prompts, tasks=("chat",), request_rate=0.001, **options)
            return client.sleeps

        first = await waits(seed=1, repeats=2)
        assert first == await waits(seed=1, repeats=2)
        assert first != await waits(seed=2, repeats=2)
        assert first[:3] == pytest.approx(first[3:6], abs=1)  # less what the steps took meanwhile
        assert first[:3] != pytest.approx(first[6:9], abs=1)

    async def test_prompts_that_differ_between_loads_only_are_named(self, prompts: list[BenchPrompt]) -> None:
        client = FakeClient(crowd_differs=True)
        result = await run(client, prompts, tasks=("maths",), concurrency=(1, 2))
        assert [load.overall.differing_prompt_ids for load in result.loads] == [(), ()]
        assert result.differing_prompt_ids == (11, 12)
