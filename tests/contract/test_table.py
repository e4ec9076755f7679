"""The table in docs/api.md is what the tests say, and the tests that it names exist."""

from __future__ import annotations

import ast

import pytest

from tests.contract.table import BEGIN, END, PAGE, TESTS, make_table, proofs


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    _, _, rest = page.partition(BEGIN)
    assert rest.partition(END)[0].strip() == make_table().strip(), "run: python -m tests.contract.table"


@pytest.mark.parametrize("proof", sorted(proofs()))
def test_a_proof_exists(proof: str) -> None:
    file, _, name = proof.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in functions if name else any(function.startswith("test_") for function in functions)
