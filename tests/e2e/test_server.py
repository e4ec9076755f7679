"""The whole, as its users meet it: the OpenAI SDK and curl's bytes against a server on real weights."""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

MODEL = "smollm2-135m-instruct"
OFF = {"speculation": {"mode": "off"}}
REPETITIVE = "Numbers: one two three four five. Numbers: one two three four five. Numbers: one two"

DRAFT_COUNTERS = {
    "num_draft_tokens": "draftahead_spec_decode_draft_tokens_total",
    "num_accepted_draft_tokens": "draftahead_spec_decode_accepted_tokens_total",
    "num_spec_steps": "draftahead_spec_decode_drafts_total",
}


def complete(client: OpenAI, prompt: Any = REPETITIVE, **fields: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": 0, "seed": 7} | fields
    return client.completions.create(prompt=prompt, **settings).model_dump()


def counters(server_url: str) -> dict[str, float]:
    """Every unlabelled-but-for-the-model sample of /metrics."""
    lines = re.findall(r'^(\w+)\{model_name="[^"]*"\} (\S+)$', httpx.get(f"{server_url}/metrics").text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def await_idle(server_url: str) -> dict[str, float]:
    for _ in range(200):
        now = counters(server_url)
        if now["draftahead_requests_running"] == now["draftahead_requests_waiting"] == 0:
            return now
        time.sleep(0.05)
    raise AssertionError("the server does not become idle")


def test_plain_bytes(server_url: str) -> None:
    response = httpx.post(
        f"{server_url}/v1/completions", json={"model": MODEL, "prompt": "Hello", "max_tokens": 4}, timeout=60
    )
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 4


def test_models_and_health(client: OpenAI, server_url: str) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert httpx.get(f"{server_url}/health").status_code == 200


@pytest.mark.parametrize("temperature", [0, 1])
def test_stream_equals_plain_and_speculation_changes_nothing(client: OpenAI, temperature: float) -> None:
    plain = complete(client, temperature=temperature, extra_body=OFF)
    drafted = complete(client, temperature=temperature)
    settings: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": temperature, "seed": 7}
    chunks = list(client.completions.create(prompt=REPETITIVE, stream=True, **settings))
    text = plain["choices"][0]["text"]
    assert drafted["choices"][0]["text"] == text
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    if temperature == 0:
        assert drafted["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


FIELDS: dict[str, dict[str, Any]] = {
    "bad words": {"bad_words": ["three", "four", "two"]},
    "allowed tokens": {"allowed_token_ids": [28, 30, 253, 260, 284, 827, 1296, 1876, 2531]},
    "stop token": {"stop_token_ids": [30, 2531], "include_stop_str_in_output": True, "temperature": 1},
    "stop in the text": {"stop": ["five. N"], "include_stop_str_in_output": True},
    "special tokens": {"skip_special_tokens": False, "logit_bias": {"2": 18}, "ignore_eos": True, "temperature": 1},
    "chosen alternatives": {"logprobs": 1, "logprob_token_ids": [28, 30, 2], "return_tokens_as_token_ids": True},
    "truncated": {"truncate_prompt_tokens": 9, "echo": True, "logprobs": 2},
    "salted": {"cache_salt": "salt", "request_id": "mine"},
}


@pytest.mark.parametrize("name", list(FIELDS))
def test_every_field_is_the_same_drafted_and_streamed(client: OpenAI, name: str) -> None:
    fields = {"temperature": 0, "return_token_ids": True} | FIELDS[name]
    temperature = fields.pop("temperature")
    plain = complete(client, temperature=temperature, extra_body=fields | OFF)
    assert complete(client, temperature=temperature, extra_body=fields)["choices"] == plain["choices"]
    settings: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": temperature, "seed": 7}
    stream = client.completions.create(prompt=REPETITIVE, stream=True, extra_body=fields, **settings)
    chunks = [chunk.choices[0].model_dump() for chunk in stream]
    (choice,) = plain["choices"]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == choice["token_ids"]
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
    if choice["logprobs"] is not None:
        streamed = [entry for chunk in chunks for entry in chunk["logprobs"]["token_logprobs"]]
        assert streamed == choice["logprobs"]["token_logprobs"]


def test_the_best_candidates_are_the_same_drafted(client: OpenAI) -> None:
    plain = complete(client, temperature=1, n=2, best_of=5, extra_body=OFF)
    drafted = complete(client, temperature=1, n=2, best_of=5)
    assert drafted["choices"] == plain["choices"]
    assert drafted["usage"]["completion_tokens"] > 2 * 24


def test_scores_of_a_prompt_are_those_of_an_echo(client: OpenAI) -> None:
    scored = complete(client, max_tokens=0, extra_body={"prompt_logprobs": 2})["choices"][0]
    echoed = complete(client, max_tokens=0, echo=True, logprobs=2)["choices"][0]
    firsts = [next(iter(entry.values())) for entry in scored["prompt_logprobs"][1:]]
    assert [first["logprob"] for first in firsts] == echoed["logprobs"]["token_logprobs"][1:]
    assert [first["decoded_token"] for first in firsts] == echoed["logprobs"]["tokens"][1:]
    for entry in scored["prompt_logprobs"][1:]:
        ranked = sorted(entry.values(), key=lambda one: one["rank"])
        assert [one["rank"] for one in ranked][:2] == [1, 2]
        assert [one["logprob"] for one in ranked] == sorted((o["logprob"] for o in ranked), reverse=True)


def test_choices_differ_and_replay_by_seed(client: OpenAI) -> None:
    first, again = (complete(client, temperature=1, n=2, seed=5) for _ in range(2))
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in again["choices"]]
    assert texts[0] != texts[1]
    assert first["usage"]["completion_tokens"] == 48
    unseeded = complete(client, temperature=1, seed=None)
    replayed = complete(client, temperature=1, seed=unseeded["metrics"]["seed"])
    assert replayed["choices"][0]["text"] == unseeded["choices"][0]["text"]


def test_stop_string_inside_an_accepted_run(client: OpenAI) -> None:
    whole = complete(client)["choices"][0]["text"]
    stop = whole[10:16]
    for body in ({}, OFF):
        choice = complete(client, stop=[stop], logprobs=1, extra_body=body)
        assert choice["choices"][0]["text"] == whole[: whole.index(stop)]
        assert choice["choices"][0]["finish_reason"] == "stop"
        assert len(choice["choices"][0]["logprobs"]["tokens"]) == choice["usage"]["completion_tokens"]


def test_logprobs_and_echo(client: OpenAI) -> None:
    answer = complete(client, "The sky is", max_tokens=3, logprobs=2, echo=True)
    logprobs = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"].startswith("The sky is")
    assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])


