"""What a request must satisfy before it is queued, beside the ranges of its own fields.

Knows the served model's numbers: context, vocabulary, end tokens, drafter. Refuses to know how full the engine is.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from engine.client import GenerateRequest
from engine.errors import InvalidRequest
from engine.params import SamplingParams, SpeculationMode
from engine.types import ModelInfo


class Admission:
    """Refuses what can never be served as written, with the field and the numbers.

    Args:
        end_token_ids: tokens that end an output.
    """

    def __init__(self, info: ModelInfo, end_token_ids: frozenset[int]) -> None:
        self._info = info
        self._end_token_ids = end_token_ids

    def check(self, request: GenerateRequest, prompt_token_ids: Seq[int]) -> None:
        """
        Raises:
            InvalidRequest: the request does not go with the model.
        """
        params = request.params
        self._check_context(len(prompt_token_ids), params.max_tokens)
        self.check_token_ids(params.logit_bias, "logit_bias")
        self.check_token_ids(params.stop_token_ids, "stop_token_ids")
        self.check_token_ids(params.allowed_token_ids or (), "allowed_token_ids")
        self.check_token_ids(params.logprob_token_ids, "logprob_token_ids")
        self._check_prediction(request.prediction)
        self._check_choice(params)
        self._check_drafter(request.speculation.mode)
        if request.speculation.itl_slo_ms is not None and self._info.draft_length == "fixed":
            raise InvalidRequest(
                "speculation.itl_slo_ms needs draft lengths that adapt, and those of this server are fixed",
                param="speculation.itl_slo_ms",
            )

    def check_token_ids(self, token_ids: Collection[int], param: str) -> None:
        """
        Raises:
            InvalidRequest: one of them is not in the vocabulary.
        """
        if not token_ids:
            return
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._info.vocab_size:
                raise InvalidRequest(
                    f"{param} holds token id {token_id}, but the vocabulary is 0..{self._info.vocab_size - 1}",
                    param=param,
                )

    def _check_context(self, num_prompt_tokens: int, max_tokens: int) -> None:
        if not num_prompt_tokens:
            raise InvalidRequest("prompt must hold at least one token", param="prompt")
        num_tokens, limit = num_prompt_tokens + max_tokens, self._info.max_model_len
        if num_tokens > limit:
            raise InvalidRequest(
                f"this model's context is {limit} tokens, but prompt ({num_prompt_tokens}) and "
                f"max_tokens ({max_tokens}) make {num_tokens}",
                param="max_tokens" if num_prompt_tokens < limit else "prompt",
                code="context_length_exceeded",
            )

    def _check_prediction(self, token_ids: Seq[int]) -> None:
        if len(token_ids) > self._info.max_model_len:
            raise InvalidRequest(
                f"prediction has {len(token_ids)} tokens, but this model's context is {self._info.max_model_len}",
                param="prediction",
            )

    def _check_choice(self, params: SamplingParams) -> None:
        """Whatever has been said, some token must be left to say."""
        forbidden = {word[-1] for word in params.bad_words}
        if params.min_tokens:
            forbidden |= self._end_token_ids | params.stop_token_ids
        if not forbidden:
            return
        allowed = params.allowed_token_ids
        is_any_left = len(forbidden) < self._info.vocab_size if allowed is None else bool(allowed - forbidden)
        if not is_any_left:
            raise InvalidRequest(
                "allowed_token_ids must leave a token that ends none of bad_words nor, with min_tokens, the output",
                param="bad_words" if allowed is None else "allowed_token_ids",
            )

    def _check_drafter(self, mode: SpeculationMode) -> None:
        if mode not in (SpeculationMode.AUTO, SpeculationMode.OFF, *self._info.drafters):
            available = " and ".join(map(repr, self._info.drafters)) or "none"
            raise InvalidRequest(
                f"speculation.mode {mode.value!r} is not available: this server can draft by {available}",
                param="speculation.mode",
            )
