"""The speed-up that a server measures while it serves."""

from __future__ import annotations

import random

import pytest

from engine.speculation.live_speedup import LiveSpeedup


def test_nothing_is_known_at_first() -> None:
    speedup = LiveSpeedup()
    assert speedup.speedup is None
    for _ in range(20):
        speedup.observe_drafted(1, 2, 0.01)
    assert speedup.speedup is None, "no plain step to compare with"


def test_a_plain_step_is_asked_for_when_there_has_been_none_for_long() -> None:
    speedup = LiveSpeedup()
    wanted = []
    for _ in range(200):
        wanted.append(speedup.wants_plain(4))
        if wanted[-1]:
            speedup.observe_plain(4, 0.01)
        else:
            speedup.observe_drafted(4, 8, 0.01)
    assert [number for number, wants in enumerate(wanted) if wants] == [64, 129, 194]


def test_loads_are_compared_with_themselves() -> None:
    """Sixteen streams take longer steps than one; that is not what drafts do."""
    speedup = LiveSpeedup()
    for _ in range(30):
        speedup.observe_plain(1, 0.01)
        speedup.observe_drafted(1, 3, 0.015)
        speedup.observe_plain(16, 0.1)
        speedup.observe_drafted(16, 32, 0.1)
    measured = speedup.speedup
    assert measured is not None
    assert measured.ratio == pytest.approx(2.0)
    assert measured.error == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("true", [0.8, 1.0, 1.7])
def test_the_error_is_as_large_as_it_says(true: float) -> None:
    """Of many servers with noisy steps two thirds are within one error of the truth, and nearly all within three."""
    rng = random.Random(5)
    distances = []
    for _ in range(200):
        speedup = LiveSpeedup()
        for step in range(400):
            if step % 4 == 0:
                speedup.observe_plain(1, 0.01 * rng.uniform(0.7, 1.3))
            else:
                tokens = rng.choice((1, 1, 2, 4))
                speedup.observe_drafted(1, tokens, 0.01 * rng.uniform(1.4, 2.6) / true)
        measured = speedup.speedup
        assert measured is not None
        distances.append(abs(measured.ratio - true) / measured.error)
    assert 0.5 < sum(distance < 1 for distance in distances) / 200 < 0.85
    assert sum(distance < 3 for distance in distances) / 200 > 0.97


def test_a_load_that_is_gone_counts_no_more() -> None:
    speedup = LiveSpeedup()
    for streams, tokens, number in ((1, 2, 500), (32, 29, 3000)):
        for _ in range(number):
            speedup.observe_plain(streams, 0.01)
            speedup.observe_drafted(streams, tokens, 0.01)
    measured = speedup.speedup
    assert measured is not None
    assert measured.ratio == pytest.approx(29 / 32, abs=0.01)


def test_a_plain_step_that_cannot_be_compared_is_not_repeated_at_once() -> None:
    speedup = LiveSpeedup()
    for _ in range(64):
        speedup.observe_drafted(2, 3, 0.01)
    assert speedup.wants_plain(2)
    speedup.forgo_plain(2)
    assert not speedup.wants_plain(2)
