"""Every request field: what it does, and how an answer shows that it did.

The table of fields in docs/api.md is made from this. A proof compares the answer with the one that the same request
gets without the field; it runs with speculation and without, streamed and not, on a small model.
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


TOKENIZER = Tokenizer(vocabularies.byte_level(chat_template=TEMPLATE))
PROMPT = "the end of the beginning of the end"
(E,) = TOKENIZER.encode("e")
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
    """

    name: str
    does: str
    body: Json | Callable[[Answer], Json]
    proof: Proof
    without: Json = field(default_factory=dict)
    same_as: Json | None = None
    routes: tuple[str, ...] = BOTH
    streams: bool = True

    def body_after(self, plain: Answer) -> Json:
        return self.body(plain) if callable(self.body) else self.body


def _same(answer: Answer, plain: Answer) -> bool:
    return answer.choices == plain.choices


def _differs(answer: Answer, plain: Answer) -> bool:
    return answer.only.token_ids != plain.only.token_ids


def _most_of_one(answer: Answer) -> int:
    """How often the commonest token comes."""
    return max(map(answer.only.token_ids.count, answer.only.token_ids))


def _stop(plain: Answer) -> str:
    """Some text from the middle of the answer, which may begin and end within tokens."""
    return plain.only.text[len(plain.only.text) // 2 :][:3]


def _is_cut_at(answer: Answer, plain: Answer, number: int) -> bool:
    return answer.only.token_ids == plain.only.token_ids[:number] and answer.only.finish_reason == "length"


GENERATION = [
    Field(
        "model",
        "a name of the served model; any other is a 404",
        {"model": "alias"},
        lambda a, p: a.model == "alias" and _same(a, p),
    ),
    Field(
        "request_id",
        "the `id` of the answer, behind its prefix",
        {"request_id": "mine"},
        lambda a, p: a.id.endswith("-mine") and _same(a, p),
    ),
    Field(
        "min_tokens",
        "no end before that many tokens",
        {"min_tokens": 5},
        lambda a, p: (p.only.token_ids, len(a.only.token_ids), a.only.token_ids[-1]) == ([END], 6, END),
        ALWAYS_END,
    ),
    Field(
        "n",
        "so many choices, each with noise of its own, the first as if it were alone",
        {"n": 3},
        lambda a, p: len(a.choices) == 3 and a.choices[0] == p.only and a.choices[1] != a.choices[2],
        {"temperature": 2.0},
    ),
    Field(
        "stop",
        "ends the text before the first of these strings",
        lambda p: {"stop": ["no such text", _stop(p)]},
        lambda a, p: (
            (a.only.text, a.only.finish_reason, a.only.stop_reason)
            == (p.only.text.partition(_stop(p))[0], "stop", _stop(p))
        ),
    ),
    Field(
        "stop_token_ids",
        "tokens that end the text",
        lambda p: {"stop_token_ids": [p.only.token_ids[9]]},
        lambda a, p: (
            a.only.token_ids == p.only.token_ids[: len(a.only.token_ids)]
            and a.only.stop_reason == a.only.token_ids[-1] == p.only.token_ids[9]
        ),
    ),
    Field(
        "include_stop_str_in_output",
        "what ended the text is part of it",
        {"include_stop_str_in_output": True, "stop": ["e"]},
        lambda a, p: a.only.text == "e",
        ALWAYS_E,
    ),
    Field(
        "ignore_eos",
        "goes on behind the end token",
        {"ignore_eos": True},
        lambda a, p: p.only.token_ids == [END] and a.only.token_ids == [END] * MAX_TOKENS,
        ALWAYS_END,
    ),
    Field(
        "seed",
        "names the noise; returned as `metrics.seed`",
        {"seed": 11},
        lambda a, p: a.seed == 11 and _differs(a, p),
        HOT,
    ),
    Field("temperature", "how much noise there is; 0 is none", HOT, _differs),
    Field("top_p", "draws from the likeliest tokens of that share", {"top_p": 1e-6}, _differs, HOT, {"temperature": 0}),
    Field("top_k", "draws from so many of the likeliest tokens", {"top_k": 1}, _differs, HOT, {"temperature": 0}),
    Field(
        "min_p",
        "draws from tokens at least so likely, beside the likeliest",
        {"min_p": 1.0},
        _differs,
        HOT,
        {"temperature": 0},
    ),
    Field(
        "repetition_penalty",
        "makes tokens of prompt and output less likely",
        {"repetition_penalty": 100.0},
        lambda a, p: (
            _most_of_one(a) == 1 < _most_of_one(p) and not {*a.only.token_ids} & {*(a.only.prompt_token_ids or ())}
        ),
    ),
    Field(
        "frequency_penalty",
        "makes a token less likely, the oftener it has come",
        {"frequency_penalty": 2.0},
        lambda a, p: _most_of_one(a) < _most_of_one(p),
    ),
    Field(
        "presence_penalty",
        "makes a token less likely once it has come",
        {"presence_penalty": 2.0},
        lambda a, p: _most_of_one(a) < _most_of_one(p),
    ),
    Field("logit_bias", "is added to the logits of tokens", ALWAYS_E, lambda a, p: {*a.only.token_ids} == {E}),
    Field(
        "allowed_token_ids",
        "no other token is drawn",
        {"allowed_token_ids": [70, 71, 72]},
        lambda a, p: {*a.only.token_ids} <= {70, 71, 72},
    ),
    Field(
        "bad_words",
        "words that the text never completes",
        {"bad_words": ["e"]},
        lambda a, p: E not in a.only.token_ids,
        ALWAYS_E,
    ),
    Field(
        "prompt_logprobs",
        "log-probabilities of the prompt's tokens, with so many alternatives",
        {"prompt_logprobs": 2},
        lambda a, p: (
            _same_text(a, p)
            and len(a.only.prompt_logprobs or ()) == len(a.only.prompt_token_ids or ())
            and all(entry and 2 <= len(entry) <= 3 for entry in (a.only.prompt_logprobs or ())[1:])
        ),
        streams=False,
    ),
    Field(
        "return_token_ids",
        "the ids of prompt and output",
        {"return_token_ids": True},
        lambda a, p: TOKENIZER.decode(a.only.token_ids) == a.only.text and bool(a.only.prompt_token_ids),
    ),
    Field(
        "skip_special_tokens",
        "whether special tokens give no text",
        {"skip_special_tokens": False},
        lambda a, p: (p.only.text, a.only.text) == ("", "<|end|>" * MAX_TOKENS),
        {**ALWAYS_END, "ignore_eos": True},
    ),
    Field(
        "truncate_prompt_tokens",
        "keeps so many tokens of the prompt",
        {"truncate_prompt_tokens": 3},
        lambda a, p: a.only.prompt_token_ids == (p.only.prompt_token_ids or [])[-3:],
    ),
    Field(
        "truncation_side",
        "the side on which the prompt is cut",
        {"truncation_side": "right"},
        lambda a, p: a.only.prompt_token_ids != p.only.prompt_token_ids and len(a.only.prompt_token_ids or ()) == 3,
        {"truncate_prompt_tokens": 3},
    ),
    Field("cache_salt", "shares the prefix cache with requests of the same salt only", {"cache_salt": "mine"}, _same),
    Field(
        "speculation",
        "how the request is drafted; never what it says",
        {"speculation": {"num_speculative_tokens": 2}},
        _same,
    ),
    Field(
        "prediction",
        "what the output is expected to be; never what it says",
        lambda p: {"prediction": {"type": "content", "content": p.only.text}},
        lambda a, p: _same(a, p) and a.usage["completion_tokens_details"]["accepted_prediction_tokens"] > 5,
    ),
    Field("user", "nothing", {"user": "me"}, _same),
    Field("metadata", "nothing", {"metadata": {"key": "value"}}, _same),
]


def _same_text(answer: Answer, plain: Answer) -> bool:
    return answer.only.text == plain.only.text


def _num_top(answer: Answer, name: str | int) -> set[int]:
    return {len(entry[name] or ()) for entry in answer.only.logprobs or ()}


_ONLY_COMPLETIONS = (COMPLETIONS,)
_ONLY_CHAT = (CHAT,)
_SCORED: Json = {"logprobs": 1}
_SCORED_CHAT: Json = {"logprobs": True, "top_logprobs": 1}

OWN = [
    Field(
        "prompt",
        "a text, token ids, or a list of either",
        lambda p: {"prompt": p.only.prompt_token_ids},
        _same,
        routes=_ONLY_COMPLETIONS,
    ),
    Field("max_tokens", "most tokens of a choice", {"max_tokens": 5}, lambda a, p: _is_cut_at(a, p, 5), routes=BOTH),
    Field(
        "best_of",
        "so many candidates, of which the likeliest come back",
        {"best_of": 3},
        lambda a, p: len(a.choices) == 1 and a.usage["completion_tokens"] == 3 * p.usage["completion_tokens"],
        {**HOT, "ignore_eos": True},
        routes=_ONLY_COMPLETIONS,
        streams=False,
    ),
    Field(
        "echo",
        "the prompt stands before the completion",
        {"echo": True},
        lambda a, p: a.only.text == PROMPT + p.only.text,
        routes=_ONLY_COMPLETIONS,
    ),
    Field(
        "logprobs",
        "a log-probability for each token, with so many alternatives",
        {"logprobs": 3},
        lambda a, p: _same_text(a, p) and len(a.only.logprobs or ()) == MAX_TOKENS and max(_num_top(a, 2)) in (3, 4),
        routes=_ONLY_COMPLETIONS,
    ),
    Field(
        "logprob_token_ids",
        "the alternatives that `logprobs` gives",
        {"logprob_token_ids": [E, 70]},
        lambda a, p: all(
            {TOKENIZER.token_text(E), TOKENIZER.token_text(70)} <= {*entry[2]} for entry in a.only.logprobs or ()
        ),
        _SCORED,
        routes=_ONLY_COMPLETIONS,
    ),
    Field(
        "return_tokens_as_token_ids",
        "calls a token `token_id:42`",
        {"return_tokens_as_token_ids": True},
        lambda a, p: [entry[0] for entry in a.only.logprobs or ()] == [f"token_id:{t}" for t in a.only.token_ids],
        _SCORED,
        routes=_ONLY_COMPLETIONS,
    ),
    Field(
        "messages",
        "the conversation, which the model's template makes a prompt",
        {"messages": [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]},
        lambda a, p: TOKENIZER.decode(a.only.prompt_token_ids or []) == "system: one\nuser: two\nassistant:",
        routes=_ONLY_CHAT,
    ),
    Field(
        "max_completion_tokens",
        "most tokens of a choice; goes before `max_tokens`",
        {"max_completion_tokens": 5},
        lambda a, p: _is_cut_at(a, p, 5),
        routes=_ONLY_CHAT,
    ),
    Field(
        "logprobs",
        "a log-probability for each token",
        {"logprobs": True},
        lambda a, p: (
            _same_text(a, p) and len(a.only.logprobs or ()) == MAX_TOKENS and _num_top(a, "top_logprobs") == {0}
        ),
        routes=_ONLY_CHAT,
    ),
    Field(
        "top_logprobs",
        "so many alternatives with each",
        {"top_logprobs": 3},
        lambda a, p: _same_text(a, p) and _num_top(a, "top_logprobs") == {3},
        {"logprobs": True},
        routes=_ONLY_CHAT,
    ),
    Field(
        "logprob_token_ids",
        "the alternatives that `logprobs` gives",
        {"logprob_token_ids": [E, 70]},
        lambda a, p: all(
            [top["token"] for top in entry["top_logprobs"]] == [TOKENIZER.token_text(E), TOKENIZER.token_text(70)]
            for entry in a.only.logprobs or ()
        ),
        _SCORED_CHAT,
        routes=_ONLY_CHAT,
    ),
    Field(
        "return_tokens_as_token_ids",
        "calls a token `token_id:42`",
        {"return_tokens_as_token_ids": True},
        lambda a, p: [entry["token"] for entry in a.only.logprobs or ()] == [f"token_id:{t}" for t in a.only.token_ids],
        _SCORED_CHAT,
        routes=_ONLY_CHAT,
    ),
    Field(
        "add_generation_prompt",
        "whether the prompt ends with the opening of the assistant's turn",
        {"add_generation_prompt": False},
        lambda a, p: TOKENIZER.decode(a.only.prompt_token_ids or []) == f"user: {PROMPT}\n",
        routes=_ONLY_CHAT,
    ),
    Field(
        "continue_final_message",
        "the last message is gone on with",
        {"continue_final_message": True},
        lambda a, p: TOKENIZER.decode(a.only.prompt_token_ids or []) == "user: one\nassistant: tw",
        {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "tw"}]},
        routes=_ONLY_CHAT,
    ),
    Field(
        "echo",
        "the assistant's last message stands before the answer",
        {"echo": True},
        lambda a, p: a.only.text == f"tw{p.only.text}",
        {
            "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "tw"}],
            "continue_final_message": True,
        },
        routes=_ONLY_CHAT,
    ),
    Field(
        "chat_template_kwargs",
        "variables of the template; one that it does not read is a 400",
        {"chat_template_kwargs": {"opening": "so"}},
        lambda a, p: TOKENIZER.decode(a.only.prompt_token_ids or []).startswith("so"),
        routes=_ONLY_CHAT,
    ),
]
FIELDS = [*GENERATION, *OWN]

