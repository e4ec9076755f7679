"""What a benchmark run may be asked. Knows the bounds of each option; refuses to know engines and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from engine.bench.load import Load
from engine.bench.prompts import TASKS
from engine.errors import ConfigError

Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to measure.

    Attributes:
        tasks: which tasks to run, from ``TASKS``.
        limit_per_task: most prompts of each task; None takes all.
        max_tokens: most output tokens of a request; it ends earlier at the model's end token unless ``ignore_eos``.
        ignore_eos: goes on after the end token, so that every output has ``max_tokens``.
        concurrency: numbers of requests in flight, each measured by itself; None is one at a time, or no bound
            where there is a ``request_rate``.
        request_rate: requests that begin each second in the mean, as a Poisson process named by ``seed``; None
            begins a request when one ends.
        repeats: how often everything is measured.
        temperature: 0 is greedy.
        seed: names the noise of every request where the temperature is not 0.
        num_warmup: prompts run in each mode before anything is counted, though never fewer than requests in
            flight; 0 is no warm-up.
    """

    tasks: tuple[str, ...] = TASKS
    limit_per_task: int | None = None
    max_tokens: int = 128
    ignore_eos: bool = False
    concurrency: tuple[int, ...] | None = None
    request_rate: float | None = None
    repeats: int = 1
    temperature: float = 0.0
    seed: int = 0
    num_warmup: int = 2

    def __post_init__(self) -> None:
        unknown = [task for task in self.tasks if task not in TASKS]
        if unknown or not self.tasks:
            raise ConfigError(f"tasks must be some of {', '.join(TASKS)}, not {', '.join(unknown) or 'none'}")
        for name, least in (("max_tokens", 1), ("repeats", 1), ("num_warmup", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.limit_per_task is not None and self.limit_per_task < 1:
            raise ConfigError(f"limit_per_task must be at least 1, not {self.limit_per_task}")
        self._check_load()
        if not 0 <= self.temperature <= 2:  # refuses NaN too
            raise ConfigError(f"temperature must lie between 0 and 2, not {self.temperature}")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed must be an integer of 64 bits, not {self.seed}")

    @property
    def loads(self) -> tuple[Load, ...]:
        """What is measured, one after the other."""
        if self.request_rate is not None:
            return (Load(None, self.request_rate),)
        return tuple(Load(number) for number in self.concurrency or (1,))

    def _check_load(self) -> None:
        if self.concurrency is not None:
            for number in self.concurrency or (0,):
                if number < 1:
                    raise ConfigError(f"concurrency must be at least 1, not {number}")
            if len(set(self.concurrency)) < len(self.concurrency):
                raise ConfigError(f"concurrency names a number twice: {' '.join(map(str, self.concurrency))}")
        if self.request_rate is None:
            return
        if not 0 < self.request_rate < float("inf"):  # refuses NaN too
            raise ConfigError(f"request_rate must be a number above 0, not {self.request_rate}")
        if self.concurrency is not None:
            raise ConfigError("request_rate leaves the number of requests in flight open: give no concurrency with it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which server to measure over HTTP.

    Attributes:
        url: where it listens, with or without ``/v1`` at the end.
        served_model: what it calls the model; None takes the first that it lists.
        endpoint: where prompts go: as bare text to ``/v1/completions``, or as a message to ``/v1/chat/completions``.
    """

    url: str
    served_model: str | None = None
    endpoint: Endpoint = "completions"

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, an address with half a bracket
            is_usable = False
        if not is_usable or parts.query or parts.fragment:
            raise ConfigError(f"url must look like http://host:port, not {self.url!r}")

    @property
    def base_url(self) -> str:
        """Without ``/v1`` and the last slash."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")
