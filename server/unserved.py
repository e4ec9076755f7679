"""Known fields of OpenAI's and vLLM's that are served in one value only; any other is refused, with the reason.

A field moves from here to ``server.protocol`` on the day it is served.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, PlainValidator, ValidationInfo, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue

from engine.errors import InvalidRequest
from server.errors import json_text


def only(served: object, reason: str) -> PlainValidator:
    """A validator that takes ``served`` and null, and refuses the rest with the reason."""

    def check(value: Any, info: ValidationInfo) -> Any:
        is_served = value == served and isinstance(value, bool) == isinstance(served, bool)
        if value is None or is_served:
            return value
        choices = "null" if served is None else f"{json.dumps(served)} or null"
        raise InvalidRequest(
            f"{info.field_name} must be {choices}, not {json_text(value)}: {reason}", param=info.field_name
        )

    values = [None] if served is None else [served, None]
    # Without the types false and 0 would be one schema.
    schema: JsonSchemaValue = {"type": sorted({_JSON_TYPES[type(value)] for value in values}), "enum": values}
    return PlainValidator(check, json_schema_input_type=Annotated[Any, WithJsonSchema(schema)])


_JSON_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


_UNCONSTRAINED = only(None, "this server cannot constrain an output to a form")
_NO_BEAMS = "there is no beam search"


class UnservedFields(BaseModel):
    """Fields that clients may send as long as they ask for nothing."""

    guided_choice: Annotated[None, _UNCONSTRAINED] = None
    guided_decoding_backend: Annotated[None, _UNCONSTRAINED] = None
    guided_grammar: Annotated[None, _UNCONSTRAINED] = None
    guided_json: Annotated[None, _UNCONSTRAINED] = None
    guided_regex: Annotated[None, _UNCONSTRAINED] = None
    guided_whitespace_pattern: Annotated[None, _UNCONSTRAINED] = None
    length_penalty: Annotated[float | None, only(1.0, _NO_BEAMS)] = None
    priority: Annotated[int | None, only(0, "requests are served in the order in which they come")] = None
    response_format: Annotated[
        dict[str, str] | None, only({"type": "text"}, "this server cannot constrain an output to a form")
    ] = None
    spaces_between_special_tokens: Annotated[bool | None, only(True, "tokens are joined as the model's are")] = None
    store: Annotated[bool | None, only(False, "nothing is stored")] = None
    stream_interval: Annotated[int | None, only(1, "a chunk is sent for every step")] = None
    structured_outputs: Annotated[None, _UNCONSTRAINED] = None
    use_beam_search: Annotated[bool | None, only(False, _NO_BEAMS)] = None
    vllm_xargs: Annotated[None, only(None, "there are no such arguments here")] = None
