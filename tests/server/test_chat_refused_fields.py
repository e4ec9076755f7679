"""What chat cannot serve as asked is refused by name, whether it is wrong or only not served here."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.server.harness import error_of, post_chat, serve

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "ab"}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"max_completion_tokens": 10**30}, "max_completion_tokens"),
        ({"min_tokens": 45}, "min_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": list("abcde")}, "stop"),
        ({"temperature": 3}, "temperature"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"echo": 1}, "echo"),
        ({"add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"speculation": {"mode": "magic"}}, "speculation.mode"),
        ({"frequency_penalti": 1}, "frequency_penalti"),
    ],
)
async def test_a_bad_field_is_named(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    assert error_of(await post_chat(client, **fields), 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize("unknown_fields", ["reject", "ignore"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audio", {"voice": "alloy"}),
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "x"}]),
        ("function_call", "auto"),
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
        ("parallel_tool_calls", True),
        ("prompt_cache_key", "x"),
        ("reasoning_effort", "low"),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("safety_identifier", "x"),
        ("service_tier", "flex"),
        ("store", True),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("tools", [TOOL]),
        ("tools", []),
        ("verbosity", "low"),
        ("web_search_options", {}),
    ],
)
async def test_a_known_field_that_is_not_served_is_named(name: str, value: Any, unknown_fields: str) -> None:
    async with serve(FakeEngine(), unknown_fields=unknown_fields) as client:
        error = error_of(await post_chat(client, **{name: value}), 400)
    assert error["param"] == name
    assert "must be" in error["message"]


async def test_the_limit_of_choices() -> None:
    async with serve(FakeEngine(), max_choices_per_request=3) as client:
        assert error_of(await post_chat(client, n=4), 400)["param"] == "n"
