"""A body that comes in drops, or not to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.fakes import FakeEngine
from tests.server.harness import error_of, serve

BODY = b'{"model": "fake", "prompt": "ab"}'


async def drops(pause: float, number: int) -> AsyncIterator[bytes]:
    for place in range(number):
        await asyncio.sleep(pause)
        yield BODY[place : place + 1]
    yield BODY[number:]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_a_body_has_to_come_in_time(path: str) -> None:
    async with serve(FakeEngine(), body_timeout=1) as client:
        response = await client.post(path, content=drops(0.3, 20), headers={"Content-Type": "application/json"})
    error = error_of(response, 408)
    assert error["code"] == "request_timeout"
    assert "within 1 seconds" in error["message"]
    assert response.headers["Connection"] == "close", "the rest of the body must not be taken for a request"


async def test_a_body_in_pieces_is_read() -> None:
    async with serve(FakeEngine(), body_timeout=1) as client:
        response = await client.post(
            "/v1/completions", content=drops(0, len(BODY)), headers={"Content-Type": "application/json"}
        )
    assert response.status_code == 200
