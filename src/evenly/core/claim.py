"""Decide what to believe of what a caller says about its request.

SRE book, chapter 21, "Criticality".  Peers on loopback and private networks, or listed, or with an
mTLS identity, are believed; others are capped at CRITICAL, belong to the default customer, and have
neither luck nor a line.  Whoever says it, lengths are bounded and numbers finite, or the value is
treated as absent.

Nothing here raises, whatever it is given: a hostile value must cost its sender an answer, not the
backend an exception.  Only plain `str` and `bytes` (and, where they fit, `int` and `float`) are
looked at, so that no method of a stranger's type is ever called.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.level import LUCK_STEPS
from evenly.core.request import Request
from evenly.errors import ConfigError

__all__ = [
    "ATTEMPT_MAX",
    "CUSTOMER_MAX_LENGTH",
    "Trust",
    "believe",
    "believe_line",
    "believe_luck",
    "is_customer",
]

CUSTOMER_MAX_LENGTH = 128
# Clients of ours stop at 3 (book).  Others may not, but past 10 a higher number says nothing new,
# and histograms of attempts stay small.
ATTEMPT_MAX = 10
# A month.  Nobody plans an answer for later; a longer deadline is as good as none, and is dropped.
_DEADLINE_MAX_SECONDS = 30 * 86_400.0
# "-1.7976931348623157e+308" has 24 characters: no honest number is longer.
_NUMBER_MAX_LENGTH = 24
# A line is one byte.
_LINE_STEPS_MOST = 255
# What both gRPC metadata and HTTP headers carry unchanged: they strip spaces at either end.
_CUSTOMER = re.compile(rf"(?:[!-~](?:[ -~]{{0,{CUSTOMER_MAX_LENGTH - 2}}}[!-~])?)?")
_CRITICALITY_BY_NAME = dict(Criticality.__members__)

# Loopback, RFC 1918, link-local and unique local addresses.  A list of our own, because what
# `ipaddress` calls private differs between patch releases and includes documentation ranges.
_NEAR_NETWORKS = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
_PEERS_REMEMBERED = 10_000
_PEER_MAX_LENGTH = 256

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def believe(
    *,
    criticality: object = None,
    customer: object = None,
    attempt: object = None,
    deadline_ms: object = None,
    luck: object = None,
    peer_is_trusted: bool,
    now: float,
    first_attempt: int = 1,
    default_criticality: Criticality = Criticality.CRITICAL,
) -> tuple[Request, int]:
    """Return the request that these claims amount to, and its attempt number, 1 for the first.

    `criticality`: exactly one of the four names, in capitals, so that every reader of the wire
    agrees; else `default_criticality`.  From a peer that is not trusted at most CRITICAL; less is
    believed of anyone.
    `customer`: see `is_customer`; else, and from a peer that is not trusted, the default customer.
    `attempt`: a whole number counted from `first_attempt` (0 for gRPC's *previous* attempts);
    above `ATTEMPT_MAX` that, anything else 1.  From a peer that is not trusted 1: strangers who
    claim to retry must not talk a backend into "don't retry" for everyone.
    `deadline_ms`: what remains, in milliseconds.  Zero or less has passed: `deadline_at` is `now`.
    Not finite, not a number or beyond a month: no deadline.
    `luck`: see `believe_luck`; from a peer that is not trusted none.
    """
    believed = default_criticality
    name = _text(criticality)
    if name is not None:
        believed = _CRITICALITY_BY_NAME.get(name, default_criticality)
    payer = ""
    if peer_is_trusted:
        claimed = _text(customer)
        if claimed is not None and _CUSTOMER.fullmatch(claimed):
            payer = claimed
    elif believed > Criticality.CRITICAL:
        believed = Criticality.CRITICAL
    seconds = None if deadline_ms is None else _seconds(deadline_ms)
    deadline_at = None if seconds is None else now + seconds
    believed_luck = None if luck is None or not peer_is_trusted else believe_luck(luck)
    request = Request(
        criticality=believed, customer=payer, deadline_at=deadline_at, luck=believed_luck
    )
    if attempt is None or not peer_is_trusted:
        return request, 1
    return request, _attempt(attempt, first_attempt)


def believe_luck(steps: object) -> float | None:
    """Return the luck that a trusted peer says in 64ths, 0 to 63; `None` for anything else.

    Not of others: who chooses the luck of a request chooses to be served before all like it.
    """
    number = _whole(steps)
    return number / LUCK_STEPS if number is not None and number < LUCK_STEPS else None


def believe_line(steps: object) -> float:
    """Return the line that a trusted peer says in 64ths, 0 to 255; 0 for anything else.

    Not of others: each request stands for all that its line holds back.
    """
    number = _whole(steps)
    return number / LUCK_STEPS if number is not None and number <= _LINE_STEPS_MOST else 0.0


def is_customer(value: object) -> bool:
    """Return whether `value` can name a customer: printable ASCII that no header would change.

    At most `CUSTOMER_MAX_LENGTH` characters, with no space at either end; empty is the default.
    """
    return type(value) is str and _CUSTOMER.fullmatch(value) is not None


@final
class Trust:
    """Tell which peers are believed, by their address.

    Trusting the near networks is right where strangers come in through a proxy that removes the
    `evenly-` headers, or through none.  Where a proxy passes them on, turn `near` off.
    """

    __slots__ = ("_known", "_networks")

    def __init__(self, networks: Iterable[str] = (), *, near: bool = True) -> None:
        if isinstance(networks, str):  # Each of its characters would be taken for a network.
            raise ConfigError(
                f"trusted_networks must be a tuple of networks, not the string {networks!r:.100}"
            )
        listed = (*networks, *(_NEAR_NETWORKS if near else ()))
        self._networks = tuple(_network(text) for text in listed)
        self._known: dict[str, bool] = {}

    def is_trusted(self, peer_address: object, *, has_mtls_identity: bool = False) -> bool:
        """Return whether to believe this peer.

        Understood are gRPC's peers (`ipv4:…:port`, `ipv6:[…]:port`, `unix:…`), `host:port` and bare
        addresses; a name is never looked up.  A Unix socket is as near as loopback.
        """
        if has_mtls_identity:
            return True
        if type(peer_address) is not str or len(peer_address) > _PEER_MAX_LENGTH:
            return False
        trusted = self._known.get(peer_address)
        if trusted is None:
            # One entry per connection, since the port is part of it.  Starting over when full is
            # bounded, and costs a parse of 10 µs for each peer that is still there.
            if len(self._known) >= _PEERS_REMEMBERED:
                self._known.clear()
            trusted = self._known[peer_address] = self._looks_trusted(peer_address)
        return trusted

    def _looks_trusted(self, peer: str) -> bool:
        if peer.startswith(("unix:", "unix-abstract:")):
            return _LOOPBACK_NETWORK in self._networks
        address = _address(peer)
        return address is not None and any(address in network for network in self._networks)


def _text(value: object) -> str | None:
    # Criticality names are shorter than customers, so one bound serves both.
    if type(value) is str:
        return value if len(value) <= CUSTOMER_MAX_LENGTH else None
    if type(value) is bytes and len(value) <= CUSTOMER_MAX_LENGTH:
        return value.decode("latin-1")  # Any byte decodes; what is not ASCII fails the pattern.
    return None


def _attempt(value: object, first_attempt: int) -> int:
    number = _whole(value)
    if number is None:
        return 1
    number += 1 - first_attempt
    if number < 1:
        return 1
    return number if number < ATTEMPT_MAX else ATTEMPT_MAX


def _whole(value: object) -> int | None:
    """Return a whole number of at least 0."""
    if type(value) is int:
        return value if value >= 0 else None
    text = _text(value)
    # Not int() alone, which takes "+1", " 1 ", "1_0" and the digits of every script.
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _seconds(value: object) -> float | None:
    number: str | float | None
    if type(value) is float or type(value) is int:
        number = value
    else:
        number = _text(value)
        if number is None or len(number) > _NUMBER_MAX_LENGTH:
            return None
    try:
        seconds = float(number) / 1000.0
    except (ValueError, OverflowError):
        return None
    # The comparison is written so that NaN fails it, and −inf is not "has passed" but nonsense.
    if not -math.inf < seconds <= _DEADLINE_MAX_SECONDS:
        return None
    return seconds if seconds > 0.0 else 0.0


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"trusted networks: {error}") from None


_LOOPBACK_NETWORK = _network(_NEAR_NETWORKS[0])


def _address(peer: str) -> _Address | None:
    """Find the IP address in a peer's address; `None` if there is none."""
    text = peer.removeprefix("ipv4:").removeprefix("ipv6:")
    # gRPC percent-encodes the brackets.
    text = text.replace("%5B", "[").replace("%5D", "]")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])  # without "%eth0"
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
