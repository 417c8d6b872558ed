from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.demo.watched import PIDS, SETTINGS, Watched, by_name, standings


def test_a_frame_before_anybody_has_said_anything() -> None:
    frame = Watched().frame(standings={})

    assert frame["t"] == 0.5
    assert frame["settings"] == SETTINGS
    assert (frame["capacity"], frame["capacity_now"], frame["offered"]) == (40.0, 0.0, 20.0)
    assert set(frame["rates"].values()) == {0.0}
    assert frame["retry_ratio"] is None
    assert frame["latency_ms"] is None
    assert frame["utilization"] == {"mean": 0.0, "most": 0.0, "least": 0.0}
    assert (frame["wasted"], frame["active"], frame["demo_cores"]) == (0.0, 0, 0.0)
    assert [row["state"] for row in frame["backends"]] == ["down", "down"]
    assert [row["subset"] for row in frame["clients"]] == [[], []]
    assert (frame["story"], frame["events"]) == (None, [])


def test_rates_are_differences_over_the_length_of_the_frame() -> None:
    watched = Watched()
    watched.saw("c1", asked={"CRITICAL": 6}, ok={"CRITICAL": 5}, attempts=6, retries=1, active=1)
    watched.saw("c2", asked={"SHEDDABLE": 4}, refused={"shed": {"SHEDDABLE": 4}})
    first = watched.frame()
    watched.saw("c1", asked={"CRITICAL": 9}, ok={"CRITICAL": 8}, attempts=9, retries=1, active=2)
    second = watched.frame(seconds=0.25)

    assert first["rates"] == {
        "asked": 20.0,
        "ok": 10.0,
        "failed": 0.0,
        "refused": 8.0,
        "attempts": 12.0,
        "retries": 2.0,
    }
    assert first["retry_ratio"] == 0.2
    assert first["refused_by"] == {
        "throttled": 0.0,
        "shed": 8.0,
        "quota": 0.0,
        "no_backend": 0.0,
    }
    assert first["of"]["SHEDDABLE"] == {"asked": 8.0, "ok": 0.0, "failed": 0.0, "refused": 8.0}
    assert first["of"]["CRITICAL"] == {"asked": 12.0, "ok": 10.0, "failed": 0.0, "refused": 0.0}
    assert list(first["of"]) == ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]
    assert first["active"] == 1
    assert [row["asked"] for row in first["clients"]] == [12.0, 8.0]
    assert second["rates"]["asked"] == 12.0
    assert second["retry_ratio"] == 0.0
    assert second["active"] == 2
    assert [row["asked"] for row in second["clients"]] == [12.0, 0.0]
    assert watched.frame()["rates"]["asked"] == 0.0


def test_failures_are_rates_by_kind() -> None:
    watched = Watched()
    watched.saw("c1", failed={"CRITICAL": 3}, failed_by={"timeout": {"CRITICAL": 3}})
    watched.saw("c2", failed={"CRITICAL": 1}, failed_by={"timeout": {"CRITICAL": 1}})

    frame = watched.frame()
    assert frame["rates"]["failed"] == 8.0
    assert frame["failed_by"] == {"timeout": 8.0}
    assert watched.frame()["failed_by"] == {}


def test_customers() -> None:
    watched = Watched()
    watched.saw("c1", customers={"shop": {"asked": 3, "ok": 2, "failed": 0, "refused": 1}})
    watched.saw("c2", customers={"shop": {"asked": 1, "ok": 1}, "ads": {"asked": 2, "failed": 2}})

    assert watched.frame()["customers"] == {
        "ads": {"asked": 4.0, "ok": 0.0, "failed": 4.0, "refused": 0.0},
        "shop": {"asked": 8.0, "ok": 6.0, "failed": 0.0, "refused": 2.0},
    }


def test_latencies_of_all_clients_in_the_last_eight_frames() -> None:
    watched = Watched()
    watched.saw("c1", latency={"10": 100})
    watched.frame()
    watched.saw("c1", latency={"10": 100, "30": 2})
    watched.saw("c2", latency={"40": 2})

    # The hundred are of the first frame, and count as long as that is one of the last eight.
    for _ in range(7):
        assert watched.frame()["latency_ms"]["p50"] == pytest.approx(1.1 ** (9 + 52 / 100), abs=0.1)
    # 4 requests: two up to 1.1^30 = 17.4 ms, two up to 1.1^40 = 45.3 ms.
    found = watched.frame()["latency_ms"]
    assert found["p50"] == round(1.1**30, 1)
    assert found["p95"] == round(1.1 ** (39 + 1.8 / 2), 1)
    assert found["p99"] == round(1.1 ** (39 + 1.96 / 2), 1)
    assert watched.frame()["latency_ms"] is None


