"""The files of the page at /, as they are sent. What they do is seen in tests/playground."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from engine.speculation import draft_model, prediction, suffix
from server.playground import PATHS

FOLDER = Path(__file__).parents[2] / "server" / "playground"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def test_every_file_is_served() -> None:
    assert {"/", *(f"/playground/{path.name}" for path in FOLDER.iterdir())} == PATHS


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_a_file_comes_with_its_type_and_with_walls_around_it(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 200
    file = FOLDER / (path.rpartition("/")[2] or "index.html")
    assert response.content == file.read_bytes()
    assert response.headers["content-type"] == f"{TYPES[file.suffix]}; charset=utf-8"
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert {sources for name, sources in policy.items()} == {"'self'", "'none'"}
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_file_is_sent_again_only_when_it_has_changed(client: httpx.AsyncClient) -> None:
    first = await client.get("/")
    again = await client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = await client.get("/playground/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert other.status_code == 200


async def test_a_head_has_no_body(client: httpx.AsyncClient) -> None:
    response = await client.head("/")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["/playground/", "/playground/other.js", "/playground/..%2f__init__.py"])
async def test_nothing_else_is_served(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_a_file_needs_nothing_from_elsewhere(file: Path) -> None:
    text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|[\"'(]//", text)
    assert not re.search(r"\son\w+=|<style|style=|<script(?! type=\"module\" src=)", text)
    assert len(text.splitlines()) <= 150


@pytest.mark.parametrize("name", [prediction.NAME, suffix.NAME, suffix.SHARED_NAME, draft_model.NAME])
def test_every_drafter_has_a_name_and_a_colour(name: str) -> None:
    assert f"\n  {name}: " in (FOLDER / "names.js").read_text("utf-8")
    assert f'[data-name="{name}"]' in (FOLDER / "colours.css").read_text("utf-8")
    assert f"`{name}`" in (FOLDER.parents[1] / "docs" / "api.md").read_text("utf-8")
