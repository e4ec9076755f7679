"""From the prompts of a completion to the tokens that the engine gets, and back in an echo."""

from __future__ import annotations

import httpx
import pytest

from tests.byte_tokens import END_TOKEN
from tests.fakes import FakeEngine
from tests.server.harness import complete, error_of, post, stream


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
        ("é", [(195, 169)]),
    ],
)
async def test_four_shapes_of_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, prompt: object, token_ids: list[tuple[int, ...]]
) -> None:
    answer = await complete(client, prompt=prompt)
    assert [request.prompt for request in engine.requests] == token_ids
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(token_ids)))


async def test_explicit_max_tokens_over_the_context_is_refused(client: httpx.AsyncClient) -> None:
    error = error_of(await post(client, prompt="x" * 60, max_tokens=5), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "max_tokens"


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
async def test_omitted_max_tokens_is_what_fits(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, None]
) -> None:
    await complete(client, prompt=["x" * 60, "x"], **fields)
    assert [request.params.max_tokens for request in engine.requests] == [4, 16]


async def test_prompt_that_fills_the_context_is_refused(client: httpx.AsyncClient) -> None:
    assert error_of(await post(client, prompt="x" * 64), 400)["code"] == "context_length_exceeded"


async def test_special_tokens_of_the_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.begin = [END_TOKEN]
    await complete(client, prompt=["ab", ""])
    await complete(client, add_special_tokens=False)
    await complete(client, prompt=[97, 98])
    begun, empty, bare, ids = [request.prompt for request in engine.requests]
    assert (begun, empty, bare, ids) == ((END_TOKEN, 97, 98), (END_TOKEN,), (97, 98), (97, 98))


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, "def"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, "def"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncate_prompt_tokens": 6}, "abcdef"),
        ({"truncate_prompt_tokens": 10**30}, "abcdef"),
        ({"truncate_prompt_tokens": -1}, "abcdef"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 60}, "cdef"),
        ({"truncate_prompt_tokens": -1, "max_tokens": 60, "truncation_side": "right"}, "abcd"),
        ({"truncation_side": "right"}, "abcdef"),
    ],
)
async def test_truncation(client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, object], kept: str) -> None:
    answer = await complete(client, prompt="abcdef", echo=True, **fields)
    assert bytes(engine.requests[0].prompt) == kept.encode()  # type: ignore[arg-type]
    assert answer["choices"][0]["text"] == f"{kept}Hello"
    assert answer["usage"]["prompt_tokens"] == len(kept)


async def test_minus_one_leaves_room_for_the_default_output(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(client, prompt="x" * 100, truncate_prompt_tokens=-1)
    assert len(engine.requests[0].prompt) == engine.info.max_model_len - 16
    assert engine.requests[0].params.max_tokens == 16


async def test_a_suffix_makes_a_prompt_with_a_gap(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await complete(client, prompt=["ab", ""], suffix="cd")
    assert [bytes(request.prompt) for request in engine.requests] == [b"<ab|cd>", b"<|cd>"]  # type: ignore[arg-type]
    assert answer["choices"][0]["text"] == "Hello"
    assert answer["usage"]["prompt_tokens"] == 12
    engine.can_infill = False
    assert error_of(await post(client, suffix="cd"), 400)["param"] == "suffix"
    await complete(client, suffix="")


async def test_echo(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt=["ab", "c"], n=2, echo=True)
    assert [c["text"] for c in answer["choices"]] == ["abHello", "abHello", "cHello", "cHello"]


async def test_echo_of_token_ids(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt=[END_TOKEN, 97, 98], echo=True)
    assert answer["choices"][0]["text"] == "abHello"
    answer = await complete(client, prompt=[END_TOKEN, 97, 98], echo=True, skip_special_tokens=False)
    assert answer["choices"][0]["text"] == "<end>abHello"


async def test_echo_streamed_comes_once(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt="ab", echo=True)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abH", "e", "l", "l", "o", ""]


async def test_scoring_a_prompt(client: httpx.AsyncClient) -> None:
    answer = await complete(client, echo=True, max_tokens=0, logprobs=1)
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b"]
    assert answer["usage"]["completion_tokens"] == 0
