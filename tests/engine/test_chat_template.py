"""Conversations into prompts, on templates of the kinds that models have."""

from __future__ import annotations

from typing import Any

import pytest

from engine.chat_template import ChatTemplate
from engine.errors import InvalidRequest
from tests import vocabularies
from tests.engine.tokenizers import byte_fallback, byte_level, default_tokenizer

HELLO = [{"role": "user", "content": "Hi"}]
NAMED = "{% for m in messages %}{{ m.role }}{% if m.name %}({{ m.name }}){% endif %}: {{ m.content }}\n{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% endif %}{% endfor %}\n{% endfor %}"
)
THINKING = (
    "{{ bos_token }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    "{{ tools or '' }}"
    "{% if not enable_thinking is defined %}{% set enable_thinking = true %}{% endif %}"
    "{% if enable_thinking %}<think>{% endif %}{{ date_string | default('today') }}"
)
CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% elif m.role == 'tool' %}"
    "<{{ m.content }}>{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(vocabularies.byte_level(chat_template=source))


def refusal_of(source: str | None, messages: list[dict[str, Any]], **settings: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        template(source).render(messages, **settings)
    return caught.value


class TestDefaultModel:
    def test_it_opens_the_assistants_turn(self) -> None:
        tokenizer = default_tokenizer()
        text = tokenizer.chat_template.render(HELLO)
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert len({token for token in tokenizer.encode(text) if tokenizer.is_silent(token)}) == 2

    def test_with_the_begin_token_or_without_the_prompt_is_one(self) -> None:
        tokenizer = default_tokenizer()
        text = tokenizer.chat_template.render(HELLO)
        assert tokenizer.encode(text, add_special_tokens=False) == tokenizer.encode(text)

    def test_a_developer_is_its_system(self) -> None:
        render = default_tokenizer().chat_template.render
        texts = [render([{"role": role, "content": "Be brief."}, *HELLO]) for role in ("developer", "system")]
        assert texts[0] == texts[1]

    def test_it_goes_on_with_the_last_message(self) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "Hello the"}]
        text = default_tokenizer().chat_template.render(
            messages, add_generation_prompt=False, continue_final_message=True
        )
        assert text.endswith("<|im_start|>assistant\nHello the")

    def test_it_has_no_variables(self) -> None:
        with pytest.raises(InvalidRequest, match="no variable 'enable_thinking'; it has none") as caught:
            default_tokenizer().chat_template.render(HELLO, template_kwargs={"enable_thinking": False})
        assert caught.value.param == "chat_template_kwargs"


def test_no_generation_prompt() -> None:
    assert byte_level().chat_template.render(HELLO, add_generation_prompt=False) == "user: Hi\n"


def test_a_developer_stays_one_where_the_template_knows_it() -> None:
    source = "{% for m in messages %}{{ 'D' if m.role == 'developer' else 'S' }}{% endfor %}"
    assert template(source).render([{"role": "developer", "content": "x"}]) == "D"


def test_a_template_that_reads_parts_gets_parts() -> None:
    assert template(PARTS).render(HELLO) == "user:Hi"


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({}, "Hi<think>today"),
        ({"enable_thinking": False}, "Hitoday"),
        ({"enable_thinking": False, "date_string": "Monday"}, "HiMonday"),
    ],
)
def test_variables_of_the_template(kwargs: dict[str, Any], text: str) -> None:
    assert template(THINKING).render(HELLO, template_kwargs=kwargs) == text


@pytest.mark.parametrize(
    "name", ["bos_token", "messages", "tokenize", "range", "raise_exception", "enable_thinkin", "m", "tools"]
)
def test_what_is_no_variable_of_the_template(name: str) -> None:
    error = refusal_of(THINKING, HELLO, template_kwargs={name: 1})
    assert error.param == "chat_template_kwargs"
    assert "it has date_string, enable_thinking" in str(error)


def test_a_name_reaches_the_model_or_is_refused() -> None:
    messages = [*HELLO, {"role": "user", "content": "Ho", "name": "Ann"}]
    assert template(NAMED).render(messages) == "user: Hi\nuser(Ann): Ho\n"
    assert refusal_of(PARTS, messages).param == "messages.1.name"


def test_calls_of_tools_reach_the_model_or_are_refused() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "1"},
    ]
    assert '"arguments": {"x": 1}' in template(CALLS).render(messages)
    ignorant = "{% for m in messages %}{{ m.role }}{% endfor %}"
    assert refusal_of(ignorant, messages).param == "messages.1.tool_calls"


@pytest.mark.parametrize("source", [NAMED, "{% for m in messages %}{{ m.content | trim }}\n{% endfor %}"])
def test_going_on_with_a_message(source: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hello "}]
    text = template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.rstrip(" ").endswith("Hello")


@pytest.mark.parametrize(
    ("source", "settings", "words", "param"),
    [
        (None, {}, "no chat template", "messages"),
        ("{% for %}", {}, "broken", "messages"),
        ("{{ raise_exception('no tools here') }}", {}, "no tools here", "messages"),
        ("{{ messages[0].content + 1 }}", {}, "refuses these messages", "messages"),
        ("{{ messages[7].content.x }}", {}, "refuses these messages", "messages"),
        ("{{ 1 // 0 }}", {}, "refuses these messages", "messages"),
        ("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}", {}, "refuses these messages", "messages"),
        (NAMED, {"continue_final_message": True}, "cannot both be true", "add_generation_prompt"),
        (
            "{{ messages[0].role }}{# content #}",
            {"continue_final_message": True, "add_generation_prompt": False},
            "final message",
            "messages",
        ),
    ],
)
def test_refusals(source: str | None, settings: dict[str, Any], words: str, param: str) -> None:
    error = refusal_of(source, HELLO, **settings)
    assert words in str(error)
    assert error.param == param


def test_bytes_of_tokens() -> None:
    tokenizer = byte_fallback()
    tokens = tokenizer.encode("the ñ")
    assert b"".join(tokenizer.token_bytes(token) for token in tokens[1:]) == " the ñ".encode()
    assert tokenizer.token_bytes(1) == b"<s>"
    assert byte_level().token_bytes(0) == b"<|end|>"
    assert [byte_level().token_bytes(token) for token in byte_level().encode("\u00ff")] == [b"\xc3", b"\xbf"]
    assert tokenizer.token_bytes(100_000) == b""
