"""An end that falls inside a run of accepted tokens is where plain decoding would have ended."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import httpx
import pytest

from tests.contract.answers import Answer, Json
from tests.contract.asking import OFF, SCORES, ask
from tests.contract.field import ALWAYS_END, BOTH, MAX_TOKENS, TOKENIZER

PLACE = 13  # behind more tokens than a first draft has, and before the end of the second
ENDS: dict[str, Callable[[Answer], Json]] = {
    "stop": lambda plain: {"stop": [plain.only.text[-8:-5]]},
    "stop in the text": lambda plain: {"stop": [plain.only.text[-8:-5]], "include_stop_str_in_output": True},
    "stop_token_ids": lambda plain: {"stop_token_ids": [plain.only.token_ids[PLACE]]},
    "max_tokens": lambda plain: {"max_tokens": PLACE},
    "end token": lambda plain: ALWAYS_END | {"min_tokens": PLACE},
}
ENDLESS: dict[str, Json] = {"end token": ALWAYS_END | {"min_tokens": PLACE, "ignore_eos": True}}


@pytest.mark.parametrize("temperature", [0, 0.1])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("route", BOTH)
async def test_an_end_inside_a_run(client: httpx.AsyncClient, route: str, end: str, temperature: float) -> None:
    common: Json = {"temperature": temperature, **SCORES[route]}
    endless = ENDLESS.get(end, {})
    plain = await ask(client, route, common | endless | OFF)
    assert len(plain.only.token_ids) == MAX_TOKENS
    # All that would come without the end is predicted, so that runs go on beyond it.
    predicted = TOKENIZER.decode(plain.only.token_ids, skip_special_tokens=False)
    common |= {"prediction": {"type": "content", "content": predicted}}
    ended = common | ENDS[end](plain)
    answer = await ask(client, route, ended | OFF)
    assert answer.num_drafted == 0
    assert answer.only.finish_reason == ("length" if end == "max_tokens" else "stop")
    assert len(answer.only.logprobs or ()) == len(answer.only.token_ids) < MAX_TOKENS
    assert answer.usage["completion_tokens"] == len(answer.only.token_ids)
    for more, is_stream in ((OFF, True), ({}, False), ({}, True)):
        assert (await ask(client, route, ended | more, streams=is_stream)).said == answer.said
    if temperature == 0:
        runs = (await ask(client, route, common | endless, streams=True)).only.runs
        assert len(answer.only.token_ids) not in accumulate(runs), "the end is inside a run, and not at its edge"
