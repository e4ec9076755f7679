"""What a benchmark run may be asked. Knows the bounds of each option; refuses to know engines and files."""

from __future__ import annotations

from dataclasses import dataclass

from engine.bench.prompts import TASKS
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to measure.

    Attributes:
        tasks: which tasks to run, from ``TASKS``.
        limit_per_task: most prompts of each task; None takes all.
        max_tokens: most output tokens of a request; it ends earlier at the model's end token.
        concurrency: requests in flight.
        repeats: how often everything is measured.
        temperature: 0 is greedy.
        seed: names the noise of every request where the temperature is not 0.
        num_warmup: prompts run in both modes before anything is counted, though never fewer than
            ``concurrency``; 0 is no warm-up.
    """

    tasks: tuple[str, ...] = TASKS
    limit_per_task: int | None = None
    max_tokens: int = 128
    concurrency: int = 1
    repeats: int = 1
    temperature: float = 0.0
    seed: int = 0
    num_warmup: int = 2

    def __post_init__(self) -> None:
        unknown = [task for task in self.tasks if task not in TASKS]
        if unknown or not self.tasks:
            raise ConfigError(f"tasks must be some of {', '.join(TASKS)}, not {', '.join(unknown) or 'none'}")
        for name, least in (("max_tokens", 1), ("concurrency", 1), ("repeats", 1), ("num_warmup", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.limit_per_task is not None and self.limit_per_task < 1:
            raise ConfigError(f"limit_per_task must be at least 1, not {self.limit_per_task}")
        if not 0 <= self.temperature <= 2:  # refuses NaN too
            raise ConfigError(f"temperature must lie between 0 and 2, not {self.temperature}")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed must be an integer of 64 bits, not {self.seed}")
