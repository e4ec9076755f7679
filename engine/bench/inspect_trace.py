"""Explains a trace: each step and each draft length in words, and what all of them add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table

from engine.errors import ConfigError
from engine.speculation.calibration import Calibration
from engine.speculation.trace import TracedRequest, TracedStep, read_trace
from engine.types import DraftReason

_WORDS = {
    DraftReason.WHOLE: "all that was proposed",
    DraftReason.PRICE: "more rows would take more time than they bring",
    DraftReason.LATENCY: "more rows would miss the inter-token target",
    DraftReason.MEMORY: "more would take blocks that running requests may need",
    DraftReason.BUDGET: "the rows of a step are used up",
    DraftReason.NO_GUESS: "no drafter had a guess",
    DraftReason.PAUSED: "the draft model was not asked: its drafts are not worth it lately",
    DraftReason.PLAIN: "this step runs plain, to measure the speed-up",
    DraftReason.OFF: "the request wants no draft, or ends with the next token",
    None: "its prompt is being read",
}


def explain_trace(path: Path, *, request: str | None, first: int, num_steps: int) -> Iterator[RenderableType]:
    """What to print: the steps asked for, then the summary.

    Raises:
        ConfigError: as ``read_trace`` does, or the trace has no such step or request.
    """
    if first < 0 or num_steps < 0:
        raise ConfigError(f"first and steps must be at least 0, not {first} and {num_steps}")
    steps = list(read_trace(path))
    if not steps:
        raise ConfigError(f"trace {path} has no step")
    numbered = [
        (number, step)
        for number, step in enumerate(steps)
        if number >= first and (request is None or any(part.id == request for part in step.requests))
    ]
    if not numbered:
        what = f"step {first}" if request is None else f"step from {first} on with request {request}"
        raise ConfigError(f"trace {path} has {len(steps)} steps, but no {what}")
    for number, step in islice(numbered, num_steps):
        yield _step_table(number, step, request)
    yield _summary(steps)


def _step_table(number: int, step: TracedStep, request: str | None) -> Table:
    expected = f", expected {step.predicted_seconds * 1e3:.2f}" if step.predicted_seconds else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Step {number}, at {step.at:.3f} s: {step.num_rows} rows, {step.seconds * 1e3:.2f} ms{expected}; "
        f"KV {step.kv_cache_usage:.0%}, waiting {step.num_waiting}",
        title_justify="left",
    )
    for heading in ("request", "token", "drafter", "chances %", "verified", "accepted", "why not more"):
        table.add_column(heading, justify="right" if heading in ("token", "verified", "accepted") else "left")
    for part in step.requests:
        if request is None or part.id == request:
            table.add_row(*_row(part))
    return table


def _row(part: TracedRequest) -> tuple[str, ...]:
    chances = part.chances or part.confidences
    reason = None if part.reason is None else DraftReason(part.reason)
    return (
        part.id,
        str(part.position),
        part.source if part.confidences else "-",
        " ".join(f"{chance * 100:.0f}" for chance in chances) or "-",
        str(part.length),
        str(part.accepted),
        _WORDS[reason],
    )


def _summary(steps: Iterable[TracedStep]) -> Table:
    reasons: Counter[str] = Counter()
    calibration = Calibration()
    num_steps = num_drafted = num_accepted = 0
    seconds = predicted = measured = 0.0
    for step in steps:
        num_steps += 1
        seconds += step.seconds + step.propose_seconds
        if step.predicted_seconds:
            predicted += step.predicted_seconds
            measured += step.seconds
        for part in step.requests:
            if part.reason is not None:
                reasons[part.reason] += 1
            num_drafted += part.length
            num_accepted += part.accepted
            calibration.observe(part.chances[: part.length], part.accepted)
    table = Table(box=box.SIMPLE_HEAD, title="Summary", title_justify="left", show_header=False)
    table.add_row("steps", f"{num_steps}, {seconds:.2f} s")
    table.add_row("drafted, accepted", f"{num_drafted}, {num_accepted}" + _percent(num_accepted, num_drafted))
    if predicted:
        table.add_row("measured / predicted time", f"{measured / predicted:.3f}")
    if calibration.error is not None:
        table.add_row("error of the chances", f"{calibration.error * 100:.1f} %")
    for reason, number in reasons.most_common():
        table.add_row(f"why: {reason}", f"{number}{_percent(number, reasons.total())}")
    return table


def _percent(part: int, whole: int) -> str:
    return f" ({part / whole:.0%})" if whole else ""
