"""Times of steps on machines that are not here: named ones, computed, and files, measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from engine.speculation.step_times import ROW_COUNTS, StepTimes


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step takes as long as reading the weights, or as computing its rows, whichever is longer.

    Attributes:
        num_parameters: of the model; 16 bits each.
        bandwidth: bytes a second of the memory, as far as it can be had.
        flops: operations a second, as far as they can be had.
    """

    num_parameters: float
    bandwidth: float
    flops: float

    def seconds(self, num_rows: int) -> float:
        reading = 2 * self.num_parameters / self.bandwidth
        return max(reading, 2 * self.num_parameters * num_rows / self.flops)


# The data sheet's 4.8 TB/s and 989 TFLOP/s, of which kernels reach about 70 and 65 %.
_MACHINES = {"h200-8b": Roofline(num_parameters=8e9, bandwidth=0.7 * 4.8e12, flops=0.65 * 989e12)}


def step_times(name: str) -> dict[int, float]:
    """Seconds by number of rows.

    Args:
        name: ``h200-8b``, or a JSON file with an object of seconds by rows, such as ``{"1": 0.010, "16": 0.014}``.

    Raises:
        ConfigError: there is no such name and no such file, or the file holds something else.
    """
    if name in _MACHINES:
        return {num_rows: _MACHINES[name].seconds(num_rows) for num_rows in ROW_COUNTS}
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
        times = {int(num_rows): float(seconds) for num_rows, seconds in content.items()}
    except OSError as error:
        known = ", ".join(_MACHINES)
        raise ConfigError(f"step_times {name!r} is none of {known}, and no file: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"step_times {name} is no JSON object of seconds by rows: {error}") from error
    if not StepTimes(times).is_known or any(
        num_rows < 1 or not 0 < each < float("inf") for num_rows, each in times.items()
    ):
        raise ConfigError(
            f"step_times {name} must have seconds above 0, for numbers of rows from 1 on, two of them well apart"
        )
    return times
