"""The fields that both routes have: ``server.protocol``."""

from __future__ import annotations

from tests.contract.field import (
    ALWAYS_E,
    ALWAYS_END,
    END,
    HOT,
    MAX_TOKENS,
    TOKENIZER,
    E,
    Field,
    differs,
    is_cut_at,
    most_of_one,
    same,
    same_text,
    some_stop,
)

GENERATION_FIELDS = [
    Field(
        "model",
        "a name of the served model; any other is a 404",
        {"model": "alias"},
        lambda a, p: a.model == "alias" and same(a, p),
    ),
    Field(
        "request_id",
        "the `id` of the answer, behind its prefix",
        {"request_id": "mine"},
        lambda a, p: a.id.endswith("-mine") and same(a, p),
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
        lambda p: {"stop": ["no such text", some_stop(p)]},
        lambda a, p: (
            (a.only.text, a.only.finish_reason, a.only.stop_reason)
            == (p.only.text.partition(some_stop(p))[0], "stop", some_stop(p))
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
        lambda a, p: a.seed == 11 and differs(a, p),
        HOT,
    ),
    Field("temperature", "how much noise there is; 0 is none", HOT, differs),
    Field("top_p", "draws from the likeliest tokens of that share", {"top_p": 1e-6}, differs, HOT, {"temperature": 0}),
    Field("top_k", "draws from so many of the likeliest tokens", {"top_k": 1}, differs, HOT, {"temperature": 0}),
    Field(
        "min_p",
        "draws from tokens at least so likely, beside the likeliest",
        {"min_p": 1.0},
        differs,
        HOT,
        {"temperature": 0},
    ),
    Field(
        "repetition_penalty",
        "makes tokens of prompt and output less likely",
        {"repetition_penalty": 100.0},
        lambda a, p: (
            most_of_one(a) == 1 < most_of_one(p) and not {*a.only.token_ids} & {*(a.only.prompt_token_ids or ())}
        ),
    ),
    Field(
        "frequency_penalty",
        "makes a token less likely, the oftener it has come",
        {"frequency_penalty": 2.0},
        lambda a, p: most_of_one(a) < most_of_one(p),
    ),
    Field(
        "presence_penalty",
        "makes a token less likely once it has come",
        {"presence_penalty": 2.0},
        lambda a, p: most_of_one(a) < most_of_one(p),
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
            same_text(a, p)
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
        "return_token_provenance",
        "of each token its text, its log-probability, and whether and by whom it was drafted",
        {"return_token_provenance": True},
        lambda a, p: (
            [token_id for token_id, _, _ in a.only.tokens] == p.only.token_ids
            and "".join(text for _, text, _ in a.only.tokens) == p.only.text
            and a.only.origins == [("plain", None, None, 0)] * MAX_TOKENS
            and not p.only.origins
        ),
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
    Field(
        "speculation",
        "how the request is drafted; never what it says",
        {"speculation": {"num_speculative_tokens": 2}},
        same,
    ),
    Field(
        "prediction",
        "what the output is expected to be; never what it says",
        lambda p: {"prediction": {"type": "content", "content": p.only.text}},
        lambda a, p: same(a, p) and a.usage["completion_tokens_details"]["accepted_prediction_tokens"] > 5,
    ),
    Field("user", "nothing", {"user": "me"}, same),
    Field("metadata", "nothing", {"metadata": {"key": "value"}}, same),
    Field("max_tokens", "most tokens of a choice", {"max_tokens": 5}, lambda a, p: is_cut_at(a, p, 5)),
]
