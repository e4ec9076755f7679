"""The table of request fields in docs/api.md, made from the tests: ``python -m tests.contract.table`` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from server.chat_unserved import ChatUnservedFields
from server.unserved import UnservedFields
from tests.contract.fields import BOTH, CHAT, ELSEWHERE, FIELDS

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "api.md"
BEGIN, END = "<!-- made by tests/contract/table.py: begin -->\n", "<!-- end -->\n"
_HERE = "contract/test_fields.py::test_a_field_does_what_it_says"
_REFUSED = "server/test_refused_fields.py"
_REFUSED_IN_CHAT = "server/test_chat_refused_fields.py"


def make_table() -> str:
    """Markdown: a line for each field of each route."""
    lines = ["| field | routes | what it does | proved by `tests/` |", "|---|---|---|---|"]
    lines += [_line(*row) for row in sorted(_rows())]
    return "\n".join(lines) + "\n"


def proofs() -> set[str]:
    """Every test that the table names, by its file and function below ``tests/``."""
    return {row[3] for row in _rows()}


def write_table() -> None:
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + "\n" + make_table() + "\n" + page[end:])


def _rows() -> list[tuple[str, str, str, str]]:
    rows = [(field.name, _both(field.routes), field.does, _HERE) for field in FIELDS]
    for name, (does, proof) in ELSEWHERE.items():
        route, _, inner = name.partition(".")
        rows.append((inner, route, does, proof) if route in BOTH else (name, "both", does, proof))
    rows += [(name, "both", does, _REFUSED) for name, does in _unserved(UnservedFields)]
    rows += [(name, CHAT, does, _REFUSED_IN_CHAT) for name, does in _unserved(ChatUnservedFields)]
    return rows


def _unserved(fields: type[BaseModel]) -> list[tuple[str, str]]:
    properties = fields.model_json_schema()["properties"]
    return [
        (name, f"{' or '.join(f'`{json.dumps(value)}`' for value in schema['enum'])}; anything else is refused")
        for name, schema in properties.items()
    ]


def _both(routes: tuple[str, ...]) -> str:
    return "both" if routes == BOTH else " ".join(routes)


def _line(name: str, routes: str, does: str, proof: str) -> str:
    return f"| `{name}` | {routes} | {does} | `{proof}` |"


if __name__ == "__main__":
    write_table()
