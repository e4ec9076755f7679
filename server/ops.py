"""The routes that only look: models, health, metrics, version. Generates nothing."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from engine.errors import EngineUnavailable
from server.metric_registry import CONTENT_TYPE
from server.reception import CurrentReception, Reception

router = APIRouter()


class ModelCard(BaseModel):
    """One name of the served model. ``max_model_len`` is prompt plus output, in tokens."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """Every name of the served model, the main one first."""

    object: str
    data: list[ModelCard]


class Load(BaseModel):
    """Choices that are queued or generated now."""

    server_load: int


class Version(BaseModel):
    """The version of this program."""

    version: str


@router.get("/v1/models")
async def list_models(reception: CurrentReception) -> ModelList:
    """Every name that ``model`` may have."""
    return ModelList(object="list", data=[_card(name, reception) for name in reception.model_names])


@router.get("/v1/models/{name:path}")
async def get_model(name: str, reception: CurrentReception) -> ModelCard:
    """One of them."""
    reception.check_model(name)
    return _card(name, reception)


@router.api_route("/health", methods=["GET", "HEAD"], response_class=Response)
async def check_health(reception: CurrentReception) -> Response:
    """200 while the engine takes requests, 503 from then on."""
    if not reception.engine.is_healthy:
        raise EngineUnavailable("the engine takes no requests")
    return Response()


@router.api_route("/ping", methods=["GET", "POST"], response_class=Response)
async def ping(reception: CurrentReception) -> Response:
    """As ``/health``, by the name that some platforms ask."""
    return await check_health(reception)


@router.get("/load")
async def show_load(reception: CurrentReception) -> Load:
    """How busy the engine is."""
    return Load(server_load=reception.engine.num_in_flight)


@router.get("/metrics", response_class=PlainTextResponse)
async def expose_metrics(reception: CurrentReception) -> Response:
    """Prometheus' text format."""
    return Response(reception.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})


@router.get("/version")
async def show_version(reception: CurrentReception) -> Version:
    """The version of this program."""
    return Version(version=reception.version)


def _card(name: str, reception: Reception) -> ModelCard:
    return ModelCard(
        id=name,
        object="model",
        created=reception.created,
        owned_by="draftahead",
        max_model_len=reception.engine.info.max_model_len,
    )
