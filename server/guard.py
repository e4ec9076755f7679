"""Who may ask, and the name that a request goes by: API keys and X-Request-Id. Knows headers; reads no body."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server import playground
from server.errors import error_body, fault_body, json_text

REQUEST_ID = "X-Request-Id"
# What probes, scrapers and browsers ask, which tells nothing of what is generated.
OPEN_PATHS = playground.PATHS | {"/health", "/ping", "/version", "/metrics"}
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Guard:
    """Middleware around all routes.

    Args:
        api_keys: any of them opens the routes that are not in ``OPEN_PATHS``; none leaves all open.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get(REQUEST_ID)
        is_named = asked is not None and _REQUEST_ID.fullmatch(asked) is not None
        reply = _Reply(send, asked if asked is not None and is_named else uuid.uuid4().hex)
        if asked is not None and not is_named:
            refusal = _refuse_name(asked)
        elif self._is_locked(scope) and not self._opens(headers.get("authorization", "")):
            refusal = _refuse_key("authorization" in headers)
        else:
            await self._pass_on(scope, receive, reply, asked)
            return
        await refusal(scope, receive, reply.send)

    async def _pass_on(self, scope: Scope, receive: Receive, reply: _Reply, asked: str | None) -> None:
        scope.setdefault("state", {})["request_id"] = asked
        try:
            await self._app(scope, receive, reply.send)
        except Exception:
            # Answered here, because whoever answers further out does not know the name.
            if not reply.has_begun:
                await JSONResponse(fault_body(), status_code=500)(scope, receive, reply.send)
            raise

    def _is_locked(self, scope: Scope) -> bool:
        return bool(self._digests) and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS"

    def _opens(self, authorization: str) -> bool:
        """Takes as long for a wrong key as for a right one."""
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip())
        matches = [compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class _Reply:
    """Puts the name on an answer."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            MutableHeaders(scope=message)[REQUEST_ID] = self._request_id
        await self._send(message)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def _refuse_name(asked: str) -> JSONResponse:
    message = f"{REQUEST_ID} must be 1 to 128 visible ASCII characters, not {json_text(asked)}"
    return JSONResponse(error_body(message, "invalid_request_error", param=REQUEST_ID), status_code=400)


def _refuse_key(has_key: bool) -> JSONResponse:
    message = (
        "the API key is not one of this server's"
        if has_key
        else "an API key is needed: send it as 'Authorization: Bearer KEY'"
    )
    body = error_body(message, "authentication_error", code="invalid_api_key")
    return JSONResponse(body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
