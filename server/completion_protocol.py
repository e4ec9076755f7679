"""The wire format of /v1/completions: prompts in, choices out. Knows no engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, PlainValidator

from engine.errors import InvalidRequest
from server.errors import json_text
from server.protocol import Answer, GenerationFields, PromptLogprobs, TokenProvenance

Prompt = str | tuple[int, ...]
TopLogprobs = dict[str, float]


def _parse_prompt(value: Any) -> tuple[Prompt, ...]:
    """Any of OpenAI's four shapes as a tuple of prompts."""
    if isinstance(value, str):
        return (_text(value, "prompt"),)
    if not isinstance(value, list):
        raise InvalidRequest(f"prompt must be a string or a list, not {json_text(value)}", param="prompt")
    if not value:
        raise InvalidRequest("prompt must not be an empty list", param="prompt")
    if _is_int(value[0]):
        return (_token_ids(value, "prompt"),)
    if isinstance(value[0], list):
        return tuple(_token_ids(item, f"prompt[{i}]") for i, item in enumerate(value))
    if not isinstance(value[0], str):
        expected = "a string, a token id or a list of token ids"
        raise InvalidRequest(f"prompt[0] must be {expected}, not {json_text(value[0])}", param="prompt")
    return tuple(_text(item, f"prompt[{i}]") for i, item in enumerate(value))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a string, not {json_text(value)}", param="prompt")
    return value


def _token_ids(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} must be a list of token ids, not {json_text(value)}", param="prompt")
    if not value:
        raise InvalidRequest(f"{where} must not be an empty list", param="prompt")
    for i, item in enumerate(value):
        if not _is_int(item):
            raise InvalidRequest(f"{where}[{i}] must be a token id, not {json_text(item)}", param="prompt")
    return tuple(value)


def _is_int(value: Any) -> bool:
    return type(value) is int


class CompletionRequest(GenerationFields):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(_parse_prompt, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    max_tokens: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def num_candidates(self) -> int:
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def ranks_candidates(self) -> bool:
        return self.num_candidates > 1 and self.best_of is not None


class Logprobs(BaseModel):
    """Four lists of one length, an entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[TopLogprobs | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One choice, or what a chunk adds to it. The last four are left out unless asked for."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    token_provenance: list[TokenProvenance] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def says_something(self) -> bool:
        """Whether a chunk with this would tell a client anything."""
        has_logprobs = self.logprobs is not None and bool(self.logprobs.tokens)
        has_tokens = bool(self.token_ids or self.token_provenance) or has_logprobs
        return bool(self.text) or has_tokens or self.finish_reason is not None


class Completion(Answer):
    """The answer, or one chunk of a stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
