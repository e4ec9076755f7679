"""Everything a client can get wrong is answered in one shape, with the field and the numbers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.errors import EngineUnavailable, InvalidRequest, QueueFull
from tests.fakes import FakeEngine
from tests.server.harness import complete, error_of, post, scrape, serve

GOOD = {"model": "fake", "prompt": "ab"}


async def _send(client: httpx.AsyncClient, content: str | bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json"} | headers
    return await client.post("/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize("missing", ["model", "prompt"])
async def test_a_missing_field_is_named(client: httpx.AsyncClient, missing: str) -> None:
    body = {key: value for key, value in GOOD.items() if key != missing}
    error = error_of(await _send(client, json.dumps(body)), 400)
    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b'{"model": "fake", "prompt": "ab",}',
        b'{"model": "fake", "prompt": "\xff"}',
        b'\xef\xbb\xbf{"model": "fake", "prompt": "ab"}',
        b'{"model": "fake", "prompt": "ab", "temperature": NaN}',
        b'{"model": "fake", "prompt": "ab", "temperature": Infinity}',
        b'{"model": "fake", "prompt": "ab", "temperature": -Infinity}',
        b'{"model": "fake", "prompt": "ab", "temperature": 1e999}',
        b'{"model": "fake", "prompt": "ab", "logit_bias": {"1": -1e999}}',
        b'{"model": "fake", "prompt": "ab", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "fake", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "fake", "prompt": "ab", "x": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
        b'{"model": "fake", "prompt": "\\ud800"}',
        b'{"model": "fake", "prompt": ["a", "\\uDFFF"]}',
        b'{"model": "fake", "prompt": "ab", "stop": "\\ud83d"}',
        b'{"model": "fake", "prompt": "ab", "\\ud800": 1}',
        b'{"model": "\\udc00", "prompt": "ab"}',
        b'{"model": "fake", "prompt": "ab", "n": 1, "n": 2}',
        b'{"model": "fake", "prompt": "ab", "speculation": {"mode": "off", "mode": "auto"}}',
        b'{"model": "fake", "prompt": [1.0]}',
        b"[]",
        b"null",
        b'"text"',
        b"3",
        '{"model": "fake", "prompt": "ab"}'.encode("utf-16"),
    ],
)
async def test_a_bad_body_is_a_400(client: httpx.AsyncClient, engine: FakeEngine, content: bytes) -> None:
    assert error_of(await _send(client, content), 400)["type"] == "invalid_request_error"
    assert engine.requests == []


async def test_a_lone_surrogate_names_its_field(client: httpx.AsyncClient) -> None:
    content = b'{"model": "fake", "prompt": "ab", "logit_bias": {"\\ud800": 1}}'
    assert error_of(await _send(client, content), 400)["param"] == "logit_bias"


async def test_a_whole_pair_of_surrogates_is_a_character(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await _send(client, b'{"model": "fake", "prompt": "\\ud83d\\ude00 \\\\ud800"}')
    assert response.status_code == 200
    assert engine.requests[0].prompt == tuple("\U0001f600 \\ud800".encode())


@pytest.mark.parametrize(
    "media_type", ["", "text/plain", "application/x-www-form-urlencoded", "json", "application/json; charset=utf-16"]
)
async def test_other_media_types_are_refused(client: httpx.AsyncClient, media_type: str) -> None:
    response = await _send(client, json.dumps(GOOD), **{"content-type": media_type})
    assert "Content-Type" in error_of(response, 400)["message"]


async def test_no_media_type_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", content=json.dumps(GOOD))
    assert "content-type" not in response.request.headers
    error_of(response, 400)


async def test_media_type_with_a_charset_is_taken(client: httpx.AsyncClient) -> None:
    response = await _send(client, json.dumps(GOOD), **{"content-type": "Application/JSON; charset=utf-8"})
    assert response.status_code == 200


async def test_unknown_fields_may_be_ignored() -> None:
    async with serve(FakeEngine(), unknown_fields="ignore") as client:
        await complete(client, anything=1, speculation={"depth": 3})
        error_of(await post(client, anything=1, n="3"), 400)


async def test_unknown_field_has_a_code(client: httpx.AsyncClient) -> None:
    assert error_of(await post(client, stop_tokens=[1]), 400)["code"] == "unknown_parameter"


async def test_limits_name_their_numbers() -> None:
    limits = {"max_prompts_per_request": 2, "max_choices_per_request": 4, "max_request_bytes": 500}
    async with serve(FakeEngine(), **limits) as client:
        await complete(client, prompt=["a", "b"], n=2)
        error = error_of(await post(client, prompt=["a", "b", "c"]), 400)
        assert error["param"] == "prompt"
        assert error["message"] == "prompt may hold 2 prompts, not 3"
        error = error_of(await post(client, prompt=["a", "b"], n=3), 400)
        assert error["param"] == "n"
        assert "4 choices, not 2 prompts with n = 3" in error["message"]
        error = error_of(await post(client, prompt=["a", "b"], best_of=3), 400)
        assert error["param"] == "best_of"
        assert "4 choices, not 2 prompts with best_of = 3" in error["message"]
        long = json.dumps(GOOD | {"user": "x" * 500})
        error = error_of(await _send(client, long), 400)
        assert error["code"] == "request_too_large"
        assert "500" in error["message"]
        assert str(len(long)) in error["message"]


async def test_a_long_body_of_unknown_length_is_refused() -> None:
    async def drip() -> Any:
        for _ in range(100):
            yield b" " * 100

    async with serve(FakeEngine(), max_request_bytes=500) as client:
        response = await client.post("/v1/completions", content=drip(), headers={"content-type": "application/json"})
    assert "content-length" not in response.request.headers
    assert error_of(response, 400)["code"] == "request_too_large"


async def test_an_unknown_model_is_a_404(client: httpx.AsyncClient) -> None:
    error = error_of(await post(client, model="gpt"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert '"gpt"' in error["message"]
    error_of(await post(client, model="m" * 10_000), 404)


async def test_a_full_queue_is_a_429(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refusals.append(QueueFull("8 requests are waiting"))
    response = await post(client)
    assert error_of(response, 429)["type"] == "rate_limit_error"
    assert response.headers["retry-after"] == "1"


async def test_a_dead_engine_is_a_503(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refusals.append(EngineUnavailable("the engine has stopped"))
    assert error_of(await post(client, stream=True), 503)["code"] == "engine_unavailable"


async def test_what_the_engine_says_of_a_field_is_passed_on(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refusals.append(InvalidRequest("7 is odd", param="speculation.mode", code="odd"))
    error = error_of(await post(client), 400)
    assert (error["message"], error["param"], error["code"]) == ("7 is odd", "speculation.mode", "odd")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_refused_choice_takes_the_others_with_it(
    client: httpx.AsyncClient, engine: FakeEngine, is_stream: bool
) -> None:
    engine.refusals.extend([None, None, QueueFull("full")])
    error_of(await post(client, n=4, stream=is_stream), 429)
    assert len(engine.requests) == 2
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)


async def test_a_fault_shows_nothing_of_the_inside(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refusals.append(KeyError("/srv/secret.py"))
    error = error_of(await post(client), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]


async def test_routes_that_are_not_there(client: httpx.AsyncClient) -> None:
    assert error_of(await client.get("/v1/nothing"), 404)["code"] == "unknown_url"
    error_of(await client.get("/" + "x" * 9000), 404)
    error_of(await client.post("/v1/completions/", json=GOOD), 404)
    response = await client.get("/v1/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


async def test_refusals_are_counted_by_reason(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await _send(client, b"{")
    await post(client, n=0)
    await post(client, model="gpt")
    await post(client, prompt="x" * 64)
    engine.refusals.extend([QueueFull("full"), EngineUnavailable("dead")])
    await post(client)
    await post(client)
    samples = await scrape(client)
    reasons = {
        "invalid_request": 2,
        "model_not_found": 1,
        "context_length_exceeded": 1,
        "queue_full": 1,
        "engine_unavailable": 1,
    }
    for reason, count in reasons.items():
        assert samples[f"draftahead_rejected_requests_total{{reason={reason}}}"] == count
