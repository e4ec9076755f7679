"""What Prometheus sees of this server. Knows names and buckets; takes every number from the engine.

A *request* here is what the engine runs: one choice of one prompt. Counters of tokens, drafts and steps come
from the engine's steps; counters and histograms of requests come from their outputs, so that the two can be
held against each other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import EngineUnavailable, InvalidRequest, QueueFull
from engine.types import FinishReason, ModelInfo, RequestMetrics, RequestOutput, StepStats
from server.metric_registry import MetricRegistry

RATE_WINDOW_SECONDS = 10.0
PHASES = ("schedule", "propose", "forward", "verify", "commit")
REJECTIONS = (
    "invalid_request",
    "model_not_found",
    "context_length_exceeded",
    "queue_full",
    "engine_unavailable",
)

# Each tuple holds the bounds that dashboards for larger models expect, with finer ones between and below.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
DURATION_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class ServerMetrics:
    """The metrics of one server.

    Args:
        info: the served model.
        model_name: value of the label ``model_name``.
        version: of this program.
        clock: seconds that never go back; must be the clock that stamps the engine's outputs.
    """

    def __init__(
        self, info: ModelInfo, *, model_name: str, version: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        registry = MetricRegistry(model_name)
        self._registry = registry
        self._clock = clock
        self._steps = _StepMetrics(registry, info.num_speculative_tokens, clock)
        self._requests = _RequestHistograms(registry, info.max_model_len)
        self._finished = registry.counter_by("finish_reason", FinishReason, "requests", "Requests that ended, by how.")
        self._rejected = registry.counter_by(
            "reason",
            REJECTIONS,
            "rejected_requests",
            "HTTP requests for a generation refused before it began.",
        )
        labels = {
            "version": version,
            "device": info.device,
            "dtype": info.dtype,
            "drafter": info.drafter,
            "num_speculative_tokens": str(info.num_speculative_tokens),
            "max_model_len": str(info.max_model_len),
        }
        registry.info("model", "The served model; always 1.", labels)

    def now(self) -> float:
        """Seconds by the clock of all that is measured here."""
        return self._clock()

    def start_request(self, arrived_at: float) -> RequestMeter:
        """A meter for one request that arrived at ``arrived_at``, by ``now``."""
        return RequestMeter(self._requests, self._finished.inc, arrived_at)

    @contextmanager
    def counting_rejections(self) -> Iterator[None]:
        """Count the error that leaves the block if it is a refusal."""
        try:
            yield
        except InvalidRequest as error:
            self._rejected.inc(error.code if error.code in REJECTIONS else "invalid_request")
            raise
        except QueueFull:
            self._rejected.inc("queue_full")
            raise
        except EngineUnavailable:
            self._rejected.inc("engine_unavailable")
            raise

    def observe_step(self, stats: StepStats) -> None:
        """Add one step of the engine."""
        self._steps.observe(stats)

    def exposition(self) -> bytes:
        """Every metric in Prometheus' text format."""
        return self._registry.exposition()


class RequestMeter:
    """Follows one request from its arrival to its end, which it counts exactly once."""

    def __init__(
        self, histograms: _RequestHistograms, count_finished: Callable[[FinishReason], None], arrived_at: float
    ) -> None:
        self._histograms = histograms
        self._count_finished = count_finished
        self._arrived_at = arrived_at
        self._last_token_time: float | None = None
        self._is_ended = False

    def observe(self, output: RequestOutput) -> None:
        """Add one output of the request, in order."""
        if output.token_ids:
            self._observe_tokens(len(output.token_ids), output.time)
        if output.finish_reason is not None:
            self._end(output.finish_reason)
        if output.metrics is not None and output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._histograms.observe_finished(output.metrics, output.time - self._arrived_at)

    def abandon(self) -> None:
        """The client is gone or the server gave up; nothing if the request had already ended."""
        self._end(FinishReason.ABORT)

    def fail(self) -> None:
        """The engine has stopped; nothing if the request had already ended."""
        self._end(FinishReason.ERROR)

    def _observe_tokens(self, num_tokens: int, now: float) -> None:
        if self._last_token_time is None:
            self._histograms.first_token.observe(now - self._arrived_at)
        else:
            gap = (now - self._last_token_time) / num_tokens
            for _ in range(num_tokens):
                self._histograms.inter_token.observe(gap)
        self._last_token_time = now

    def _end(self, reason: FinishReason) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._count_finished(reason)


