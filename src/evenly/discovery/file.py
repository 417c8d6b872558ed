"""Backends that are listed in a file, which is watched.

One backend per line, `address` or `index address`; `#` begins a comment.  Either all lines have an
index or none.  The file is looked at by its inode, modification time and size:

- Another file under the name (renamed over the old one) is complete, and read at once.
- A file that is made or rewritten in place may be half-written at any moment, so it is read when it
  has been the same for two looks in a row.  So is one without backends or without a last newline.
- While a list is in use, one rewritten in place is never believed without backends or without a
  last newline: a writer that fell silent half-way, or a full disk, leaves just that.

Whatever is wrong, the last good list stays in use: an operator's mistake must not be an outage.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

from evenly.core import check
from evenly.core.balancing.backend import Backend
from evenly.discovery import address
from evenly.discovery.problems import ProblemLog
from evenly.errors import ConfigError

__all__ = ["FileConfig", "FileDiscovery", "parse_file"]

_INDEX: Final = re.compile(r"[0-9]{1,9}")
# 100,000 backends, the most that there can be, at 80 bytes each.
_MAX_BYTES: Final = 8_000_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """Set how a file is watched."""

    look_seconds: float = 1.0
    """Between two looks; a list rewritten in place is taken at the second look after it settled."""
    jitter_ratio: float = 0.2
    """± this part of it, so that a thousand client tasks do not look at one file server in step."""

    def __post_init__(self) -> None:
        check.number("look_seconds", self.look_seconds, 0.01, 3600.0)
        check.fraction("jitter_ratio", self.jitter_ratio)


class _Identity(NamedTuple):
    """Tell one state of a file from another without reading it."""

    device: int
    inode: int
    modified_ns: int
    size: int


class _Look(NamedTuple):
    """Be what one look at the file told."""

    identity: _Identity | None = None
    """`None`: there was nothing to read."""
    is_renamed: bool = False
    """It came in the place of another file, and so was whole at once."""
    is_settled: bool = False
    """It was the same at two looks in a row, and has been read since."""
    backends: tuple[Backend, ...] | None = None
    """`None`: nothing new, or not to be believed yet."""
    problem: str | None = None


@final
class FileDiscovery:
    """Watch a file that lists the backends."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: FileConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._path = Path(path)
        self._config = FileConfig() if config is None else config
        self._sleep = sleep
        self._rng = random.Random() if rng is None else rng

    async def watch(self) -> AsyncGenerator[Sequence[Backend], None]:
        """Yield the list whenever the file has a new one."""
        known: tuple[Backend, ...] | None = None
        problems = ProblemLog(f"file:{address.shown(str(self._path))}")
        look: _Look | None = None
        while True:
            # A file system may be at the other end of a network.
            look = await asyncio.to_thread(_look, self._path, look, in_use=bool(known))
            if look.problem is not None:
                problems.report(look.problem, None if known is None else len(known))
            elif look.backends is not None:
                problems.solved(len(look.backends))
                if known and not look.backends:
                    problems.emptied(len(known))
                if look.backends != known:
                    known = look.backends
                    yield known
            jitter = self._config.jitter_ratio * (2.0 * self._rng.random() - 1.0)
            await self._sleep(self._config.look_seconds * (1.0 + jitter))


def _look(path: Path, before: _Look | None, *, in_use: bool) -> _Look:
    """Look at the file, and read it where that may tell something new; never raises.

    `in_use` says that there is a list to keep.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for its writer.
            return _Look(problem="must be a regular file")
        identity = _identity(status)
        is_same = before is not None and identity == before.identity
        if before is not None and is_same and before.is_settled:
            return before._replace(backends=None)
        is_renamed = _is_renamed(identity, before)
        if is_same or is_renamed or before is None:
            is_doubtful = in_use and not is_renamed
            look = _read(path, identity, is_same=is_same, is_doubtful=is_doubtful)
            return look._replace(is_renamed=is_renamed and look.identity == identity)
        return _Look(identity)
    except OSError as error:
        # Looked at afresh, because what was unreadable may become readable unchanged.
        return _Look(problem=f"cannot be read: {error.strerror or type(error).__name__}")


def _is_renamed(identity: _Identity, before: _Look | None) -> bool:
    """Return whether the file was renamed over another one, and not written to since."""
    if before is None or before.identity is None:
        return False
    return before.is_renamed if before.identity == identity else before.identity[:2] != identity[:2]


def _read(path: Path, identity: _Identity, *, is_same: bool, is_doubtful: bool = False) -> _Look:
    """Read the file; a doubtful one may be half-written for ever.

    What was read at once is read again when it has settled: a write within the same tick of the
    file system's clock does not show in the modification time.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
        identity_read = _identity(os.fstat(file.fileno()))
    if identity_read != identity or not (is_same or data.endswith(b"\n")):
        return _Look(identity_read)
    try:
        backends = parse_file(data)
    except ConfigError as error:
        return _Look(identity, is_settled=is_same, problem=str(error))
    if is_doubtful and is_same and not (backends and data.endswith(b"\n")):
        what = "has no newline at its end" if backends else "lists no backends"
        problem = f"{what}, and was written in place; rename a whole file over it if that is meant"
        return _Look(identity, is_settled=True, problem=problem)
    return _Look(identity, is_settled=is_same, backends=backends if backends or is_same else None)


def _identity(status: os.stat_result) -> _Identity:
    return _Identity(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def parse_file(data: bytes) -> tuple[Backend, ...]:
    """Return the backends that a file lists, or raise `ConfigError` with line and value."""
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"must be at most {_MAX_BYTES} bytes long")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        value = address.shown(data[error.start : error.end])
        raise ConfigError(f"line {number}: must be UTF-8, not {value}") from None
    backends: list[Backend] = []
    lines: dict[str | int, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        if comment == 0:
            continue
        try:
            backend = _backend(words[:comment])
            if backends and (backend.index is None) != (backends[0].index is None):
                raise ConfigError(f"all lines must have an index or none, not {_quoted(line)}")
            for key in (backend.address, backend.index):
                if key is not None and lines.setdefault(key, number) != number:
                    raise ConfigError(f"{address.shown(key)} is on line {lines[key]} already")
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
        backends.append(backend)
    return tuple(backends)


def _backend(words: Sequence[str]) -> Backend:
    if len(words) == 1:
        return Backend(address.parse(words[0], "address"))
    index, place = words if len(words) == 2 else ("", "")
    if not _INDEX.fullmatch(index):
        raise ConfigError(f"must be `address` or `index address`, not {_quoted(' '.join(words))}")
    return Backend(address.parse(place, "address"), int(index))


def _quoted(line: str) -> str:
    return address.shown(line.strip())
