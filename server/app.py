"""The application: routes, error shape and the engine's life around it. Builds no engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from engine.client import EngineClient
from engine.version import program_version
from server import chat, completions, ops, playground, tokens
from server.errors import install_error_handlers
from server.guard import REQUEST_ID, Guard
from server.openapi import describe
from server.reception import open_reception
from server.response_count import ResponseCount
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

    # No pages of documentation: they would load scripts from elsewhere.
    app = FastAPI(
        title="Draftahead",
        version=program_version(),
        description="OpenAI's completions and chat completions by exact speculative decoding.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    app.include_router(completions.router)
    app.include_router(chat.router)
    app.include_router(tokens.router)
    app.include_router(ops.router)
    app.include_router(playground.router)
    install_error_handlers(app)
    app.add_middleware(Guard, api_keys=settings.api_keys)
    app.add_middleware(ResponseCount)
    if settings.allowed_origins:
        # The outermost, so that a page may also read why it was refused.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "Retry-After"],
        )
    return app
