"""Every row of what can go wrong, on every route, streamed or not: one status, one shape, the field and no more."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from tests.contract.errors import BODIES, ELSEWHERE, ROWS, Row
from tests.contract.table import PAGE
from tests.fakes import FakeEngine
from tests.server.harness import Json, error_of, serve

CASES = [
    pytest.param(row, path, is_stream, id=f"{row.name} [{path}{', streamed' * is_stream}]")
    for row in ROWS
    for path in row.paths
    for is_stream in ((False, True) if row.streams else (False,))
]
INSIDE = re.compile(r"Traceback|/\w+/|\.py\b|line \d+, in|pydantic|object at 0x|secret")


@pytest.mark.parametrize(("row", "path", "is_stream"), CASES)
async def test_a_row(row: Row, path: str, is_stream: bool) -> None:
    engine = FakeEngine()
    if row.failure is not None:
        engine.refusals.append(row.failure)
    body = BODIES.get(path, {}) | ({"stream": True} if is_stream else {})
    async with serve(engine, **row.settings) as client:
        response = await client.request(row.method, path, content=row.send(body), headers=row.headers)
        error = error_of(response, row.status)
        assert response.headers["content-type"] == "application/json"
        assert (error["type"], error["param"], error["code"]) == (row.type, row.param, row.code)
        assert not INSIDE.search(error["message"].replace(path, ""))
        assert engine.requests == []
        assert engine.num_in_flight == 0
        if path in BODIES:
            assert await _is_served(client, path, row.settings), "after an error the server serves as before"


async def _is_served(client: httpx.AsyncClient, path: str, settings: Json) -> bool:
    keys = settings.get("api_keys") or ("any",)
    response = await client.post(path, json=BODIES[path], headers={"Authorization": f"Bearer {keys[0]}"})
    return response.status_code == 200


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", ["model", "stop", "x" * 4000, "temperature"])
async def test_an_error_does_not_grow_with_the_request(path: str, field: str) -> None:
    long = ["y" * 2000] * 2000
    async with serve(FakeEngine()) as client:
        response = await client.post(path, content=json.dumps(BODIES[path] | {field: long}), headers=ROWS[0].headers)
    error_of(response, 400)  # which looks at the length


def test_the_page_has_every_row() -> None:
    """The table of errors names each status with its types and codes."""
    seen = {(row.status, row.type, row.code) for row in ROWS} | set(ELSEWHERE)
    section = PAGE.read_text().partition("## Errors")[2].partition("\n## ")[0]
    described = set()
    for status, type_, codes in re.findall(r"^\| (\d+) \| `(\w+)` \| (.*?) \|", section, re.MULTILINE):
        for code in codes.split(", "):
            described.add((int(status), type_, None if code == "null" else code.strip("`")))
    assert described == seen
