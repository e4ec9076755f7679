"""Promise 1 on a tiny model in float32: the same answer with every drafter, draft length, neighbour, chunk and cache.

Every comparison is with the request alone, undrafted, in a cold engine, and covers all that a client gets: tokens,
text, reasons, and log-probabilities to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.core import EngineCore
from engine.model.native_modules import nativise
from engine.model.quantisation import QuantisedType
from engine.model.row_stable import stabilise
from engine.native.functions import NativeLibrary
from engine.sequence import Sequence
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.shared_suffix import SharedSuffixIndex
from engine.speculation.suffix import SuffixDrafter
from engine.types import RequestOutput, SpeculationStats
from tests.drafters import RandomDrafter, ReplayDrafter
from tests.sequences import make_sequence, run, tokens_of
from tests.tiny import ARCHITECTURES, VOCAB_SIZE, build_core, one_thread, stable_llama

MAX_TOKENS = 24
HOT: dict[str, Any] = {"temperature": 1.0}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "hot": HOT,
    "penalties": {"frequency_penalty": 0.6, "presence_penalty": 0.4},
    "hot penalties": HOT | {"frequency_penalty": -0.5, "presence_penalty": 0.9},
    "repetition": {"repetition_penalty": 1.3},
    "bias": HOT | {"logit_bias": {3: 2.5, 60: -100.0, 11: 1.0}},
    "top_k": HOT | {"top_k": 3},
    "top_p": {"temperature": 0.7, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.15},
    "stop": {"stop": ("13 14 15", "95 ")},
    "hot stop": HOT | {"stop": ("7", "4 5")},
    "min_tokens": {"min_tokens": 15, "logit_bias": {0: 100.0}},
    "end": HOT | {"logit_bias": {0: 4.0}},
    "logprobs": {"logprobs": 5},
    "hot logprobs": HOT | {"logprobs": 2, "prompt_logprobs": 3, "top_p": 0.9, "repetition_penalty": 1.1},
    "allowed": HOT | {"allowed_token_ids": frozenset(range(8, 40))},
    "bad words": {"bad_words": ((13, 14), (9, 10, 11), (8,))},
    "hot bad words": HOT | {"bad_words": tuple((a, b) for a in range(8, 24) for b in range(0, 96, 5))},
    "stop token": HOT | {"stop_token_ids": frozenset(range(90, 96))},
    "stop token in the text": HOT | {"stop_token_ids": frozenset({12, 14}), "include_stop_str_in_output": True},
    "stop in the text": HOT | {"stop": ("9", "2 5"), "include_stop_str_in_output": True, "min_tokens": 3},
    "no stop token yet": {"stop_token_ids": frozenset({11, 12}), "min_tokens": 9},
    "chosen logprobs": HOT | {"logprobs": 1, "logprob_token_ids": (95, 8, 9, 20)},
    "everything": {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {5: 1.0},
        "logprobs": 20,
        "min_tokens": 3,
        "allowed_token_ids": frozenset(range(70)),
        "bad_words": ((60,), (9, 10)),
        "stop_token_ids": frozenset({69}),
    },
}
SHARED = [8, 9, 10, 11, 12, 13, 14, 15] * 2
DRAFTERS = ["suffix", "shared", "random", "oracle"]
LENGTHS = [1, 4, 8]

Answer = tuple[object, ...]


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(steady: None) -> PreTrainedModel:
    return stable_llama()


def request_for(name: str, length: int = 0, *, seed_shift: int = 0) -> Sequence:
    """Each has its own seed and its own end of the prompt; most begin alike."""
    number = list(REQUESTS).index(name)
    own = [20 + number, 21 + number, 40, 20 + number]
    prompt = SHARED + own if number % 4 else own[:1]
    params = {"seed": 1000 + number + seed_shift, "max_tokens": MAX_TOKENS} | REQUESTS[name]
    return make_sequence(name, prompt, num_speculative_tokens=length, **params)


def answer_of(outputs: list[RequestOutput]) -> Answer:
    ends = [output.finish_reason for output in outputs if output.finish_reason is not None]
    assert len(ends) == 1
    return (
        tokens_of(outputs),
        "".join(output.text for output in outputs),
        outputs[-1].finish_reason,
        outputs[-1].stop_reason,
        [entry for output in outputs for entry in output.logprobs or []],
        [entry for output in outputs for entry in output.prompt_logprobs or []],
    )


def answer_all(core: EngineCore, length: int) -> tuple[dict[str, Answer], list[Sequence]]:
    """Every request at once, each the others' neighbour."""
    sequences = [request_for(name, length) for name in REQUESTS]
    outputs = run(core, sequences)
    return {name: answer_of(outputs[name]) for name in REQUESTS}, sequences


