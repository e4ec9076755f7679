"""What a completion answers and what it asks of the engine."""

from __future__ import annotations

import re

import httpx
import pytest

from engine.client import GenerateRequest
from engine.params import SpeculationMode, mix_seed
from server.completion_protocol import CompletionRequest
from tests.fakes import FakeEngine, Script, fake_info
from tests.server.harness import complete, error_of, post, serve


def _prompt_and_seed(request: GenerateRequest) -> bytes:
    return bytes(request.prompt) + f"/{request.params.seed}".encode()  # type: ignore[arg-type]


async def test_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await complete(client)
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", answer["id"])
    assert re.fullmatch(r"fp_[0-9a-f]{10}", answer["system_fingerprint"])
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake"
    assert isinstance(answer["created"], int)
    (choice,) = answer["choices"]
    assert choice == {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }


async def test_choices_are_prompt_major_and_each_has_its_own_seed() -> None:
    engine = FakeEngine(Script(say=_prompt_and_seed))
    async with serve(engine) as client:
        answer = await complete(client, prompt=["a", "b"], n=3, seed=7, max_tokens=40)
    seeds = [mix_seed(7, index) for index in range(6)]
    assert seeds[0] == 7
    assert [c["text"] for c in answer["choices"]] == [f"{'aaabbb'[i]}/{seeds[i]}" for i in range(6)]
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert len({request.request_id for request in engine.requests}) == 6


async def test_prompt_counts_once_however_many_choices() -> None:
    async with serve(FakeEngine(Script(num_cached=1))) as client:
        usage = (await complete(client, prompt=["ab", "cde"], n=4))["usage"]
    assert usage["prompt_tokens"] == 5
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    assert usage["completion_tokens"] == 8 * 6


async def test_sampling_parameters_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "frequency_penalty": -1.5,
        "presence_penalty": 2,
        "seed": -(2**63),
        "logprobs": 20,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    await complete(
        client,
        **fields,
        logit_bias={"0": -100, "256": 1.5},
        stop=["x", "y"],
        stop_token_ids=[9, 8],
        allowed_token_ids=[97, 98, 99, 99],
        bad_words=["ab"],
        logprob_token_ids=[5, 3, 5],
        cache_salt="mine",
    )
    params = engine.requests[0].params
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.stop_token_ids == {8, 9}
    assert params.allowed_token_ids == {97, 98, 99}
    assert params.bad_words == ((97, 98), (32, 97, 98))
    assert params.logprob_token_ids == (5, 3)
    assert engine.requests[0].cache_salt == "mine"
    assert params.logit_bias == {0: -100, 256: 1.5}
    assert params.stop == ("x", "y")
    assert params.prompt_logprobs is None


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False},
        {"priority": 0, "use_beam_search": False, "length_penalty": 1.0, "stream_interval": 1},
        {"spaces_between_special_tokens": True, "response_format": {"type": "text"}},
    ],
)
async def test_fields_that_ask_for_nothing(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, object]
) -> None:
    await complete(client, seed=3, **fields)
    await complete(client, seed=3)
    with_fields, without = engine.requests
    assert with_fields.params == without.params


async def test_null_is_the_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    names = set(CompletionRequest.model_fields) - {"model", "prompt"}
    assert len(names) > 50
    await complete(client, seed=3)
    await complete(client, **dict.fromkeys(names) | {"seed": 3})
    absent, null = engine.requests
    assert null.params == absent.params
    assert null.speculation == absent.speculation
    assert null.cache_salt == absent.cache_salt
    assert absent.params.temperature == 1
    assert absent.params.max_tokens == 16


@pytest.mark.parametrize("top_k", [0, -1])
async def test_top_k_off(client: httpx.AsyncClient, engine: FakeEngine, top_k: int) -> None:
    await complete(client, top_k=top_k)
    assert engine.requests[0].params.top_k == 0


