"""The engine as reception sees it: two protocols, so that ``server/`` never imports what implements them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.params import SamplingParams, SpeculationParams
from engine.step_stats import StepStats
from engine.types import ModelInfo, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One choice of one prompt.

    Attributes:
        request_id: unique among the requests in flight.
        prompt: text, or token ids that are taken as they are.
        cache_salt: prefixes are shared only with requests of the same salt.
        prediction: token ids of what the client expects the output to be; empty for none.
    """

    request_id: str
    prompt: str | tuple[int, ...]
    params: SamplingParams
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    cache_salt: str = ""
    prediction: tuple[int, ...] = ()


class TextPieces(Protocol):
    """Splits a text among the tokens that it is made of: a character is in the piece of the token that completes it."""

    def push(self, token_id: int) -> str:
        """The piece of the next token; possibly empty."""

    def flush(self) -> str:
        """What belongs to the last piece when nothing follows: a cut character as U+FFFD."""


class RequestStream(Protocol):
    """The outputs of one accepted request. Exactly one output, the last, has a ``finish_reason``."""

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    async def aclose(self) -> None:
        """Abort the request if it still runs; its blocks are free at the next step. Idempotent."""


class EngineClient(Protocol):
    """A running engine."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def is_healthy(self) -> bool:
        """Whether it takes requests: False from the moment it drains, stops or dies."""

    @property
    def num_in_flight(self) -> int:
        """Requests that it has taken and not finished."""

    @property
    def tokenizer_info(self) -> Mapping[str, Any]:
        """Special tokens and chat template, under the names of ``tokenizer_config.json``."""

    async def start(self) -> None:
        """Bind to the running event loop and start the engine thread."""

    def drain(self) -> None:
        """Take no request any more; those in flight run on."""

    async def stop(self) -> None:
        """End the engine thread; whoever still waits gets an output with ``FinishReason.ERROR``."""

    async def submit(self, request: GenerateRequest) -> RequestStream:
        """Validate and queue a request.

        Raises:
            InvalidRequest: it can never be served as written.
            QueueFull: it can be served, but not now.
            EngineUnavailable: the engine is dead or draining.
        """

    async def encode(self, prompt: str | tuple[int, ...], *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of ``prompt``; with ``add_special_tokens`` those that ``submit`` would use.

        Raises:
            InvalidRequest: a text that no tokenizer takes, or an id outside the vocabulary.
        """

    async def encode_infill(self, prefix: str, suffix: str, *, add_special_tokens: bool = True) -> list[int]:
        """The prompt that asks for the text between ``prefix`` and ``suffix``.

        Raises:
            InvalidRequest: the model was not trained to insert text, or as ``encode``.
        """

    def spellings(self, word: str) -> tuple[tuple[int, ...], ...]:
        """The token sequences of a word inside a text, with a space in front and without one.

        Raises:
            InvalidRequest: a text that no tokenizer takes.
        """

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's chat template; to be encoded without special tokens.

        Args:
            messages: each with ``role``, ``content`` (a text, or None) and whatever else the template reads.
            add_generation_prompt: whether the text ends with the opening of the assistant's turn.
            continue_final_message: whether it ends within the last message, which is then gone on with.
            template_kwargs: variables of the template.

        Raises:
            InvalidRequest: the model has no chat template, it refuses these messages, or it would pass over
                something in them.
        """

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some tokens; U+FFFD for a cut character."""

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, special tokens included."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token by itself, special tokens included: possibly part of a character, possibly none."""

    def text_pieces(self, *, skip_special_tokens: bool = True) -> TextPieces:
        """For one output, from its first token on."""

    def subscribe(self, on_step: Callable[[StepStats], None]) -> None:
        """Have ``on_step`` called on the event loop after every step."""
