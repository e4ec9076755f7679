"""One scripted request, with a drafter that knows every token or without any."""

from __future__ import annotations

from typing import Any

from engine.sequence import Sequence
from engine.types import RequestOutput
from tests.drafters import ReplayDrafter
from tests.scripted import ScriptedEngine, next_token
from tests.sequences import make_sequence, run


def say_on(prompt: list[int], num_tokens: int) -> list[int]:
    """What the target says if end tokens do not stop it."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def run_with_oracle(prompt: list[int], *, length: int = 8, **params: Any) -> tuple[Sequence, list[RequestOutput]]:
    """One request whose drafter knows every token, beyond the end of the answer too."""
    engine = ScriptedEngine(drafter=ReplayDrafter({"a": say_on(prompt, 60)}))
    sequence = make_sequence("a", prompt, num_speculative_tokens=length, **params)
    outputs = run(engine.core, [sequence])["a"]
    engine.block_manager.check_integrity([])
    assert engine.block_manager.usage == 0
    return sequence, outputs


def run_plainly(prompt: list[int], **params: Any) -> tuple[Sequence, list[RequestOutput]]:
    sequence = make_sequence("a", prompt, **params)
    return sequence, run(ScriptedEngine().core, [sequence])["a"]
