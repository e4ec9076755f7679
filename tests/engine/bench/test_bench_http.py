from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fake_server import FakeServer

from engine.bench.http_target import connect
from engine.bench.measurement import BenchMode, DraftCounts, Measurement
from engine.bench.options import BenchOptions, Endpoint, ServerOptions
from engine.bench.prompts import BenchPrompt
from engine.bench.result import BenchResult
from engine.bench.run import BenchTime, run_bench
from engine.bench.streamed_answer import events_of, share_out
from engine.bench.target import ServerInfo
from engine.errors import ConfigError, RemoteError

PROMPT = BenchPrompt(1, "chat", "chat 1")
SERVER = ServerOptions(url="http://host/v1")


async def measure(server: FakeServer, *, endpoint: Endpoint = "completions") -> Measurement:
    """One answer; each event takes 0.1 s."""
    where = replace(SERVER, endpoint=endpoint)
    async with connect(where, BenchOptions(), clock=server.clock, transport=server.transport) as target:
        return await target.measure(PROMPT, BenchMode.AS_SERVED)


async def run(server: FakeServer, prompts: list[BenchPrompt], **fields: Any) -> BenchResult:
    options = BenchOptions(**{"tasks": ("chat", "maths"), "num_warmup": 0, **fields})
    async with connect(SERVER, options, clock=server.clock, transport=server.transport) as target:
        return await run_bench(target, prompts, options, lambda state: None, bench_time=BenchTime(server.clock))


class TestAnswer:
    async def test_of_one_token_a_chunk(self) -> None:
        seen = await measure(FakeServer())
        assert (seen.output, seen.num_tokens, seen.num_steps, seen.drafts) == ("abc", 3, None, None)
        assert seen.ttft == pytest.approx(0.1)
        assert seen.token_gaps == pytest.approx((0.1, 0.1))
        assert (seen.has_usage, seen.has_shared_gaps) == (True, False)

    async def test_an_end_token_has_its_own_time_where_it_is_counted(self) -> None:
        seen = await measure(FakeServer(finish_reason="stop", num_tokens=4))
        assert seen.token_gaps == pytest.approx((0.1, 0.1, 0.1))
        assert not seen.has_shared_gaps
        seen = await measure(FakeServer(finish_reason="stop", num_tokens=3))
        assert seen.token_gaps == pytest.approx((0.1, 0.1))
        assert not seen.has_shared_gaps

    async def test_an_end_token_alone_is_the_first_token(self) -> None:
        seen = await measure(FakeServer(chunks=(), finish_reason="stop", num_tokens=1))
        assert (seen.output, seen.num_tokens, seen.token_gaps) == ("", 1, ())
        assert seen.ttft == pytest.approx(0.1)

    async def test_of_several_tokens_a_chunk_shares_them_out(self) -> None:
        seen = await measure(FakeServer(chunks=("a", "bbbbbb", "cc"), num_tokens=9))
        assert (seen.num_tokens, seen.has_shared_gaps) == (9, True)
        # of the six tokens beyond one a chunk, four for the six letters and one for the two
        assert seen.token_gaps == pytest.approx((0.1 / 5,) * 5 + (0.1 / 2,) * 2)

    async def test_without_usage_a_chunk_is_a_token(self) -> None:
        seen = await measure(FakeServer(num_tokens=None))
        assert (seen.num_tokens, seen.has_usage, seen.has_shared_gaps) == (3, False, False)

    async def test_of_chat_is_its_content_and_its_thoughts(self) -> None:
        first = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        thought = {"choices": [{"delta": {"reasoning_content": "hm "}, "finish_reason": None}]}
        server = FakeServer(chunks=(first, thought, "yes"), num_tokens=2)
        seen = await measure(server, endpoint="chat")
        assert (seen.output, seen.num_tokens) == ("hm yes", 2)
        assert seen.ttft == pytest.approx(0.2)  # a role is no token
        path, body = server.requests[0]
        assert path == "/v1/chat/completions"
        assert body["messages"] == [{"role": "user", "content": "chat 1"}]
        assert "prompt" not in body

    async def test_line_separators_inside_a_text_end_no_line(self) -> None:
        assert (await measure(FakeServer(chunks=("a\u2028b", "\x85"), num_tokens=2))).output == "a\u2028b\x85"

    async def test_tells_of_cached_tokens_and_drafts(self) -> None:
        seen = await measure(FakeServer(num_cached_tokens=16, is_draftahead=True))
        assert (seen.num_cached_tokens, seen.drafts) == (16, DraftCounts(2, 8, 6))


