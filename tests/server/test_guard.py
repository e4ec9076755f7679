"""API keys, the names of requests, and pages of other origins."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from engine.errors import ConfigError
from server.settings import ServerSettings
from tests.fakes import FakeEngine, Script
from tests.server.harness import post, post_chat, serve

KEYS = ("first-key", "second-key")
LOCKED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/tokenizer_info"),
    ("GET", "/load"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
]
OPEN = [
    ("GET", "/health"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/"),
    ("GET", "/playground/main.js"),
]


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": key}


@pytest.mark.parametrize(("method", "path"), LOCKED)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer third-key",
        "Bearer first-key second-key",
        "Basic first-key",
        "first-key",
        "Bearer FIRST-KEY",
        "Bearer first-key\udcff",
    ],
)
async def test_without_a_key_nothing_is_told(method: str, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode("utf-8", "surrogateescape")}
    async with serve(FakeEngine(), api_keys=KEYS) as client:
        response = await client.request(method, path, headers=headers)  # type: ignore[arg-type]
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert "key" not in error["message"].replace("API key", "").replace("KEY", "")


@pytest.mark.parametrize("authorization", ["Bearer first-key", "bearer second-key", "BEARER  first-key "])
async def test_each_key_opens(authorization: str) -> None:
    async with serve(FakeEngine(), api_keys=KEYS) as client:
        assert (await client.get("/v1/models", headers=bearing(authorization))).status_code == 200
        client.headers["Authorization"] = authorization
        assert (await post(client)).status_code == 200
        assert (await post_chat(client)).status_code == 200


@pytest.mark.parametrize(("method", "path"), OPEN)
async def test_what_is_open_asks_for_no_key(method: str, path: str) -> None:
    async with serve(FakeEngine(), api_keys=KEYS) as client:
        assert (await client.request(method, path)).status_code == 200


async def test_without_keys_all_is_open(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).status_code == 200
    assert (await client.get("/v1/models", headers=bearing("Bearer none"))).status_code == 200


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "tab\t"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        ServerSettings(api_keys=("good", key))


def test_keys_are_not_shown() -> None:
    assert "first-key" not in repr(ServerSettings(api_keys=KEYS))


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
async def test_a_request_keeps_its_name(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path, headers={"X-Request-Id": "my-request/7"})
    assert response.headers["X-Request-Id"] == "my-request/7"


async def test_a_nameless_request_gets_a_name_of_its_own(client: httpx.AsyncClient) -> None:
    names = {(await client.get("/health")).headers["X-Request-Id"] for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)


async def test_the_answer_is_called_after_the_request(client: httpx.AsyncClient) -> None:
    client.headers["X-Request-Id"] = "mine"
    assert (await post(client)).json()["id"] == "cmpl-mine"
    assert (await post(client)).json()["id"] == "cmpl-mine", "one name may come twice"
    assert (await post_chat(client)).json()["id"] == "chatcmpl-mine"
    assert (await post(client, request_id="field")).json()["id"] == "cmpl-field"


@pytest.mark.parametrize("name", ["", " ", "x" * 129, "two words", "tab\t", "é"])
async def test_a_name_that_logs_cannot_carry_is_refused(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get("/health", headers={"X-Request-Id": name.encode()})  # type: ignore[dict-item]
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Id"
    assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-Id"])


async def test_refusals_and_faults_have_a_name_too() -> None:
    def fail(_: Any) -> bytes:
        raise RuntimeError("a fault")

    async with serve(FakeEngine(Script(say=fail)), api_keys=KEYS) as client:
        client.headers["X-Request-Id"] = "mine"
        refused = await post(client)
        client.headers["Authorization"] = "Bearer first-key"
        failed = await post(client)
    assert (refused.status_code, refused.headers["X-Request-Id"]) == (401, "mine")
    assert (failed.status_code, failed.headers["X-Request-Id"]) == (500, "mine")
    assert failed.json()["error"]["code"] == "internal_error"
    assert "a fault" not in failed.text


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize(
    ("allowed", "origin", "answer"),
    [
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example", "https://b.example"), "https://b.example", "https://b.example"),
        (("*",), "https://c.example", "*"),
        (("https://a.example",), "https://evil.example", None),
        ((), "https://a.example", None),
    ],
)
async def test_pages_of_allowed_origins_may_call(allowed: tuple[str, ...], origin: str, answer: str | None) -> None:
    async with serve(FakeEngine(), api_keys=KEYS, allowed_origins=allowed) as client:
        client.headers["Origin"] = origin
        asked = await client.options("/v1/completions", headers=PREFLIGHT)
        refused = await post(client)
    assert asked.headers.get("Access-Control-Allow-Origin") == answer
    assert asked.is_success == (answer is not None)
    assert refused.status_code == 401
    assert refused.headers.get("Access-Control-Allow-Origin") == answer
