from __future__ import annotations

import asyncio
import gc
import random
import socket

import pytest

from evenly.context import current_request, request_context
from evenly.probe.whereabouts import Target, Whereabouts, parse
from tests.probe.ends import until

T = 1_000.25
LUCK = 20


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1:50051", ("192.0.2.1", 50051)),
        ("[2001:db8::1]:50051", ("2001:db8::1", 50051)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("search-0.prod:65535", ("search-0.prod", 65535)),
        ("unix:/run/search.sock", None),
        ("unix:///run/search.sock", None),
        ("unix-abstract:search:1", None),
        ("dns:///search.prod:50051", None),
        ("2001:db8::1:50051", None),
        ("search.prod", None),
        ("search.prod:", None),
        (":50051", None),
        ("[]:50051", None),
        ("search.prod:0", None),
        ("search.prod:65536", None),
        ("search.prod:-1", None),
        ("search.prod:٣٤", None),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int] | None) -> None:
    assert parse(address) == expected


def test_a_literal_is_known_without_a_look_up() -> None:
    v4 = Whereabouts("192.0.2.1:50051")
    v6 = Whereabouts("[2001:db8::1]:50051")

    assert v4.target(0) == (socket.AF_INET, ("192.0.2.1", 50051))
    assert v6.target(0) == (socket.AF_INET6, ("2001:db8::1", 50051, 0, 0))
    assert not v4.may_look_up(T)
    assert not v6.may_look_up(T)


def test_an_announced_port_replaces_the_services_until_it_is_taken_back() -> None:
    whereabouts = Whereabouts("[2001:db8::1]:50051")

    whereabouts.use_port(7)
    assert whereabouts.target(0) == (socket.AF_INET6, ("2001:db8::1", 7, 0, 0))
    whereabouts.use_port(None)
    assert whereabouts.target(0) == (socket.AF_INET6, ("2001:db8::1", 50051, 0, 0))


class Resolver:
    """A loop's resolver with a script: what it says in turn, and how often it was asked."""

    def __init__(self, *script: list[str] | Exception) -> None:
        self.script = list(script)
        self.asked = 0

    async def __call__(self, host: str, port: int, *, type: int) -> list[object]:  # noqa: A002 -- asyncio's
        self.asked += 1
        said = self.script.pop(0)
        await asyncio.sleep(0)
        if isinstance(said, Exception):
            raise said.__class__(*said.args)  # The script's own outlives the test.
        return [(socket.AF_INET, type, 17, "", (address, port)) for address in said]


def at(address: str, port: int = 50051) -> Target:
    return (socket.AF_INET, (address, port))


async def looked_up(monkeypatch: pytest.MonkeyPatch, *script: list[str] | Exception) -> Whereabouts:
    """Return the whereabouts of a name after it was looked up once per entry of the script."""
    loop = asyncio.get_running_loop()
    resolver = Resolver(*script)
    monkeypatch.setattr(loop, "getaddrinfo", resolver)
    whereabouts = Whereabouts("search.prod:50051")
    for number in range(len(script)):
        whereabouts.look_up(loop, T + 1_000.0 * number, random.Random(LUCK))
        await until(lambda: whereabouts.may_look_up(T + 1e6))
    return whereabouts


async def test_several_addresses_are_asked_in_turn_until_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whereabouts = await looked_up(monkeypatch, ["192.0.2.1"] * 4 + ["192.0.2.2"])
    assert [whereabouts.target(number) for number in range(3)] == [
        at("192.0.2.1"),
        at("192.0.2.2"),
        at("192.0.2.1"),
    ]

    whereabouts.record_answer(at("192.0.2.2"))

    assert {whereabouts.target(number) for number in range(4)} == {at("192.0.2.2")}


async def test_an_answer_that_announces_a_port_still_shows_which_address_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whereabouts = await looked_up(monkeypatch, ["192.0.2.1", "192.0.2.2"])

    whereabouts.use_port(7)
    whereabouts.record_answer(at("192.0.2.2", 50051))

    assert {whereabouts.target(number) for number in range(4)} == {at("192.0.2.2", 7)}


async def test_a_new_look_up_replaces_the_addresses_and_an_old_answer_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whereabouts = await looked_up(monkeypatch, ["192.0.2.1"], ["192.0.2.3", "192.0.2.4"])

    whereabouts.record_answer(at("192.0.2.1"))

    assert {whereabouts.target(number) for number in range(4)} == {
        at("192.0.2.3"),
        at("192.0.2.4"),
    }


@pytest.mark.parametrize(
    "failure",
    [socket.gaierror("unknown"), UnicodeError("label too long"), []],
    ids=["unknown", "no name", "no addresses"],
)
async def test_a_failed_look_up_leaves_what_was_known(
    monkeypatch: pytest.MonkeyPatch, failure: Exception | list[str]
) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    whereabouts = await looked_up(monkeypatch, ["192.0.2.1"], failure)

    assert whereabouts.target(0) == at("192.0.2.1")
    del whereabouts
    gc.collect()  # a task that failed complains when it goes
    assert errors == []


async def test_at_most_four_addresses_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    whereabouts = await looked_up(monkeypatch, [f"192.0.2.{number}" for number in range(100)])

    assert len({whereabouts.target(number) for number in range(100)}) == 4


async def test_look_ups_that_bring_no_answer_become_rarer_and_an_answer_ends_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    resolver = Resolver(*[["192.0.2.1"]] * 10)
    monkeypatch.setattr(loop, "getaddrinfo", resolver)
    whereabouts = Whereabouts("search.prod:50051")
    now = T

    async def wait_after_look_up() -> float:
        """Return after how many tenths of a second the next look-up is allowed, in seconds."""
        nonlocal now
        asked = resolver.asked
        whereabouts.look_up(loop, now, random.Random(LUCK))
        await until(lambda: resolver.asked > asked and whereabouts.may_look_up(now + 1e6))
        tenths = next(n for n in range(1_000) if whereabouts.may_look_up(now + n / 10))
        now += tenths / 10
        return tenths / 10

    # 1 s, 2 s, 4 s … 60 s, each with the same luck, ± 20 %, and rounded up to a tenth.
    waits = [await wait_after_look_up() for _ in range(8)]
    for waited, expected in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60], strict=True):
        assert 0.8 * expected <= waited <= 1.2 * expected + 0.1

    whereabouts.record_answer(at("192.0.2.1"))
    assert await wait_after_look_up() <= 1.2 + 0.1


async def test_a_look_up_does_not_run_in_the_context_of_the_request_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    customers: list[str] = []

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        customers.append(current_request().customer)
        return []

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    with request_context(customer="indexer"):
        Whereabouts("search.prod:50051").look_up(loop, T, random.Random(LUCK))
    await until(lambda: len(customers) == 1)

    assert customers == [""]


async def test_one_look_up_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", Resolver(["192.0.2.1"]))
    whereabouts = Whereabouts("search.prod:50051")

    whereabouts.look_up(loop, T, random.Random(LUCK))

    assert not whereabouts.may_look_up(T + 1e6)
    await until(lambda: whereabouts.may_look_up(T + 1e6))
