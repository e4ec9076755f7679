"""Every field of a request does what the table says, and what comes out does not depend on how it was made.

Each is asked of the whole server on a small model in float32: plain and drafted, in one piece and streamed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import httpx
import pytest
from transformers import PreTrainedModel

from engine.async_engine import AsyncEngine
from engine.speculation.prediction import PredictionDrafter
from engine.speculation.suffix import SuffixDrafter
from server.app import create_app
from server.chat_protocol import ChatRequest
from server.chat_unserved import ChatUnservedFields
from server.completion_protocol import CompletionRequest
from server.settings import ServerSettings
from server.unserved import UnservedFields
from tests.contract.answers import Answer, Json, parse_events, streamed, whole
from tests.contract.fields import BOTH, COMPLETIONS, ELSEWHERE, FIELDS, MAX_TOKENS, PROMPT, TOKENIZER, Field
from tests.fakes import fake_info
from tests.tiny import build_core, one_thread, stable_llama

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
OFF = {"speculation": {"mode": "off"}}
CASES = [pytest.param(route, field, id=f"{route}.{field.name}") for field in FIELDS for route in field.routes]


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(steady: None) -> PreTrainedModel:
    return stable_llama(vocab_size=400, sharpness=0.05)


@pytest.fixture
async def client(model: PreTrainedModel) -> AsyncGenerator[httpx.AsyncClient]:
    drafter = PredictionDrafter(SuffixDrafter(min_match_length=1, min_survival=0.0))
    info = fake_info(vocab_size=400, max_model_len=128, num_kv_tokens=1020, num_speculative_tokens=6)
    engine = AsyncEngine(build_core(model, drafter=drafter), TOKENIZER, info, max_num_requests=64)
    app = create_app(engine, ServerSettings(served_model_names=("tiny", "alias")))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


async def ask(client: httpx.AsyncClient, route: str, fields: Json, *, streams: bool = False) -> Answer:
    given: Json = {"prompt": PROMPT} if route == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    given |= {"model": "tiny", "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 5, "return_token_ids": True}
    if streams:
        given |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(PATHS[route], json=given | fields)
    assert response.status_code == 200, response.text
    return streamed(parse_events(response.text)) if streams else whole(response.json())


@pytest.mark.parametrize(("route", "field"), CASES)
async def test_a_field_does_what_it_says(client: httpx.AsyncClient, route: str, field: Field) -> None:
    plain = await ask(client, route, field.without | OFF)
    body = field.without | field.body_after(plain)
    answer = await ask(client, route, body | OFF)
    assert answer.num_drafted == 0
    assert field.proof(answer, plain)
    drafted = await ask(client, route, body)
    assert drafted.said == answer.said
    if field.same_as is not None:
        assert answer.choices == (await ask(client, route, field.without | field.same_as)).choices
    if field.streams:
        for more in (OFF, {}):
            assert (await ask(client, route, body | more, streams=True)).said == answer.said


async def test_the_requests_are_drafted(client: httpx.AsyncClient) -> None:
    for route in BOTH:
        assert (await ask(client, route, {})).num_drafted > 5
        assert (await ask(client, route, {}, streams=True)).num_drafted > 5


def test_every_field_has_its_line() -> None:
    described = {f"{route}.{field.name}" for field in FIELDS for route in field.routes}
    described |= {f"{route}.{name}" for name in ELSEWHERE for route in BOTH} | set(ELSEWHERE)
    for route, model_type, unserved in (
        ("completions", CompletionRequest, [UnservedFields]),
        ("chat", ChatRequest, [UnservedFields, ChatUnservedFields]),
    ):
        served = set(model_type.model_fields) - {name for fields in unserved for name in fields.model_fields}
        assert {f"{route}.{name}" for name in served} <= described
