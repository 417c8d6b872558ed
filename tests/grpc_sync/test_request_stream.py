"""What a caller streams, handed to one attempt after another by several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from evenly.grpc.sync.client.request_stream import RequestStream
from tests.grpc_sync.backends import LONG_SECONDS, wait_until


def test_each_reader_gets_all_messages_from_the_start() -> None:
    stream = RequestStream(iter(["a", "b", "c"]), str.encode)
    first = stream.open()
    assert [next(first), next(first)] == [b"a", b"b"]
    second = stream.open()

    assert list(second) == [b"a", b"b", b"c"]
    assert list(first) == []  # There is one reader at a time.
    assert list(stream.open()) == [b"a", b"b", b"c"]


def test_a_committed_stream_keeps_nothing_and_goes_on() -> None:
    stream = RequestStream(iter([b"a", b"b", b"c"]), None)
    reader = stream.open()
    assert next(reader) == b"a"
    stream.commit()

    assert not stream.can_replay
    assert list(reader) == [b"b", b"c"]


@pytest.mark.parametrize("size", [0, 1000])
def test_what_is_kept_is_bounded_also_for_empty_messages(size: int) -> None:
    """256 KiB over (size + 64) bytes a message: 4,097 empty ones, 247 of 1,000 bytes."""
    stream = RequestStream((bytes(size) for _ in range(10_000)), None)
    reader = stream.open()
    read = 0
    while stream.can_replay:
        next(reader)
        read += 1

    assert read == 256 * 1024 // (size + 64) + 1
    assert sum(1 for _ in reader) == 10_000 - read


def test_a_reader_that_waits_leaves_its_message_to_the_next() -> None:
    go_on = threading.Event()

    def words() -> Iterator[bytes]:
        yield b"a"
        assert go_on.wait(LONG_SECONDS)
        yield b"b"

    stream = RequestStream(words(), None)
    old, got = stream.open(), list[bytes]()
    assert next(old) == b"a"
    waiting = threading.Thread(target=lambda: got.extend(old))
    waiting.start()
    wait_until(lambda: stream.is_pulling, "the thread to wait for the caller")
    new = stream.open()
    assert next(new) == b"a"
    go_on.set()

    assert list(new) == [b"b"]  # Not lost, and not pulled by two at a time.
    waiting.join(LONG_SECONDS)
    assert got == []


def test_an_iterator_that_raises_fails_every_reader_alike() -> None:
    def words() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    stream = RequestStream(words(), None)
    for _ in range(2):
        reader = stream.open()
        assert next(reader) == b"a"
        with pytest.raises(ZeroDivisionError):
            next(reader)
    assert stream.has_failed


def test_between_two_attempts_nothing_is_dropped() -> None:
    stream = RequestStream((bytes(100_000) for _ in range(4)), None)
    reader = stream.open()
    assert len(next(reader)) + len(next(reader)) == 200_000
    stream.detach()
    assert list(reader) == []
    again = stream.open()

    assert [len(message) for message in again] == [100_000] * 4
    assert not stream.can_replay  # The third was beyond 256 KiB.


def test_what_comes_between_two_attempts_is_kept_for_the_next() -> None:
    go_on = threading.Event()

    def words() -> Iterator[bytes]:
        yield bytes(200_000)
        assert go_on.wait(LONG_SECONDS)
        yield bytes(100_000)  # Beyond 256 KiB.

    stream = RequestStream(words(), None)
    old = stream.open()
    assert len(next(old)) == 200_000
    waiting = threading.Thread(target=lambda: list(old))
    waiting.start()
    wait_until(lambda: stream.is_pulling, "the thread to wait for the caller")
    stream.detach()
    go_on.set()
    waiting.join(LONG_SECONDS)

    assert stream.can_replay
    assert [len(message) for message in stream.open()] == [200_000, 100_000]
