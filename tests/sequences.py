"""Sequences without a tokenizer, and a way to run them through an engine without threads. Knows no tensors."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

from engine.core import EngineCore
from engine.params import SamplingParams, SpeculationMode, SpeculationParams
from engine.predicted_output import PredictedOutput
from engine.sequence import Sequence
from engine.types import RequestOutput


class NumberText:
    """A ``TextStream`` in which token 7 is the text ``"7 "``; a tail that may become a stop string waits."""

    def __init__(self, stop: tuple[str, ...] = (), *, include_stop: bool = False) -> None:
        self._stop = stop
        self._include_stop = include_stop
        self._text = ""
        self._num_taken = 0

    def append(self, token_id: int, *, check_stop: bool = True, is_last: bool = False) -> str | None:
        start = len(self._text)
        self._text += f"{token_id} "
        for stop in self._stop if check_stop else ():
            at = self._text.find(stop, max(0, start - len(stop) + 1))
            if at >= 0:
                self._text = self._text[: at + len(stop) if self._include_stop else at]
                return stop
        return None

    def take(self, *, final: bool = False) -> str:
        end = len(self._text)
        if not final:
            end -= max((n for stop in self._stop for n in range(len(stop)) if self._text.endswith(stop[:n])), default=0)
        text = self._text[self._num_taken : end]
        self._num_taken = max(end, self._num_taken)
        return text


def make_sequence(
    request_id: str,
    prompt: list[int],
    *,
    num_speculative_tokens: int = 0,
    cache_salt: str = "",
    prediction: Seq[int] = (),
    **params: Any,
) -> Sequence:
    """Greedy, 24 tokens long, and without drafts unless told otherwise."""
    sampling = SamplingParams(**({"seed": 0, "max_tokens": 24, "temperature": 0.0} | params))
    mode = SpeculationMode.AUTO if num_speculative_tokens else SpeculationMode.OFF
    return Sequence(
        request_id,
        prompt,
        sampling,
        text=NumberText(sampling.stop, include_stop=sampling.include_stop_str_in_output),
        speculation=SpeculationParams(mode),
        num_speculative_tokens=num_speculative_tokens,
        cache_salt=cache_salt,
        prediction=PredictedOutput(prediction) if prediction else None,
    )


def run(core: EngineCore, sequences: Iterable[Sequence]) -> dict[str, list[RequestOutput]]:
    """Step until all are done; the outputs of each request in order."""
    outputs: dict[str, list[RequestOutput]] = {}
    for sequence in sequences:
        core.add(sequence)
    while core.has_unfinished:
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens_of(outputs: Iterable[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
