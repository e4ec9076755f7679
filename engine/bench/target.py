"""What can be measured, as the benchmark sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.bench.measurement import BenchMode, Measurement, StepTimes
from engine.bench.options import Endpoint
from engine.bench.prompts import BenchPrompt
from engine.types import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """A server that is measured over HTTP.

    Attributes:
        model: what it calls the model.
        is_draftahead: whether its speculation can be switched off for a request.
    """

    url: str
    model: str
    endpoint: Endpoint
    is_draftahead: bool


class Target(Protocol):
    """One thing that answers prompts, and that nobody else is using meanwhile."""

    @property
    def info(self) -> ModelInfo | ServerInfo: ...

    @property
    def modes(self) -> tuple[BenchMode, ...]:
        """The modes it can run, one or two."""

    @property
    def uses_chat_template(self) -> bool:
        """False if at least one prompt goes to the model as bare text. Known once it is prepared."""

    async def prepare(self, prompts: Sequence[BenchPrompt]) -> None:
        """Make ready to be asked ``prompts``.

        Raises:
            ConfigError: a prompt cannot be run as asked.
        """

    async def measure(self, prompt: BenchPrompt, mode: BenchMode) -> Measurement:
        """Answer one prompt.

        Raises:
            DraftaheadError: it ended without its whole output; names the prompt.
        """

    def take_step_times(self) -> StepTimes | None:
        """The steps since this was last asked; None if it does not tell."""

    def peak_rss_mib(self) -> float | None:
        """Most memory that its process has held at once, in MiB; None if it does not tell."""
