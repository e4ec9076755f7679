"""Text to tokens and back over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.server.harness import HELLO, Json


async def ask(client: httpx.AsyncClient, path: str, **body: Any) -> Json:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def test_a_prompt_becomes_the_tokens_that_a_completion_gets(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.begin = [1]
    expected = {"count": 3, "max_model_len": 64, "tokens": [1, 97, 98], "token_strs": None}
    assert await ask(client, "/tokenize", prompt="ab") == expected
    assert await ask(client, "/tokenize", prompt="ab", model="fake", add_special_tokens=True) == expected
    assert (await ask(client, "/tokenize", prompt="ab", add_special_tokens=False))["tokens"] == [97, 98]
    assert (await ask(client, "/tokenize", prompt=""))["tokens"] == [1]


async def test_tokens_are_spelled_on_request(client: httpx.AsyncClient) -> None:
    assert (await ask(client, "/tokenize", prompt="ab", return_token_strs=True))["token_strs"] == ["a", "b"]


async def test_a_conversation_becomes_the_tokens_that_a_chat_gets(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.begin = [1]
    tokens = (await ask(client, "/tokenize", messages=HELLO))["tokens"]
    assert bytes(tokens) == b"user: ab\nassistant: "
    shut = await ask(client, "/tokenize", messages=HELLO, add_generation_prompt=False)
    assert bytes(shut["tokens"]) == b"user: ab\n"
    continued = await ask(client, "/tokenize", messages=HELLO, continue_final_message=True)
    assert bytes(continued["tokens"]) == b"user: ab"
    assert (await ask(client, "/tokenize", messages=HELLO, add_special_tokens=True))["tokens"] == [1, *tokens]
    answer = await ask(client, "/tokenize", messages=HELLO, chat_template_kwargs={"x": 1})
    assert bytes(answer["tokens"]).startswith(b"{'x': 1}")


@pytest.mark.parametrize("text", ["", "ab", "héllo", "日本"])
async def test_there_and_back(client: httpx.AsyncClient, text: str) -> None:
    tokens = (await ask(client, "/tokenize", prompt=text, add_special_tokens=False))["tokens"]
    assert await ask(client, "/detokenize", tokens=tokens) == {"prompt": text}


async def test_many_tokens_are_decoded_as_well(client: httpx.AsyncClient) -> None:
    assert await ask(client, "/detokenize", tokens=[97] * 10_000, model="fake") == {"prompt": "a" * 10_000}


async def test_what_a_tokenizer_is(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.get("/tokenizer_info")
    assert response.json() == dict(engine.tokenizer_info)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, 400, "prompt"),
        ("/tokenize", {"prompt": None}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": [1]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, 400, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "more": 1}, 400, "more"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": [1, 2.5]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [10**30]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_what_is_refused(client: httpx.AsyncClient, path: str, body: Json, status: int, param: str) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param
