"""Known fields of chat completions that are served in one value only; any other is refused, with the reason.

A field moves from here to ``server.chat_protocol`` on the day it is served.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel

from server.unserved import only

_NO_TOOLS = "no tools are called here"
_TEXT_ONLY = "text is all that is read and written here"
_OWN_TEMPLATE = "prompts are made by the model's own chat template, from messages and chat_template_kwargs"
_NO_DIAL = "what a model takes in place of this is in chat_template_kwargs"
_ONE_TIER = "all requests are served alike"


class ChatUnservedFields(BaseModel):
    """Fields that clients may send as long as they ask for nothing."""

    audio: Annotated[None, only(None, _TEXT_ONLY)] = None
    chat_template: Annotated[None, only(None, _OWN_TEMPLATE)] = None
    documents: Annotated[None, only(None, _OWN_TEMPLATE)] = None
    function_call: Annotated[str | None, only("none", _NO_TOOLS)] = None
    functions: Annotated[None, only(None, _NO_TOOLS)] = None
    include_reasoning: Annotated[bool | None, only(True, "reasoning is part of the text")] = None
    media_io_kwargs: Annotated[None, only(None, _TEXT_ONLY)] = None
    mm_processor_kwargs: Annotated[None, only(None, _TEXT_ONLY)] = None
    modalities: Annotated[list[Any] | None, only(["text"], _TEXT_ONLY)] = None
    moderation: Annotated[None, only(None, "nothing is moderated")] = None
    parallel_tool_calls: Annotated[None, only(None, _NO_TOOLS)] = None
    prompt_cache_key: Annotated[
        None, only(None, "equal prefixes are found without it; cache_salt keeps them apart")
    ] = None
    prompt_cache_options: Annotated[None, only(None, "the prefix cache is the operator's to set")] = None
    prompt_cache_retention: Annotated[None, only(None, "the prefix cache is the operator's to set")] = None
    reasoning_effort: Annotated[None, only(None, _NO_DIAL)] = None
    safety_identifier: Annotated[None, only(None, "clients are not told apart")] = None
    service_tier: Annotated[str | None, only("auto", _ONE_TIER)] = None
    thinking_token_budget: Annotated[None, only(None, _NO_DIAL)] = None
    tool_choice: Annotated[str | None, only("none", _NO_TOOLS)] = None
    tools: Annotated[None, only(None, _NO_TOOLS)] = None
    verbosity: Annotated[None, only(None, _NO_DIAL)] = None
    web_search_options: Annotated[None, only(None, "nothing is searched here")] = None