class TestRequest:
    async def test_is_greedy_and_streamed_with_usage(self) -> None:
        server = FakeServer()
        await measure(server)
        assert server.requests == [
            (
                "/v1/completions",
                {
                    "model": "first",
                    "prompt": "chat 1",
                    "max_tokens": 128,
                    "temperature": 0,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            )
        ]

    async def test_names_the_model_and_the_seed_as_told(self) -> None:
        server = FakeServer(models=b"nothing")
        options = BenchOptions(temperature=0.5, seed=7, max_tokens=9, ignore_eos=True)
        where = replace(SERVER, served_model="mine")
        async with connect(where, options, transport=server.transport) as target:
            await target.measure(PROMPT, BenchMode.AS_SERVED)
        body = server.requests[0][1]
        assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == ("mine", 0.5, 7, 9)
        assert body["ignore_eos"] is True


class TestRun:
    async def test_of_a_draftahead_has_both_modes_in_turn(self, prompts: list[BenchPrompt]) -> None:
        server = FakeServer(is_draftahead=True)
        result = await run(server, prompts, tasks=("maths",))
        probe, *bodies = [body for _, body in server.requests]
        assert "speculation" not in probe
        assert probe["max_tokens"] == 1
        assert [(body["prompt"], body["speculation"]["mode"]) for body in bodies] == [
            ("maths 11", "off"),
            ("maths 11", "auto"),
            ("maths 12", "auto"),
            ("maths 12", "off"),
        ]
        assert isinstance(result.info, ServerInfo)
        assert result.info.is_draftahead
        overall = result.loads[0].overall
        assert list(overall.modes) == [BenchMode.PLAIN, BenchMode.SPECULATIVE]
        assert overall.speedup is not None
        assert overall.num_identical == 2
        speculative = overall.modes[BenchMode.SPECULATIVE]
        assert (speculative.acceptance_rate, speculative.mean_acceptance_length) == (0.75, 4)
        assert (speculative.step_split, speculative.tokens_per_step, result.peak_rss_mib) == (None, None, None)

    async def test_of_another_server_has_one_mode(self, prompts: list[BenchPrompt]) -> None:
        server = FakeServer()
        result = await run(server, prompts, concurrency=(1, 3))
        assert all("speculation" not in body for _, body in server.requests)
        assert len(server.requests) == 1 + 2 * 6
        overall = result.loads[1].overall
        assert list(overall.modes) == [BenchMode.AS_SERVED]
        assert overall.speedup is None
        assert not result.uses_chat_template

    async def test_of_a_draftahead_is_refused_with_its_prefix_cache(self, prompts: list[BenchPrompt]) -> None:
        server = FakeServer(is_draftahead=True, num_cached_tokens=16)
        with pytest.raises(ConfigError, match=r"prompt 1 \(chat\) found 16 of .* start it with --no-prefix-caching"):
            await run(server, prompts)

    async def test_of_another_server_tells_of_its_prefix_cache(self, prompts: list[BenchPrompt]) -> None:
        result = await run(FakeServer(num_cached_tokens=16), prompts)
        assert result.loads[0].overall.modes[BenchMode.AS_SERVED].num_cached_tokens == 6 * 16


class TestFailures:
    @pytest.mark.parametrize(
        ("server", "reason"),
        [
            (
                FakeServer(status=404, body=b'{"error": {"message": "no model named x", "code": "model_not_found"}}'),
                "http://host/v1/completions answered 404: no model named x",
            ),
            (FakeServer(status=422, body=b'{"detail": "n: bad"}'), "answered 422: n: bad"),
            (FakeServer(status=502, body=b"<html>\n bad gateway"), "answered 502: <html> bad gateway"),
            (FakeServer(status=500), "answered 500: Internal Server Error"),
            (FakeServer(chunks=("a", {"error": {"message": "the forward failed"}})), "the forward failed"),
            (FakeServer(chunks=("a", {"error": "out of memory"})), "out of memory"),
            (FakeServer(is_cut=True), "the connection failed: peer closed connection"),
            (FakeServer(finish_reason=None), "the answer is not whole: finish_reason None"),
            (FakeServer(finish_reason="abort"), "the answer is not whole: finish_reason 'abort'"),
        ],
    )
    async def test_name_the_prompt_and_say_why_in_one_line(self, server: FakeServer, reason: str) -> None:
        with pytest.raises(RemoteError) as caught:
            await measure(server)
        message = str(caught.value)
        assert message.startswith("prompt 1 (chat) failed: ")
        assert message.endswith(reason)
        assert "\n" not in message

    async def test_of_the_first_question_come_before_anything_runs(self, prompts: list[BenchPrompt]) -> None:
        server = FakeServer(status=404, body=b'{"error": {"message": "there is no chat here"}}')
        with pytest.raises(RemoteError, match="there is no chat here"):
            await run(server, prompts)
        assert len(server.requests) == 1

    @pytest.mark.parametrize("models", [b"nothing", b"[]", b"{}", b'{"data": []}', b'{"data": [3]}'])
    async def test_a_server_without_models_wants_a_name(self, models: bytes) -> None:
        with pytest.raises(RemoteError, match="http://host/v1/models lists no model: name it with --served-model"):
            await measure(FakeServer(models=models))

    async def test_a_server_that_is_not_there(self) -> None:
        with pytest.raises(RemoteError, match=r"cannot reach http://127\.0\.0\.1:9"):
            async with connect(ServerOptions(url="http://127.0.0.1:9"), BenchOptions()):
                pass

    @pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"])
    async def test_a_connection_that_ends_early(self, end: bytes) -> None:
        """Cut in the middle of the body, and ended in good form without the end of the stream."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            event = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
            head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"%x\r\n%s\r\n" % (len(event), event) + end)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            where = ServerOptions(url=f"http://127.0.0.1:{port}", served_model="m")
            async with connect(where, BenchOptions()) as target:
                with pytest.raises(RemoteError, match=r"the connection failed|the stream broke off"):
                    await target.measure(PROMPT, BenchMode.AS_SERVED)


class TestSharing:
    @pytest.mark.parametrize(
        ("num_tokens", "lengths", "counts"),
        [
            (3, [1, 9, 2], [1, 1, 1]),
            (9, [1, 6, 2], [2, 5, 2]),
            (7, [5, 5, 5], [2, 3, 2]),
            (2, [4, 4, 4], [1, 1, 1]),
            (5, [], []),
            (5, [0], [1]),
        ],
    )
    def test_gives_every_chunk_one_and_the_rest_by_length(
        self, num_tokens: int, lengths: list[int], counts: list[int]
    ) -> None:
        assert share_out(num_tokens, lengths) == counts


async def test_events_are_put_together_from_pieces() -> None:
    body = b": comment\r\ndata: one\r\n\r\nevent: x\ndata:two\n\ndata: cut"

    async def pieces() -> Any:
        for index in range(len(body)):
            yield body[index : index + 1]

    assert [event async for event in events_of(pieces())] == ["one", "two"]


async def test_a_server_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://203.0.113.1:1")
    server = FakeServer()
    async with connect(SERVER, BenchOptions(), transport=server.transport) as target:
        assert isinstance(target._http, httpx.AsyncClient)
        assert not target._http.trust_env
