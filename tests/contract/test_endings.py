"""An end that falls inside a run of accepted tokens is where plain decoding would have ended."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import httpx
import pytest

from tests.contract.answers import Answer, Json
from tests.contract.asking import OFF, SCORES, ask
from tests.contract.field import ALWAYS_END, BOTH, MAX_TOKENS, TOKENIZER
from tests.drafters import KnowingDrafter

RUN = 7  # six tokens of a draft, and one
PLACE = 11


def _stop_inside_a_run(plain: Answer) -> str:
    text, token_ids = plain.only.text, plain.only.token_ids
    for start in range(len(text) // 2, len(text) - 3):
        stop = text[start : start + 3]
        end = next(end for end in range(1, MAX_TOKENS + 1) if stop in TOKENIZER.decode(token_ids[:end]))
        if end % RUN:
            return stop
    raise AssertionError(f"no such string in {text!r}")


ENDS: dict[str, Callable[[Answer], Json]] = {
    "stop": lambda plain: {"stop": [_stop_inside_a_run(plain)]},
    "stop in the text": lambda plain: {"stop": [_stop_inside_a_run(plain)], "include_stop_str_in_output": True},
    "stop_token_ids": lambda plain: {"stop_token_ids": [plain.only.token_ids[PLACE]]},
    "max_tokens": lambda plain: {"max_tokens": PLACE, "ignore_eos": True},
    "end token": lambda plain: ALWAYS_END | {"min_tokens": PLACE},
}
ENDLESS: dict[str, Json] = {"end token": ALWAYS_END | {"min_tokens": PLACE, "ignore_eos": True}}


@pytest.mark.parametrize("temperature", [0, 0.3, 1])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("route", BOTH)
async def test_an_end_inside_a_run(
    foreseen: httpx.AsyncClient, oracle: KnowingDrafter, route: str, end: str, temperature: float
) -> None:
    common: Json = {"temperature": temperature, **SCORES[route]}
    endless = common | ENDLESS.get(end, {"ignore_eos": True})
    plain = await ask(foreseen, route, endless | OFF)
    assert len(plain.only.token_ids) == MAX_TOKENS
    oracle.said = plain.only.token_ids
    ended = common | ENDS[end](plain)
    answer = await ask(foreseen, route, ended | OFF)
    assert answer.num_drafted == 0
    assert answer.only.finish_reason == ("length" if end == "max_tokens" else "stop")
    assert len(answer.only.logprobs or ()) == len(answer.only.token_ids) < MAX_TOKENS
    assert answer.usage["completion_tokens"] == len(answer.only.token_ids)
    for more, is_stream in ((OFF, True), ({}, False), ({}, True)):
        assert (await ask(foreseen, route, ended | more, streams=is_stream)).said == answer.said
    runs = (await ask(foreseen, route, endless, streams=True)).only.runs
    assert [run for run in runs if run] == [RUN] * (MAX_TOKENS // RUN) + [MAX_TOKENS % RUN]
    assert len(answer.only.token_ids) not in accumulate(runs), "the end is inside a run, and not at its edge"