def test_what_is_offered_includes_a_customer_that_runs_wild() -> None:
    frame = Watched().frame(settings={**SETTINGS, "is_wild": True})

    assert frame["offered"] == (0.5 + 2.0) * 40.0


def test_a_client_that_starts_again_loses_nothing_and_goes_on() -> None:
    watched = Watched()
    watched.saw("c1", ok={"CRITICAL": 50})
    watched.frame()
    watched.saw("c1", ok={"CRITICAL": 53})
    watched.saw("c1", pid=301, ok={"CRITICAL": 1})
    watched.saw("c1", pid=301, ok={"CRITICAL": 2})

    assert watched.frame()["rates"]["ok"] == (3 + 2) * 2
    assert watched.frames.totals(watched.now).ok == 55


def test_backends_say_how_they_are() -> None:
    watched = Watched()
    said: dict[str, Any] = {"utilization": 0.75, "active": 2, "waiting": 1, "ok": 10, "failed": 1}
    watched.saw("b1", **said, cut=1.25, rejected={"OVERLOADED": {"SHEDDABLE": 2, "CRITICAL": 1}})

    row = by_name(watched.frame()["backends"])["b1"]

    assert row == {
        "name": "b1",
        "address": "127.0.0.1:101",
        "pid": 101,
        "state": "healthy",
        "speed": 1.5,
        "capacity": 30.0,
        "utilization": 0.75,
        "active": 2,
        "waiting": 1,
        "cut": 1.25,
        "ok": 20.0,
        "failed": 2.0,
        "rejected": 6.0,
        "faults": [],
        "metrics": "http://127.0.0.1:9101/metrics",
        "weight": 0.0,
        "clients": 0,
    }


def test_states_of_a_backend() -> None:
    watched = Watched()

    def state(**changed: Any) -> str:
        frame = watched.frame(standings=standings(b1=changed))
        return str(by_name(frame["backends"])["b1"]["state"])

    assert state(is_running=False) == "down"
    assert state() == "starting"
    watched.saw("b1", state="lame duck")
    assert state() == "starting"  # It has never been healthy, and so is not leaving.
    watched.saw("b1", state="healthy")
    assert state() == "healthy"
    assert state(is_stopped=True) == "stopped"
    watched.saw("b1", state="lame duck")
    assert state() == "lame duck"
    assert state(is_running=False) == "down"
    assert state(pid=111) == "starting"  # What was said was said by another process.
    watched.saw("b1", pid=111, state="lame duck")
    assert state(pid=111) == "starting"


def test_a_backend_that_is_silent_is_stopped_and_counts_on_later() -> None:
    watched = Watched()
    watched.saw("b1", utilization=0.9, active=3, cut=2.5, ok=10)
    watched.frame()

    # Silent for 1.5 s is late, for 2 s is stopped.
    late = watched.frame(seconds=1.0)["backends"][0]
    silent = watched.frame()["backends"][0]
    watched.saw("b1", utilization=0.9, ok=14)
    after = watched.frame()["backends"][0]

    assert (late["state"], late["utilization"], late["faults"]) == ("healthy", 0.9, [])
    assert silent["state"] == "stopped"
    assert silent["faults"] == ["stopped"]
    assert (silent["utilization"], silent["active"], silent["ok"]) == (0.0, 0, 0.0)
    assert (late["cut"], silent["cut"]) == (2.5, 0.0)
    assert (after["state"], after["faults"], after["ok"]) == ("healthy", [], 8.0)


def test_utilization_is_weighted_by_capacity() -> None:
    watched = Watched()
    watched.saw("b1", utilization=0.4)
    watched.saw("b2", utilization=0.8)

    frame = watched.frame()

    # (0.4 · 30 + 0.8 · 10) / 40 = 0.5, and 1 − 0.5 / 0.8 idles.
    assert frame["utilization"] == {"mean": 0.5, "most": 0.8, "least": 0.4}
    assert frame["wasted"] == 0.375
    assert frame["capacity_now"] == 40.0


