"""From the wire to the engine: one request into its choices. Knows both vocabularies; submits nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from engine.client import EngineClient, GenerateRequest
from engine.errors import InvalidRequest
from engine.params import SamplingParams, SpeculationParams, mix_seed
from server.errors import json_text
from server.protocol import CompletionRequest, Prompt
from server.settings import ServerSettings

DEFAULT_MAX_TOKENS = 16

_SAMPLING_FIELDS = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice before it is submitted. ``echo`` is the prompt's text if that is to be returned."""

    index: int
    echo: str | None
    request: GenerateRequest


def check_completion(body: CompletionRequest, settings: ServerSettings) -> None:
    """Refuse what no single field shows.

    Raises:
        InvalidRequest: two fields that contradict each other, or more choices than ``settings`` allows.
    """
    if body.suffix:
        raise InvalidRequest("suffix must be null or empty: this model does not insert text", param="suffix")
    if body.best_of not in (None, 1):
        raise InvalidRequest(f"best_of must be null or 1, not {body.best_of}", param="best_of")
    if body.best_of is not None and body.num_choices > 1:
        raise InvalidRequest(f"best_of ({body.best_of}) must not be less than n ({body.num_choices})", param="best_of")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is for stream: true only", param="stream_options")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens may be 0 only with echo: true", param="max_tokens")
    _check_numbers(len(body.prompt), body.num_choices, settings)


def _check_numbers(num_prompts: int, num_choices: int, settings: ServerSettings) -> None:
    most = settings.max_prompts_per_request
    if num_prompts > most:
        raise InvalidRequest(f"prompt may hold {most} prompts, not {num_prompts}", param="prompt")
    most = settings.max_choices_per_request
    if num_prompts * num_choices > most:
        raise InvalidRequest(
            f"a request may have {most} choices, not {num_prompts} prompts with n = {num_choices}", param="n"
        )


async def plan_choices(
    body: CompletionRequest, engine: EngineClient, *, response_id: str, seed: int
) -> list[ChoicePlan]:
    """Every choice of the request, prompt-major: choice ``k`` of prompt ``i`` has index ``i * n + k``.

    Raises:
        InvalidRequest: a prompt that cannot be encoded, or a parameter out of its range.
    """
    speculation = _speculation(body)
    plans = []
    for prompt_index, prompt in enumerate(body.prompt):
        await asyncio.sleep(0)  # between many prompts the others have their turn
        token_ids = tuple(await engine.encode(prompt))
        params = _sampling(body, seed, len(token_ids), engine)
        echo = _prompt_text(prompt, engine) if body.echo else None
        for k in range(body.num_choices):
            index = prompt_index * body.num_choices + k
            request = GenerateRequest(
                request_id=f"{response_id}-{index}",
                prompt=token_ids,
                params=SamplingParams(**params | {"seed": mix_seed(seed, index)}),
                speculation=speculation,
            )
            plans.append(ChoicePlan(index=index, echo=echo, request=request))
    return plans


def _prompt_text(prompt: Prompt, engine: EngineClient) -> str:
    return prompt if isinstance(prompt, str) else engine.decode(prompt)


def _sampling(body: CompletionRequest, seed: int, num_prompt_tokens: int, engine: EngineClient) -> dict[str, Any]:
    """Keywords for ``SamplingParams``; what the request leaves out is left to its defaults."""
    given = {name: getattr(body, name) for name in _SAMPLING_FIELDS}
    info = engine.info
    return {name: value for name, value in given.items() if value is not None} | {
        "seed": seed,
        "max_tokens": _max_tokens(body, info.max_model_len - num_prompt_tokens),
        # More than the vocabulary is no restriction, and a number of any size would not fit a tensor.
        "top_k": min(max(body.top_k or 0, 0), info.vocab_size),
        "logit_bias": _token_biases(body.logit_bias or {}),
        "stop": body.stop,
        "ignore_eos": bool(body.ignore_eos),
        "prompt_logprobs": body.logprobs if body.echo else None,
    }


def _max_tokens(body: CompletionRequest, room: int) -> int:
    if body.max_tokens is not None:
        return body.max_tokens
    # With no room at all one token is asked for, and the engine says how the prompt misses the context.
    return min(DEFAULT_MAX_TOKENS, max(room, 1))


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


def _speculation(body: CompletionRequest) -> SpeculationParams:
    asked = body.speculation
    if asked is None:
        return SpeculationParams()
    return SpeculationParams(mode=asked.mode, num_speculative_tokens=asked.num_speculative_tokens)
