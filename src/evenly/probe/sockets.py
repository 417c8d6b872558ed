"""Open UDP sockets that never block."""

from __future__ import annotations

import contextlib
import errno
import socket

__all__ = ["DATAGRAMS_PER_TURN", "open_bound", "open_unbound"]

DATAGRAMS_PER_TURN = 100
"""How many are read in one turn of the event loop, about a millisecond's work; then others run."""

# The kernel's default holds some 270 small datagrams: less than a busy loop lets pile up, and less
# than a flood brings in a millisecond.  Who is not privileged gets `net.core.rmem_max` at most.
_RECEIVE_BUFFER_BYTES = 4 * 2**20
_SO_RCVBUFFORCE = 33  # Linux's; the socket module has no name for it.
_EVERYWHERE = "::"
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def open_unbound(family: int) -> socket.socket:
    """Open a socket that gets its port from the system when it first sends."""
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    # Never less than an operator has set for all sockets.
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < _RECEIVE_BUFFER_BYTES:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        with contextlib.suppress(OSError):  # Who may not is content with the above.
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    return sock


def open_bound(host: str, port: int) -> list[socket.socket]:
    """Open a socket on each address of `host`, all on one port; 0 takes a free one.

    `::` means IPv4 as well, and nothing but IPv4 on a machine without IPv6: what gRPC makes of it.
    Brackets around an address are dropped.  A name is looked up, and that may block.
    """
    host = host.removeprefix("[").removesuffix("]") or _EVERYWHERE
    opened: list[socket.socket] = []
    not_here: OSError | None = None
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            try:
                opened.append(_open_one(family, (address[0], port, *address[2:])))
            except OSError as error:
                # A name such as localhost may have an address of a family that is switched off.
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
            else:
                port = opened[0].getsockname()[1]
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    if not_here is not None and not opened:
        if host == _EVERYWHERE:
            return open_bound("0.0.0.0", port)  # noqa: S104 -- it is what the caller asked for
        raise not_here
    return opened


def _open_one(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = open_unbound(family)
    try:
        if family == socket.AF_INET6:
            is_only_ipv6 = address[0] != _EVERYWHERE
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_only_ipv6)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
