from __future__ import annotations

from typing import Any

import pytest

from engine.bench.load import Load
from engine.bench.measurement import BenchMode, ChunkRun, DraftCounts, Measurement, StepTimes
from engine.bench.result import Percentiles
from engine.bench.summary import summarise, summarise_load


def chunk(
    mode: BenchMode,
    repeat: int,
    seconds: float,
    gaps: tuple[float, ...] = (),
    *,
    step_times: StepTimes | None = None,
    **fields: Any,
) -> ChunkRun:
    """One request with four tokens in two steps."""
    known = {"output": (5, 6, 7, 8), "num_steps": 2, "drafts": DraftCounts(0, 0, 0), **fields}
    measurement = Measurement(prompt_id=1, num_tokens=4, ttft=seconds / 2, token_gaps=gaps, **known)
    return ChunkRun(
        task="qa", mode=mode, repeat=repeat, seconds=seconds, measurements=(measurement,), step_times=step_times
    )


def test_each_repeat_is_compared_with_itself() -> None:
    seconds = [(2.0, 1.0), (9.0, 3.0), (5.0, 4.0)]  # plain, speculative
    runs = [
        chunk(mode, repeat, pair[index])
        for repeat, pair in enumerate(seconds)
        for index, mode in enumerate((BenchMode.PLAIN, BenchMode.SPECULATIVE))
    ]
    speedup = summarise("qa", runs).speedup
    assert speedup is not None
    assert speedup.per_repeat == pytest.approx((2, 3, 1.25))
    assert (speedup.lowest, speedup.median, speedup.highest) == pytest.approx((1.25, 2, 3))


def test_percentiles_lie_between_neighbours() -> None:
    gaps = tuple(float(number) for number in range(100, 0, -1))
    runs = [chunk(BenchMode.PLAIN, 0, 1.0, gaps), chunk(BenchMode.SPECULATIVE, 0, 1.0, (0.25,))]
    modes = summarise("qa", runs).modes
    assert modes[BenchMode.PLAIN].itl == Percentiles(*(pytest.approx(value) for value in (50.5, 90.1, 99.01)))
    assert modes[BenchMode.SPECULATIVE].itl == Percentiles(0.25, 0.25, 0.25)
    percentiles = summarise_load(Load(1), (), runs).itl_percentiles[BenchMode.PLAIN]
    assert len(percentiles) == 99
    assert percentiles[49] == pytest.approx(50.5)


def test_ttft_has_percentiles_and_steps_are_added_before_dividing() -> None:
    runs = [chunk(BenchMode.PLAIN, repeat, seconds) for repeat, seconds in enumerate((1.0, 2.0, 9.0))]
    runs += [chunk(BenchMode.SPECULATIVE, repeat, 1.0) for repeat in range(3)]
    plain = summarise("qa", runs).modes[BenchMode.PLAIN]
    assert plain.ttft == Percentiles(*(pytest.approx(value) for value in (1, 3.8, 4.43)))
    assert plain.tokens_per_step == 12 / 6
    assert plain.tokens_per_second == 1


def test_the_split_is_of_all_steps_together() -> None:
    times = [StepTimes(1, (0.0, 0.0, 1.0, 0.0, 0.0)), StepTimes(3, (0.5, 0.0, 2.0, 0.25, 0.25))]
    runs = [chunk(BenchMode.PLAIN, repeat, 1.0, step_times=entry) for repeat, entry in enumerate(times)]
    split = summarise("qa", runs).modes[BenchMode.PLAIN].step_split
    assert split is not None
    assert (split.num_steps, split.seconds_per_step) == (4, 1.0)
    assert split.shares == {"schedule": 0.125, "propose": 0, "forward": 0.75, "verify": 0.0625, "commit": 0.0625}
    idle = chunk(BenchMode.PLAIN, 0, 1.0, step_times=StepTimes(0, (0.0,) * 5))
    assert summarise("qa", [idle]).modes[BenchMode.PLAIN].step_split is None


def test_what_is_not_told_has_no_figure() -> None:
    silent = {"num_steps": None, "drafts": None, "output": "a text"}
    row = summarise("qa", [chunk(BenchMode.AS_SERVED, 0, 2.0, **silent)])
    assert (row.speedup, row.num_identical) == (None, None)
    mode = row.modes[BenchMode.AS_SERVED]
    assert (mode.tokens_per_second, mode.step_split, mode.tokens_per_step) == (2, None, None)
    assert (mode.mean_acceptance_length, mode.acceptance_rate, mode.num_drafts) == (None, None, None)


def test_one_mode_in_several_repeats_is_compared_with_itself() -> None:
    texts = ("a", "a", "b")
    runs = [chunk(BenchMode.AS_SERVED, repeat, 1.0, output=text) for repeat, text in enumerate(texts)]
    assert summarise("qa", runs[:2]).num_identical == 1
    assert summarise("qa", runs).differing_prompt_ids == (1,)


def test_a_mode_without_a_token_gives_no_speed_up() -> None:
    runs = [chunk(mode, 0, 1.0) for mode in (BenchMode.PLAIN, BenchMode.SPECULATIVE)]
    silent = Measurement(prompt_id=1, output="", num_tokens=0, ttft=1.0, token_gaps=())
    runs[0] = ChunkRun(task="qa", mode=BenchMode.PLAIN, repeat=0, seconds=1.0, measurements=(silent,))
    assert summarise("qa", runs).speedup is None
