"""Messages on the wire, and what the template is given."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.errors import InvalidRequest
from tests.fakes import FakeEngine
from tests.server.harness import HELLO, chat, error_of, post_chat

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
ASKING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERING = {"role": "tool", "content": "5", "tool_call_id": "1"}


@pytest.mark.parametrize("role", ["developer", "system", "user", "assistant"])
async def test_roles(client: httpx.AsyncClient, engine: FakeEngine, role: str) -> None:
    await chat(client, messages=[{"role": role, "content": "x", "name": "Ann"}])
    assert engine.conversations[0] == [{"role": role, "content": "x", "name": "Ann"}]


async def test_an_answer_goes_back_as_it_came(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = (await chat(client))["choices"][0]["message"]
    unused = {"audio": None, "annotations": None, "function_call": None, "tool_calls": None}
    await chat(client, messages=[*HELLO, answer | unused, *HELLO], max_tokens=1)
    assert engine.conversations[1][1] == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        ("a\nb", "a\nb"),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ],
)
async def test_content(client: httpx.AsyncClient, engine: FakeEngine, content: Any, text: str) -> None:
    await chat(client, messages=[{"role": "user", "content": content}])
    assert engine.conversations[0][0]["content"] == text


async def test_calls_reach_the_template_with_arguments_as_an_object(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await post_chat(client, messages=[*HELLO, ASKING, ANSWERING])
    asking, answering = engine.conversations[0][1:]
    assert asking["content"] is None
    assert asking["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}]
    assert answering == {"role": "tool", "content": "5", "tool_call_id": "1"}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "user: ab\nassistant: "),
        ({"add_generation_prompt": True}, "user: ab\nassistant: "),
        ({"add_generation_prompt": False}, "user: ab\n"),
        ({"continue_final_message": True}, "user: ab"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "user: ab"),
        ({"continue_final_message": False, "chat_template_kwargs": {"x": 1}}, "{'x': 1}\nuser: ab\nassistant: "),
    ],
)
async def test_how_the_prompt_ends(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], prompt: str
) -> None:
    await chat(client, **fields)
    assert engine.requests[0].prompt == tuple(prompt.encode())


async def test_the_template_may_refuse(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    async def refuse(*_: Any, **__: Any) -> str:
        raise InvalidRequest("roles must alternate", param="messages")

    engine.render_chat = refuse  # type: ignore[method-assign]
    error = error_of(await post_chat(client), 400)
    assert (error["param"], error["message"]) == ("messages", "roles must alternate")


def _user(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x"} | fields]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("ab", "messages"),
        ([], "messages"),
        ({}, "messages"),
        (["ab"], "messages.0"),
        ([*HELLO, {"content": "x"}], "messages.1.role"),
        (_user(role="robot"), "messages.0.role"),
        (_user(role=None), "messages.0.role"),
        (_user(content=None), "messages.0.content"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "assistant", "content": None}], "messages.0.content"),
        (_user(content=5), "messages.0.content"),
        (_user(content={"type": "text", "text": "a"}), "messages.0.content"),
        (_user(content=[]), "messages.0.content"),
        (_user(content=["a"]), "messages.0.content.0"),
        (_user(content=[{"type": "text"}]), "messages.0.content.0.text"),
        (_user(content=[{"type": "text", "text": 1}]), "messages.0.content.0.text"),
        (_user(content=[{"text": "a"}]), "messages.0.content.0.type"),
        (_user(content=[{"type": "text", "text": "a", "x": 1}]), "messages.0.content.0.x"),
        (_user(name=5), "messages.0.name"),
        (_user(nick="Ann"), "messages.0.nick"),
        (_user(refusal="No"), "messages.0.refusal"),
        (_user(audio={"id": "1"}), "messages.0.audio"),
        (_user(function_call={"name": "f"}), "messages.0.function_call"),
        (_user(tool_calls=[CALL]), "messages.0.tool_calls"),
        (_user(tool_call_id="1"), "messages.0.tool_call_id"),
        (_user(role="tool"), "messages.0.tool_call_id"),
        ([ASKING | {"tool_calls": []}], "messages.0.tool_calls"),
        ([ASKING | {"tool_calls": [CALL | {"type": "custom"}]}], "messages.0.tool_calls.0.type"),
        ([ASKING | {"tool_calls": [{"id": "1", "type": "function"}]}], "messages.0.tool_calls.0.function"),
    ],
)
async def test_a_bad_message_is_named(client: httpx.AsyncClient, engine: FakeEngine, messages: Any, param: str) -> None:
    assert error_of(await post_chat(client, messages=messages), 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "5", "null", '{"x": "\\ud800"}', "[" * 100_000])
async def test_arguments_must_be_an_object(client: httpx.AsyncClient, arguments: str) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    error = error_of(await post_chat(client, messages=[*HELLO, ASKING | {"tool_calls": [call]}]), 400)
    assert error["param"] == "messages.1.tool_calls.0.function.arguments"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal", "video_url"])
async def test_parts_that_are_not_text_are_named(client: httpx.AsyncClient, kind: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "x"}}]
    error = error_of(await post_chat(client, messages=[{"role": "user", "content": parts}]), 400)
    assert error["param"] == "messages.0.content.1.type"
    assert kind in error["message"]
    assert "text only" in error["message"]
