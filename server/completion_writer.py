"""From the engine to the wire of /v1/completions: text, echo and log-probabilities. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from engine.client import EngineClient
from engine.types import RequestOutput, TokenLogprob
from server.answers import clamp_logprob, finish_reason_of, prompt_logprobs_of, token_namer
from server.call import AnswerHead, SubmittedChoice
from server.completion_protocol import Completion, CompletionChoice, Logprobs, TopLogprobs
from server.token_provenance import provenance_writer


class CompletionWriter:
    """``AnswerWriter`` of completions."""

    def __init__(self, head: AnswerHead, choices: Sequence[SubmittedChoice], engine: EngineClient) -> None:
        self._head = head
        self._choices = [ChoiceWriter(choice, engine) for choice in choices]

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

    def __init__(self, choice: SubmittedChoice, engine: EngineClient) -> None:
        self._plan = choice.plan
        self._prompt_token_ids = choice.prompt_token_ids
        self._token_text = engine.token_text
        self._token_name = token_namer(choice.plan.presentation, engine.token_text)
        self._provenance = provenance_writer(choice.plan, engine)
        self._is_first = True
        self._offset = 0

    def write(self, output: RequestOutput) -> CompletionChoice:
        """What ``output`` adds; the first one brings along what there is of the prompt."""
        shown, is_first = self._plan.presentation, self._is_first
        self._is_first = False
        choice = CompletionChoice(
            index=self._plan.index,
            text=output.text,
            logprobs=None if shown.logprobs is None else self._logprobs(output, shown.logprobs, is_first=is_first),
            finish_reason=finish_reason_of(output),
            stop_reason=output.stop_reason,
        )
        if is_first and self._plan.echo is not None:
            choice.text = f"{self._plan.echo}{choice.text}"
        if shown.token_ids:
            choice.token_ids = output.token_ids
            if is_first:
                choice.prompt_token_ids = list(self._prompt_token_ids)
        if self._provenance is not None:
            choice.token_provenance = self._provenance.write(output)
        if is_first and shown.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_of(output, shown.prompt_logprobs, self._token_text)
        return choice

    def _logprobs(self, output: RequestOutput, num_top: int, *, is_first: bool) -> Logprobs:
        lists = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        if is_first and self._plan.echo is not None:
            for token_id, scored in zip(self._prompt_token_ids, output.prompt_logprobs or (), strict=False):
                # The request may have asked for more alternatives in prompt_logprobs.
                self._add(lists, token_id, scored and scored._replace(top=scored.top[:num_top]))
        for entry in output.logprobs or ():
            self._add(lists, entry.token_id, entry._replace(top=entry.top[: self._plan.presentation.num_alternatives]))
        return lists

    def _add(self, lists: Logprobs, token_id: int, entry: TokenLogprob | None) -> None:
        lists.tokens.append(self._token_name(token_id))
        lists.token_logprobs.append(None if entry is None else clamp_logprob(entry.logprob))
        lists.top_logprobs.append(None if entry is None else self._top_logprobs(entry))
        lists.text_offset.append(self._offset)
        self._offset += len(self._token_text(token_id))

    def _top_logprobs(self, entry: TokenLogprob) -> TopLogprobs:
        top: TopLogprobs = {}
        for token_id, logprob in entry.top:
            # Best first: of two tokens with one string the likelier is kept.
            top.setdefault(self._token_name(token_id), clamp_logprob(logprob))
        top.setdefault(self._token_name(entry.token_id), clamp_logprob(entry.logprob))
        return top
