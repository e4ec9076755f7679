from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.server.harness import serve


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncGenerator[httpx.AsyncClient]:
    async with serve(engine) as served:
        yield served
