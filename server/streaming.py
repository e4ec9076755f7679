"""Server-sent events, and clients that leave. Knows the transport; knows nothing of what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from json import dumps
from logging import getLogger
from secrets import token_hex
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from engine.errors import DraftaheadError
from server.errors import body_of, fault_body
from server.generation import Generation

# Bytes. Most chunks of a token or two, without log-probabilities, become one size.
_PADDED_TO = 512

_T = TypeVar("_T")
_log = getLogger(__name__)


class EventStream(StreamingResponse):
    """A stream of events that owns its generation: however it ends, no choice runs on.

    Args:
        chunks: the JSON text of each event; an error of this project ends the stream with an error event.
        generation: closed after the last event, or as soon as the client is gone.
    """

    def __init__(self, chunks: AsyncGenerator[str], generation: Generation) -> None:
        self._events = _as_events(chunks)
        self._generation = generation
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._events, media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ClientDisconnect:
            pass  # how servers of ASGI 2.4 tell it; there is nobody left to answer
        finally:
            # Both, because closing a generator that never began runs none of its code.
            await self._events.aclose()
            await self._generation.aclose()


async def _as_events(chunks: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield f"data: {chunk}\n\n"
        except DraftaheadError as error:
            yield f"data: {dumps(body_of(error))}\n\n"
        except Exception as error:  # the status has been sent, so no other handler can tell the client
            _log.exception("a stream failed", exc_info=error)
            yield f"data: {dumps(fault_body())}\n\n"
    yield "data: [DONE]\n\n"


def pad(chunk: str) -> str:
    """A JSON object with a field ``obfuscation`` of random characters that makes its length say little."""
    room = len(f'{chunk},"obfuscation":""'.encode())
    noise = token_hex(_PADDED_TO // 2)[: -room % _PADDED_TO]
    return f'{chunk.removesuffix("}")},"obfuscation":"{noise}"}}'


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is cancelled when the client leaves. The body must have been read.

    Raises:
        ClientDisconnect: the client left first.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for running in (task, watch):
            running.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
