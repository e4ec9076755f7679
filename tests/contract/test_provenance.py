"""Where each token came from: the truth about every draft, beside every other field, and never another token."""

from __future__ import annotations

from itertools import pairwise

import httpx
import pytest

from tests.contract.answers import Choice, Json
from tests.contract.asking import OFF, PATHS, SCORES, ask
from tests.contract.field import BOTH, COMPLETIONS, MAX_TOKENS
from tests.drafters import KnowingDrafter

LENGTH = 6  # of the drafts of ``foreseen``
ASKED: Json = {"return_token_provenance": True}
BESIDE: dict[str, Json] = {
    "nothing": {},
    "n": {"n": 3, "temperature": 1.0},
    "stop": {"stop": ["e", "th"], "temperature": 1.0},
    "stop_token_ids": {"stop_token_ids": [*range(60, 90)]},
    "end token": {"logit_bias": {"0": 100}, "min_tokens": 9},
    "special tokens": {"logit_bias": {"0": 100}, "ignore_eos": True, "skip_special_tokens": False},
    "max_tokens": {"max_tokens": 11},
    "few letters": {"allowed_token_ids": [70, 71, 72], "temperature": 1.0},
    "names by id": {"return_tokens_as_token_ids": True},
}
OF_COMPLETIONS: dict[str, Json] = {
    "echo": {"echo": True},
    "best_of": {"best_of": 3, "n": 2, "temperature": 1.0},
    "echo alone": {"echo": True, "max_tokens": 0, "logprobs": 1},
}
CASES = [
    *(pytest.param(route, fields, id=f"{route}: {name}") for route in BOTH for name, fields in BESIDE.items()),
    *(pytest.param(COMPLETIONS, fields, id=f"completions: {name}") for name, fields in OF_COMPLETIONS.items()),
]


@pytest.mark.parametrize("scores", [False, True], ids=["", "scored"])
@pytest.mark.parametrize(("route", "fields"), CASES)
async def test_beside_every_field_it_changes_nothing_and_tells_all(
    client: httpx.AsyncClient,
    foreseen: httpx.AsyncClient,
    oracle: KnowingDrafter,
    route: str,
    fields: Json,
    scores: bool,
) -> None:
    body = (SCORES[route] if scores else {}) | fields
    silent = await ask(client, route, body | OFF)
    plain = await ask(client, route, body | OFF | ASKED)
    oracle.said = silent.choices[0].token_ids
    ways = [(client, False), (foreseen, False)] + ([] if "best_of" in fields else [(client, True), (foreseen, True)])
    for server, streams in ways:
        answer = await ask(server, route, body | ASKED, streams=streams)
        assert answer.said == plain.said
        for choice, mute in zip(answer.choices, silent.choices, strict=True):
            assert [token_id for token_id, _, _ in choice.tokens] == choice.token_ids == mute.token_ids
            assert (choice.text, choice.logprobs) == (mute.text, mute.logprobs)
            assert _is_possible(choice)
        if "best_of" not in fields:  # then the candidates that are not shown were drafted too
            origins = [token.origin for choice in answer.choices for token in choice.origins]
            assert origins.count("accepted") == answer.num_accepted


def _is_possible(choice: Choice) -> bool:
    """Whether places and lengths belong together: draft after draft, each from its beginning."""
    for token, following in pairwise(choice.origins):
        goes_on = token.origin == "accepted"
        if goes_on and following != (
            following.origin,
            token.drafter,
            (token.draft_position or 0) + 1,
            token.draft_length,
        ):
            return False
        if not goes_on and following.draft_position not in (None, 0):
            return False
    for origin, drafter, position, length in choice.origins:
        match origin, position:
            case "plain", None:
                is_right = (drafter, length) == (None, 0)
            case "bonus", int():
                is_right = position == length > 0 and drafter is not None
            case "accepted" | "recovered", int():
                is_right = 0 <= position < length and drafter is not None
            case _:
                is_right = False
        if not is_right:
            return False
    return True


