"""From the engine to the wire of /v1/chat/completions: messages, deltas and log-probabilities. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from engine.client import EngineClient
from engine.types import RequestOutput, TokenLogprob
from server.answers import clamp_logprob, finish_reason_of, prompt_logprobs_of, token_namer
from server.call import AnswerHead, SubmittedChoice
from server.chat_protocol import (
    ChatAnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
)
from server.token_provenance import provenance_writer


class ChatWriter:
    """``AnswerWriter`` of chat completions."""

    def __init__(self, head: AnswerHead, choices: Sequence[SubmittedChoice], engine: EngineClient) -> None:
        self._head = head
        self._writers = [_ChoiceWriter(choice, engine) for choice in choices]
        # Every choice has the same prompt and is shown in the same way.
        self._prompt_token_ids = choices[0].prompt_token_ids
        self._shown = choices[0].plan.presentation
        self._token_text = engine.token_text
        self._is_first = True

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        choices = [writer.whole(output) for writer, output in zip(self._writers, outputs, strict=True)]
        answer = ChatCompletion(object="chat.completion", choices=choices, **self._head)
        if self._shown.token_ids:
            answer.prompt_token_ids = list(self._prompt_token_ids)
        if self._shown.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs_of(outputs[0], self._shown.prompt_logprobs, self._token_text)
        return answer

    def chunks(self, place: int, output: RequestOutput) -> list[ChatCompletionChunk]:
        chunks = [self._chunk([choice]) for choice in self._writers[place].deltas(output)]
        if self._is_first and self._shown.token_ids:
            chunks[0].prompt_token_ids = list(self._prompt_token_ids)
        self._is_first = False
        return chunks

    def last_chunk(self) -> ChatCompletionChunk:
        return self._chunk([])

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(object="chat.completion.chunk", choices=choices, **self._head)


class _ChoiceWriter:
    """One choice, whole or in deltas."""

    def __init__(self, choice: SubmittedChoice, engine: EngineClient) -> None:
        self._index = choice.plan.index
        self._echo = choice.plan.echo or ""
        self._shown = choice.plan.presentation
        self._token_name = token_namer(self._shown, engine.token_text)
        self._token_bytes = engine.token_bytes
        self._provenance = provenance_writer(choice.plan, engine)
        self._is_first = True

    def whole(self, output: RequestOutput) -> ChatChoice:
        message = ChatAnswerMessage(role="assistant", content=f"{self._echo}{output.text}", refusal=None)
        choice = ChatChoice(
            index=self._index,
            message=message,
            logprobs=self._logprobs(output),
            finish_reason=finish_reason_of(output),
            stop_reason=output.stop_reason,
        )
        self._add_tokens(choice, output)
        return choice

    def deltas(self, output: RequestOutput) -> list[ChatChunkChoice]:
        """What ``output`` adds; who speaks comes first, by itself, and then what is echoed."""
        deltas = self._opening() if self._is_first else []
        self._is_first = False
        choice = self._delta(ChatDelta(content=output.text))
        choice.logprobs = self._logprobs(output)
        choice.finish_reason = finish_reason_of(output)
        choice.stop_reason = output.stop_reason
        self._add_tokens(choice, output)
        return [*deltas, choice] if choice.says_something else deltas

    def _add_tokens(self, choice: ChatChoice | ChatChunkChoice, output: RequestOutput) -> None:
        if self._shown.token_ids:
            choice.token_ids = output.token_ids
        if self._provenance is not None:
            choice.token_provenance = self._provenance.write(output)

    def _opening(self) -> list[ChatChunkChoice]:
        opening = self._delta(ChatDelta(role="assistant", content="", refusal=None))
        return [opening, self._delta(ChatDelta(content=self._echo))] if self._echo else [opening]

    def _delta(self, delta: ChatDelta) -> ChatChunkChoice:
        return ChatChunkChoice(index=self._index, delta=delta, logprobs=None, finish_reason=None, stop_reason=None)

    def _logprobs(self, output: RequestOutput) -> ChatLogprobs | None:
        if self._shown.logprobs is None:
            return None
        return ChatLogprobs(content=[self._token(entry) for entry in output.logprobs or ()], refusal=None)

    def _token(self, entry: TokenLogprob) -> ChatTokenLogprob:
        chosen = self._named(entry.token_id, entry.logprob)
        alternatives = entry.top[: self._shown.num_alternatives]
        return ChatTokenLogprob(**dict(chosen), top_logprobs=[self._named(*each) for each in alternatives])

    def _named(self, token_id: int, logprob: float) -> ChatTopLogprob:
        return ChatTopLogprob(
            token=self._token_name(token_id),
            logprob=clamp_logprob(logprob),
            bytes=list(self._token_bytes(token_id)) or None,
        )
