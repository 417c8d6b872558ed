"""The demo's two programs, each as its supervisor starts it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evenly.lab.demo.plan import BackendPlan, Plan

SOON = 60.0  # Nothing here takes so long, unless it hangs.
SLOW_MACHINE = BackendPlan(name="b1", speed=1.0, slots=2)


class Process:
    """A child, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdout is not None
        self._output = process.stdout

    async def line(self) -> dict[str, Any]:
        line = await asyncio.wait_for(self._output.readline(), SOON)
        assert line, "it has ended"
        said: dict[str, Any] = json.loads(line)
        return said

    async def until(self, is_so: Any) -> dict[str, Any]:
        async with asyncio.timeout(SOON):
            while not is_so(said := await self.line()):
                pass
        return said

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    async def exit_code(self) -> int:
        await asyncio.wait_for(self._output.read(), SOON)
        return await asyncio.wait_for(self.process.wait(), SOON)


@asynccontextmanager
async def child(module: str, settings: dict[str, Any]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, json.dumps(settings)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def backend_settings(transport: str, **more: Any) -> dict[str, Any]:
    plan = Plan()
    return {
        "name": "b1",
        "host": "127.0.0.1",
        "port": 0,
        "speed": 1.0,
        # So many that none is refused, unless it is meant to be: a client that was held up for a
        # moment on a busy machine then asks for all at once.
        "slots": 256,
        "work_seconds": 0.01,
        "transport": transport,
        "is_real_cpu": False,
        "is_protected": True,
        "customers": plan.limits_of(SLOW_MACHINE),
        "default_limit": 0.2,
        **more,
    }


def client_settings(transport: str, port: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "c1",
        "host": "127.0.0.1",
        "index": 0,
        "transport": transport,
        "backends": {"b1": f"127.0.0.1:{port}"},
        "subset_size": 6,
        "rate": 50.0,
        "wild_rate": 0.0,
        "timeout_seconds": 5.0,
        "policy": "probing",
        "throttle": "responsive",
        "is_protected": True,
        "seed": 1,
        **more,
    }


def total(line: dict[str, Any], key: str) -> int:
    return sum(line[key].values())


def is_nothing_lost(line: dict[str, Any]) -> bool:
    # Of a backend that was held up for a while, on a busy machine, forty at a time are asked.
    return total(line, "asked") == total(line, "ok") + total(line["refused"], "no_backend")


@pytest.mark.parametrize("transport", ["grpc", "http"])
async def test_a_client_asks_and_a_backend_answers(transport: str) -> None:
    async with child("evenly.lab.demo.backend", backend_settings(transport)) as backend:
        listening = await backend.line()
        settings = client_settings(transport, listening["port"])
        async with child("evenly.lab.demo.client", settings) as client:
            ready = await client.line()
            said = await client.until(lambda line: total(line, "ok") >= 20)
            assert said["subset"][0]["state"] == "healthy"
            assert total(said, "failed") == 0
            scraped = await asyncio.to_thread(metrics, ready["metrics_port"])
            assert 'evenly_client_attempts_total{attempt="1"' in scraped

            client.tell(do="stop")
            last = await client.until(lambda line: line["active"] == 0)
            assert is_nothing_lost(last)
            assert await client.exit_code() == 0
        scraped = await asyncio.to_thread(metrics, listening["metrics_port"])
        assert "evenly_backend_admitted_total" in scraped

        backend.process.send_signal(signal.SIGTERM)
        await backend.until(lambda line: line["state"] == "lame duck")
        assert await backend.exit_code() == 0


def metrics(port: int) -> str:
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=SOON) as response:
        text: bytes = response.read()
    return text.decode()


async def test_a_backend_can_be_told_to_fail_and_a_client_counts_it() -> None:
    async with child("evenly.lab.demo.backend", backend_settings("grpc")) as backend:
        listening = await backend.line()
        settings = client_settings("grpc", listening["port"])
        async with child("evenly.lab.demo.client", settings) as client:
            await client.until(lambda line: line["is"] == "client" and total(line, "ok") > 0)
            backend.tell(do="fail", is_on=True)
            await client.until(lambda line: total(line, "failed") >= 5)
            backend.tell(do="fail", is_on=False)
            before = total(await client.line(), "ok")
            await client.until(lambda line: total(line, "ok") > before + 5)


