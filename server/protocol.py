"""The wire format that every generating route shares. Knows types and OpenAI's bounds; knows no route and no engine.

What the engine checks itself (ranges of sampling parameters, the context length) is not checked again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator

from engine.errors import InvalidRequest
from engine.params import SpeculationMode
from engine.provenance import TokenOrigin
from server.errors import json_text
from server.text_parts import RequestPart, TextParts
from server.unserved import UnservedFields

MAX_STOP_STRINGS = 4
# All are tokenised before the request is queued.
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256


def _parse_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise InvalidRequest(f"stop must be a string or a list of strings, not {json_text(value)}", param="stop")
    if not 1 <= len(strings) <= MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop must hold 1 to {MAX_STOP_STRINGS} strings, not {len(strings)}", param="stop")
    return tuple(strings)


class StreamOptions(RequestPart):
    """How a stream is to be sent."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Speculation(RequestPart):
    """How this request is to be drafted; it changes the speed and never the tokens."""

    mode: Annotated[SpeculationMode, Field(strict=False)] = SpeculationMode.AUTO
    num_speculative_tokens: int | None = None
    itl_slo_ms: float | None = None


class Prediction(RequestPart):
    """What the client expects the output to be; it changes the speed and never the tokens."""

    type: Literal["content"]
    content: TextParts


BadWord = Annotated[str, Field(max_length=MAX_BAD_WORD_LENGTH)]


class GenerationFields(UnservedFields, RequestPart):
    """What every generating route takes. Null and absent are the same: the default."""

    model: str
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] | None = None
    min_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(_parse_stop, json_schema_input_type=str | list[str] | None)] = ()
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_token_provenance: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    speculation: Speculation | None = None
    prediction: Prediction | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_candidates(self) -> int:
        """Outputs of each prompt that are generated, of which ``num_choices`` are returned."""
        return self.num_choices

    @property
    def ranks_candidates(self) -> bool:
        """Whether the likeliest candidates are returned, best first, and not all in their order."""
        return False

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def includes_usage_so_far(self) -> bool:
        """Whether every chunk says what its choice has used."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def is_obfuscated(self) -> bool:
        """Whether the chunks of a stream are padded, so that their sizes tell little of the text."""
        return bool(self.stream_options and self.stream_options.include_obfuscation)


class PromptTokensDetails(BaseModel):
    """Where the prompt tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """What became of a predicted output."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Tokens of a whole request; a prompt counts once, whatever ``n`` is. Or those of one choice up to a chunk."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class PromptLogprob(BaseModel):
    """A token at one place of the prompt, or an alternative to it."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TokenProvenance(BaseModel):
    """An output token: what it adds to the text, how likely it was, and how it came to be.

    ``margin`` is null where the request names the alternatives, ``drafter`` and ``draft_position`` in a step without a
    draft, of which ``draft_length`` is 0.
    """

    token_id: int
    text: str
    logprob: float
    margin: float | None
    origin: TokenOrigin
    drafter: str | None
    draft_position: int | None
    draft_length: int


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
