from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from evenly.probe.sockets import open_bound
from tests.probe.ends import V4, open_files, stranger

NOT_OURS = "192.0.2.1"  # RFC 5737: nobody's


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let the system's resolver find these addresses for a name, and literals as ever."""
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *, type: int) -> object:  # noqa: A002 -- socket's
        if host in {"0.0.0.0", V4}:  # noqa: S104 -- it is the point
            return real(host, port, type=type)
        return [(socket.AF_INET, type, 17, "", (found, port)) for found in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_the_receive_buffer_is_as_large_as_the_kernel_grants() -> None:
    granted = min(4 * 2**20, int(Path("/proc/sys/net/core/rmem_max").read_text()))

    (sock,) = open_bound(V4, 0)

    with sock:
        # The kernel counts its own book-keeping in, and doubles what it was asked for.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * granted


def test_all_addresses_of_a_name_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, V4, "127.0.0.2")

    opened = open_bound("search.prod", 0)

    bound = [sock.getsockname() for sock in opened]
    for sock in opened:
        sock.close()
    assert bound == [(V4, bound[0][1]), ("127.0.0.2", bound[0][1])]


def test_an_address_of_a_name_that_is_not_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, NOT_OURS, V4)

    (sock,) = open_bound("search.prod", 0)

    with sock:
        assert sock.getsockname()[0] == V4


def test_an_address_that_is_not_here_is_an_error() -> None:
    before = open_files()
    with pytest.raises(OSError, match=rf"\[Errno {errno.EADDRNOTAVAIL}\]"):
        open_bound(NOT_OURS, 0)

    assert open_files() == before


def test_one_taken_port_of_several_is_an_error_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_to(monkeypatch, V4, "127.0.0.2")
    with stranger("127.0.0.2") as taken:
        before = open_files()
        with pytest.raises(OSError, match="in use"):
            open_bound("search.prod", taken.getsockname()[1])

        assert open_files() == before


@pytest.mark.parametrize("host", ["::", "[::]", ""])
def test_every_address_is_all_of_ipv4_on_a_machine_without_ipv6(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    resolve_to(monkeypatch, NOT_OURS)  # fails as ::  does there

    (sock,) = open_bound(host, 0)

    with sock:
        assert sock.getsockname()[0] == "0.0.0.0"  # noqa: S104 -- it is the point


def test_a_socket_never_blocks_and_has_room_for_a_burst() -> None:
    (sock,) = open_bound(V4, 0)

    with sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        assert not sock.getblocking()
        room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        usual = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert room > usual or room == usual >= 2**20
