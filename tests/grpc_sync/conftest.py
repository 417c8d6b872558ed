from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import evenly.grpc.sync
from tests.grpc_sync import backends
from tests.grpc_sync.backends import Behavior


@pytest.fixture
def behavior() -> Behavior:
    return Behavior()


MAKES = {
    "plain": backends.plain_backend,
    "plain-aio": backends.plain_aio_backend,
    "evenly": backends.evenly_backend,
}


@pytest.fixture(params=MAKES)
def channel(
    request: pytest.FixtureRequest, behavior: Behavior
) -> Iterator[evenly.grpc.sync.Channel]:
    """A channel to two backends of each make in turn."""
    make = MAKES[request.param]
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(make(behavior)) for _ in range(2)]
        yield stack.enter_context(backends.channel_to(*addresses))
