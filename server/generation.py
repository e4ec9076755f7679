"""The running choices of one HTTP request. Starts, follows and aborts them together; knows no wire format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from logging import getLogger

from engine.client import EngineClient, GenerateRequest, RequestStream
from engine.types import FinishReason, RequestMetrics, RequestOutput
from server.errors import GenerationFailed
from server.metrics import ServerMetrics
from server.request_metrics import RequestMeter

_log = getLogger(__name__)


@dataclass(slots=True)
class RunningChoice:
    """One choice in the engine. ``account`` is there once it has finished."""

    request_id: str
    stream: RequestStream
    meter: RequestMeter
    account: RequestMetrics | None = None

    def observe(self, output: RequestOutput) -> None:
        """Take note of one output."""
        self.meter.observe(output)
        self.account = output.metrics or self.account
        if output.finish_reason is FinishReason.ERROR:
            _log.warning("request %s was cut off: %s", self.request_id, output.error)

    async def aclose(self) -> None:
        """Abort the choice if it still runs."""
        self.meter.abandon()
        await self.stream.aclose()


class Generation:
    """Choices that started together and end together. Whoever holds one must ``aclose`` it."""

    def __init__(self, choices: Sequence[RunningChoice], closing: AsyncExitStack) -> None:
        self._choices = choices
        self._closing = closing

    @classmethod
    async def start(
        cls, requests: Sequence[GenerateRequest], engine: EngineClient, metrics: ServerMetrics, arrived_at: float
    ) -> Generation:
        """Submit all ``requests``, or none: when one is refused, those before it are aborted.

        Args:
            arrived_at: when the call came in, by the clock of ``metrics``.

        Raises:
            InvalidRequest, QueueFull, EngineUnavailable: as ``EngineClient.submit``.
        """
        choices = []
        async with AsyncExitStack() as closing:
            for request in requests:
                await asyncio.sleep(0)  # between many choices the others have their turn
                meter = metrics.start_request(arrived_at, max_tokens=request.params.max_tokens)
                choice = RunningChoice(request.request_id, await engine.submit(request), meter)
                closing.push_async_callback(choice.aclose)
                choices.append(choice)
            return cls(choices, closing.pop_all())

    @property
    def choices(self) -> Sequence[RunningChoice]:
        """In the order of the requests."""
        return self._choices

    @property
    def accounts(self) -> list[RequestMetrics]:
        """Of all choices, once every one has finished."""
        return [choice.account for choice in self._choices if choice.account is not None]

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """Every output of every choice as it comes, with the choice's place in ``choices``."""
        arrived: asyncio.Queue[tuple[int, RequestOutput | Exception]] = asyncio.Queue()
        pumps = [asyncio.create_task(_pump(i, c.stream, arrived)) for i, c in enumerate(self._choices)]
        num_running = len(pumps)
        try:
            while num_running:
                place, output = await arrived.get()
                if isinstance(output, Exception):
                    raise output
                self._choices[place].observe(output)
                num_running -= output.finish_reason is not None
                if output.finish_reason is FinishReason.ERROR:  # the engine has stopped, for all of them
                    for choice in self._choices:
                        choice.meter.fail()
                yield place, output
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def aclose(self) -> None:
        """Abort every choice that still runs. Idempotent."""
        await self._closing.aclose()


async def _pump(
    place: int, stream: RequestStream, arrived: asyncio.Queue[tuple[int, RequestOutput | Exception]]
) -> None:
    try:
        async for output in stream:
            arrived.put_nowait((place, output))
            if output.finish_reason is not None:
                return
    except Exception as error:
        arrived.put_nowait((place, error))
    else:
        arrived.put_nowait((place, GenerationFailed("the engine ended this request without a last output")))
