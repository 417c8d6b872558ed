from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from evenly.lab.dashboard.server import Dashboard
from tests.lab.dashboard.fakes import FakeSource, client_of


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
async def dashboard(source: FakeSource) -> AsyncIterator[Dashboard]:
    async with Dashboard(source) as dashboard:
        yield dashboard


@pytest.fixture
async def client(dashboard: Dashboard) -> AsyncIterator[httpx.AsyncClient]:
    """One with the link."""
    async with client_of(dashboard) as client:
        yield client


@pytest.fixture
async def stranger(dashboard: Dashboard) -> AsyncIterator[httpx.AsyncClient]:
    """One without a token."""
    async with client_of(dashboard, has_token=False) as client:
        yield client
