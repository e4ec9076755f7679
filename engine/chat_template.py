"""A model's chat template: from a conversation to the text of a prompt.

Knows what the template reads, so that nothing a client says is passed over. Refuses to know tokens and HTTP.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerFast

from engine.errors import InvalidRequest

Message = Mapping[str, Any]

# What transformers puts into every template, beside the names that its rendering function has for itself.
_GIVEN_NAMES = frozenset({"messages", "raise_exception", "strftime_now"})
_PROBE = "Xq7"


class ChatTemplate:
    """The chat template of one tokenizer, run in transformers' sandbox. Safe to use from several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._hf = tokenizer
        self._fault = ""
        self._variables: frozenset[str] = frozenset()
        self._knows_developer = self._takes_parts = False
        try:
            syntax = _parse(tokenizer.get_chat_template())
        except ValueError:  # none at all, or several without a default
            self._fault = "this model has no chat template; use /v1/completions"
        except TemplateError as error:
            self._fault = f"this model's chat template is broken: {error}"
        else:
            self._variables = frozenset(find_undeclared_variables(syntax)) - _own_names(tokenizer)
            self._knows_developer = any(node.value == "developer" for node in syntax.find_all(nodes.Const))
            self._takes_parts = not self._shows(_PROBE) and self._shows(_as_parts(_PROBE))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation.

        A ``developer`` is a ``system`` to a template that does not know the former.

        Args:
            messages: each with ``role``, ``content`` (a text, or None) and whatever else the template reads.
            add_generation_prompt: whether the text ends with the opening of the assistant's turn.
            continue_final_message: whether it ends within the last message, which is then gone on with.
            template_kwargs: variables of this template.

        Raises:
            InvalidRequest: there is no template, it refuses these messages, or it would pass over something in them.
        """
        if self._fault:
            raise InvalidRequest(self._fault, param="messages")
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message cannot both be true", param="add_generation_prompt"
            )
        kwargs = dict(template_kwargs or {})
        self._check_variables(kwargs)
        settings = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **kwargs,
        }
        text = self._render([self._adapt(message) for message in messages], settings)
        self._check_read(messages, text, settings)
        return text

    def _check_variables(self, kwargs: Mapping[str, Any]) -> None:
        for name in kwargs:
            if name not in self._variables:
                known = ", ".join(sorted(self._variables)) or "none"
                raise InvalidRequest(
                    f"chat_template_kwargs: the model's chat template has no variable {name!r}; it has {known}",
                    param="chat_template_kwargs",
                )

    def _check_read(self, messages: Sequence[Message], text: str, settings: Mapping[str, Any]) -> None:
        """Refuse what left no trace. The id that a tool's answer goes by says nothing by itself, so it may not."""
        for name in dict.fromkeys(name for message in messages for name in message):
            if name in ("role", "content", "tool_call_id"):
                continue
            bare = [{key: value for key, value in message.items() if key != name} for message in messages]
            if self._is_rendered_as(text, bare, settings):
                first = next(index for index, message in enumerate(messages) if name in message)
                raise InvalidRequest(
                    f"messages.{first}.{name}: the model's chat template does not show it to the model",
                    param=f"messages.{first}.{name}",
                )

    def _is_rendered_as(self, text: str, messages: Sequence[Message], settings: Mapping[str, Any]) -> bool:
        try:
            return self._render([self._adapt(message) for message in messages], settings) == text
        except InvalidRequest:
            return False

    def _adapt(self, message: Message) -> dict[str, Any]:
        adapted = dict(message)
        if adapted["role"] == "developer" and not self._knows_developer:
            adapted["role"] = "system"
        if self._takes_parts and isinstance(adapted.get("content"), str):
            adapted["content"] = _as_parts(adapted["content"])
        return adapted

    def _render(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> str:
        try:
            return str(self._hf.apply_chat_template(messages, tokenize=False, **settings))
        except Exception as error:  # a template is a program of someone else's: it may raise anything
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def _shows(self, content: Any) -> bool:
        try:
            return _PROBE in self._render([{"role": "user", "content": content}], {})
        except InvalidRequest:
            return False


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _own_names(tokenizer: PreTrainedTokenizerFast) -> frozenset[str]:
    """Names in a template that are not the client's to set."""
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    special_tokens = tokenizer.SPECIAL_TOKENS_ATTRIBUTES
    return _GIVEN_NAMES.union(parameters, special_tokens, ImmutableSandboxedEnvironment().globals)


def _parse(source: str) -> nodes.Template:
    environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols, _GenerationTag])
    return environment.parse(source)


class _GenerationTag(Extension):
    """The tag that transformers adds to the language."""

    tags: set[str] = {"generation"}  # noqa: RUF012  (the base class has it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
