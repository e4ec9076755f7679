"""The drafter with a model of its own: what it computes, when, and what it proposes. The model is scripted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.sequence import Sequence
from engine.speculation.draft_model import DraftModelDrafter
from tests.drafters import draft_model
from tests.scripted import VOCAB_SIZE, ScriptedDraftRunner, ScriptedEngine, continue_plainly
from tests.sequences import make_sequence, run, tokens_of

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3, 4]
# Goes on for 40 tokens without an end token.
LONG: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}


class Pair:
    """A scripted target, and a scripted draft model that says the same."""

    def __init__(self, *, num_logits: int = VOCAB_SIZE, limits: dict[str, Any] | None = None, **sizes: Any) -> None:
        num_blocks = sizes.get("num_blocks", 64)
        self.runner = ScriptedDraftRunner(num_blocks, 4, num_logits=num_logits)
        self.drafter: DraftModelDrafter = draft_model(self.runner, **({"vocab_size": VOCAB_SIZE} | (limits or {})))
        self.engine = ScriptedEngine(drafter=self.drafter, **sizes)

    def run(self, *sequences: Sequence) -> list[list[int]]:
        outputs = run(self.engine.core, sequences)
        return [tokens_of(outputs[sequence.request_id]) for sequence in sequences]

    def step(self) -> int:
        """Rows that the draft model computed in one step."""
        before = len(self.runner.num_rows)
        self.engine.core.step()
        return sum(self.runner.num_rows[before:])


def talker(name: str = "a", prompt: list[int] = PROMPT, length: int = 4, **params: Any) -> Sequence:
    return make_sequence(name, prompt, num_speculative_tokens=length, **(LONG | params))


@pytest.mark.parametrize("looks_at_each", [True, False])
def test_a_draft_model_that_is_the_target_is_always_right(looks_at_each: bool) -> None:
    pair = Pair(limits={"looks_at_each": looks_at_each})
    sequences = [talker("a"), talker("b", [5, 4, 3]), talker("c", length=2), talker("d", length=0)]
    answers = pair.run(*sequences)
    assert answers == [continue_on(sequence) for sequence in sequences]
    assert [sequence.stats.acceptance_rate for sequence in sequences] == [1, 1, 1, 0]
    assert sequences[0].stats.mean_acceptance_length > 4.5
    assert {draft.source for _, drafts in pair.engine.runner.batches for draft in drafts} == {"none", "model"}


def continue_on(sequence: Sequence) -> list[int]:
    """What the target says if end tokens do not stop it."""
    text = sequence.token_ids[: sequence.num_prompt_tokens]
    answer: list[int] = []
    while len(answer) < sequence.params.max_tokens:
        answer += continue_plainly([*text, *answer], sequence.params.max_tokens - len(answer))
    return answer


def test_one_forward_a_draft_position_for_all_sequences() -> None:
    pair = Pair()
    for name, length in (("a", 4), ("b", 2), ("c", 4)):
        pair.engine.core.add(talker(name, length=length))
    pair.engine.core.step()  # the first tokens do not wait for a draft
    assert pair.runner.num_rows == []
    pair.engine.core.step()
    assert pair.runner.num_rows == [3 * (len(PROMPT) + 1), 3, 2, 2]
    pair.engine.core.step()
    assert pair.runner.num_rows[4:] == [3 * 2, 3, 2, 2]  # the last draft token, and the bonus token behind it


def test_no_draft_costs_nothing() -> None:
    pair = Pair()
    pair.run(talker("a", length=0))
    assert pair.runner.num_rows == []


def test_what_was_decoded_plainly_is_caught_up() -> None:
    pair = Pair()
    sequence = talker(length=4)
    pair.engine.core.add(sequence)
    pair.step()
    assert pair.step() == len(PROMPT) + 1 + 3
    longest, sequence._num_speculative_tokens = sequence._num_speculative_tokens, 0
    assert [pair.step() for _ in range(5)] == [0] * 5
    sequence._num_speculative_tokens = longest
    # The last token drafted and the bonus token after it had not been computed either.
    assert pair.step() == 2 + 5 + 3
    while pair.engine.core.has_unfinished:
        pair.step()
    assert sequence.stats.acceptance_rate == 1


@pytest.mark.parametrize(("was_drafted", "num_rows"), [(True, 2), (False, len(PROMPT) + 1)])
def test_blocks_from_the_prefix_cache_are_computed_only_if_they_have_not_been(was_drafted: bool, num_rows: int) -> None:
    """Two blocks of four tokens, the last prompt token, and the first output token."""
    pair = Pair()
    pair.run(talker("first", length=4 if was_drafted else 0, max_tokens=8))
    later = talker("later")
    pair.engine.core.add(later)
    pair.step()
    assert later.num_cached_tokens == 8
    assert pair.step() == num_rows + 3
    assert pair.run(talker("again")) == [continue_on(later)]
    assert later.stats.acceptance_rate == 1


def test_blocks_that_another_text_was_written_to_are_not_taken_for_what_they_were() -> None:
    pair = Pair(num_blocks=14)
    pair.run(talker("first"))
    pair.run(talker("second", [5, 4, 3, 2, 1, 5, 4, 3, 2]))  # takes the blocks
    pair.run(talker("plain", length=0))
    again = talker("again")
    assert pair.run(again) == [continue_on(again)]
    assert again.stats.acceptance_rate == 1


def test_a_preempted_sequence_is_computed_anew() -> None:
    pair = Pair(num_blocks=20, enable_prefix_caching=False)
    sequences = [talker(name, [*PROMPT, seed]) for seed, name in enumerate("abcd", 1)]
    assert pair.run(*sequences) == [continue_on(sequence) for sequence in sequences]
    assert sum(sequence.num_preemptions for sequence in sequences) > 0
    assert all(sequence.stats.acceptance_rate == 1 for sequence in sequences)


def test_a_long_prompt_is_caught_up_in_pieces_while_others_are_drafted() -> None:
    pair = Pair(limits={"max_num_rows": 16}, num_blocks=128)
    short = talker("short", [1, 2], max_tokens=60)
    pair.engine.core.add(short)
    for _ in range(3):
        pair.step()
    long = talker("long", PROMPT * 6)  # 54 tokens and one more each step, of which 14 fit beside the other's 2
    pair.engine.core.add(long)
    pair.step()
    drafted = []
    for _ in range(5):
        before = len(pair.engine.runner.batches)
        pair.step()
        drafted.append([len(draft.token_ids) for draft in pair.engine.runner.batches[before][1]])
    assert drafted == [[4, 0]] * 4 + [[4, 4]]
    assert max(pair.runner.num_rows) <= 16


def test_behind_its_context_it_drafts_nothing_and_the_answer_goes_on() -> None:
    limit = 22
    pair = Pair(limits={"max_model_len": limit})
    sequence = talker()
    assert pair.run(sequence) == [continue_on(sequence)]
    assert sequence.stats.acceptance_rate == 1
    assert sequence.stats.num_draft_tokens > 0
    ends = [confirmed + len(draft.token_ids) for confirmed, draft in _drafts(pair, len(PROMPT)) if draft.token_ids]
    assert max(ends) == limit + 1  # the last token drafted is not computed


def _drafts(pair: Pair, num_prompt_tokens: int) -> list[tuple[int, Any]]:
    """Each draft with the number of tokens that were confirmed when it was made; every draft was right."""
    found, confirmed = [], num_prompt_tokens
    for _, (draft,) in pair.engine.runner.batches:
        found.append((confirmed, draft))
        confirmed += len(draft.token_ids) + 1
    return found


@pytest.mark.parametrize(
    ("num_logits", "vocab_size"), [(VOCAB_SIZE - 2, VOCAB_SIZE - 2), (VOCAB_SIZE + 10, VOCAB_SIZE)]
)
def test_a_vocabulary_padded_otherwise(num_logits: int, vocab_size: int) -> None:
    """It is fed nothing that it has no row for, and what the target cannot say it does not say either."""
    pair = Pair(limits={"vocab_size": vocab_size, "target_vocab_size": VOCAB_SIZE}, num_logits=VOCAB_SIZE + 10)
    fed: list[int] = []
    forward = pair.runner.forward_flat

    def forward_flat(flat: Any, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        fed.extend(flat.input_ids if input_ids is None else input_ids.tolist())
        return forward(flat, input_ids)[:, :num_logits]

    pair.runner.forward_flat = forward_flat  # type: ignore[method-assign]
    sequence = talker()
    assert pair.run(sequence) == [continue_on(sequence)]
    assert max(fed) < vocab_size
    assert sequence.stats.num_draft_tokens > 0
    assert (sequence.stats.acceptance_rate == 1) == (vocab_size == VOCAB_SIZE)


class Unsure(ScriptedDraftRunner):
    """Says the same with so little to spare that it might as well say another."""

    def forward_flat(self, flat: Any, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward_flat(flat, input_ids)
        return logits * (0.05 / 20)


@pytest.mark.parametrize("looks_at_each", [True, False])
def test_it_stops_where_it_is_unsure(looks_at_each: bool) -> None:
    """Half a chance at each position: two tokens are too unlikely to be right. That they are right is then learnt."""
    runner = Unsure(64, 4)
    drafter = draft_model(runner, vocab_size=VOCAB_SIZE, looks_at_each=looks_at_each)
    engine = ScriptedEngine(drafter=drafter)
    engine.core.add(talker(max_tokens=200))
    engine.core.step()
    engine.core.step()
    (draft,) = engine.runner.batches[-1][1]
    assert len(draft.token_ids) == 1
    assert draft.probabilities == pytest.approx((0.51,), abs=0.02)
    assert len(runner.num_rows) == (2 if looks_at_each else 4)
    while engine.core.has_unfinished:
        engine.core.step()
    lengths = [len(drafts[0].token_ids) for _, drafts in engine.runner.batches]
    assert lengths[-10] == 4


def test_without_looking_all_tokens_come_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(limits={"looks_at_each": False})
    names = [("a", {}), ("b", {"temperature": 1.0}), ("c", {"temperature": 0.5, "top_p": 0.9})]
    for name, params in names:
        pair.engine.core.add(talker(name, **params))
    pair.step()
    copies: list[int] = []
    to_list = torch.Tensor.tolist
    forward = pair.runner.forward_flat
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: copies.append(tensor.numel()) or to_list(tensor))
    # The scripted model looks at its input, as no real one does.
    pair.runner.forward_flat = lambda flat, ids=None: _without_counting(copies, forward, flat, ids)  # type: ignore
    pair.step()
    assert copies == [3 * 4 * 2]  # tokens and margins


def _without_counting(copies: list[int], forward: Any, *args: Any) -> torch.Tensor:
    before = len(copies)
    logits: torch.Tensor = forward(*args)
    del copies[before:]
    return logits


def test_requests_whose_penalties_read_the_draft_are_looked_at() -> None:
    """So that a token that the draft holds already is penalised in the draft as the target would."""
    pair = Pair(limits={"looks_at_each": False})
    pair.engine.core.add(talker(frequency_penalty=1.0))
    pair.step()
    rows: list[tuple[int, ...]] = []
    draw = pair.drafter._sampler.draw
    pair.drafter._sampler.draw = lambda logits, r: rows.extend(x.draft_prefix for x in r) or draw(logits, r)  # type: ignore
    pair.step()
    draft = pair.engine.runner.batches[-1][1][0].token_ids
    assert rows == [draft[:i] for i in range(4)]


def test_a_released_request_is_forgotten() -> None:
    pair = Pair()
    pair.run(talker("a"), talker("b"))
    assert not pair.drafter._drawn
    assert not pair.drafter._cache._states
    pair.drafter.release(make_sequence("never seen", [1]))
