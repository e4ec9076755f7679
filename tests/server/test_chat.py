"""What a chat completion answers and what it asks of the engine."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from engine.params import SpeculationMode, mix_seed
from tests.fakes import FakeEngine, Script, fake_info, fake_logprob
from tests.server.harness import HELLO, chat, complete, error_of, post_chat, scrape, serve

PROMPT = "user: ab\nassistant: "


async def test_whole_answer() -> None:
    async with serve(FakeEngine(Script(num_cached=3))) as client:
        answer = await chat(client)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", answer["id"])
    assert re.fullmatch(r"fp_[0-9a-f]{10}", answer["system_fingerprint"])
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "fake"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 6,
        "total_tokens": len(PROMPT) + 6,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
    assert answer["metrics"].keys() == {"seed", "speculative_decoding"}


async def test_it_is_the_completion_of_the_rendered_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "seed": 7,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "min_tokens": 2,
        "repetition_penalty": 1.5,
        "frequency_penalty": -1.5,
        "presence_penalty": 2,
        "logit_bias": {"3": -100},
        "stop": ["x", "y"],
        "stop_token_ids": [9],
        "max_tokens": 9,
        "ignore_eos": True,
        "bad_words": ["no"],
        "cache_salt": "salt",
        "speculation": {"mode": "suffix", "num_speculative_tokens": 3},
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
    }
    await chat(client, **fields, logprobs=True, top_logprobs=3)
    await complete(client, **fields, prompt=PROMPT, logprobs=3)
    from_chat, from_completions = engine.requests[:2], engine.requests[2:]
    for one, other in zip(from_chat, from_completions, strict=True):
        assert (one.prompt, one.params, one.speculation) == (other.prompt, other.params, other.speculation)
        assert one.cache_salt == other.cache_salt
    assert from_chat[0].speculation.mode is SpeculationMode.SUFFIX
    assert [request.params.seed for request in from_chat] == [7, mix_seed(7, 1)]


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 64 - len(PROMPT)),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_completion_tokens": 4, "max_tokens": 3}, 4),
        ({"max_completion_tokens": None, "max_tokens": 3}, 3),
        ({"max_completion_tokens": 64 - len(PROMPT)}, 64 - len(PROMPT)),
    ],
)
async def test_longest_answer(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], max_tokens: int
) -> None:
    await chat(client, **fields)
    assert engine.requests[0].params.max_tokens == max_tokens


async def test_a_small_cache_limits_the_answer_that_nobody_limited() -> None:
    engine = FakeEngine(info=fake_info(num_kv_tokens=30))
    async with serve(engine) as client:
        await chat(client)
        error = error_of(await post_chat(client, max_completion_tokens=11), 400)
    assert engine.requests[0].params.max_tokens == 30 - len(PROMPT)
    assert error["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("fields", "param", "numbers"),
    [
        ({"max_tokens": 45}, "max_tokens", ["64", "20", "45", "65"]),
        ({"max_completion_tokens": 45}, "max_completion_tokens", ["64", "20", "45", "65"]),
        ({"messages": [{"role": "user", "content": "x" * 46}]}, "messages", ["64"]),
        ({"messages": [{"role": "user", "content": "x" * 46}], "max_tokens": 5}, "messages", ["64", "69"]),
    ],
)
async def test_over_the_context(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, numbers: list[str]
) -> None:
    error = error_of(await post_chat(client, **fields), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert all(number in error["message"] for number in numbers), error["message"]
    assert engine.requests == []


async def test_a_prompt_may_be_cut(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client, truncate_prompt_tokens=5)
    assert engine.requests[0].prompt == tuple(PROMPT[-5:].encode())
    await chat(client, messages=[{"role": "user", "content": "x" * 99}], truncate_prompt_tokens=-1, max_tokens=4)
    assert len(engine.requests[1].prompt) == 60


@pytest.mark.parametrize(("fields", "begin"), [({}, ()), ({"add_special_tokens": True}, (7,))])
async def test_the_template_writes_the_begin_token_itself(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], begin: tuple[int, ...]
) -> None:
    engine.begin = [7]
    await chat(client, **fields)
    assert engine.requests[0].prompt == (*begin, *PROMPT.encode())


async def test_null_is_the_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    names = (
        "max_completion_tokens max_tokens logprobs top_logprobs echo add_generation_prompt continue_final_message "
        "chat_template_kwargs add_special_tokens n stop stream stream_options temperature tools tool_choice "
        "response_format modalities audio prediction metadata store"
    )
    await chat(client, seed=3)
    await chat(client, **dict.fromkeys(names.split()), seed=3)
    absent, null = engine.requests
    assert (null.params, null.prompt) == (absent.params, absent.prompt)


async def test_what_asks_for_nothing_is_taken(client: httpx.AsyncClient) -> None:
    await chat(
        client,
        response_format={"type": "text"},
        modalities=["text"],
        tool_choice="none",
        function_call="none",
        service_tier="auto",
        include_reasoning=True,
        store=False,
    )


async def test_logprobs() -> None:
    async with serve(FakeEngine(Script(say=lambda _: "bé".encode()))) as client:
        logprobs = (await chat(client, logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    first, cut, _, end = logprobs["content"]
    a, b = {"token": "a", "logprob": 0.0, "bytes": [97]}, {"token": "b", "logprob": -0.125, "bytes": [98]}
    assert first == {"token": "b", "logprob": fake_logprob(98, 0).logprob, "bytes": [98], "top_logprobs": [a, b]}
    assert (cut["token"], cut["bytes"]) == ("\ufffd", [0xC3])
    assert (end["token"], end["bytes"]) == ("<end>", list(b"<end>"))
    assert len(end["top_logprobs"]) == 2


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
async def test_logprobs_of_the_chosen_tokens_alone(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    content = (await chat(client, logprobs=True, **fields))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [*"Hello", "<end>"]
    assert all(entry["top_logprobs"] == [] for entry in content)


async def test_impossible_is_a_number(client: httpx.AsyncClient) -> None:
    answer = await chat(client, logprobs=True, top_logprobs=6)
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][-1]["logprob"] == -9999.0


async def test_token_ids_and_scores_of_the_prompt(client: httpx.AsyncClient) -> None:
    answer = await chat(client, n=2, return_token_ids=True, return_tokens_as_token_ids=True, logprobs=True)
    scored = await chat(client, prompt_logprobs=1)
    assert answer["prompt_token_ids"] == list(PROMPT.encode())
    assert [choice["token_ids"] for choice in answer["choices"]] == [[*b"Hello", 256]] * 2
    assert answer["choices"][1]["logprobs"]["content"][0]["token"] == "token_id:72"
    assert len(scored["prompt_logprobs"]) == len(PROMPT)
    assert "prompt_token_ids" not in scored


async def test_stop_text_is_not_returned(client: httpx.AsyncClient) -> None:
    choice = (await chat(client, stop="ll"))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("He", "stop", "ll")


@pytest.mark.parametrize(
    ("messages", "fields", "content"),
    [
        ([*HELLO, {"role": "assistant", "content": "Oh, "}], {"continue_final_message": True}, "Oh, Hello"),
        ([*HELLO, {"role": "assistant", "content": "Oh, "}], {}, "Oh, Hello"),
        (HELLO, {}, "Hello"),
    ],
)
async def test_echo_is_the_assistants_last_message(
    client: httpx.AsyncClient, messages: list[dict[str, Any]], fields: dict[str, Any], content: str
) -> None:
    answer = await chat(client, messages=messages, echo=True, **fields)
    assert answer["choices"][0]["message"]["content"] == content


async def test_it_counts_in_the_metrics_as_completions_do(client: httpx.AsyncClient) -> None:
    await chat(client, n=2)
    error_of(await post_chat(client, model="gpt"), 404)
    samples = await scrape(client)
    assert samples["draftahead_requests_total{finish_reason=stop}"] == 2
    assert samples["draftahead_rejected_requests_total{reason=model_not_found}"] == 1
