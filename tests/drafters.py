"""Drafters that no server would want: some know the answers, and one knows nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq

from engine.params import SpeculationMode
from engine.sampling.draft_sampler import DraftSampler
from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.auto import AutoDrafter, Source
from engine.speculation.draft_model import DraftLimits, DraftModelDrafter, DraftRunner
from engine.speculation.drafter import Drafter
from engine.speculation.prediction import PredictionDrafter
from engine.speculation.survival import Survival
from engine.types import Draft, Verdict


class Guesser:
    """Proposes as many tokens as it may, each by ``guess``."""

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        return [self._draft(entry.sequence, entry.max_draft_length) for entry in batch]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass

    def _draft(self, sequence: Sequence, length: int) -> Draft:
        tokens: list[int] = []
        while len(tokens) < length:
            tokens.append(self.guess(sequence, tokens))
        return Draft(tuple(tokens), (0.5,) * len(tokens), "test")

    def guess(self, sequence: Sequence, draft: list[int]) -> int:
        raise NotImplementedError


class RandomDrafter(Guesser):
    """Any token of the vocabulary."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def guess(self, sequence: Sequence, draft: list[int]) -> int:
        return self._random.randrange(self._vocab_size)


class ReplayDrafter(Guesser):
    """Knows what each request will say, and keeps on past the end with nonsense."""

    def __init__(self, answers: dict[str, list[int]]) -> None:
        self._answers = answers

    def guess(self, sequence: Sequence, draft: list[int]) -> int:
        answer = self._answers[sequence.request_id]
        index = sequence.num_output_tokens + len(draft)
        return answer[index] if index < len(answer) else 1


class SometimesRightDrafter(Guesser):
    """Knows the target, and is wrong with a given chance at every token."""

    def __init__(self, target: Callable[[list[int]], int], vocab_size: int, *, accuracy: float, seed: int = 0) -> None:
        self._target = target
        self._vocab_size = vocab_size
        self._accuracy = accuracy
        self._random = random.Random(seed)

    def guess(self, sequence: Sequence, draft: list[int]) -> int:
        if self._random.random() < self._accuracy:
            return self._target(sequence.token_ids + draft)
        return self._random.randrange(self._vocab_size)


class KnowingDrafter(Guesser):
    """Is told what every request will say, and goes on past any end; wrong with a given chance at every token.

    Attributes:
        said: the output, by its index.
    """

    def __init__(self, said: Seq[int] = (), *, accuracy: float = 1.0, seed: int = 0) -> None:
        self.said = said
        self._accuracy = accuracy
        self._random = random.Random(seed)

    def guess(self, sequence: Sequence, draft: list[int]) -> int:
        index = sequence.num_output_tokens + len(draft)
        is_right = index < len(self.said) and self._random.random() < self._accuracy
        return self.said[index] if is_right else 1


def auto(*drafters: Drafter) -> AutoDrafter:
    """As the server makes it, of a prediction and of these."""
    mode = SpeculationMode.SUFFIX
    return AutoDrafter([Source(PredictionDrafter()), *(Source(drafter, mode) for drafter in drafters)], Survival())


def draft_model(
    runner: DraftRunner,
    *,
    vocab_size: int,
    block_size: int = 4,
    end_token_ids: frozenset[int] = frozenset({0}),
    looks_at_each: bool = True,
    **limits: int,
) -> DraftModelDrafter:
    """A real one over any runner, with room for all that tests ask for unless told otherwise."""
    bounds = {
        "block_size": block_size,
        "max_num_rows": 512,
        "max_model_len": 512,
        "vocab_size": vocab_size,
        "target_vocab_size": vocab_size,
    }
    return DraftModelDrafter(
        runner, DraftSampler(end_token_ids), DraftLimits(**(bounds | limits)), looks_at_each=looks_at_each
    )
