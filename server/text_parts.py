"""Text as OpenAI's clients write it: a string, or a list of parts. Knows neither messages nor routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class RequestPart(BaseModel):
    """Something inside a request: types are strict, and an unknown field is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _refuse_other_kinds(kind: Any) -> Any:
    if kind != "text":
        raise PydanticCustomError("not_text", "this server reads text only: input should be 'text'")
    return kind


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is not None and not isinstance(content, list):
        raise PydanticCustomError("not_content", "input should be a string or a list of text parts")
    return content


class TextPart(RequestPart):
    """A piece of a text."""

    type: Annotated[Literal["text"], BeforeValidator(_refuse_other_kinds)]
    text: str


TextParts = Annotated[list[TextPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart])]
OptionalTextParts = Annotated[
    list[TextPart] | None, BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart] | None)
]


def joined(parts: list[TextPart]) -> str:
    """The parts as one text, a line for each."""
    return "\n".join(part.text for part in parts)
