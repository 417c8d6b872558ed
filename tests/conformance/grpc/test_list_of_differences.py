"""The list in the docs is the list of the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.grpc import test_aio_cases, test_sync_cases

PAGE = Path(__file__).parents[3] / "docs" / "conformance.md"


@pytest.mark.parametrize(
    ("title", "cases"),
    [("asyncio", test_aio_cases.DIFFERENCES), ("Threads", test_sync_cases.DIFFERENCES)],
)
def test_the_docs_name_what_differs_and_nothing_else(title: str, cases: Sequence[Any]) -> None:
    [section] = re.findall(rf"^## {title}\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)

    assert re.findall(r"^- `(\w+)`: ", section, re.MULTILINE) == [case.__name__ for case in cases]
