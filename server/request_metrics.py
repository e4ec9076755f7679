"""What is counted of requests: how long each part of one took, and how it ended. Knows nothing of steps and drafts.

A *request* here is what the engine runs: one choice of one prompt.
"""

from __future__ import annotations

from engine.types import FinishReason, ModelInfo, RequestMetrics, RequestOutput
from server.metric_buckets import (
    DURATION_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    INTER_TOKEN_BUCKETS,
    PREEMPTION_BUCKETS,
    one_two_five,
)
from server.metric_registry import MetricRegistry


class RequestFamilies:
    """The metrics of requests; those of whole requests hold the ones that ended by stop or length."""

    def __init__(self, registry: MetricRegistry, info: ModelInfo) -> None:
        self.finished = registry.counter_by("finish_reason", FinishReason, "requests", "Requests that ended, by how.")
        self._make_latencies(registry)
        self._make_sizes(registry, one_two_five(info.max_model_len))

    def _make_latencies(self, registry: MetricRegistry) -> None:
        histogram = registry.histogram
        self.first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", FIRST_TOKEN_BUCKETS
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds",
            "Once for every token after the first output: time since the output before, divided by the "
            "tokens that the output brought.",
            INTER_TOKEN_BUCKETS,
        )
        self.time_per_token = histogram(
            "request_time_per_output_token_seconds",
            "Time between first and last output of a finished request, divided by the tokens after the first output.",
            INTER_TOKEN_BUCKETS,
        )
        self.duration = histogram(
            "request_duration_seconds", "From a request's arrival to its last token.", DURATION_BUCKETS
        )
        self.queue = histogram(
            "request_queue_seconds",
            "From a request's arrival to the first step that had room for it.",
            DURATION_BUCKETS,
        )
        self.inference = histogram(
            "request_inference_seconds", "From the first step that had room to the last token.", DURATION_BUCKETS
        )
        self.prefill = histogram(
            "request_prefill_seconds", "From the first step that had room to the first token.", DURATION_BUCKETS
        )
        self.decode = histogram("request_decode_seconds", "From the first token to the last.", DURATION_BUCKETS)

    def _make_sizes(self, registry: MetricRegistry, lengths: tuple[int, ...]) -> None:
        histogram = registry.histogram
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of finished requests.", lengths)
        self.computed_tokens = histogram(
            "request_computed_prompt_tokens", "Prompt tokens of finished requests that no cache held.", lengths
        )
        self.generation_tokens = histogram(
            "request_generation_tokens", "Generated tokens of finished requests.", lengths
        )
        self.max_tokens = histogram("request_max_tokens", "Most tokens that finished requests might have.", lengths)
        self.preemptions = histogram(
            "request_preemptions", "How often finished requests were put back in the queue.", PREEMPTION_BUCKETS
        )


class RequestMeter:
    """Follows one request from its arrival to its end, which it counts exactly once.

    Args:
        arrived_at: by the clock of the outputs.
        max_tokens: most tokens that the request may have.
    """

    def __init__(self, families: RequestFamilies, *, arrived_at: float, max_tokens: int) -> None:
        self._families = families
        self._arrived_at = arrived_at
        self._max_tokens = max_tokens
        self._first_output_at: float | None = None
        self._last_output_at = arrived_at
        self._num_later_tokens = 0
        self._is_ended = False

    def observe(self, output: RequestOutput) -> None:
        """Add one output of the request, in order."""
        if output.token_ids:
            self._observe_tokens(len(output.token_ids), output.time)
        if output.finish_reason is not None:
            self._end(output.finish_reason)
        if output.metrics is not None and output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._observe_sizes(output.metrics)
            self._observe_parts(output.metrics.scheduled_at, output.time)

    def abandon(self) -> None:
        """The client is gone or the server gave up; nothing if the request had already ended."""
        self._end(FinishReason.ABORT)

    def fail(self) -> None:
        """The engine has stopped; nothing if the request had already ended."""
        self._end(FinishReason.ERROR)

    def _observe_tokens(self, num_tokens: int, now: float) -> None:
        if self._first_output_at is None:
            self._families.first_token.observe(now - self._arrived_at)
            self._first_output_at = now
        else:
            gap = (now - self._last_output_at) / num_tokens
            for _ in range(num_tokens):
                self._families.inter_token.observe(gap)
            self._num_later_tokens += num_tokens
        self._last_output_at = now

    def _observe_sizes(self, account: RequestMetrics) -> None:
        families = self._families
        families.prompt_tokens.observe(account.num_prompt_tokens)
        families.computed_tokens.observe(account.num_prompt_tokens - account.num_cached_tokens)
        families.generation_tokens.observe(account.num_output_tokens)
        families.max_tokens.observe(self._max_tokens)
        families.preemptions.observe(account.num_preemptions)

    def _observe_parts(self, scheduled_at: float | None, ended_at: float) -> None:
        families = self._families
        families.duration.observe(ended_at - self._arrived_at)
        if scheduled_at is not None:
            families.queue.observe(scheduled_at - self._arrived_at)
            families.inference.observe(ended_at - scheduled_at)
        if scheduled_at is not None and self._first_output_at is not None:
            families.prefill.observe(self._first_output_at - scheduled_at)
        if self._first_output_at is not None:
            families.decode.observe(ended_at - self._first_output_at)
        if self._first_output_at is not None and self._num_later_tokens:
            families.time_per_token.observe((self._last_output_at - self._first_output_at) / self._num_later_tokens)

    def _end(self, reason: FinishReason) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._families.finished.inc(reason)
