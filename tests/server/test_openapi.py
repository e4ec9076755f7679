"""The server's own description is complete, and true of whatever generated requests get."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from fastapi.routing import iter_route_contexts
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server.app import create_app
from server.reception import open_reception
from server.settings import ServerSettings
from tests.fakes import FakeEngine, Script
from tests.server.harness import HELLO

NUM_CASES = 2000
NUM_CASES_BY_ROUTE = 520  # of the four routes with a body; the others take no input
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
)


def make_app() -> Any:
    engine, server_settings = FakeEngine(Script(say=lambda _: b"Hi")), ServerSettings()
    app = create_app(engine, server_settings)
    app.state.reception = open_reception(engine, server_settings)  # nobody runs the app's life here
    return app


APP = make_app()
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
statuses: Counter[tuple[str, int]] = Counter()


@SCHEMA.parametrize()
@settings(max_examples=NUM_CASES_BY_ROUTE, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_request_is_answered_otherwise_than_described(case: Any) -> None:
    _give_a_chance(case.body, is_odd=statuses.total() % 2 == 1)
    response = case.call()
    statuses[case.path, response.status_code] += 1
    case.validate_response(response, checks=CHECKS)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "prompt"), [("/v1/completions", {"prompt": "ab"}), ("/v1/chat/completions", {"messages": HELLO})]
)
def test_an_answer_is_as_described_streamed_or_not(path: str, prompt: dict[str, Any], is_stream: bool) -> None:
    body = {"model": "fake", "stream": is_stream, **prompt}
    case = SCHEMA[path]["POST"].Case(body=body, media_type="application/json")
    response = case.call()
    assert response.status_code == 200
    case.validate_response(response, checks=CHECKS)


def _give_a_chance(body: Any, *, is_odd: bool) -> None:
    """A model by any other name is only ever a 404, and what no schema says of messages makes most of them a 400."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = "fake"
    if isinstance(body, dict) and is_odd and isinstance(body.get("messages"), list):
        body["messages"] = HELLO


def test_the_cases_were_many_and_went_both_ways() -> None:
    assert statuses.total() >= NUM_CASES
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert statuses[path, 200] >= 10, path
        assert statuses[path, 400] >= 10, path


# The playground is for people.
PAGE = ("/", "/playground/{name}")


def test_every_route_is_described() -> None:
    document = APP.openapi()
    described = {(path, method) for path, operations in document["paths"].items() for method in operations}
    served = {
        (context.path.replace(":path}", "}"), method.lower())
        for context in iter_route_contexts(APP.routes)
        for method in context.methods or ()
        if context.path != "/openapi.json" and context.path not in PAGE
    }
    assert described == served
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (path, method)
            assert {"4XX", "5XX"} <= set(operation["responses"])


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_there_are_no_pages_that_load_scripts_from_elsewhere(path: str) -> None:
    assert all(context.path != path for context in iter_route_contexts(APP.routes))
