"""The application: routes, error shape and the engine's life around it. Builds no engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from engine.client import EngineClient
from server import chat, completions, ops
from server.errors import install_error_handlers
from server.reception import open_reception
from server.settings import ServerSettings


def create_app(engine: EngineClient, settings: ServerSettings) -> FastAPI:
    """The HTTP server of ``engine``, which starts and stops with the application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        await engine.start()
        try:
            app.state.reception = open_reception(engine, settings)
            yield
        finally:
            await engine.stop()

    # No generated schema: bodies are read by the routes themselves, so it would describe none of them.
    app = FastAPI(title="Draftahead", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.include_router(completions.router)
    app.include_router(chat.router)
    app.include_router(ops.router)
    install_error_handlers(app)
    return app
