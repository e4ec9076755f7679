"""A predicted output on its way to the engine, and what the usage says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.server.harness import Json, chat, complete, post, post_chat, stream_chat

Ask = Callable[..., Awaitable[Json]]


def predict(content: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello", "Hello"),
        ([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}], "Hel\nlo"),
        ("", ""),
        ([], ""),
        ("é", "é"),
    ],
)
async def test_its_tokens_reach_every_choice(
    client: httpx.AsyncClient, engine: FakeEngine, ask: Ask, content: Any, text: str
) -> None:
    engine.begin = [1]  # a text of its own would begin with it; a prediction is none
    await ask(client, n=2, **predict(content))
    assert [request.prediction for request in engine.requests] == [tuple(text.encode())] * 2


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize("n", [1, 3])
async def test_usage_counts_what_was_followed(client: httpx.AsyncClient, ask: Ask, n: int) -> None:
    answer = await ask(client, n=n, **predict("Hello, world"))
    assert answer["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 5 * n,
        "rejected_prediction_tokens": 7 * n,
    }


async def test_a_stream_says_the_same(client: httpx.AsyncClient) -> None:
    events = await stream_chat(client, stream_options={"include_usage": True}, **predict("Hello"))
    assert events[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 5


@pytest.mark.parametrize("send", [post, post_chat])
@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("Hello", "prediction"),
        ({"type": "content"}, "prediction.content"),
        ({"content": "Hello"}, "prediction.type"),
        ({"type": "text", "content": "Hello"}, "prediction.type"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": [5]}, "prediction.content.0"),
        ({"type": "content", "content": [{"type": "image_url", "text": "x"}]}, "prediction.content.0.type"),
        ({"type": "content", "content": [{"type": "text", "text": 5}]}, "prediction.content.0.text"),
        ({"type": "content", "content": "Hello", "more": 1}, "prediction.more"),
    ],
)
async def test_what_is_no_prediction_is_refused(
    client: httpx.AsyncClient, send: Callable[..., Awaitable[httpx.Response]], prediction: Any, param: str
) -> None:
    response = await send(client, prediction=prediction)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_one_that_is_longer_than_the_context_is_refused_with_the_numbers(client: httpx.AsyncClient) -> None:
    response = await post(client, **predict("x" * 65))
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "prediction has 65 tokens, but this model's context is 64"
    assert response.json()["error"]["param"] == "prediction"
