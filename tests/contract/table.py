"""The table of request fields in docs/api.md, made from the tests: ``python -m tests.contract.table`` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from server.chat_unserved import ChatUnservedFields
from server.unserved import UnservedFields
from tests.contract.field import BOTH, CHAT
from tests.contract.fields import ELSEWHERE, FIELDS

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "api.md"
BEGIN, END = "<!-- made by tests/contract/table.py: begin -->\n", "<!-- end -->\n"
_HERE = "contract/test_fields.py::test_a_field_does_what_it_says"
_UNSERVED = "contract/test_unserved.py::test_an_unserved_field_asks_for_nothing_or_is_refused"


class Line(NamedTuple):
    """A field, the routes that have it, and the test below ``tests/`` that proves what it does."""

    name: str
    routes: str
    does: str
    proof: str

    def __str__(self) -> str:
        return f"| `{self.name}` | {self.routes} | {self.does} | `{self.proof}` |"


def make_table() -> str:
    """Markdown: a line for each field of each route."""
    head = ["| field | routes | what it does | proved by `tests/` |", "|---|---|---|---|"]
    return "\n".join([*head, *map(str, lines())]) + "\n"


def lines() -> list[Line]:
    """The table's lines by name."""
    found = [Line(field.name, " ".join(field.routes), field.does, _HERE) for field in FIELDS]
    for routes, fields in ELSEWHERE.items():
        found += [Line(name, routes, does, proof) for name, (does, proof) in fields.items()]
    found += [Line(name, " ".join(BOTH), does, _UNSERVED) for name, does in _unserved(UnservedFields)]
    found += [Line(name, CHAT, does, _UNSERVED) for name, does in _unserved(ChatUnservedFields)]
    return sorted(found)


def write_table() -> None:
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + "\n" + make_table() + "\n" + page[end:])


def _unserved(fields: type[BaseModel]) -> list[tuple[str, str]]:
    properties = fields.model_json_schema()["properties"]
    return [
        (name, f"{' or '.join(f'`{json.dumps(value)}`' for value in schema['enum'])}; anything else is refused")
        for name, schema in properties.items()
    ]


if __name__ == "__main__":
    write_table()
