from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from evenly.core.balancing.backend import Backend
from evenly.discovery import file
from evenly.discovery.file import FileConfig, FileDiscovery, parse_file
from evenly.discovery.target import from_target
from evenly.errors import ConfigError
from tests.discovery.watching import PATIENCE_SECONDS, Watching, watching


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "backends"


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="evenly.discovery")


def looks(path: Path) -> AbstractAsyncContextManager[Watching]:
    return watching(lambda steps: FileDiscovery(path, sleep=steps.sleep))


def replace(path: Path, text: str) -> None:
    """Put a complete file in the place of the old one, as a careful writer does."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "evenly.discovery"
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"# none today\n\n  \n", [], id="comments and blank lines"),
        pytest.param(b"b:2\na:1\n", [("b:2", None), ("a:1", None)], id="addresses"),
        pytest.param(b"3 a:1\n0 b:2\n", [("a:1", 3), ("b:2", 0)], id="indices"),
        pytest.param(b"\t7\t a:1  # why\r\n", [("a:1", 7)], id="spaces and a comment behind"),
        pytest.param(b"a:1", [("a:1", None)], id="no newline at the end"),
        pytest.param(b"\xef\xbb\xbfa:1\n", [("a:1", None)], id="a byte-order mark"),
        pytest.param(b"[0::1]:1\nunix:/a\n", [("[::1]:1", None), ("unix:/a", None)], id="kinds"),
    ],
)
def test_parse_file(data: bytes, expected: list[tuple[str, int | None]]) -> None:
    assert parse_file(data) == tuple(Backend(*one) for one in expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a:1\n\nb\n", "line 3: address must be host:port"),
        (b"a:1\nb:99999\n", "not 'b:99999'"),
        (b"1 a:1\nb:2\n", "line 2: all lines must have an index or none, not 'b:2'"),
        (b"a:1\n1 b:2\n", "line 2: all lines must have an index or none, not '1 b:2'"),
        (b"a:1 b:2\n", "line 1: must be `address` or `index address`, not 'a:1 b:2'"),
        (b"-1 a:1\n", "not '-1 a:1'"),
        (b"1 a:1 x\n", "not '1 a:1 x'"),
        (b"100000 a:1\n", "line 1: index must be a whole number in [0, 99999], not 100000"),
        (b"a:1\nb:2\na:1\n", "line 3: 'a:1' is on line 1 already"),
        (b"4 a:1\n4 b:2\n", "line 2: 4 is on line 1 already"),
        (b"a:1\nb\xff:2\n", r"line 2: must be UTF-8, not b'\xff'"),
        (b"a:1\0\n", r"not 'a:1\x00'"),
        (b"#" * 8_000_001, "at most 8000000 bytes"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_value(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_file(data)


@pytest.mark.parametrize("url", ["file:{}", "file://{}"])
async def test_a_file_is_read_at_once(path: Path, url: str) -> None:
    path.write_text("a:1\n")
    discovery = from_target(url.format(path))

    async with watching(lambda _: discovery) as steps, asyncio.timeout(PATIENCE_SECONDS):
        while not steps.lists:
            await asyncio.sleep(0.001)

    assert steps.addresses == [["a:1"]]


async def test_a_replaced_file_is_taken_at_the_next_look(path: Path) -> None:
    path.write_text("a:1\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "1 b:2\n")
        await steps.step()
        assert steps.indexed == [[(None, "a:1")], [(1, "b:2")]]

        # The same list in another file is no news.
        replace(path, "# moved\n1 b:2\n")
        await steps.step()
        await steps.step()
        assert len(steps.lists) == 2


async def test_a_symbolic_link_that_is_switched_counts_as_replaced(path: Path) -> None:
    # Kubernetes updates a mounted ConfigMap this way.
    for name, text in (("old", "a:1\n"), ("new", "b:2\n")):
        (path.parent / name).write_text(text)
    path.symlink_to("old")
    async with looks(path) as steps:
        await steps.step()
        link = path.with_suffix(".link")
        link.symlink_to("new")
        link.replace(path)
        await steps.step()

    assert steps.addresses == [["a:1"], ["b:2"]]


async def test_a_file_rewritten_in_place_is_taken_when_it_has_settled(path: Path) -> None:
    path.write_text("a:1\nb:2\nc:3\n")
    async with looks(path) as steps:
        await steps.step()
        await steps.step()
        with path.open("w") as writer:
            await steps.step()  # Truncated: not an empty service.
            print("d:4", file=writer, flush=True)
            await steps.step()  # A valid list, but not all of it.
            print("e:5", file=writer, flush=True)
            await steps.step()
            assert steps.addresses == [["a:1", "b:2", "c:3"]]
        await steps.step()

    assert steps.addresses == [["a:1", "b:2", "c:3"], ["d:4", "e:5"]]


async def test_a_file_rewritten_in_place_with_the_same_size_is_noticed(path: Path) -> None:
    path.write_text("a:1\n")
    async with looks(path) as steps:
        await steps.step()
        await steps.step()
        path.write_text("b:2\n")
        os.utime(path, ns=(1, 1))  # Whatever the granularity of this file system's clock.
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1"], ["b:2"]]


async def test_a_write_within_the_same_tick_as_the_first_read_is_noticed(path: Path) -> None:
    path.write_text("a:1\n")
    times = path.stat()
    async with looks(path) as steps:
        await steps.step()
        path.write_text("b:2\n")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        await steps.step()

    assert steps.addresses == [["a:1"], ["b:2"]]


async def test_a_file_that_has_settled_is_not_read_again(path: Path) -> None:
    path.write_text("a:1\n")
    times = path.stat()
    async with looks(path) as steps:
        await steps.step()
        await steps.step()
        path.write_text("b:2\n")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1"]]


async def test_a_file_that_changes_while_it_is_read_is_not_believed(path: Path) -> None:
    path.write_text("a:1\n")
    looked = file._look(path, None, in_use=False)
    assert looked.identity is not None
    path.write_text("")

    # Between the look and the read a writer truncated it: only a direct call can hit that moment.
    read = file._read(path, looked.identity, is_same=True)

    assert read.backends is None
    assert not read.is_settled


async def test_an_empty_file_empties_the_service_only_at_the_second_look(path: Path) -> None:
    path.write_text("a:1\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "# none\n")
        await steps.step()
        assert steps.addresses == [["a:1"]]
        await steps.step()

    assert steps.addresses == [["a:1"], []]


@pytest.mark.parametrize("text", ["", "# none\n", "a:1\nb:5", "a:1"])
async def test_a_list_rewritten_in_place_without_its_end_is_never_believed(
    path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path.write_text("a:1\nb:50\n")
    async with looks(path) as steps:
        await steps.step()
        path.write_text(text)
        for _ in range(5):
            await steps.step()
        assert steps.addresses == [["a:1", "b:50"]]
        path.write_text("a:1\nb:51\n")
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1", "b:50"], ["a:1", "b:51"]]
    warnings = [message for level, message in messages(caplog) if level == "WARNING"]
    assert len(warnings) == 1
    assert "written in place" in warnings[0]
    assert "keeping the last list (2)" in warnings[0]


async def test_a_list_made_anew_without_its_end_is_not_believed_either(path: Path) -> None:
    path.write_text("a:1\n")
    async with looks(path) as steps:
        await steps.step()
        path.unlink()
        await steps.step()
        path.write_text("b:5")
        for _ in range(4):
            await steps.step()

    assert steps.addresses == [["a:1"]]


async def test_a_whole_file_without_a_last_newline_is_taken_at_the_second_look(path: Path) -> None:
    path.write_text("a:1\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "b:5")
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1"], ["b:5"]]


async def test_a_list_that_becomes_empty_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("a:1\nb:1\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "")
        await steps.step()
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1", "b:1"], []]
    logged = [message for level, message in messages(caplog) if level == "WARNING"]
    assert [message.partition(": ")[2] for message in logged] == [
        "lists no backends any more (2 before)"
    ]


async def test_an_empty_file_at_the_start_is_a_list_too(path: Path) -> None:
    path.write_text("")
    async with looks(path) as steps:
        await steps.step()
        assert steps.lists == []
        await steps.step()

    assert steps.addresses == [[]]


async def test_a_last_line_without_its_newline_waits_for_the_second_look(path: Path) -> None:
    path.write_text("a:500")
    async with looks(path) as steps:
        await steps.step()
        assert steps.lists == []
        with path.open("a") as writer:
            writer.write("51\n")
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:50051"]]


async def test_a_missing_file_is_waited_for(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with looks(path) as steps:
        await steps.step()
        await steps.step()
        assert steps.lists == []
        path.write_text("a:1\n")
        await steps.step()
        assert steps.lists == []  # It may be half-written.
        await steps.step()

    reason = os.strerror(errno.ENOENT)
    assert steps.addresses == [["a:1"]]
    assert messages(caplog) == [
        ("WARNING", f"file:'{path}': cannot be read: {reason}; no backends are known yet"),
        ("INFO", f"file:'{path}': good again (1)"),
    ]


async def test_whatever_is_wrong_the_last_good_list_stays_and_each_problem_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("a:1\nb:2\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "a:1\nb\n")
        for _ in range(3):
            await steps.step()
        replace(path, "a:1\nb\n# and again\n")
        for _ in range(3):
            await steps.step()
        path.unlink()
        path.mkdir()
        for _ in range(3):
            await steps.step()
        path.rmdir()
        for _ in range(3):
            await steps.step()
        assert len(steps.lists) == 1
        warnings = messages(caplog)
        caplog.clear()
        replace(path, "c:3\n")
        await steps.step()
        await steps.step()
        replace(path, "a:1\nb\n")
        await steps.step()

    assert steps.addresses == [["a:1", "b:2"], ["c:3"]]
    assert [level for level, _ in warnings] == ["WARNING"] * 3
    line, directory, missing = (text for _, text in warnings)
    assert line.startswith(f"file:'{path}': line 2: address must be host:port")
    assert line.endswith("not 'b'; keeping the last list (2)")
    assert "must be a regular file" in directory
    assert os.strerror(errno.ENOENT) in missing
    # After a good list the same problem is news again.
    (solved, again) = messages(caplog)
    assert solved == ("INFO", f"file:'{path}': good again (1)")
    assert again[1].endswith("not 'b'; keeping the last list (1)")


async def test_a_good_file_in_the_place_of_a_wrong_one_is_taken_at_the_next_look(
    path: Path,
) -> None:
    path.write_text("oh\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "a:1\n")
        await steps.step()

    assert steps.addresses == [["a:1"]]


async def test_a_wrong_file_is_not_half_believed_while_it_is_mended_in_place(path: Path) -> None:
    path.write_text("a:1\n")
    async with looks(path) as steps:
        await steps.step()
        replace(path, "oh\n")
        for _ in range(3):
            await steps.step()
        with path.open("w") as writer:
            print("b:2", file=writer, flush=True)
            await steps.step()
            assert len(steps.lists) == 1
            print("c:3", file=writer, flush=True)
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1"], ["b:2", "c:3"]]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
async def test_a_file_made_readable_is_read_though_it_did_not_change(path: Path) -> None:
    path.write_text("a:1\n")
    path.chmod(0)
    async with looks(path) as steps:
        await steps.step()
        await steps.step()
        path.chmod(0o400)
        await steps.step()
        await steps.step()

    assert steps.addresses == [["a:1"]]


async def test_a_pipe_is_not_opened(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(path)
    async with looks(path) as steps:
        await steps.step()

    assert "must be a regular file" in messages(caplog)[0][1]


async def test_looks_are_a_second_apart_with_jitter(path: Path) -> None:
    path.write_text("a:1\n")
    async with watching(
        lambda steps: FileDiscovery(path, sleep=steps.sleep, rng=random.Random(1))
    ) as steps:
        for _ in range(50):
            await steps.step()

    # 1 s ± 20 %
    assert all(0.8 <= delay <= 1.2 for delay in steps.delays)
    assert min(steps.delays) < 1.0 < max(steps.delays)


@pytest.mark.parametrize("field", ["look_seconds", "jitter_ratio"])
@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e9, True, "1"])
def test_a_wrong_config_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        FileConfig(**{field: value})
