"""Text through the whole engine: characters of several tokens, special tokens and stop strings, drafted and not.

The target recites a text. Tokens are bytes, so that every character above ASCII is split, and stop strings straddle.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from engine.detokenizer import Detokenizer
from engine.params import SamplingParams, SpeculationParams
from engine.sequence import Sequence
from engine.types import RequestOutput
from tests.drafters import SometimesRightDrafter
from tests.engine.test_detokenizer import cut
from tests.engine.tokenizers import byte_level
from tests.scripted import RecitingSampler, ScriptedEngine
from tests.sequences import run

TEXT = "naïve 🙂🎉 日本<|end|>語 — the é end"
PROMPT = [1, 2, 3]


def one_token_a_byte(text: str) -> list[int]:
    """``<|end|>`` is the one special token, id 0."""
    tokenizer = byte_level()
    token_of = {tokenizer.token_bytes(i): i for i in range(400) if len(tokenizer.token_bytes(i)) == 1}
    parts = [[token_of[bytes([byte])] for byte in part.encode()] for part in text.split("<|end|>")]
    return [token for index, part in enumerate(parts) for token in ([0] if index else []) + part]


SAID = one_token_a_byte(TEXT)


def recite(accuracy: float, length: int, **options: Any) -> tuple[Sequence, list[RequestOutput]]:
    params = SamplingParams(
        seed=0, temperature=0.0, ignore_eos=True, logprobs=0, **({"max_tokens": len(SAID)} | options)
    )
    sequence = Sequence(
        "a",
        PROMPT,
        params,
        text=Detokenizer(
            byte_level(),
            params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        ),
        speculation=SpeculationParams(),
        num_speculative_tokens=length,
    )
    drafter = SometimesRightDrafter(lambda ids: (SAID * 2)[len(ids) - len(PROMPT)], 400, accuracy=accuracy)
    engine = ScriptedEngine(drafter=drafter, sampler=RecitingSampler(SAID))
    return sequence, run(engine.core, [sequence])["a"]


def seen(sequence: Sequence, outputs: list[RequestOutput]) -> dict[str, Any]:
    last = outputs[-1]
    assert last.metrics is not None
    return {
        "text": "".join(output.text for output in outputs),
        "token_ids": [token for output in outputs for token in output.token_ids],
        "logprobs": [entry for output in outputs for entry in output.logprobs or []],
        "usage": last.metrics.num_output_tokens,
        "reasons": (last.finish_reason, last.stop_reason),
    }


STOPS: list[tuple[str, ...]] = [(), ("🎉",), ("本<|end|>語",), ("本語",), (" — th", "the"), ("é end",), ("x",)]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("include", "skip"), list(product([False, True], repeat=2)))
def test_the_text_is_the_same_whatever_was_drafted(stop: tuple[str, ...], include: bool, skip: bool) -> None:
    options: dict[str, Any] = {"stop": stop, "include_stop_str_in_output": include, "skip_special_tokens": skip}
    plain = seen(*recite(0.0, 0, **options))
    whole = TEXT.replace("<|end|>", "") if skip else TEXT
    assert plain["text"] == cut(whole, stop, include_stop=include)
    for accuracy, length in product([0.5, 0.9, 1.0], [1, 4, 8]):
        assert seen(*recite(accuracy, length, **options)) == plain


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop_token", [0, SAID[3], SAID[-1]])
def test_a_stop_token_in_the_middle_of_a_character_and_between(stop_token: int, include: bool) -> None:
    """What is cut is cut as decoding the tokens cuts it."""
    options: dict[str, Any] = {
        "stop_token_ids": frozenset({stop_token}),
        "include_stop_str_in_output": include,
        "skip_special_tokens": False,
    }
    plain = seen(*recite(0.0, 0, **options))
    end = SAID.index(stop_token)
    assert plain["token_ids"] == SAID[: end + 1]
    assert plain["text"] == byte_level().decode(SAID[: end + include], skip_special_tokens=False)
    for accuracy, length in product([0.5, 1.0], [1, 8]):
        assert seen(*recite(accuracy, length, **options)) == plain


@pytest.mark.parametrize("max_tokens", range(1, 30, 3))
def test_no_replacement_character_but_where_the_limit_cuts_one(max_tokens: int) -> None:
    drafted = seen(*recite(1.0, 8, max_tokens=max_tokens, skip_special_tokens=False))
    assert drafted == seen(*recite(0.0, 0, max_tokens=max_tokens, skip_special_tokens=False))
    assert drafted["text"] == byte_level().decode(SAID[:max_tokens], skip_special_tokens=False)
    assert "\ufffd" not in drafted["text"][:-1]


def test_nothing_of_a_character_is_given_before_its_last_byte() -> None:
    for accuracy, length in product([0.0, 0.7, 1.0], [1, 5]):
        _, outputs = recite(accuracy, length, skip_special_tokens=False)
        assert all("\ufffd" not in output.text for output in outputs)
