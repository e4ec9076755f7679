"""The fields that only completions have, or have otherwise: ``server.completion_protocol``."""

from __future__ import annotations

from tests.contract.field import (
    BEGIN,
    COMPLETIONS,
    HOT,
    MAX_TOKENS,
    PROMPT,
    TOKENIZER,
    E,
    Field,
    Json,
    num_top,
    same,
    same_text,
    spelled_prompt,
)

_ONLY = (COMPLETIONS,)
_SCORED: Json = {"logprobs": 1}

COMPLETION_FIELDS = [
    Field(
        "prompt",
        "a text, token ids, or a list of either",
        lambda p: {"prompt": p.only.prompt_token_ids},
        same,
        routes=_ONLY,
    ),
    Field(
        "best_of",
        "so many candidates, of which the likeliest come back",
        {"best_of": 3},
        lambda a, p: len(a.choices) == 1 and a.usage["completion_tokens"] == 3 * p.usage["completion_tokens"],
        {**HOT, "ignore_eos": True},
        routes=_ONLY,
        streams=False,
    ),
    Field(
        "echo",
        "the prompt stands before the completion",
        {"echo": True},
        lambda a, p: a.only.text == PROMPT + p.only.text,
        routes=_ONLY,
    ),
    Field(
        "logprobs",
        "a log-probability for each token, with so many alternatives",
        {"logprobs": 3},
        lambda a, p: same_text(a, p) and len(a.only.logprobs or ()) == MAX_TOKENS and max(num_top(a, 2)) in (3, 4),
        routes=_ONLY,
    ),
    Field(
        "logprob_token_ids",
        "the alternatives that `logprobs` gives",
        {"logprob_token_ids": [E, 70]},
        lambda a, p: all(
            {TOKENIZER.token_text(E), TOKENIZER.token_text(70)} <= {*entry[2]} for entry in a.only.logprobs or ()
        ),
        _SCORED,
        routes=_ONLY,
    ),
    Field(
        "return_tokens_as_token_ids",
        "calls a token `token_id:42`",
        {"return_tokens_as_token_ids": True},
        lambda a, p: [entry[0] for entry in a.only.logprobs or ()] == [f"token_id:{t}" for t in a.only.token_ids],
        _SCORED,
        routes=_ONLY,
    ),
    Field(
        "add_special_tokens",
        "whether a text begins with the begin token",
        {"add_special_tokens": False},
        lambda a, p: p.only.prompt_token_ids == [BEGIN, *(a.only.prompt_token_ids or ())],
        routes=_ONLY,
    ),
    Field(
        "suffix",
        "text behind the completion, for models that insert text",
        {"suffix": " and so on"},
        lambda a, p: spelled_prompt(a) == f"<|begin|><|fim_prefix|>{PROMPT}<|fim_suffix|> and so on<|fim_middle|>",
        {"ignore_eos": True},
        routes=_ONLY,
    ),
]
