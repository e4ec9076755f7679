"""The table in docs/api.md is what the tests say, lacks no field, and names tests that are about their fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from server.chat_protocol import ChatRequest
from server.completion_protocol import CompletionRequest
from server.tokens import DetokenizeRequest, TokenizeRequest
from tests.contract.field import CHAT, COMPLETIONS
from tests.contract.table import BEGIN, END, PAGE, TESTS, Line, lines, make_table

REQUESTS: dict[str, type[BaseModel]] = {
    COMPLETIONS: CompletionRequest,
    CHAT: ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def test_the_page_has_the_table() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    assert rest.partition(END)[0].strip() == make_table().strip(), "run: python -m tests.contract.table"


@pytest.mark.parametrize("route", REQUESTS)
def test_every_field_has_one_line_and_no_line_is_for_nothing(route: str) -> None:
    described = [line.name for line in lines() if route in line.routes.split()]
    assert len(described) == len(set(described))
    fields = set(_names(REQUESTS[route]))
    if route == "/tokenize":  # a message is described with chat
        fields -= {name for name in fields if name.startswith("messages.")}
    assert fields == set(described)


@pytest.mark.parametrize("line", lines(), ids=lambda line: f"{line.routes}: {line.name}")
def test_the_proof_is_there_and_names_the_field(line: Line) -> None:
    file, _, function = line.proof.partition("::")
    source = _tests_in(file)[function]
    # These two are parametrised over the fields themselves.
    if file not in ("contract/test_fields.py", "contract/test_unserved.py"):
        assert line.name.rpartition(".")[2] in source


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The fields of a request and of what is inside it, dotted."""
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner in _models_in(info.annotation):
            yield from _names(inner, f"{prefix}{name}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


@cache
def _tests_in(file: str) -> dict[str, str]:
    """The source of each test by its name, with what it is parametrised by."""
    source = (TESTS / file).read_text()
    all_lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(all_lines[first - 1 : node.end_lineno])
    return found
