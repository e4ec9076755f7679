"""Loads the model that drafts for another, or says why it cannot. Knows what the two must have in common."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.loading import LoadedModel, load_model
from engine.types import Progress


def load_draft_model(config: EngineConfig, target: LoadedModel, progress: Progress) -> LoadedModel:
    """The configured draft model, on the target's device, in its type; its context may be shorter.

    Raises:
        ConfigError: as ``load_model`` does, or it has another vocabulary than the target.
    """
    assert config.draft_model is not None
    draft = load_model(replace(config, model=config.draft_model, max_model_len=None), progress)
    if difference := _difference(target.tokenizer, draft.tokenizer):
        raise ConfigError(
            f"the draft model {draft.name} has another vocabulary than the model {target.name}, "
            f"so it cannot draft for it: {difference}"
        )
    return draft


def _difference(target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast) -> str | None:
    """How two vocabularies differ, with the numbers; None if every id is the same token in both."""
    ours, theirs = ({token_id: token for token, token_id in t.get_vocab().items()} for t in (target, draft))
    others = [token_id for token_id in sorted(ours.keys() & theirs.keys()) if ours[token_id] != theirs[token_id]]
    if ours.keys() == theirs.keys() and not others:
        return None
    parts = []
    if len(ours) != len(theirs):
        parts.append(f"{len(theirs)} tokens, not {len(ours)}")
    elif ours.keys() != theirs.keys():
        parts.append(f"{len(ours.keys() - theirs.keys())} of its {len(theirs)} ids are not among those of the model")
    if others:
        first = others[0]
        parts.append(
            f"{len(others)} of {len(ours.keys() & theirs.keys())} common ids are other tokens, "
            f"such as {first}: {theirs[first]!r}, not {ours[first]!r}"
        )
    return "; ".join(parts)
