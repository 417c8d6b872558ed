"""Bind the sockets that a backend listens on, and name them.

They are bound at once, so that a mistake shows before anything else is done, and listen when
somebody accepts: until then clients are refused, and go elsewhere.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import final

from evenly.http.serve.loading import StartError
from evenly.http.serve.room import Door, Room

__all__ = ["Listening", "bind"]

_EVERYWHERE = "::"


@final
class Listening:
    """Be the sockets of one backend."""

    def __init__(self, sockets: Sequence[Door], name: str, uds: Path | None) -> None:
        self.sockets = list(sockets)
        self.name = name
        """The address without a scheme: `127.0.0.1:8000`, or a path."""
        self._uds = uds
        self._inode = None if uds is None else uds.stat().st_ino

    def url(self, *, is_tls: bool) -> str:
        """Return where it listens, in the words of a client."""
        if self._uds is not None:
            return f"unix:{self.name}"
        return f"{'https' if is_tls else 'http'}://{self.name}"

    def addresses(self) -> list[tuple[str, int]]:
        """Return hosts and ports, of which a path has none."""
        if self._uds is not None:
            return []
        return [sock.getsockname()[:2] for sock in self.sockets]

    def look_at(self, room: Room | None) -> None:
        """Turn away whom there is no room for."""
        for sock in self.sockets:
            sock.room = room

    def close(self) -> None:
        """Close the sockets, and take a path away that is still ours; a second time nothing."""
        for sock in self.sockets:
            sock.close()
        if self._uds is not None and self._inode is not None:
            inode, self._inode = self._inode, None
            try:
                # Whoever comes after us may have put its own there.
                if self._uds.stat().st_ino == inode:
                    self._uds.unlink()
            except OSError:  # It is gone, or not ours to remove.
                pass


def bind(host: str, port: int, uds: str | None = None) -> Listening:
    """Bind to each address of `host`, or to the path `uds`; port 0 takes a free one.

    `::` and the empty name are every address, of both families.
    """
    if uds is not None:
        return _bind_path(Path(uds))
    host = host.removeprefix("[").removesuffix("]") or _EVERYWHERE
    sockets: list[Door] = []
    try:
        for address in _addresses(host, port):
            sockets.append(_bound(address, port))
            port = sockets[0].getsockname()[1]  # One number for all.
    except (OSError, OverflowError, UnicodeError) as error:
        for sock in sockets:
            sock.close()
        text = getattr(error, "strerror", None) or error
        raise StartError(f"cannot listen on {_name(host, port)}: {text}") from error
    return Listening(sockets, _name(host, port), None)


def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if host == _EVERYWHERE and not socket.has_dualstack_ipv6():
        found = socket.getaddrinfo("0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
    # A name may stand for one address twice.
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(address: tuple[int, tuple[object, ...]], port: int) -> Door:
    family, (host, _, *rest) = address
    # Named, because asyncio turns off the delay of small writes (Nagle) for what is surely TCP.
    sock = Door(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != _EVERYWHERE)
        sock.bind((host, port, *rest))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_path(path: Path) -> Listening:
    sock = Door(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            _check_dead(path)
            path.unlink()  # Left by one that was killed.
        sock.bind(os.fspath(path))
        path.chmod(0o666)  # As uvicorn does: who may reach the folder may connect.
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
    return Listening([sock], os.fspath(path), path)


def _check_dead(path: Path) -> None:
    """Raise `OSError` if somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(os.fspath(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:  # It lives, and many wait to be accepted.
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
