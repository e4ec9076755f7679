"""From the wire to the engine, as far as every route does it alike: one request into its choices.

Knows both vocabularies; submits nothing, and leaves what only one route has to that route.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any

from engine.client import GenerateRequest
from engine.errors import InvalidRequest
from engine.params import SamplingParams, SpeculationParams, mix_seed
from engine.types import ModelInfo
from server.errors import json_text
from server.protocol import GenerationFields
from server.settings import ServerSettings

_SAMPLING_FIELDS = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """One prompt of a request, with what its route alone decides.

    Attributes:
        echo: text that is to be returned before the output; None for none.
        max_tokens, logprobs, prompt_logprobs: as in ``SamplingParams``.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    echo: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice before it is submitted. ``echo`` is as in ``PromptPlan``."""

    index: int
    echo: str | None
    request: GenerateRequest


def check_generation(body: GenerationFields, num_prompts: int, settings: ServerSettings) -> None:
    """Refuse what no single field shows, of the fields that every route has.

    Raises:
        InvalidRequest: two fields that contradict each other, or more choices than ``settings`` allows.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is for stream: true only", param="stream_options")
    most = settings.max_choices_per_request
    if num_prompts * body.num_choices > most:
        raise InvalidRequest(
            f"a request may have {most} choices, not {num_prompts} prompts with n = {body.num_choices}", param="n"
        )


async def plan_choices(
    body: GenerationFields, prompts: AsyncIterable[PromptPlan], info: ModelInfo, *, response_id: str, seed: int
) -> list[ChoicePlan]:
    """Every choice of the request, prompt-major: choice ``k`` of prompt ``i`` has index ``i * n + k``.

    Raises:
        InvalidRequest: a parameter out of its range, or whatever ``prompts`` raises.
    """
    speculation = _speculation(body)
    plans: list[ChoicePlan] = []
    async for prompt in prompts:
        await asyncio.sleep(0)  # between many prompts the others have their turn
        params = _sampling(body, prompt, info)
        for _ in range(body.num_choices):
            index = len(plans)
            request = GenerateRequest(
                request_id=f"{response_id}-{index}",
                prompt=prompt.token_ids,
                params=SamplingParams(**params, seed=mix_seed(seed, index)),
                speculation=speculation,
            )
            plans.append(ChoicePlan(index=index, echo=prompt.echo, request=request))
    return plans


def _sampling(body: GenerationFields, prompt: PromptPlan, info: ModelInfo) -> dict[str, Any]:
    """Keywords for ``SamplingParams``; what the request leaves out is left to its defaults."""
    given = {name: getattr(body, name) for name in _SAMPLING_FIELDS}
    return {name: value for name, value in given.items() if value is not None} | {
        "max_tokens": prompt.max_tokens,
        # More than the vocabulary is no restriction, and a number of any size would not fit a tensor.
        "top_k": min(max(body.top_k or 0, 0), info.vocab_size),
        "logit_bias": _token_biases(body.logit_bias or {}),
        "stop": body.stop,
        "ignore_eos": bool(body.ignore_eos),
        "logprobs": prompt.logprobs,
        "prompt_logprobs": prompt.prompt_logprobs,
    }


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


def _speculation(body: GenerationFields) -> SpeculationParams:
    asked = body.speculation
    if asked is None:
        return SpeculationParams()
    return SpeculationParams(mode=asked.mode, num_speculative_tokens=asked.num_speculative_tokens)
