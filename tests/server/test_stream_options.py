"""What a stream may carry beside its text: usage so far, and padding."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.fakes import FakeEngine, Script
from tests.server.harness import post, serve, stream


async def test_usage_so_far_is_that_of_the_chunks_choice() -> None:
    async with serve(FakeEngine(Script(tokens_per_step=(2, 1)))) as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = await stream(client, prompt=["ab", "c"], stream_options=options)
    for index, num_prompt_tokens in enumerate((2, 1)):
        usages = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [usage["completion_tokens"] for usage in usages] == [2, 3, 5, 6]
        assert {usage["prompt_tokens"] for usage in usages} == {num_prompt_tokens}
        assert all(usage["total_tokens"] == usage["completion_tokens"] + num_prompt_tokens for usage in usages)
    assert last["usage"]["completion_tokens"] == 12
    assert last["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, {"continuous_usage_stats": False}])
async def test_usage_so_far_only_where_usage_is_wanted(client: httpx.AsyncClient, options: dict[str, bool]) -> None:
    assert all("usage" not in chunk for chunk in await stream(client, stream_options=options))


async def test_padded_chunks_are_of_one_size_and_say_the_same(client: httpx.AsyncClient) -> None:
    plain = await stream(client, seed=1)
    response = await post(client, seed=1, stream=True, stream_options={"include_obfuscation": True})
    *events, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    sizes = {len(event.removeprefix("data: ").encode()) for event in events}
    assert sizes == {512}
    padded = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({chunk.pop("obfuscation") for chunk in padded}) == len(padded)
    assert [chunk["choices"] for chunk in padded] == [chunk["choices"] for chunk in plain]


async def test_no_padding_unless_asked_for(client: httpx.AsyncClient) -> None:
    for options in (None, {"include_obfuscation": False}):
        assert all("obfuscation" not in chunk for chunk in await stream(client, stream_options=options))
