"""POST /v1/completions: what it checks beyond single fields, its prompts, and nothing that other routes do too."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request, Response

from engine.client import EngineClient
from engine.errors import InvalidRequest
from server.call import answer_call
from server.completion_protocol import CompletionRequest, Prompt
from server.completion_writer import CompletionWriter
from server.convert import PromptPlan
from server.reception import CurrentReception
from server.settings import ServerSettings

DEFAULT_MAX_TOKENS = 16

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
        if body.suffix:
            raise InvalidRequest("suffix must be null or empty: this model does not insert text", param="suffix")
        if body.best_of not in (None, 1):
            raise InvalidRequest(f"best_of must be null or 1, not {body.best_of}", param="best_of")
        if body.best_of is not None and body.num_choices > 1:
            raise InvalidRequest(
                f"best_of ({body.best_of}) must not be less than n ({body.num_choices})", param="best_of"
            )
        if body.max_tokens == 0 and not body.echo:
            raise InvalidRequest("max_tokens may be 0 only with echo: true", param="max_tokens")
        most = settings.max_prompts_per_request
        if len(body.prompt) > most:
            raise InvalidRequest(f"prompt may hold {most} prompts, not {len(body.prompt)}", param="prompt")

    async def prompts(self, body: CompletionRequest, engine: EngineClient) -> AsyncGenerator[PromptPlan]:
        for prompt in body.prompt:
            token_ids = tuple(await engine.encode(prompt))
            yield PromptPlan(
                token_ids=token_ids,
                max_tokens=_max_tokens(body, engine.info.max_model_len - len(token_ids)),
                echo=_prompt_text(prompt, engine) if body.echo else None,
                logprobs=body.logprobs,
                prompt_logprobs=body.logprobs if body.echo else None,
            )


def _max_tokens(body: CompletionRequest, room: int) -> int:
    if body.max_tokens is not None:
        return body.max_tokens
    # With no room at all one token is asked for, and the engine says how the prompt misses the context.
    return min(DEFAULT_MAX_TOKENS, max(room, 1))


def _prompt_text(prompt: Prompt, engine: EngineClient) -> str:
    return prompt if isinstance(prompt, str) else engine.decode(prompt)
