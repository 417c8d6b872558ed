"""Start the servers once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance import servers
from tests.conformance.servers import Servers


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Give the addresses of all servers."""
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        plain = stack.enter_context(servers.uvicorn("uvicorn", folder, "--http", "httptools"))
        h11 = stack.enter_context(servers.uvicorn("h11", folder, "--http", "h11"))
        # nginx and HAProxy have one each: `/sent` and `/go` are about a server's only request.
        behind = [
            stack.enter_context(servers.uvicorn(f"behind-{name}", folder))
            for name in ("nginx", "haproxy")
        ]
        yield Servers(
            {
                "uvicorn": plain,
                "uvicorn h11": h11,
                "granian": stack.enter_context(servers.granian(folder)),
                "unix uvicorn": stack.enter_context(servers.uvicorn_at_a_socket(folder)),
                **stack.enter_context(servers.nginx(folder, behind[0])),
                **stack.enter_context(servers.haproxy(folder, behind[1])),
            },
            folder / "certificate.pem",
        )
