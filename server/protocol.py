"""The wire format of completions, field by field. Knows types and OpenAI's bounds; knows no engine.

What the engine checks itself (ranges of sampling parameters, the context length) is not checked again here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from engine.errors import InvalidRequest
from engine.params import SpeculationMode
from server.errors import json_text

MAX_STOP_STRINGS = 4

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
    if not value:
        raise InvalidRequest(f"{where} must not be empty", param="prompt")
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


def _parse_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise InvalidRequest(f"stop must be a string or a list of strings, not {json_text(value)}", param="stop")
    if not 1 <= len(strings) <= MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop must hold 1 to {MAX_STOP_STRINGS} strings, not {len(strings)}", param="stop")
    return tuple(strings)


class _RequestPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(_RequestPart):
    """How a stream is to be sent."""

    include_usage: bool | None = None


class Speculation(_RequestPart):
    """How this request is to be drafted; it changes the speed and never the tokens."""

    mode: Annotated[SpeculationMode, Field(strict=False)] = SpeculationMode.AUTO
    num_speculative_tokens: int | None = None


class CompletionRequest(_RequestPart):
    """The body of POST /v1/completions. Null and absent are the same: the default."""

    model: str
    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_parse_prompt)]
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(_parse_stop)] = ()
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    speculation: Speculation | None = None
    user: str | None = None

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return 1 if self.n is None else self.n

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Logprobs(BaseModel):
    """Four lists of one length, an entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[TopLogprobs | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One choice, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None

    @property
    def says_something(self) -> bool:
        """Whether a chunk with this would tell a client anything."""
        has_tokens = self.logprobs is not None and bool(self.logprobs.tokens)
        return bool(self.text) or has_tokens or self.finish_reason is not None


class PromptTokensDetails(BaseModel):
    """Where the prompt tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of a whole request; a prompt counts once, whatever ``n`` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculativeDecoding(BaseModel):
    """What drafting did for a request, summed over its choices."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class ResponseMetrics(BaseModel):
    """What replays a request, and how it was served."""

    seed: int
    speculative_decoding: SpeculativeDecoding


class Completion(BaseModel):
    """The answer, or one chunk of a stream. Fields left out at construction are left out on the wire."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None

    def to_json(self) -> str:
        """The wire form."""
        return self.model_dump_json(exclude_unset=True)
