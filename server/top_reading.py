"""One look at ``/metrics``. Knows the text format and our prefix; knows no metric by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from engine.errors import ConfigError
from server.metric_registry import PREFIX


@dataclass(frozen=True, slots=True)
class Sample:
    """One value with its labels."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server said of itself.

    Attributes:
        at: when, in seconds that never go back.
        samples: by the metric's name without our prefix, counters with their ``_total``.
    """

    at: float
    samples: Mapping[str, list[Sample]]

    def value(self, name: str) -> float | None:
        """The sum over all labels; None where there is no such metric."""
        found = self.samples.get(name)
        return None if found is None else sum(sample.value for sample in found)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of one metric by one of its labels."""
        return {sample.labels[label]: sample.value for sample in self.samples.get(name, [])}

    def labels(self, name: str) -> Mapping[str, str]:
        """Those of a metric that has one value; empty where there is no such metric."""
        found = self.samples.get(name)
        return found[0].labels if found else {}


def parse_reading(text: str, at: float) -> Reading:
    """
    Raises:
        ConfigError: this is no exposition of a server of ours.
    """
    samples: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    name = sample.name.removeprefix(PREFIX)
                    samples.setdefault(name, []).append(Sample(sample.labels, sample.value))
    except ValueError as error:
        raise ConfigError(f"the answer is not in Prometheus' text format: {error}") from error
    if not samples:
        raise ConfigError(f"the answer has no metric that begins with {PREFIX}: this is no server of Draftahead")
    return Reading(at, samples)
