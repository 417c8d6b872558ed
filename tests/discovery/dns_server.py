"""A little DNS server on loopback that answers, fails or stays silent as it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

Question = tuple[str, str]


@dataclass
class Reply:
    """Be what the server says to one question."""

    answer: list[dns.rrset.RRset] = field(default_factory=list)
    additional: list[dns.rrset.RRset] = field(default_factory=list)
    rcode: dns.rcode.Rcode = dns.rcode.NOERROR
    is_silent: bool = False
    after: Question | None = None
    """Wait with the answer until this was asked."""
    noise: list[bytes] = field(default_factory=list)
    """Datagrams that are sent first; `ID` in them is replaced by the question's id."""


class DnsServer(asyncio.DatagramProtocol):
    """Serve a zone that a test can change at any time."""

    def __init__(self) -> None:
        self.zone: dict[Question, Reply] = {}
        self.questions: list[Question] = []
        self.tcp_questions: list[Question] = []
        self.address = ("", 0)
        self.is_truncating = False
        self._waiting: list[tuple[Question, dns.message.Message, tuple[str, int]]] = []
        self._transport: asyncio.DatagramTransport | None = None

    @property
    def target(self) -> str:
        return f"dns://{self.address[0]}:{self.address[1]}"

    def serve(self, name: str, kind: str, *values: str, ttl: int = 60) -> Reply:
        reply = Reply(answer=[records(name, kind, *values, ttl=ttl)] if values else [])
        self.zone[name, kind] = reply
        return reply

    def fail(self, name: str, rcode: dns.rcode.Rcode = dns.rcode.SERVFAIL) -> None:
        for kind in ("A", "AAAA", "SRV"):
            self.zone[name, kind] = Reply(rcode=rcode)

    def silence(self, name: str) -> None:
        for kind in ("A", "AAAA", "SRV"):
            self.zone[name, kind] = Reply(is_silent=True)

    def forget(self, name: str) -> None:
        for key in [key for key in self.zone if key[0] == name]:
            del self.zone[key]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Python 3.11's own datagram transport is not derived from the class of that name.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        message = dns.message.from_wire(data)
        question = question_of(message)
        self.questions.append(question)
        self._answer(question, message, peer)
        waiting, self._waiting = self._waiting, []
        for held, held_message, held_peer in waiting:
            self._answer(held, held_message, held_peer)

    def _answer(
        self, question: Question, message: dns.message.Message, peer: tuple[str, int]
    ) -> None:
        assert self._transport is not None
        reply = self.reply(question)
        if reply.after is not None and reply.after not in self.questions:
            self._waiting.append((question, message, peer))
            return
        for noise in reply.noise:
            self._transport.sendto(noise.replace(b"ID", message.id.to_bytes(2, "big")), peer)
        if reply.is_silent:
            return
        response = answered(message, reply)
        if self.is_truncating:
            response = dns.message.make_response(message)
            response.flags |= dns.flags.TC
        self._transport.sendto(response.to_wire(), peer)

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2), "big")
        message = dns.message.from_wire(await reader.readexactly(size))
        question = question_of(message)
        self.tcp_questions.append(question)
        writer.write(answered(message, self.reply(question)).to_wire(prepend_length=True))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    def reply(self, question: Question) -> Reply:
        if question in self.zone:
            return self.zone[question]
        is_known = any(name == question[0] for name, _ in self.zone)
        return Reply(rcode=dns.rcode.NOERROR if is_known else dns.rcode.NXDOMAIN)


def question_of(message: dns.message.Message) -> Question:
    (question,) = message.question
    return question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)


def answered(message: dns.message.Message, reply: Reply) -> dns.message.Message:
    response = dns.message.make_response(message)
    response.set_rcode(reply.rcode)
    response.answer = reply.answer
    response.additional = reply.additional
    return response


def records(name: str, kind: str, *values: str, ttl: int = 60) -> dns.rrset.RRset:
    return dns.rrset.from_text(f"{name}.", ttl, "IN", kind, *values)


@contextlib.asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    """Serve UDP and TCP on one free port of loopback."""
    server = DnsServer()
    stream, transport = await _listen(server)
    server.address = stream.sockets[0].getsockname()
    try:
        async with stream:
            yield server
    finally:
        transport.close()


async def _listen(server: DnsServer) -> tuple[asyncio.Server, asyncio.BaseTransport]:
    loop = asyncio.get_running_loop()
    while True:
        stream = await asyncio.start_server(server.stream, "127.0.0.1", 0)
        address = stream.sockets[0].getsockname()
        try:
            transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=address)
        except OSError:  # The number is free for TCP but not for UDP: take another.
            stream.close()
        else:
            return stream, transport
