"""An engine without a model: says what it is told, in the steps it is told, and remembers what was asked."""

from __future__ import annotations

import asyncio
import codecs
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from engine.admission import Admission
from engine.client import GenerateRequest
from engine.errors import InvalidRequest
from engine.params import SpeculationMode
from engine.predicted_output import PredictedOutput
from engine.provenance import StepProvenance
from engine.step_stats import DraftCounts, StepStats
from engine.types import FinishReason, ModelInfo, RequestMetrics, RequestOutput, SpeculationStats, TokenLogprob
from tests.byte_tokens import END_TOKEN, VOCAB_SIZE, ByteTokenizer


@dataclass(frozen=True, kw_only=True)
class Script:
    """How the fake answers every request.

    Attributes:
        say: the answer's bytes; an end token follows them.
        tokens_per_step: how many tokens each step brings, over and over.
        num_drafted: tokens proposed in each step of a request that may be drafted; all but one of the tokens
            that the step brings are the accepted ones.
        num_cached: prompt tokens said to come from the prefix cache.
        fail_after: steps before the engine gives up on a request.
        fails: which requests that befalls.
        hang_after: steps after which nothing comes any more.
    """

    say: Callable[[GenerateRequest], bytes] = lambda _: b"Hello"
    tokens_per_step: tuple[int, ...] = (1,)
    num_drafted: int = 0
    num_cached: int = 0
    fail_after: int | None = None
    fails: Callable[[GenerateRequest], bool] = lambda _: True
    hang_after: int | None = None


def fake_info(**changes: object) -> ModelInfo:
    """The model that the fake claims to serve."""
    facts: dict[str, object] = {
        "name": "fake",
        "source": "fake",
        "quantization": "none",
        "attention": "none",
        "device": "cpu",
        "dtype": "float32",
        "vocab_size": VOCAB_SIZE,
        "max_model_len": 64,
        "weights_bytes": 0,
        "kv_cache_bytes": 0,
        "num_kv_tokens": 1024,
        "drafter": "auto",
        "drafters": ("suffix",),
        "num_speculative_tokens": 4,
        "num_threads": 1,
    }
    return ModelInfo(**facts | changes)  # type: ignore[arg-type]


class FakeEngine:
    """``EngineClient`` that plays a ``Script``.

    Attributes:
        requests: everything submitted and taken, in order.
        aborted: ids of the requests that were closed before their last output.
        refusals: errors for the next submissions, one each; None lets one pass.
        conversations: the messages of every prompt rendered, in order.
        begin: tokens that the tokenizer puts before a text.
        can_infill: whether the model takes prompts with a gap, here ``<``, prefix, ``|``, suffix, ``>``.
        is_healthy, is_running: what they say.
    """

    def __init__(self, script: Script | None = None, info: ModelInfo | None = None) -> None:
        self.script = script or Script()
        self.info = info or fake_info()
        self.is_healthy = True
        self.is_running = False
        self.num_in_flight = 0
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.refusals: deque[Exception | None] = deque()
        self.conversations: list[list[Mapping[str, Any]]] = []
        self.begin: list[int] = []
        self.can_infill = True
        self._tokenizer = ByteTokenizer()
        self._listeners: list[Callable[[StepStats], None]] = []

    @property
    def tokenizer_info(self) -> Mapping[str, Any]:
        return {"bos_token": None, "eos_token": "</s>", "chat_template": "{{ messages }}"}

    async def start(self) -> None:
        self.is_running = True

    def drain(self) -> None:
        self.is_healthy = False

    async def stop(self) -> None:
        self.is_running = False

    def subscribe(self, on_step: Callable[[StepStats], None]) -> None:
        self._listeners.append(on_step)

    def report(self, stats: StepStats) -> None:
        """Publish one step."""
        for listener in self._listeners:
            listener(stats)

    async def encode(self, prompt: str | tuple[int, ...], *, add_special_tokens: bool = True) -> list[int]:
        if isinstance(prompt, str):
            return (self.begin if add_special_tokens else []) + self._tokenizer.encode(prompt)
        for token_id in prompt:
            if not 0 <= token_id < VOCAB_SIZE:
                raise InvalidRequest(f"prompt: token id {token_id} is not in 0..{VOCAB_SIZE - 1}", param="prompt")
        return list(prompt)

    async def encode_infill(self, prefix: str, suffix: str, *, add_special_tokens: bool = True) -> list[int]:
        if not self.can_infill:
            raise InvalidRequest("this model has no tokens for suffix", param="suffix")
        return await self.encode(f"<{prefix}|{suffix}>", add_special_tokens=add_special_tokens)

    def spellings(self, word: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._tokenizer.encode(f"{space}{word}")) for space in ("", " "))

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest("add_generation_prompt contradicts", param="add_generation_prompt")
        self.conversations.append(list(messages))
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        if template_kwargs:
            text = f"{dict(template_kwargs)}\n{text}"
        if continue_final_message:
            return text[:-1]
        return f"{text}assistant: " if add_generation_prompt else text

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokenizer.spell([token_id], skip_special_tokens=False)

    def text_pieces(self, *, skip_special_tokens: bool = True) -> FakePieces:
        return FakePieces(skip_special_tokens=skip_special_tokens)

    async def submit(self, request: GenerateRequest) -> FakeStream:
        refusal = self.refusals.popleft() if self.refusals else None
        if refusal is not None:
            raise refusal
        prompt = await self.encode(request.prompt)
        Admission(self.info, frozenset({END_TOKEN})).check(request, prompt)
        self.requests.append(request)
        self.num_in_flight += 1
        return FakeStream(self, request, prompt)


