"""What goes with no model, or not with this one, is refused by name and with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from engine.admission import Admission
from engine.errors import InvalidRequest
from tests.engine.house import request_for
from tests.fakes import fake_info

END = frozenset({0})


def check(vocab_size: int = 6, **params: Any) -> None:
    Admission(fake_info(vocab_size=vocab_size), END).check(request_for(**params), [1, 2, 3])


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"])
@pytest.mark.parametrize("token_id", [-1, 6, 10**30])
def test_an_id_outside_the_vocabulary_is_named(name: str, token_id: int) -> None:
    kinds: dict[str, Any] = {"logprob_token_ids": tuple, "logit_bias": lambda ids: dict.fromkeys(ids, 1.0)}
    with pytest.raises(InvalidRequest, match=rf"{name} holds token id {token_id}, .* 0\.\.5") as caught:
        check(**{name: kinds.get(name, frozenset)([3, token_id, 5]), "logprobs": 0})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"allowed_token_ids": frozenset({0}), "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": frozenset({0, 4}), "min_tokens": 1, "stop_token_ids": {4}}, "allowed_token_ids"),
        ({"allowed_token_ids": frozenset({2, 3}), "bad_words": ((2,), (1, 3))}, "allowed_token_ids"),
        ({"bad_words": tuple((token,) for token in range(6))}, "bad_words"),
        ({"bad_words": tuple((token,) for token in range(1, 6)), "min_tokens": 1}, "bad_words"),
    ],
)
def test_some_token_must_always_be_left(params: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match="must leave a token") as caught:
        check(**params)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": frozenset({0})},
        {"allowed_token_ids": frozenset({0, 4}), "min_tokens": 1},
        {"allowed_token_ids": frozenset({2, 3}), "bad_words": ((2,), (3, 2))},
        {"bad_words": tuple((token,) for token in range(1, 6))},
    ],
)
def test_one_is_enough(params: dict[str, Any]) -> None:
    check(**params)
