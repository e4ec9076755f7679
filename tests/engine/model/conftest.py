from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tiny import one_thread


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield
