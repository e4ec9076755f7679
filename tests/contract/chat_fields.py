"""The fields that only chat has, or has otherwise: ``server.chat_protocol`` and ``server.chat_messages``."""

from __future__ import annotations

from tests.contract.field import (
    BEGIN,
    CHAT,
    MAX_TOKENS,
    PROMPT,
    TOKENIZER,
    E,
    Field,
    Json,
    is_cut_at,
    num_top,
    same_text,
    spelled_prompt,
)

_ONLY = (CHAT,)
_SCORED: Json = {"logprobs": True, "top_logprobs": 1}

CHAT_FIELDS = [
    Field(
        "messages",
        "the conversation, which the model's template makes a prompt",
        {"messages": [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]},
        lambda a, p: spelled_prompt(a) == "system: one\nuser: two\nassistant:",
        routes=_ONLY,
    ),
    Field(
        "max_completion_tokens",
        "most tokens of a choice; goes before `max_tokens`",
        {"max_completion_tokens": 5},
        lambda a, p: is_cut_at(a, p, 5),
        routes=_ONLY,
    ),
    Field(
        "logprobs",
        "a log-probability for each token",
        {"logprobs": True},
        lambda a, p: same_text(a, p) and len(a.only.logprobs or ()) == MAX_TOKENS and num_top(a, "top_logprobs") == {0},
        routes=_ONLY,
    ),
    Field(
        "top_logprobs",
        "so many alternatives with each",
        {"top_logprobs": 3},
        lambda a, p: same_text(a, p) and num_top(a, "top_logprobs") == {3},
        {"logprobs": True},
        routes=_ONLY,
    ),
    Field(
        "logprob_token_ids",
        "the alternatives that `logprobs` gives",
        {"logprob_token_ids": [E, 70]},
        lambda a, p: all(
            [top["token"] for top in entry["top_logprobs"]] == [TOKENIZER.token_text(E), TOKENIZER.token_text(70)]
            for entry in a.only.logprobs or ()
        ),
        _SCORED,
        routes=_ONLY,
    ),
    Field(
        "return_tokens_as_token_ids",
        "calls a token `token_id:42`",
        {"return_tokens_as_token_ids": True},
        lambda a, p: [entry["token"] for entry in a.only.logprobs or ()] == [f"token_id:{t}" for t in a.only.token_ids],
        _SCORED,
        routes=_ONLY,
    ),
    Field(
        "add_generation_prompt",
        "whether the prompt ends with the opening of the assistant's turn",
        {"add_generation_prompt": False},
        lambda a, p: spelled_prompt(a) == f"user: {PROMPT}\n",
        routes=_ONLY,
    ),
    Field(
        "continue_final_message",
        "the last message is gone on with",
        {"continue_final_message": True},
        lambda a, p: spelled_prompt(a) == "user: one\nassistant: tw",
        {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "tw"}]},
        routes=_ONLY,
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
        routes=_ONLY,
    ),
    Field(
        "chat_template_kwargs",
        "variables of the template; one that it does not read is a 400",
        {"chat_template_kwargs": {"opening": "so"}},
        lambda a, p: spelled_prompt(a).startswith("so"),
        routes=_ONLY,
    ),
    Field(
        "add_special_tokens",
        "whether the begin token stands before what the template writes",
        {"add_special_tokens": True},
        lambda a, p: a.only.prompt_token_ids == [BEGIN, *(p.only.prompt_token_ids or ())],
        routes=_ONLY,
    ),
]
