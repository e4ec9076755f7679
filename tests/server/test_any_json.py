"""Whatever a client puts into a field, the answer is a completion or a refusal in the one shape."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from server.completion_protocol import CompletionRequest
from tests.fakes import FakeEngine
from tests.server.harness import error_of, post, serve

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, -1, 10**25, 10**400, -(10**25), 0.5, 1e308, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("0127x", max_size=3), v, max_size=3)
)
FIELDS = st.dictionaries(st.sampled_from(sorted(CompletionRequest.model_fields)), VALUES, max_size=3)


async def _check(fields: dict[str, Any], unknown_fields: str) -> None:
    async with serve(FakeEngine(), unknown_fields=unknown_fields) as client:
        response = await post(client, **fields)
        if response.status_code != 200:
            error_of(response, 404 if response.status_code == 404 else 400)


@settings(max_examples=150, deadline=None)
@given(fields=FIELDS, unknown_fields=st.sampled_from(["reject", "ignore"]))
def test_any_json_is_answered(fields: dict[str, Any], unknown_fields: str) -> None:
    asyncio.run(_check(fields, unknown_fields))
