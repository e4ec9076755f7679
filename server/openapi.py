"""The description that the server gives of itself at /openapi.json. Knows which route takes which body.

Routes read their bodies themselves, so that every refusal has OpenAI's shape; what the framework finds out by itself is
therefore only half of it, and this is the other half.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.chat_protocol import ChatCompletion, ChatCompletionChunk, ChatRequest
from server.completion_protocol import Completion, CompletionRequest
from server.tokens import DetokenizeRequest, TokenizeRequest

_Json = dict[str, Any]

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
# The whole answer, and the chunks of a stream.
_ANSWERS: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "/v1/completions": (Completion, Completion),
    "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
}
_REF = "#/components/schemas/{model}"


class ErrorDetails(BaseModel):
    """What went wrong; ``param`` is the field that is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetails


def describe(app: FastAPI) -> _Json:
    """The OpenAPI document of ``app``, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> _Json:
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # two methods of one function: see below
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    inputs = _schemas(set(_BODIES.values()), "validation", schemas)
    outputs = _schemas({ErrorBody, *(model for pair in _ANSWERS.values() for model in pair)}, "serialization", schemas)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["operationId"] = f"{method}{path}"
            operation["responses"].pop("422", None)  # the framework's own refusal, which no route gives
            operation["responses"] |= {"4XX": _refusal(outputs), "5XX": _refusal(outputs)}
            if path in _BODIES:
                content = {"application/json": {"schema": inputs[_BODIES[path]]}}
                operation["requestBody"] = {"required": True, "content": content}
            if path in _ANSWERS:
                operation["responses"]["200"] = _answer(path, outputs)
    return document


def _schemas(
    models: set[type[BaseModel]], mode: Literal["validation", "serialization"], into: _Json
) -> dict[type[BaseModel], _Json]:
    """A reference to each model, whose definition is put among the others."""
    wanted = [(model, mode) for model in sorted(models, key=lambda model: model.__name__)]
    references, definitions = models_json_schema(wanted, ref_template=_REF)
    into |= definitions.get("$defs", {})
    return {cast(type[BaseModel], model): reference for (model, _), reference in references.items()}


def _refusal(schemas: dict[type[BaseModel], _Json]) -> _Json:
    return {"description": "The reason", "content": {"application/json": {"schema": schemas[ErrorBody]}}}


def _answer(path: str, schemas: dict[type[BaseModel], _Json]) -> _Json:
    whole, chunk = _ANSWERS[path]
    return {
        "description": f"The answer. With `stream: true` events `data: {chunk.__name__}`, at the end `data: [DONE]`.",
        "content": {"application/json": {"schema": schemas[whole]}, "text/event-stream": {}},
    }
