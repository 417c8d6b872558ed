from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenly.signals.memory import MemoryReader
from tests.signals.test_cpu import write

PAGE = os.sysconf("SC_PAGE_SIZE")
V2 = {"proc/self/cgroup": "0::/pods/web\n"}
WEB = "sys/fs/cgroup/pods/web/"
# Without a limit: a quarter of the machine's memory.
MACHINE = {
    "proc/self/statm": "900 256 77 5 0 123 0\n",
    "proc/meminfo": f"MemTotal:       {1024 * PAGE // 1024} kB\nMemFree: 1 kB\n",
}


def utilization(root: Path, files: dict[str, str]) -> float:
    return MemoryReader(root=write(root, {**MACHINE, **files})).utilization()


def test_the_groups_memory_without_idle_cache_against_its_limit(tmp_path: Path) -> None:
    files = {
        **V2,
        WEB + "memory.max": "1000\n",
        WEB + "memory.current": "700\n",
        WEB + "memory.stat": "anon 400\ninactive_file 200\nactive_file 100\n",
    }

    assert utilization(tmp_path, files) == (700 - 200) / 1000


def test_the_fullest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        **V2,
        WEB + "memory.max": "1000",
        WEB + "memory.current": "100",
        "sys/fs/cgroup/pods/memory.max": "2000",
        "sys/fs/cgroup/pods/memory.current": "1800",
    }

    assert utilization(tmp_path, files) == 0.9


@pytest.mark.parametrize(
    ("limit", "current"),
    [
        pytest.param("max", "700", id="no limit"),
        pytest.param("", "700", id="empty"),
        pytest.param("0", "700", id="zero"),
        pytest.param("-1", "700", id="negative"),
        pytest.param("a lot", "700", id="garbage"),
        pytest.param("1000", "?", id="use is garbage"),
    ],
)
def test_without_a_limit_it_is_the_process_against_the_machine(
    tmp_path: Path, limit: str, current: str
) -> None:
    files = {**V2, WEB + "memory.max": limit, WEB + "memory.current": current}

    assert utilization(tmp_path, files) == 0.25
    assert utilization(tmp_path / "no group", {}) == 0.25


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        pytest.param("inactive_file 900\n", 0.0, id="more cache than use, read a moment later"),
        pytest.param("inactive_file\ninactive_file x\n", 0.7, id="garbage counts as no cache"),
    ],
)
def test_an_odd_cache_does_not_matter(tmp_path: Path, stat: str, expected: float) -> None:
    files = {
        **V2,
        WEB + "memory.max": "1000",
        WEB + "memory.current": "700",
        WEB + "memory.stat": stat,
    }

    assert utilization(tmp_path, files) == expected


def test_version_1(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/pods/web/"
    files = {
        "proc/self/cgroup": "4:memory:/pods/web\n0::/\n",
        group + "memory.limit_in_bytes": "1000",
        group + "memory.usage_in_bytes": "600",
        group + "memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
    }

    assert utilization(tmp_path, files) == 0.5
    # Its "no limit" is the largest multiple of the page size.
    unlimited = {**files, group + "memory.limit_in_bytes": "9223372036854771712"}
    assert utilization(tmp_path, unlimited) == 0.25


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"proc/self/statm": "1", "proc/meminfo": "MemTotal: 5 kB"}, id="short"),
        pytest.param({"proc/self/statm": "1 2 3", "proc/meminfo": "MemTotal: x"}, id="garbage"),
        pytest.param({"proc/self/statm": "1 2 3", "proc/meminfo": "MemTotal: 0 kB"}, id="zero"),
    ],
)
def test_where_nothing_can_be_read_it_is_zero(tmp_path: Path, files: dict[str, str]) -> None:
    assert MemoryReader(root=write(tmp_path, files)).utilization() == 0.0


def test_this_machine_sees_a_large_allocation() -> None:
    reader = MemoryReader()
    before = reader.utilization()
    ballast = bytearray(os.urandom(1024)) * (256 * 1024)  # 256 MB, all of them touched

    after = reader.utilization()

    assert len(ballast) == 256 * 1024 * 1024
    assert 0.0 < before < after
