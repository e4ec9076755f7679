"""Conversations with the default model, through the OpenAI SDK."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.test_server import MODEL, OFF

RECITE = [
    {"role": "system", "content": "You repeat what you are told."},
    {"role": "user", "content": "Say again: one two three four. One two three four. One two three four. One two"},
]
RENDERED = (
    "<|im_start|>system\nYou repeat what you are told.<|im_end|>\n"
    f"<|im_start|>user\n{RECITE[1]['content']}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def chat(client: OpenAI, **fields: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"model": MODEL, "messages": RECITE, "max_completion_tokens": 32, "seed": 7} | fields
    return client.chat.completions.create(**settings).model_dump()


def test_a_chat_is_the_completion_of_the_rendered_prompt(client: OpenAI) -> None:
    answer = chat(client, temperature=0, extra_body={"return_token_ids": True})
    completion = client.completions.create(
        model=MODEL, prompt=RENDERED, max_tokens=32, temperature=0, extra_body={"return_token_ids": True}
    ).model_dump()
    (choice,), (other,) = answer["choices"], completion["choices"]
    assert answer["prompt_token_ids"] == other["prompt_token_ids"]
    assert answer["prompt_token_ids"].count(answer["prompt_token_ids"][0]) == 3, "a begin token each, and no other"
    assert choice["token_ids"] == other["token_ids"]
    assert choice["message"]["content"] == other["text"]
    assert choice["finish_reason"] == other["finish_reason"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_stream_equals_plain_and_speculation_changes_nothing(client: OpenAI, temperature: float) -> None:
    fields: dict[str, Any] = {"temperature": temperature, "n": 2, "logprobs": True, "top_logprobs": 2}
    plain = chat(client, **fields, extra_body=OFF)
    drafted = chat(client, **fields, extra_body={"speculation": {"num_speculative_tokens": 8}})
    assert drafted["choices"] == plain["choices"]
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert drafted["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    texts = ["", ""]
    for chunk in client.chat.completions.create(
        model=MODEL, messages=RECITE, max_completion_tokens=32, seed=7, stream=True, temperature=temperature, n=2
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice["message"]["content"] for choice in plain["choices"]]


def test_going_on_with_a_message(client: OpenAI) -> None:
    whole = chat(client, temperature=0)["choices"][0]["message"]["content"]
    started = [*RECITE, {"role": "assistant", "content": whole[:12]}]
    body = {"continue_final_message": True, "echo": True, "return_token_ids": True}
    answer = chat(client, temperature=0, messages=started, extra_body=body)
    assert answer["choices"][0]["message"]["content"].startswith(whole[:12])
    prompt = client.completions.create(
        model=MODEL, prompt=RENDERED + whole[:12], max_tokens=1, extra_body={"return_token_ids": True}
    ).model_dump()["choices"][0]["prompt_token_ids"]
    assert answer["prompt_token_ids"] == prompt


@pytest.mark.parametrize("body", [OFF, {}], ids=["plain", "drafted"])
def test_bytes_of_the_tokens_make_the_text(client: OpenAI, body: dict[str, Any]) -> None:
    question = [{"role": "user", "content": "Continue: 🦊🐙🦊🐙🦊🐙🦊🐙🦊🐙🦊🐙"}]
    fields: dict[str, Any] = {"messages": question, "temperature": 0, "logprobs": True}
    choice = chat(client, **fields, extra_body=body)["choices"][0]
    entries = choice["logprobs"]["content"]
    spelled = bytes(byte for entry in entries for byte in entry["bytes"])
    text = choice["message"]["content"]
    assert spelled.decode("utf-8", "replace").removesuffix("<|im_end|>") == text
    assert text.count("🐙") > 5, "of several tokens each"
    assert len(entries) > 2 * len(text)
    stream = client.chat.completions.create(
        model=MODEL, max_completion_tokens=32, seed=7, stream=True, extra_body=body, **fields
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces[:-1])


def test_without_a_limit_an_answer_ends_by_itself_or_with_the_context(client: OpenAI) -> None:
    answer = chat(client, temperature=0, max_completion_tokens=None, stop=["."])
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_predicted_answer_takes_a_quarter_of_the_steps_and_is_the_same(client: OpenAI) -> None:
    code = "\n".join(f"def area_{n}(width, height):\n    return width * height * {n}\n" for n in range(1, 9))
    messages = [{"role": "user", "content": f"Repeat this code and nothing else.\n\n{code}"}]
    fields: dict[str, Any] = {"messages": messages, "max_completion_tokens": 200, "temperature": 0}
    plain = chat(client, **fields, extra_body={**OFF, "min_tokens": 200})
    (expected,) = plain["choices"]
    assert plain["usage"]["completion_tokens"] == 200
    prediction = {"type": "content", "content": expected["message"]["content"]}
    drafted = chat(client, **fields, prediction=prediction, extra_body={"min_tokens": 200})
    assert drafted["choices"] == plain["choices"]
    stats = drafted["metrics"]["speculative_decoding"]
    num_steps = 200 - stats["num_accepted_draft_tokens"]
    assert num_steps <= 50
    details = drafted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] >= 195
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == pytest.approx(200, abs=5)
