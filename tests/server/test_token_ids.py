"""The ids of prompt and output, whole and streamed."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEngine, Script
from tests.server.harness import complete, serve, stream

SAID = [*b"He", *"é".encode(), 256]


def engine_in_steps(*sizes: int) -> FakeEngine:
    return FakeEngine(Script(say=lambda _: "Heé".encode(), tokens_per_step=sizes))


async def test_no_ids_unless_asked_for() -> None:
    async with serve(engine_in_steps(1)) as client:
        choice = (await complete(client, return_token_ids=False))["choices"][0]
        chunks = await stream(client)
    assert not {"token_ids", "prompt_token_ids"} & choice.keys()
    assert all(not {"token_ids", "prompt_token_ids"} & chunk["choices"][0].keys() for chunk in chunks)


async def test_ids_of_prompt_and_output_end_token_included() -> None:
    async with serve(engine_in_steps(1)) as client:
        answer = await complete(client, prompt=["ab", "c"], n=2, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == [SAID] * 4
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[97, 98]] * 2 + [[99]] * 2


async def test_tokens_of_a_hidden_stop_string_have_ids() -> None:
    async with serve(engine_in_steps(3)) as client:
        choice = (await complete(client, return_token_ids=True, stop="é"))["choices"][0]
    assert (choice["text"], choice["token_ids"]) == ("He", SAID[:-1])


@pytest.mark.parametrize("sizes", [(1,), (3, 1), (5,)])
async def test_streamed_ids_add_up_and_the_prompt_comes_once(sizes: tuple[int, ...]) -> None:
    """Also where a token brings no text yet."""
    async with serve(engine_in_steps(*sizes)) as client:
        chunks = await stream(client, return_token_ids=True, prompt=["ab", "c"])
    for index, prompt in enumerate(([97, 98], [99])):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [token for choice in choices for token in choice["token_ids"]] == SAID
        assert [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice] == [prompt]
        assert "prompt_token_ids" in choices[0]
        assert "".join(choice["text"] for choice in choices) == "Heé"


async def test_a_scored_prompt_has_no_output_ids() -> None:
    async with serve(engine_in_steps(1)) as client:
        choice = (await complete(client, echo=True, max_tokens=0, return_token_ids=True))["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([], [97, 98])
