from __future__ import annotations

import asyncio
import json

import pytest

from evenly.lab.dashboard.history import ENDED, FRAMES, History, Subscription
from tests.lab.dashboard.fakes import SOON


async def taken(subscription: Subscription) -> list[object]:
    """Take what is left of a subscription that was closed."""
    found = []
    async with asyncio.timeout(SOON):
        while (frame := await subscription.next()) is not None:
            found.append(json.loads(frame)["t"])
    return found


def ages(frames: tuple[bytes, ...]) -> list[object]:
    return [json.loads(frame)["t"] for frame in frames]


async def test_a_subscription_has_what_was_and_gets_what_comes() -> None:
    history = History()
    history.publish({"t": 0})
    with history.subscribe() as subscription:
        history.publish({"t": 1})
        history.publish({"t": 2})
        history.close()

        assert ages(subscription.take_past()) == [0]
        assert await taken(subscription) == [1, 2]


async def test_the_last_frames_are_kept() -> None:
    history = History()
    for t in range(FRAMES + 3):
        history.publish({"t": t})

    assert ages(history.subscribe().take_past()) == list(range(3, 243))


async def test_who_takes_nothing_loses_the_oldest() -> None:
    history = History()
    with history.subscribe() as slow:
        for t in range(1000):
            history.publish({"t": t})
        history.close()

        assert await taken(slow) == list(range(980, 1000))


async def test_who_left_gets_nothing_more() -> None:
    history = History()
    with history.subscribe() as left:
        assert history.subscriptions == 1
    history.publish({"t": 0})
    history.leave(left)  # A second time: nothing.
    left.close()

    assert history.subscriptions == 0
    assert await taken(left) == []


async def test_a_cancelled_wait_loses_no_frame() -> None:
    history = History()
    with history.subscribe() as subscription:
        waiting = asyncio.ensure_future(subscription.next())
        await asyncio.sleep(0)
        history.publish({"t": 0})
        waiting.cancel()
        await asyncio.wait({waiting})
        history.close()

        assert waiting.cancelled()
        assert await taken(subscription) == [0]


async def test_a_closed_history_ends_new_subscriptions_too() -> None:
    history = History()
    history.publish({"t": 0})
    history.close()
    with history.subscribe() as late:
        assert ages(late.take_past()) == [0]
        assert await taken(late) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_is_no_json_is_refused_and_not_kept(value: object) -> None:
    history = History()
    with pytest.raises((ValueError, TypeError)):
        history.publish({"t": value})

    assert repr(history) == "<History frames=0 subscriptions=0>"


async def test_what_was_is_not_kept_for_who_has_taken_it() -> None:
    history = History()
    history.publish({"t": 0})
    with history.subscribe() as subscription:
        assert ages(subscription.take_past()) == [0]
        assert subscription.take_past() == ()


async def test_the_end_of_the_source_is_told_once_to_everyone_and_to_who_comes_later() -> None:
    history = History()
    with history.subscribe() as early:
        history.publish({"t": 0})
        history.end()
        history.end()
        with history.subscribe() as late:
            history.close()

            assert [await early.next() for _ in range(3)] == [b'{"t":0}', ENDED, None]
            assert [await late.next() for _ in range(2)] == [ENDED, None]
