"""What `evenly top` shows of a real service, and says to whoever typed it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
import termios
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from evenly.cli.top import top
from tests.lab.top.fleet import answering, listing, running_fleet, saying
from tests.suites.transports.processes import free_port

SOON = 30.0  # Nothing in these tests takes so long, unless it hangs.
INTERVAL = "2"  # An end point has half of it to answer, which is enough on a busy machine.
# An application of its own: what is tested here is one command.
CODE = """
import typer
from evenly.cli.top import top
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(top)
app()
"""
COMMAND = (sys.executable, "-c", CODE)
ODD = b'evenly_backend_lame_duck{service="\x1b[31m[bold]\xe2\x80\xae"} 0\n'


async def evenly_top(*arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "120", **environment},
    )
    async with asyncio.timeout(SOON):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_running_service_is_shown() -> None:
    async with running_fleet(backends=2, clients=1) as fleet, fleet.traffic():
        fleet.servers[1].runtime.enter_lame_duck()
        code, out, err = await evenly_top(*fleet.pages, "--once", "--interval", INTERVAL)

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "service search"
    rows = {line.split()[0]: line.split() for line in lines if line}
    first, second = fleet.backend_pages
    assert rows[first][1] == "healthy"
    assert rows[second][1:3] == ["lame", "duck"]
    assert "1 of 2 backends" in out
    assert rows[fleet.client_pages[0]][-1] == "1/1/0"
    assert rows["latency"][1] == "p50"
    assert {"shop", "ads", "other"} <= rows.keys()


async def test_json_has_the_figures() -> None:
    async with running_fleet(backends=2, clients=2) as fleet, fleet.traffic():
        code, out, _ = await evenly_top(*fleet.pages, "--once", "--json", "--interval", INTERVAL)

    assert code == 0
    (line,) = out.splitlines()
    document = json.loads(line)
    (service,) = document["services"]
    assert service["service"] == "search"
    assert service["goodput_per_second"] > 0
    assert service["requests_per_second"] == pytest.approx(service["goodput_per_second"], rel=0.5)
    # A handler sleeps for 2 ms; a bucket's lower bound is what the histogram knows of that.
    assert service["latency"]["p50_seconds"] > 0.001
    assert [backend["state"] for backend in service["backends"]] == ["healthy"] * 2
    assert all(backend["admitted_per_second"] > 0 for backend in service["backends"])
    assert [client["healthy"] for client in service["clients"]] == [2, 2]
    assert [backend["cut"] for backend in service["backends"]] == [0.0] * 2
    assert [client["line"] for client in service["clients"]] == [0.0] * 2
    assert service["clients"][0]["throttle_probability"]["critical"] == 0.0
    assert {customer["customer"] for customer in service["customers"]} == {"shop", "ads", "other"}
    assert [end["problem"] for end in document["end_points"]] == [None] * 4


async def test_json_goes_on_until_it_is_ended() -> None:
    async with running_fleet(backends=1, clients=1) as fleet, fleet.traffic():
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *fleet.pages, "--json", "--interval", INTERVAL, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(SOON):
            documents = [json.loads(await process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            await process.stdout.read()
            assert await process.wait() == 0

    moments = [document["at"] for document in documents]
    assert moments == sorted(moments)
    assert len(set(moments)) == 3


async def test_whoever_reads_may_have_read_enough() -> None:
    async with running_fleet(backends=1, clients=0) as fleet:
        command = " ".join(f"'{part}'" for part in (*COMMAND, *fleet.pages))
        process = await asyncio.create_subprocess_shell(
            f"{command} --json | head -n 1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(SOON):
            out, err = await process.communicate()

    assert json.loads(out)["services"][0]["service"] == "search"
    assert err == b""


async def test_a_list_of_targets_is_followed() -> None:
    async with running_fleet(backends=1, clients=1) as fleet, fleet.traffic():
        with answering(listing(*fleet.pages)) as where:
            code, out, _ = await evenly_top(
                f"http://{where}/targets", "--once", "--interval", INTERVAL
            )

    assert code == 0
    assert all(page in out for page in fleet.pages)


async def test_the_terminal_is_given_back_when_q_is_typed() -> None:
    screen, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    async with running_fleet(backends=1, clients=1) as fleet, fleet.traffic():
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *fleet.pages,
            "--interval",
            "1",
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        shown = b""
        async with asyncio.timeout(SOON):
            while b"service " not in shown:
                shown += await asyncio.to_thread(os.read, screen, 65536)
            assert termios.tcgetattr(terminal)[3] & termios.ICANON == 0
            os.write(screen, b"xq")
            while process.returncode is None:
                shown += await asyncio.to_thread(os.read, screen, 65536)
                await asyncio.sleep(0.01)
                if b"\x1b[?1049l" in shown:
                    await process.wait()

    assert process.returncode == 0
    assert b"\x1b[?1049h" in shown  # A screen of its own ...
    assert shown.rfind(b"\x1b[?1049l") > shown.rfind(b"\x1b[?1049h")  # ... that is left again.
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")  # The cursor is seen.
    assert termios.tcgetattr(terminal) == before
    os.close(screen)
    os.close(terminal)


async def test_what_is_down_does_not_hide_the_rest() -> None:
    down = f"127.0.0.1:{free_port()}"
    async with running_fleet(backends=1, clients=0) as fleet:
        with answering(saying(b"<html>")) as page:
            code, out, _ = await evenly_top(
                *fleet.pages, down, page, "--once", "--interval", INTERVAL
            )

    assert code == 0
    assert f"{fleet.pages[0]}  healthy" in out
    assert f"{down}: connection refused" in out
    assert f"{page}: the answer is not in Prometheus's text format" in out


async def test_nothing_at_all_is_an_error() -> None:
    down = f"127.0.0.1:{free_port()}"

    code, out, err = await evenly_top(down, "--once", "--json", "--interval", INTERVAL)

    assert code == 1
    assert json.loads(out)["services"] == []
    assert err == f"Error: nothing could be read.\n  http://{down}/metrics: connection refused\n"


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
async def test_nothing_from_the_network_controls_the_terminal(
    arguments: tuple[str, ...], encoding: str
) -> None:
    document = json.dumps([{"targets": ["PAGE"], "labels": {"instance": "b\x1b[2J\x9b\x7f\r1"}}])
    with (
        answering(saying(ODD)) as page,
        answering(saying(document.replace("PAGE", page).encode())) as where,
    ):
        code, out, err = await evenly_top(
            where, "--once", "--interval", INTERVAL, *arguments, PYTHONIOENCODING=encoding
        )

    assert (code, err) == (0, "")
    assert all(char == "\n" or char.isprintable() for char in out)
    if not arguments:
        assert "service \\x1b[31m[bold]\\u202e" in out
        assert "b\\x1b[2J\\x9b\\x7f\\r1" in out


async def test_one_service_of_several() -> None:
    body = b"".join(
        f'evenly_backend_lame_duck{{service="{name}"}} 0\n'.encode() for name in ("mail", "search")
    )
    with answering(saying(body)) as page:
        arguments = (page, "--once", "--interval", INTERVAL)
        _, both, _ = await evenly_top(*arguments)
        _, one, _ = await evenly_top(*arguments, "--service", "mail")
        code, none, _ = await evenly_top(*arguments, "--service", "maps")

    assert ("service mail" in both, "service search" in both) == (True, True)
    assert ("service mail" in one, "service search" in one) == (True, False)
    assert code == 0
    assert "No end point has metrics of the service 'maps'." in none


def refusal(*arguments: str) -> str:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(top)
    result: Any = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 2
    return str(result.output.splitlines()[-1])


@pytest.mark.parametrize("value", ["0.1", "nan", "inf", "3601"])
def test_an_interval_has_bounds(value: str) -> None:
    assert "must be in [0.2, 3600], not" in refusal("localhost:9000", "--interval", value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost", "must be host:port or http(s)://host[:port][/path], not 'localhost'"),
        ("ftp://localhost:1", "must be host:port or http(s)://"),
        ("localhost:99999", "must be host:port or http(s)://"),
        ("http://user:secret@localhost:1", "must not have a user or a password in it"),
        ("local host:1", "must be ASCII without spaces, not 'local host:1'"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, message: str) -> None:
    assert message in refusal(url)


def test_addresses_are_bounded() -> None:
    message = "there must be at most 500 addresses, not 501"
    assert message in refusal(*["localhost:1"] * 501)


async def test_one_that_is_odd_does_not_end_it() -> None:
    odd = b'evenly_backend_lame_duck{service="s"} 0 ' + b"9" * 400
    with (
        answering(saying(odd)) as page,
        answering(listing("a..b:80")) as where,
        answering(saying(b'evenly_backend_lame_duck{service="good"} 0\n')) as good,
    ):
        arguments = (page, where, good, "--once", "--interval", INTERVAL)
        code, out, err = await evenly_top(*arguments)

    assert (code, err) == (0, "")
    assert "service good" in out
    assert f"{page}: the answer is not in Prometheus's text format" in out
    assert "a..b:80: the name cannot be resolved" in out


@pytest.mark.parametrize(
    ("package", "extra"), [("prometheus_client", "prometheus"), ("httptools", "http")]
)
async def test_what_is_not_installed_is_named(package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\n" + CODE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        "localhost:1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SOON):
        out, err = await process.communicate()

    assert (process.returncode, out) == (1, b"")
    said = err.decode()
    assert said.startswith("Error: evenly")
    assert f'pip install "evenly[{extra}]"' in said
    assert package in said
    assert said.count("\n") == 1
