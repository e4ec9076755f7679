"""The stairwell: who waits is answered, whatever happens; and a step is one wake-up of the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import EngineUnavailable, InvalidRequest, QueueFull
from engine.params import SpeculationMode, SpeculationParams
from engine.types import FinishReason
from tests.drafters import SometimesRightDrafter
from tests.engine.house import collect, request_for, running
from tests.scripted import VOCAB_SIZE, continue_plainly, next_token
from tests.sequences import tokens_of

OFF = SpeculationParams(SpeculationMode.OFF)


async def reason_of_failure(stream: Any) -> str:
    """What the one last output of a request says that was given up on."""
    outputs = await collect(stream)
    assert [output.finish_reason for output in outputs if output.finish_reason] == [FinishReason.ERROR]
    assert outputs[-1].error is not None
    return outputs[-1].error


async def test_a_request_streams_to_its_end() -> None:
    async with running() as house:
        stream = await house.engine.submit(request_for(ignore_eos=False))
        assert list(stream.prompt_token_ids) == [1, 2, 3]
        outputs = await collect(stream)
    answer = continue_plainly([1, 2, 3], 20)
    assert tokens_of(outputs) == answer
    assert "".join(output.text for output in outputs) == bytes(t for t in answer if t).decode()
    assert [output.finish_reason is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].metrics is not None
    assert outputs[-1].metrics.num_output_tokens == len(answer)


async def test_text_is_encoded_and_stop_strings_end_it() -> None:
    async with running() as house:
        prompt = "\x01\x02\x03"
        answer = continue_plainly([1, 2, 3], 20)
        stop = bytes(answer[4:6]).decode()
        outputs = await collect(await house.engine.submit(request_for(prompt=prompt, stop=(stop,))))
    said = bytes(answer).decode()
    assert "".join(output.text for output in outputs) == said[: said.index(stop)]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, stop)


async def test_a_long_text_is_encoded_like_a_short_one() -> None:
    async with running() as house:
        assert await house.engine.encode("ab" * 15_000) == [97, 98] * 15_000


@pytest.mark.parametrize(("text", "number"), [("ab", 1), ("ab" * 15_000, 1), ("ab", 1_000)])
async def test_a_long_conversation_is_rendered_like_a_short_one(text: str, number: int) -> None:
    messages = [{"role": "user", "content": text}] * number
    async with running() as house:
        assert await house.engine.render_chat(messages) == f"{text}\n" * number + "?"
        assert await house.engine.render_chat(messages, template_kwargs={"mark": "!"}) == f"{text}\n" * number + "!"
        settings = {"add_generation_prompt": False, "continue_final_message": True}
        assert await house.engine.render_chat(messages, **settings) == (f"{text}\n" * number)[:-1]
        assert house.engine.token_bytes(200) == b"\xc8"


async def test_what_ended_the_text_and_special_tokens_are_text_if_asked_for() -> None:
    async with running() as house:
        answer = continue_plainly([1, 2, 3], 20)
        options: dict[str, Any] = {"stop_token_ids": frozenset({answer[6]}), "include_stop_str_in_output": True}
        outputs = await collect(await house.engine.submit(request_for(**options, skip_special_tokens=False)))
    end = answer.index(answer[6])
    assert "".join(output.text for output in outputs) == bytes(answer[: end + 1]).decode()
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, answer[6])


async def test_a_prefix_is_found_under_its_own_salt_only() -> None:
    prompt = (1, 2, 3, 4, 5) * 3
    async with running() as house:
        found = {}
        for name, salt in {"a": "x", "b": "", "c": "y", "d": "x"}.items():
            request = replace(request_for(name, prompt, speculation=OFF, max_tokens=1), cache_salt=salt)
            outputs = await collect(await house.engine.submit(request))
            assert outputs[-1].metrics is not None
            found[name] = outputs[-1].metrics.num_cached_tokens
    assert found == {"a": 0, "b": 0, "c": 0, "d": 12}


async def test_prompts_with_a_gap_and_words_are_the_tokenizers_business() -> None:
    async with running() as house:
        with pytest.raises(InvalidRequest, match="no tokens for text that is to be inserted"):
            await house.engine.encode_infill("a", "b")
        assert house.engine.spellings("ab") == ((97, 98), (32, 97, 98))
        assert house.engine.decode([97]) == "a"


async def test_thirty_two_at_once_each_get_their_own_answer() -> None:
    drafter = SometimesRightDrafter(next_token, VOCAB_SIZE, accuracy=0.7)
    async with running(drafter=drafter, max_num_seqs=8, num_blocks=40) as house:
        prompts = {f"r{i}": (1 + i % 5, 1 + i // 5, 3) for i in range(32)}

        async def ask(name: str) -> list[int]:
            return tokens_of(
                await collect(await house.engine.submit(request_for(name, prompts[name], ignore_eos=False)))
            )

        answers = await asyncio.gather(*(ask(name) for name in prompts))
    for prompt, answer in zip(prompts.values(), answers, strict=True):
        assert answer == continue_plainly(list(prompt), 20)


async def test_an_abort_frees_the_blocks_at_the_next_step() -> None:
    async with running() as house:
        house.gate.close()
        other = await house.engine.submit(request_for("b", (4, 4), max_tokens=40))
        stream = await house.engine.submit(request_for("a", (1,) * 20, max_tokens=40))
        await house.gate.until_someone_is_inside()
        await house.gate.let_one_through()
        assert [sequence.request_id for sequence in house.scripted.scheduler.running] == ["b", "a"]
        await stream.aclose()
        await stream.aclose()
        await house.gate.let_one_through()
        assert [sequence.request_id for sequence in house.scripted.scheduler.running] == ["b"]
        house.scripted.block_manager.check_integrity(house.scripted.scheduler.running)
        await other.aclose()
        house.gate.open()
        await house.until(lambda: house.steps[-1].num_running == 0)
        assert [step.num_running for step in house.steps][-3:] == [2, 1, 0]
        assert (house.steps[-1].num_waiting, house.steps[-1].kv_cache_usage) == (0, 0.0)


async def test_a_waiting_request_can_be_aborted() -> None:
    async with running(max_num_seqs=1) as house:
        house.gate.close()
        first = await house.engine.submit(request_for("a"))
        await house.gate.until_someone_is_inside()
        second = await house.engine.submit(request_for("b"))
        await second.aclose()
        house.gate.open()
        await collect(first)
        await house.until(lambda: house.steps[-1].num_running + house.steps[-1].num_waiting == 0)
        assert all(e.sequence.request_id == "a" for batch, _ in house.scripted.runner.batches for e in batch)


async def test_an_id_used_again_hears_nothing_of_its_forerunner() -> None:
    """Aborted while a step runs: the id is free again once the abort has been answered."""
    async with running() as house:
        house.gate.close()
        first = await house.engine.submit(request_for("a", (1, 1), speculation=OFF))
        await house.gate.until_someone_is_inside()
        await first.aclose()
        again = request_for("a", (2, 3, 4), speculation=OFF, ignore_eos=False)
        with pytest.raises(InvalidRequest, match="in flight"):
            await house.engine.submit(again)
        house.gate.open()
        assert (await collect(first))[-1].finish_reason is FinishReason.ABORT
        second = await house.engine.submit(again)
        assert tokens_of(await collect(second)) == continue_plainly([2, 3, 4], 20)


async def test_one_wake_up_of_the_event_loop_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    original, wake_ups = loop.call_soon_threadsafe, []

    def counted(callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
        if threading.current_thread().name == "engine":
            wake_ups.append(callback)
        return original(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    async with running() as house:
        streams = [await house.engine.submit(request_for(f"{i}", (1 + i,) * 5)) for i in range(5)]
        outputs = await asyncio.gather(*(collect(stream) for stream in streams))
        assert sum(len(one) for one in outputs) > len(wake_ups)
        assert len(wake_ups) == len(house.steps) >= len(house.scripted.runner.batches)
        assert sum(step.num_rows > 0 for step in house.steps) == len(house.scripted.runner.batches)


async def test_everybody_is_told_when_the_loop_dies(caplog: pytest.LogCaptureFixture) -> None:
    async with running(max_num_seqs=1) as house:
        house.gate.close()
        streams = [await house.engine.submit(request_for("running"))]
        await house.gate.until_someone_is_inside()
        streams += [await house.engine.submit(request_for(name)) for name in ("in the inbox", "too")]
        assert house.engine.is_healthy
        house.gate.error = RuntimeError("secret path")
        with caplog.at_level(logging.CRITICAL):
            house.gate.open()
            for error in await asyncio.gather(*(reason_of_failure(stream) for stream in streams)):
                assert "RuntimeError" in error
                assert "secret" not in error
        assert not house.engine.is_healthy
        assert [record.levelname for record in caplog.records] == ["CRITICAL"]
        with pytest.raises(EngineUnavailable):
            await house.engine.submit(request_for("late"))


async def test_a_request_that_had_ended_is_not_told_again_when_the_loop_dies() -> None:
    async with running() as house:
        done = await house.engine.submit(request_for("done", max_tokens=1))
        outputs = await collect(done)
        house.gate.error = RuntimeError()
        assert "RuntimeError" in await reason_of_failure(await house.engine.submit(request_for("a")))
        assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_stopping_fails_whoever_waits_and_takes_nobody_more() -> None:
    async with running(max_num_seqs=1) as house:
        house.gate.close()
        streams = [await house.engine.submit(request_for(name)) for name in "abc"]
        await house.gate.until_someone_is_inside()
        stopping = asyncio.create_task(house.engine.stop())
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable):
            await house.engine.submit(request_for("late"))
        house.gate.open()
        await stopping
        for stream in streams:
            assert "shut down before" in await reason_of_failure(stream)
        assert not any(thread.name == "engine" for thread in threading.enumerate())


async def test_draining_finishes_what_runs_and_takes_nobody_more() -> None:
    async with running() as house:
        house.gate.close()
        stream = await house.engine.submit(request_for("a"))
        assert house.engine.is_healthy
        house.engine.drain()
        assert not house.engine.is_healthy
        with pytest.raises(EngineUnavailable, match="the server is shutting down"):
            await house.engine.submit(request_for("late"))
        house.gate.open()
        assert (await collect(stream))[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


async def test_one_request_too_many_is_refused_until_another_has_ended() -> None:
    async with running(max_num_requests=2) as house:
        house.gate.close()
        first, second = [await house.engine.submit(request_for(name)) for name in "ab"]
        with pytest.raises(QueueFull, match="2 requests"):
            await house.engine.submit(request_for("c"))
        await first.aclose()
        house.gate.open()
        await collect(first)
        third = await house.engine.submit(request_for("c"))
        await asyncio.gather(collect(second), collect(third))
        await collect(await house.engine.submit(request_for("d")))


@pytest.mark.parametrize(
    ("changes", "message", "param"),
    [
        ({"prompt": ()}, "at least one token", "prompt"),
        ({"prompt": ""}, "at least one token", "prompt"),
        ({"prompt": (1, 256)}, r"token id 256.*0\.\.255", "prompt"),
        ({"prompt": (-1,)}, "token id -1", "prompt"),
        ({"logit_bias": {256: 1.0}}, "token id 256", "logit_bias"),
        ({"max_tokens": 62}, r"context is 64 tokens.*\(3\).*\(62\) make 65", "max_tokens"),
        ({"prompt": (1,) * 70, "max_tokens": 1}, r"context is 64 tokens.*\(70\)", "prompt"),
        ({"max_tokens": 40}, "43 tokens of key-value cache, but it holds 36", "max_tokens"),
        ({"speculation": SpeculationParams(SpeculationMode.SUFFIX)}, "'suffix' is not available", "speculation.mode"),
    ],
)
async def test_what_can_never_be_served_is_refused_by_name(changes: dict[str, Any], message: str, param: str) -> None:
    async with running(num_blocks=10, drafter_name="none") as house:
        with pytest.raises(InvalidRequest, match=message) as refusal:
            await house.engine.submit(request_for(**changes))
        assert refusal.value.param == param
        await collect(await house.engine.submit(request_for()))


async def test_an_id_in_flight_is_refused() -> None:
    async with running() as house:
        house.gate.close()
        stream = await house.engine.submit(request_for())
        with pytest.raises(InvalidRequest, match="the id a is in flight"):
            await house.engine.submit(request_for())
        house.gate.open()
        await collect(stream)


@pytest.mark.parametrize(
    ("drafter_name", "speculation", "longest"),
    [
        ("suffix", SpeculationParams(), 4),
        ("suffix", SpeculationParams(num_speculative_tokens=7), 7),
        ("suffix", SpeculationParams(SpeculationMode.SUFFIX, 2), 2),
        ("suffix", SpeculationParams(num_speculative_tokens=0), 0),
        ("suffix", SpeculationParams(SpeculationMode.OFF, 7), 0),
        ("none", SpeculationParams(), 0),
    ],
)
async def test_how_long_drafts_may_be(drafter_name: str, speculation: SpeculationParams, longest: int) -> None:
    async with running(drafter_name=drafter_name) as house:
        outputs = await collect(await house.engine.submit(request_for(speculation=speculation)))
        drafted = {len(draft.token_ids) for _, drafts in house.scripted.runner.batches for draft in drafts}
    metrics = outputs[-1].metrics
    assert metrics is not None
    assert metrics.speculation.num_speculative_tokens == longest
    assert max(drafted) == longest
