"""How metrics are named, labelled and written out. Knows Prometheus' conventions; knows no single metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "draftahead_"

FamilyFilter = Callable[[Iterable[Metric]], Iterator[Metric]]


class MetricRegistry:
    """The metrics of one server, each with the label ``model_name``, on a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name

    def counter(self, name: str, text: str) -> Counter:
        """A counter; ``_total`` is added to its name."""
        return Counter(PREFIX + name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def counter_by(self, label: str, values: Iterable[object], name: str, text: str) -> LabelledCounter:
        """A counter with one more label, at 0 for each of ``values`` from the start."""
        family = Counter(PREFIX + name, text, ["model_name", label], registry=self._registry)
        return LabelledCounter(family, self._model_name, values)

    def gauge(self, name: str, text: str) -> Gauge:
        """A gauge."""
        return Gauge(PREFIX + name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def late_gauge(self, name: str, text: str) -> LateGauge:
        """A gauge that is not there before its first value, where any other would be a lie."""
        return LateGauge(Gauge(PREFIX + name, text, ["model_name"], registry=self._registry), self._model_name)

    def histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        """A histogram with the upper bounds ``bounds``, ascending, and infinity."""
        family = Histogram(PREFIX + name, text, ["model_name"], registry=self._registry, buckets=bounds)
        return family.labels(self._model_name)

    def info(self, name: str, text: str, labels: dict[str, str]) -> None:
        """A constant 1 with ``labels``; ``_info`` is added to its name."""
        Info(PREFIX + name, text, ["model_name"], registry=self._registry).labels(self._model_name).info(labels)

    def exposition(self, extend: FamilyFilter | None = None) -> bytes:
        """The text format 0.0.4 of every metric, or of what ``extend`` makes of them."""
        return generate_latest(_View(self._registry, extend or iter))


class LabelledCounter:
    """A counter that counts apart by one label of few values."""

    def __init__(self, family: Counter, model_name: str, values: Iterable[object]) -> None:
        self._family = family
        self._model_name = model_name
        for value in values:
            self._family.labels(model_name, str(value))

    def inc(self, value: object, amount: float = 1) -> None:
        """Add ``amount`` to the counter of ``value``."""
        self._family.labels(self._model_name, str(value)).inc(amount)


class LateGauge:
    """A gauge without a value at first."""

    def __init__(self, family: Gauge, model_name: str) -> None:
        self._family = family
        self._model_name = model_name

    def set(self, value: float) -> None:
        self._family.labels(self._model_name).set(value)


class _View(Collector):
    """A registry without creation times, which would be a second series beside every counter, and then filtered."""

    def __init__(self, registry: CollectorRegistry, extend: FamilyFilter) -> None:
        self._registry = registry
        self._extend = extend

    def collect(self) -> Iterator[Metric]:
        return self._extend(self._without_created())

    def _without_created(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
