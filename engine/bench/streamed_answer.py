"""One streamed answer of an OpenAI-compatible server, event by event.

Knows the events of ``/v1/completions`` and ``/v1/chat/completions``, and what their times say about tokens. Refuses to
know how they are carried.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, NamedTuple

from engine.bench.measurement import DraftCounts, Measurement
from engine.errors import RemoteError

_WHOLE = ("stop", "length")
_MOST_SHOWN = 300  # characters of what a server said


class _Piece(NamedTuple):
    """A chunk that brought at least one token."""

    time: float
    text: str


class StreamedAnswer:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self._drafts: DraftCounts | None = None  # only a Draftahead tells
        self._pieces: list[_Piece] = []
        self._finish_time = 0.0
        self._finish_reason: str | None = None
        self._has_late_end = False
        self._num_tokens: int | None = None
        self._num_cached_tokens = 0
        self._is_done = False

    def read(self, data: str, now: float) -> None:
        """Take in the data of one event that came at ``now``.

        Raises:
            RemoteError: it tells of an error or is no event of this kind.
        """
        if data == "[DONE]":
            self._is_done = True
            return
        try:
            event = json.loads(data)
        except json.JSONDecodeError:
            raise RemoteError(f"an event is not JSON: {shortened(data)}") from None
        if not isinstance(event, dict) or event.get("error"):
            raise RemoteError(error_message(event) or f"an event is not an object: {shortened(data)}")
        if choices := event.get("choices"):
            self._read_choice(choices[0], now)
        self._read_usage(event.get("usage"))
        self._read_metrics(event.get("metrics"))

    def measurement(self, prompt_id: int, submitted: float) -> Measurement:
        """The whole answer to a request that was sent at ``submitted``.

        Raises:
            RemoteError: it is not whole.
        """
        if self._finish_reason not in _WHOLE or not self._is_done:
            how = f"finish_reason {self._finish_reason!r}" if self._is_done else "the stream broke off"
            raise RemoteError(f"the answer is not whole: {how}")
        pieces = self._pieces_with_end()
        first = pieces[0].time if pieces else self._finish_time
        num_tokens = len(self._pieces) if self._num_tokens is None else self._num_tokens
        counts = share_out(num_tokens, [len(piece.text) for piece in pieces])
        return Measurement(
            prompt_id=prompt_id,
            output="".join(piece.text for piece in self._pieces),
            num_tokens=num_tokens,
            ttft=first - submitted,
            token_gaps=_token_gaps(pieces, counts),
            num_cached_tokens=self._num_cached_tokens,
            drafts=self._drafts,
            has_usage=self._num_tokens is not None,
            has_shared_gaps=any(count != 1 for count in counts),
        )

    def _read_choice(self, choice: Any, now: float) -> None:
        if not isinstance(choice, dict):
            raise RemoteError(f"a choice is not an object: {shortened(str(choice))}")
        text = _text(choice)
        if text:
            self._pieces.append(_Piece(now, text))
        if choice.get("finish_reason") is not None:
            self._finish_reason, self._finish_time = str(choice["finish_reason"]), now
            self._has_late_end = not text

    def _read_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self._num_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self._num_cached_tokens = _count(details.get("cached_tokens")) or 0

    def _read_metrics(self, metrics: Any) -> None:
        counts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if not isinstance(counts, dict):
            return
        names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        self._drafts = DraftCounts(*(_count(counts.get(name)) or 0 for name in names))

    def _pieces_with_end(self) -> list[_Piece]:
        """The chunks with text, and the last one without if that is where an end token was counted."""
        has_end = self._has_late_end and self._finish_reason == "stop" and (self._num_tokens or 0) > len(self._pieces)
        return [*self._pieces, _Piece(self._finish_time, "")] if has_end else self._pieces


async def events_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event in a body that comes in pieces.

    Only a newline ends a line here: inside a text U+2028 and its like are characters as others are.
    """
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip().decode("utf-8", "replace")


def share_out(num_tokens: int, lengths: list[int]) -> list[int]:
    """How many of ``num_tokens`` each chunk had, as far as the ``lengths`` of their texts tell.

    Exact where every chunk had one. Each gets one, and the rest goes by length. With fewer tokens than chunks there is
    nothing to share, and each counts as one.
    """
    spare, total = num_tokens - len(lengths), sum(lengths)
    if spare <= 0 or total == 0:
        return [1] * len(lengths)
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return [1 + round(spare * end / total) - round(spare * start / total) for start, end in pairwise(bounds)]


def error_message(body: Any) -> str | None:
    """What an error body says, in any of the forms that are met; None if it says nothing."""
    if not isinstance(body, dict):
        return None
    error = body.get("error") or body.get("message") or body.get("detail")
    message = error.get("message") if isinstance(error, dict) else error
    return shortened(str(message)) if message else None


def shortened(text: str) -> str:
    """``text`` on one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}..."


def _text(choice: dict[str, Any]) -> str:
    """The new text, thoughts that a server keeps apart included: they are tokens too."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return str(choice.get("text") or "")
    return "".join(str(delta.get(name) or "") for name in ("reasoning_content", "reasoning", "content"))


def _token_gaps(pieces: list[_Piece], counts: list[int]) -> tuple[float, ...]:
    """The first chunk has none: the time before it is the TTFT."""
    return tuple(
        gap
        for (before, piece), count in zip(pairwise(pieces), counts[1:], strict=True)
        for gap in [(piece.time - before.time) / count] * count
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
