"""What is done with the requests of one row, until they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from evenly.core.balancing.health import State
from tests.suites.requests.script import Act, What
from tests.suites.requests.world import Sent, World

Story = Callable[[World], Awaitable[list[Sent]]]
"""It returns those whose ends the row tells."""


def one(*acts: Act, **options: Any) -> Story:
    """Send a request; the backends do these to what arrives, one after the other, and then OK."""

    async def story(world: World) -> list[Sent]:
        world.script.next += acts
        return [world.send(**options)]

    return story


async def elsewhere(world: World) -> list[Sent]:
    sent = await one(Act.OVERLOADED)(world)
    await world.answered(*sent)
    assert len(set(world.script.addresses)) == 2
    assert world.counts.begun == [1, 2]
    return sent


async def everywhere(world: World) -> list[Sent]:
    world.script.then = Act.OVERLOADED
    sent = [world.send()]
    await world.answered(*sent)
    assert len(set(world.script.addresses)) == 3
    assert world.counts.begun == [1, 2, 3]
    return sent


async def failure_stands(world: World) -> list[Sent]:
    """While it is served its backend leaves the list, and who is listed instead never answers."""
    world.script.next = [Act.HOLD]
    sent = world.send(is_idempotent=True)
    await world.until(lambda: world.script.seen == 1)
    world.say(world.mute)
    await world.until(lambda: world.mute in world.known())
    world.script.release(Act.DIE)
    return [sent]


async def moves_on(world: World) -> list[Sent]:
    """Its connection does not come to stand, and another does."""
    world.say(world.mute)
    await world.until(lambda: world.mute in world.known())
    sent = world.send()
    await world.until(lambda: world.active == 1)
    world.say(world.mute, *world.addresses)
    return [sent]


async def nobody_listens(world: World) -> list[Sent]:
    for backend in world.backends:
        await backend.stop()
    # Begun together with the first connection, and not after that was refused.
    if world.requests.is_discovered:
        world.say(*world.addresses)
        return [world.send()]
    sent = world.send()
    await parks(world, 1)
    world.say(*world.addresses)
    return [sent]


async def arrives(world: World, sent: Sent) -> bool:
    """Wait until a backend has read a request, or it has ended without."""
    await world.until(lambda: world.script.seen or sent.what)
    return world.script.seen == 1


def held(*, then: str = "", **options: Any) -> Story:
    """Have a request held by its backend, and then do something; another one ends well."""

    async def story(world: World) -> list[Sent]:
        world.script.next = [Act.HOLD]
        sent = world.send(**options)
        while not await arrives(world, sent):  # The machine paused, and its time was up.
            world.counts.begun.clear()
            world.counts.finished.clear()
            sent = world.send(**options)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        await world.answered(sent)
        world.script.release()  # An answer that comes late is nobody's.
        if then != "close":
            await world.settled()
            await world.answered(world.send())
        return [sent]

    return story


def connecting(*, then: str = "", **options: Any) -> Story:
    async def story(world: World) -> list[Sent]:
        world.say(world.mute)
        await world.until(lambda: world.mute in world.known())
        sent = world.send(**options)
        if then:
            await world.until(lambda: world.active == 1)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        return [sent]

    return story


def asking(*, then: str = "", **options: Any) -> Story:
    async def story(world: World) -> list[Sent]:
        sent = world.send(**options)
        if then:
            await world.until(lambda: world.counts.asks)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        await world.answered(sent)
        assert world.counts.asks == 1
        return [sent]

    return story


def undiscovered(*, then: str = "", **options: Any) -> Story:
    """Nobody has said yet which backends there are."""

    async def story(world: World) -> list[Sent]:
        sent = [world.send(str(number), **options) for number in range(3)]
        if then:
            await parks(world, 3)
        if then == "cancel":
            for call in sent:
                call.cancel()
        elif then == "close":
            await world.close()
        elif then == "say":
            world.say(*world.addresses)
        return sent

    return story


async def no_backend(world: World) -> list[Sent]:
    world.say()
    await world.until(lambda: world.requests.is_discovered)
    return [world.send()]


def waits(*, then: str = "", **options: Any) -> Story:
    """Be patient where there is no backend."""

    async def story(world: World) -> list[Sent]:
        world.say()
        await world.until(lambda: world.requests.is_discovered)
        sent = world.send(is_patient=True, **options)
        if then:
            await parks(world, 1)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        elif then == "say":
            world.say(*world.addresses)
        return [sent]

    return story


async def port_opens_late(world: World) -> list[Sent]:
    (backend,) = world.backends
    await backend.stop()
    world.say(backend.address)
    await world.until(lambda: world.known().get(backend.address) is State.REFUSING)
    sent = world.send(is_patient=True)
    await parks(world, 1)
    await backend.start()
    return [sent]


async def impatient_overtakes_nobody(world: World) -> list[Sent]:
    """It fails at once, and does not wait behind a patient one."""
    (patient,) = await waits(then="park")(world)
    impatient = world.send()
    await world.answered(impatient)
    assert patient.what is None
    world.say(*world.addresses)
    return [patient, impatient]


async def at_limit(world: World) -> list[Sent]:
    world.script.next = [Act.HOLD]
    first = world.send()
    await world.until(lambda: world.script.seen == 1)
    second = world.send()
    await world.answered(second)
    world.script.release()
    return [first, second]


async def parks(world: World, count: int) -> None:
    await world.until(lambda: world.requests.parked == count)


async def in_order(world: World) -> list[Sent]:
    world.script.next = [Act.HOLD]
    sent = [world.send("first")]
    await world.until(lambda: world.script.seen == 1)
    for number in range(5):
        sent.append(world.send(str(number), is_patient=True))
        await parks(world, number + 1)
    world.script.release()
    await world.answered(*sent)
    assert world.script.names == ["first", "0", "1", "2", "3", "4"]
    return sent


async def throttled(world: World) -> list[Sent]:
    """Whose every request is refused soon refuses them itself."""
    world.script.then = Act.DONT_RETRY
    for _ in range(1000):
        before = world.script.seen, len(world.counts.begun)
        sent = world.send()
        (what,) = await world.answered(sent)
        if what is What.THROTTLED:
            assert (world.script.seen, len(world.counts.begun)) == before
            world.counts.finished.clear()
            world.counts.begun.clear()
            world.script.arrivals.clear()
            return [sent]
    raise AssertionError