# What a small model cannot show, or what is not in the answer itself: the behaviour, and the test that proves it.
ELSEWHERE = {
    "stream": (
        "sends the answer in chunks, which add up to the whole one",
        "contract/test_fields.py::test_a_field_does_what_it_says",
    ),
    "stream_options": ("how it is sent; with `stream` only", "server/test_stream_options.py"),
    "stream_options.include_usage": (
        "a last chunk with the usage",
        "server/test_streaming.py::test_usage_chunk_is_the_usage_of_the_whole",
    ),
    "stream_options.continuous_usage_stats": ("the usage so far in every chunk", "server/test_stream_options.py"),
    "stream_options.include_obfuscation": (
        "chunks are filled up to multiples of 512 bytes",
        "server/test_stream_options.py",
    ),
    "speculation.mode": ("the drafter, or none", "server/test_completions.py::test_speculation"),
    "speculation.num_speculative_tokens": ("the longest draft", "server/test_completions.py::test_speculation"),
    "prediction.type": ("`content`", "server/test_prediction.py::test_what_is_no_prediction_is_refused"),
    "prediction.content": ("a text or its parts", "server/test_prediction.py::test_its_tokens_reach_every_choice"),
    "add_special_tokens": ("whether the prompt begins with the begin token", "server/test_prompts.py"),
    "completions.suffix": ("text behind the completion, for models that insert text", "server/test_prompts.py"),
}
