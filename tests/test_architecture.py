"""Guards of the house that import-linter cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for room in ("deploy", "engine", "server") for path in (ROOT / room).rglob("*.py"))

MOST_LINES_IN_A_FILE = 300
MOST_LINES_IN_A_FUNCTION = 40

WITHOUT_TORCH = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "numpy"}:
            raise ImportError(f"{name} is not for this room")

sys.meta_path.insert(0, Wall())
import server.app
"""


def test_reception_stands_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
class TestSource:
    def test_a_file_that_grew_too_long_wants_to_be_two(self, path: Path) -> None:
        assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES_IN_A_FILE

    def test_a_function_that_grew_too_long_wants_to_be_two(self, path: Path) -> None:
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        lengths = {function.name: _num_lines(function) for function in functions}
        too_long = {name: length for name, length in lengths.items() if length > MOST_LINES_IN_A_FUNCTION}
        assert not too_long

    def test_a_file_says_what_it_knows(self, path: Path) -> None:
        tree = ast.parse(path.read_text("utf-8"))
        assert not tree.body or ast.get_docstring(tree)


def _num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    told = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - told
