"""What a request field is here, and words for its proof.

A proof compares the answer with the one that the same request gets without the field. It runs with speculation and
without, streamed and not, on a small model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.tokenizer import Tokenizer
from tests import vocabularies
from tests.contract.answers import Answer

Json = dict[str, Any]
Proof = Callable[[Answer, Answer], bool]

TEMPLATE = (
    "{{ opening or '' }}{% for message in messages %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
COMPLETIONS, CHAT = "completions", "chat"
BOTH = (COMPLETIONS, CHAT)
MAX_TOKENS = 24
HOT: Json = {"temperature": 1.0}

TOKENIZER = Tokenizer(vocabularies.with_begin_and_gap(chat_template=TEMPLATE))
PROMPT = "the end of the beginning of the end"
(BEGIN,) = TOKENIZER.encode("")
(E,) = TOKENIZER.encode("e", add_special_tokens=False)
END = 0
ALWAYS_END: Json = {"logit_bias": {"0": 100}}
ALWAYS_E: Json = {"logit_bias": {str(E): 100}}


@dataclass(frozen=True)
class Field:
    """One field of a request.

    Attributes:
        does: its behaviour, as the table says it.
        body: the field with a value, and whatever it needs beside it; or that, given the answer without the field.
        proof: whether an answer shows it, given the answer without the field.
        without: what both requests have.
        same_as: fields in the place of ``body`` that must give the same choices.
        streams: whether it may be streamed.
        drafts: whether its request is long enough for a draft.
    """

    name: str
    does: str
    body: Json | Callable[[Answer], Json]
    proof: Proof
    without: Json = field(default_factory=dict)
    same_as: Json | None = None
    routes: tuple[str, ...] = BOTH
    streams: bool = True
    drafts: bool = True

    def body_after(self, plain: Answer) -> Json:
        return self.body(plain) if callable(self.body) else self.body


def same(answer: Answer, plain: Answer) -> bool:
    return answer.choices == plain.choices


def differs(answer: Answer, plain: Answer) -> bool:
    return answer.only.token_ids != plain.only.token_ids


def most_of_one(answer: Answer) -> int:
    """How often the commonest token comes."""
    return max(map(answer.only.token_ids.count, answer.only.token_ids))


def some_stop(plain: Answer) -> str:
    """Some text from the middle of the answer, which may begin and end within tokens."""
    return plain.only.text[len(plain.only.text) // 2 :][:3]


def is_cut_at(answer: Answer, plain: Answer, number: int) -> bool:
    return answer.only.token_ids == plain.only.token_ids[:number] and answer.only.finish_reason == "length"


def same_text(answer: Answer, plain: Answer) -> bool:
    return answer.only.text == plain.only.text


def num_top(answer: Answer, name: str | int) -> set[int]:
    return {len(entry[name] or ()) for entry in answer.only.logprobs or ()}


def spelled_prompt(answer: Answer) -> str:
    """The text that the engine got, special tokens included."""
    return TOKENIZER.decode(answer.only.prompt_token_ids or [], skip_special_tokens=False)