@pytest.mark.parametrize("route", BOTH)
async def test_a_right_draft_is_accepted_and_ends_in_a_bonus(
    foreseen: httpx.AsyncClient, oracle: KnowingDrafter, route: str
) -> None:
    oracle.said = (await ask(foreseen, route, OFF)).only.token_ids
    choice = (await ask(foreseen, route, ASKED)).only
    run = [*(("accepted", "test", place, LENGTH) for place in range(LENGTH)), ("bonus", "test", LENGTH, LENGTH)]
    *runs, last = [choice.origins[start : start + LENGTH + 1] for start in range(0, MAX_TOKENS, LENGTH + 1)]
    assert runs == [run] * 3
    # No draft goes beyond the last token.
    num_left = MAX_TOKENS - len(runs) * len(run)
    assert last == [
        *(("accepted", "test", place, num_left - 1) for place in range(num_left - 1)),
        (*("bonus", "test"), num_left - 1, num_left - 1),
    ]


@pytest.mark.parametrize("route", BOTH)
async def test_where_a_draft_misses_the_token_is_recovered(
    foreseen: httpx.AsyncClient, oracle: KnowingDrafter, route: str
) -> None:
    said = (await ask(foreseen, route, OFF)).only.token_ids
    oracle.said = [token_id if index % 4 != 2 else token_id + 1 for index, token_id in enumerate(said)]
    choice = (await ask(foreseen, route, ASKED)).only
    assert [choice.origins[index].origin for index in range(2, MAX_TOKENS - 1, 4)] == ["recovered"] * 6
    assert choice.origins[:3] == [("accepted", "test", 0, 6), ("accepted", "test", 1, 6), ("recovered", "test", 2, 6)]


@pytest.mark.parametrize("route", BOTH)
async def test_log_probabilities_are_those_of_logprobs(client: httpx.AsyncClient, route: str) -> None:
    choice = (await ask(client, route, ASKED | SCORES[route] | {"temperature": 0.7})).only
    scored = [entry[1] if route == COMPLETIONS else entry["logprob"] for entry in choice.logprobs or ()]
    assert [logprob for _, _, logprob in choice.tokens] == scored


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("route", BOTH)
async def test_a_margin_is_the_distance_from_the_best_other_token(
    client: httpx.AsyncClient, route: str, temperature: float
) -> None:
    # By their ids, as two tokens may have the same text.
    asked = SCORES[route] | {"temperature": temperature, "seed": 3, "return_tokens_as_token_ids": True}
    choice = await _choice(client, route, ASKED | asked)
    if route == COMPLETIONS:
        best = [sorted(each.values(), reverse=True) for each in choice["logprobs"]["top_logprobs"]]
    else:
        best = [[each["logprob"] for each in entry["top_logprobs"]] for entry in choice["logprobs"]["content"]]
    for token, (first, second, *_) in zip(choice["token_provenance"], best, strict=True):
        is_best = token["logprob"] == first
        assert token["margin"] == pytest.approx(token["logprob"] - (second if is_best else first))
        assert (token["margin"] >= 0) == is_best
    assert any(token["margin"] < 0 for token in choice["token_provenance"]) == (temperature > 0)


async def test_named_alternatives_leave_no_margin(client: httpx.AsyncClient) -> None:
    asked = ASKED | {"logprobs": 1, "logprob_token_ids": [5, 6]}
    choice = await _choice(client, COMPLETIONS, asked)
    assert {token["margin"] for token in choice["token_provenance"]} == {None}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("route", BOTH)
async def test_pieces_make_the_text(client: httpx.AsyncClient, route: str, streams: bool) -> None:
    choice = (await ask(client, route, ASKED | {"temperature": 2.0}, streams=streams)).only
    assert "".join(text for _, text, _ in choice.tokens) == choice.text


@pytest.mark.parametrize("route", BOTH)
async def test_what_a_stop_string_cuts_off_still_has_its_pieces(client: httpx.AsyncClient, route: str) -> None:
    whole = (await ask(client, route, {})).only
    stop = whole.text[5:7]
    choice = (await ask(client, route, ASKED | {"stop": stop}, streams=True)).only
    assert "".join(text for _, text, _ in choice.tokens).startswith(choice.text + stop)


async def _choice(client: httpx.AsyncClient, route: str, fields: Json) -> Json:
    """The first choice as it is sent."""
    given: Json = {"prompt": "the end"} if route == COMPLETIONS else {"messages": [{"role": "user", "content": "end"}]}
    response = await client.post(PATHS[route], json={"model": "tiny", "max_tokens": MAX_TOKENS} | given | fields)
    assert response.status_code == 200, response.text
    choice: Json = response.json()["choices"][0]
    return choice
