from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from evenly.signals.cpu import CpuReader, effective_cores
from evenly.testing import ManualClock


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/pods/web\n"}
GROUP = "sys/fs/cgroup/pods/web/cpu.max"


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        pytest.param("200000 100000\n", 2.0, id="two cores"),
        pytest.param("50000 100000\n", 0.5, id="half a core"),
        pytest.param("1000 1000000\n", 0.001, id="the least that the kernel takes"),
        pytest.param("max 100000\n", 8.0, id="no quota"),
        pytest.param("1600000 100000\n", 8.0, id="more than there are"),
        pytest.param("", 8.0, id="empty"),
        pytest.param("garbage", 8.0, id="garbage"),
        pytest.param("100000", 8.0, id="no period"),
        pytest.param("100000 0", 8.0, id="a period of zero"),
        pytest.param("0 100000", 8.0, id="a quota of zero"),
        pytest.param("-5 100000", 8.0, id="a negative quota"),
        pytest.param("9" * 400 + " 100000", 8.0, id="too many digits"),
        pytest.param("²³ 100000", 8.0, id="not ASCII"),
    ],
)
def test_the_quota_of_version_2(tmp_path: Path, cpu_max: str, expected: float) -> None:
    assert effective_cores(write(tmp_path, {**V2, GROUP: cpu_max})) == expected


def test_the_strictest_group_on_the_way_up_holds(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {**V2, GROUP: "max 100000", "sys/fs/cgroup/pods/cpu.max": "150000 100000"},
    )

    assert effective_cores(root) == 1.5


def test_inside_a_container_the_mount_is_the_group(tmp_path: Path) -> None:
    in_namespace = write(
        tmp_path / "a",
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "300000 100000"},
    )
    hosts_path = write(
        tmp_path / "b",
        {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "300000 100000"},
    )
    outside = write(
        tmp_path / "c",
        {"proc/self/cgroup": "0::/../other\n", "sys/fs/cgroup/cpu.max": "300000 100000"},
    )

    assert [effective_cores(root) for root in (in_namespace, hosts_path, outside)] == [3.0] * 3


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        pytest.param("250000", 2.5, id="two and a half"),
        pytest.param("-1", 8.0, id="no quota"),
        pytest.param("?", 8.0, id="garbage"),
    ],
)
@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_the_quota_of_version_1(tmp_path: Path, mount: str, quota: str, expected: float) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "7:memory:/m\n4:cpu,cpuacct:/pods/web\n0::/\n",
            f"sys/fs/cgroup/{mount}/pods/web/cpu.cfs_quota_us": quota + "\n",
            f"sys/fs/cgroup/{mount}/pods/web/cpu.cfs_period_us": "100000\n",
        },
    )

    assert effective_cores(root) == expected


@pytest.mark.parametrize(
    "lines",
    ["", "0::/gone\n", "garbage\n::::\n\n0:://\n", "0::/a\x00b\n", "3:cpu:/x\n"],
    ids=["empty", "no such group", "garbage", "NUL", "no such mount"],
)
def test_without_a_group_it_is_the_cpus_that_the_process_may_run_on(
    tmp_path: Path, lines: str
) -> None:
    assert effective_cores(tmp_path / "nothing at all") == 8.0
    assert effective_cores(write(tmp_path, {"proc/self/cgroup": lines})) == 8.0


def test_where_there_is_no_affinity_it_is_the_machines_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)

    assert effective_cores(tmp_path) == 3.0


def test_utilization_is_cpu_seconds_per_second_and_core(tmp_path: Path) -> None:
    root = write(tmp_path, {**V2, GROUP: "50000 100000"})
    clock, cpu_clock = ManualClock(), ManualClock(5.0)
    reader = CpuReader(root=root, clock=clock, cpu_clock=cpu_clock)
    assert reader.utilization() == 0.0  # no time has passed

    clock.advance(2.0)
    cpu_clock.advance(0.75)
    assert reader.utilization() == pytest.approx(0.75 / 2.0 / 0.5)
    cpu_clock.advance(1.0)
    assert reader.utilization() == pytest.approx(0.75)  # the same again: no time has passed

    write(tmp_path, {GROUP: "400000 100000"})  # resized while it runs
    clock.advance(1.0)
    assert reader.utilization() == pytest.approx(1.0 / 1.0 / 4.0)
    clock.advance(1.0)
    assert reader.utilization() == 0.0


def test_the_quota_is_looked_up_once_a_second(tmp_path: Path) -> None:
    root = write(tmp_path, {**V2, GROUP: "50000 100000"})
    clock, cpu_clock = ManualClock(), ManualClock()
    reader = CpuReader(root=root, clock=clock, cpu_clock=cpu_clock)

    def busy() -> float:
        clock.advance(0.25)
        cpu_clock.advance(0.125)
        return reader.utilization()

    assert busy() == pytest.approx(1.0)
    write(tmp_path, {GROUP: "100000 100000"})
    assert [busy() for _ in range(4)] == pytest.approx([1.0, 1.0, 1.0, 0.5])


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    cores = effective_cores()
    assert 0.0 < cores <= len(os.sched_getaffinity(0))

    # One reading spans both clocks of the whole process: what it has used divided by the time since
    # it began to burn, whatever else the machine is doing.
    reader = CpuReader()
    ends_at = time.process_time() + 0.05
    while time.process_time() < ends_at:
        pass

    # One thread cannot use more than a core; 10 % more covers the two clocks' different instants.
    assert 0.0 < reader.utilization() <= 1.1 * threads() / cores


def threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 -- as the kernel counts them
