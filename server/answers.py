"""From the engine to the wire: outputs into text, log-probabilities, usage and figures. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

from engine.errors import EngineUnavailable
from engine.types import FinishReason, RequestMetrics, RequestOutput, SpeculationStats, TokenLogprob
from server.convert import ChoicePlan
from server.errors import GenerationFailed
from server.protocol import (
    CompletionChoice,
    Logprobs,
    PromptTokensDetails,
    ResponseMetrics,
    SpeculativeDecoding,
    TopLogprobs,
    Usage,
)

# JSON has no -Infinity; this is the number that clients know for "impossible".
LEAST_LOGPROB = -9999.0


class ChoiceWriter:
    """Turns the outputs of one choice into what its chunks say, keeping the character offset between them."""

    def __init__(self, plan: ChoicePlan, prompt_token_ids: Sequence[int], token_text: Callable[[int], str]) -> None:
        self._plan = plan
        self._prompt_token_ids = prompt_token_ids
        self._token_text = token_text
        self._echo_due = plan.echo is not None
        self._offset = 0

    def write(self, output: RequestOutput) -> CompletionChoice:
        """What ``output`` adds; the first one brings the prompt along where it is echoed.

        Raises:
            EngineUnavailable: the output says that the engine has stopped.
            GenerationFailed: it says that the request was aborted.
        """
        text, logprobs = output.text, None
        entries: list[tuple[int, TokenLogprob | None]] = []
        if self._echo_due:
            self._echo_due = False
            text = f"{self._plan.echo}{text}"
            entries += zip(self._prompt_token_ids, output.prompt_logprobs or (), strict=False)
        if self._plan.request.params.logprobs is not None:
            entries += ((entry.token_id, entry) for entry in output.logprobs or ())
            logprobs = self._logprobs(entries)
        return CompletionChoice(
            index=self._plan.index, text=text, logprobs=logprobs, finish_reason=_finish_reason(output)
        )

    def _logprobs(self, entries: Iterable[tuple[int, TokenLogprob | None]]) -> Logprobs:
        lists = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in entries:
            token = self._token_text(token_id)
            lists.tokens.append(token)
            lists.token_logprobs.append(None if entry is None else max(entry.logprob, LEAST_LOGPROB))
            lists.top_logprobs.append(None if entry is None else self._top_logprobs(token, entry))
            lists.text_offset.append(self._offset)
            self._offset += len(token)
        return lists

    def _top_logprobs(self, token: str, entry: TokenLogprob) -> TopLogprobs:
        top: TopLogprobs = {}
        for token_id, logprob in entry.top:
            # Best first: of two tokens with one string the likelier is kept.
            top.setdefault(self._token_text(token_id), max(logprob, LEAST_LOGPROB))
        top.setdefault(token, max(entry.logprob, LEAST_LOGPROB))
        return top


def _finish_reason(output: RequestOutput) -> Literal["stop", "length"] | None:
    match output.finish_reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return cast(Literal["stop", "length"], output.finish_reason.value)
        case FinishReason.ERROR:
            raise EngineUnavailable(output.error or "the engine has stopped")
        case FinishReason.ABORT:
            raise GenerationFailed("this request was aborted")
        case None:
            return None


def join_parts(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    """The whole choice from all it was written in, in order."""
    last = parts[-1]
    return CompletionChoice(
        index=last.index,
        text="".join(part.text for part in parts),
        logprobs=_join_logprobs([part.logprobs for part in parts if part.logprobs is not None]),
        finish_reason=last.finish_reason,
    )


def _join_logprobs(parts: Sequence[Logprobs]) -> Logprobs | None:
    if not parts:
        return None
    return Logprobs(
        tokens=[item for part in parts for item in part.tokens],
        token_logprobs=[item for part in parts for item in part.token_logprobs],
        top_logprobs=[item for part in parts for item in part.top_logprobs],
        text_offset=[item for part in parts for item in part.text_offset],
    )


def usage_of(accounts: Sequence[RequestMetrics], num_choices: int) -> Usage:
    """The usage of a request from its finished choices, ordered by index, ``num_choices`` a prompt."""
    firsts = accounts[::num_choices]
    prompt_tokens = sum(account.num_prompt_tokens for account in firsts)
    completion_tokens = sum(account.num_output_tokens for account in accounts)
    cached_tokens = sum(account.num_cached_tokens for account in firsts)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
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
