"""An engine in this process, measured through its client.

Knows how a prompt becomes a request and what the engine tells about it. Refuses to know when which prompt runs.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import chain, count, pairwise

from engine.bench.measurement import PHASES, BenchMode, DraftCounts, Measurement, StepTimes
from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt
from engine.client import EngineClient, GenerateRequest
from engine.errors import ConfigError, EngineUnavailable, InvalidRequest
from engine.params import SamplingParams, SpeculationMode, SpeculationParams
from engine.step_stats import StepStats
from engine.types import FinishReason, ModelInfo, RequestMetrics, RequestOutput

_SPECULATION = {BenchMode.PLAIN: SpeculationMode.OFF, BenchMode.SPECULATIVE: SpeculationMode.AUTO}
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


class EngineTarget:
    """Measures a started engine.

    The second mode meets prompts that the first has just run: the engine must be built with
    ``enable_prefix_caching=False``, and a prompt that was found in the cache is refused.

    Args:
        clock: seconds; must be the clock of ``RequestOutput.time``.
    """

    modes = (BenchMode.PLAIN, BenchMode.SPECULATIVE)

    def __init__(
        self, client: EngineClient, options: BenchOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._texts: dict[int, str] = {}
        self._request_numbers = count()
        self._params = SamplingParams(
            seed=options.seed,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            ignore_eos=options.ignore_eos,
        )
        self._num_steps = 0
        self._step_seconds = [0.0] * len(PHASES)
        self.uses_chat_template = True
        client.subscribe(self._on_step)

    @property
    def info(self) -> ModelInfo:
        return self._client.info

    async def prepare(self, prompts: Sequence[BenchPrompt]) -> None:
        """Render ``prompts`` and see that each fits the model.

        Raises:
            ConfigError: one is too long; names it and the numbers.
        """
        self._texts = {prompt.prompt_id: await _render(self._client, prompt.text) for prompt in prompts}
        self.uses_chat_template = all(self._texts[prompt.prompt_id] != prompt.text for prompt in prompts)
        limit, max_tokens = self._client.info.max_model_len, self._params.max_tokens
        for prompt in prompts:
            num_tokens = len(await self._client.encode(self._texts[prompt.prompt_id]))
            if num_tokens + max_tokens > limit:
                raise ConfigError(
                    f"max_tokens: prompt {prompt.prompt_id} ({prompt.task}) has {num_tokens} tokens; with "
                    f"max_tokens={max_tokens} that is more than max_model_len={limit}"
                )

    async def measure(self, prompt: BenchPrompt, mode: BenchMode) -> Measurement:
        """Run one prompt.

        Raises:
            ConfigError: the prefix cache is on.
            EngineUnavailable: it ended without its whole output.
            QueueFull: more are in flight than the engine's queue takes.
        """
        request = GenerateRequest(
            request_id=f"bench-{next(self._request_numbers)}",
            prompt=self._texts[prompt.prompt_id],
            params=self._params,
            speculation=SpeculationParams(mode=_SPECULATION[mode]),
        )
        submitted = self._clock()
        async with aclosing(await self._client.submit(request)) as stream:
            outputs = [output async for output in stream]
        metrics = _checked_metrics(prompt, outputs)
        brought = [output for output in outputs if output.token_ids]
        drafts = metrics.speculation
        return Measurement(
            prompt_id=prompt.prompt_id,
            output=tuple(chain.from_iterable(output.token_ids for output in brought)),
            num_tokens=sum(len(output.token_ids) for output in brought),
            ttft=brought[0].time - submitted,
            token_gaps=tuple(
                gap
                for before, output in pairwise(brought)
                for gap in [(output.time - before.time) / len(output.token_ids)] * len(output.token_ids)
            ),
            num_cached_tokens=metrics.num_cached_tokens,
            num_steps=metrics.num_steps,
            drafts=DraftCounts(drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_tokens),
        )

    def take_step_times(self) -> StepTimes:
        """The steps since this was last asked."""
        taken = StepTimes(self._num_steps, tuple(self._step_seconds))
        self._num_steps, self._step_seconds = 0, [0.0] * len(PHASES)
        return taken

    def peak_rss_mib(self) -> float:
        """Of this process since it began, loading the model included."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, KiB on Linux

    def _on_step(self, stats: StepStats) -> None:
        if stats.num_rows == 0:  # nothing ran, only the load has changed
            return
        self._num_steps += 1
        for index, phase in enumerate(PHASES):
            self._step_seconds[index] += getattr(stats, f"{phase}_seconds")


async def _render(client: EngineClient, text: str) -> str:
    try:
        return await client.render_chat([{"role": "user", "content": text}])
    except InvalidRequest:  # a base model without a template continues the bare text
        return text


def _checked_metrics(prompt: BenchPrompt, outputs: Sequence[RequestOutput]) -> RequestMetrics:
    last = outputs[-1] if outputs else None
    if last is None or last.metrics is None or last.finish_reason not in _WHOLE:
        error = last.error if last is not None and last.error else "its output broke off"
        raise EngineUnavailable(f"prompt {prompt.prompt_id} ({prompt.task}) failed: {error}")
    if last.metrics.num_cached_tokens:
        raise ConfigError(
            f"enable_prefix_caching must be False for a benchmark: prompt {prompt.prompt_id} ({prompt.task}) "
            f"found {last.metrics.num_cached_tokens} of its tokens in the cache"
        )
    return last.metrics
