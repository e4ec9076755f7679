"""The one noun: a request's confirmed tokens and how far the target has computed them.

A sequence knows nothing of drafts (they live beside it), of tensors, or of who waits for its text.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Protocol

from engine.bad_words import BadWords
from engine.config import MAX_SPECULATIVE_TOKENS
from engine.params import SamplingParams, SpeculationMode, SpeculationParams
from engine.predicted_output import PredictedOutput
from engine.types import FinishReason, RequestMetrics, SpeculationStats, TokenLogprob


class TextStream(Protocol):
    """Turns the tokens of one sequence into text, a token at a time."""

    def append(self, token_id: int, *, check_stop: bool = True, is_last: bool = False) -> str | None:
        """Take a token; the stop string that is complete with it, or None. ``is_last`` if no token can follow."""

    def take(self, *, final: bool = False) -> str:
        """New text that no later token can change; everything that is left if ``final``."""


class Sequence:
    """Confirmed tokens, and two integers in place of a state machine.

    ``num_computed_tokens`` tries to catch up with ``len(token_ids)``. Waiting, prefill, chunked prefill, a prefix-cache
    hit, decoding and resuming after a preemption differ only in how far apart the two are. Key-value entries at or
    above ``num_computed_tokens`` are garbage that nobody reads, so rejecting a draft is not advancing a number.

    Attributes:
        token_ids: prompt, then output; append-only.
        num_computed_tokens: tokens whose key-value entries are in the pool.
        block_table: ids of the KV blocks, in order of position.
        block_hashes: chained hashes of the leading full blocks, as far as they have been needed.
        cache_salt: only sequences with the same salt share blocks.
        prediction: what the client expects the output to be.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        text: TextStream,
        speculation: SpeculationParams,
        num_speculative_tokens: int,
        cache_salt: str = "",
        prediction: PredictedOutput | None = None,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.cache_salt = cache_salt
        self.params = params
        self.text = text
        self.speculation = speculation
        self.output_counts: Counter[int] = Counter()
        self.prompt_logprobs: list[TokenLogprob | None] = [None]
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.prediction = prediction
        self._num_speculative_tokens = num_speculative_tokens
        self.stats = SpeculationStats(MAX_SPECULATIVE_TOKENS if self._may_grow_drafts else num_speculative_tokens)
        self.num_cached_tokens: int | None = None
        self.num_steps = 0
        self.scheduled_at: float | None = None
        self.num_preemptions = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Confirmed tokens that the target has yet to see; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens this request may still generate."""
        return self.params.max_tokens - self.num_output_tokens

    @property
    def follows_prediction(self) -> bool:
        """Whether the prediction says what comes next, and the request does not ask for another drafter."""
        is_aligned = self.prediction is not None and self.prediction.is_aligned
        return is_aligned and self.speculation.mode is SpeculationMode.AUTO

    @property
    def longest_draft(self) -> int:
        """Tokens that a draft may have now. The longer a prediction has been right, the further ahead it is trusted."""
        if not (self._may_grow_drafts and self.follows_prediction and self.prediction):
            return self._num_speculative_tokens
        return min(max(2 * self.prediction.num_in_step, self._num_speculative_tokens), MAX_SPECULATIVE_TOKENS)

    @property
    def _may_grow_drafts(self) -> bool:
        is_limited = self.speculation.num_speculative_tokens is not None
        return self.prediction is not None and self._num_speculative_tokens > 0 and not is_limited

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether some prompt token has yet to be scored, so that no cached block may stand in for its logits."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens

    @cached_property
    def prompt_token_set(self) -> frozenset[int]:
        return frozenset(self.token_ids[: self.num_prompt_tokens])

    @cached_property
    def bad_words(self) -> BadWords:
        return BadWords(self.params.bad_words)

    def append(self, token_id: int, end_token_ids: frozenset[int]) -> None:
        """Confirm one token and decide whether it is the last.

        A stop wins over the token limit that the same token reaches; a stop token wins over a stop string.
        """
        self.token_ids.append(token_id)
        self.output_counts[token_id] += 1
        if self.prediction is not None:
            self.prediction.follow(self.token_ids)
        is_end = token_id in end_token_ids and not self.params.ignore_eos
        if is_end or token_id in self.params.stop_token_ids:
            if self.params.include_stop_str_in_output:
                self.text.append(token_id, check_stop=False, is_last=True)
            self.finish(FinishReason.STOP, None if is_end else token_id)
            return
        is_last = self.num_remaining_tokens == 0
        may_stop = self.num_output_tokens >= self.params.min_tokens
        stop = self.text.append(token_id, check_stop=may_stop, is_last=is_last)
        if stop is not None:
            self.finish(FinishReason.STOP, stop)
        elif is_last:
            self.finish(FinishReason.LENGTH)

    def finish(self, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        assert self.finish_reason is None, f"{self.request_id} finished twice"
        self.finish_reason = reason
        self.stop_reason = stop_reason

    def metrics(self) -> RequestMetrics:
        return RequestMetrics(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_output_tokens=self.num_output_tokens,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            speculation=self.stats,
            num_accepted_prediction_tokens=self.prediction.num_accepted if self.prediction else 0,
            num_rejected_prediction_tokens=self.prediction.num_rejected if self.prediction else 0,
            scheduled_at=self.scheduled_at,
        )
