"""Chances beside what came of them."""

from __future__ import annotations

import random

import pytest

from engine.speculation.calibration import Calibration


def error_of(*, said: float, true: float) -> float:
    calibration, rng = Calibration(), random.Random(2)
    for _ in range(3000):
        calibration.observe([said], int(rng.random() < true))
    error = calibration.error
    assert error is not None
    return error


def test_nothing_is_known_at_first() -> None:
    assert Calibration().error is None
    empty = Calibration()
    empty.observe([], 0)
    assert empty.error is None


@pytest.mark.parametrize(("said", "true"), [(0.7, 0.7), (0.9, 0.3), (0.2, 0.8)])
def test_it_is_how_far_chances_are_off(said: float, true: float) -> None:
    assert error_of(said=said, true=true) == pytest.approx(abs(said - true), abs=0.05)


def test_errors_to_either_side_do_not_cancel_out() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.observe([0.95], 0)
        calibration.observe([0.05], 1)
    assert calibration.error == pytest.approx(0.95, abs=0.01)


def test_what_was_true_long_ago_fades() -> None:
    calibration = Calibration()
    for right in (0, 1):
        for _ in range(3000):
            calibration.observe([0.99], right)
    assert calibration.error == pytest.approx(0.01, abs=0.01)


def test_tokens_behind_a_rejected_one_are_rejected_too() -> None:
    calibration = Calibration()
    calibration.observe([0.9, 0.5, 0.1], 1)
    assert calibration.error == pytest.approx((0.1 + 0.5 + 0.1) / 3, rel=0.01)


def test_a_rare_chance_that_is_far_off_weighs_little() -> None:
    """Each token counts as much, however many have the same chance."""
    calibration, rng = Calibration(), random.Random(4)
    for number in range(5000):
        if number % 100:
            calibration.observe([0.95], int(rng.random() < 0.95))
        else:
            calibration.observe([0.35], 0)
    assert calibration.error == pytest.approx(0.0035, abs=0.02)
