"""The app around an engine, mostly a fake one, and readers for what it answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine.client import EngineClient
from server.app import create_app
from server.settings import ServerSettings

Json = dict[str, Any]

HELLO = [{"role": "user", "content": "ab"}]


@asynccontextmanager
async def serve(engine: EngineClient, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the app, in this process and without a socket."""
    app = create_app(engine, ServerSettings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


async def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """One completion request; model and prompt are filled in."""
    return await client.post("/v1/completions", json={"model": "fake", "prompt": "ab", **fields})


async def complete(client: httpx.AsyncClient, **fields: Any) -> Json:
    """The body of a completion that must succeed."""
    response = await post(client, **fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def post_chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """One chat request; model and messages are filled in."""
    return await client.post("/v1/chat/completions", json={"model": "fake", "messages": HELLO, **fields})


async def chat(client: httpx.AsyncClient, **fields: Any) -> Json:
    """The body of a chat completion that must succeed."""
    response = await post_chat(client, **fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def stream_chat(client: httpx.AsyncClient, **fields: Any) -> list[Json]:
    """The events of a chat stream that must end with [DONE]."""
    response = await post_chat(client, stream=True, **fields)
    assert response.status_code == 200, response.text
    return events_of(response.text)


async def stream(client: httpx.AsyncClient, **fields: Any) -> list[Json]:
    """The events of a stream that must end with [DONE]."""
    response = await post(client, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def events_of(text: str) -> list[Json]:
    """Every event but the closing [DONE], which must be there."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error_of(response: httpx.Response, status: int) -> Json:
    """The error object of a refusal, after checking its shape."""
    assert response.status_code == status, response.text
    assert len(response.content) < 4096
    body = response.json()
    assert body.keys() == {"error"}
    error: Json = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    return error


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    """Every sample as ``name{other labels}``; the label model_name is checked and left out."""
    samples = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "fake", sample
            inside = ",".join(f"{key}={value}" for key, value in labels.items())
            samples[f"{sample.name}{{{inside}}}" if inside else sample.name] = sample.value
    return samples
