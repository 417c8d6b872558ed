from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.probe.ends import stranger


@pytest.fixture(autouse=True)
async def _errors_in_the_loop_fail_the_test() -> AsyncIterator[None]:
    """Fail a test in whose loop a callback raised, unless it has a handler of its own."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    yield
    assert errors == []


@pytest.fixture
def backend_socket() -> Iterator[socket.socket]:
    """Be a backend whose answers are written by hand."""
    with stranger() as sock:
        yield sock
