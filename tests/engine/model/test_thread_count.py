"""The number of threads that a trial finds fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.model.thread_count import choose_num_threads


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """Time passes as a function of the number of threads says, with a stall now and then."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self._now = 0.0
        self.seen: list[int] = []

    def clock(self) -> float:
        return self._now

    def run(self) -> None:
        self.seen.append(torch.get_num_threads())
        self._now += self._seconds(self.seen[-1]) + (10.0 if len(self.seen) % 5 == 0 else 0.0)


@pytest.mark.parametrize(
    ("seconds", "most", "best"),
    [
        (lambda n: 1 / n, 8, 8),
        (lambda n: 1 / min(n, 4), 8, 4),  # the memory gives no more
        (lambda n: 1.0 + n, 8, 1),
        (lambda n: 1 / n if n < 16 else 1.0, 16, 12),  # one core is somebody else's
        (lambda n: 1.0 - 0.01 * n, 2, 1),  # not worth a core
        (lambda n: 1.0, 1, 1),
    ],
)
def test_the_fastest(seconds: Callable[[int], float], most: int, best: int) -> None:
    machine = Machine(seconds)
    assert choose_num_threads(machine.run, most, clock=machine.clock) == best
    assert torch.get_num_threads() == best
    assert max(machine.seen) == most
    assert min(machine.seen) == 1