def test_nothing_is_wasted_where_all_are_more_than_full() -> None:
    watched = Watched()
    watched.saw("b1", utilization=1.5)
    watched.saw("b2", utilization=1.1)

    frame = watched.frame()

    assert frame["wasted"] == 0.0
    assert frame["utilization"] == {"mean": 1.4, "most": 1.5, "least": 1.1}


def test_work_in_line_does_not_make_up_for_who_idles() -> None:
    watched = Watched()
    watched.saw("b1", utilization=1.5)
    watched.saw("b2", utilization=0.5)

    # (1 · 30 + 0.5 · 10) / 40 of the machines is used.
    assert watched.frame()["wasted"] == 1 - 0.875


def test_who_is_not_healthy_does_not_count_for_the_utilization() -> None:
    watched = Watched()
    watched.saw("b1", utilization=0.4)
    watched.saw("b2", utilization=0.8)
    watched.saw("b2", state="lame duck", utilization=0.1)

    frame = watched.frame()

    assert frame["utilization"] == {"mean": 0.4, "most": 0.4, "least": 0.4}
    assert frame["capacity_now"] == 30.0


def test_faults_take_capacity_away() -> None:
    watched = Watched()
    watched.saw("b1", utilization=0.4)
    watched.saw("b2", utilization=0.4)

    slow = watched.frame(standings=standings(b1={"faults": ("slow",)}))
    fails = watched.frame(standings=standings(b1={"faults": ("slow", "fail")}))

    assert slow["capacity_now"] == 30 / 4 + 10
    assert slow["backends"][0]["faults"] == ["slow"]
    assert fails["capacity_now"] == 10.0
    assert fails["backends"][0]["faults"] == ["slow", "fail"]


def test_weights_are_shares_over_all_clients() -> None:
    watched = Watched()

    def subset(**weights: float) -> list[dict[str, object]]:
        return [
            {"address": f"127.0.0.1:{PIDS[name]}", "state": "healthy", "weight": weight}
            for name, weight in weights.items()
        ]

    watched.saw(
        "c1", subset=subset(b2=1.0, b1=3.0), throttle_probability={"SHEDDABLE": 0.25}, line=0.25
    )
    watched.saw("c2", subset=[*subset(b1=2.0), {"address": "10.0.0.1:1", "weight": 9.0}])

    frame = watched.frame()

    # (3/4 + 2/2) / 2 for b1, (1/4 + 0) / 2 for b2
    backends, clients = by_name(frame["backends"]), by_name(frame["clients"])
    assert (backends["b1"]["weight"], backends["b1"]["clients"]) == (0.875, 2)
    assert (backends["b2"]["weight"], backends["b2"]["clients"]) == (0.125, 1)
    assert clients["c1"]["subset"] == ["b1", "b2"]
    assert clients["c1"]["states"] == {"b1": "healthy", "b2": "healthy"}
    assert (clients["c1"]["line"], clients["c2"]["line"]) == (0.25, 0.0)
    assert clients["c1"]["throttle_probability"]["SHEDDABLE"] == 0.25
    assert clients["c1"]["throttle_probability"]["CRITICAL"] == 0.0
    assert clients["c2"]["subset"] == ["b1"]


def test_a_client_that_has_ended_knows_nobody() -> None:
    watched = Watched()
    entry = {"address": "127.0.0.1:101", "state": "healthy", "weight": 1.0}
    watched.saw("c1", subset=[entry], active=5, ok={"CRITICAL": 3})

    frame = watched.frame(standings=standings(c1={"is_running": False}))

    assert frame["active"] == 0
    assert frame["rates"]["ok"] == 6.0
    assert frame["backends"][0]["clients"] == 0
    assert frame["clients"][0] == {
        "name": "c1",
        "pid": None,
        "asked": 0.0,
        "ok": 6.0,
        "subset": [],
        "states": {},
        "line": 0.0,
        "throttle_probability": {},
        "metrics": "http://127.0.0.1:9201/metrics",
    }


