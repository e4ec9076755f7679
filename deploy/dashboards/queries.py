"""PromQL in the words of the dashboards. Knows how series are picked and rates are taken; knows no panel."""

from __future__ import annotations

# The variables of the dashboards; every series of the server has these labels once it is scraped.
SELECTOR = 'job=~"$job", instance=~"$instance", model_name=~"$model_name"'

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def gauge(name: str) -> str:
    """The present values of ``draftahead_NAME``, a series each server."""
    return f"draftahead_{name}{{{SELECTOR}}}"


def rate(name: str, *, by: str = "", where: str = "") -> str:
    """A counter's growth a second, summed over the servers, apart by the labels in ``by``."""
    selector = f"{SELECTOR}, {where}" if where else SELECTOR
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping}(rate(draftahead_{name}{{{selector}}}[$__rate_interval]))"


def ratio(above: str, below: str, *, by: str = "") -> str:
    """A rate over a rate; nothing where the lower one stands still, so that idleness shows as a gap and not as NaN."""
    return f"{rate(above, by=by)} / ({rate(below, by=by)} > 0)"


def quantile(share: float, histogram: str) -> str:
    """A quantile of the observations of late, over all servers."""
    # NaN, which an idle histogram gives, is not at least 0.
    return f"histogram_quantile({share}, {rate(histogram + '_bucket', by='le')}) >= 0"


def mean(histogram: str) -> str:
    """The mean of the observations of late."""
    return ratio(f"{histogram}_sum", f"{histogram}_count")
