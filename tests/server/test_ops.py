"""The routes that only look, the settings, and what importing the server costs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from engine.errors import ConfigError
from server.app import create_app
from server.settings import ServerSettings
from tests.fakes import FakeEngine, Script
from tests.server.harness import error_of, post, serve


async def test_models() -> None:
    async with serve(FakeEngine(), served_model_names=("org/main", "alias")) as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/org/main")).json()
        error = error_of(await client.get("/v1/models/none"), 404)
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["org/main", "alias"]
    assert one == listed["data"][0]
    assert one.items() >= {"object": "model", "owned_by": "draftahead", "max_model_len": 64}.items()
    assert isinstance(one["created"], int)
    assert error["code"] == "model_not_found"


async def test_the_engine_names_itself(client: httpx.AsyncClient) -> None:
    assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["fake"]


async def test_health(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.get("/health")
    assert (response.status_code, response.content) == (200, b"")
    engine.is_healthy = False
    error_of(await client.get("/health"), 503)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_is_health_by_another_name(client: httpx.AsyncClient, engine: FakeEngine, method: str) -> None:
    response = await client.request(method, "/ping")
    assert (response.status_code, response.content) == (200, b"")
    engine.is_healthy = False
    error_of(await client.request(method, "/ping"), 503)


async def test_load_counts_what_is_in_flight() -> None:
    async with serve(FakeEngine(Script(hang_after=1))) as client:
        assert (await client.get("/load")).json() == {"server_load": 0}
        hanging = asyncio.create_task(post(client, n=3))
        while not (load := (await client.get("/load")).json()["server_load"]):
            await asyncio.sleep(0)
        assert load == 3
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging


async def test_version(client: httpx.AsyncClient) -> None:
    body = (await client.get("/version")).json()
    assert body.keys() == {"version"}
    assert body["version"]


async def test_the_engine_lives_as_long_as_the_app(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings())
    states = [engine.is_running]
    async with app.router.lifespan_context(app):
        states.append(engine.is_running)
    states.append(engine.is_running)
    assert states == [False, True, False]


async def test_the_engine_stops_when_the_app_dies(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings())
    with pytest.raises(KeyError):
        async with app.router.lifespan_context(app):
            raise KeyError
    assert not engine.is_running


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"unknown_fields": "maybe"}, "maybe"),
        ({"served_model_names": ("a", "a")}, "twice"),
        ({"served_model_names": ("a", "")}, "empty"),
        ({"max_request_bytes": 0}, "max_request_bytes"),
        ({"body_timeout": 0}, "body_timeout"),
        ({"max_prompts_per_request": -1}, "max_prompts_per_request"),
        ({"max_choices_per_request": 0}, "max_choices_per_request"),
        ({"max_logprobs": -2}, "max_logprobs must be -1 or at least 0, not -2"),
    ],
)
def test_bad_settings(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        ServerSettings(**settings)


def test_the_app_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import server.app; "
        "import json; print(json.dumps([m for m in sys.modules if m.startswith('engine.')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ground = {
        "engine.types",
        "engine.step_stats",
        "engine.params",
        "engine.provenance",
        "engine.config",
        "engine.errors",
        "engine.client",
        "engine.version",
    }
    assert set(json.loads(done.stdout)) <= ground
