"""Promise 1 with a draft model: one that agrees to the last bit, and one that is another model in effect.

Every answer is compared with the request's own, alone and undrafted, in a cold engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transformers import PreTrainedModel

from engine.core import EngineCore
from engine.model.native_modules import nativise
from engine.model.quantisation import QuantisedType
from engine.model.row_buckets import row_buckets
from engine.model.row_stable import stabilise
from engine.native.functions import NativeLibrary
from engine.sequence import Sequence
from engine.types import FinishReason
from tests.draft_pairs import deepened, truncated
from tests.engine.model.graph_fakes import FakeCapture, captured, varlen_on_cpu
from tests.exactness.test_tiny_identity import (
    FORMATS,
    REQUESTS,
    SHARED,
    Answer,
    answer_all,
    answer_of,
    request_for,
    total,
)
from tests.sequences import make_sequence, run, tokens_of
from tests.tiny import build_core, one_thread, stable_llama, tiny_llama, tiny_qwen3

LENGTHS = [1, 4, 8]
PAIRS = ["deepened", "truncated"]
SITUATIONS: dict[str, dict[str, Any]] = {
    "neighbours": {},
    "chunked prefill": {"max_num_seqs": 4, "max_num_batched_tokens": 13},
    "preemption": {"num_blocks": 30, "max_num_batched_tokens": 40},
    "preemption without prefix cache": {
        "num_blocks": 30,
        "max_num_batched_tokens": 40,
        "enable_prefix_caching": False,
    },
    "blocks of one": {"block_size": 1, "num_blocks": 2048},
}


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(steady: None) -> PreTrainedModel:
    return stable_llama()


@pytest.fixture(scope="module")
def plain(model: PreTrainedModel) -> dict[str, Answer]:
    return {name: answer_of(run(build_core(model), [request_for(name)])[name]) for name in REQUESTS}


@pytest.fixture(scope="module")
def pairs(model: PreTrainedModel) -> dict[str, tuple[PreTrainedModel, PreTrainedModel]]:
    """Target and draft; both targets give the same logits."""
    deep = deepened(tiny_llama())
    stabilise(deep)
    short = truncated(tiny_llama())
    stabilise(short)
    return {"deepened": (deep, model), "truncated": (model, short)}


def make_core(
    pairs: dict[str, tuple[PreTrainedModel, PreTrainedModel]], kind: str, *, looks_at_each: bool = True, **sizes: Any
) -> EngineCore:
    target, draft = pairs[kind]
    return build_core(target, draft=draft, looks_at_each=looks_at_each, **sizes)


def check_teeth(kind: str, sequences: list[Sequence]) -> None:
    """One is right in everything but what lies behind an end; the other is right and wrong."""
    if kind == "truncated":
        stats = total(sequences)
        assert stats.num_accepted_tokens > 20
        assert stats.num_draft_tokens - stats.num_accepted_tokens > 10
        return
    to_the_limit = [s for s in sequences if s.finish_reason is FinishReason.LENGTH and s.stats.num_drafts]
    assert len(to_the_limit) > 8
    assert {s.params.temperature > 0 for s in to_the_limit} == {True, False}
    assert [s.request_id for s in to_the_limit if s.stats.acceptance_rate < 1] == []


@pytest.mark.parametrize("looks_at_each", [True, False])
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("length", LENGTHS)
def test_with_neighbours(
    pairs: dict[str, Any], plain: dict[str, Answer], kind: str, length: int, looks_at_each: bool
) -> None:
    answers, sequences = answer_all(make_core(pairs, kind, looks_at_each=looks_at_each), length)
    assert answers == plain
    check_teeth(kind, sequences)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_whatever_happens(pairs: dict[str, Any], plain: dict[str, Answer], kind: str, situation: str) -> None:
    """Twice in the same engine, so that the second time the prompts are in the prefix cache."""
    core = make_core(pairs, kind, **SITUATIONS[situation])
    for _ in range(2):
        answers, sequences = answer_all(core, 4)
        assert answers == plain
        check_teeth(kind, sequences)
    if "preemption" in situation:
        assert sum(sequence.num_preemptions for sequence in sequences) > 0


@pytest.mark.parametrize("kind", PAIRS)
def test_among_requests_that_are_not_drafted(pairs: dict[str, Any], plain: dict[str, Answer], kind: str) -> None:
    """Half of them at first, the other half after it: their blocks are shared and have not been computed twice."""
    core = make_core(pairs, kind)
    names = list(REQUESTS)
    for first in (0, 1):
        sequences = [request_for(name, 4 if i % 2 == first else 0) for i, name in enumerate(names)]
        outputs = run(core, sequences)
        assert {name: answer_of(outputs[name]) for name in names} == plain
    drafted = [sequence for sequence in sequences if sequence.stats.num_drafts]
    assert len(drafted) > 8
    assert sum(sequence.num_cached_tokens or 0 for sequence in drafted) > 50


def test_sampled_drafts_agree_far_more_often_with_the_noise_of_the_target(pairs: dict[str, Any]) -> None:
    """At temperature 1 a greedy draft is right as often as the target says its likeliest token."""
    target, draft = pairs["truncated"]

    def acceptance(**options: Any) -> float:
        core = build_core(target, draft=draft)
        if options.pop("is_blind", False):
            sampler = core._drafter._sampler  # type: ignore[attr-defined]
            draw = sampler.draw
            sampler.draw = lambda logits, rows: draw(logits, [_cold(row) for row in rows])
        sequences = [
            make_sequence(
                str(seed), [*SHARED, seed], num_speculative_tokens=1, temperature=1.0, seed=seed, max_tokens=60
            )
            for seed in range(8, 24)
        ]
        run(core, sequences)
        return total(sequences).acceptance_rate

    assert acceptance() > 1.2 * acceptance(is_blind=True)


def _cold(row: Any) -> Any:
    sequence = make_sequence("cold", row.sequence.token_ids)
    return type(row)(sequence, row.draft_prefix)


@pytest.mark.parametrize("kind", PAIRS)
def test_with_captured_forwards(pairs: dict[str, Any], kind: str) -> None:
    """As on a GPU: both models behind replayed forwards, and no token looked at before the draft is whole."""
    buckets = row_buckets(max_num_seqs=16, longest_draft=4, max_num_batched_tokens=128, table_width=32)
    captures = [FakeCapture(), FakeCapture()]
    remaining = iter(captures)
    with varlen_on_cpu() as attention:
        alone = build_core(pairs[kind][0], attention=attention)
        expected = {name: answer_of(run(alone, [request_for(name)])[name]) for name in REQUESTS}
        core = make_core(
            pairs,
            kind,
            attention=attention,
            looks_at_each=False,
            wrap=lambda runner: captured(runner, buckets, next(remaining)),
        )
        answers, sequences = answer_all(core, 4)
    assert answers == expected
    check_teeth(kind, sequences)
    assert all(capture.num_replayed > 4 for capture in captures)


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize("make_model", [tiny_llama, tiny_qwen3])
@pytest.mark.parametrize("kind", PAIRS)
def test_with_other_architectures_and_formats(
    make_model: Callable[[], PreTrainedModel], form: str, kind: str, native_library: NativeLibrary
) -> None:
    """Through the same native modules and recorded layers as on a server, for both models."""
    dtype, is_native, quantised = FORMATS[form]
    library = native_library if is_native else None

    def ready(model: PreTrainedModel, to: QuantisedType | None = quantised) -> PreTrainedModel:
        model = model.to(dtype)
        if library is not None:
            nativise(model, library, to)
        stabilise(model)
        return model

    def target() -> PreTrainedModel:
        return ready(deepened(make_model()) if kind == "deepened" else make_model())

    draft = make_model() if kind == "deepened" else truncated(make_model())
    alone = build_core(target(), library=library)
    expected = {name: answer_of(run(alone, [request_for(name)])[name]) for name in REQUESTS}
    core = build_core(target(), draft=ready(draft), library=library, num_blocks=40, max_num_batched_tokens=20)
    answers, sequences = answer_all(core, 4)
    assert answers == expected
    if kind == "deepened":
        check_teeth(kind, sequences)
    assert tokens_of(run(core, [request_for("greedy", 8)])["greedy"]) == expected["greedy"][0]
