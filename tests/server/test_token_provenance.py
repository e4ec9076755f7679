"""Text pieces of tokens on the wire, where characters take several tokens; chunks that bring tokens without text."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEngine, Script
from tests.server.harness import complete, serve, stream, stream_chat


def _engine(say: bytes, *, num_drafted: int = 0) -> FakeEngine:
    return FakeEngine(Script(say=lambda _: say, tokens_per_step=(3,), num_drafted=num_drafted))


@pytest.mark.parametrize(
    ("say", "pieces"),
    [
        ("aé".encode(), ["a", "", "é", ""]),
        ("a€b".encode(), ["a", "", "", "€", "b", ""]),
        (b"a\xe2\x82", ["a", "", "", "\ufffd"]),
    ],
    ids=["two bytes", "three bytes", "cut off"],
)
async def test_a_character_is_with_the_token_that_completes_it(say: bytes, pieces: list[str]) -> None:
    async with serve(_engine(say)) as client:
        choice = (await complete(client, return_token_provenance=True))["choices"][0]
        chunks = await stream(client, return_token_provenance=True)
    tokens = choice["token_provenance"]
    assert [token["text"] for token in tokens] == pieces
    assert "".join(pieces) == choice["text"]
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_provenance"]] == tokens


async def test_special_tokens_have_text_where_the_answer_has() -> None:
    async with serve(_engine(b"a")) as client:
        asked = {"return_token_provenance": True, "skip_special_tokens": False, "include_stop_str_in_output": True}
        choice = (await complete(client, **asked))["choices"][0]
    assert [token["text"] for token in choice["token_provenance"]] == ["a", "<end>"]
    assert choice["text"] == "a<end>"


async def test_tokens_without_text_are_sent_at_once() -> None:
    async with serve(FakeEngine(Script(say=lambda _: "€".encode()))) as client:
        for chunks in (
            await stream(client, return_token_provenance=True),
            (await stream_chat(client, return_token_provenance=True))[1:],
        ):
            assert [len(chunk["choices"][0]["token_provenance"]) for chunk in chunks] == [1, 1, 1, 1]


async def test_an_entry_has_all_that_is_promised() -> None:
    async with serve(_engine(b"abc", num_drafted=3)) as client:
        choice = (await complete(client, return_token_provenance=True, max_tokens=3))["choices"][0]
    assert choice["logprobs"] is None, "nobody asked for them"
    first, _, third = choice["token_provenance"]
    assert first == {
        "token_id": 97,
        "text": "a",
        "logprob": -1.097,
        "margin": pytest.approx(-0.972),  # the likelier token has -0.125
        "origin": "accepted",
        "drafter": "suffix",
        "draft_position": 0,
        "draft_length": 3,
    }
    assert (third["origin"], third["draft_position"]) == ("recovered", 2)


async def test_nobody_is_told_unasked() -> None:
    async with serve(_engine(b"abc")) as client:
        for fields in ({}, {"return_token_provenance": False}, {"return_token_provenance": None}):
            assert "token_provenance" not in (await complete(client, **fields))["choices"][0]
