"""Sample and match: what is accepted, what is recovered, what is a bonus, and which row is whose."""

from __future__ import annotations

import pytest
import torch

from engine.sampling.sampler import Sampler
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.drafter import NO_DRAFT
from engine.speculation.verifier import Verifier
from engine.types import Draft, Verdict
from tests.sequences import make_sequence

VOCAB_SIZE = 32


def saying(*token_ids: int) -> torch.Tensor:
    """Logits of a target that says these tokens, one a row."""
    logits = torch.zeros(len(token_ids), VOCAB_SIZE)
    logits[range(len(token_ids)), list(token_ids)] = 5.0
    return logits


def entry_for(sequence: Sequence, num_tokens: int | None = None) -> ScheduledSequence:
    return ScheduledSequence(sequence, sequence.num_uncomputed_tokens if num_tokens is None else num_tokens)


def verify(entries: list[ScheduledSequence], drafts: list[Draft], logits: torch.Tensor) -> list[Verdict]:
    return Verifier(Sampler(frozenset())).verify(ScheduledBatch(entries), drafts, logits)


@pytest.mark.parametrize(
    ("draft", "target", "tokens", "num_accepted"),
    [
        ((), (7,), (7,), 0),
        ((5, 6), (5, 6, 7), (5, 6, 7), 2),
        ((5, 6), (5, 9, 7), (5, 9), 1),
        ((5, 6), (9, 6, 7), (9,), 0),
        ((5, 5, 5), (5, 6, 5, 5), (5, 6), 1),
    ],
    ids=["plain", "all accepted and a bonus", "one accepted, one recovered", "recovered at once", "no second chance"],
)
def test_the_draft_is_right_as_far_as_it_guessed(
    draft: tuple[int, ...], target: tuple[int, ...], tokens: tuple[int, ...], num_accepted: int
) -> None:
    (verdict,) = verify([entry_for(make_sequence("a", [1, 2]))], [Draft(draft)], saying(*target))
    assert verdict == Verdict(tokens, num_accepted)


def test_rows_of_several_sequences_are_told_apart() -> None:
    entries = [
        entry_for(make_sequence("drafted", [1, 2])),
        entry_for(make_sequence("chunk", [1] * 9), 4),
        entry_for(make_sequence("plain", [1, 2])),
        entry_for(make_sequence("scoring only", [1, 2], max_tokens=0)),
        entry_for(make_sequence("wrong", [1, 2])),
    ]
    drafts = [Draft((3, 4)), NO_DRAFT, NO_DRAFT, NO_DRAFT, Draft((3, 4))]
    verdicts = verify(entries, drafts, saying(3, 4, 5, 8, 6, 7, 7))
    assert verdicts == [Verdict((3, 4, 5), 2), Verdict(), Verdict((8,)), Verdict(), Verdict((6,))]


def test_a_step_of_nothing_but_chunks_needs_no_logits() -> None:
    entries = [entry_for(make_sequence(name, [1] * 9), 4) for name in "ab"]
    assert verify(entries, [NO_DRAFT] * 2, torch.empty(0, VOCAB_SIZE)) == [Verdict(), Verdict()]


def test_logprobs_are_given_for_emitted_tokens_only() -> None:
    logits = saying(3, 9, 5)
    entries = [entry_for(make_sequence("a", [1, 2], logprobs=2))]
    (verdict,) = verify(entries, [Draft((3, 4))], logits)
    assert verdict.token_ids == (3, 9)
    assert verdict.logprobs is not None
    assert [entry.token_id for entry in verdict.logprobs] == [3, 9]
    assert verdict.logprobs[1].logprob == pytest.approx(float(logits[1].log_softmax(-1)[9]))
    assert all(len(entry.top) == 2 for entry in verdict.logprobs)


def test_one_request_without_logprobs_beside_one_with_them() -> None:
    entries = [entry_for(make_sequence("a", [1, 2])), entry_for(make_sequence("b", [1, 2], logprobs=0))]
    first, second = verify(entries, [NO_DRAFT] * 2, saying(3, 4))
    assert first.logprobs is None
    assert second.logprobs is not None


def test_scored_rows_come_before_the_drawn_ones() -> None:
    sequence = make_sequence("a", [1, 2, 3], prompt_logprobs=1)
    logits = saying(2, 9, 5, 6)
    (verdict,) = verify([entry_for(sequence)], [Draft((5,))], logits)
    assert verdict.token_ids == (5, 6)
    assert [entry.token_id for entry in verdict.prompt_logprobs] == [2, 3]
    likely, unlikely = verdict.prompt_logprobs
    assert likely.top[0][0] == likely.token_id
    assert unlikely.top[0][0] == 9
    assert unlikely.logprob == pytest.approx(float(logits[1].log_softmax(-1)[3]))
    assert verdict.logprobs is None


def test_chunks_score_every_prompt_token_once() -> None:
    """Chunks of a prompt of eight, then the same again after a preemption in the middle."""
    sequence = make_sequence("a", list(range(1, 9)), prompt_logprobs=0)
    scored: list[int] = []
    for computed, num_tokens in [(0, 3), (3, 2), (0, 4), (4, 3), (7, 1)]:
        sequence.num_computed_tokens = computed
        entry = entry_for(sequence, num_tokens)
        logits = saying(*[1] * (len(entry.scored_positions) + entry.samples))
        (verdict,) = verify([entry], [NO_DRAFT], logits)
        sequence.prompt_logprobs += verdict.prompt_logprobs
        scored += [logprob.token_id for logprob in verdict.prompt_logprobs]
    assert scored == list(range(2, 9))
    assert not sequence.needs_prompt_logprobs


def test_each_row_is_drawn_with_the_noise_of_its_own_output_index() -> None:
    """Equal logits everywhere: only noise decides, and it must be what plain decoding would have had."""
    logits = torch.zeros(1, VOCAB_SIZE)
    plain = make_sequence("a", [1, 2], temperature=1.0, seed=3)
    answer = []
    for _ in range(6):
        (verdict,) = verify([entry_for(plain)], [NO_DRAFT], logits)
        plain.append(verdict.token_ids[0], frozenset())
        answer.append(verdict.token_ids[0])
    assert len(set(answer)) > 2
    drafted = make_sequence("a", [1, 2], temperature=1.0, seed=3)
    (verdict,) = verify([entry_for(drafted)], [Draft(tuple(answer[:5]))], logits.expand(6, -1))
    assert verdict == Verdict(tuple(answer), 5)


def test_penalties_see_the_draft_before_the_row_and_nothing_behind_it() -> None:
    """Token 3 leads everywhere by less than its penalty: it is said once, and a draft of it is no occurrence."""
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 3], logits[:, 4] = 1.0, 0.5
    sequence = make_sequence("a", [1, 2], presence_penalty=0.75)
    (verdict,) = verify([entry_for(sequence)], [Draft((3, 3))], logits)
    assert verdict == Verdict((3, 4), 1)