def test_thirty_two_at_once_and_every_count_reconciles(client: OpenAI, server_url: str) -> None:
    before = await_idle(server_url)
    requests = [_mixed_request(i) for i in range(32)]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda fields: complete(client, **fields), requests))
    after = await_idle(server_url)

    for fields, answer in zip(requests, answers, strict=True):
        tokens = answer["choices"][0]["logprobs"]["tokens"]
        usage = answer["usage"]
        assert len(tokens) == usage["prompt_tokens"] + usage["completion_tokens"]
        if fields["extra_body"] == OFF:
            assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    for figure, counter in DRAFT_COUNTERS.items():
        total = sum(answer["metrics"]["speculative_decoding"][figure] for answer in answers)
        assert after[counter] - before[counter] == total
    generated = sum(answer["usage"]["completion_tokens"] for answer in answers)
    counter = "draftahead_generation_tokens_total"
    assert after[counter] - before[counter] == generated
    assert after["draftahead_kv_cache_usage_ratio"] == 0

    for fields, answer in zip(requests, answers, strict=True):
        alone = complete(client, **fields | {"extra_body": OFF})
        assert answer["choices"] == alone["choices"], "each with its own text"


def _mixed_request(index: int) -> dict[str, Any]:
    word = random.Random(index).choice(["river", "copper", "lantern", "orchard"])
    return {
        "prompt": f"Item {index}: {word}, {word}, {word}, {word}, {word},",
        "max_tokens": 4 + index % 13,
        "temperature": (0, 0.7, 1)[index % 3],
        "seed": index,
        "echo": True,
        "logprobs": 0,
        "extra_body": OFF if index % 4 == 3 else {"speculation": {"num_speculative_tokens": 1 + index % 8}},
    }


def test_an_off_request_moves_no_draft_counter(client: OpenAI, server_url: str) -> None:
    before = await_idle(server_url)
    complete(client, extra_body=OFF)
    after = await_idle(server_url)
    assert all(after[name] == before[name] for name in DRAFT_COUNTERS.values())


def test_a_client_that_goes_away_frees_its_blocks(server_url: str) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server_url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # kept, as the connection is closed with it
        next(lines)
        assert counters(server_url)["draftahead_kv_cache_usage_ratio"] > 0
    assert await_idle(server_url)["draftahead_kv_cache_usage_ratio"] == 0
