"""The official client against a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from engine.errors import QueueFull
from server.app import create_app
from server.settings import ServerSettings
from tests.fakes import FakeEngine, Script


@asynccontextmanager
async def _listening(engine: FakeEngine) -> AsyncGenerator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(create_app(engine, ServerSettings()), log_level="error", ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        await serving


@asynccontextmanager
async def _client(engine: FakeEngine) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with _listening(engine) as url:
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        async with client:
            yield client


async def test_completion() -> None:
    async with _client(FakeEngine(Script(num_cached=1))) as client:
        answer = await client.completions.create(
            model="fake", prompt=["ab", "c"], n=2, logprobs=1, echo=True, seed=3, logit_bias={"5": 1}
        )
    assert [choice.text for choice in answer.choices] == ["abHello", "abHello", "cHello", "cHello"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == list(range(8))
    assert answer.model_extra is not None
    assert answer.model_extra["metrics"]["seed"] == 3


async def test_stream() -> None:
    async with _client(FakeEngine()) as client:
        stream = await client.completions.create(
            model="fake",
            prompt="ab",
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"speculation": {"mode": "off"}, "top_k": 5},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_chat() -> None:
    async with _client(FakeEngine(Script(num_cached=1))) as client:
        answer = await client.chat.completions.create(
            model="fake",
            messages=[
                {"role": "developer", "content": "ab"},
                {"role": "user", "content": [{"type": "text", "text": "c"}]},
            ],
            n=2,
            logprobs=True,
            top_logprobs=2,
            max_completion_tokens=9,
            seed=3,
            store=False,
            metadata={"a": "b"},
            response_format={"type": "text"},
            extra_body={"speculation": {"mode": "off"}, "top_k": 5},
        )
    assert [choice.message.content for choice in answer.choices] == ["Hello", "Hello"]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[0].bytes == [72]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 0


async def test_a_conversation() -> None:
    engine = FakeEngine(Script(say=lambda _: b"Hi"))
    async with _client(engine) as client:
        messages: list[Any] = [{"role": "user", "content": "a"}]
        for _ in range(2):
            answer = await client.chat.completions.create(model="fake", messages=messages)
            messages += [answer.choices[0].message, {"role": "user", "content": "b"}]
    assert [message["content"] for message in engine.conversations[1]] == ["a", "Hi", "b"]


async def test_chat_stream() -> None:
    async with (
        _client(FakeEngine()) as client,
        client.chat.completions.stream(
            model="fake",
            messages=[{"role": "user", "content": "ab"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        whole = await stream.get_final_completion()
    assert "".join(deltas) == whole.choices[0].message.content == "Hello"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6


async def test_chat_errors_become_the_clients_exceptions() -> None:
    async with _client(FakeEngine()) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 99}])
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "messages")


async def test_errors_become_the_clients_exceptions() -> None:
    engine = FakeEngine()
    async with _client(engine) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="fake", prompt="ab", temperature=3)
        with pytest.raises(openai.NotFoundError) as missing:
            await client.completions.create(model="gpt", prompt="ab")
        engine.refusals.append(QueueFull("full"))
        with pytest.raises(openai.RateLimitError):
            await client.completions.create(model="fake", prompt="ab")
    assert bad.value.param == "temperature"
    assert missing.value.code == "model_not_found"


async def test_an_error_within_a_stream_is_raised() -> None:
    async with _client(FakeEngine(Script(fail_after=2))) as client:
        stream = await client.completions.create(model="fake", prompt="ab", stream=True)
        with pytest.raises(openai.APIError):
            _ = [chunk async for chunk in stream]


async def test_models() -> None:
    async with _client(FakeEngine()) as client:
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_closed_connection_ends_the_request(is_stream: bool) -> None:
    engine = FakeEngine(Script(hang_after=1))
    body = {"model": "fake", "prompt": "ab", "n": 2, "stream": is_stream}
    async with _listening(engine) as url, httpx.AsyncClient() as client:
        call = asyncio.create_task(client.post(f"{url}/completions", json=body, timeout=30))
        async with asyncio.timeout(10):
            while len(engine.requests) < 2:
                await asyncio.sleep(0.01)
            call.cancel()
            while len(engine.aborted) < 2:
                await asyncio.sleep(0.01)
