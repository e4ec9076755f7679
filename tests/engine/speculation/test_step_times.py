"""The price list: what was measured, straight lines between, and never less for more."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.step_times import StepTimes


def test_measured_times_and_lines_between_them() -> None:
    times = StepTimes({1: 10.0, 4: 10.0, 8: 14.0})
    assert times.predict(1, 9) == pytest.approx([10, 10, 10, 10, 11, 12, 13, 14, 15.75, 17.5])
    assert times.predict(6, 0) == [12]


def test_more_rows_never_take_less() -> None:
    assert StepTimes({1: 10.0, 2: 8.0, 4: 12.0}).predict(1, 3) == pytest.approx([10, 10, 11, 12])


def test_one_time_is_no_comparison() -> None:
    times = StepTimes()
    assert not times.is_known
    times.observe(1, 0.01)
    times.observe(1, 0.01)
    assert not times.is_known
    times.observe(8, 0.02)
    assert times.is_known


def test_it_follows_the_machine_and_not_a_hiccup() -> None:
    times = StepTimes({1: 10.0, 8: 20.0})
    for _ in range(100):
        times.observe(1, 12.0)
        times.observe(1, 500.0)
    assert times.predict(1, 0)[0] == pytest.approx(12.0, abs=0.1)


def test_what_takes_long_every_time_is_no_hiccup() -> None:
    times = StepTimes({1: 10.0, 8: 20.0})
    for _ in range(100):
        times.observe(8, 100.0)
    assert times.predict(8)[0] == pytest.approx(100.0)
    assert times.predict(1)[0] == pytest.approx(10.0)


def test_a_late_step_is_behind_nearly_all() -> None:
    rng, times = random.Random(3), StepTimes({1: 10.0, 8: 20.0})
    steps = [10.0 * rng.gauss(1, 0.05) for _ in range(2000)]
    for seconds in steps:
        times.observe(1, seconds)
    late = times.late(times.predict(1)[0])
    assert 0.95 < sum(seconds <= late for seconds in steps) / len(steps) < 1


@given(
    st.dictionaries(st.integers(1, 5000), st.floats(1e-3, 1e3), min_size=1, max_size=12),
    st.integers(1, 4000),
    st.integers(0, 300),
)
def test_any_table_gives_a_price_for_everything(profile: dict[int, float], num_rows: int, num_more: int) -> None:
    prices = StepTimes(profile).predict(num_rows, num_more)
    assert len(prices) == num_more + 1
    assert all(0 < low <= high * (1 + 1e-9) for low, high in pairwise(prices))
