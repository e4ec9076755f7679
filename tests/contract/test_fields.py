"""Every field of a request does what the table says, and what comes out does not depend on how it was made.

Each is asked of the whole server on a small model in float32: plain and drafted, in one piece and streamed.
"""

from __future__ import annotations

import httpx
import pytest

from tests.contract.asking import OFF, SCORES, ask
from tests.contract.field import BOTH, Field
from tests.contract.fields import FIELDS
from tests.drafters import KnowingDrafter

CASES = [pytest.param(route, field, id=f"{route}.{field.name}") for field in FIELDS for route in field.routes]


@pytest.mark.parametrize(("route", "field"), CASES)
async def test_a_field_does_what_it_says(
    client: httpx.AsyncClient, foreseen: httpx.AsyncClient, oracle: KnowingDrafter, route: str, field: Field
) -> None:
    plain = await ask(client, route, field.without | OFF)
    body = field.without | field.body_after(plain)
    answer = await ask(client, route, body | OFF)
    assert answer.num_drafted == 0
    assert field.proof(answer, plain)
    if field.same_as is not None:
        assert answer.choices == (await ask(client, route, field.without | field.same_as)).choices
    scored = SCORES[route] | body
    expected = await ask(client, route, scored | OFF)
    assert [choice.token_ids for choice in expected.choices] == [choice.token_ids for choice in answer.choices]
    assert all(len(choice.logprobs or ()) >= len(choice.token_ids) for choice in expected.choices)
    drafted = await ask(client, route, scored)
    assert drafted.said == expected.said
    assert (drafted.num_drafted > 0) == field.drafts, "what was not drafted shows nothing"
    # Behind a right draft every row counts, so that each must have seen the tokens of the draft before it.
    oracle.said = answer.choices[0].token_ids
    guessed = await ask(foreseen, route, scored)
    assert guessed.said == expected.said
    assert (guessed.num_accepted > len(oracle.said) / 3) == field.drafts
    if field.streams:
        for server, more in ((client, OFF), (client, {}), (foreseen, {})):
            assert (await ask(server, route, scored | more, streams=True)).said == expected.said


async def test_the_requests_are_drafted(client: httpx.AsyncClient) -> None:
    for route in BOTH:
        assert (await ask(client, route, {})).num_drafted > 5
        assert (await ask(client, route, {}, streams=True)).num_drafted > 5


@pytest.mark.parametrize("route", BOTH)
async def test_a_salt_keeps_the_prefix_cache_apart(client: httpx.AsyncClient, route: str) -> None:
    fresh: set[str | None] = {None, "mine", "yours"}
    plain = await ask(client, route, OFF)
    fresh.remove(None)
    for salt in (None, "mine", "mine", None, "yours", "yours", "mine"):
        for more in (OFF, {}):
            answer = await ask(client, route, {"cache_salt": salt, **more})
            assert answer.said == plain.said
            assert (answer.usage["prompt_tokens_details"]["cached_tokens"] == 0) == (salt in fresh)
            fresh.discard(salt)


@pytest.mark.parametrize("route", BOTH)
async def test_options_of_a_stream_change_nothing_else(client: httpx.AsyncClient, route: str) -> None:
    plain = await ask(client, route, SCORES[route] | OFF)
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    for more in (OFF, {}):
        answer = await ask(client, route, {**SCORES[route], **more, "stream_options": options}, streams=True)
        assert answer.said == plain.said
