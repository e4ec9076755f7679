"""Streams: their chunks, their end, and what happens when the engine or the client goes away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from server.app import create_app
from server.settings import ServerSettings
from tests.fakes import FakeEngine, Script
from tests.server.harness import complete, error_of, post, scrape, serve, stream


async def test_chunks_add_up(client: httpx.AsyncClient) -> None:
    whole = await complete(client)
    chunks = await stream(client)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 5 + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    assert chunks[0]["system_fingerprint"] == whole["system_fingerprint"]
    assert all(c.keys() == whole.keys() - {"usage", "metrics"} for c in chunks)


async def test_several_tokens_ride_in_one_chunk() -> None:
    async with serve(FakeEngine(Script(tokens_per_step=(4, 2)))) as client:
        chunks = await stream(client)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hell", "o"]


async def test_headers(client: httpx.AsyncClient) -> None:
    response = await post(client, stream=True)
    assert response.headers["cache-control"] == "no-cache"
    assert response.text.endswith("data: [DONE]\n\n")


async def test_half_a_character_is_not_sent() -> None:
    async with serve(FakeEngine(Script(say=lambda _: "é€".encode()))) as client:
        chunks = await stream(client)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["é", "€", ""]


async def test_usage_chunk_is_the_usage_of_the_whole() -> None:
    engine = FakeEngine(Script(tokens_per_step=(3, 1, 2), num_drafted=3, num_cached=1))
    async with serve(engine) as client:
        fields: dict[str, Any] = {"prompt": ["ab", "c"], "n": 2, "seed": 5}
        whole = await complete(client, **fields)
        *chunks, last = await stream(client, stream_options={"include_usage": True}, **fields)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert last["metrics"] == whole["metrics"]
    assert last["metrics"]["seed"] == 5
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("metrics" not in chunk for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_no_usage_unless_asked(client: httpx.AsyncClient, options: object) -> None:
    assert all("usage" not in chunk for chunk in await stream(client, stream_options=options))


async def test_choices_are_told_apart_and_each_finishes_once() -> None:
    engine = FakeEngine(Script(say=lambda request: bytes(request.prompt) * 3))  # type: ignore[arg-type]
    async with serve(engine) as client:
        chunks = await stream(client, prompt=["a", "b"], n=2)
    texts, ends = [""] * 4, [0] * 4
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert texts == ["aaa", "aaa", "bbb", "bbb"]
    assert ends == [1, 1, 1, 1]


async def test_refusals_come_before_the_stream_as_plain_json(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert error_of(await post(client, stream=True, model="no"), 404)["code"] == "model_not_found"
    assert error_of(await post(client, stream=True, prompt="x" * 60, max_tokens=9), 400)["param"] == "max_tokens"
    assert engine.requests == []


async def test_failure_after_the_first_tokens_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(Script(fail_after=2))
    async with serve(engine) as client:
        *chunks, last = await stream(client, n=2, stream_options={"include_usage": True})
        samples = await scrape(client)
    assert chunks[0]["choices"][0]["text"] == "H"
    assert last.keys() == {"error"}
    assert last["error"]["code"] == "engine_unavailable"
    assert last["error"]["message"] == "the engine has died: OSError"
    assert "the engine has died: OSError" in caplog.text
    assert samples["draftahead_requests_total{finish_reason=error}"] == 2
    assert samples["draftahead_requests_total{finish_reason=abort}"] == 0


async def test_failure_of_a_plain_request_is_a_503() -> None:
    engine = FakeEngine(Script(fail_after=1, fails=lambda request: request.request_id.endswith("-0")))
    async with serve(engine) as client:
        error = error_of(await post(client, n=3), 503)
        samples = await scrape(client)
    assert samples["draftahead_rejected_requests_total{reason=engine_unavailable}"] == 0
    assert samples["draftahead_requests_total{finish_reason=error}"] == 3
    assert error["message"] == "the engine has died: OSError"
    assert sorted(engine.aborted) == [request.request_id for request in engine.requests[1:]]


class _Caller:
    """A bare ASGI client that can hang up."""

    def __init__(self, app: FastAPI, *, spec_version: str = "2.3", **fields: Any) -> None:
        self.spec_version = spec_version
        self._body = json.dumps({"model": "fake", "prompt": "ab", **fields}).encode()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": self._body, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self._app = app

    async def call(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": self.spec_version},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "app": self._app,
        }
        await self._app(scope, self._inbox.get, self._send)

    def hang_up(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def _send(self, message: Any) -> None:
        if self.spec_version == "2.4" and len(self.sent) == 2:
            raise OSError("the connection is closed")
        self.sent.append(message)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_hangs_up_ends_every_choice(is_stream: bool) -> None:
    engine = FakeEngine(Script(hang_after=2))
    app = create_app(engine, ServerSettings())
    async with app.router.lifespan_context(app), asyncio.timeout(10):
        caller = _Caller(app, n=3, stream=is_stream)
        call = asyncio.create_task(caller.call())
        while len(engine.requests) < 3 or (is_stream and len(caller.sent) < 3):
            await asyncio.sleep(0)
        assert engine.aborted == []
        caller.hang_up()
        await call
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)


async def test_a_client_gone_before_the_first_chunk_ends_every_choice() -> None:
    engine = FakeEngine(Script(hang_after=0))
    app = create_app(engine, ServerSettings())
    async with app.router.lifespan_context(app), asyncio.timeout(10):
        caller = _Caller(app, n=2, stream=True)
        caller.hang_up()
        await caller.call()
    assert len(engine.requests) == 2
    assert len(engine.aborted) == 2


async def test_a_connection_that_breaks_while_sending_ends_every_choice() -> None:
    engine = FakeEngine(Script(hang_after=2))
    app = create_app(engine, ServerSettings())
    async with app.router.lifespan_context(app), asyncio.timeout(10):
        await _Caller(app, spec_version="2.4", n=2, stream=True).call()
    assert len(engine.aborted) == 2


async def test_a_client_gone_while_sending_its_body_is_no_fault() -> None:
    engine = FakeEngine()
    app = create_app(engine, ServerSettings())
    async with app.router.lifespan_context(app), asyncio.timeout(10):
        caller = _Caller(app)
        caller._inbox.get_nowait()
        caller.hang_up()
        await caller.call()
    assert caller.sent[0]["status"] == 499
    assert engine.requests == []
