"""An end that falls inside a run of accepted tokens is where plain decoding would have ended."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.contract.answers import Answer, Json
from tests.contract.asking import OFF, ask
from tests.contract.fields import BOTH, COMPLETIONS, MAX_TOKENS

PLACE = 13  # behind more tokens than a first draft has, and before the end of the second
ENDS: dict[str, Callable[[Answer], Json]] = {
    "stop": lambda plain: {"stop": [plain.only.text[-8:-5]]},
    "stop in the text": lambda plain: {"stop": [plain.only.text[-8:-5]], "include_stop_str_in_output": True},
    "stop_token_ids": lambda plain: {"stop_token_ids": [plain.only.token_ids[PLACE]]},
    "max_tokens": lambda plain: {"max_tokens": PLACE},
    "end token": lambda plain: {"logit_bias": {"0": 100}, "min_tokens": PLACE},
}


@pytest.mark.parametrize("temperature", [0, 0.1])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("route", BOTH)
async def test_an_end_inside_a_run(client: httpx.AsyncClient, route: str, end: str, temperature: float) -> None:
    scores = {"logprobs": 2} if route == COMPLETIONS else {"logprobs": True, "top_logprobs": 2}
    common: Json = {"temperature": temperature, **scores}
    plain = await ask(client, route, common | OFF)
    assert len(plain.only.token_ids) == MAX_TOKENS
    # The whole of what would come without the end is predicted, so that runs go on beyond it.
    common |= ENDS[end](plain) | {"prediction": {"type": "content", "content": plain.only.text + "more"}}
    answer = await ask(client, route, common | OFF)
    assert answer.num_drafted == 0
    assert answer.only.finish_reason == ("length" if end == "max_tokens" else "stop")
    assert len(answer.only.logprobs or ()) == len(answer.only.token_ids) < MAX_TOKENS
    drafted = await ask(client, route, common)
    assert drafted.said == answer.said
    if temperature == 0 and end != "end token":
        assert drafted.num_drafted > len(answer.only.token_ids) - 4, "hardly a step without a run"
    for more in (OFF, {}):
        assert (await ask(client, route, common | more, streams=True)).said == answer.said
