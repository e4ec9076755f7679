"""Every request field, what it does and what proves it. The table in docs/api.md is made from this."""

from __future__ import annotations

from tests.contract.chat_fields import CHAT_FIELDS
from tests.contract.completion_fields import COMPLETION_FIELDS
from tests.contract.field import BOTH, CHAT
from tests.contract.generation_fields import GENERATION_FIELDS

FIELDS = [*GENERATION_FIELDS, *COMPLETION_FIELDS, *CHAT_FIELDS]

_STREAMING = "server/test_streaming.py"
_STREAM_OPTIONS = "server/test_stream_options.py"
_SPECULATION = "server/test_completions.py::test_speculation"
_PREDICTION = "server/test_prediction.py::test_its_tokens_reach_every_choice"
_MESSAGES = "server/test_chat_messages.py"
_CALLS = f"{_MESSAGES}::test_calls_reach_the_template_with_arguments_as_an_object"
_ONLY_NULL = f"{_MESSAGES}::test_an_answer_goes_back_as_it_came"
_TOKENS = "server/test_tokens.py"
_CONVERSATION = f"{_TOKENS}::test_a_conversation_becomes_the_tokens_that_a_chat_gets"
_TOKENIZED = f"{_TOKENS}::test_a_prompt_becomes_the_tokens_that_a_completion_gets"

# By routes: what a small model cannot show, or what is not in the answer itself.
ELSEWHERE = {
    " ".join(BOTH): {
        "stream": (
            "sends the answer in chunks, which add up to the whole one",
            "contract/test_fields.py::test_a_field_does_what_it_says",
        ),
        "stream_options": (
            "how it is sent; with `stream` only",
            "server/test_refused_fields.py::test_a_bad_field_is_named",
        ),
        "stream_options.include_usage": (
            "a last chunk with the usage",
            f"{_STREAMING}::test_usage_chunk_is_the_usage_of_the_whole",
        ),
        "stream_options.continuous_usage_stats": (
            "the usage so far in every chunk",
            f"{_STREAM_OPTIONS}::test_usage_so_far_is_that_of_the_chunks_choice",
        ),
        "stream_options.include_obfuscation": (
            "chunks are filled up to multiples of 512 bytes",
            f"{_STREAM_OPTIONS}::test_padded_chunks_are_of_one_size_and_say_the_same",
        ),
        "cache_salt": (
            "shares the prefix cache with requests of the same salt only",
            "contract/test_fields.py::test_a_salt_keeps_the_prefix_cache_apart",
        ),
        "speculation.mode": ("the drafter, or none", _SPECULATION),
        "speculation.num_speculative_tokens": ("the longest draft", _SPECULATION),
        "speculation.itl_slo_ms": (
            "milliseconds between two tokens that drafts must not exceed",
            "engine/speculation/test_goodput.py::test_no_step_is_longer_than_a_target",
        ),
        "prediction.type": ("`content`", "server/test_prediction.py::test_what_is_no_prediction_is_refused"),
        "prediction.content": ("a text, or its parts with a line for each", _PREDICTION),
        "prediction.content.type": ("`text`", _PREDICTION),
        "prediction.content.text": ("the part's text", _PREDICTION),
    },
    CHAT: {
        "messages.role": ("who speaks", f"{_MESSAGES}::test_roles"),
        "messages.content": ("a text, or its parts with a line for each", f"{_MESSAGES}::test_content"),
        "messages.content.type": (
            "`text`; anything else is refused",
            f"{_MESSAGES}::test_parts_that_are_not_text_are_named",
        ),
        "messages.content.text": ("the part's text", f"{_MESSAGES}::test_content"),
        "messages.name": ("given to the template", f"{_MESSAGES}::test_roles"),
        "messages.tool_calls": ("calls of the assistant, given to the template", _CALLS),
        "messages.tool_calls.id": ("the call's name, which the tool's answer gives", _CALLS),
        "messages.tool_calls.type": ("`function`", _CALLS),
        "messages.tool_calls.function": ("what is called", _CALLS),
        "messages.tool_calls.function.name": ("the function's name", _CALLS),
        "messages.tool_calls.function.arguments": ("an object as JSON in a string", _CALLS),
        "messages.tool_call_id": ("the call that a tool answers", _CALLS),
        "messages.refusal": ("`null`; anything else is refused", f"{_MESSAGES}::test_a_bad_message_is_named"),
        "messages.audio": ("`null`; anything else is refused", _ONLY_NULL),
        "messages.annotations": ("`null`; anything else is refused", _ONLY_NULL),
        "messages.function_call": ("`null`; anything else is refused", _ONLY_NULL),
    },
    "/tokenize": {
        "model": ("a served name, or nothing", _TOKENIZED),
        "prompt": ("a text", _TOKENIZED),
        "messages": ("a conversation, in the place of `prompt`", _CONVERSATION),
        "add_special_tokens": ("whether the begin token is put before it", _TOKENIZED),
        "return_token_strs": ("the text of each token as well", f"{_TOKENS}::test_tokens_are_spelled_on_request"),
        "add_generation_prompt": ("as in chat", _CONVERSATION),
        "continue_final_message": ("as in chat", _CONVERSATION),
        "chat_template_kwargs": ("as in chat", _CONVERSATION),
    },
    "/detokenize": {
        "model": ("a served name, or nothing", f"{_TOKENS}::test_many_tokens_are_decoded_as_well"),
        "tokens": ("token ids", f"{_TOKENS}::test_there_and_back"),
    },
}
