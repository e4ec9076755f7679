"""The routes that show how text becomes tokens and back, as vLLM has them. Generates nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from engine.errors import InvalidRequest
from server.chat_messages import ChatMessage, ChatPromptFields, render_prompt
from server.json_body import read_body
from server.reception import CurrentReception, Reception
from server.text_parts import RequestPart

# More are decoded beside the event loop.
_MANY_TOKENS = 4096

router = APIRouter()


class TokenizeRequest(RequestPart):
    """The body of POST /tokenize: a prompt, or a conversation that makes one."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokens(BaseModel):
    """The tokens of a prompt. ``max_model_len`` is how many fit, output included."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestPart):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class Text(BaseModel):
    """What tokens spell."""

    prompt: str


@router.post("/tokenize")
async def tokenize(request: Request, reception: CurrentReception) -> Tokens:
    """The tokens that a generating route would make of the same prompt."""
    body = await read_body(request, TokenizeRequest, reception.settings)
    _check_model(body.model, reception)
    engine = reception.engine
    text, adds_special = await _text(body, reception)
    token_ids = await engine.encode(text, add_special_tokens=adds_special)
    strings = [engine.token_text(token_id) for token_id in token_ids] if body.return_token_strs else None
    return Tokens(count=len(token_ids), max_model_len=engine.info.max_model_len, tokens=token_ids, token_strs=strings)


@router.post("/detokenize")
async def detokenize(request: Request, reception: CurrentReception) -> Text:
    """The text of some tokens, special ones included."""
    body = await read_body(request, DetokenizeRequest, reception.settings)
    _check_model(body.model, reception)
    last = reception.engine.info.vocab_size - 1
    for place, token_id in enumerate(body.tokens):
        if not 0 <= token_id <= last:
            raise InvalidRequest(f"tokens.{place} must lie in 0..{last}, not {token_id}", param=f"tokens.{place}")
    decode = reception.engine.decode
    if len(body.tokens) > _MANY_TOKENS:
        return Text(prompt=await asyncio.to_thread(decode, body.tokens, skip_special_tokens=False))
    return Text(prompt=decode(body.tokens, skip_special_tokens=False))


@router.get("/tokenizer_info")
async def show_tokenizer(reception: CurrentReception) -> dict[str, Any]:
    """The tokenizer's special tokens and the chat template, under the names of ``tokenizer_config.json``."""
    return dict(reception.engine.tokenizer_info)


def _check_model(name: str | None, reception: Reception) -> None:
    if name is not None:
        reception.check_model(name)


async def _text(body: TokenizeRequest, reception: Reception) -> tuple[str, bool]:
    """The text, and whether special tokens are put around it if the request does not say."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("one of prompt and messages must be given", param="prompt")
    if body.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(body, name) is not None:
                raise InvalidRequest(f"{name} is for messages only", param=name)
        return body.prompt, body.add_special_tokens is not False
    fields = ChatPromptFields.model_construct(
        messages=body.messages or [],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return await render_prompt(fields, reception.engine), bool(body.add_special_tokens)
