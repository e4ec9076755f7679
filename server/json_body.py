"""Strict JSON from a request. Knows bytes, encodings and limits; knows no field of any route."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from engine.errors import InvalidRequest
from server.errors import BodyTimeout, invalid_request, json_text
from server.settings import ServerSettings, UnknownFields

_Body = TypeVar("_Body", bound=BaseModel)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_JSON_TYPE = re.compile(r"\s*application/json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?;?\s*", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_body(request: Request, model: type[_Body], settings: ServerSettings) -> _Body:
    """The request's body as a ``model``.

    Raises:
        InvalidRequest: wrong media type, too long, not UTF-8, not JSON, or not what ``model`` asks for.
        BodyTimeout: it did not come in time.
        ClientDisconnect: the client left before the body was complete.
    """
    content_type = request.headers.get("content-type", "")
    if not _JSON_TYPE.fullmatch(content_type):
        raise InvalidRequest(f"Content-Type must be application/json in UTF-8, not {json_text(content_type)}")
    raw = await _read_in_time(request, settings)
    return _validate(model, parse_json(raw), settings.unknown_fields)


def parse_json(raw: bytes) -> Any:
    """Parse what RFC 8259 allows and UTF-8 can carry: no NaN, no Infinity, no lone surrogate.

    Raises:
        InvalidRequest: anything else.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        if _SURROGATE_ESCAPE.search(text):
            _refuse_surrogates(value, "")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the request body is not UTF-8: byte {error.start} is out of place") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"the request body is not valid JSON: {error.msg} ({where})") from error
    except RecursionError as error:
        raise InvalidRequest("the request body is nested too deeply") from error
    except ValueError as error:  # what the interpreter says of an integer with thousands of digits
        raise InvalidRequest("the request body holds a number with too many digits") from error
    return value


async def _read_in_time(request: Request, settings: ServerSettings) -> bytes:
    try:
        async with asyncio.timeout(settings.body_timeout):
            return await _read_bytes(request, settings.max_request_bytes)
    except TimeoutError as error:
        raise BodyTimeout(f"the request body did not come within {settings.body_timeout} seconds") from error


async def _read_bytes(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
        raise _too_long(f"{declared} bytes", limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_long("longer", limit)
    return bytes(body)


def _too_long(length: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"the request body may have {limit} bytes, this one is {length}", code="request_too_large")


def _validate(model: type[_Body], value: Any, unknown_fields: UnknownFields) -> _Body:
    try:
        return model.model_validate(value, extra="forbid" if unknown_fields == "reject" else "ignore")
    except ValidationError as error:
        raise invalid_request(error) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        key = next(key for key in value if sum(key == other for other, _ in pairs) > 1)
        raise InvalidRequest(f"the request body names {json_text(key)} twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the request body is not valid JSON: {name} is not a JSON number")


def _refuse_surrogates(value: Any, path: str) -> None:
    match value:
        case str() if _SURROGATE.search(value):
            name = path or "the request body"
            raise InvalidRequest(f"{name} holds a lone surrogate, which is no character", param=path or None)
        case list():
            for item in value:
                _refuse_surrogates(item, path)
        case dict():
            for key, item in value.items():
                _refuse_surrogates(key, path)
                _refuse_surrogates(item, f"{path}.{key}" if path else key)
