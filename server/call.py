"""One generating call, whatever its route. Knows the order (read, check, plan, submit, answer) and no wire format."""

from __future__ import annotations

import secrets
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol, TypedDict, TypeVar

from fastapi import Request, Response

from engine.client import EngineClient
from engine.types import RequestOutput
from server.answers import finish_reason_of, join_outputs, metrics_of, usage_of, usage_so_far
from server.best_of import likeliest
from server.checks import check_generation
from server.convert import ChoicePlan, PromptPlan, plan_choices
from server.generation import Generation
from server.json_body import read_body
from server.protocol import Answer, GenerationFields, Usage
from server.reception import Reception
from server.settings import ServerSettings
from server.streaming import EventStream, pad, unless_disconnected

_Body = TypeVar("_Body", bound=GenerationFields)


class AnswerHead(TypedDict):
    """What all chunks of an answer have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class SubmittedChoice:
    """A choice that the engine has taken."""

    plan: ChoicePlan
    prompt_token_ids: Sequence[int]


class AnswerWriter(Protocol):
    """What the outputs of one call look like on its route's wire."""

    def whole(self, outputs: Sequence[RequestOutput]) -> Answer:
        """The answer from all that each choice was given, in the order of the choices."""

    def chunks(self, place: int, output: RequestOutput) -> Sequence[Answer]:
        """What an output adds to the stream for the choice in this place; possibly nothing."""

    def last_chunk(self) -> Answer:
        """The chunk without choices, that brings the usage."""


class Route(Protocol[_Body]):
    """What sets one generating route apart from another."""

    @property
    def body_type(self) -> type[_Body]: ...

    @property
    def id_prefix(self) -> str: ...

    def num_prompts(self, body: _Body) -> int: ...

    def check(self, body: _Body, settings: ServerSettings) -> None:
        """Refuse what this route's own fields say together.

        Raises:
            InvalidRequest: naming the field.
        """

    def prompts(self, body: _Body, engine: EngineClient) -> AsyncIterable[PromptPlan]:
        """The encoded prompts.

        Raises:
            InvalidRequest: one that cannot be encoded.
        """

    def writer(self, head: AnswerHead, choices: Sequence[SubmittedChoice], engine: EngineClient) -> AnswerWriter: ...


async def answer_call(route: Route[_Body], request: Request, reception: Reception) -> Response:
    """Serve one call, plain or streamed.

    Raises:
        DraftaheadError: the call is refused, or fails before anything was sent.
        ClientDisconnect: the client left first.
    """
    arrived_at = reception.metrics.now()
    with reception.metrics.counting_rejections():
        body = await read_body(request, route.body_type, reception.settings)
        reception.check_model(body.model)
        route.check(body, reception.settings)
        check_generation(body, route.num_prompts(body), reception.settings)
        call = await _Call.start(route, body, reception, arrived_at, request_id=request.state.request_id)
    if body.stream:
        return EventStream(call.chunks(), call.generation)
    return await unless_disconnected(request, call.respond())


@dataclass(frozen=True, slots=True)
class _Call:
    """One accepted call on its way through."""

    body: GenerationFields
    seed: int
    generation: Generation
    choices: Sequence[SubmittedChoice]
    writer: AnswerWriter
    num_output_tokens: Counter[int] = field(default_factory=Counter)

    @classmethod
    async def start(
        cls, route: Route[_Body], body: _Body, reception: Reception, arrived_at: float, *, request_id: str | None
    ) -> _Call:
        head = AnswerHead(
            id=f"{route.id_prefix}{body.request_id or request_id or uuid.uuid4().hex}",
            created=int(time.time()),
            model=body.model,
            system_fingerprint=reception.system_fingerprint,
        )
        # 53 bits: a drawn seed must come back unharmed from clients whose only number is a double.
        seed = secrets.randbits(53) if body.seed is None else body.seed
        engine = reception.engine
        prompts = route.prompts(body, engine)
        plans = await plan_choices(body, prompts, engine, response_id=head["id"], seed=seed)
        requests = [plan.request for plan in plans]
        generation = await Generation.start(requests, engine, reception.metrics, arrived_at)
        submitted = [
            SubmittedChoice(plan, choice.stream.prompt_token_ids)
            for plan, choice in zip(plans, generation.choices, strict=True)
        ]
        shown = _shown(submitted, num_candidates=body.num_candidates, num_choices=body.num_choices)
        return cls(body, seed, generation, submitted, route.writer(head, shown, engine))

    async def respond(self) -> Response:
        async with aclosing(self.generation), aclosing(self._outputs()) as outputs:
            by_choice: list[list[RequestOutput]] = [[] for _ in self.generation.choices]
            async for place, output in outputs:
                by_choice[place].append(output)
            joined = [join_outputs(parts) for parts in by_choice]
            if self.body.ranks_candidates:
                num_candidates, num_choices = self.body.num_candidates, self.body.num_choices
                joined = likeliest(joined, num_candidates=num_candidates, num_choices=num_choices)
            answer = self._with_figures(self.writer.whole(joined))
        return Response(answer.to_json(), media_type="application/json")

    async def chunks(self) -> AsyncGenerator[str]:
        wrap = pad if self.body.is_obfuscated else str
        async with aclosing(self._outputs()) as outputs:
            async for place, output in outputs:
                self.num_output_tokens[place] += len(output.token_ids)
                for chunk in self.writer.chunks(place, output):
                    if self.body.includes_usage:
                        chunk.usage = self._usage_so_far(place) if self.body.includes_usage_so_far else None
                    yield wrap(chunk.to_json())
        if self.body.includes_usage:
            yield wrap(self._with_figures(self.writer.last_chunk()).to_json())

    def _usage_so_far(self, place: int) -> Usage:
        return usage_so_far(len(self.choices[place].prompt_token_ids), self.num_output_tokens[place])

    async def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput]]:
        async with aclosing(self.generation.outputs()) as outputs:
            async for place, output in outputs:
                finish_reason_of(output)  # raises where the choice has failed
                yield place, output

    def _with_figures(self, answer: Answer) -> Answer:
        answer.usage = usage_of(self.generation.accounts, self.body.num_candidates)
        answer.metrics = metrics_of(self.generation.accounts, self.seed)
        return answer


def _shown(choices: Sequence[SubmittedChoice], *, num_candidates: int, num_choices: int) -> list[SubmittedChoice]:
    """As many of each prompt's candidates as it returns; which output stands for which is decided at the end."""
    kept = [choice for place, choice in enumerate(choices) if place % num_candidates < num_choices]
    return [replace(choice, plan=replace(choice.plan, index=index)) for index, choice in enumerate(kept)]
