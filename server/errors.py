"""Every error in OpenAI's shape. Knows status codes and wording; never decides when an error happens."""

from __future__ import annotations

import json
from typing import NamedTuple, cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from engine.errors import DraftaheadError, EngineUnavailable, InvalidRequest, QueueFull

# Escaped as JSON a character takes up to 6 bytes: these keep a body under 4 kB whatever a client sends.
_MAX_MESSAGE = 500
_MAX_PARAM = 100
_MAX_SHOWN = 80


class ModelNotFound(InvalidRequest):
    """The request names a model that is not served here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class BodyTimeout(DraftaheadError):
    """A request's body did not come in time."""


class GenerationFailed(DraftaheadError):
    """An accepted request ended in a way that should not be."""


class _Reply(NamedTuple):
    status: int
    type: str
    code: str | None = None
    headers: dict[str, str] | None = None


def error_body(
    message: str, type_: str, *, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    """The body of every error answer, clipped so that it cannot grow with the request."""
    return {
        "error": {
            "message": _clip(message, _MAX_MESSAGE),
            "type": type_,
            "param": param if param is None else _clip(param, _MAX_PARAM),
            "code": code,
        }
    }


def body_of(error: DraftaheadError) -> dict[str, dict[str, str | None]]:
    """The error body for an error of this project, as plain JSON or inside a stream."""
    reply = _reply_to(error)
    param, code = (error.param, error.code) if isinstance(error, InvalidRequest) else (None, None)
    return error_body(str(error), reply.type, param=param, code=code or reply.code)


def fault_body() -> dict[str, dict[str, str | None]]:
    """The error body for a fault of ours; what it was is in the log."""
    return error_body("the server failed to handle this request", "server_error", code="internal_error")


def invalid_request(error: ValidationError) -> InvalidRequest:
    """The first complaint of pydantic as an error that names the field and what stood there."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) if first["loc"] else None
    if first["type"] == "extra_forbidden":
        return InvalidRequest(
            f"unrecognized request field: {param or json_text('')}", param=param, code="unknown_parameter"
        )
    if first["type"] == "missing":
        return InvalidRequest(f"{param} is required", param=param, code="missing_required_parameter")
    if param is None:
        return InvalidRequest(f"the request body must be a JSON object, not {json_text(first['input'])}")
    return InvalidRequest(f"{param}: {_complaint(first)}, not {json_text(first['input'])}", param=param)


def json_text(value: object) -> str:
    """A value from a request as it may appear in a message: scalars clipped, the rest by kind."""
    match value:
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case _:
            return _clip(json.dumps(value, ensure_ascii=False), _MAX_SHOWN)


def install_error_handlers(app: FastAPI) -> None:
    """Make ``app`` answer every failure in OpenAI's error shape."""
    app.add_exception_handler(DraftaheadError, _on_own_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_fault)


def _reply_to(error: DraftaheadError) -> _Reply:
    match error:
        case ModelNotFound():
            return _Reply(404, "invalid_request_error")
        case InvalidRequest():
            return _Reply(400, "invalid_request_error")
        case BodyTimeout():
            return _Reply(408, "invalid_request_error", "request_timeout", {"Connection": "close"})
        case QueueFull():
            return _Reply(429, "rate_limit_error", "queue_full", {"Retry-After": "1"})
        case EngineUnavailable():
            return _Reply(503, "service_unavailable_error", "engine_unavailable")
        case _:
            return _Reply(500, "server_error", "internal_error")


async def _on_own_error(_request: Request, error: Exception) -> Response:
    own = cast(DraftaheadError, error)
    reply = _reply_to(own)
    return JSONResponse(body_of(own), status_code=reply.status, headers=reply.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    http = cast(HTTPException, error)
    route = f"{request.method} {_clip(request.url.path, _MAX_SHOWN)}"
    message, code = {
        404: (f"there is no route {route}", "unknown_url"),
        405: (f"the route does not take this method: {route}", "method_not_allowed"),
    }.get(http.status_code, (str(http.detail), None))
    body = error_body(message, "invalid_request_error", code=code)
    return JSONResponse(body, status_code=http.status_code, headers=http.headers)


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    # Nobody reads this; 499 is the customary mark in an access log.
    return Response(status_code=499)


async def _on_fault(_request: Request, _error: Exception) -> Response:
    return JSONResponse(fault_body(), status_code=500)


def _complaint(details: ErrorDetails) -> str:
    if details["type"] == "model_type":
        return "input should be an object"
    message = details["msg"]
    return message[:1].lower() + message[1:]


def _clip(text: str, limit: int) -> str:
    printable = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate has no UTF-8
    return printable if len(printable) <= limit else f"{printable[: limit - 1]}…"
