"""An engine that keeps a clock instead of computing: every step costs what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.bench.engine_target import EngineTarget
from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt
from engine.bench.result import BenchResult
from engine.bench.run import BenchProgress, BenchTime, run_bench
from engine.client import GenerateRequest
from engine.errors import InvalidRequest
from engine.params import SpeculationMode
from engine.step_stats import StepStats
from engine.types import FinishReason, ModelInfo, RequestMetrics, RequestOutput, SpeculationStats

PREFILL_SECONDS = 0.1
PLAIN_STEP_SECONDS = 0.01
SPECULATIVE_STEP_SECONDS = 0.016
NUM_DRAFTED, NUM_ACCEPTED = 4, 3


@dataclass
class FakeClient:
    """Answers every prompt with ``num_output_tokens`` tokens: the first by prefill, then one a step, or four.

    Attributes:
        slowdown_per_request: added to the pace of each request; 0.05 makes the third take 10 % longer.
        differing: prompt texts that get another last token with speculation on.
        failing: prompt texts that end with an error after their first token.
        crowd_differs: whether a request gets another first token if it was not alone when it began.
    """

    num_output_tokens: int = 9
    speculative_step_seconds: float = SPECULATIVE_STEP_SECONDS
    slowdown_per_request: float = 0.0
    has_template: bool = True
    num_cached_tokens: int = 0
    max_model_len: int = 2048
    differing: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    crowd_differs: bool = False
    now: float = 1000.0
    requests: list[GenerateRequest] = field(default_factory=list)
    in_flight: dict[str, GenerateRequest] = field(default_factory=dict)
    max_in_flight: int = 0
    modes_met: set[frozenset[SpeculationMode]] = field(default_factory=set)
    sleeps: list[float] = field(default_factory=list)
    listeners: list[Callable[[StepStats], None]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="fake",
            source="fake",
            quantization="none",
            attention="none",
            device="cpu",
            dtype="float32",
            vocab_size=100,
            max_model_len=self.max_model_len,
            weights_bytes=0,
            kv_cache_bytes=0,
            num_kv_tokens=0,
            drafter="suffix",
            num_speculative_tokens=NUM_DRAFTED,
            num_threads=2,
        )

    @property
    def is_healthy(self) -> bool:
        return True

    def drain(self) -> None:
        raise NotImplementedError

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def submit(self, request: GenerateRequest) -> FakeStream:
        self.requests.append(request)
        self.in_flight[request.request_id] = request
        self.max_in_flight = max(self.max_in_flight, len(self.in_flight))
        self.modes_met.add(frozenset(other.speculation.mode for other in self.in_flight.values()))
        return FakeStream(self, request, pace=1 + self.slowdown_per_request * (len(self.requests) - 1))

    async def encode(self, prompt: str | tuple[int, ...]) -> list[int]:
        return list(range(len(prompt)))

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        if not self.has_template:
            raise InvalidRequest("the model has no chat template", param="messages")
        return f"<user>{messages[0]['content']}<assistant>"

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def token_text(self, token_id: int) -> str:
        return str(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return str(token_id).encode()

    def subscribe(self, on_step: Callable[[StepStats], None]) -> None:
        self.listeners.append(on_step)


async def run(
    client: FakeClient,
    prompts: Sequence[BenchPrompt],
    on_progress: Callable[[BenchProgress], None] = lambda state: None,
    **options: Any,
) -> BenchResult:
    """Measure ``client`` by its own clock, without a warm-up unless ``options`` ask for one."""
    fields = {"tasks": ("chat", "maths"), "num_warmup": 0, **options}
    bench_options = BenchOptions(**fields)
    target = EngineTarget(client, bench_options, clock=client.clock)
    return await run_bench(
        target, prompts, bench_options, on_progress, bench_time=BenchTime(client.clock, client.sleep)
    )


class FakeStream:
    prompt_token_ids: Sequence[int] = ()

    def __init__(self, client: FakeClient, request: GenerateRequest, *, pace: float) -> None:
        self._client = client
        self._request = request
        self._pace = pace
        self._text = str(request.prompt).removeprefix("<user>").removesuffix("<assistant>")

    async def aclose(self) -> None:
        self._client.in_flight.pop(self._request.request_id, None)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        client = self._client
        is_plain = self._request.speculation.mode is SpeculationMode.OFF
        step_seconds = PLAIN_STEP_SECONDS if is_plain else client.speculative_step_seconds
        num_tokens = min(client.num_output_tokens, self._request.params.max_tokens)
        tokens = list(range(num_tokens))
        if not is_plain and self._text in client.differing:
            tokens[-1] += 1
        await asyncio.sleep(0)  # the others begin too
        if client.crowd_differs and len(client.in_flight) > 1:
            tokens[0] += 1
        await self._step(PREFILL_SECONDS)
        yield RequestOutput(self._request.request_id, token_ids=tokens[:1], time=client.now)
        if self._text in client.failing:
            yield RequestOutput("", finish_reason=FinishReason.ERROR, error="the forward went up in smoke")
            return
        stats, num_steps, num_sent = SpeculationStats(NUM_DRAFTED), 1, 1
        while num_sent < num_tokens:
            await self._step(step_seconds)
            num_new = 1 if is_plain else NUM_ACCEPTED + 1
            if not is_plain:
                stats.record(NUM_DRAFTED, NUM_ACCEPTED)
            new, num_steps, num_sent = (
                tokens[num_sent : num_sent + num_new],
                num_steps + 1,
                num_sent + num_new,
            )
            yield RequestOutput(self._request.request_id, token_ids=new, time=client.now)
        metrics = RequestMetrics(
            num_prompt_tokens=len(self._text),
            num_cached_tokens=client.num_cached_tokens,
            num_output_tokens=num_tokens,
            num_steps=num_steps,
            num_preemptions=0,
            speculation=stats,
        )
        yield RequestOutput(
            self._request.request_id, finish_reason=FinishReason.LENGTH, metrics=metrics, time=client.now
        )

    async def _step(self, seconds: float) -> None:
        await asyncio.sleep(0)
        seconds *= self._pace
        self._client.now += seconds
        for listener in self._client.listeners:
            listener(StepStats(num_rows=1, forward_seconds=seconds * 3 / 4, verify_seconds=seconds / 4))
            listener(StepStats())  # the load has changed, nothing ran
