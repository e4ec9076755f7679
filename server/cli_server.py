"""Runs the HTTP server from its first connection to its last.

Knows signals and how a server drains. Refuses to know what is served.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine.client import EngineClient

_log = logging.getLogger(__name__)

# The HTTP library tells of every start and stop at INFO; that is news only to whoever debugs.
_LOG_LEVELS = {"debug": "info", "info": "warning"}

# Once the engine has stopped, requests only have an error to write.
_SECONDS_TO_FAIL = 5


def run_server(
    app: FastAPI,
    engine: EngineClient,
    listener: socket.socket,
    *,
    log_level: str,
    drain_timeout: int,
    on_started: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish; a second signal ends them at once.

    Args:
        engine: the one behind ``app``, which starts it.
        listener: a bound socket; closed at the end.
        log_level: the least grave message to show.
        drain_timeout: seconds for the running requests; what runs on is told that the server stops.
        on_started: called once requests are taken.
    """
    settings = uvicorn.Config(
        app,
        log_config=None,
        log_level=_LOG_LEVELS.get(log_level, log_level),
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=drain_timeout + _SECONDS_TO_FAIL,
    )
    _Server(settings, engine, drain_timeout=drain_timeout, on_started=on_started).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(
        self,
        settings: uvicorn.Config,
        engine: EngineClient,
        *,
        drain_timeout: int,
        on_started: Callable[[], None],
    ) -> None:
        super().__init__(settings)
        self._engine = engine
        self._drain_timeout = drain_timeout
        self._hurry = asyncio.Event()
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.info("stopping: no new requests; running ones have %d s to finish", self._drain_timeout)
        self._engine.drain()
        # The library would cancel what runs on, and its clients would see nothing but a cut connection.
        deadline = asyncio.create_task(self._stop_engine_late())
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The library would keep the signal and send it to itself in the end; being told to stop is no failure.
        if self.should_exit:  # told a second time
            asyncio.get_running_loop().call_soon_threadsafe(self._hurry.set)
        self.should_exit = True

    async def _stop_engine_late(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._drain_timeout)
        await self._engine.stop()
