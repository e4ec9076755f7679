"""From the engine to the wire, as far as every route does it alike: ends, usage and figures. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, cast

from engine.errors import EngineUnavailable
from engine.types import FinishReason, RequestMetrics, RequestOutput, SpeculationStats, TokenLogprob
from server.convert import Presentation
from server.errors import GenerationFailed
from server.protocol import (
    CompletionTokensDetails,
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    ResponseMetrics,
    SpeculativeDecoding,
    Usage,
)

# JSON has no -Infinity; this is the number that clients know for "impossible".
LEAST_LOGPROB = -9999.0


def clamp_logprob(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return max(logprob, LEAST_LOGPROB)


def finish_reason_of(output: RequestOutput) -> Literal["stop", "length"] | None:
    """How the wire says that a choice has ended, if it has.

    Raises:
        EngineUnavailable: the output says that the engine has stopped.
        GenerationFailed: it says that the request was aborted.
    """
    match output.finish_reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return cast(Literal["stop", "length"], output.finish_reason.value)
        case FinishReason.ERROR:
            raise EngineUnavailable(output.error or "the engine has stopped")
        case FinishReason.ABORT:
            raise GenerationFailed("this request was aborted")
        case None:
            return None


def join_outputs(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """All outputs of one choice, in order, as if one step had brought them."""
    first, last = outputs[0], outputs[-1]
    return replace(
        last,
        token_ids=[token_id for output in outputs for token_id in output.token_ids],
        text="".join(output.text for output in outputs),
        logprobs=[entry for output in outputs for entry in output.logprobs or ()],
        prompt_logprobs=first.prompt_logprobs,
        provenance=[step for output in outputs for step in output.provenance],
    )


def token_namer(presentation: Presentation, token_text: Callable[[int], str]) -> Callable[[int], str]:
    """How log-probabilities call a token."""
    return "token_id:{}".format if presentation.names_tokens_by_id else token_text


def prompt_logprobs_of(output: RequestOutput, num_top: int, token_text: Callable[[int], str]) -> PromptLogprobs:
    """By the id, each token of the prompt and ``num_top`` alternatives; None for the first, which nothing precedes."""
    return [
        None if entry is None else _prompt_logprob(entry, num_top, token_text) for entry in output.prompt_logprobs or ()
    ]


def _prompt_logprob(entry: TokenLogprob, num_top: int, token_text: Callable[[int], str]) -> dict[str, PromptLogprob]:
    ranked = [(entry.token_id, entry.logprob, entry.rank)]
    ranked += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top[:num_top], start=1)]
    return {
        str(token_id): PromptLogprob(logprob=clamp_logprob(logprob), rank=rank, decoded_token=token_text(token_id))
        for token_id, logprob, rank in ranked
    }


def usage_so_far(num_prompt_tokens: int, num_output_tokens: int) -> Usage:
    """What one choice has used while it runs."""
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )


def usage_of(accounts: Sequence[RequestMetrics], num_candidates: int) -> Usage:
    """The usage of a request from all that was generated, prompt by prompt, ``num_candidates`` a prompt."""
    firsts = accounts[::num_candidates]
    prompt_tokens = sum(account.num_prompt_tokens for account in firsts)
    completion_tokens = sum(account.num_output_tokens for account in accounts)
    cached_tokens = sum(account.num_cached_tokens for account in firsts)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=sum(account.num_accepted_prediction_tokens for account in accounts),
            rejected_prediction_tokens=sum(account.num_rejected_prediction_tokens for account in accounts),
        ),
    )


def metrics_of(accounts: Sequence[RequestMetrics], seed: int) -> ResponseMetrics:
    """The seed, and the drafting of all choices together."""
    total = _sum_speculation([account.speculation for account in accounts])
    return ResponseMetrics(
        seed=seed,
        speculative_decoding=SpeculativeDecoding(
            mean_acceptance_length=total.mean_acceptance_length,
            draft_acceptance_rate=total.acceptance_rate,
            acceptance_histogram=total.acceptance_histogram,
            num_spec_steps=total.num_drafts,
            num_accepted_draft_tokens=total.num_accepted_tokens,
            num_draft_tokens=total.num_draft_tokens,
            num_spec_tokens=total.num_speculative_tokens,
        ),
    )


def _sum_speculation(parts: Sequence[SpeculationStats]) -> SpeculationStats:
    total = SpeculationStats(max(part.num_speculative_tokens for part in parts))
    for part in parts:
        total.num_drafts += part.num_drafts
        total.num_draft_tokens += part.num_draft_tokens
        total.num_accepted_tokens += part.num_accepted_tokens
        for j, count in enumerate(part.acceptance_histogram):
            total.acceptance_histogram[j] += count
    return total