@pytest.fixture(scope="module")
def plain(model: PreTrainedModel) -> dict[str, Answer]:
    """The answer to each request, alone and undrafted."""
    return {name: answer_of(run(build_core(model), [request_for(name)])[name]) for name in REQUESTS}


def make_drafter(kind: str, plain: dict[str, Answer]) -> Drafter:
    match kind:
        case "none":
            return NullDrafter()
        case "suffix":
            return SuffixDrafter(min_match_length=1, min_survival=0.0)
        case "shared":
            return SuffixDrafter(min_match_length=1, min_survival=0.0, shared=full_of(plain))
        case "random":
            return RandomDrafter(VOCAB_SIZE)
    return ReplayDrafter({name: list(answer[0]) for name, answer in plain.items()})  # type: ignore[call-overload]


def full_of(plain: dict[str, Answer]) -> SharedSuffixIndex:
    """Half of each answer, as if half of the requests had been here before."""
    shared = SharedSuffixIndex(10_000)
    for answer in plain.values():
        tokens = list(answer[0])  # type: ignore[call-overload]
        shared.add("", tokens[: len(tokens) // 2 + 1])
    return shared


def total(sequences: list[Sequence]) -> SpeculationStats:
    stats = SpeculationStats(8)
    for sequence in sequences:
        stats.num_drafts += sequence.stats.num_drafts
        stats.num_draft_tokens += sequence.stats.num_draft_tokens
        stats.num_accepted_tokens += sequence.stats.num_accepted_tokens
    return stats


def check_teeth(kind: str, length: int, stats: SpeculationStats) -> None:
    """The drafter did what it is here for."""
    num_rejected = stats.num_draft_tokens - stats.num_accepted_tokens
    if kind == "none":
        assert stats.num_drafts == 0
    elif kind in ("suffix", "shared"):
        assert stats.num_accepted_tokens > 10
        assert num_rejected > 10
    elif kind == "random":
        assert num_rejected > 100
        assert stats.acceptance_rate < 0.2
    else:
        assert stats.num_accepted_tokens > 100
        assert stats.acceptance_rate > 0.9


def test_the_requests_are_worth_comparing(plain: dict[str, Answer]) -> None:
    """They stop for every reason, and parameters and noise change what is said."""
    reasons = {(str(answer[2]), type(answer[3])) for answer in plain.values()}
    assert reasons == {("stop", str), ("stop", int), ("stop", NoneType), ("length", NoneType)}
    assert len({str(answer[0]) for answer in plain.values()}) == len(plain)
    tokens = plain["min_tokens"][0]
    assert isinstance(tokens, list)
    assert (len(tokens), tokens[-1]) == (16, 0)


def test_another_seed_is_another_answer(model: PreTrainedModel, plain: dict[str, Answer]) -> None:
    again = run(build_core(model), [request_for("hot", seed_shift=1)])["hot"]
    assert answer_of(again) != plain["hot"]


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_alone(model: PreTrainedModel, plain: dict[str, Answer], kind: str, length: int) -> None:
    core = build_core(model, drafter=make_drafter(kind, plain), enable_prefix_caching=False)
    sequences = [request_for(name, length) for name in REQUESTS]
    for sequence in sequences:
        assert answer_of(run(core, [sequence])[sequence.request_id]) == plain[sequence.request_id]
    check_teeth(kind, length, total(sequences))


@pytest.mark.parametrize(("kind", "length"), [("none", 0), *((kind, n) for kind in DRAFTERS for n in LENGTHS)])
def test_with_fifteen_neighbours(model: PreTrainedModel, plain: dict[str, Answer], kind: str, length: int) -> None:
    answers, sequences = answer_all(build_core(model, drafter=make_drafter(kind, plain)), length)
    assert answers == plain
    check_teeth(kind, length, total(sequences))


@pytest.mark.parametrize(("kind", "length"), [("none", 0), ("suffix", 8), ("shared", 8), ("random", 8), ("oracle", 4)])
def test_with_chunked_prefill(model: PreTrainedModel, plain: dict[str, Answer], kind: str, length: int) -> None:
    core = build_core(model, drafter=make_drafter(kind, plain), max_num_seqs=7, max_num_batched_tokens=7)
    answers, _ = answer_all(core, length)
    assert answers == plain


@pytest.mark.parametrize(("kind", "length"), [("none", 0), ("suffix", 8), ("shared", 8), ("random", 8), ("oracle", 4)])
@pytest.mark.parametrize("caching", [True, False])
def test_with_preemption(
    model: PreTrainedModel, plain: dict[str, Answer], kind: str, length: int, caching: bool
) -> None:
    core = build_core(
        model,
        drafter=make_drafter(kind, plain),
        num_blocks=30,
        enable_prefix_caching=caching,
        max_num_batched_tokens=40,
    )
    answers, sequences = answer_all(core, length)
    assert answers == plain
    assert sum(sequence.num_preemptions for sequence in sequences) > 0


@pytest.mark.parametrize(("kind", "length"), [("none", 0), ("suffix", 8), ("shared", 8), ("random", 8), ("oracle", 4)])
def test_with_prefix_cache_hits(model: PreTrainedModel, plain: dict[str, Answer], kind: str, length: int) -> None:
    """In an engine that has answered it all before, and drafted wrongly while it did."""
    core = build_core(model, drafter=make_drafter(kind, plain))
    answer_all(core, length)
    answers, sequences = answer_all(core, length)
    assert answers == plain
    assert sum(sequence.num_cached_tokens or 0 for sequence in sequences) >= 100


def test_a_conversation_continued_from_the_cache(model: PreTrainedModel) -> None:
    """Prompts that go on from drafted output: the blocks that they find were computed by verify rows."""
    core = build_core(model, drafter=RandomDrafter(VOCAB_SIZE))
    cached = 0
    for seed in range(6):
        first = make_sequence("first", [*SHARED, seed], num_speculative_tokens=8, **HOT, seed=seed)
        run(core, [first])
        later = [*first.token_ids, 50, 51]
        warm = make_sequence("later", later, **HOT, seed=seed, logprobs=3)
        cold = make_sequence("later", later, **HOT, seed=seed, logprobs=3)
        assert answer_of(run(core, [warm])["later"]) == answer_of(run(build_core(model), [cold])["later"])
        cached += (warm.num_cached_tokens or 0) - len(SHARED)
    assert cached > 6 * 8


@pytest.mark.parametrize("block_size", [1, 16])
def test_with_another_block_size(model: PreTrainedModel, plain: dict[str, Answer], block_size: int) -> None:
    core = build_core(
        model, drafter=make_drafter("suffix", plain), block_size=block_size, num_blocks=2048 // block_size
    )
    assert answer_all(core, 8)[0] == plain


FORMATS: dict[str, tuple[torch.dtype, bool, QuantisedType | None]] = {
    "float32": (torch.float32, False, None),
    "bfloat16": (torch.bfloat16, False, None),
    "native float32": (torch.float32, True, None),
    "native bfloat16": (torch.bfloat16, True, None),
    "int8": (torch.float32, True, "int8"),
    "int4": (torch.float32, True, "int4"),
}


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize("make_model", ARCHITECTURES)
def test_with_other_architectures_and_formats(
    make_model: Callable[[], PreTrainedModel], form: str, native_library: NativeLibrary
) -> None:
    dtype, is_native, quantised = FORMATS[form]
    library = native_library if is_native else None

    def core(drafter: Drafter, **sizes: int) -> EngineCore:
        model = make_model().to(dtype)
        if library is not None:
            nativise(model, library, quantised)
        stabilise(model)
        return build_core(model, drafter=drafter, library=library, **sizes)

    alone = {name: answer_of(run(core(NullDrafter()), [request_for(name)])[name]) for name in REQUESTS}
    for kind, length in (("none", 0), ("suffix", 8), ("random", 4), ("oracle", 4)):
        for budget in (20, 128):
            crowded = core(make_drafter(kind, alone), num_blocks=40, max_num_batched_tokens=budget)
            assert answer_all(crowded, length)[0] == alone
