"""From the engine to the wire: where each output token came from. Knows tokens and their text; knows no route."""

from __future__ import annotations

from itertools import chain

from engine.client import EngineClient, TextPieces
from engine.types import RequestOutput, TokenLogprob
from server.answers import clamp_logprob
from server.convert import ChoicePlan
from server.protocol import TokenProvenance


class ProvenanceWriter:
    """Tells it of the outputs of one choice, in their order.

    Args:
        pieces: of this choice, from its first token on.
        knows_best: whether the engine gives the two best tokens, and not those that the request names.
    """

    def __init__(self, pieces: TextPieces, *, knows_best: bool) -> None:
        self._pieces = pieces
        self._knows_best = knows_best

    def write(self, output: RequestOutput) -> list[TokenProvenance]:
        """An entry for each token of ``output``, which must have log-probabilities."""
        known = chain.from_iterable(step.tokens() for step in output.provenance)
        entries = [
            TokenProvenance(
                token_id=scored.token_id,
                text=self._pieces.push(scored.token_id),
                logprob=clamp_logprob(scored.logprob),
                margin=self._margin(scored),
                **token._asdict(),
            )
            for scored, token in zip(output.logprobs or (), known, strict=True)
        ]
        if entries and output.finish_reason is not None:
            entries[-1].text += self._pieces.flush()
        return entries

    def _margin(self, scored: TokenLogprob) -> float | None:
        """Log-probability before the best other token; below 0 where that one was likelier."""
        others = [logprob for token_id, logprob in scored.top if token_id != scored.token_id]
        if not (self._knows_best and others):
            return None
        return clamp_logprob(scored.logprob) - clamp_logprob(max(others))


def provenance_writer(plan: ChoicePlan, engine: EngineClient) -> ProvenanceWriter | None:
    """The one of a choice; None if the request does not ask."""
    if not plan.presentation.token_provenance:
        return None
    params = plan.request.params
    pieces = engine.text_pieces(skip_special_tokens=params.skip_special_tokens)
    return ProvenanceWriter(pieces, knows_best=not params.logprob_token_ids)
