"""The heart: schedule, propose, forward, verify, commit. Knows no HTTP, no asyncio, and no strategy by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.provenance import StepProvenance
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence, Scheduler
from engine.sequence import Sequence
from engine.speculation.controller import DraftLengthController
from engine.speculation.drafter import Drafter
from engine.speculation.trace import NO_RECORDER, StepRecorder
from engine.step_stats import DraftCounts, StepStats
from engine.types import Draft, DraftDecision, FinishReason, RequestOutput, Verdict


class Runner(Protocol):
    def forward(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> torch.Tensor: ...


class Verifier(Protocol):
    def verify(self, batch: ScheduledBatch, drafts: Seq[Draft], logits: torch.Tensor) -> list[Verdict]: ...


@dataclass(slots=True)
class StepResult:
    """All that leaves the engine in one step."""

    outputs: list[RequestOutput] = field(default_factory=list)
    stats: StepStats = field(default_factory=StepStats)


class EngineCore:
    """One loop body over the sequences it holds. Not thread-safe: one thread owns it.

    Args:
        end_token_ids: tokens that end an output.
        recorder: is told of every step.
        now: seconds that never go back, by which steps are timed.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        controller: DraftLengthController,
        drafter: Drafter,
        runner: Runner,
        verifier: Verifier,
        end_token_ids: frozenset[int],
        recorder: StepRecorder = NO_RECORDER,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._controller = controller
        self._drafter = drafter
        self._runner = runner
        self._verifier = verifier
        self._end_token_ids = end_token_ids
        self._recorder = recorder
        self._now = now
        self._sequences: dict[str, Sequence] = {}

    @property
    def end_token_ids(self) -> frozenset[int]:
        return self._end_token_ids

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def check_fits(self, num_tokens: int) -> None:
        """See ``Scheduler.check_fits``."""
        self._scheduler.check_fits(num_tokens)

    def add(self, sequence: Sequence) -> None:
        assert sequence.request_id not in self._sequences, f"{sequence.request_id} is already running"
        self._sequences[sequence.request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; its last output, or None if it has ended already."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        sequence.finish(FinishReason.ABORT)
        return self._retire(sequence, RequestOutput(request_id), time.monotonic())

    def step(self) -> StepResult:
        """Draft, then verify, once over the whole batch."""
        clock = _Clock(self._now)
        batch = self._scheduler.schedule(self._controller)
        clock.lap("schedule")
        decisions = self._controller.trim(batch, self._drafter.propose(batch))
        drafts = [decision.draft for decision in decisions]
        clock.lap("propose")
        logits = self._runner.forward(batch, drafts)
        clock.lap("forward")
        verdicts = self._verifier.verify(batch, drafts, logits)
        clock.lap("verify")
        self._drafter.observe(batch, drafts, verdicts)
        result = self._commit(batch, drafts, verdicts)
        clock.lap("commit")
        _count_decisions(decisions, result.stats)
        clock.write(result.stats)
        self._controller.observe(batch, decisions, verdicts, result.stats)
        self._recorder.record(batch, decisions, verdicts, result.outputs, result.stats)
        return result

    def _commit(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> StepResult:
        """Account: sequences, blocks, statistics. The only place where drawn tokens enter a sequence."""
        now = time.monotonic()
        stats = StepStats(
            num_rows=batch.num_rows + sum(len(draft.token_ids) for draft in drafts),
            num_prompt_tokens=batch.num_admitted_tokens,
            num_cached_tokens=batch.num_cached_tokens,
            num_preemptions=batch.num_preemptions,
        )
        outputs = []
        for entry, draft, verdict in zip(batch, drafts, verdicts, strict=True):
            output = self._commit_one(entry, draft, verdict, stats, now)
            if output is not None:
                outputs.append(output)
        self.observe_load(stats)
        return StepResult(outputs, stats)

    def observe_load(self, stats: StepStats) -> None:
        """Write how busy the engine is now."""
        stats.num_running = len(self._scheduler.running)
        stats.num_waiting = len(self._scheduler.waiting)
        stats.kv_cache_usage = self._scheduler.block_manager.usage

    def _commit_one(
        self, entry: ScheduledSequence, draft: Draft, verdict: Verdict, stats: StepStats, now: float
    ) -> RequestOutput | None:
        sequence = entry.sequence
        catches_up = entry.catches_up  # before the tokens below move the goal
        num_computed_before = sequence.num_computed_tokens
        sequence.prompt_logprobs += verdict.prompt_logprobs

        num_confirmed = self._append(sequence, verdict)
        num_accepted = min(num_confirmed, verdict.num_accepted)
        sequence.num_computed_tokens += entry.num_tokens + num_accepted
        assert sequence.num_computed_tokens <= len(sequence.token_ids)
        self._scheduler.block_manager.settle(sequence, num_published_before=num_computed_before)
        _count(sequence, draft, num_confirmed, num_accepted, stats)

        if catches_up and sequence.params.max_tokens == 0:
            sequence.finish(FinishReason.LENGTH)
        if not num_confirmed and not sequence.is_finished:
            return None
        provenance = StepProvenance(num_confirmed, draft.source, len(draft.token_ids), verdict.num_accepted)
        return self._output(sequence, verdict, provenance, now)

    def _append(self, sequence: Sequence, verdict: Verdict) -> int:
        """Confirm tokens up to the one that ends the request, if any; how many."""
        for num_confirmed, token_id in enumerate(verdict.token_ids, start=1):
            sequence.append(token_id, self._end_token_ids)
            if sequence.is_finished:
                return num_confirmed
        return len(verdict.token_ids)

    def _output(self, sequence: Sequence, verdict: Verdict, provenance: StepProvenance, now: float) -> RequestOutput:
        num_confirmed = provenance.num_tokens
        is_first = sequence.num_output_tokens == num_confirmed
        output = RequestOutput(
            sequence.request_id,
            token_ids=list(verdict.token_ids[:num_confirmed]),
            text=sequence.text.take(final=sequence.is_finished),
            logprobs=None if verdict.logprobs is None else list(verdict.logprobs[:num_confirmed]),
            prompt_logprobs=sequence.prompt_logprobs
            if is_first and sequence.params.prompt_logprobs is not None
            else None,
            time=now,
            provenance=[provenance],
        )
        return self._retire(sequence, output, now) if sequence.is_finished else output

    def _retire(self, sequence: Sequence, output: RequestOutput, now: float) -> RequestOutput:
        """Free what a finished sequence holds and close its account."""
        self._scheduler.remove(sequence)
        self._drafter.release(sequence)
        self._controller.release(sequence)
        del self._sequences[sequence.request_id]
        output.finish_reason = sequence.finish_reason
        output.stop_reason = sequence.stop_reason
        output.metrics = sequence.metrics()
        output.time = now
        return output


def _count(sequence: Sequence, draft: Draft, num_confirmed: int, num_accepted: int, stats: StepStats) -> None:
    """The same numbers into the request's account and the step's, so that they always reconcile."""
    stats.num_generated_tokens += num_confirmed
    if num_confirmed:
        sequence.num_steps += 1
    num_drafted = len(draft.token_ids)
    if not num_drafted:
        return
    sequence.stats.record(num_drafted, num_accepted)
    stats.num_drafts += 1
    stats.num_draft_tokens += num_drafted
    stats.num_accepted_tokens += num_accepted
    if num_confirmed > num_accepted:  # a request may end within its draft, and then there is no token of the target's
        stats.num_recovered_tokens += num_accepted < num_drafted
        stats.num_bonus_tokens += num_accepted == num_drafted
    counts = stats.by_drafter.setdefault(draft.source, DraftCounts())
    counts.num_drafts += 1
    counts.num_draft_tokens += num_drafted
    counts.num_accepted_tokens += num_accepted
    _add_per_position(stats.drafted_per_position, num_drafted)
    _add_per_position(stats.accepted_per_position, num_accepted)


def _add_per_position(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


def _count_decisions(decisions: Seq[DraftDecision], stats: StepStats) -> None:
    for decision in decisions:
        if decision.reason is None:
            continue
        stats.decisions[decision.reason] = stats.decisions.get(decision.reason, 0) + 1
        stats.draft_lengths.extend([0] * (decision.length + 1 - len(stats.draft_lengths)))
        stats.draft_lengths[decision.length] += 1


class _Clock:
    """Splits a step into named laps."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._start = now()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now()
        self._laps[name] = now - self._start
        self._start = now

    def write(self, stats: StepStats) -> None:
        for name, seconds in self._laps.items():
            setattr(stats, f"{name}_seconds", seconds)
