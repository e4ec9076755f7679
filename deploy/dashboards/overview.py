"""The first page: is the server well, how fast is it, and what holds it up?"""

from __future__ import annotations

from deploy.dashboards.panel import Dashboard, Panel, Query, Row
from deploy.dashboards.queries import QUANTILES, gauge, mean, quantile, rate, ratio


def _quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, histogram), name) for name, share in QUANTILES.items())


_SERVER_FAULTS = 'status=~"5.."'

_NOW = Row(
    "Now",
    (
        Panel(
            title="Engines up",
            text="Servers whose engine takes requests. A server that drains or whose engine is dead does not count.",
            unit="none",
            kind="stat",
            width=3,
            queries=(Query(f"sum({gauge('engine_up')})"),),
            limits=(1, 0.5),
        ),
        Panel(
            title="Alerts firing",
            text="Alerts of this server that fire now; Prometheus lists them at /alerts.",
            unit="none",
            kind="stat",
            width=3,
            queries=(Query('count(ALERTS{alertstate="firing", alertname=~"Draftahead.+"}) or vector(0)'),),
            limits=(1, 2),
        ),
        Panel(
            title="Tokens a second",
            text="Tokens that became output, over all requests.",
            unit="none",
            kind="stat",
            width=3,
            queries=(Query(rate("generation_tokens_total")),),
        ),
        Panel(
            title="Running",
            text="Requests in the batch.",
            unit="none",
            kind="stat",
            width=3,
            queries=(Query(f"sum({gauge('requests_running')})"),),
        ),
        Panel(
            title="Waiting",
            text="Requests in the queue.",
            unit="none",
            kind="stat",
            width=3,
            queries=(Query(f"sum({gauge('requests_waiting')})"),),
            limits=(1, 32),
        ),
        Panel(
            title="First token, p95",
            text="95 % of requests had their first token within this time of their arrival.",
            unit="s",
            kind="stat",
            width=3,
            queries=(Query(quantile(0.95, "time_to_first_token_seconds")),),
        ),
        Panel(
            title="KV cache in use",
            text="The fullest server's share of KV blocks in use. Near 1 requests wait, and then some are put back.",
            unit="percentunit",
            kind="stat",
            width=3,
            queries=(Query(f"max({gauge('kv_cache_usage_ratio')})"),),
            limits=(0.8, 0.95),
            most=1,
        ),
        Panel(
            title="Faults",
            text="Share of HTTP answers with a status of 500 or more.",
            unit="percentunit",
            kind="stat",
            width=3,
            queries=(
                Query(f"{rate('http_responses_total', where=_SERVER_FAULTS)} / ({rate('http_responses_total')} > 0)"),
            ),
            limits=(0.001, 0.01),
            most=1,
        ),
    ),
)

_THROUGHPUT = Row(
    "Throughput",
    (
        Panel(
            title="Output tokens a second",
            text="Tokens that became output, by server.",
            unit="none",
            queries=(Query(rate("generation_tokens_total", by="instance, model_name"), "{{instance}} {{model_name}}"),),
        ),
        Panel(
            title="Prompt tokens a second",
            text="Prompt tokens of admitted requests: found in the prefix cache, or computed.",
            unit="none",
            is_stacked=True,
            queries=(
                Query(f"{rate('prompt_tokens_total')} - {rate('cached_prompt_tokens_total')}", "computed"),
                Query(rate("cached_prompt_tokens_total"), "from the cache"),
            ),
        ),
        Panel(
            title="Requests ended a second",
            text="By how they ended: stop and length are good ends, abort is a client that left, error the engine.",
            unit="reqps",
            is_stacked=True,
            queries=(Query(rate("requests_total", by="finish_reason"), "{{finish_reason}}"),),
        ),
        Panel(
            title="Tokens a request",
            text="Mean prompt and output of the requests that ended by stop or length.",
            unit="none",
            queries=(
                Query(mean("request_prompt_tokens"), "prompt"),
                Query(mean("request_generation_tokens"), "output"),
            ),
        ),
    ),
)

