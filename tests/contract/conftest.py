"""The whole server on a small model in float32, in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager

import httpx
import pytest
from transformers import PreTrainedModel

from engine.async_engine import AsyncEngine
from engine.speculation.drafter import Drafter
from engine.speculation.suffix import SuffixDrafter
from tests.contract.field import TOKENIZER
from tests.drafters import KnowingDrafter, auto
from tests.fakes import fake_info
from tests.server.harness import serve
from tests.tiny import build_core, one_thread, stable_llama


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(steady: None) -> PreTrainedModel:
    return stable_llama(vocab_size=400, sharpness=0.05)


@pytest.fixture
async def client(model: PreTrainedModel) -> AsyncGenerator[httpx.AsyncClient]:
    """A server that drafts as the real one does."""
    drafter = auto(SuffixDrafter(min_match_length=1, min_survival=0.0))
    async with _serve_tiny(model, drafter) as client:
        yield client


@pytest.fixture
def oracle() -> KnowingDrafter:
    """Drafts for ``foreseen``; a test tells it what will be said."""
    return KnowingDrafter()


@pytest.fixture
async def foreseen(model: PreTrainedModel, oracle: KnowingDrafter) -> AsyncGenerator[httpx.AsyncClient]:
    """A server whose drafts are all accepted."""
    async with _serve_tiny(model, oracle) as client:
        yield client


def _serve_tiny(model: PreTrainedModel, drafter: Drafter) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    info = fake_info(vocab_size=400, max_model_len=128, num_kv_tokens=1020, num_speculative_tokens=6)
    engine = AsyncEngine(build_core(model, drafter=drafter), TOKENIZER, info, max_num_requests=64)
    return serve(engine, served_model_names=("tiny", "alias"))
