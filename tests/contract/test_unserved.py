"""A field that is served in one value only takes that and null, and refuses everything else by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from server.chat_unserved import ChatUnservedFields
from server.unserved import UnservedFields
from tests.fakes import FakeEngine
from tests.server.harness import Json, error_of, post, post_chat, serve

SENDS = {"completions": post, "chat": post_chat}
CASES = [
    pytest.param(route, name, schema["enum"], id=f"{route}.{name}")
    for route, models in (("completions", [UnservedFields]), ("chat", [UnservedFields, ChatUnservedFields]))
    for model in models
    for name, schema in model.model_json_schema()["properties"].items()
]
VALUES: list[Any] = [True, False, 0, 1, 0.5, 7, "", "none", "auto", "text", [], ["text"], ["x"], {}, {"type": "text"}]


def _is(value: object, other: object) -> bool:
    """Whether JSON has them alike; true is no 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


@pytest.mark.parametrize("unknown_fields", ["reject", "ignore"])
@pytest.mark.parametrize(("route", "name", "served"), CASES)
async def test_an_unserved_field_asks_for_nothing_or_is_refused(
    route: str, name: str, served: list[Any], unknown_fields: str
) -> None:
    assert None in served
    async with serve(FakeEngine(), unknown_fields=unknown_fields) as client:
        plain = _choices(await SENDS[route](client))
        for value in served:
            assert _choices(await SENDS[route](client, **{name: value})) == plain
        for value in VALUES:
            if any(_is(value, other) for other in served):
                continue
            error = error_of(await SENDS[route](client, **{name: value}), 400)
            assert (error["param"], error["type"]) == (name, "invalid_request_error")
            assert error["message"].startswith(f"{name} must be ")


def _choices(response: httpx.Response) -> list[Json]:
    assert response.status_code == 200, response.text
    choices: list[Json] = response.json()["choices"]
    return choices
