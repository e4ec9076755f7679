"""What the engine's steps add up to: tokens, drafts, time and load. Knows nothing of requests' latencies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.step_stats import StepStats
from engine.types import ModelInfo
from server.length_metrics import LengthMetrics
from server.metric_buckets import STEP_ROWS_BUCKETS
from server.metric_registry import LabelledCounter, MetricRegistry

RATE_WINDOW_SECONDS = 10.0
PHASES = ("schedule", "propose", "forward", "verify", "commit")


class StepMetrics:
    """Counters and gauges that grow with every step."""

    def __init__(self, registry: MetricRegistry, info: ModelInfo, clock: Callable[[], float]) -> None:
        self._drafts = _DraftMetrics(registry, info.num_speculative_tokens)
        self._lengths = LengthMetrics(registry)
        self._rate = _TokenRate(clock)
        self._make_counters(registry)
        self._make_gauges(registry)

    def _make_counters(self, registry: MetricRegistry) -> None:
        counter = registry.counter
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens, computed or found in the prefix cache.")
        self._cached_tokens = counter("cached_prompt_tokens", "Prompt tokens found in the prefix cache.")
        self._generation_tokens = counter("generation_tokens", "Tokens that became output.")
        self._preemptions = counter("preemptions", "Requests put back in the queue for want of KV blocks.")
        self._steps = counter("steps", "Forward passes of the target.")
        self._step_seconds = registry.counter_by("phase", PHASES, "step_seconds", "Time spent in steps, by phase.")
        self._step_rows = registry.histogram(
            "step_rows", "Rows of a forward pass: prompt tokens, next tokens and drafted ones.", STEP_ROWS_BUCKETS
        )

    def _make_gauges(self, registry: MetricRegistry) -> None:
        gauge = registry.gauge
        self._running = gauge("requests_running", "Requests in the batch after the last step.")
        self._waiting = gauge("requests_waiting", "Requests in the queue after the last step.")
        self._kv_usage = gauge("kv_cache_usage_ratio", "Share of the KV blocks in use after the last step, 0 to 1.")
        gauge(
            "tokens_per_second",
            f"Tokens that became output in the last {RATE_WINDOW_SECONDS:g} seconds, a second.",
        ).set_function(self._rate.per_second)

    def observe(self, stats: StepStats) -> None:
        """Add one step."""
        if stats.num_rows:  # a report without rows only says how busy an idle engine is
            self._steps.inc()
            self._step_rows.observe(stats.num_rows)
        for phase in PHASES:
            self._step_seconds.inc(phase, getattr(stats, f"{phase}_seconds"))
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._cached_tokens.inc(stats.num_cached_tokens)
        self._generation_tokens.inc(stats.num_generated_tokens)
        self._preemptions.inc(stats.num_preemptions)
        self._rate.add(stats.num_generated_tokens)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(stats.kv_cache_usage)
        self._lengths.observe(stats)
        if stats.num_drafts:
            self._drafts.observe(stats)


class _DraftMetrics:
    """Where drafted tokens came from, and what became of them."""

    def __init__(self, registry: MetricRegistry, num_positions: int) -> None:
        self._num_drafts = self._num_drafted = self._num_accepted = 0
        counter = registry.counter
        self._drafts = counter("spec_decode_drafts", "Drafts: a request's steps with a token proposed.")
        self._draft_tokens = counter("spec_decode_draft_tokens", "Tokens proposed.")
        self._accepted_tokens = counter("spec_decode_accepted_tokens", "Proposed tokens that became output.")
        self._recovered_tokens = counter(
            "spec_decode_recovered_tokens", "The target's tokens that became output where a draft missed."
        )
        self._bonus_tokens = counter(
            "spec_decode_bonus_tokens", "The target's tokens that became output behind a draft without a miss."
        )
        self._make_breakdowns(registry, range(num_positions))
        self._make_gauges(registry)

    def _make_breakdowns(self, registry: MetricRegistry, positions: range) -> None:
        def by_position(name: str, text: str) -> LabelledCounter:
            return registry.counter_by("position", positions, name, f"{text}, by place in the draft, from 0.")

        def by_drafter(name: str, text: str) -> LabelledCounter:
            # A drafter appears with its first draft: which ones there are is the engine's to say.
            return registry.counter_by("drafter", (), name, f"{text}, by the drafter that made them.")

        self._drafted_at = by_position("spec_decode_draft_tokens_per_position", "Tokens proposed")
        self._accepted_at = by_position(
            "spec_decode_accepted_tokens_per_position", "Proposed tokens that became output"
        )
        self._drafts_by = by_drafter("spec_decode_drafts_by_drafter", "Drafts")
        self._drafted_by = by_drafter("spec_decode_draft_tokens_by_drafter", "Tokens proposed")
        self._accepted_by = by_drafter("spec_decode_accepted_tokens_by_drafter", "Proposed tokens that became output")

    def _make_gauges(self, registry: MetricRegistry) -> None:
        self._acceptance_rate = registry.gauge(
            "acceptance_rate", "Accepted tokens / proposed tokens since the start; 0 before the first draft."
        )
        self._acceptance_length = registry.gauge(
            "mean_acceptance_length",
            "1 + accepted tokens / drafts since the start: tokens a drafted step brings; 1 before the first.",
        )
        self._acceptance_length.set(1)

    def observe(self, stats: StepStats) -> None:
        """Add a step with at least one draft."""
        self._drafts.inc(stats.num_drafts)
        self._draft_tokens.inc(stats.num_draft_tokens)
        self._accepted_tokens.inc(stats.num_accepted_tokens)
        self._recovered_tokens.inc(stats.num_recovered_tokens)
        self._bonus_tokens.inc(stats.num_bonus_tokens)
        for position, count in enumerate(stats.drafted_per_position):
            self._drafted_at.inc(position, count)
        for position, count in enumerate(stats.accepted_per_position):
            self._accepted_at.inc(position, count)
        for drafter, counts in stats.by_drafter.items():
            self._drafts_by.inc(drafter, counts.num_drafts)
            self._drafted_by.inc(drafter, counts.num_draft_tokens)
            self._accepted_by.inc(drafter, counts.num_accepted_tokens)
        self._update_gauges(stats)

    def _update_gauges(self, stats: StepStats) -> None:
        self._num_drafts += stats.num_drafts
        self._num_drafted += stats.num_draft_tokens
        self._num_accepted += stats.num_accepted_tokens
        self._acceptance_rate.set(self._num_accepted / self._num_drafted)
        self._acceptance_length.set(1 + self._num_accepted / self._num_drafts)


class _TokenRate:
    """Tokens a second over a sliding window."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()
        self._num_tokens = 0

    def add(self, num_tokens: int) -> None:
        if num_tokens:
            self._recent.append((self._clock(), num_tokens))
            self._num_tokens += num_tokens
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return self._num_tokens / RATE_WINDOW_SECONDS

    def _forget(self) -> None:
        horizon = self._clock() - RATE_WINDOW_SECONDS
        while self._recent and self._recent[0][0] <= horizon:
            self._num_tokens -= self._recent.popleft()[1]
