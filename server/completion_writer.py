"""From the engine to the wire of /v1/completions: text, echo and log-probabilities. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.types import RequestOutput, TokenLogprob
from server.answers import clamp_logprob, finish_reason_of
from server.call import AnswerHead, SubmittedChoice
from server.completion_protocol import Completion, CompletionChoice, Logprobs, TopLogprobs


class CompletionWriter:
    """``AnswerWriter`` of completions."""

    def __init__(self, head: AnswerHead, choices: Sequence[SubmittedChoice], token_text: Callable[[int], str]) -> None:
        self._head = head
        self._choices = [ChoiceWriter(choice, token_text) for choice in choices]

    def whole(self, outputs: Sequence[RequestOutput]) -> Completion:
        return self._message([writer.write(output) for writer, output in zip(self._choices, outputs, strict=True)])

    def chunks(self, place: int, output: RequestOutput) -> list[Completion]:
        choice = self._choices[place].write(output)
        return [self._message([choice])] if choice.says_something else []

    def last_chunk(self) -> Completion:
        return self._message([])

    def _message(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(object="text_completion", choices=choices, **self._head)


class ChoiceWriter:
    """Turns the outputs of one choice into what its chunks say, keeping the character offset between them."""

    def __init__(self, choice: SubmittedChoice, token_text: Callable[[int], str]) -> None:
        self._plan = choice.plan
        self._prompt_token_ids = choice.prompt_token_ids
        self._token_text = token_text
        self._echo_due = choice.plan.echo is not None
        self._offset = 0

    def write(self, output: RequestOutput) -> CompletionChoice:
        """What ``output`` adds; the first one brings the prompt along where it is echoed."""
        text, logprobs = output.text, None
        entries: list[tuple[int, TokenLogprob | None]] = []
        if self._echo_due:
            self._echo_due = False
            text = f"{self._plan.echo}{text}"
            entries += zip(self._prompt_token_ids, output.prompt_logprobs or (), strict=False)
        if self._plan.request.params.logprobs is not None:
            entries += ((entry.token_id, entry) for entry in output.logprobs or ())
            logprobs = self._logprobs(entries)
        return CompletionChoice(
            index=self._plan.index, text=text, logprobs=logprobs, finish_reason=finish_reason_of(output)
        )

    def _logprobs(self, entries: Iterable[tuple[int, TokenLogprob | None]]) -> Logprobs:
        lists = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in entries:
            token = self._token_text(token_id)
            lists.tokens.append(token)
            lists.token_logprobs.append(None if entry is None else clamp_logprob(entry.logprob))
            lists.top_logprobs.append(None if entry is None else self._top_logprobs(token, entry))
            lists.text_offset.append(self._offset)
            self._offset += len(token)
        return lists

    def _top_logprobs(self, token: str, entry: TokenLogprob) -> TopLogprobs:
        top: TopLogprobs = {}
        for token_id, logprob in entry.top:
            # Best first: of two tokens with one string the likelier is kept.
            top.setdefault(self._token_text(token_id), clamp_logprob(logprob))
        top.setdefault(token, clamp_logprob(entry.logprob))
        return top
