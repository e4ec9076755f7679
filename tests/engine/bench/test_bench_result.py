from __future__ import annotations

import pytest

from engine.bench.result import ChunkRun, Measurement, summarise
from engine.params import SpeculationMode
from engine.types import RequestMetrics, SpeculationStats


def chunk(mode: SpeculationMode, repeat: int, seconds: float, gaps: tuple[float, ...] = ()) -> ChunkRun:
    """One request with four tokens in two steps."""
    metrics = RequestMetrics(
        num_prompt_tokens=1,
        num_cached_tokens=0,
        num_output_tokens=4,
        num_steps=2,
        num_preemptions=0,
        speculation=SpeculationStats(4),
    )
    measurement = Measurement(prompt_id=1, token_ids=(5, 6, 7, 8), ttft=seconds / 2, token_gaps=gaps, metrics=metrics)
    return ChunkRun(task="qa", mode=mode, repeat=repeat, seconds=seconds, measurements=(measurement,))


def test_each_repeat_is_compared_with_itself() -> None:
    seconds = [(2.0, 1.0), (9.0, 3.0), (5.0, 4.0)]  # plain, speculative
    runs = [
        chunk(mode, repeat, pair[index])
        for repeat, pair in enumerate(seconds)
        for index, mode in enumerate((SpeculationMode.OFF, SpeculationMode.AUTO))
    ]
    speedup = summarise("qa", runs).speedup
    assert speedup.per_repeat == pytest.approx((2, 3, 1.25))
    assert (speedup.lowest, speedup.median, speedup.highest) == pytest.approx((1.25, 2, 3))


def test_percentiles_lie_between_neighbours() -> None:
    gaps = tuple(float(number) for number in range(100, 0, -1))
    runs = [chunk(SpeculationMode.OFF, 0, 1.0, gaps), chunk(SpeculationMode.AUTO, 0, 1.0, (0.25,))]
    row = summarise("qa", runs)
    assert (row.plain.itl_p50, row.plain.itl_p90, row.plain.itl_p99) == pytest.approx((50.5, 90.1, 99.01))
    assert (row.speculative.itl_p50, row.speculative.itl_p99) == (0.25, 0.25)


def test_ttft_is_the_median_and_steps_are_added_before_dividing() -> None:
    runs = [chunk(SpeculationMode.OFF, repeat, seconds) for repeat, seconds in enumerate((1.0, 2.0, 9.0))]
    runs += [chunk(SpeculationMode.AUTO, repeat, 1.0) for repeat in range(3)]
    plain = summarise("qa", runs).plain
    assert plain.ttft_p50 == 1
    assert plain.tokens_per_step == 12 / 6
    assert plain.tokens_per_second == 1
