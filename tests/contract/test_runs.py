"""What looks back at the output sees the tokens of a draft too, each as if it had been confirmed.

Few letters may be drawn, so that they come again within one run of accepted tokens.
"""

from __future__ import annotations

import httpx
import pytest

from tests.contract.answers import Json
from tests.contract.asking import OFF, SCORES, ask
from tests.contract.field import BOTH, MAX_TOKENS, TOKENIZER
from tests.drafters import KnowingDrafter

LETTERS = "bcjqxz"
BAD_WORDS = [left + right for left in "bcj" for right in "qxz"]
FIELDS: dict[str, Json] = {
    "repetition_penalty": {"repetition_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "presence_penalty": {"presence_penalty": 2.0},
    "bad_words": {"bad_words": BAD_WORDS},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("route", BOTH)
async def test_each_token_of_a_run_counts_for_the_next(
    foreseen: httpx.AsyncClient, oracle: KnowingDrafter, route: str, name: str, seed: int
) -> None:
    letters = TOKENIZER.encode(LETTERS, add_special_tokens=False)
    assert len(letters) == len(LETTERS)
    without: Json = {
        "allowed_token_ids": letters,
        "logit_bias": {str(letter): 5 for letter in letters},  # that a factor makes a difference
        "temperature": 1,
        "seed": seed,
        **SCORES[route],
    }
    plain = await ask(foreseen, route, without | OFF)
    answer = await ask(foreseen, route, without | FIELDS[name] | OFF)
    assert answer.only.token_ids != plain.only.token_ids
    assert not any(word in answer.only.text for word in FIELDS[name].get("bad_words", ()))
    oracle.said = answer.only.token_ids
    drafted = await ask(foreseen, route, without | FIELDS[name])
    assert drafted.said == answer.said
    assert drafted.num_accepted > 3 / 4 * MAX_TOKENS
