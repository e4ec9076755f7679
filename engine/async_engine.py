"""The stairwell between the event loop and the engine thread.

Down go messages through one inbox; up come outputs, one wake-up of the event loop a step. The thread owns the core; the
event loop owns the mailboxes; nothing else is shared.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from engine.admission import Admission
from engine.client import GenerateRequest
from engine.core import EngineCore
from engine.detokenizer import Detokenizer, Pieces, text_pieces
from engine.errors import EngineUnavailable, InvalidRequest, QueueFull
from engine.params import SpeculationMode
from engine.predicted_output import PredictedOutput
from engine.sequence import Sequence
from engine.step_stats import StepStats
from engine.tokenizer import Tokenizer
from engine.types import FinishReason, ModelInfo, RequestOutput

logger = logging.getLogger(__name__)

# Characters. Below this a text is tokenised on the event loop: handing it to a thread would take longer.
_LONG_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Message = Sequence | _Abort | _Stop


class AsyncEngine:
    """``EngineClient`` over an ``EngineCore`` in a thread of its own.

    Args:
        max_num_requests: most requests in flight, running and waiting together.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, info: ModelInfo, *, max_num_requests: int) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._info = info
        self._admission = Admission(info, core.end_token_ids)
        self._max_num_requests = max_num_requests
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._mailboxes: dict[str, asyncio.Queue[RequestOutput]] = {}
        self._listeners: list[Callable[[StepStats], None]] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusal: str | None = None

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def is_healthy(self) -> bool:
        return self._refusal is None

    @property
    def num_in_flight(self) -> int:
        return len(self._mailboxes)

    @property
    def tokenizer_info(self) -> Mapping[str, Any]:
        return self._tokenizer.info

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def drain(self) -> None:
        self._refusal = self._refusal or "the server is shutting down"

    async def stop(self) -> None:
        self.drain()
        if self._thread.is_alive():
            self._inbox.put(_Stop())
            await asyncio.to_thread(self._thread.join)
        self._fail_all("the server shut down before this request was finished")

    def subscribe(self, on_step: Callable[[StepStats], None]) -> None:
        self._listeners.append(on_step)

    async def encode(self, prompt: str | tuple[int, ...], *, add_special_tokens: bool = True) -> list[int]:
        if isinstance(prompt, str):
            return await self._tokenise(prompt, partial(self._tokenizer.encode, add_special_tokens=add_special_tokens))
        self._admission.check_token_ids(prompt, "prompt")
        return list(prompt)

    async def encode_infill(self, prefix: str, suffix: str, *, add_special_tokens: bool = True) -> list[int]:
        encode = partial(self._tokenizer.encode_infill, suffix=suffix, add_special_tokens=add_special_tokens)
        return await self._tokenise(prefix, encode, num_more=len(suffix))

    @staticmethod
    async def _tokenise(text: str, encode: Callable[[str], list[int]], *, num_more: int = 0) -> list[int]:
        if len(text) + num_more > _LONG_TEXT:
            return await asyncio.to_thread(encode, text)
        return encode(text)

    def spellings(self, word: str) -> tuple[tuple[int, ...], ...]:
        return self._tokenizer.spellings(word)

    async def render_chat(
        self,
        messages: Seq[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        render = partial(
            self._tokenizer.chat_template.render,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )
        return await asyncio.to_thread(render) if _are_long((*messages, template_kwargs)) else render()

    def decode(self, token_ids: Seq[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokenizer.token_bytes(token_id)

    def text_pieces(self, *, skip_special_tokens: bool = True) -> Pieces:
        return text_pieces(self._tokenizer, skip_special_tokens=skip_special_tokens)

    async def submit(self, request: GenerateRequest) -> _Stream:
        token_ids = await self.encode(request.prompt)
        self._admission.check(request, token_ids)
        self._core.check_fits(len(token_ids) + request.params.max_tokens)
        if request.request_id in self._mailboxes:
            raise InvalidRequest(f"a request with the id {request.request_id} is in flight")
        if self._refusal is not None:
            raise EngineUnavailable(self._refusal)
        if len(self._mailboxes) >= self._max_num_requests:
            raise QueueFull(f"{len(self._mailboxes)} requests are in flight, which is the limit")
        mailbox: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self._mailboxes[request.request_id] = mailbox
        self._inbox.put(self._sequence(request, token_ids))
        return _Stream(self, request.request_id, token_ids, mailbox)

    def abort(self, request_id: str) -> None:
        """Have a request ended before the next step. Its id stays taken until its last output says that it is."""
        if request_id in self._mailboxes:
            self._inbox.put(_Abort(request_id))

    def _sequence(self, request: GenerateRequest, token_ids: list[int]) -> Sequence:
        speculation, params = request.speculation, request.params
        wanted = speculation.num_speculative_tokens
        if speculation.mode is SpeculationMode.OFF or self._info.drafter == "none":
            wanted = 0
        return Sequence(
            request.request_id,
            token_ids,
            params,
            text=Detokenizer(
                self._tokenizer,
                params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
            ),
            speculation=speculation,
            num_speculative_tokens=self._info.num_speculative_tokens if wanted is None else wanted,
            cache_salt=request.cache_salt,
            prediction=PredictedOutput(request.prediction) if request.prediction else None,
        )

    # The engine thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            logger.critical("the engine loop has died", exc_info=error)
            message = self._refusal = f"the engine has died: {type(error).__name__}"
            self._wake(lambda: self._fail_all(message))

    def _turn(self) -> bool:
        """Take what is in the inbox, then one step if there is work; False when told to stop."""
        outputs: list[RequestOutput] = []
        for message in self._take_messages():
            match message:
                case _Stop():
                    return False
                case _Abort(request_id):
                    if (output := self._core.abort(request_id)) is not None:
                        outputs.append(output)
                case sequence:
                    self._core.add(sequence)
        stats = StepStats()
        if self._core.has_unfinished:
            result = self._core.step()
            outputs += result.outputs
            stats = result.stats
        else:
            self._core.observe_load(stats)
        self._wake(lambda: self._deliver(outputs, stats))
        return True

    def _take_messages(self) -> list[_Message]:
        """Everything in the inbox; waits for the first if there is nothing else to do."""
        messages = [] if self._core.has_unfinished else [self._inbox.get()]
        while True:
            try:
                messages.append(self._inbox.get_nowait())
            except Empty:
                return messages

    def _wake(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    # The event loop again.

    def _deliver(self, outputs: list[RequestOutput], stats: StepStats) -> None:
        for output in outputs:
            self._mailboxes[output.request_id].put_nowait(output)
            if output.finish_reason is not None:
                del self._mailboxes[output.request_id]
        for listener in self._listeners:
            listener(stats)

    def _fail_all(self, message: str) -> None:
        for request_id, mailbox in self._mailboxes.items():
            mailbox.put_nowait(
                RequestOutput(request_id, finish_reason=FinishReason.ERROR, error=message, time=time.monotonic())
            )
        self._mailboxes.clear()


def _are_long(parts: Seq[object]) -> bool:
    size = 0
    for part in parts:
        size += len(str(part))
        if size > _LONG_TEXT:
            return True
    return False


class _Stream:
    """``RequestStream`` over one mailbox."""

    def __init__(
        self,
        engine: AsyncEngine,
        request_id: str,
        prompt_token_ids: list[int],
        mailbox: asyncio.Queue[RequestOutput],
    ) -> None:
        self.prompt_token_ids: Seq[int] = prompt_token_ids
        self._engine = engine
        self._request_id = request_id
        self._mailbox = mailbox

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while True:
            output = await self._mailbox.get()
            yield output
            if output.finish_reason is not None:
                return

    async def aclose(self) -> None:
        self._engine.abort(self._request_id)
