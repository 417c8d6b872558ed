"""Tell which client task of its job this process is, where the environment says so.

Subsets are cut by it (`docs/subset.md`), so it has to be dense and lasting, and a wrong one is
worse than none: it is never guessed from a hostname that nobody named.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Final

from evenly.core.balancing.subset_input import MAX_CLIENT_INDEX
from evenly.discovery import address
from evenly.errors import ConfigError

__all__ = ["client_index"]

_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_ORDINAL: Final = re.compile(r".*-([0-9]{1,10})")
_MAX_WORKERS: Final = 10_000


def client_index(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this client task's index in its job, or `None` where nobody says.

    `EVENLY_CLIENT_INDEX` is a number, or the word `hostname` for a StatefulSet's ordinal; without
    it `JOB_COMPLETION_INDEX` counts, which Kubernetes sets for an indexed job.  Where a task is
    several processes, `EVENLY_WORKERS` says how many and `EVENLY_WORKER` which, from 0:

        index = index of the task × workers + worker

    An empty variable is one that is not set.  A wrong one raises `ConfigError`.
    """
    workers, worker = _workers(environ)
    index = _task_index(environ)
    if index is None:
        return None
    if index * workers + worker > MAX_CLIENT_INDEX:
        raise ConfigError(
            f"the client index, {index} × EVENLY_WORKERS {workers} + EVENLY_WORKER {worker},"
            f" must be in [0, {MAX_CLIENT_INDEX}]"
        )
    return index * workers + worker


def _task_index(environ: Mapping[str, str]) -> int | None:
    if environ.get("EVENLY_CLIENT_INDEX") == "hostname":
        return _ordinal(environ)
    for variable, others in (
        ("EVENLY_CLIENT_INDEX", " or the word hostname"),
        ("JOB_COMPLETION_INDEX", ""),
    ):
        if environ.get(variable):
            return _number(environ, variable, 0, MAX_CLIENT_INDEX, others)
    return None


def _ordinal(environ: Mapping[str, str]) -> int:
    hostname = environ.get("HOSTNAME") or socket.gethostname()
    match = _ORDINAL.fullmatch(hostname.partition(".")[0])
    if match is None or int(match[1]) > MAX_CLIENT_INDEX:
        raise ConfigError(
            "EVENLY_CLIENT_INDEX is hostname, so the hostname must end in - and a number in"
            f" [0, {MAX_CLIENT_INDEX}], as in search-3, and it is {address.shown(hostname)}"
        )
    return int(match[1])


def _workers(environ: Mapping[str, str]) -> tuple[int, int]:
    given = [name for name in ("EVENLY_WORKERS", "EVENLY_WORKER") if environ.get(name)]
    if not given:
        return 1, 0
    if len(given) == 1:
        raise ConfigError(
            "EVENLY_WORKERS and EVENLY_WORKER must be set together,"
            f" and only {given[0]} is: {address.shown(environ[given[0]])}"
        )
    workers = _number(environ, "EVENLY_WORKERS", 1, _MAX_WORKERS)
    return workers, _number(environ, "EVENLY_WORKER", 0, workers - 1)


def _number(
    environ: Mapping[str, str], variable: str, low: int, high: int, others: str = ""
) -> int:
    text = environ[variable]
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise ConfigError(
            f"{variable} must be a whole number in [{low}, {high}]{others},"
            f" not {address.shown(text)}"
        )
    return int(text)
