"""The log-probabilities object, entry by entry."""

from __future__ import annotations

import httpx
import pytest

from engine.types import TokenLogprob
from server.answers import LEAST_LOGPROB
from server.completion_writer import ChoiceWriter
from tests.fakes import FakeEngine, Script, fake_logprob
from tests.server.harness import Json, complete, error_of, post, serve, stream


def _logprobs(answer: Json) -> Json:
    logprobs: Json = answer["choices"][0]["logprobs"]
    assert len({len(values) for values in logprobs.values()}) == 1
    return logprobs


async def test_one_entry_a_token_and_the_end_token_is_one(client: httpx.AsyncClient) -> None:
    logprobs = _logprobs(await complete(client, logprobs=2))
    assert logprobs["tokens"] == ["H", "e", "l", "l", "o", "<end>"]
    assert logprobs["token_logprobs"] == [fake_logprob(t, 0).logprob for t in (*b"Hello", 256)]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["top_logprobs"][0] == {"a": 0.0, "b": -0.125, "H": -1.072}


async def test_zero_gives_the_chosen_token_alone(client: httpx.AsyncClient) -> None:
    assert _logprobs(await complete(client, logprobs=0))["top_logprobs"][0] == {"H": -1.072}


async def test_chosen_token_among_the_best_is_not_doubled(client: httpx.AsyncClient) -> None:
    engine = FakeEngine(Script(say=lambda _: b"b"))
    async with serve(engine) as client:
        top = _logprobs(await complete(client, logprobs=3))["top_logprobs"][0]
    assert list(top) == ["a", "b", "c"]


async def test_impossible_is_a_number(client: httpx.AsyncClient) -> None:
    assert _logprobs(await complete(client, logprobs=6))["top_logprobs"][0]["e"] == LEAST_LOGPROB == -9999.0


async def test_tokens_of_a_stop_string_have_entries(client: httpx.AsyncClient) -> None:
    answer = await complete(client, logprobs=1, stop="ll")
    assert answer["choices"][0]["text"] == "He"
    assert _logprobs(answer)["tokens"] == ["H", "e", "l", "l"]


async def test_offsets_follow_token_strings_and_not_the_text(client: httpx.AsyncClient) -> None:
    async with serve(FakeEngine(Script(say=lambda _: "aéb".encode()))) as client:
        answer = await complete(client, logprobs=0)
    assert answer["choices"][0]["text"] == "aéb"
    assert _logprobs(answer)["tokens"] == ["a", "\ufffd", "\ufffd", "b", "<end>"]
    assert _logprobs(answer)["text_offset"] == [0, 1, 2, 3, 4]


async def test_echo_covers_prompt_and_completion(client: httpx.AsyncClient) -> None:
    logprobs = _logprobs(await complete(client, prompt="ab", echo=True, logprobs=1))
    assert logprobs["tokens"] == ["a", "b", "H", "e", "l", "l", "o", "<end>"]
    assert logprobs["token_logprobs"][:3] == [None, fake_logprob(98, 0).logprob, fake_logprob(72, 0).logprob]
    assert logprobs["top_logprobs"][:2] == [None, {"a": 0.0, "b": fake_logprob(98, 0).logprob}]
    assert logprobs["text_offset"] == list(range(8))


async def test_no_logprobs_no_object(client: httpx.AsyncClient) -> None:
    assert (await complete(client, echo=True))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("echo", [False, True])
async def test_streamed_parts_add_up_to_the_whole(echo: bool) -> None:
    engine = FakeEngine(Script(say=lambda _: "aéb".encode(), tokens_per_step=(2, 1)))
    async with serve(engine) as client:
        whole = _logprobs(await complete(client, logprobs=2, echo=echo))
        chunks = await stream(client, logprobs=2, echo=echo)
    for key, values in whole.items():
        assert [v for chunk in chunks for v in chunk["choices"][0]["logprobs"][key]] == values


def test_of_two_tokens_with_one_string_the_likelier_is_kept() -> None:
    entry = TokenLogprob(5, -3.0, ((6, -1.0), (7, -2.0)))
    writer = ChoiceWriter.__new__(ChoiceWriter)
    writer._token_name = lambda _: "?"
    assert writer._top_logprobs(entry) == {"?": -1.0}


async def test_tokens_named_by_id_keep_the_offsets_of_their_text(client: httpx.AsyncClient) -> None:
    by_text = _logprobs(await complete(client, logprobs=1, echo=True))
    by_id = _logprobs(await complete(client, logprobs=1, echo=True, return_tokens_as_token_ids=True))
    assert by_id["tokens"] == [f"token_id:{i}" for i in (*b"abHello", 256)]
    assert list(by_id["top_logprobs"][-1]) == ["token_id:97", "token_id:256"]
    for key in ("token_logprobs", "text_offset"):
        assert by_id[key] == by_text[key]


async def test_all_alternatives_where_the_operator_allows_it() -> None:
    engine = FakeEngine()
    async with serve(engine, max_logprobs=-1) as client:
        await complete(client, logprobs=-1, prompt_logprobs=10**30)
        await complete(client, logprobs=50, logprob_token_ids=list(range(60)))
    params = [request.params for request in engine.requests]
    assert (params[0].logprobs, params[0].prompt_logprobs) == (engine.info.vocab_size,) * 2
    assert (params[1].logprobs, len(params[1].logprob_token_ids)) == (50, 60)


@pytest.mark.parametrize(("most", "message"), [(20, "only for servers that allow it"), (0, "between 0 and 0, not 1")])
async def test_the_operators_limit_is_named(most: int, message: str) -> None:
    async with serve(FakeEngine(), max_logprobs=most) as client:
        error = error_of(await post(client, logprobs=-1 if most else 1), 400)
    assert error["param"] == "logprobs"
    assert message in error["message"]


class TestPromptLogprobs:
    async def test_every_token_by_its_id(self, client: httpx.AsyncClient) -> None:
        choice = (await complete(client, prompt="abz", prompt_logprobs=2))["choices"][0]
        a, b = ({"logprob": -j / 8, "rank": j + 1, "decoded_token": "ab"[j]} for j in range(2))
        own = {"logprob": fake_logprob(122, 0).logprob, "rank": 122, "decoded_token": "z"}
        assert choice["prompt_logprobs"] == [None, {"98": b, "97": a}, {"122": own, "97": a, "98": b}]
        assert choice["logprobs"] is None

    async def test_impossible_is_a_number(self, client: httpx.AsyncClient) -> None:
        choice = (await complete(client, prompt="az", prompt_logprobs=5))["choices"][0]
        assert choice["prompt_logprobs"][1]["101"]["logprob"] == LEAST_LOGPROB

    async def test_beside_echo_each_gets_its_own_number(self, client: httpx.AsyncClient) -> None:
        for own, echoed in ((3, 1), (0, 2)):
            answer = await complete(client, prompt="zz", echo=True, logprobs=echoed, prompt_logprobs=own)
            assert len(answer["choices"][0]["prompt_logprobs"][1]) == own + 1
            assert len(_logprobs(answer)["top_logprobs"][1]) == echoed + 1

    async def test_each_choice_has_them_and_nothing_need_be_generated(self, client: httpx.AsyncClient) -> None:
        answer = await complete(client, prompt=["ab", "abc"], n=2, prompt_logprobs=0, max_tokens=0)
        assert [len(choice["prompt_logprobs"]) for choice in answer["choices"]] == [2, 2, 3, 3]
        assert [choice["text"] for choice in answer["choices"]] == [""] * 4
