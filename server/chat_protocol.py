"""The wire format of /v1/chat/completions: its own fields in, messages and deltas out. Knows no engine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from server.chat_messages import ChatPromptFields
from server.chat_unserved import ChatUnservedFields
from server.protocol import Answer, GenerationFields, PromptLogprobs, TokenProvenance


class ChatRequest(ChatPromptFields, ChatUnservedFields, GenerationFields):
    """The body of POST /v1/chat/completions."""

    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = None

    @property
    def max_tokens_name(self) -> str:
        """The field that limits the answer."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def asked_max_tokens(self) -> int | None:
        """What it says."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class ChatTopLogprob(BaseModel):
    """A token with its log-probability. ``bytes`` may be part of a character; null if the token stands for no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(ChatTopLogprob):
    """A token of the answer, and the likeliest tokens in its place."""

    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(BaseModel):
    """An entry a token."""

    content: list[ChatTokenLogprob]
    refusal: None


class ChatAnswerMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One choice of a whole answer. The last two are left out unless asked for."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    token_provenance: list[TokenProvenance] | None = None


class ChatCompletion(Answer):
    """A whole answer. What there is of the prompt is left out unless asked for."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class ChatDelta(BaseModel):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    content: str
    refusal: None = None


class ChatChunkChoice(BaseModel):
    """What a chunk adds to a choice. The last two are left out unless asked for."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    token_provenance: list[TokenProvenance] | None = None

    @property
    def says_something(self) -> bool:
        """Whether a chunk with this would tell a client anything."""
        has_logprobs = self.logprobs is not None and bool(self.logprobs.content)
        has_tokens = bool(self.token_ids or self.token_provenance) or has_logprobs
        return bool(self.delta.content) or has_tokens or self.finish_reason is not None


class ChatCompletionChunk(Answer):
    """One chunk of a stream. ``prompt_token_ids`` are in the first, if asked for."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] | None = None
