"""Chat streams: who speaks first, then text, and how they end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, Script
from tests.server.harness import HELLO, chat, error_of, post_chat, serve, stream_chat

OPENING = {"role": "assistant", "content": "", "refusal": None}


def _deltas(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


async def test_the_role_comes_first_and_chunks_add_up(client: httpx.AsyncClient) -> None:
    whole = await chat(client)
    chunks = await stream_chat(client)
    assert _deltas(chunks) == [OPENING, *({"content": text} for text in [*"Hello", ""])]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
    assert all(chunk.keys() == whole.keys() - {"usage", "metrics"} for chunk in chunks)


async def test_the_end_rides_on_the_last_text() -> None:
    async with serve(FakeEngine(Script(tokens_per_step=(4, 2)))) as client:
        chunks = await stream_chat(client)
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["", "Hell", "o"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_half_a_character_is_not_sent() -> None:
    async with serve(FakeEngine(Script(say=lambda _: "é€".encode()))) as client:
        chunks = await stream_chat(client)
    assert [delta["content"] for delta in _deltas(chunks)] == ["", "é", "€", ""]


async def test_usage_chunk_is_the_usage_of_the_whole() -> None:
    async with serve(FakeEngine(Script(tokens_per_step=(3, 1, 2), num_drafted=3, num_cached=1))) as client:
        fields: dict[str, Any] = {"n": 2, "seed": 5}
        whole = await chat(client, **fields)
        *chunks, last = await stream_chat(client, stream_options={"include_usage": True}, **fields)
        plain = await stream_chat(client, **fields)
    assert last["choices"] == []
    assert (last["usage"], last["metrics"]) == (whole["usage"], whole["metrics"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("usage" not in chunk for chunk in plain)


async def test_every_choice_has_its_role_and_its_end() -> None:
    engine = FakeEngine(Script(say=lambda request: str(request.params.seed).encode(), tokens_per_step=(2, 30)))
    async with serve(engine) as client:
        whole = await chat(client, n=3, seed=5)
        chunks = await stream_chat(client, n=3, seed=5)
    for choice in whole["choices"]:
        deltas = _deltas(chunks, choice["index"])
        assert deltas[0] == OPENING
        assert all("role" not in delta for delta in deltas[1:])
        assert "".join(delta["content"] for delta in deltas) == choice["message"]["content"]
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"] is not None]
    assert sorted(ends) == [0, 1, 2]


async def test_log_probabilities_add_up() -> None:
    async with serve(FakeEngine(Script(say=lambda _: "aéb".encode(), tokens_per_step=(2, 1)))) as client:
        whole = await chat(client, logprobs=True, top_logprobs=2)
        chunks = await stream_chat(client, logprobs=True, top_logprobs=2)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert parts[0] is None
    assert [e for part in parts[1:] for e in part["content"]] == whole["choices"][0]["logprobs"]["content"]


async def test_token_ids_add_up_and_the_prompt_comes_once(client: httpx.AsyncClient) -> None:
    whole = await chat(client, n=2, return_token_ids=True)
    first, *rest = await stream_chat(client, n=2, return_token_ids=True)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in rest)
    ids = [token for c in rest if c["choices"][0]["index"] == 0 for token in c["choices"][0].get("token_ids", ())]
    assert ids == whole["choices"][0]["token_ids"]


async def test_an_echo_follows_the_role(client: httpx.AsyncClient) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Oh, "}]
    chunks = await stream_chat(client, messages=messages, echo=True, continue_final_message=True)
    assert [delta["content"] for delta in _deltas(chunks)] == ["", "Oh, ", *"Hello", ""]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "no"}, 404, "model"),
        ({"max_tokens": 60}, 400, "max_tokens"),
        ({"prompt_logprobs": 1}, 400, "prompt_logprobs"),
    ],
)
async def test_refusals_come_before_the_stream_as_plain_json(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], status: int, param: str
) -> None:
    assert error_of(await post_chat(client, stream=True, **fields), status)["param"] == param
    assert engine.requests == []


async def test_failure_after_the_first_tokens_is_an_event() -> None:
    async with serve(FakeEngine(Script(fail_after=2))) as client:
        *chunks, last = await stream_chat(client)
    assert [delta["content"] for delta in _deltas(chunks)] == ["", "H", "e"]
    assert last["error"]["code"] == "engine_unavailable"
