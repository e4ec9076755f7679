"""A simulation from beginning to end: the machine's table, the recorded requests, the runs, a table of them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from importlib import resources
from pathlib import Path

from rich.table import Table

from engine.bench.recorded_load import RecordedRequest, recorded_requests
from engine.bench.simulate import policies, simulate
from engine.bench.simulation_table import simulation_table
from engine.bench.step_tables import step_times
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.speculation.trace import read_trace

FIXED_LENGTHS = (1, 3, 7)
DEFAULT_STREAMS = (1, 32, 256)
_BUILT_IN = resources.files("engine.bench") / "data" / "drafts.jsonl.gz"


def run_simulation(
    config: EngineConfig,
    progress: Callable[[str, float], None],
    *,
    machine: str,
    trace: Path | None,
    stream_counts: Seq[int],
) -> Table:
    """
    Args:
        config: its ``num_speculative_tokens`` and ``itl_slo_ms`` are the controller's.
        machine: see ``step_times``.
        trace: requests recorded with fixed draft lengths; None is a recording of the built-in prompts.

    Raises:
        ConfigError: as what it calls does, or a number of streams is below 1.
    """
    for number in stream_counts:
        if number < 1:
            raise ConfigError(f"concurrency must be at least 1, not {number}")
    times = step_times(machine)
    requests = built_in_requests() if trace is None else recorded_requests(read_trace(trace))
    chosen = policies(FIXED_LENGTHS, longest_draft=config.num_speculative_tokens, itl_slo=config.itl_slo)
    runs = []
    for run in simulate(times, requests, chosen, stream_counts):
        runs.append(run)
        progress("simulating", len(runs) / (len(chosen) * len(stream_counts)))
    return simulation_table(runs, machine=machine)


def built_in_requests() -> list[RecordedRequest]:
    """The built-in prompts as the default model answered them, drafted by ``suffix`` with the fixed length 8."""
    with resources.as_file(_BUILT_IN) as path:
        return recorded_requests(read_trace(path))
