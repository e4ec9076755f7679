"""What every route needs, put together once at start. Knows the engine's client side; runs nothing."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from engine.client import EngineClient
from engine.version import program_version
from server.errors import ModelNotFound, json_text
from server.metrics import ServerMetrics
from server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """One server's fixed facts.

    Attributes:
        model_names: the main name first.
        system_fingerprint: changes with the model's own name and size, number format, device, attention, and
            this version.
        created: unix seconds at which the model was ready.
    """

    engine: EngineClient
    settings: ServerSettings
    metrics: ServerMetrics
    model_names: tuple[str, ...]
    version: str
    system_fingerprint: str
    created: int

    def check_model(self, name: str) -> None:
        """Refuse a model that is not served here.

        Raises:
            ModelNotFound: with the names that would do.
        """
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise ModelNotFound(f"there is no model {json_text(name)} here, only {served}")


def open_reception(engine: EngineClient, settings: ServerSettings) -> Reception:
    """The reception of a started engine, with its metrics subscribed to the engine's steps."""
    info, version = engine.info, program_version()
    names = settings.served_model_names or (info.name,)
    metrics = ServerMetrics(
        info,
        model_name=names[0],
        version=version,
        is_healthy=lambda: engine.is_healthy,
        has_vllm_names=settings.metrics_names == "vllm",
    )
    engine.subscribe(metrics.observe_step)
    facts = "\n".join(
        (info.source, str(info.weights_bytes), info.dtype, info.quantization, info.device, info.attention, version)
    )
    return Reception(
        engine=engine,
        settings=settings,
        metrics=metrics,
        model_names=names,
        version=version,
        system_fingerprint=f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:10]}",
        created=int(time.time()),
    )


def _of_request(request: Request) -> Reception:
    return cast(Reception, request.app.state.reception)


CurrentReception = Annotated[Reception, Depends(_of_request)]
