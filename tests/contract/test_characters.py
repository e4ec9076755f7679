"""No client sees half a character: what is split over tokens, steps and runs of accepted drafts comes out whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from engine.async_engine import AsyncEngine
from engine.tokenizer import Tokenizer
from tests import vocabularies
from tests.contract.answers import Json
from tests.contract.asking import OFF, SCORES, ask
from tests.contract.field import BOTH, CHAT, TOKENIZER
from tests.drafters import KnowingDrafter
from tests.engine.test_recited_text import one_token_a_byte
from tests.fakes import fake_info
from tests.scripted import RecitingSampler, ScriptedEngine
from tests.server.harness import serve

# The character that stands for what is none is one itself, and models know it.
TEXT = "the é e\u0301 ñ 日本語 𠮷 한국 क्षि مرحبا 🙂 👩‍👩‍👧 🇩🇪 👍🏽 \ufffd the end"
TOKENIZERS = {
    "byte level": Tokenizer(vocabularies.byte_level()),
    "byte fallback": Tokenizer(vocabularies.byte_fallback(chat_template=vocabularies.CHAT_TEMPLATE)),
}
_BYTES = {bytes([byte]) for byte in "é日🙂".encode()}


def spell(tokenizer: Tokenizer) -> list[int]:
    """The text in bytes, as far as the vocabulary has no piece that must be used."""
    return one_token_a_byte(TEXT) if tokenizer.is_byte_level else tokenizer.encode(TEXT, add_special_tokens=False)


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


@pytest.fixture
async def reciting(tokenizer: Tokenizer) -> AsyncGenerator[httpx.AsyncClient]:
    """A server that says the text, drafted by one who is mostly right."""
    said = spell(tokenizer)
    core = ScriptedEngine(
        drafter=KnowingDrafter(said, accuracy=0.9), sampler=RecitingSampler(said), num_blocks=512
    ).core
    info = fake_info(vocab_size=400, max_model_len=512, num_kv_tokens=2044, num_speculative_tokens=5)
    async with serve(AsyncEngine(core, tokenizer, info, max_num_requests=8), served_model_names=("tiny",)) as client:
        yield client


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"ignore_eos": True}], ids=str)
async def test_every_piece_is_made_of_whole_characters(
    reciting: httpx.AsyncClient, tokenizer: Tokenizer, route: str, fields: Json
) -> None:
    said = spell(tokenizer)
    assert len(said) > 1.5 * len(TEXT), "most characters are split"
    common = {"max_tokens": len(said)} | SCORES[route] | fields
    plain = await ask(reciting, route, common | OFF)
    assert plain.num_drafted == 0
    for more, is_stream in ((OFF, True), ({}, False), ({}, True)):
        answer = await ask(reciting, route, common | more, streams=is_stream)
        assert answer.said == plain.said
        assert (answer.num_accepted > len(said) / 3) == (more == {})
        for choice in answer.choices:
            assert choice.text == TEXT
            assert choice.token_ids == said
            assert len(choice.pieces) > 10 or not is_stream
            joined = ""
            for piece in choice.pieces:
                joined += piece
                assert TEXT.startswith(joined), piece


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("stop", ["日本", "본", "국 क", "\u0301", "👩\u200d", "\ufffd", "𠮷 한"])
async def test_a_stop_string_of_split_characters(reciting: httpx.AsyncClient, route: str, stop: str) -> None:
    common = {"max_tokens": 400, "stop": [stop]}
    plain = await ask(reciting, route, common | OFF)
    before, found, _ = TEXT.partition(stop)
    assert plain.only.text == before
    assert plain.only.stop_reason == (found or None)
    for more, is_stream in ((OFF, True), ({}, False), ({}, True)):
        assert (await ask(reciting, route, common | more, streams=is_stream)).said == plain.said


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("max_tokens", range(1, 40, 3))
async def test_only_the_limit_may_cut_a_character(
    reciting: httpx.AsyncClient, tokenizer: Tokenizer, route: str, max_tokens: int
) -> None:
    expected = tokenizer.decode(spell(tokenizer)[:max_tokens])
    for more in (OFF, {}):
        for is_stream in (False, True):
            answer = await ask(reciting, route, {"max_tokens": max_tokens, **more}, streams=is_stream)
            assert answer.only.text == expected
            assert "\ufffd" not in "".join(answer.only.pieces[:-1])


async def test_bytes_of_the_tokens_are_those_of_the_text(reciting: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    answer = await ask(reciting, CHAT, {"max_tokens": len(spell(tokenizer)), "logprobs": True}, streams=True)
    spelled = bytes(byte for entry in answer.only.logprobs or () for byte in entry["bytes"])
    assert spelled.decode().lstrip() == TEXT


@pytest.mark.parametrize("route", BOTH)
async def test_bytes_that_make_no_characters(client: httpx.AsyncClient, route: str) -> None:
    """Drawn at random they are cut, doubled and out of place; what they say is what all of them together decode to."""
    byte_ids = [token_id for token_id in range(400) if TOKENIZER.token_bytes(token_id) in _BYTES]
    assert len(byte_ids) == len(_BYTES)
    fields = {"allowed_token_ids": byte_ids, "temperature": 2, "n": 4, "max_tokens": 40} | SCORES[route]
    plain = await ask(client, route, fields | OFF)
    texts = [choice.text for choice in plain.choices]
    assert texts == [TOKENIZER.decode(choice.token_ids) for choice in plain.choices]
    assert any("\ufffd" in text for text in texts)
    assert any(set("é日🙂") & set(text) for text in texts)
    for more, is_stream in ((OFF, True), ({}, False), ({}, True)):
        assert (await ask(client, route, fields | more, streams=is_stream)).said == plain.said
