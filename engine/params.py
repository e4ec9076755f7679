"""What one request may set: how its tokens are drawn, and how it is drafted. Validated once, then frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.errors import InvalidRequest

# Every step compares the end of the text with every beginning of a stop string.
MAX_STOP_LENGTH = 1000
_MASK64 = (1 << 64) - 1


class SpeculationMode(StrEnum):
    """Per request: the server's choice, none, or one named drafter."""

    AUTO = "auto"
    OFF = "off"
    SUFFIX = "suffix"
    MODEL = "model"


def mix64(word: int) -> int:
    """A 64-bit word that depends on every bit of ``word`` (the SplitMix64 step: Steele et al., OOPSLA 2014)."""
    z = (word + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def mix_seed(seed: int, index: int) -> int:
    """The seed of the choice with this index in its answer; choice 0 keeps the request's own."""
    return mix64(mix64(seed) ^ index) if index else seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What decides the tokens of one choice, together with the model and the prompt.

    Attributes:
        seed: any integer of 64 bits; names the noise of this choice.
        max_tokens: most tokens to generate; 0 only scores the prompt.
        min_tokens: end and stop tokens are masked, and stop strings ignored, until this many tokens are out.
        temperature: 0 is greedy.
        top_k: 0 is off.
        logit_bias: token id to the number added to its raw logit.
        allowed_token_ids: every other token is masked; None allows all.
        bad_words: token sequences; what would complete one, begun in the prompt or in the output, is masked.
        stop: strings that end the output; nothing after them is returned.
        stop_token_ids: tokens that end the output as the model's end token does.
        include_stop_str_in_output: whether what ended the output, string or token, is part of the text.
        ignore_eos: go on after the model's end token.
        skip_special_tokens: whether special tokens give no text.
        logprobs: None for none, else how many best alternatives come with each token.
        logprob_token_ids: alternatives to give in the place of the best ones, if ``logprobs`` is set.
        prompt_logprobs: best alternatives for the tokens of the prompt.
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
    allowed_token_ids: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 0, math.inf)
        _check("min_tokens", self.min_tokens, 0, self.max_tokens, "max_tokens")
        self._check_distribution()
        self._check_masks()
        self._check_stop()
        self._check_logprobs()

    def _check_distribution(self) -> None:
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

    def _check_masks(self) -> None:
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids must allow at least one token", param="allowed_token_ids")
        if not all(self.bad_words):
            raise InvalidRequest("bad_words must not hold an empty word", param="bad_words")

    def _check_stop(self) -> None:
        if any(not stop for stop in self.stop):
            raise InvalidRequest("stop must not hold an empty string", param="stop")
        if (longest := max(map(len, self.stop), default=0)) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                f"stop may hold strings of {MAX_STOP_LENGTH} characters, not of {longest}", param="stop"
            )

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if (number := getattr(self, name)) is not None:
                _check(name, number, 0, math.inf)
        if self.logprob_token_ids and self.logprobs is None:
            raise InvalidRequest("logprob_token_ids is for requests with logprobs only", param="logprob_token_ids")
        if self.logprob_token_ids and not self.max_tokens:
            raise InvalidRequest(
                "logprob_token_ids is for generated tokens, but max_tokens is 0", param="logprob_token_ids"
            )


def _check(name: str, value: float, low: float, high: float, high_name: str = "", *, where: str = "") -> None:
    if low <= value <= high:  # False for NaN too
        return
    if high == math.inf:
        raise InvalidRequest(f"{name} must be at least {low}, not {value}{where}", param=name)
    high_text = f"{high_name} ({high})" if high_name else f"{high}"
    raise InvalidRequest(f"{name} must lie between {low} and {high_text}, not {value}{where}", param=name)


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """How one request wants to be drafted; where a field is None, as the server does.

    Attributes:
        num_speculative_tokens: longest draft.
        itl_slo_ms: milliseconds between two tokens that drafts must not exceed; plain decoding may.
    """

    mode: SpeculationMode = SpeculationMode.AUTO
    num_speculative_tokens: int | None = None
    itl_slo_ms: float | None = None

    def __post_init__(self) -> None:
        if self.itl_slo_ms is not None and not 0 < self.itl_slo_ms < float("inf"):
            raise InvalidRequest(
                f"speculation.itl_slo_ms must be a number above 0, not {self.itl_slo_ms}",
                param="speculation.itl_slo_ms",
            )
        number = self.num_speculative_tokens
        if number is not None and not 0 <= number <= MAX_SPECULATIVE_TOKENS:
            raise InvalidRequest(
                f"speculation.num_speculative_tokens must lie between 0 and {MAX_SPECULATIVE_TOKENS}, not {number}",
                param="speculation.num_speculative_tokens",
            )

    @property
    def itl_slo(self) -> float | None:
        """The same in seconds."""
        return None if self.itl_slo_ms is None else self.itl_slo_ms / 1000
