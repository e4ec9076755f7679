"""The values that travel between the rooms. Plain data: no tensors, no HTTP, no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine.provenance import StepProvenance

# Told the stage and the fraction done, 0..1; each stage that takes long counts from 0.
Progress = Callable[[str, float], None]


class FinishReason(StrEnum):
    """Why a request ended. ``STOP`` is an end token, stop token or stop string, ``LENGTH`` the token limit."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


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


class DraftReason(StrEnum):
    """Why a draft has the length it has in a step."""

    WHOLE = "whole"  # all that was proposed is verified
    PRICE = "price"  # more rows would take more time than they bring
    LATENCY = "latency"  # more rows would miss the inter-token target
    MEMORY = "memory"  # more tokens would take blocks that running requests may need next
    BUDGET = "budget"  # the rows of a step are used up
    NO_GUESS = "no_guess"  # no drafter has anything to propose
    PAUSED = "paused"  # a drafter that takes time was not asked: lately its drafts were not worth it
    PLAIN = "plain"  # the step runs without drafts, so that the speed-up is measured
    OFF = "off"  # the request asks for no draft, or ends with the next token


class DraftLimit(NamedTuple):
    """The longest draft that a sequence may have, and what keeps it from a longer one; None is its own settings."""

    length: int
    reason: DraftReason | None = None


class DraftDecision(NamedTuple):
    """What of a proposal is verified.

    Attributes:
        proposed: by the drafter.
        length: leading tokens of it that are verified.
        reason: None for a sequence that draws no token in this step.
        chances: for each proposed token the chance that it and all before it are accepted; empty if nobody asked.
    """

    proposed: Draft
    length: int = 0
    reason: DraftReason | None = None
    chances: tuple[float, ...] = ()

    @property
    def draft(self) -> Draft:
        """The part that is verified."""
        token_ids, probabilities, source = self.proposed
        return Draft(token_ids[: self.length], probabilities[: self.length], source)


class TokenLogprob(NamedTuple):
    """A token with the raw model's log-softmax.

    Attributes:
        top: alternatives with theirs: the best, best first, or the ones asked for, in the order asked.
        rank: the token's place among all, from 1; of equally likely ones the smaller id comes first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 1


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
    """The account of one finished request.

    Attributes:
        num_steps: those that brought it tokens.
        num_accepted_prediction_tokens: tokens of the client's prediction that the output followed, drafted or not.
        num_rejected_prediction_tokens: the others.
        scheduled_at: when a step first had room for it, seconds of ``time.monotonic``; None if none ever had.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_steps: int
    num_preemptions: int
    speculation: SpeculationStats
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0
    scheduled_at: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """What one step brought to one request: the only thing that leaves the engine thread for it.

    Attributes:
        token_ids: new tokens, in order; an end token is among them.
        text: new text that no later token can change or forbid.
        logprobs: one entry a token of ``token_ids`` if asked for.
        prompt_logprobs: once, with the first output, if asked for; the first prompt token has None.
        finish_reason: set on exactly one output of a request, the last.
        stop_reason: the stop string that matched, or the one of ``stop_token_ids``; None for the model's end token.
        error: what went wrong if ``finish_reason`` is ``ERROR``.
        metrics: on the last output.
        time: when the step ended, seconds of ``time.monotonic``.
        provenance: where the tokens came from, an entry a step.
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
    provenance: list[StepProvenance] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model, as resolved at start.

    Attributes:
        name: what clients call it.
        source: the model's own name, whatever clients call it.
        quantization: type in which weights are kept; ``none`` is ``dtype``.
        attention: the attention backend.
        weights_bytes: memory that the model takes.
        kv_cache_bytes: memory that keys and values take, the draft model's among them.
        num_kv_tokens: tokens the KV pool can hold.
        drafters: names that a request may ask for.
        draft_length: ``adaptive`` or ``fixed``.
        draft_model: name of the model that drafts; empty for none.
        draft_weights_bytes: memory that it takes.
    """

    name: str
    source: str
    device: str
    dtype: str
    quantization: str
    attention: str
    vocab_size: int
    max_model_len: int
    weights_bytes: int
    kv_cache_bytes: int
    num_kv_tokens: int
    drafter: str
    num_speculative_tokens: int
    num_threads: int
    drafters: tuple[str, ...] = ()
    draft_length: str = "adaptive"
    draft_model: str = ""
    draft_weights_bytes: int = 0
