"""Say where to scrape: from what was typed, or from a service discovery document of Prometheus."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import urlsplit

from evenly.errors import ConfigError

__all__ = ["TARGETS_MAX", "Target", "is_document", "parse_target", "read_document"]

TARGETS_MAX = 500
"""End points that are scraped at once; each needs a file descriptor."""
_URL_MAX = 2_000
_PORTS: Final = {"http": 80, "https": 443}


@final
@dataclass(frozen=True, slots=True)
class Target:
    """Be one address to scrape, and the name under which it is shown."""

    url: str
    instance: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def path(self) -> str:
        """What to ask for."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def parse_target(text: str, *, instance: str = "") -> Target:
    """Return the target that `host:port` or a URL means; `/metrics` is added where no path is."""
    if not (text.isascii() and text.isprintable() and " " not in text and len(text) <= _URL_MAX):
        # A line break here would become one in the request.
        raise ConfigError(f"an address must be ASCII without spaces, not {text!r:.80}")
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad(text) from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise _bad(text)
    if port is None and "://" not in text:
        raise _bad(text)
    if parts.username is not None or parts.password is not None:
        raise ConfigError("an address must not have a user or a password in it")
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    query = f"?{parts.query}" if parts.query else ""
    shown = parts.netloc if path == "/metrics" and not query else parts.netloc + path
    return Target(f"{parts.scheme}://{parts.netloc}{path}{query}", instance or shown)


def _bad(text: str) -> ConfigError:
    return ConfigError(
        f"an address must be host:port or http(s)://host[:port][/path], not {text!r}"
    )


def is_document(body: bytes) -> bool:
    """Return whether an answer is a service discovery document rather than a metrics page."""
    return body.lstrip()[:1] == b"["


def read_document(body: bytes) -> list[Target]:
    """Return the targets of a service discovery document, or raise `ConfigError`.

    `[{"targets": ["host:port"], "labels": {…}}]`, as Prometheus reads it over HTTP.  The label
    `instance`, or else `name`, names a target; `__scheme__` and `__metrics_path__` say where its
    page is.
    """
    try:
        groups = json.loads(body)
    except (ValueError, RecursionError):
        raise ConfigError("the answer begins like a list of targets, but is no JSON") from None
    targets: dict[Target, None] = {}
    count = 0
    for group in groups:
        addresses = group.get("targets") if isinstance(group, dict) else None
        labels = group.get("labels") if isinstance(group, dict) else None
        if not isinstance(addresses, list):
            raise ConfigError('each item of a list of targets must have "targets"')
        for address in addresses:
            if not isinstance(address, str):
                raise ConfigError(f"a target must be host:port, not {address!r:.80}")
            count += 1  # Also of those that are there twice: each takes its time.
            if count > TARGETS_MAX:
                raise ConfigError(f"the list has more than {TARGETS_MAX} targets")
            targets[_of_group(address, labels if isinstance(labels, dict) else {})] = None
    return list(targets)


def _of_group(address: str, labels: dict[str, object]) -> Target:
    if "://" in address or "/" in address:
        raise ConfigError(f"a target must be host:port, not {address!r:.80}")
    scheme = labels.get("__scheme__", "http")
    path = str(labels.get("__metrics_path__", "/metrics"))
    instance = labels.get("instance", labels.get("name", ""))
    return parse_target(
        f"{scheme}://{address}/{path.removeprefix('/')}",
        instance=instance if isinstance(instance, str) else "",
    )
