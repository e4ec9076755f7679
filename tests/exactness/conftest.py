"""The default model in float32, loaded once; and a way to run requests through engines that share its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from engine.bench.prompts import load_prompts
from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.detokenizer import Detokenizer
from engine.model.loading import LoadedModel, load_model
from engine.params import SamplingParams, SpeculationMode, SpeculationParams
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from engine.types import FinishReason, TokenLogprob


@dataclass(frozen=True)
class Size:
    """How much of the default model a comparison takes."""

    num_prompts: int
    num_tokens: int
    num_tokens_against_transformers: int


SIZES = {"quick": Size(40, 16, 40), "full": Size(40, 20, 128)}


@dataclass(frozen=True)
class Answer:
    """All of a request that its client sees."""

    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None
    logprobs: list[TokenLogprob]


@dataclass
class Totals:
    """What a run cost and used; proof that a test exercised what it is about."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_steps: int = 0


class RealModel:
    """The default model and its tokenizer, in float32 on the CPU."""

    def __init__(self) -> None:
        self.config = EngineConfig(dtype="float32", device="cpu", max_model_len=2048, kv_cache_memory=512 << 20)
        self.loaded: LoadedModel = load_model(self.config, lambda stage, fraction: None)
        self.tokenizer = Tokenizer(self.loaded.tokenizer)

    def prompts(self, number: int) -> list[list[int]]:
        """The shortest ones of our own prompt set, through the chat template."""
        texts = sorted((prompt.text for prompt in load_prompts()), key=len)[:number]
        return [
            self.tokenizer.encode(self.tokenizer.chat_template.render([{"role": "user", "content": text}]))
            for text in texts
        ]

    def engine(self, **overrides: object) -> EngineCore:
        """A fresh engine: its own blocks, cache and drafter."""
        settings = {name: getattr(self.config, name) for name in EngineConfig.__slots__} | overrides
        config = EngineConfig(**settings)  # type: ignore[arg-type]
        loaded = replace(self.loaded, max_model_len=config.max_model_len)
        core, _ = build_engine(config, loaded, "default", progress=lambda stage, fraction: None)
        return core

    def sequence(self, request_id: str, prompt: list[int], draft_length: int, params: SamplingParams) -> Sequence:
        mode = SpeculationMode.AUTO if draft_length else SpeculationMode.OFF
        return Sequence(
            request_id,
            prompt,
            params,
            text=Detokenizer(
                self.tokenizer,
                params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
            ),
            speculation=SpeculationParams(mode),
            num_speculative_tokens=draft_length,
        )


def run(core: EngineCore, sequences: list[Sequence], *, num_at_once: int) -> tuple[list[Answer], Totals]:
    """Run sequences to their ends, always ``num_at_once`` in flight; answers in the order given."""
    waiting = list(reversed(sequences))
    answers = {sequence.request_id: Answer([], "", None, []) for sequence in sequences}
    totals = Totals()
    num_running = 0
    while waiting or core.has_unfinished:
        while waiting and num_running < num_at_once:
            core.add(waiting.pop())
            num_running += 1
        result = core.step()
        totals.num_steps += 1
        totals.num_draft_tokens += result.stats.num_draft_tokens
        totals.num_accepted_tokens += result.stats.num_accepted_tokens
        totals.num_preemptions += result.stats.num_preemptions
        totals.num_cached_tokens += result.stats.num_cached_tokens
        for output in result.outputs:
            before = answers[output.request_id]
            answers[output.request_id] = Answer(
                before.token_ids + output.token_ids,
                before.text + output.text,
                output.finish_reason,
                before.logprobs + (output.logprobs or []),
            )
            num_running -= output.finish_reason is not None
    return [answers[sequence.request_id] for sequence in sequences], totals


@pytest.fixture(scope="session")
def size(request: pytest.FixtureRequest) -> Size:
    return SIZES[request.config.getoption("--exactness")]


@pytest.fixture(scope="session")
def real_model() -> RealModel:
    return RealModel()
