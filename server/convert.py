"""From the wire to the engine, as far as every route does it alike: one request into its choices.

Knows both vocabularies; submits nothing, and leaves what only one route has to that route.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.client import EngineClient, GenerateRequest
from engine.errors import InvalidRequest
from engine.params import SamplingParams, SpeculationParams, mix_seed
from server.errors import json_text
from server.protocol import GenerationFields
from server.text_parts import joined

_SAMPLING_FIELDS = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """One prompt of a request, with what its route alone decides.

    Attributes:
        echo: text that is to be returned before the output; None for none.
        max_tokens: as in ``SamplingParams``.
        logprobs, prompt_logprobs: as in ``SamplingParams``, but -1 is all. The request's own ``prompt_logprobs`` come
            on top.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    echo: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """What of a choice is shown, whatever the engine was asked for.

    Attributes:
        logprobs, prompt_logprobs: alternatives that come with each token; None for no log-probabilities.
        num_alternatives: of those that the engine gives; None shows all, which the request has named.
        token_ids: whether the ids of prompt and output are.
        token_provenance: whether it is said where each token came from.
        names_tokens_by_id: whether a token is called ``token_id:7`` and not by its text.
    """

    logprobs: int | None = None
    num_alternatives: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    token_provenance: bool = False
    names_tokens_by_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice before it is submitted. ``echo`` is as in ``PromptPlan``."""

    index: int
    echo: str | None
    request: GenerateRequest
    presentation: Presentation


def truncated(token_ids: tuple[int, ...], body: GenerationFields, *, room: int) -> tuple[int, ...]:
    """A prompt cut to ``truncate_prompt_tokens``.

    Args:
        room: tokens that the prompt may have at most, which is what -1 stands for.
    """
    most = room if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens
    if most is None or not 0 < most < len(token_ids):
        return token_ids
    return token_ids[:most] if body.truncation_side == "right" else token_ids[-most:]


async def plan_choices(
    body: GenerationFields, prompts: AsyncIterable[PromptPlan], engine: EngineClient, *, response_id: str, seed: int
) -> list[ChoicePlan]:
    """Every candidate of the request, prompt-major: number ``k`` of prompt ``i`` has index ``i * num_candidates + k``.

    Raises:
        InvalidRequest: a parameter out of its range, or whatever ``prompts`` raises.
    """
    # The client may name two requests alike; in the engine no two may be.
    unique_id = f"{response_id}-{uuid.uuid4().hex[:8]}"
    common = _common_sampling(body, engine.info.vocab_size) | {"bad_words": await _spell(body.bad_words or (), engine)}
    speculation = _speculation(body)
    prediction = await _prediction(body, engine)
    plans: list[ChoicePlan] = []
    async for prompt in prompts:
        await asyncio.sleep(0)  # between many prompts the others have their turn
        presentation = _presentation(body, prompt, engine.info.vocab_size)
        params = SamplingParams(**common, **_own_sampling(prompt, presentation, engine.info.vocab_size), seed=seed)
        if params.logprobs is None and body.ranks_candidates:
            params = replace(params, logprobs=0)
        if presentation.token_provenance and not params.logprob_token_ids:  # margins need the two best
            params = replace(params, logprobs=max(params.logprobs or 0, 2))
        for _ in range(body.num_candidates):
            index = len(plans)
            request = GenerateRequest(
                request_id=f"{unique_id}-{index}",
                prompt=prompt.token_ids,
                params=replace(params, seed=mix_seed(seed, index)),
                speculation=speculation,
                cache_salt=body.cache_salt or "",
                prediction=prediction,
            )
            plans.append(ChoicePlan(index=index, echo=prompt.echo, request=request, presentation=presentation))
    return plans


def _presentation(body: GenerationFields, prompt: PromptPlan, vocab_size: int) -> Presentation:
    logprobs = _number_of(prompt.logprobs, vocab_size)
    return Presentation(
        logprobs=logprobs,
        num_alternatives=None if body.logprob_token_ids else logprobs,
        prompt_logprobs=_number_of(body.prompt_logprobs, vocab_size),
        token_ids=bool(body.return_token_ids),
        token_provenance=bool(body.return_token_provenance),
        names_tokens_by_id=bool(body.return_tokens_as_token_ids),
    )


async def _spell(words: Sequence[str], engine: EngineClient) -> tuple[tuple[int, ...], ...]:
    spellings: list[tuple[int, ...]] = []
    for word in words:
        await asyncio.sleep(0)  # between many words the others have their turn
        spellings += engine.spellings(word)
    return tuple(spellings)


def _common_sampling(body: GenerationFields, vocab_size: int) -> dict[str, Any]:
    """Keywords for ``SamplingParams`` that all prompts share; what the request leaves out is left to its defaults."""
    given = {name: getattr(body, name) for name in _SAMPLING_FIELDS}
    allowed = body.allowed_token_ids
    return {name: value for name, value in given.items() if value is not None} | {
        # More than the vocabulary is no restriction, and a number of any size would not fit a tensor.
        "top_k": min(max(body.top_k or 0, 0), vocab_size),
        "logit_bias": _token_biases(body.logit_bias or {}),
        "allowed_token_ids": None if allowed is None else frozenset(allowed),
        "stop": body.stop,
        "stop_token_ids": frozenset(body.stop_token_ids or ()),
        "logprob_token_ids": tuple(dict.fromkeys(body.logprob_token_ids or ())),
    }


def _own_sampling(prompt: PromptPlan, presentation: Presentation, vocab_size: int) -> dict[str, Any]:
    """The others."""
    wanted = (presentation.prompt_logprobs, _number_of(prompt.prompt_logprobs, vocab_size))
    return {
        "max_tokens": prompt.max_tokens,
        "logprobs": presentation.logprobs,
        "prompt_logprobs": max((number for number in wanted if number is not None), default=None),
    }


def _number_of(logprobs: int | None, vocab_size: int) -> int | None:
    """-1 and everything beyond the vocabulary is the whole vocabulary."""
    return logprobs if logprobs is None or 0 <= logprobs <= vocab_size else vocab_size


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    by_id = {}
    for key, bias in biases.items():
        # int() would also take "+1", " 1", "1_0" and the digits of other scripts.
        if not (key.isascii() and key.isdecimal() and len(key) < 20 and str(int(key)) == key):
            raise InvalidRequest(
                f'logit_bias: a key must be a token id such as "42", not {json_text(key)}', param="logit_bias"
            )
        by_id[int(key)] = bias
    return by_id


async def _prediction(body: GenerationFields, engine: EngineClient) -> tuple[int, ...]:
    """Its tokens. At its ends they may be others than in the output, which costs a step or two and nothing else."""
    if body.prediction is None:
        return ()
    return tuple(await engine.encode(joined(body.prediction.content), add_special_tokens=False))


def _speculation(body: GenerationFields) -> SpeculationParams:
    asked = body.speculation
    if asked is None:
        return SpeculationParams()
    return SpeculationParams(
        mode=asked.mode, num_speculative_tokens=asked.num_speculative_tokens, itl_slo_ms=asked.itl_slo_ms
    )