async def test_a_backend_beyond_its_capacity_sheds_and_without_protection_it_drowns() -> None:
    # 20 a second, and 100 are asked for.
    settings = backend_settings("grpc", slots=2, work_seconds=0.1)
    async with child("evenly.lab.demo.backend", settings) as backend:
        listening = await backend.line()
        settings = client_settings("grpc", listening["port"], rate=100.0, throttle="off")
        async with child("evenly.lab.demo.client", settings) as client:
            await client.until(
                lambda line: line["is"] == "client" and total(line["refused"], "shed") > 50
            )
            backend.tell(do="protect", is_on=False)
            await backend.until(lambda line: line["waiting"] > 20)
            backend.tell(do="protect", is_on=True)
            await backend.until(lambda line: line["waiting"] < 20)


async def test_a_customer_beyond_its_quota_is_refused_and_nobody_else() -> None:
    async with child("evenly.lab.demo.backend", backend_settings("grpc")) as backend:
        listening = await backend.line()
        settings = client_settings("grpc", listening["port"], wild_rate=100.0)
        async with child("evenly.lab.demo.client", settings) as client:
            said = await client.until(
                lambda line: (
                    line["is"] == "client"
                    and line["customers"].get("wild", {}).get("refused", 0) > 50
                )
            )
    assert said["customers"]["wild"]["ok"] > 0
    assert said["customers"]["shop"]["ok"] > 0
    # Neither for want of quota nor, after that, by the client.  The wild one's are counted apart.
    assert {*said["refused"]["quota"], *said["refused"]["throttled"]} == {"BEYOND_QUOTA"}


@pytest.mark.parametrize("module", ["evenly.lab.demo.backend", "evenly.lab.demo.client"])
async def test_a_child_whose_supervisor_is_gone_exits(module: str) -> None:
    settings = (
        backend_settings("grpc") if module.endswith("backend") else client_settings("grpc", 1)
    )
    async with child(module, settings) as process:
        await process.line()
        assert process.process.stdin is not None
        process.process.stdin.close()
        assert await process.exit_code() == 0


async def test_a_client_goes_on_with_another_policy_and_loses_nothing() -> None:
    async with child("evenly.lab.demo.backend", backend_settings("grpc")) as backend:
        listening = await backend.line()
        settings = client_settings("grpc", listening["port"])
        async with child("evenly.lab.demo.client", settings) as client:
            await client.until(lambda line: line["is"] == "client" and total(line, "ok") > 5)
            client.tell(do="configure", policy="round_robin", throttle="off", is_protected=True)
            said = await client.until(lambda line: line["policy"] == "round_robin")
            before = total(said, "ok")
            await client.until(lambda line: total(line, "ok") > before + 5)
            client.tell(do="stop")
            last = await client.until(lambda line: line["active"] == 0)
    assert is_nothing_lost(last)


async def test_changes_that_come_at_once_leave_one_channel_open() -> None:
    async with child("evenly.lab.demo.backend", backend_settings("grpc")) as backend:
        listening = await backend.line()
        settings = client_settings("grpc", listening["port"])
        async with child("evenly.lab.demo.client", settings) as client:
            await client.until(lambda line: line["is"] == "client" and total(line, "ok") > 5)
            before = open_files(client)
            for policy in ("random", "round_robin", "least_loaded", "power_of_two", "probing"):
                client.tell(do="configure", policy=policy, throttle="off", is_protected=True)
            await client.until(
                lambda line: line["policy"] == "probing" and line["throttle"] == "off"
            )
            # gRPC closes a connection or two when it likes.
            await client.until(lambda _: open_files(client) <= before + 2)


def open_files(child: Process) -> int:
    return len(list(Path(f"/proc/{child.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("module", ["evenly.lab.demo.backend", "evenly.lab.demo.client"])
async def test_a_child_that_cannot_obey_says_why_and_exits(module: str) -> None:
    settings = (
        backend_settings("grpc") if module.endswith("backend") else client_settings("grpc", 1)
    )
    async with child(module, settings) as process:
        await process.line()
        process.tell(do="slow", factor="much")
        process.tell(do="load", rate="much")
        assert await process.exit_code() == 0


@pytest.mark.parametrize("module", ["evenly.lab.demo.backend", "evenly.lab.demo.client"])
async def test_started_by_hand_a_child_says_what_to_start(module: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), SOON)

    assert process.returncode == 1
    assert b"try `evenly demo`" in said
