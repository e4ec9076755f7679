"""Steps on paper: a line of JSON for each, from which its draft lengths can be explained and its load be played again.

The format of the file lies here and nowhere else. No token and no text is written, only numbers and request ids.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.errors import ConfigError
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.types import DraftDecision, RequestOutput, StepStats, Verdict

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
    """Writes every step to a file.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            path.write_text("", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"trace {path} cannot be written: {error.strerror or error}") from error
        self._path = path
        self._clock = clock
        self._began = clock()

    def record(
        self,
        batch: ScheduledBatch,
        decisions: Seq[DraftDecision],
        verdicts: Seq[Verdict],
        outputs: Seq[RequestOutput],
        stats: StepStats,
    ) -> None:
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
        # Opened for each step: whoever looks at it while the server runs, or after it was killed, sees them all.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_rounded(asdict(step)), separators=(",", ":")) + "\n")


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
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            fields = json.loads(line)
            requests = [TracedRequest(**request) for request in fields.pop("requests")]
            yield TracedStep(requests=requests, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"trace {path}, line {number}, is not a step: {error}") from error


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, _DIGITS)
        case list():
            return [_rounded(each) for each in value]
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
    return value
