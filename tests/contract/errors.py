"""Everything that a client or the server can get wrong, row by row, with what must come back.

Each row is asked of every route that it can befall; the table of errors in docs/api.md may say no more and no less.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineUnavailable, QueueFull

Json = dict[str, Any]

BODIES: dict[str, Json] = {
    "/v1/completions": {"model": "fake", "prompt": "ab"},
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "ab"}]},
    "/tokenize": {"prompt": "ab"},
    "/detokenize": {"tokens": [97]},
}
COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE = BODIES
GENERATING = (COMPLETIONS, CHAT)
JSON_TYPE = {"Content-Type": "application/json"}
_INVALID = "invalid_request_error"


@dataclass(frozen=True)
class Row:
    """One way to fail.

    Attributes:
        name: what is wrong.
        send: the bytes of the request, given the route's body that would be served.
        param: the field that must be named.
        method, headers: of the request.
        settings: of the server.
        failure: what the engine raises.
        streams: whether it is asked for as a stream too; then the answer is the same, as nothing was sent before it.
    """

    name: str
    send: Callable[[Json], bytes]
    param: str | None = None
    status: int = 400
    type: str = _INVALID
    code: str | None = None
    paths: tuple[str, ...] = tuple(BODIES)
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: JSON_TYPE)
    settings: Json = field(default_factory=dict)
    failure: Exception | None = None
    streams: bool = False


def _whole(body: Json) -> bytes:
    return json.dumps(body).encode()


def _bytes(content: bytes) -> Callable[[Json], bytes]:
    return lambda body: content


def _with(**fields: Any) -> Callable[[Json], bytes]:
    return lambda body: _whole(body | fields)


def _and(member: str) -> Callable[[Json], bytes]:
    """The body with a member that no JSON library would write."""
    return lambda body: _whole(body)[:-1] + f", {member}}}".encode()


def _streamable(name: str, fields: Json, param: str | None, **rest: Any) -> Row:
    return Row(name, _with(**fields), param, **{"paths": GENERATING, "streams": True} | rest)


ROWS = [
    Row("no body", _bytes(b"")),
    Row("invalid JSON: cut off", lambda body: _whole(body)[:-1]),
    Row("invalid JSON: a comma too many", lambda body: _whole(body)[:-1] + b",}"),
    Row("invalid JSON: not UTF-8", _bytes(b'{"model": "\xff"}')),
    Row("invalid JSON: a key twice", _and('"model": "fake", "model": "fake"')),
    Row("a list in the place of an object", lambda body: b"[" + _whole(body) + b"]"),
    Row("wrong type", _with(model=3), "model"),
    *(
        Row(f"temperature {number}", _and(f'"temperature": {number}'), paths=GENERATING)
        for number in ("NaN", "Infinity", "-Infinity")
    ),
    Row("temperature 1e999", _and('"temperature": 1e999'), "temperature", paths=GENERATING),
    Row("a lone surrogate in the prompt", _with(prompt="\ud800"), "prompt", paths=(COMPLETIONS, TOKENIZE)),
    Row(
        "a lone surrogate in a message",
        _with(messages=[{"role": "user", "content": "a\udfff"}]),
        "messages.content",
        paths=(CHAT,),
    ),
    *(
        _streamable(f"n is {json.dumps(value)}, which is no integer", {"n": value}, "n")
        for value in (True, "3", 2.0, [1], {})
    ),
    _streamable("n out of its range", {"n": 129}, "n"),
    *(
        _streamable(f"prompt is {json.dumps(value)}", {"prompt": value}, "prompt", paths=(COMPLETIONS,))
        for value in ([1, True], [1.0, 2], [], [[]], [[1], []], "", None)
    ),
    Row("token ids that are none", _with(tokens=[1, True]), "tokens.1", paths=(DETOKENIZE,)),
    _streamable("no messages", {"messages": []}, "messages", paths=(CHAT,)),
    _streamable("a field out of its range", {"temperature": 2.1}, "temperature"),
    _streamable("an unserved field", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    Row("an unknown field", _with(frequency_penalti=1), "frequency_penalti", code="unknown_parameter"),
    Row("a field too few", _bytes(b"{}"), "model", code="missing_required_parameter", paths=GENERATING),
    *(
        Row(f"Content-Type: {media_type or 'none'}", _whole, headers={"Content-Type": media_type} if media_type else {})
        for media_type in ("", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16")
    ),
    Row("too long", _with(user="x" * 500), code="request_too_large", settings={"max_request_bytes": 500}),
    Row("X-Request-Id with a space", _whole, "X-Request-Id", headers={**JSON_TYPE, "X-Request-Id": "a b"}),
    _streamable(
        "the prompt is the context",
        {"prompt": "x" * 64},
        "prompt",
        code="context_length_exceeded",
        paths=(COMPLETIONS,),
    ),
    _streamable("over the context", {"max_tokens": 63}, "max_tokens", code="context_length_exceeded"),
    Row("no key", _whole, None, 401, "authentication_error", "invalid_api_key", settings={"api_keys": ("mine",)}),
    Row(
        "a wrong key",
        _whole,
        None,
        401,
        "authentication_error",
        "invalid_api_key",
        headers=JSON_TYPE | {"Authorization": "Bearer yours"},
        settings={"api_keys": ("mine",)},
    ),
    Row("an unknown model", _with(model="other"), "model", 404, code="model_not_found"),
    _streamable("an unknown model, streamed", {"model": "other"}, "model", status=404, code="model_not_found"),
    Row("an unknown route", _whole, None, 404, code="unknown_url", paths=("/v1/nothing", "/v1/completions/")),
    Row("a wrong method", _bytes(b""), None, 405, code="method_not_allowed", method="GET"),
    _streamable(
        "too many requests",
        {},
        None,
        status=429,
        type="rate_limit_error",
        code="queue_full",
        failure=QueueFull("8 are waiting"),
    ),
    _streamable(
        "a fault of the server",
        {},
        None,
        status=500,
        type="server_error",
        code="internal_error",
        failure=KeyError("/secret"),
    ),
    _streamable(
        "the engine has died",
        {},
        None,
        status=503,
        type="service_unavailable_error",
        code="engine_unavailable",
        failure=EngineUnavailable("the engine has died"),
    ),
]
# What a row cannot say, and the test that proves it.
ELSEWHERE = {(408, _INVALID, "request_timeout"): "server/test_slow_body.py::test_a_body_has_to_come_in_time"}
