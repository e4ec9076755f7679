"""What Prometheus sees of this server. Takes every number from the engine and puts the families of metrics together.

Counters of tokens, drafts and steps come from the engine's steps; counters and histograms of requests come from their
outputs, so that the two can be held against each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from engine.errors import EngineUnavailable, InvalidRequest, QueueFull
from engine.step_stats import StepStats
from engine.types import ModelInfo
from server.metric_registry import MetricRegistry
from server.request_metrics import RequestFamilies, RequestMeter
from server.step_metrics import StepMetrics
from server.vllm_metrics import with_vllm_names

REJECTIONS = (
    "invalid_request",
    "model_not_found",
    "context_length_exceeded",
    "queue_full",
    "engine_unavailable",
)
# At 0 from the start, so that the first one counts; others appear with their first answer.
STATUSES = (200, 400, 401, 404, 429, 500, 503)


class ServerMetrics:
    """The metrics of one server.

    Args:
        info: the served model.
        model_name: value of the label ``model_name``.
        version: of this program.
        is_healthy: whether the engine takes requests now.
        has_vllm_names: whether the same values go by vLLM's names too.
        clock: seconds that never go back; must be the clock that stamps the engine's outputs.
    """

    def __init__(
        self,
        info: ModelInfo,
        *,
        model_name: str,
        version: str,
        is_healthy: Callable[[], bool],
        has_vllm_names: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        registry = MetricRegistry(model_name)
        self._registry = registry
        self._has_vllm_names = has_vllm_names
        self._clock = clock
        self._steps = StepMetrics(registry, info, clock)
        self._requests = RequestFamilies(registry, info)
        self._rejected = registry.counter_by(
            "reason", REJECTIONS, "rejected_requests", "HTTP requests for a generation refused before it began."
        )
        self._responses = registry.counter_by(
            "status", STATUSES, "http_responses", "HTTP answers by status, those to probes and scrapes left out."
        )
        registry.gauge("engine_up", "1 while the engine takes requests, 0 once it drains, stops or dies.").set_function(
            lambda: float(is_healthy())
        )
        _describe(registry, info, version)

    def now(self) -> float:
        """Seconds by the clock of all that is measured here."""
        return self._clock()

    def start_request(self, arrived_at: float, *, max_tokens: int) -> RequestMeter:
        """A meter for one request of at most ``max_tokens`` that arrived at ``arrived_at``, by ``now``."""
        return RequestMeter(self._requests, arrived_at=arrived_at, max_tokens=max_tokens)

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

    def count_response(self, status: int) -> None:
        """Add one HTTP answer."""
        self._responses.inc(status)

    def observe_step(self, stats: StepStats) -> None:
        """Add one step of the engine."""
        self._steps.observe(stats)

    def exposition(self) -> bytes:
        """Every metric in Prometheus' text format."""
        return self._registry.exposition(with_vllm_names if self._has_vllm_names else None)


def _describe(registry: MetricRegistry, info: ModelInfo, version: str) -> None:
    """What does not change while the server runs, and the memory that it takes."""
    labels = {
        "version": version,
        "device": info.device,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "drafter": info.drafter,
        "num_speculative_tokens": str(info.num_speculative_tokens),
        "max_model_len": str(info.max_model_len),
    }
    registry.info("model", "The served model; always 1.", labels)
    process = psutil.Process()
    gauge = registry.gauge
    gauge("model_weights_bytes", "Memory that the weights take.").set(info.weights_bytes)
    gauge("kv_cache_bytes", "Memory that the KV cache takes.").set(info.kv_cache_bytes)
    gauge("kv_cache_capacity_tokens", "Tokens for which the KV cache has room.").set(info.num_kv_tokens)
    gauge("process_start_time_seconds", "When this process began, in unix seconds.").set(process.create_time())
    gauge("process_resident_memory_bytes", "Main memory that this process takes now.").set_function(
        lambda: float(process.memory_info().rss)
    )
