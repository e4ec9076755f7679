"""POST /v1/completions: what it checks beyond single fields, its prompts, and nothing that other routes do too."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request, Response

from engine.client import EngineClient
from engine.errors import InvalidRequest
from server.call import answer_call
from server.checks import check_logprobs
from server.completion_protocol import CompletionRequest, Prompt
from server.completion_writer import CompletionWriter
from server.convert import PromptPlan, truncated
from server.reception import CurrentReception
from server.settings import ServerSettings

DEFAULT_MAX_TOKENS = 16
MAX_BEST_OF = 20

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request, reception: CurrentReception) -> Response:
    """Continue one or several prompts."""
    return await answer_call(_CompletionRoute(), request, reception)


class _CompletionRoute:
    """``Route`` of completions."""

    body_type = CompletionRequest
    id_prefix = "cmpl-"
    writer = CompletionWriter

    def num_prompts(self, body: CompletionRequest) -> int:
        return len(body.prompt)

    def check(self, body: CompletionRequest, settings: ServerSettings) -> None:
        _check_best_of(body)
        if body.suffix:
            _check_suffix(body)
        if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
            raise InvalidRequest("max_tokens may be 0 only with echo: true or prompt_logprobs", param="max_tokens")
        check_logprobs("logprobs", body.logprobs, settings)
        most = settings.max_prompts_per_request
        if len(body.prompt) > most:
            raise InvalidRequest(f"prompt may hold {most} prompts, not {len(body.prompt)}", param="prompt")

    async def prompts(self, body: CompletionRequest, engine: EngineClient) -> AsyncGenerator[PromptPlan]:
        for prompt in body.prompt:
            whole = await _encode(body, prompt, engine)
            token_ids = truncated(whole, body, room=engine.info.max_model_len - _least_output(body))
            yield PromptPlan(
                token_ids=token_ids,
                max_tokens=_max_tokens(body, engine.info.max_model_len - len(token_ids)),
                echo=_echo(body, prompt if len(token_ids) == len(whole) else token_ids, engine),
                logprobs=body.logprobs,
                prompt_logprobs=body.logprobs if body.echo else None,
            )


def _check_best_of(body: CompletionRequest) -> None:
    if body.best_of is None:
        return
    if body.best_of > MAX_BEST_OF:
        raise InvalidRequest(f"best_of must be at most {MAX_BEST_OF}, not {body.best_of}", param="best_of")
    if body.best_of < body.num_choices:
        raise InvalidRequest(f"best_of ({body.best_of}) must not be less than n ({body.num_choices})", param="best_of")
    if body.ranks_candidates and body.stream:
        raise InvalidRequest(f"best_of ({body.best_of}) cannot be streamed", param="best_of")


def _check_suffix(body: CompletionRequest) -> None:
    if not all(isinstance(prompt, str) for prompt in body.prompt):
        raise InvalidRequest("suffix is for prompts that are text, not token ids", param="suffix")
    if body.echo:
        raise InvalidRequest("suffix does not go with echo: true", param="suffix")
    if body.truncate_prompt_tokens is not None:
        raise InvalidRequest("suffix does not go with truncate_prompt_tokens", param="suffix")


async def _encode(body: CompletionRequest, prompt: Prompt, engine: EngineClient) -> tuple[int, ...]:
    adds_special = body.add_special_tokens is not False
    if body.suffix and isinstance(prompt, str):
        return tuple(await engine.encode_infill(prompt, body.suffix, add_special_tokens=adds_special))
    token_ids = tuple(await engine.encode(prompt, add_special_tokens=adds_special))
    if not token_ids:
        raise InvalidRequest("prompt must not be empty: this model has no token to begin a text with", param="prompt")
    return token_ids


def _least_output(body: CompletionRequest) -> int:
    return DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _max_tokens(body: CompletionRequest, room: int) -> int:
    if body.max_tokens is not None:
        return body.max_tokens
    # With no room at all one token is asked for, and the engine says how the prompt misses the context.
    return min(DEFAULT_MAX_TOKENS, max(room, 1))


def _echo(body: CompletionRequest, prompt: Prompt, engine: EngineClient) -> str | None:
    if not body.echo:
        return None
    if isinstance(prompt, str):
        return prompt
    return engine.decode(prompt, skip_special_tokens=body.skip_special_tokens is not False)
