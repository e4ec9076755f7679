"""POST /v1/chat/completions: what it checks beyond single fields, its prompt, and nothing that other routes do too."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request, Response

from engine.client import EngineClient
from engine.errors import InvalidRequest
from server.call import answer_call
from server.chat_messages import render_prompt
from server.chat_protocol import ChatRequest
from server.chat_writer import ChatWriter
from server.checks import check_logprobs
from server.convert import PromptPlan, truncated
from server.reception import CurrentReception
from server.settings import ServerSettings

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request, reception: CurrentReception) -> Response:
    """Say what comes next in a conversation."""
    return await answer_call(_ChatRoute(), request, reception)


class _ChatRoute:
    """``Route`` of chat completions."""

    body_type = ChatRequest
    id_prefix = "chatcmpl-"
    writer = ChatWriter

    def num_prompts(self, _body: ChatRequest) -> int:
        return 1

    def check(self, body: ChatRequest, settings: ServerSettings) -> None:
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequest("top_logprobs is for logprobs: true only", param="top_logprobs")
        check_logprobs("top_logprobs", body.top_logprobs, settings)
        if body.asked_max_tokens is not None and body.asked_max_tokens < 1:
            name, number = body.max_tokens_name, body.asked_max_tokens
            raise InvalidRequest(f"{name} must be at least 1, not {number}", param=name)

    async def prompts(self, body: ChatRequest, engine: EngineClient) -> AsyncGenerator[PromptPlan]:
        context = min(engine.info.max_model_len, engine.info.num_kv_tokens)
        text = await render_prompt(body, engine)
        whole = tuple(await engine.encode(text, add_special_tokens=bool(body.add_special_tokens)))
        token_ids = truncated(whole, body, room=context - (body.asked_max_tokens or 1))
        yield PromptPlan(
            token_ids=token_ids,
            max_tokens=_max_tokens(body, len(token_ids), context),
            echo=_echo(body),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )


def _max_tokens(body: ChatRequest, num_prompt_tokens: int, context: int) -> int:
    """What the request says, or else all that fits behind the prompt."""
    if num_prompt_tokens < 1:
        raise InvalidRequest("messages must make a prompt of at least one token", param="messages")
    room = context - num_prompt_tokens
    asked = body.asked_max_tokens
    if room < (asked or 1):
        name = body.max_tokens_name
        raise InvalidRequest(
            f"this model's context is {context} tokens, but messages ({num_prompt_tokens}) and "
            f"{name} ({asked or 'at least 1'}) make {num_prompt_tokens + (asked or 1)}",
            param="messages" if room < 1 else name,
            code="context_length_exceeded",
        )
    return asked or room


def _echo(body: ChatRequest) -> str | None:
    """The last message, if it is the assistant's and wanted."""
    last = body.messages[-1]
    return last.text if body.echo and last.role == "assistant" else None