_LATENCY = Row(
    "Latency",
    (
        Panel(
            title="Time to the first token",
            text="From a request's arrival to its first token: the queue, and the computation of the prompt.",
            unit="s",
            queries=_quantiles("time_to_first_token_seconds"),
        ),
        Panel(
            title="Inter-token latency",
            text=(
                "Observed once for every token: the time since the output before, divided by the tokens that the "
                "output brought. An accepted draft of three makes four observations of a quarter of its step, so the "
                "mean is what a reader of the text feels, with speculation and without it."
            ),
            unit="s",
            queries=(*_quantiles("inter_token_latency_seconds"), Query(mean("inter_token_latency_seconds"), "mean")),
        ),
        Panel(
            title="Inter-token latency, all of it",
            text="How many tokens came how fast. Drafts often make two bands: tokens that came in runs, and alone.",
            unit="s",
            kind="heatmap",
            queries=(Query(rate("inter_token_latency_seconds_bucket", by="le"), "{{le}}"),),
        ),
        Panel(
            title="Where a request's time goes",
            text="Means of the requests that ended by stop or length: waiting, reading the prompt, writing the answer.",
            unit="s",
            is_stacked=True,
            queries=tuple(Query(mean(f"request_{part}_seconds"), part) for part in ("queue", "prefill", "decode")),
        ),
        Panel(
            title="Duration of a request",
            text="From arrival to the last token, for requests that ended by stop or length.",
            unit="s",
            queries=_quantiles("request_duration_seconds"),
        ),
        Panel(
            title="Time an output token",
            text="Per request: its decode time divided by its tokens after the first output.",
            unit="s",
            queries=_quantiles("request_time_per_output_token_seconds"),
        ),
    ),
)

_LOAD = Row(
    "Load",
    (
        Panel(
            title="Queue",
            text="Requests in the batch, and requests that wait for room in it.",
            unit="none",
            queries=(
                Query(f"sum({gauge('requests_running')})", "running"),
                Query(f"sum({gauge('requests_waiting')})", "waiting"),
            ),
        ),
        Panel(
            title="KV cache in use",
            text="Share of the KV blocks that running requests hold. Blocks that only the prefix cache holds are free.",
            unit="percentunit",
            most=1,
            queries=(Query(gauge("kv_cache_usage_ratio"), "{{instance}}"),),
        ),
        Panel(
            title="Requests put back a second",
            text="Preemptions: running requests that lost their KV blocks to older ones and begin again later.",
            unit="none",
            queries=(Query(rate("preemptions_total", by="instance"), "{{instance}}"),),
        ),
        Panel(
            title="Prefix cache hits",
            text="Share of prompt tokens that were found in the prefix cache.",
            unit="percentunit",
            most=1,
            queries=(Query(ratio("cached_prompt_tokens_total", "prompt_tokens_total"), "hits"),),
        ),
        Panel(
            title="Memory",
            text="Main memory of the process. Weights and KV cache are part of it on a CPU and not on a GPU.",
            unit="bytes",
            queries=(
                Query(gauge("process_resident_memory_bytes"), "{{instance}} process"),
                Query(gauge("model_weights_bytes"), "{{instance}} weights"),
                Query(gauge("kv_cache_bytes"), "{{instance}} KV cache"),
            ),
        ),
        Panel(
            title="Rows a forward pass",
            text="Mean rows: prompt tokens, next tokens and drafted ones.",
            unit="none",
            queries=(Query(mean("step_rows"), "rows"),),
        ),
    ),
)

_ERRORS = Row(
    "Errors",
    (
        Panel(
            title="HTTP answers a second",
            text="By status; probes and scrapes are left out.",
            unit="reqps",
            is_stacked=True,
            queries=(Query(rate("http_responses_total", by="status"), "{{status}}"),),
        ),
        Panel(
            title="Requests refused a second",
            text="Before they began, by reason. queue_full means that clients are told to come back later.",
            unit="reqps",
            is_stacked=True,
            queries=(Query(rate("rejected_requests_total", by="reason"), "{{reason}}"),),
        ),
        Panel(
            title="Scrapes that worked",
            text="1 where Prometheus reaches the server.",
            unit="none",
            most=1,
            queries=(Query('up{job=~"$job", instance=~"$instance"}', "{{instance}}"),),
        ),
        Panel(
            title="Requests cut off a second",
            text="Accepted requests that the engine could not finish, and those whose client left.",
            unit="reqps",
            queries=(
                Query(
                    rate("requests_total", by="finish_reason", where='finish_reason=~"error|abort"'),
                    "{{finish_reason}}",
                ),
            ),
        ),
    ),
)

OVERVIEW = Dashboard(
    uid="draftahead-overview",
    title="Draftahead: overview",
    text="Throughput, latency, load and errors.",
    rows=(_NOW, _THROUGHPUT, _LATENCY, _LOAD, _ERRORS),
)
