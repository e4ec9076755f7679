"""OpenAI's library for Python, in all the ways that it can ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from tests.e2e.test_server import MODEL

PROMPT = "one two three one two three one two"
MESSAGES: list[Any] = [{"role": "user", "content": "Count to ten."}]
SETTINGS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}


@pytest.fixture
async def asynchronous(server_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def text(client: OpenAI) -> str:
    return client.completions.create(prompt=PROMPT, **SETTINGS).choices[0].text


@pytest.fixture(scope="module")
def answer(client: OpenAI) -> str:
    content = client.chat.completions.create(messages=MESSAGES, **SETTINGS).choices[0].message.content
    assert content
    return content


def test_streams(client: OpenAI, text: str, answer: str) -> None:
    chunks = list(client.completions.create(prompt=PROMPT, stream=True, **SETTINGS))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] in ("stop", "length")
    assert not any(reasons[:-1])
    with client.chat.completions.create(messages=MESSAGES, stream=True, **SETTINGS) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == answer


def test_the_helper_that_gathers_a_stream(client: OpenAI, answer: str) -> None:
    stop = answer[6:9]  # the helper takes no answer that was cut off
    with client.chat.completions.stream(messages=MESSAGES, stop=stop, **SETTINGS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == answer.partition(stop)[0]


async def test_asynchronous(asynchronous: AsyncOpenAI, text: str, answer: str) -> None:
    completion = await asynchronous.completions.create(prompt=PROMPT, **SETTINGS)
    chat = await asynchronous.chat.completions.create(messages=MESSAGES, **SETTINGS)
    assert (completion.choices[0].text, chat.choices[0].message.content) == (text, answer)
    parts = [
        chunk.choices[0].delta.content or ""
        async for chunk in await asynchronous.chat.completions.create(messages=MESSAGES, stream=True, **SETTINGS)
    ]
    assert "".join(parts) == answer


def test_raw_responses(client: OpenAI, text: str, answer: str) -> None:
    raw = client.completions.with_raw_response.create(
        prompt=PROMPT, extra_headers={"X-Request-Id": "from-a-client"}, **SETTINGS
    )
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == "from-a-client"
    assert raw.parse().choices[0].text == text
    chat = client.chat.completions.with_raw_response.create(messages=MESSAGES, **SETTINGS)
    assert chat.parse().choices[0].message.content == answer
    with client.chat.completions.with_streaming_response.create(
        messages=MESSAGES, stream=True, **SETTINGS
    ) as streaming:
        assert streaming.headers["content-type"].startswith("text/event-stream")
        assert list(streaming.iter_lines())[-2] == "data: [DONE]"


def test_usage_and_the_name_of_a_request(client: OpenAI) -> None:
    chat = client.chat.completions.create(messages=MESSAGES, **SETTINGS)
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    assert chat._request_id
    *_, last = client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SETTINGS
    )
    assert last.usage is not None
    assert last.usage.completion_tokens == chat.usage.completion_tokens


def test_errors_are_the_librarys_own(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        client.completions.create(prompt=PROMPT, **SETTINGS | {"model": "other"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as wrong:
        client.chat.completions.create(messages=MESSAGES, stream=True, **SETTINGS | {"temperature": 3})
    assert wrong.value.param == "temperature"
    with pytest.raises(NotFoundError):
        client.models.retrieve("other")
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
