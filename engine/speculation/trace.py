"""Steps on paper: a line of JSON for each, from which its draft lengths can be explained and its load be played again.

The format of the file lies here and nowhere else. No token and no text is written, only numbers and request ids.
"""

from __future__ import annotations

import gzip
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.errors import ConfigError
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.step_stats import StepStats
from engine.types import DraftDecision, DraftReason, RequestOutput, Verdict

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 30
# Microseconds, and chances to as many digits.
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One sequence's part in a step.

    Attributes:
        id: of the request.
        num_prompt_tokens: of the request.
        position: output tokens that it had before the step.
        num_rows: confirmed tokens that were computed.
        source: the drafter that proposed; ``none`` or ``paused`` without a proposal.
        confidences: the drafter's own estimates for the tokens proposed.
        chances: for each the chance that it and all before it are accepted, as the controller saw it.
        length: tokens that were verified.
        accepted: of them.
        reason: why no more, see ``DraftReason``; None where no token was drawn.
    """

    id: str
    num_prompt_tokens: int
    position: int
    num_rows: int
    source: str
    confidences: list[float]
    chances: list[float]
    length: int
    accepted: int
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One step.

    Attributes:
        at: seconds since the trace began.
        num_rows: of the forward.
        seconds, propose_seconds: how long it took, proposing aside, and how long proposing did.
        predicted_seconds: of ``seconds``; 0 if nothing was expected.
        kv_cache_usage: share of the KV blocks in use after it.
        num_waiting, num_preemptions: as in ``StepStats``.
        requests: who took part.
    """

    at: float
    num_rows: int
    seconds: float
    propose_seconds: float
    predicted_seconds: float
    kv_cache_usage: float
    num_waiting: int
    num_preemptions: int
    requests: list[TracedRequest] = field(default_factory=list)


class StepRecorder(Protocol):
    """Is told of every step when it is over."""

    def record(
        self,
        batch: ScheduledBatch,
        decisions: Seq[DraftDecision],
        verdicts: Seq[Verdict],
        outputs: Seq[RequestOutput],
        stats: StepStats,
    ) -> None: ...


class _NoRecorder:
    def record(
        self,
        batch: ScheduledBatch,
        decisions: Seq[DraftDecision],
        verdicts: Seq[Verdict],
        outputs: Seq[RequestOutput],
        stats: StepStats,
    ) -> None:
        pass


NO_RECORDER: StepRecorder = _NoRecorder()


class TraceFile:
    """Writes every step to a file, in the place of what was in it, until it is as large as it may be.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            path.write_text("", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"trace {path} cannot be written: {error.strerror or error}") from error
        self._path = path
        self._clock = clock
        self._began = clock()
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._has_ended = False

    def record(
        self,
        batch: ScheduledBatch,
        decisions: Seq[DraftDecision],
        verdicts: Seq[Verdict],
        outputs: Seq[RequestOutput],
        stats: StepStats,
    ) -> None:
        if self._has_ended:
            return
        confirmed = {output.request_id: len(output.token_ids) for output in outputs}
        step = TracedStep(
            at=self._clock() - self._began,
            num_rows=stats.num_rows,
            seconds=stats.seconds,
            propose_seconds=stats.propose_seconds,
            predicted_seconds=stats.predicted_seconds,
            kv_cache_usage=stats.kv_cache_usage,
            num_waiting=stats.num_waiting,
            num_preemptions=stats.num_preemptions,
            requests=[
                _traced(entry, decision, verdict, confirmed.get(entry.sequence.request_id, 0))
                for entry, decision, verdict in zip(batch, decisions, verdicts, strict=True)
            ],
        )
        self._write(json.dumps(_rounded(asdict(step)), separators=(",", ":")) + "\n")

    def _write(self, line: str) -> None:
        """A trace that cannot go on ends; the server does not."""
        self._num_bytes += len(line)
        if self._num_bytes > self._max_bytes:
            return self._end(f"it would have more than {self._max_bytes} bytes")
        try:
            # Opened for each step: whoever looks at it while the server runs, or after it was killed, sees them all.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            self._end(error.strerror or str(error))

    def _end(self, reason: str) -> None:
        self._has_ended = True
        logger.warning("the trace %s ends here: %s", self._path, reason)


def _traced(entry: ScheduledSequence, decision: DraftDecision, verdict: Verdict, num_confirmed: int) -> TracedRequest:
    """The step is over: its ``num_confirmed`` tokens are in the sequence already."""
    return TracedRequest(
        id=entry.sequence.request_id,
        num_prompt_tokens=entry.sequence.num_prompt_tokens,
        position=entry.sequence.num_output_tokens - num_confirmed,
        num_rows=entry.num_tokens,
        source=decision.proposed.source,
        confidences=list(decision.proposed.probabilities),
        chances=list(decision.chances),
        length=decision.length,
        accepted=min(verdict.num_accepted, num_confirmed),
        reason=decision.reason,
    )


def read_trace(path: Path) -> Iterator[TracedStep]:
    """The steps in a file, which may be compressed by gzip; a last line that was cut off is passed over.

    Raises:
        ConfigError: it cannot be read, or a line is no step; names the line.
    """
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        lines = text.decode().split("\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"trace {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            fields = json.loads(line)
            requests = [TracedRequest(**request) for request in fields.pop("requests")]
            step = TracedStep(requests=requests, **fields)
            for request in requests:
                if request.reason is not None:
                    DraftReason(request.reason)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"trace {path}, line {number}, is not a step: {error}") from error
        yield step


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, _DIGITS)
        case list():
            return [_rounded(each) for each in value]
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
    return value
