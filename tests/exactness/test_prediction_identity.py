"""A predicted output changes how many steps an answer takes and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from transformers import PreTrainedModel

from engine.core import EngineCore
from engine.sequence import Sequence
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.suffix import SuffixDrafter
from tests.drafters import auto
from tests.exactness.test_tiny_identity import HOT, MAX_TOKENS, REQUESTS, SHARED, Answer, answer_of
from tests.sequences import make_sequence, run, tokens_of
from tests.tiny import VOCAB_SIZE, build_core, one_thread, stable_llama

Edit = Callable[[list[int]], list[int]]
EDITS: dict[str, Edit] = {
    "exact": lambda tokens: tokens,
    "longer": lambda tokens: [*tokens, 3, 4, 5, 6],
    "shorter": lambda tokens: tokens[: len(tokens) // 2 + 1],
    "replaced": lambda tokens: [token if i % 5 else (token + 1) % VOCAB_SIZE for i, token in enumerate(tokens)],
    "shifted": lambda tokens: [60, 61, *tokens[3:]],
    "wrong": lambda tokens: [(token + 17) % VOCAB_SIZE for token in tokens],
    "repeated": lambda tokens: tokens[:1] * 50,
}


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(steady: None) -> PreTrainedModel:
    return stable_llama()


def request_for(name: str, length: int = 0, prediction: list[int] | None = None) -> Sequence:
    number = list(REQUESTS).index(name)
    params = {"seed": 1000 + number, "max_tokens": MAX_TOKENS} | REQUESTS[name]
    prompt = [*SHARED, 20 + number, 40]
    return make_sequence(name, prompt, num_speculative_tokens=length, prediction=prediction or (), **params)


@pytest.fixture(scope="module")
def plain(model: PreTrainedModel) -> dict[str, Answer]:
    return {name: answer_of(run(build_core(model), [request_for(name)])[name]) for name in REQUESTS}


@pytest.mark.parametrize("sizes", [{}, {"max_num_seqs": 7, "max_num_batched_tokens": 7}, {"num_blocks": 24}], ids=str)
@pytest.mark.parametrize("edit", EDITS)
def test_no_prediction_changes_an_answer(
    model: PreTrainedModel, plain: dict[str, Answer], edit: str, sizes: dict[str, int]
) -> None:
    core = build_core(model, drafter=auto(SuffixDrafter(min_match_length=1, min_survival=0.0)), **sizes)
    sequences = [request_for(name, 6, EDITS[edit](list(plain[name][0]))) for name in REQUESTS]  # type: ignore[call-overload]
    outputs = run(core, sequences)
    assert {name: answer_of(outputs[name]) for name in REQUESTS} == plain
    if edit == "exact":
        assert all(s.metrics().num_rejected_prediction_tokens == 0 for s in sequences if s.prediction)
        assert sizes or sum(sequence.num_steps for sequence in sequences) < 8 * len(sequences)


@pytest.mark.parametrize("params", [{}, HOT], ids=["greedy", "hot"])
def test_two_hundred_tokens_as_predicted_need_a_quarter_of_the_forwards(
    model: PreTrainedModel, params: dict[str, float]
) -> None:
    def answer(drafter: Drafter, length: int, prediction: list[int]) -> tuple[list[int], int]:
        core: EngineCore = build_core(model, drafter=drafter)
        sequence = make_sequence(
            "edit",
            SHARED,
            num_speculative_tokens=length,
            prediction=prediction,
            max_tokens=200,
            ignore_eos=True,
            **params,
        )
        return tokens_of(run(core, [sequence])["edit"]), sequence.num_steps

    expected, num_plain = answer(NullDrafter(), 0, [])
    assert (len(expected), num_plain) == (200, 200)
    tokens, num_steps = answer(auto(), 6, expected)
    assert tokens == expected
    assert num_steps <= 12  # 7, 15, 29 and then 33 a step
    # Every thirtieth token another one: the place is found again each time.
    edited = [token if i % 30 else 95 - token for i, token in enumerate(expected, start=1)]
    tokens, num_steps = answer(auto(), 6, edited)
    assert tokens == expected
    assert num_steps <= 50
