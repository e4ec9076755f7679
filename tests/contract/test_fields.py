"""Every field of a request does what the table says, and what comes out does not depend on how it was made.

Each is asked of the whole server on a small model in float32: plain and drafted, in one piece and streamed.
"""

from __future__ import annotations

import httpx
import pytest

from server.chat_protocol import ChatRequest
from server.chat_unserved import ChatUnservedFields
from server.completion_protocol import CompletionRequest
from server.unserved import UnservedFields
from tests.contract.asking import OFF, ask
from tests.contract.fields import BOTH, ELSEWHERE, FIELDS, Field

CASES = [pytest.param(route, field, id=f"{route}.{field.name}") for field in FIELDS for route in field.routes]


@pytest.mark.parametrize(("route", "field"), CASES)
async def test_a_field_does_what_it_says(client: httpx.AsyncClient, route: str, field: Field) -> None:
    plain = await ask(client, route, field.without | OFF)
    body = field.without | field.body_after(plain)
    answer = await ask(client, route, body | OFF)
    assert answer.num_drafted == 0
    assert field.proof(answer, plain)
    drafted = await ask(client, route, body)
    assert drafted.said == answer.said
    if field.same_as is not None:
        assert answer.choices == (await ask(client, route, field.without | field.same_as)).choices
    if field.streams:
        for more in (OFF, {}):
            assert (await ask(client, route, body | more, streams=True)).said == answer.said


async def test_the_requests_are_drafted(client: httpx.AsyncClient) -> None:
    for route in BOTH:
        assert (await ask(client, route, {})).num_drafted > 5
        assert (await ask(client, route, {}, streams=True)).num_drafted > 5


def test_every_field_has_its_line() -> None:
    described = {f"{route}.{field.name}" for field in FIELDS for route in field.routes}
    described |= {f"{route}.{name}" for name in ELSEWHERE for route in BOTH} | set(ELSEWHERE)
    for route, model_type, unserved in (
        ("completions", CompletionRequest, [UnservedFields]),
        ("chat", ChatRequest, [UnservedFields, ChatUnservedFields]),
    ):
        served = set(model_type.model_fields) - {name for fields in unserved for name in fields.model_fields}
        assert {f"{route}.{name}" for name in served} <= described