async def test_top_k_beyond_the_vocabulary_is_the_vocabulary(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(client, top_k=10**30)
    assert engine.requests[0].params.top_k == engine.info.vocab_size


@pytest.mark.parametrize(
    ("asked", "mode", "number"),
    [
        ({}, SpeculationMode.AUTO, None),
        ({"mode": "off"}, SpeculationMode.OFF, None),
        ({"mode": "suffix", "num_speculative_tokens": 3}, SpeculationMode.SUFFIX, 3),
        ({"num_speculative_tokens": 0}, SpeculationMode.AUTO, 0),
    ],
)
async def test_speculation(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    asked: object,
    mode: SpeculationMode,
    number: int | None,
) -> None:
    await complete(client, speculation=asked)
    speculation = engine.requests[0].speculation
    assert (speculation.mode, speculation.num_speculative_tokens) == (mode, number)


async def test_drawn_seed_is_returned_and_replays(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    seeds = [(await complete(client))["metrics"]["seed"] for _ in range(3)]
    assert seeds == [request.params.seed for request in engine.requests]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**53 for seed in seeds)
    answer = await complete(client, seed=seeds[0])
    assert answer["metrics"]["seed"] == seeds[0]


async def test_stop_text_is_not_returned(client: httpx.AsyncClient) -> None:
    answer = await complete(client, stop="ll")
    assert answer["choices"][0]["text"] == "He"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 4


async def test_length(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, max_tokens=3))["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hel", "length")


async def test_ignore_eos(client: httpx.AsyncClient) -> None:
    assert (await complete(client, max_tokens=8, ignore_eos=True))["choices"][0]["text"] == "HelloHel"


async def test_a_stop_token_says_which(client: httpx.AsyncClient) -> None:
    answer = await complete(client, stop_token_ids=[ord("l"), ord("x")])
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("He", "stop", ord("l"))
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_stop_string_says_which(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, stop=["x", "lo"], include_stop_str_in_output=True))["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello", "stop", "lo")


async def test_the_end_token_is_text_only_if_asked_for_twice(client: httpx.AsyncClient) -> None:
    both = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    for fields, text in ((both, "Hello<end>"), ({"skip_special_tokens": False}, "Hello"), ({}, "Hello")):
        choice = (await complete(client, **fields))["choices"][0]
        assert (choice["text"], choice["stop_reason"]) == (text, None)


async def test_a_request_id_becomes_part_of_the_id(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answers = [await complete(client, request_id="mine/1", n=2) for _ in range(2)]
    assert [answer["id"] for answer in answers] == ["cmpl-mine/1"] * 2
    assert len({request.request_id for request in engine.requests}) == 4
    assert all(request.request_id.startswith("cmpl-mine/1-") for request in engine.requests)


async def test_aliases_answer_to_their_own_name() -> None:
    async with serve(FakeEngine(), served_model_names=("main", "alias")) as client:
        assert (await complete(client, model="alias"))["model"] == "alias"
        assert error_of(await post(client, model="fake"), 404)["code"] == "model_not_found"


async def test_fingerprint_follows_the_model_and_its_numbers() -> None:
    prints = []
    changes: list[dict[str, object]] = [{}, {"name": "alias"}, {"source": "b"}, {"dtype": "bfloat16"}]
    for change in [*changes, {"device": "cuda:0"}, {"attention": "tiled"}, {"weights_bytes": 5}]:
        async with serve(FakeEngine(info=fake_info(**change)), served_model_names=("fake",)) as client:
            prints.append((await complete(client))["system_fingerprint"])
    assert prints[0] == prints[1]
    assert len(set(prints)) == len(prints) - 1


async def test_speculation_report_sums_the_choices() -> None:
    # "Hello" and the end token in steps of 3 + 1 + 2: accepted 2, 0, 1 of 3 drafted each.
    engine = FakeEngine(Script(tokens_per_step=(3, 1, 2), num_drafted=3))
    async with serve(engine) as client:
        one = (await complete(client))["metrics"]["speculative_decoding"]
        two = (await complete(client, n=2))["metrics"]["speculative_decoding"]
        off = (await complete(client, speculation={"mode": "off"}))["metrics"]["speculative_decoding"]
    assert one == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": pytest.approx(1 / 3),
        "acceptance_histogram": [1, 1, 1, 0, 0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 9,
        "num_spec_tokens": 4,
    }
    assert two["acceptance_histogram"] == [2, 2, 2, 0, 0]
    assert (two["num_spec_steps"], two["num_accepted_draft_tokens"], two["num_draft_tokens"]) == (6, 6, 18)
    assert two["mean_acceptance_length"] == 2.0
    assert (off["num_spec_steps"], off["acceptance_histogram"]) == (0, [0])
