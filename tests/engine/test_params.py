"""The ranges of one request's parameters: the field and the numbers are in the message."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.params import SamplingParams


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be at least 0, not -1"),
        ({"min_tokens": 17}, r"min_tokens must lie between 0 and max_tokens \(16\), not 17"),
        ({"temperature": math.nan}, "temperature must lie between 0 and 2, not nan"),
        ({"logit_bias": {7: 101.0}}, r"logit_bias .* not 101.0 \(token 7\)"),
        ({"stop": ("a", "")}, "stop must not hold an empty string"),
        ({"stop": ("x" * 1001,)}, "stop may hold strings of 1000 characters, not of 1001"),
        ({"allowed_token_ids": frozenset()}, "allowed_token_ids must allow at least one token"),
        ({"bad_words": ((1,), ())}, "bad_words must not hold an empty word"),
        ({"logprobs": -1}, "logprobs must be at least 0, not -1"),
        ({"prompt_logprobs": -2}, "prompt_logprobs must be at least 0, not -2"),
        ({"logprob_token_ids": (1,), "logprobs": 1, "max_tokens": 0}, "for generated tokens, but max_tokens is 0"),
        ({"logprob_token_ids": (1,)}, "logprob_token_ids is for requests with logprobs only"),
    ],
)
def test_refusals(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        SamplingParams(seed=0, **params)
    assert caught.value.param == next(iter(params))
