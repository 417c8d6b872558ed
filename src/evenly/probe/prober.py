"""Ask backends by UDP how they are, without waiting for anything.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State": clients "with no
active TCP connections still send periodic UDP health checks"; to us a probe is also how a policy
learns a backend's load before it picks.  Both want it cheap: one non-blocking socket for all
backends of a family, drained in a loop.

An answer is believed for its nonce alone: 64 random bits that only the backend asked, and whoever
sits on the way to it, has seen.  The address it comes from says nothing, since a backend with
several addresses may answer from another one.  With a key, its HMAC must be right as well.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import final

from evenly.core import check
from evenly.core.balancing.backend import Backend
from evenly.core.clock import Clock
from evenly.core.report import LoadReport
from evenly.probe.peer import Peer, Question
from evenly.probe.sockets import DATAGRAMS_PER_TURN, open_unbound
from evenly.probe.whereabouts import Target
from evenly.wire.datagram import SIZE, Kind, parse_answer, question

__all__ = ["Prober", "ProberSnapshot"]

# One more than any datagram of ours has, so that a longer one shows as longer.
_RECEIVE_BYTES = SIZE + 1


def _random_nonce() -> int:
    return secrets.randbits(64)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProberSnapshot:
    """Show what a prober has done."""

    asked: int
    answered: int
    notices: int
    """Unasked reports that were believed."""
    not_asked: int
    """Probes without an address to send to: a name not looked up yet, `unix:`."""
    dropped_malformed: int
    """Neither an answer nor a notice, or not one with our key."""
    dropped_unknown: int
    """Answers and notices with a nonce that is not waited for: forged, repeated or too late."""
    send_errors: int
    receive_errors: int
    peers: int
    questions: int
    """How many are remembered, at most 64 per backend."""


@final
class Prober:
    """Send questions, and tell `on_report` what comes back.

    `on_report(backend, report, is_probe)` gets each report; `is_probe` is False for a notice.  Use
    it on the loop's own thread.
    """

    def __init__(
        self,
        on_report: Callable[[Backend, LoadReport, bool], None],
        *,
        key: bytes | None = None,
        clock: Clock = time.monotonic,
        nonces: Callable[[], int] = _random_nonce,
        rng: random.Random | None = None,
    ) -> None:
        self._on_report = on_report
        self._key = key
        self._clock = clock
        self._nonces = nonces
        self._rng = random.Random() if rng is None else rng
        self._peers: dict[str, Peer] = {}
        self._questions: dict[int, Question] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = 0
        self._answered = 0
        self._notices = 0
        self._not_asked = 0
        self._dropped_malformed = 0
        self._dropped_unknown = 0
        self._send_errors = 0
        self._receive_errors = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; sockets are opened when they are needed.  A second time does nothing."""
        if self._loop is None:
            self._loop = loop

    def stop(self) -> None:
        """Close the sockets and forget every backend; a second time does nothing."""
        loop, self._loop = self._loop, None
        for sock in self._sockets.values():
            if loop is not None:
                loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for peer in self._peers.values():
            peer.whereabouts.cancel()
        self._peers.clear()
        self._questions.clear()

    def probe(self, backend: Backend, on_answer: Callable[[], None] | None = None) -> None:
        """Ask one backend; `on_answer` is called once if it answers within 2 s, after `on_report`.

        Never blocks and never raises for what the network does.  Nothing is sent while the
        backend's name is being looked up, nor before `start` and after `stop`.
        """
        if self._loop is None:
            return
        now = self._clock()
        peer = self._peer(backend)
        peer.backend = backend  # Its index may have changed.
        if peer.should_look_up(now):
            peer.whereabouts.look_up(self._loop, now, self._rng)
        target = peer.whereabouts.target(peer.asked)
        if target is None:
            self._not_asked += 1
            return
        while (old := peer.pop_old_question(now)) is not None:
            self._questions.pop(old.nonce, None)
        nonce = self._nonces()
        self._questions[nonce] = peer.ask(nonce, target, now, on_answer)
        self._asked += 1
        # A question that could not be sent stays noted as one without an answer: UDP does not get
        # through, and `is_answering` has to come to know.
        self._send(self._loop, question(nonce, self._key), target)

    def announce_port(self, backend: Backend, port: int | None) -> None:
        """Ask this backend on `port` from now on: `LoadReport.probe_port`; `None` is its own."""
        if port is not None:
            check.count("port", port, 1, 65535)
        elif backend.address not in self._peers:
            return  # It is what a new one begins with.
        self._peer(backend).whereabouts.use_port(port)

    def is_answering(self, backend: Backend) -> bool:
        """Return whether UDP gets through to this backend and back: see `Peer.is_answering`."""
        peer = self._peers.get(backend.address)
        return peer is not None and peer.is_answering(self._clock())

    def forget(self, backend: Backend) -> None:
        """Drop what is known of a backend; answers that are under way count no more."""
        peer = self._peers.pop(backend.address, None)
        if peer is not None:
            peer.whereabouts.cancel()
            for sent in peer.questions:
                self._questions.pop(sent.nonce, None)

    def snapshot(self) -> ProberSnapshot:
        """Return what has been done so far."""
        return ProberSnapshot(
            asked=self._asked,
            answered=self._answered,
            notices=self._notices,
            not_asked=self._not_asked,
            dropped_malformed=self._dropped_malformed,
            dropped_unknown=self._dropped_unknown,
            send_errors=self._send_errors,
            receive_errors=self._receive_errors,
            peers=len(self._peers),
            questions=len(self._questions),
        )

    def _peer(self, backend: Backend) -> Peer:
        peer = self._peers.get(backend.address)
        if peer is None:
            peer = self._peers[backend.address] = Peer(backend)
        return peer

    def _send(self, loop: asyncio.AbstractEventLoop, data: bytes, target: Target) -> None:
        family, address = target
        try:
            sock = self._sockets.get(family)
            if sock is None:
                sock = self._open(loop, family)
            sock.sendto(data, address)
        except OSError:  # The buffer is full, no route, no such family, a firewall says no …
            self._send_errors += 1

    def _open(self, loop: asyncio.AbstractEventLoop, family: int) -> socket.socket:
        sock = self._sockets[family] = open_unbound(family)
        # In an empty context: the one that is current may belong to a request.
        Context().run(loop.add_reader, sock, self._drain, sock)
        return sock

    def _drain(self, sock: socket.socket) -> None:
        # What is left after these is read in the next turn, also when a callback raises: the loop
        # reports that, and asks again whether there is something to read.
        now = self._clock()
        for _ in range(DATAGRAMS_PER_TURN):
            try:
                data = sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # An ICMP error about something sent before.
                self._receive_errors += 1
                continue
            self._receive(data, now)
            if sock.fileno() < 0:  # A callback has called `stop`.
                return

    def _receive(self, data: bytes, now: float) -> None:
        parsed = parse_answer(data, self._key)
        if parsed is None:
            self._dropped_malformed += 1
            return
        kind, nonce, report = parsed
        sent = self._questions.get(nonce)
        is_probe = kind is Kind.ANSWER
        if sent is None or not (sent.may_be_answered(now) if is_probe else sent.may_be_noticed()):
            self._dropped_unknown += 1
            return
        peer = sent.peer
        if report.probe_port is not None:
            peer.whereabouts.use_port(report.probe_port)
        if is_probe:
            self._answered += 1
            peer.record_answer(sent, now)
            self._tell(peer.backend, report, sent)
        else:
            self._notices += 1
            self._on_report(peer.backend, report, False)

    def _tell(self, backend: Backend, report: LoadReport, sent: Question) -> None:
        on_answer, sent.on_answer = sent.on_answer, None
        try:
            self._on_report(backend, report, True)
        finally:
            # Also when `on_report` failed: a request may be waiting for this.
            if on_answer is not None and self._loop is not None:
                on_answer()
