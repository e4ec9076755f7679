"""The values that travel between the rooms. Plain data: no tensors, no HTTP, no model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.errors import InvalidRequest

MAX_LOGPROBS = 20
_MASK64 = (1 << 64) - 1


class FinishReason(StrEnum):
    """Why a request ended. ``STOP`` is an end token or a stop string, ``LENGTH`` the token limit."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SpeculationMode(StrEnum):
    """Per request: the server's choice, none, or one named drafter."""

    AUTO = "auto"
    OFF = "off"
    SUFFIX = "suffix"


def mix64(word: int) -> int:
    """A 64-bit word that depends on every bit of ``word`` (the SplitMix64 step: Steele et al., OOPSLA 2014)."""
    z = (word + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def mix_seed(seed: int, choice: int) -> int:
    """The seed of choice ``choice`` of a request (``n > 1``); choice 0 keeps the request's own."""
    return mix64(mix64(seed) ^ choice) if choice else seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What decides the tokens of one choice, together with the model and the prompt.

    Attributes:
        seed: any integer of 64 bits; names the noise of this choice.
        max_tokens: most tokens to generate; 0 only scores the prompt.
        min_tokens: end tokens are masked, and stop strings ignored, until this many tokens are out.
        temperature: 0 is greedy.
        top_k: 0 is off.
        logit_bias: token id to the number added to its raw logit.
        stop: strings that end the output; neither they nor anything after them is returned.
        ignore_eos: go on after the model's end token.
        logprobs: None for none, else how many best alternatives come with each token.
        prompt_logprobs: the same for the tokens of the prompt.
    """

    seed: int
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 0, math.inf)
        _check("min_tokens", self.min_tokens, 0, self.max_tokens, "max_tokens")
        _check("temperature", self.temperature, 0, 2)
        _check("top_k", self.top_k, 0, math.inf)
        _check("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise InvalidRequest("top_p must be greater than 0", param="top_p")
        _check("min_p", self.min_p, 0, 1)
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InvalidRequest(
                f"repetition_penalty must be a finite number greater than 0, not {self.repetition_penalty}",
                param="repetition_penalty",
            )
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        for token_id, bias in self.logit_bias.items():
            _check("logit_bias", bias, -100, 100, where=f" (token {token_id})")
        if any(not stop for stop in self.stop):
            raise InvalidRequest("stop must not hold an empty string", param="stop")
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)


def _check(name: str, value: float, low: float, high: float, high_name: str = "", *, where: str = "") -> None:
    if low <= value <= high:  # False for NaN too
        return
    if high == math.inf:
        raise InvalidRequest(f"{name} must be at least {low}, not {value}{where}", param=name)
    high_text = f"{high_name} ({high})" if high_name else f"{high}"
    raise InvalidRequest(f"{name} must lie between {low} and {high_text}, not {value}{where}", param=name)


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """How one request wants to be drafted; None takes the server's ``num_speculative_tokens``."""

    mode: SpeculationMode = SpeculationMode.AUTO
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        number = self.num_speculative_tokens
        if number is not None and not 0 <= number <= MAX_SPECULATIVE_TOKENS:
            raise InvalidRequest(
                f"speculation.num_speculative_tokens must lie between 0 and {MAX_SPECULATIVE_TOKENS}, not {number}",
                param="speculation.num_speculative_tokens",
            )


class Draft(NamedTuple):
    """Tokens proposed to follow a sequence; they live beside it and enter it only by commit.

    Attributes:
        token_ids: the proposal, possibly empty.
        probabilities: for each token the drafter's estimate that the target agrees, given the tokens before it.
        source: the drafter's name.
    """

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    source: str = "none"


class TokenLogprob(NamedTuple):
    """A token with the raw model's log-softmax, and the best alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Verdict(NamedTuple):
    """What the target says of one draft.

    Attributes:
        token_ids: the tokens plain decoding would have given: the accepted ones, then the recovered or bonus token.
        num_accepted: how many of them the draft had guessed.
        logprobs: one entry a token if the request asked for them.
        prompt_logprobs: entries for prompt tokens that this step scored, in order, if the request asked for them.
    """

    token_ids: tuple[int, ...] = ()
    num_accepted: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class SpeculationStats:
    """Counts over the drafts of one request. A draft is a step in which at least one token was proposed.

    Attributes:
        num_speculative_tokens: the longest draft this request could get.
        num_drafts: steps with a draft.
        num_draft_tokens: tokens proposed.
        num_accepted_tokens: proposed tokens that became output.
        acceptance_histogram: entry ``j`` counts the drafts of which exactly ``j`` tokens became output.
    """

    num_speculative_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.acceptance_histogram:
            self.acceptance_histogram = [0] * (self.num_speculative_tokens + 1)

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Count one draft of ``num_drafted`` tokens."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self.acceptance_histogram[num_accepted] += 1

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 before the first draft."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: tokens a drafted step brought, the recovered or bonus one included."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0


@dataclass(slots=True)
class RequestMetrics:
    """The account of one finished request. Times are seconds of ``time.monotonic``; None if never reached."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_steps: int
    num_preemptions: int
    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finish_time: float
    speculation: SpeculationStats


@dataclass(slots=True)
class RequestOutput:
    """What one step brought to one request: the only thing that leaves the engine thread for it.

    Attributes:
        token_ids: new tokens, in order; an end token is among them.
        text: new text that no later token can change or forbid.
        logprobs: one entry a token of ``token_ids`` if asked for.
        prompt_logprobs: once, with the first output, if asked for; the first prompt token has None.
        finish_reason: set on exactly one output of a request, the last.
        stop_reason: the stop string that matched, or the end token's id.
        error: what went wrong if ``finish_reason`` is ``ERROR``.
        metrics: on the last output.
        time: when the step ended, seconds of ``time.monotonic``.
    """

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    metrics: RequestMetrics | None = None
    time: float = 0.0


@dataclass(slots=True)
class StepStats:
    """The account of one step, in plain numbers.

    Attributes:
        num_running, num_waiting: sequences after the step.
        kv_cache_usage: share of the KV blocks in use after the step, 0..1.
        num_rows: rows of the target forward; 0 if nothing ran and only the load above has changed.
        num_prompt_tokens: prompt tokens whose prefill finished being needed (computed or found in the cache).
        num_cached_tokens: of those, the ones found in the prefix cache.
        num_generated_tokens: tokens that became output.
        num_drafts, num_draft_tokens, num_accepted_tokens: as in ``SpeculationStats``, summed over the step.
        drafted_per_position, accepted_per_position: entry ``j`` counts the tokens at draft position ``j``.
        num_preemptions: sequences put back for want of blocks.
        schedule_seconds, propose_seconds, forward_seconds, verify_seconds, commit_seconds: where the time went.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_rows: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    schedule_seconds: float = 0.0
    propose_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model, as resolved at start.

    Attributes:
        name: what clients call it.
        weights_bytes, kv_cache_bytes: memory taken.
        num_kv_tokens: tokens the KV pool can hold.
    """

    name: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int
    weights_bytes: int
    kv_cache_bytes: int
    num_kv_tokens: int
    drafter: str
    num_speculative_tokens: int
    num_threads: int