class FakePieces:
    """``TextPieces`` over bytes."""

    def __init__(self, *, skip_special_tokens: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._skips_special = skip_special_tokens

    def push(self, token_id: int) -> str:
        return self._decoder.decode(ByteTokenizer().spell([token_id], skip_special_tokens=self._skips_special))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


@dataclass
class _Answer:
    """The tokens of one answer, and how many of them are text."""

    tokens: list[int]
    shown: int
    finish: FinishReason
    stop_reason: str | int | None = None


def _answer(request: GenerateRequest, said: bytes) -> _Answer:
    params, includes = request.params, request.params.include_stop_str_in_output
    if params.ignore_eos:
        said *= params.max_tokens // max(len(said), 1) + 1
    ways = {stop: stop.encode() for stop in params.stop} | {token: bytes([token]) for token in params.stop_token_ids}
    ends = [(said.find(end) + len(end), len(end), reason) for reason, end in ways.items() if end in said]
    if ends and (first := min(ends))[0] <= params.max_tokens:
        at, length, reason = first
        return _Answer(list(said[:at]), at if includes else at - length, FinishReason.STOP, reason)
    tokens = [*said, END_TOKEN][: params.max_tokens]
    if tokens and tokens[-1] == END_TOKEN:
        return _Answer(tokens, len(said) + includes, FinishReason.STOP)
    return _Answer(tokens, len(tokens), FinishReason.LENGTH)


@dataclass
class FakeStream:
    """``RequestStream`` that makes a step whenever it is asked for the next output."""

    engine: FakeEngine
    request: GenerateRequest
    prompt_token_ids: list[int]
    is_over: bool = False
    arrival: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        script, wish = self.engine.script, self.request.speculation
        longest = wish.num_speculative_tokens
        if longest is None:
            longest = self.engine.info.num_speculative_tokens
        self._stats = SpeculationStats(0 if wish.mode is SpeculationMode.OFF else longest)
        self._num_drafted = min(script.num_drafted, self._stats.num_speculative_tokens)

    async def aclose(self) -> None:
        if not self.is_over:
            self._end()
            self.engine.aborted.append(self.request.request_id)

    def _end(self) -> None:
        self.is_over = True
        self.engine.num_in_flight -= 1

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        script = self.engine.script
        answer = _answer(self.request, script.say(self.request))
        skip = self.request.params.skip_special_tokens
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        done = 0
        for step, tokens in enumerate(self._steps(answer.tokens)):
            await asyncio.sleep(0)
            if step == script.hang_after:
                await asyncio.Event().wait()
            if step == script.fail_after and script.fails(self.request):
                self._end()
                yield RequestOutput(
                    self.request.request_id, finish_reason=FinishReason.ERROR, error="the engine has died: OSError"
                )
                return
            shown = ByteTokenizer().spell(
                answer.tokens[done : min(done + len(tokens), answer.shown)], skip_special_tokens=skip
            )
            done += len(tokens)
            is_last = done == len(answer.tokens)
            yield self._output(tokens, decoder.decode(shown, is_last), step, answer if is_last else None)

    def _steps(self, tokens: list[int]) -> Iterator[list[int]]:
        if not tokens:
            yield []
            return
        # A request that is not drafted gets one token a step wherever the script drafts at all.
        is_plain = self.engine.script.num_drafted > 0 and not self._num_drafted
        sizes = cycle((1,) if is_plain else self.engine.script.tokens_per_step)
        at = 0
        while at < len(tokens):
            size = next(sizes)
            yield tokens[at : at + size]
            at += size

    def _output(self, tokens: list[int], text: str, step: int, end: _Answer | None) -> RequestOutput:
        now, params = time.monotonic(), self.request.params
        self.engine.report(self._account(tokens, step))
        output = RequestOutput(self.request.request_id, list(tokens), text, time=now)
        num_accepted = min(len(tokens) - 1, self._num_drafted) if tokens else 0
        output.provenance = [StepProvenance(len(tokens), "suffix", self._num_drafted, num_accepted)]
        if params.logprobs is not None:
            output.logprobs = [fake_logprob(token, params.logprobs) for token in tokens]
        if params.prompt_logprobs is not None and step == 0:
            rest = [fake_logprob(token, params.prompt_logprobs) for token in self.prompt_token_ids[1:]]
            output.prompt_logprobs = [None, *rest]
        if end is not None:
            self._end()
            output.finish_reason, output.stop_reason = end.finish, end.stop_reason
            output.metrics = self._metrics(len(end.tokens), step + 1, now)
        return output

    def _account(self, tokens: list[int], step: int) -> StepStats:
        stats = StepStats(num_running=1, num_rows=1, num_generated_tokens=len(tokens), forward_seconds=0.5)
        if step == 0:
            stats.num_prompt_tokens = len(self.prompt_token_ids)
            stats.num_cached_tokens = self.engine.script.num_cached
        if self._num_drafted and tokens:
            accepted = min(len(tokens) - 1, self._num_drafted)
            self._stats.record(self._num_drafted, accepted)
            stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens = (
                1,
                self._num_drafted,
                accepted,
            )
            stats.num_recovered_tokens = int(accepted < self._num_drafted)
            stats.num_bonus_tokens = int(accepted == self._num_drafted)
            stats.by_drafter = {"suffix": DraftCounts(1, self._num_drafted, accepted)}
            stats.drafted_per_position = [1] * self._num_drafted
            stats.accepted_per_position = [1] * accepted
        return stats

    def _metrics(self, num_output_tokens: int, num_steps: int, now: float) -> RequestMetrics:
        said = _answer(self.request, self.engine.script.say(self.request)).tokens[:num_output_tokens]
        prediction = PredictedOutput(self.request.prediction)
        for length in range(1, len(said) + 1):
            prediction.follow(said[:length])
        return RequestMetrics(
            num_prompt_tokens=len(self.prompt_token_ids),
            num_cached_tokens=self.engine.script.num_cached,
            num_output_tokens=num_output_tokens,
            num_steps=num_steps,
            num_preemptions=0,
            speculation=self._stats,
            num_accepted_prediction_tokens=prediction.num_accepted,
            num_rejected_prediction_tokens=prediction.num_rejected,
            scheduled_at=self.arrival,
        )


def fake_logprob(token_id: int, num_top: int) -> TokenLogprob:
    """A log-probability that names its token, as its rank does; alternatives are a, b, c, d, then impossible ones."""
    top = tuple((ord("a") + j, -j / 8 if j < 4 else -math.inf) for j in range(min(num_top, 100)))
    return TokenLogprob(token_id, -1 - token_id / 1000, top, rank=token_id)
