"""The wire format that every generating route shares. Knows types and OpenAI's bounds; knows no route and no engine.

What the engine checks itself (ranges of sampling parameters, the context length) is not checked again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from engine.errors import InvalidRequest
from engine.params import SpeculationMode
from server.errors import json_text

MAX_STOP_STRINGS = 4


def _parse_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise InvalidRequest(f"stop must be a string or a list of strings, not {json_text(value)}", param="stop")
    if not 1 <= len(strings) <= MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop must hold 1 to {MAX_STOP_STRINGS} strings, not {len(strings)}", param="stop")
    return tuple(strings)


class RequestPart(BaseModel):
    """Something inside a request: types are strict, and an unknown field is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(RequestPart):
    """How a stream is to be sent."""

    include_usage: bool | None = None


class Speculation(RequestPart):
    """How this request is to be drafted; it changes the speed and never the tokens."""

    mode: Annotated[SpeculationMode, Field(strict=False)] = SpeculationMode.AUTO
    num_speculative_tokens: int | None = None


class GenerationFields(RequestPart):
    """What every generating route takes. Null and absent are the same: the default."""

    model: str
    min_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(_parse_stop)] = ()
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


class Answer(BaseModel):
    """An answer, or one chunk of a stream. Fields left out at construction are left out on the wire."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[BaseModel]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None

    def to_json(self) -> str:
        """The wire form."""
        return self.model_dump_json(exclude_unset=True)
