"""An ``AsyncEngine`` over a scripted core, whose steps a test can hold, let through one by one, or break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.async_engine import AsyncEngine
from engine.client import GenerateRequest
from engine.params import SamplingParams, SpeculationParams
from engine.scheduling.scheduler import ScheduledBatch
from engine.step_stats import StepStats
from engine.tokenizer import Tokenizer
from engine.types import Draft, ModelInfo, RequestOutput
from tests.drafters import RandomDrafter
from tests.scripted import VOCAB_SIZE, ScriptedEngine, ScriptedRunner

MAX_MODEL_LEN = 64


def byte_tokenizer() -> Tokenizer:
    """Token ``i`` is the byte ``i``. The chat template gives the contents, a line each, and a question mark."""
    vocabulary = {char: byte for byte, char in bytes_to_unicode().items()}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    template = (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}{{ mark or '?' }}{% endif %}"
    )
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template))


class Gate:
    """Stands in the forward of the engine thread."""

    def __init__(self, runner: ScriptedRunner) -> None:
        self._forward = runner.forward
        self._is_open = True
        self._permits = threading.Semaphore(0)
        self._entered = threading.Event()
        self.error: BaseException | None = None
        runner.forward = self.forward  # type: ignore[method-assign]

    def close(self) -> None:
        self._entered.clear()
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._permits.release()

    async def let_one_through(self) -> None:
        """One step, and wait until the engine thread stands in the next."""
        self._entered.clear()
        self._permits.release()
        await self.until_someone_is_inside()

    async def until_someone_is_inside(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, 10)

    def forward(self, batch: ScheduledBatch, drafts: Sequence[Draft]) -> Any:
        self._entered.set()
        assert self._is_open or self._permits.acquire(timeout=10)
        if self.error is not None:
            raise self.error
        return self._forward(batch, drafts)


class House:
    """A running engine with its parts in reach."""

    def __init__(self, engine: AsyncEngine, scripted: ScriptedEngine, gate: Gate) -> None:
        self.engine = engine
        self.scripted = scripted
        self.gate = gate
        self.steps: list[StepStats] = []
        engine.subscribe(self.steps.append)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*, max_num_requests: int = 100, drafter_name: str = "suffix", **options: Any) -> AsyncIterator[House]:
    scripted = ScriptedEngine(**({"drafter": RandomDrafter(VOCAB_SIZE)} | options))
    info = ModelInfo(
        name="scripted",
        source="scripted",
        quantization="none",
        attention="none",
        device="cpu",
        dtype="none",
        vocab_size=256,
        max_model_len=MAX_MODEL_LEN,
        weights_bytes=0,
        kv_cache_bytes=0,
        num_kv_tokens=252,
        drafter=drafter_name,
        drafters=(drafter_name,),
        num_speculative_tokens=4,
        num_threads=1,
    )
    engine = AsyncEngine(scripted.core, byte_tokenizer(), info, max_num_requests=max_num_requests)
    house = House(engine, scripted, Gate(scripted.runner))
    await engine.start()
    try:
        yield house
    finally:
        house.gate.open()
        await engine.stop()


def request_for(
    name: str = "a",
    prompt: str | tuple[int, ...] = (1, 2, 3),
    speculation: SpeculationParams | None = None,
    **params: Any,
) -> GenerateRequest:
    options: dict[str, Any] = {"seed": 0, "temperature": 0.0, "max_tokens": 20, "ignore_eos": True} | params
    return GenerateRequest(
        request_id=name,
        prompt=prompt,
        params=SamplingParams(**options),
        speculation=speculation or SpeculationParams(),
    )


async def collect(stream: Any) -> list[RequestOutput]:
    async with asyncio.timeout(20):
        return [output async for output in stream]
