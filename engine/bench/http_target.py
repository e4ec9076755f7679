"""An OpenAI-compatible server, ours or another, measured over HTTP.

Knows how a prompt becomes a call and how a server fails. Refuses to know when which prompt runs, and the events in an
answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx

from engine.bench.measurement import BenchMode, Measurement
from engine.bench.options import BenchOptions, ServerOptions
from engine.bench.prompts import BenchPrompt
from engine.bench.streamed_answer import StreamedAnswer, error_message, events_of, shortened
from engine.bench.target import ServerInfo
from engine.errors import ConfigError, RemoteError

_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_SPECULATION = {BenchMode.PLAIN: {"mode": "off"}, BenchMode.SPECULATIVE: {"mode": "auto"}, BenchMode.AS_SERVED: None}

# A queue in front of the model may hold the first token back for long; a server that is gone is known at once.
_TIMEOUT = httpx.Timeout(600, connect=10, pool=None)
_NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)


@asynccontextmanager
async def connect(
    server: ServerOptions,
    options: BenchOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[HttpTarget]:
    """The server, once it has told its model; connections end with the context.

    Raises:
        RemoteError: it cannot be reached or lists no model.
    """
    async with httpx.AsyncClient(
        base_url=server.base_url,
        timeout=_TIMEOUT,
        limits=_NO_LIMITS,
        trust_env=False,  # a proxy between would be measured too
        transport=transport,
    ) as http:
        model = server.served_model or await _first_model(http)
        info = ServerInfo(url=server.base_url, model=model, endpoint=server.endpoint, is_draftahead=False)
        yield HttpTarget(http, info, options, clock=clock)


class HttpTarget:
    """Measures a server. Its outputs are texts, and their times those at which chunks arrive here."""

    def __init__(
        self, http: httpx.AsyncClient, info: ServerInfo, options: BenchOptions, *, clock: Callable[[], float]
    ) -> None:
        self._http = http
        self._options = options
        self._clock = clock
        self.info = info
        self.uses_chat_template = info.endpoint == "chat"

    @property
    def modes(self) -> tuple[BenchMode, ...]:
        """Known once it is prepared."""
        return (BenchMode.PLAIN, BenchMode.SPECULATIVE) if self.info.is_draftahead else (BenchMode.AS_SERVED,)

    async def prepare(self, prompts: Sequence[BenchPrompt]) -> None:
        """Find out with one short request whether the server is a Draftahead.

        Raises:
            RemoteError: it does not answer as it should.
        """
        probe = self._body(prompts[0], BenchMode.AS_SERVED) | {"max_tokens": 1}
        measurement = await self._ask(prompts[0], probe)
        self.info = replace(self.info, is_draftahead=measurement.drafts is not None)

    async def measure(self, prompt: BenchPrompt, mode: BenchMode) -> Measurement:
        """Run one prompt.

        Raises:
            ConfigError: its prefix cache would help the second of two modes.
            RemoteError: the server refused, failed or broke off; names the prompt.
        """
        measurement = await self._ask(prompt, self._body(prompt, mode))
        if mode is not BenchMode.AS_SERVED and measurement.num_cached_tokens:
            raise ConfigError(
                f"url: prompt {prompt.prompt_id} ({prompt.task}) found {measurement.num_cached_tokens} of its tokens "
                "in the server's prefix cache, so one mode would help the other: start it with --no-prefix-caching"
            )
        return measurement

    def take_step_times(self) -> None:
        """A server does not tell."""

    def peak_rss_mib(self) -> None:
        """A server does not tell."""

    def _body(self, prompt: BenchPrompt, mode: BenchMode) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.info.model,
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.info.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            body["prompt"] = prompt.text
        if self._options.temperature > 0:
            body["seed"] = self._options.seed
        if self._options.ignore_eos:  # not OpenAI's, but served by vLLM and llama.cpp as by us
            body["ignore_eos"] = True
        if (speculation := _SPECULATION[mode]) is not None:
            body["speculation"] = speculation
        return body

    async def _ask(self, prompt: BenchPrompt, body: dict[str, Any]) -> Measurement:
        answer = StreamedAnswer()
        submitted = self._clock()
        try:
            async with self._http.stream("POST", _PATHS[self.info.endpoint], json=body) as response:
                await _check_status(response)
                async for data in events_of(response.aiter_bytes()):
                    answer.read(data, self._clock())
            return answer.measurement(prompt.prompt_id, submitted)
        except httpx.HTTPError as error:
            reason = f"the connection failed: {_reason(error)}"
        except RemoteError as error:
            reason = str(error)
        raise RemoteError(f"prompt {prompt.prompt_id} ({prompt.task}) failed: {reason}")


async def _first_model(http: httpx.AsyncClient) -> str:
    try:
        response = await http.get("/v1/models")
        await _check_status(response)
        return str(response.json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise RemoteError(f"cannot reach {http.base_url}: {_reason(error)}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise RemoteError(f"{http.base_url.join('/v1/models')} lists no model: name it with --served-model") from error


async def _check_status(response: httpx.Response) -> None:
    """Raises ``RemoteError`` with the server's own words unless all is well."""
    if response.status_code == httpx.codes.OK:
        return
    await response.aread()
    try:
        message = error_message(response.json())
    except ValueError:
        message = None
    message = message or shortened(response.text) or response.reason_phrase
    raise RemoteError(f"{response.request.url} answered {response.status_code}: {message}")


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
