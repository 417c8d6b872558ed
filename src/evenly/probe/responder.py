"""Answer probes, and tell those who ask when the backend becomes a lame duck.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State": "inactive clients
(i.e., clients with no active TCP connections) still send periodic UDP health checks.  The result is
that lame duck information is propagated quickly to all clients—typically in 1 or 2 RTT—regardless
of their current state."  Where we differ: the backend does not wait for the next check.  It
remembers who asked lately and sends them a notice.

What arrives is a stranger's: a question is answered, with one datagram of its size to the address
that it says it came from, and anything else is counted.  Memory is bounded by `probers_max`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, final

from evenly.core import check
from evenly.core.clock import Clock
from evenly.core.report import LoadReport
from evenly.probe.limit import AnswerLimit
from evenly.probe.notices import NoticeRounds
from evenly.probe.sockets import DATAGRAMS_PER_TURN, open_bound
from evenly.wire.datagram import SIZE, Kind, answer, parse_question

__all__ = ["ProbeResponder", "ResponderSnapshot"]

# One more than any datagram of ours has, so that a longer one shows as longer.
_RECEIVE_BYTES = SIZE + 1

# Through which socket somebody asked, and from which address.
_Prober = tuple[socket.socket, tuple[Any, ...]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderSnapshot:
    """Show what a responder has done."""

    answered: int
    dropped_malformed: int
    """Not a question, or not one with our key."""
    dropped_limited: int
    """Questions beyond the limit of their source."""
    notices_sent: int
    send_errors: int
    """Answers and notices that the system did not take; a notice is then tried again."""
    receive_errors: int
    probers: int
    """How many would be remembered for a notice; some of them may have asked too long ago."""


@final
class ProbeResponder:
    """Answer questions with `report()`, on the sockets that `bind` has opened.

    Use it on the loop's own thread.
    """

    def __init__(
        self,
        report: Callable[[], LoadReport],
        *,
        key: bytes | None = None,
        clock: Clock = time.monotonic,
        rng: random.Random | None = None,
        probers_max: int = 10_000,
        prober_seconds: float = 60.0,  # six checks of a client in idle mode
        answers_per_second: int = 10_000,  # from one address, which may be that of a whole network
    ) -> None:
        check.count("probers_max", probers_max, 1, 1_000_000)
        check.positive("prober_seconds", prober_seconds)
        check.count("answers_per_second", answers_per_second, 1, 10_000_000)
        self._report = report
        self._key = key
        self._clock = clock
        self._probers_max = probers_max
        self._prober_seconds = prober_seconds
        self._limit = AnswerLimit(answers_per_second, probers_max)
        # The last nonce and when it came; who has not asked for longest stands first.
        self._probers: OrderedDict[_Prober, tuple[int, float]] = OrderedDict()
        self._notices: NoticeRounds[_Prober] = NoticeRounds(
            self._send_notices, rng=random.Random() if rng is None else rng
        )
        self._sockets: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = 0
        self._dropped_malformed = 0
        self._dropped_limited = 0
        self._notices_sent = 0
        self._send_errors = 0
        self._receive_errors = 0

    def bind(self, host: str, port: int) -> int:
        """Open a socket for questions and return its port; raise `OSError` if it is taken.

        May be called several times.  Questions wait in it until `start`.
        """
        opened = open_bound(host, port)
        self._sockets += opened
        if self._loop is not None:
            self._read(self._loop, opened)
        bound_port: int = opened[0].getsockname()[1]
        return bound_port

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to answer; a second time does nothing."""
        if self._loop is None:
            self._loop = loop
            self._read(loop, self._sockets)

    def stop(self) -> None:
        """Close the sockets, send no more and forget who asked; a second time does nothing."""
        loop, self._loop = self._loop, None
        self._notices.cancel()
        for sock in self._sockets:
            if loop is not None:
                loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        self._probers.clear()

    def notify(self) -> None:
        """Tell everybody who asked lately the present state, now and once more 50 ms later.

        Call it once per change of state, from the loop.  What is left to send of the change before
        is not sent: it is no longer true.
        """
        if self._loop is None:
            return
        seen_from = self._clock() - self._prober_seconds
        recent: list[_Prober] = []
        # The most recent first: they are the likeliest to send a request next.
        for prober, (_, seen_at) in reversed(self._probers.items()):
            if seen_at < seen_from:
                break
            recent.append(prober)
        self._notices.begin(self._loop, recent)

    def snapshot(self) -> ResponderSnapshot:
        """Return what has been done so far."""
        return ResponderSnapshot(
            answered=self._answered,
            dropped_malformed=self._dropped_malformed,
            dropped_limited=self._dropped_limited,
            notices_sent=self._notices_sent,
            send_errors=self._send_errors,
            receive_errors=self._receive_errors,
            probers=len(self._probers),
        )

    def _read(self, loop: asyncio.AbstractEventLoop, sockets: Sequence[socket.socket]) -> None:
        for sock in sockets:
            # In an empty context: the one that is current may belong to a request.
            Context().run(loop.add_reader, sock, self._drain, sock)

    def _drain(self, sock: socket.socket) -> None:
        # What is left after these is read in the next turn: the loop asks whether there is
        # something to read, not whether something came.
        now = self._clock()
        report: LoadReport | None = None
        for _ in range(DATAGRAMS_PER_TURN):
            try:
                data, source = sock.recvfrom(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # An ICMP error about something sent before.
                self._receive_errors += 1
                continue
            nonce = parse_question(data, self._key)
            if nonce is None:
                self._dropped_malformed += 1
            elif not self._limit.admit(source[0], now):
                self._dropped_limited += 1
            else:
                if report is None:
                    report = self._report()
                try:
                    sock.sendto(answer(nonce, report, self._key), source)
                except OSError:  # The buffer is full, the source's port is 0, a firewall says no …
                    self._send_errors += 1
                else:
                    self._answered += 1
                    self._remember((sock, source), nonce, now)

    def _remember(self, prober: _Prober, nonce: int, now: float) -> None:
        probers = self._probers
        probers[prober] = (nonce, now)
        probers.move_to_end(prober)
        if len(probers) > self._probers_max:
            probers.popitem(last=False)

    def _send_notices(self, probers: Sequence[_Prober]) -> int:
        report = self._report()
        for dealt_with, prober in enumerate(probers):
            seen = self._probers.get(prober)
            if seen is None:  # Others have taken its place in the table since.
                continue
            sock, source = prober
            try:
                sock.sendto(answer(seen[0], report, self._key, kind=Kind.NOTICE), source)
            except BlockingIOError:
                self._send_errors += 1
                return dealt_with
            except OSError:
                self._send_errors += 1
            else:
                self._notices_sent += 1
        return len(probers)
