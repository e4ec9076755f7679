"""More candidates than choices: which are returned, in what order, and who pays."""

from __future__ import annotations

import pytest

from engine.client import GenerateRequest
from engine.params import mix_seed
from engine.types import RequestOutput, TokenLogprob
from server.best_of import likeliest
from tests.fakes import FakeEngine, Script, fake_logprob
from tests.server.harness import complete, serve

SAID = [b"m", b"a", b"zz", b"c", b"d", b"b"]


def by_number(request: GenerateRequest) -> bytes:
    """Candidate 0 says ``m``, 1 ``a``, ...: see ``fake_logprob``.

    Of one letter the earlier is likelier; with two the unlikely end token weighs less in the mean.
    """
    return SAID[int(request.request_id.rpartition("-")[2])]


def output_of(*logprobs: float) -> RequestOutput:
    return RequestOutput("a", logprobs=[TokenLogprob(1, logprob) for logprob in logprobs])


async def test_the_likeliest_come_first_prompt_by_prompt() -> None:
    engine = FakeEngine(Script(say=by_number))
    async with serve(engine) as client:
        answer = await complete(client, prompt=["x", "yy"], n=2, best_of=3, seed=7)
    assert [choice["text"] for choice in answer["choices"]] == ["zz", "a", "b", "c"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert [request.params.seed for request in engine.requests] == [mix_seed(7, index) for index in range(6)]
    assert answer["usage"]["completion_tokens"] == 5 * 2 + 3
    assert answer["usage"]["prompt_tokens"] == 3


async def test_all_are_ordered_if_all_are_returned() -> None:
    async with serve(FakeEngine(Script(say=by_number))) as client:
        ranked = await complete(client, n=3, best_of=3)
        plain = await complete(client, n=3)
    assert [choice["text"] for choice in ranked["choices"]] == ["zz", "a", "m"]
    assert [choice["text"] for choice in plain["choices"]] == ["m", "a", "zz"]


async def test_log_probabilities_and_echo_belong_to_the_chosen() -> None:
    async with serve(FakeEngine(Script(say=by_number))) as client:
        answer = await complete(client, best_of=2, logprobs=0, echo=True, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["text"] == "aba"
    assert choice["token_ids"] == [97, 256]
    assert choice["logprobs"]["token_logprobs"][-2] == fake_logprob(97, 0).logprob


async def test_speculation_of_every_candidate_counts() -> None:
    async with serve(FakeEngine(Script(tokens_per_step=(3,), num_drafted=3))) as client:
        answer = await complete(client, best_of=4)
    assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] == 4 * 2


@pytest.mark.parametrize("fields", [{"best_of": 1}, {"best_of": 1, "stream": False}])
async def test_best_of_one_is_nothing(fields: dict[str, object]) -> None:
    engine = FakeEngine()
    async with serve(engine) as client:
        await complete(client, **fields)
    assert engine.requests[0].params.logprobs is None


def test_it_is_the_mean_that_counts_and_of_equals_the_earlier() -> None:
    long, short, same, silent = output_of(-1.0, -1.0, -1.0), output_of(-2.0), output_of(-1.0), output_of()
    assert likeliest([short, long, same], num_candidates=3, num_choices=2) == [long, same]
    assert likeliest([short, silent], num_candidates=2, num_choices=2) == [silent, short]
    assert likeliest([short, long, same, short], num_candidates=2, num_choices=1) == [long, same]
