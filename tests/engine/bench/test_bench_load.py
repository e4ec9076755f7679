from __future__ import annotations

import asyncio
from itertools import islice, pairwise
from statistics import fmean

import pytest

from engine.bench.load import Load, arrival_times, run_load


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)  # whoever is due begins
        self.now += seconds


class TestArrivals:
    def test_begin_at_once_and_keep_the_rate_in_the_mean(self) -> None:
        times = list(islice(arrival_times(4.0, seed="a"), 20_001))
        gaps = [after - before for before, after in pairwise(times)]
        assert times[0] == 0
        assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
        # of a Poisson process, a gap is longer than the mean in one case of e
        assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)

    def test_are_named_by_their_seed(self) -> None:
        first, same, other = (list(islice(arrival_times(4.0, seed=seed), 5)) for seed in "aab")
        assert first == same != other


class TestOpenLoop:
    async def test_requests_begin_when_due_however_many_are_in_flight(self) -> None:
        clock, begun, release = Clock(), [], asyncio.Event()

        async def run(item: int) -> None:
            begun.append(clock.now - 50)
            if len(begun) == 4:
                release.set()
            await release.wait()

        load = Load(None, 2.0)
        await run_load(load, range(4), run, arrival_seed="a", clock=lambda: clock.now, sleep=clock.sleep)
        assert begun == pytest.approx(list(islice(arrival_times(2.0, seed="a"), 4)))

    async def test_a_failure_ends_the_run_before_the_next_arrival(self) -> None:
        ended: list[int] = []

        async def run(item: int) -> None:
            if item == 1:
                raise ValueError("smoke")
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(item)

        with pytest.raises(ValueError, match="smoke"):
            await run_load(Load(None, 1000.0), [0, 1, *range(2, 10_000)], run, arrival_seed="a")
        assert 0 in ended
        assert len(ended) < 9_000


class TestClosedLoop:
    async def test_the_next_begins_when_one_ends(self) -> None:
        in_flight, most = 0, 0

        async def run(item: int) -> None:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0)
            in_flight -= 1

        await run_load(Load(3), range(10), run, arrival_seed="")
        assert (in_flight, most) == (0, 3)
