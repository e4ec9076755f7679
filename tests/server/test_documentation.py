"""docs/api.md names everything that is served."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from server.chat_messages import ChatMessage
from server.chat_protocol import ChatChoice, ChatRequest
from server.completion_protocol import CompletionChoice, CompletionRequest
from server.protocol import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    CompletionTokensDetails,
    Speculation,
    SpeculativeDecoding,
    StreamOptions,
)
from server.settings import ServerSettings
from server.tokens import DetokenizeRequest, TokenizeRequest, Tokens

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def test_every_field_is_described() -> None:
    for model in (
        CompletionRequest,
        ChatRequest,
        ChatMessage,
        StreamOptions,
        Speculation,
        SpeculativeDecoding,
        TokenizeRequest,
        Tokens,
        DetokenizeRequest,
    ):
        for name in model.model_fields:
            assert f"`{name}`" in PAGE, name
    for name in (*CompletionChoice.model_fields, *ChatChoice.model_fields, *CompletionTokensDetails.model_fields):
        assert f"`{name}`" in PAGE or f"`choices[].{name}`" in PAGE, name


def test_the_limits_are_the_defaults() -> None:
    limits = ServerSettings()
    assert f"{MAX_BAD_WORDS} words of {MAX_BAD_WORD_LENGTH} characters" in PAGE
    assert f"{limits.max_logprobs} is the default of `--max-logprobs`" in PAGE
    assert f"{limits.max_request_bytes // 2**20} MiB a request" in PAGE
    assert f"{limits.max_prompts_per_request} prompts a request" in PAGE
    assert f"{limits.max_choices_per_request} choices a request" in PAGE


async def test_every_metric_is_described_and_every_query_names_one(client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    exported = set(re.findall(r"^# TYPE draftahead_(\S+)", text, re.MULTILINE))
    assert [name for name in sorted(exported) if not re.search(rf"`{name}[`{{]", PAGE)] == []
    asked = {name.removesuffix("_bucket") for name in re.findall(r"draftahead_(\w+)\[", PAGE)}
    assert asked
    assert asked <= exported