class _RequestHistograms:
    """The histograms of requests; those of whole requests hold the ones that ended by stop or length."""

    def __init__(self, registry: MetricRegistry, max_model_len: int) -> None:
        lengths = _one_two_five(max_model_len)
        self.first_token = registry.histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", FIRST_TOKEN_BUCKETS
        )
        self.inter_token = registry.histogram(
            "inter_token_latency_seconds",
            "Once for every token after the first output: time since the output before, divided by the "
            "tokens that the output brought.",
            INTER_TOKEN_BUCKETS,
        )
        self._duration = registry.histogram(
            "request_duration_seconds", "From a request's arrival to its last token.", DURATION_BUCKETS
        )
        self._prompt_tokens = registry.histogram(
            "request_prompt_tokens", "Prompt tokens of finished requests.", lengths
        )
        self._generation_tokens = registry.histogram(
            "request_generation_tokens", "Generated tokens of finished requests.", lengths
        )

    def observe_finished(self, account: RequestMetrics, seconds: float) -> None:
        self._duration.observe(seconds)
        self._prompt_tokens.observe(account.num_prompt_tokens)
        self._generation_tokens.observe(account.num_output_tokens)


class _StepMetrics:
    """What the engine's steps add up to."""

    def __init__(self, registry: MetricRegistry, num_positions: int, clock: Callable[[], float]) -> None:
        self._num_drafts = self._num_drafted = self._num_accepted = 0
        self._rate = _TokenRate(clock)
        self._make_counters(registry, num_positions)
        self._make_gauges(registry)

    def _make_counters(self, registry: MetricRegistry, num_positions: int) -> None:
        counter, counter_by = registry.counter, registry.counter_by
        positions = range(num_positions)
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens, computed or found in the prefix cache.")
        self._cached_tokens = counter("cached_prompt_tokens", "Prompt tokens found in the prefix cache.")
        self._generation_tokens = counter("generation_tokens", "Tokens that became output.")
        self._drafts = counter("spec_decode_drafts", "Drafts: a request's steps with a token proposed.")
        self._draft_tokens = counter("spec_decode_draft_tokens", "Tokens proposed.")
        self._accepted_tokens = counter("spec_decode_accepted_tokens", "Proposed tokens that became output.")
        self._drafted_at = counter_by(
            "position",
            positions,
            "spec_decode_draft_tokens_per_position",
            "Tokens proposed, by place in the draft, from 0.",
        )
        self._accepted_at = counter_by(
            "position",
            positions,
            "spec_decode_accepted_tokens_per_position",
            "Proposed tokens that became output, by place in the draft, from 0.",
        )
        self._preemptions = counter("preemptions", "Requests put back in the queue for want of KV blocks.")
        self._steps = counter("steps", "Forward passes of the target.")
        self._step_seconds = counter_by("phase", PHASES, "step_seconds", "Time spent in steps, by phase.")

    def _make_gauges(self, registry: MetricRegistry) -> None:
        gauge = registry.gauge
        self._running = gauge("requests_running", "Requests in the batch after the last step.")
        self._waiting = gauge("requests_waiting", "Requests in the queue after the last step.")
        self._kv_usage = gauge("kv_cache_usage_ratio", "Share of the KV blocks in use after the last step, 0 to 1.")
        self._acceptance_rate = gauge(
            "acceptance_rate", "Accepted tokens / proposed tokens since the start; 0 before the first draft."
        )
        self._acceptance_length = gauge(
            "mean_acceptance_length",
            "1 + accepted tokens / drafts since the start: tokens a drafted step brings; 1 before the first.",
        )
        self._acceptance_length.set(1)
        gauge(
            "tokens_per_second",
            f"Tokens that became output in the last {RATE_WINDOW_SECONDS:g} seconds, a second.",
        ).set_function(self._rate.per_second)

    def observe(self, stats: StepStats) -> None:
        if stats.num_rows:  # a report without rows only says how busy an idle engine is
            self._steps.inc()
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
        if stats.num_drafts:
            self._observe_drafts(stats)

    def _observe_drafts(self, stats: StepStats) -> None:
        self._drafts.inc(stats.num_drafts)
        self._draft_tokens.inc(stats.num_draft_tokens)
        self._accepted_tokens.inc(stats.num_accepted_tokens)
        for position, count in enumerate(stats.drafted_per_position):
            self._drafted_at.inc(position, count)
        for position, count in enumerate(stats.accepted_per_position):
            self._accepted_at.inc(position, count)
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


def _one_two_five(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 and so on up to ``limit``."""
    bounds = (digit * 10**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= limit)
