"""A conversation on the wire, and the prompt that it makes. Knows roles and parts; knows no route and no template.

Whoever takes ``messages`` takes them from here, so that every route renders the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from engine.client import EngineClient
from engine.errors import InvalidRequest
from server.errors import json_text
from server.json_body import parse_json
from server.text_parts import OptionalTextParts, RequestPart, joined


def _null_only(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError("not_null", "this server reads text only: input should be null")


class CalledFunction(RequestPart):
    """What a model once asked of a tool; the arguments are JSON within a string."""

    name: str
    arguments: str


class ToolCall(RequestPart):
    """One call of a tool in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(RequestPart):
    """One message. A list of parts is one text, a line for each part."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: OptionalTextParts = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Annotated[None, PlainValidator(_null_only, json_schema_input_type=None)] = None
    audio: Annotated[None, PlainValidator(_null_only, json_schema_input_type=None)] = None
    annotations: Annotated[None, PlainValidator(_null_only, json_schema_input_type=None)] = None
    function_call: Annotated[None, PlainValidator(_null_only, json_schema_input_type=None)] = None

    @property
    def text(self) -> str | None:
        """The content as one text."""
        return None if self.content is None else joined(self.content)


class ChatPromptFields(RequestPart):
    """What decides the prompt of a conversation. Null and absent are the same: the default."""

    messages: list[ChatMessage]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


async def render_prompt(fields: ChatPromptFields, engine: EngineClient) -> str:
    """The text of a conversation's prompt; to be encoded without special tokens, as the template writes its own.

    Raises:
        InvalidRequest: messages that make no sense, or that the model's template does not take.
    """
    if not fields.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    is_continued = bool(fields.continue_final_message)
    opens_turn = fields.add_generation_prompt
    return await engine.render_chat(
        [_template_message(message, f"messages.{place}") for place, message in enumerate(fields.messages)],
        add_generation_prompt=not is_continued if opens_turn is None else opens_turn,
        continue_final_message=is_continued,
        template_kwargs=fields.chat_template_kwargs,
    )


def _template_message(message: ChatMessage, where: str) -> dict[str, Any]:
    _check_message(message, where)
    optional = {
        "name": message.name,
        "tool_calls": _template_calls(message.tool_calls or (), f"{where}.tool_calls") or None,
        "tool_call_id": message.tool_call_id,
    }
    given = {name: value for name, value in optional.items() if value is not None}
    return {"role": message.role, "content": message.text, **given}


def _check_message(message: ChatMessage, where: str) -> None:
    if message.content == []:
        raise InvalidRequest(f"{where}.content must hold at least one part", param=f"{where}.content")
    if message.tool_calls == []:
        raise InvalidRequest(f"{where}.tool_calls must hold at least one call", param=f"{where}.tool_calls")
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{where}.tool_calls is for the assistant only", param=f"{where}.tool_calls")
    if message.content is None and not message.tool_calls:
        raise InvalidRequest(
            f"{where}.content is required: only an assistant's message with tool_calls may do without",
            param=f"{where}.content",
        )
    if (message.tool_call_id is not None) != (message.role == "tool"):
        raise InvalidRequest(
            f"{where}.tool_call_id is required of a tool, and for a tool only", param=f"{where}.tool_call_id"
        )


def _template_calls(calls: Sequence[ToolCall], where: str) -> list[dict[str, Any]]:
    """Calls as templates read them: with the arguments as an object."""
    return [
        {
            "id": call.id,
            "type": call.type,
            "function": {
                "name": call.function.name,
                "arguments": _arguments(call.function.arguments, f"{where}.{place}.function.arguments"),
            },
        }
        for place, call in enumerate(calls)
    ]


def _arguments(written: str, where: str) -> dict[str, Any]:
    try:
        arguments = parse_json(written.encode())
    except InvalidRequest:  # which would name the whole body
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{where} must be a JSON object in a string, not {json_text(written)}", param=where)
    return arguments
