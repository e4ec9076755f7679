"""Whatever a client puts into a field, the answer is served or refused in the one shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from server.chat_messages import ChatMessage
from server.chat_protocol import ChatRequest
from server.completion_protocol import CompletionRequest
from tests.fakes import FakeEngine
from tests.server.harness import error_of, post, post_chat, serve

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, -1, 10**25, 10**400, -(10**25), 0.5, 1e308, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("0127x", max_size=3), v, max_size=3)
)
MESSAGE = st.dictionaries(
    st.sampled_from(sorted(ChatMessage.model_fields)),
    st.sampled_from(["user", "assistant", "tool", [{"type": "text", "text": "a"}], [{"type": "image_url"}]]) | VALUES,
    max_size=4,
)
POSTS = {CompletionRequest: post, ChatRequest: post_chat}


def _bodies(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(model.model_fields)), VALUES, max_size=3)


async def _check(model: type[BaseModel], fields: dict[str, Any], unknown_fields: str) -> None:
    async with serve(FakeEngine(), unknown_fields=unknown_fields) as client:
        response = await POSTS[model](client, **fields)
        if response.status_code != 200:
            error_of(response, 404 if response.status_code == 404 else 400)


@pytest.mark.parametrize("model", POSTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), unknown_fields=st.sampled_from(["reject", "ignore"]))
def test_any_json_is_answered(model: type[BaseModel], data: st.DataObject, unknown_fields: str) -> None:
    asyncio.run(_check(model, data.draw(_bodies(model)), unknown_fields))


@settings(max_examples=150, deadline=None)
@given(messages=st.lists(MESSAGE, max_size=3), is_continued=st.booleans())
def test_any_messages_are_answered(messages: list[dict[str, Any]], is_continued: bool) -> None:
    fields = {"messages": messages, "continue_final_message": is_continued}
    asyncio.run(_check(ChatRequest, fields, "reject"))
