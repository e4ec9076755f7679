"""OpenAI-compatible servers that answer as the test says, without a network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class FakeServer:
    """Sends ``chunks`` to everybody, 0.1 s before each event by its own clock.

    Attributes:
        chunks: texts, each an event of its own; an event is given as it is.
        finish_reason: of the chunk after them; None leaves it out.
        num_tokens: in the usage; None sends no usage.
        is_draftahead: tells of its drafts, and takes ``speculation``.
        status, body: of every answer to a prompt, if not 200.
        is_cut: breaks the connection after the chunks.
    """

    chunks: tuple[str | dict[str, Any], ...] = ("a", "b", "c")
    finish_reason: str | None = "length"
    num_tokens: int | None = 3
    num_cached_tokens: int = 0
    is_draftahead: bool = False
    status: int = 200
    body: bytes = b""
    is_cut: bool = False
    models: bytes = b'{"data": [{"id": "first"}, {"id": "second"}]}'
    now: float = 100.0
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, content=self.models)
        self.requests.append((request.url.path, json.loads(request.content)))
        if self.status != 200:
            return httpx.Response(self.status, content=self.body)
        return httpx.Response(200, content=self._stream(is_chat="chat" in request.url.path))

    async def _stream(self, *, is_chat: bool) -> AsyncIterator[bytes]:
        for event in self._events(is_chat=is_chat):
            self.now += 0.1
            data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            text = f"data: {data}\n\n".encode()
            yield text[:7]  # a network cuts where it likes
            yield text[7:]
        if self.is_cut:
            raise httpx.RemoteProtocolError("peer closed connection")
        yield b"data: [DONE]\n\n"

    def _events(self, *, is_chat: bool) -> list[str | dict[str, Any]]:
        def choice(text: str, finish_reason: str | None = None) -> dict[str, Any]:
            content = {"delta": {"content": text}} if is_chat else {"text": text}
            return {"choices": [{"index": 0, **content, "finish_reason": finish_reason}], "usage": None}

        events = [chunk if isinstance(chunk, dict) else choice(chunk) for chunk in self.chunks]
        if self.finish_reason is not None:
            events.append(choice("", self.finish_reason))
        last: dict[str, Any] = {"choices": []}
        if self.num_tokens is not None:
            details = {"cached_tokens": self.num_cached_tokens}
            last["usage"] = {"completion_tokens": self.num_tokens, "prompt_tokens_details": details}
        if self.is_draftahead:
            counts = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 6}
            last["metrics"] = {"seed": 1, "speculative_decoding": counts}
        return [*events, last]
