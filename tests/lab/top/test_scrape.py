"""Fetching from real servers on loopback, good ones and others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from evenly.lab.top import fetch as fetch_module
from evenly.lab.top import scrape
from evenly.lab.top.fetch import Budget
from evenly.lab.top.scrape import Answer, fetch_all
from evenly.lab.top.targets import Target, parse_target
from tests.lab.top.fleet import answering, saying
from tests.suites.transports.processes import free_port

Handler = BaseHTTPRequestHandler
PATIENT = 20.0


async def fetch(where: str, seconds: float = PATIENT) -> Answer:
    target = parse_target(where)
    return (await fetch_all([target], seconds))[target]


async def ask(answer: Callable[[Handler], None], seconds: float = PATIENT) -> Answer:
    with answering(answer) as where:
        return await fetch(where, seconds)


async def test_a_page_is_fetched_whatever_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert (await ask(saying(b"evenly"))).body == b"evenly"


async def test_what_is_asked() -> None:
    asked = []

    def answer(handler: Handler) -> None:
        asked.append((handler.path, handler.headers["Connection"], handler.headers["Host"]))
        saying(b"")(handler)

    with answering(answer) as where:
        await fetch(f"http://{where}/m?a=b")
    assert asked == [("/m?a=b", "close", where)]


async def test_chunks_are_put_together() -> None:
    def answer(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"3\r\neve\r\n3\r\nnly\r\n0\r\n\r\n")
        handler.close_connection = True

    assert (await ask(answer)).body == b"evenly"


def raw(data: bytes) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.wfile.write(data)

    return answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(saying(b"", status=404), "answered with status 404", id="status"),
        pytest.param(
            raw(b"SSH-2.0-x\r\n"),
            "the answer is not HTTP: Expected HTTP/, RTSP/ or ICE/",
            id="no HTTP",
        ),
        pytest.param(raw(b""), "the connection ended without an answer", id="nothing"),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
            "the answer was cut off",
            id="half",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            "the answer is not HTTP: Invalid character in chunk size",
            id="bad chunk",
        ),
        pytest.param(
            saying(b"", status=302, Location="http://other.test/metrics"),
            "redirected to http://other.test:80: not followed",
            id="elsewhere",
        ),
        pytest.param(
            saying(b"", status=302, Location="https://[::1]/metrics"),
            "redirected to https://[::1]:443: not followed",
            id="by TLS",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2000001\r\n\r\n"),
            "the answer is larger than 2 MB",
            id="a huge length",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n"),
            "the answer is not HTTP: Content-Length overflow",
            id="an absurd length",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\n"),
            "the answer was cut off",
            id="a huge chunk that does not come",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"F" * 99 + b"\r\n"),
            "the answer is not HTTP: Chunk size overflow",
            id="a huge chunk size",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf"),
            "the answer was cut off",
            id="half a chunk",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000),
            "the answer is not HTTP: the head has more than 65536 bytes",
            id="a huge head",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 257 + b"\r\n"),
            "the answer is not HTTP: more than 256 headers",
            id="many headers",
        ),
        pytest.param(
            saying(b"", status=302, Location="file:///etc/passwd"),
            "redirected to what is no address",
            id="to a file",
        ),
        pytest.param(
            saying(b"", status=302, Location="/metrics"),
            "more than 3 redirections",
            id="in a circle",
        ),
    ],
)
async def test_what_is_no_answer_is_said(answer: Callable[[Handler], None], problem: str) -> None:
    got = await ask(answer)

    assert (got.body, got.problem) == (None, problem)


async def test_a_page_may_have_moved_on_its_host() -> None:
    def answer(handler: Handler) -> None:
        if handler.path == "/metrics/":
            saying(b"evenly")(handler)
        else:
            saying(b"", status=307, Location="/metrics/")(handler)

    assert (await ask(answer)).body == b"evenly"


async def test_a_huge_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "BYTES_MAX", 1_000_000)

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 100_000)

    assert (await ask(answer)).problem == "the answer is larger than 1 MB"


async def test_nobody_is_there() -> None:
    assert (await fetch(f"127.0.0.1:{free_port()}")).problem == "connection refused"


async def test_no_such_name() -> None:
    assert (await fetch("no-such-host.invalid:1")).problem == "the name cannot be resolved"


@pytest.mark.parametrize("name", ["a..b", "a" * 70 + ".example"])
async def test_what_can_be_no_name(name: str) -> None:
    assert (await fetch(f"{name}:1")).problem == "the name cannot be resolved"


async def test_whatever_happens_at_one_the_others_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask_odd(target: Target, budget: Budget) -> fetch_module.Fetched:
        if target.path == "/bad":
            raise ArithmeticError("a bug")
        return await fetch_module.fetch(target, budget)

    monkeypatch.setattr(scrape, "fetch", ask_odd)
    with answering(saying(b"ok")) as where:
        targets = [parse_target(f"http://{where}/{name}") for name in ("bad", "good")]
        bad, good = (await fetch_all(targets, PATIENT)).values()

    assert bad.problem == "could not be asked: ArithmeticError"
    assert good.body == b"ok"


async def test_who_keeps_the_connection_open_has_answered() -> None:
    is_over = threading.Event()

    def answer(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nevenly and more")
        handler.wfile.flush()
        is_over.wait(60)

    def answer_chunks(handler: Handler) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        handler.wfile.write(head + b"6;a=b\r\nevenly\r\n0\r\n\r\n")
        handler.wfile.flush()
        is_over.wait(60)

    with answering(answer) as one, answering(answer_chunks) as other:
        targets = [parse_target(one), parse_target(other)]
        answers = await fetch_all(targets, PATIENT)
        is_over.set()

    assert [answer.body for answer in answers.values()] == [b"evenly", b"evenly"]


async def test_large_answers_share_what_a_look_may_take() -> None:
    with answering(saying(b"x" * 100_000)) as large, answering(saying(b"x" * 30_000)) as small:
        targets = [parse_target(f"http://{large}/{n}") for n in range(3)]
        targets += [parse_target(f"http://{small}/{n}") for n in range(9)]
        # Beyond their shares of 49,152 bytes two large ones need 101,696, and three 152,544.
        answers = (await fetch_all(targets, PATIENT, Budget(120_000))).values()

    problems = [answer.problem for answer in answers]
    assert problems[3:] == [None] * 9
    assert "all answers together are larger than 0.12 MB" in problems


async def test_no_tls_there() -> None:
    with answering(saying(b"")) as where:
        problem = (await fetch(f"https://{where}")).problem
    assert problem is not None
    assert problem.startswith("TLS failed: ")


async def test_a_slow_one_does_not_hold_up_the_others() -> None:
    is_over = threading.Event()

    def drip(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not is_over.wait(0.01):
            handler.wfile.write(b"x")

    def hang(handler: Handler) -> None:
        is_over.wait(60)

    with answering(drip) as slow, answering(hang) as silent, answering(saying(b"ok")) as quick:
        targets = [parse_target(where) for where in (slow, silent, quick)]
        answers = await fetch_all(targets, 2.0)
        is_over.set()

    assert [answers[target].problem for target in targets] == [
        "no answer within 2 s",
        "no answer within 2 s",
        None,
    ]
    assert answers[targets[2]].body == b"ok"


async def test_nothing_to_fetch() -> None:
    nobody: list[Target] = []
    assert await fetch_all(nobody, 1.0) == {}