def test_cores_are_those_of_all_processes() -> None:
    watched = Watched()
    watched.saw("b1", cpu_seconds=0.2)
    watched.saw("c1", cpu_seconds=0.1)
    first = watched.frame(cpu_seconds=1.1)
    watched.saw("b1", pid=301, cpu_seconds=0.05)
    second = watched.frame(cpu_seconds=1.1)

    assert first["demo_cores"] == pytest.approx((0.2 + 0.1 + 0.1) / 0.5)
    assert second["demo_cores"] == pytest.approx(0.05 / 0.5)


def test_story_and_events_are_passed_on() -> None:
    story = {"name": "deploy", "step": 1, "steps": 4, "text": "look", "panels": ["backends"]}
    event = {"t": 0.1, "text": "b1: SIGKILL", "kind": "user"}

    frame = Watched().frame(story=story, events=[event])

    assert (frame["story"], frame["events"]) == (story, [event])


def test_lines_of_strangers_are_ignored() -> None:
    watched = Watched()
    watched.frames.saw("c9", 1, {"is": "client", "ok": {"CRITICAL": 5}}, watched.now)
    watched.frames.saw("c1", 1, {"is": "backend", "ok": {"CRITICAL": 5}}, watched.now)
    watched.frames.saw("c1", 1, {"ok": {"CRITICAL": 5}}, watched.now)

    assert watched.frame()["rates"]["ok"] == 0.0


@pytest.mark.parametrize(
    "line",
    [
        pytest.param({"subset": "b1"}, id="a subset that is no list"),
        pytest.param({"subset": [None, {}, {"address": ["b1"]}]}, id="a subset of anything"),
        pytest.param({"active": "many", "ok": "all"}, id="words for numbers"),
        pytest.param({"active": float("inf"), "ok": {"CRITICAL": float("nan")}}, id="no numbers"),
        pytest.param({"throttle_probability": {"SHEDDABLE": []}}, id="odd probabilities"),
        pytest.param({"line": float("nan"), "cut": "high"}, id="odd lines"),
        pytest.param({"latency": {"x": 1, "1" * 400: 1}}, id="odd buckets"),
        pytest.param({"utilization": float("nan"), "state": 7}, id="odd utilization"),
    ],
)
def test_odd_lines_give_frames_nevertheless(line: dict[str, Any]) -> None:
    watched = Watched()
    watched.saw("c1", **line)
    watched.saw("b1", **line)

    watched.frame()


SAYINGS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["c1", "c2"]),
            st.sampled_from(["ok", "failed"]),
            st.integers(0, 50),
        ),
        st.tuples(st.sampled_from(["c1", "c2"]), st.just("restart"), st.just(0)),
        st.tuples(st.just(""), st.just("frame"), st.integers(1, 2000)),
    ),
    max_size=60,
)


@given(SAYINGS)
def test_rates_times_seconds_are_the_totals_whatever_restarts(
    sayings: list[tuple[str, str, int]],
) -> None:
    watched = Watched()
    counts: dict[str, dict[str, int]] = {name: {"ok": 0, "failed": 0} for name in ("c1", "c2")}
    pids = {"c1": 1, "c2": 2}
    happened = {"ok": 0, "failed": 0}
    frames = []
    for name, what, number in sayings:
        if what == "frame":
            frames.append(watched.frame(seconds=number / 1000))
        elif what == "restart":
            pids[name] += 10
            counts[name] = {"ok": 0, "failed": 0}
        else:
            counts[name][what] += number
            happened[what] += number
            line = {ending: {"CRITICAL": n} for ending, n in counts[name].items()}
            watched.saw(name, pid=pids[name], **line)
    frames.append(watched.frame())

    for what, number in happened.items():
        assert watched.frames.totals(watched.now).count(what) == number
        rates = [frame["rates"][what] for frame in frames]
        lengths = [frame["seconds"] for frame in frames]
        assert min(rates) >= 0.0
        # A rate is rounded to 0.0001, and a length, which is at most 2 s, to a microsecond.
        slack = len(frames) * (0.00005 * 2.0 + max(rates) * 0.0000005) + 1e-9
        assert sum(map(operator.mul, rates, lengths)) == pytest.approx(number, abs=slack)
        of_one = [frame["of"]["CRITICAL"][what] for frame in frames]
        assert of_one == rates
