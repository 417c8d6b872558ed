"""`evenly demo` as a process: how it is stopped, and what it leaves behind: nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "evenly", "demo"]


@contextmanager
def started(
    tmp_path: Path, *arguments: str, until: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run the command until it has printed `until`."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if until in line:
                break
        else:
            pytest.fail(f"no {until!r}: {lines}")
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that this one has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # It has ended meanwhile.
            continue
        if fields[1] == str(pid):
            found.append(int(stat.parent.name))
    return found


def are_gone(pids: list[int]) -> bool:
    """Return whether all have ended, waiting for those that are about to."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 30.0
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(runs, pids))


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_shown_until_it_is_stopped_and_nothing_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    arguments = ("--backends", "3", "--clients", "1")
    with started(tmp_path, *arguments, until="Ctrl-C stops it") as (process, lines):
        children = children_of(process.pid)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)

    said = "".join(lines)
    assert lines[0] == "Starting 3 backends and 1 client that speak gRPC ...\n"
    assert re.search(r"^  Open  http://127\.0\.0\.1:\d+/#token=\S{20,}$", said, re.MULTILINE)
    assert re.search(r"^  Or    evenly top http://127\.0\.0\.1:\d+/targets$", said, re.MULTILINE)
    assert process.returncode == 0
    assert rest == "Stopped; nothing is left behind.\n"
    assert len(children) >= 4
    assert are_gone(children)
    assert list(tmp_path.iterdir()) == []


@needs_proc
@pytest.mark.parametrize(
    "when",
    [
        pytest.param(lambda _children: None, id="all run"),
        # A stopped process notices nothing.
        pytest.param(lambda children: os.kill(children[0], signal.SIGSTOP), id="one is stopped"),
    ],
)
def test_a_second_signal_ends_everything_at_once(
    tmp_path: Path, when: Callable[[list[int]], None]
) -> None:
    arguments = ("--backends", "3", "--clients", "1")
    with started(tmp_path, *arguments, until="Ctrl-C stops it") as (process, _):
        children = children_of(process.pid)
        when(children)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    # The first may have done it all before the second came, or all but exit.
    ways = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert process.returncode in ways
    assert are_gone(children)


@needs_proc
def test_it_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    with started(tmp_path, until="Starting") as (process, _):
        while not (children := children_of(process.pid)):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert are_gone(children)


@needs_proc
def test_a_play_that_is_stopped_has_no_figures(tmp_path: Path) -> None:
    arguments = ("--seconds", "30", "--json", "out.json", "--backends", "3", "--clients", "1")
    with started(tmp_path, *arguments, until="warm-up") as (process, _):
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGINT
    assert rest.endswith("Stopped before the end: no figures.\n")
    assert are_gone(children)
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    arguments = ("--backends", "3", "--clients", "1")
    with started(tmp_path, *arguments, until="  Or ") as (_, lines):
        page = re.findall(r":(\d+)/#token", "".join(lines))[0]
        done = subprocess.run(
            [*COMMAND, *arguments, "--port", page],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert page in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""  # Nothing was started for it.


@needs_proc
def test_a_browser_that_stays_keeps_nobody_and_sees_no_token_on_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, files = tmp_path / "seen", tmp_path / "files"
    files.mkdir()
    browser = tmp_path / "browser"
    script = 'echo "$1" > "$0.draft"; mv "$0.draft" "$SEEN"; exec sleep 600'
    browser.write_text(f"#!/bin/sh\n{script}\n")
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("TMPDIR", str(files))
    arguments = ("--backends", "3", "--clients", "1", "--open")
    with started(tmp_path, *arguments, until="Ctrl-C stops it") as (process, lines):
        browsers: list[int] = []
        deadline = time.monotonic() + 30.0
        # It has written down the address a moment before it goes to sleep.
        while not (seen.exists() and browsers) and time.monotonic() < deadline:
            time.sleep(0.01)
            browsers = [pid for pid in children_of(process.pid) if is_sleep(pid)]
        (page,) = files.iterdir()
        given, text, mode = seen.read_text().strip(), page.read_text(), page.stat().st_mode
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        for pid in browsers:
            os.kill(pid, signal.SIGKILL)

    url = re.findall(r"http://\S+#token=\S+", "".join(lines))[0]
    assert given == page.as_uri()
    assert f"url={url}" in text
    assert mode & 0o777 == 0o600
    assert process.returncode == 0
    assert len(browsers) == 1
    assert not list(files.iterdir())


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")
    except OSError:  # It has ended meanwhile.
        return False
