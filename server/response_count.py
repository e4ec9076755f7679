"""Counts the answers to clients by their status. Knows nothing else of them."""

from __future__ import annotations

from typing import cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.guard import OPEN_PATHS
from server.reception import Reception


class ResponseCount:
    """Middleware around all that answers; a probe or a scrape is nobody's request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        reception = cast(Reception, scope["app"].state.reception)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                reception.metrics.count_response(message["status"])
            await send(message)

        await self._app(scope, receive, send_counted)
