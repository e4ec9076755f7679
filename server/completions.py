"""POST /v1/completions. Knows the order (read, check, submit, answer); leaves each to its own room."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from server.answers import ChoiceWriter, join_parts, metrics_of, usage_of
from server.convert import ChoicePlan, check_completion, plan_choices
from server.generation import Generation
from server.json_body import read_body
from server.protocol import Completion, CompletionChoice, CompletionRequest
from server.reception import CurrentReception, Reception
from server.streaming import EventStream, unless_disconnected

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request, reception: CurrentReception) -> Response:
    """Continue one or several prompts."""
    arrived_at = reception.metrics.now()
    with reception.metrics.counting_rejections():
        body = await read_body(request, CompletionRequest, reception.settings)
        reception.check_model(body.model)
        check_completion(body, reception.settings)
        call = _Call.of(body, reception)
        plans = await call.plan()
        generation = await call.start(plans, arrived_at)
    if body.stream:
        return EventStream(call.chunks(plans, generation), generation)
    return await unless_disconnected(request, call.respond(plans, generation))


@dataclass(frozen=True, slots=True)
class _Call:
    """One request on its way through."""

    body: CompletionRequest
    reception: Reception
    id: str
    created: int
    seed: int

    @classmethod
    def of(cls, body: CompletionRequest, reception: Reception) -> _Call:
        # 53 bits: a drawn seed must come back unharmed from clients whose only number is a double.
        seed = secrets.randbits(53) if body.seed is None else body.seed
        return cls(body, reception, f"cmpl-{uuid.uuid4().hex}", int(time.time()), seed)

    async def respond(self, plans: list[ChoicePlan], generation: Generation) -> Response:
        async with aclosing(generation), aclosing(self._parts(plans, generation)) as written:
            parts: list[list[CompletionChoice]] = [[] for _ in plans]
            async for place, part in written:
                parts[place].append(part)
            choices = [join_parts(of_choice) for of_choice in parts]
            answer = self._with_figures(self._message(choices), generation)
        return Response(answer.to_json(), media_type="application/json")

    async def plan(self) -> list[ChoicePlan]:
        return await plan_choices(self.body, self.reception.engine, response_id=self.id, seed=self.seed)

    async def start(self, plans: list[ChoicePlan], arrived_at: float) -> Generation:
        requests = [plan.request for plan in plans]
        return await Generation.start(requests, self.reception.engine, self.reception.metrics, arrived_at)

    async def _parts(
        self, plans: list[ChoicePlan], generation: Generation
    ) -> AsyncGenerator[tuple[int, CompletionChoice]]:
        token_text = self.reception.engine.token_text
        writers = [
            ChoiceWriter(plan, choice.stream.prompt_token_ids, token_text)
            for plan, choice in zip(plans, generation.choices, strict=True)
        ]
        async with aclosing(generation.outputs()) as outputs:
            async for place, output in outputs:
                yield place, writers[place].write(output)

    async def chunks(self, plans: list[ChoicePlan], generation: Generation) -> AsyncGenerator[str]:
        async with aclosing(self._parts(plans, generation)) as parts:
            async for _, part in parts:
                if part.says_something:
                    yield self._chunk(part).to_json()
        if self.body.includes_usage:
            yield self._with_figures(self._message([]), generation).to_json()

    def _chunk(self, part: CompletionChoice) -> Completion:
        chunk = self._message([part])
        if self.body.includes_usage:
            chunk.usage = None
        return chunk

    def _message(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.body.model,
            system_fingerprint=self.reception.system_fingerprint,
            choices=choices,
        )

    def _with_figures(self, message: Completion, generation: Generation) -> Completion:
        message.usage = usage_of(generation.accounts, self.body.num_choices)
        message.metrics = metrics_of(generation.accounts, self.seed)
        return message
