from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from evenly.lab.top import watch as watch_module
from evenly.lab.top.rates import Sight
from evenly.lab.top.read import Page, read_page
from evenly.lab.top.targets import parse_target
from evenly.lab.top.watch import LOOKS_UNLISTED, Watch, timeout_of
from tests.lab.top.fleet import answering, saying
from tests.lab.top.pages import text

ADMITTED = "evenly_backend_admitted_total"


class Pages:
    """Answer with whatever is set for a path; with 503 where nothing is."""

    def __init__(self, **bodies: bytes) -> None:
        self.bodies = {f"/{name}": body for name, body in bodies.items()}

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        body = self.bodies.get(handler.path)
        saying(body or b"", status=503 if body is None else 200)(handler)


def rate(sight: Sight) -> float | None:
    return sight.rate("search", ADMITTED)


def watching(*urls: str) -> Watch:
    # Long enough for a machine that is busy with other things.
    return Watch([parse_target(url) for url in urls], interval_seconds=60.0)


async def test_the_second_look_has_rates() -> None:
    pages = Pages(metrics=text(backend_admitted_total=10))
    with answering(pages) as where:
        watch = watching(where)
        (first,) = await watch.look()
        pages.bodies["/metrics"] = text(backend_admitted_total=20)
        (second,) = await watch.look()

    assert watch.has_read
    assert (rate(first), first.seconds) == (None, None)
    assert second.seconds is not None
    assert rate(second) == (20 - 10) / second.seconds


async def test_one_look_that_fails_does_not_cost_the_next_its_rate() -> None:
    pages = Pages(metrics=text(backend_admitted_total=10))
    with answering(pages) as where:
        watch = watching(where)
        await watch.look()
        page = pages.bodies.pop("/metrics")
        (missed,) = await watch.look()
        pages.bodies["/metrics"] = page
        (again,) = await watch.look()

    assert missed.problem == "answered with status 503"
    assert missed.is_about("search", "evenly_backend_")
    assert rate(missed) is None
    assert rate(again) == 0.0


async def test_a_page_of_long_ago_is_not_compared_with() -> None:
    with answering(Pages(metrics=text(backend_admitted_total=10))) as where:
        watch = Watch([parse_target(where)], interval_seconds=60.0)
        watch._age_max_seconds = 1e-9  # All that is long ago, without waiting for it.
        await watch.look()
        (second,) = await watch.look()

    assert second.page is not None
    assert (second.seconds, rate(second)) == (None, None)


async def test_a_list_is_read_anew_each_time() -> None:
    pages = Pages(a=text(backend_admitted_total=1), b=text(backend_admitted_total=2))
    with answering(pages) as where:

        def listed(*names: str) -> bytes:
            return json.dumps(
                [{"targets": [where], "labels": {"__metrics_path__": f"/{name}"}} for name in names]
            ).encode()

        async def shown() -> list[tuple[str, str | None]]:
            return [
                (sight.instance.rpartition("/")[2], sight.problem) for sight in await watch.look()
            ]

        watch = watching(f"http://{where}/targets")
        assert await shown() == [("targets", "answered with status 503")]
        pages.bodies["/targets"] = listed("a")
        assert await shown() == [("a", None)]
        pages.bodies["/targets"] = listed("a", "b")
        assert await shown() == [("a", None), ("b", None)]
        del pages.bodies["/targets"]  # What it said last still holds.
        assert await shown() == [
            ("targets", "answered with status 503"),
            ("a", None),
            ("b", None),
        ]
        pages.bodies["/targets"] = b"[1]"
        assert [name for name, _ in await shown()] == ["targets", "a", "b"]
        pages.bodies["/targets"] = listed("b")
        for _ in range(LOOKS_UNLISTED):
            assert await shown() == [("b", None), ("a", "no longer listed")]
        assert await shown() == [("b", None)]
        assert list(watch._past) == [f"http://{where}/b"]  # Nothing is kept of who is gone.
        pages.bodies["/targets"] = b"[]"
        assert await shown() == [("targets", "the list has no targets"), ("b", "no longer listed")]
        pages.bodies["/targets"] = listed("b")
        assert await shown() == [("b", None)]


async def test_who_comes_back_under_another_address_is_not_shown_twice() -> None:
    pages = Pages(a=text(backend_admitted_total=1), b=text(backend_admitted_total=2))
    with answering(pages) as where:
        watch = watching(f"http://{where}/targets")
        sights: list[Sight] = []
        for name in "ab":
            labels = {"__metrics_path__": f"/{name}", "instance": "b1"}
            pages.bodies["/targets"] = json.dumps([{"targets": [where], "labels": labels}]).encode()
            sights = await watch.look()

    assert [sight.url.rpartition("/")[2] for sight in sights] == ["b"]


async def test_targets_that_are_not_asked_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "TARGETS_MAX", 3)
    pages = Pages(metrics=text(backend_admitted_total=1))
    with answering(pages) as where:

        def listed(*names: str) -> bytes:
            return json.dumps(
                [{"targets": [where], "labels": {"__metrics_path__": f"/{name}"}} for name in names]
            ).encode()

        pages.bodies["/one"] = listed("a", "b")
        pages.bodies["/two"] = listed("b", "c", "d", "e")
        sights = await watching(f"http://{where}/one", f"http://{where}/two").look()

    problems = {sight.url.rpartition("/")[2]: sight.problem for sight in sights}
    assert [*problems] == ["two", "a", "b", "c"]
    assert problems["two"] == "2 of its targets are not asked: at most 3 are, of all lists"


@pytest.mark.parametrize("body", [b"evenly", b"[]"], ids=["page", "list"])
async def test_whatever_happens_to_one_end_point_the_others_are_shown(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:

    def read(found: bytes) -> Page:
        if found == body:
            raise ArithmeticError("a bug")
        return read_page(found)

    monkeypatch.setattr(watch_module, "read_page", read)
    monkeypatch.setattr(watch_module, "read_document", read)
    pages = Pages(bad=body, good=text(backend_admitted_total=1))
    with answering(pages) as where:
        bad, good = await watching(f"http://{where}/bad", f"http://{where}/good").look()

    assert bad.problem == "the answer could not be read: ArithmeticError"
    assert good.problem is None


async def test_a_long_page_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def read(body: bytes) -> Page:
        assert is_over.wait(20)
        return read_page(body)

    monkeypatch.setattr(watch_module, "read_page", read)
    with answering(Pages(metrics=text(backend_admitted_total=1))) as where:
        looking = asyncio.ensure_future(watching(where).look())
        asyncio.get_running_loop().call_later(0.05, is_over.set)  # Never, were the loop held up.
        (sight,) = await looking

    assert sight.problem is None


async def test_pages_of_others_in_a_list_are_passed_over() -> None:
    pages = Pages(a=text(backend_admitted_total=1), b=b"python_info 1\n", c=b"<html>")
    with answering(pages) as where:
        pages.bodies["/targets"] = json.dumps(
            [{"targets": [where], "labels": {"__metrics_path__": f"/{name}"}} for name in "abc"]
        ).encode()
        listed = await watching(f"http://{where}/targets").look()
        (named,) = await watching(f"http://{where}/b").look()

    assert [sight.url.rpartition("/")[2] for sight in listed] == ["a", "c"]
    assert named.problem == "the page has no metrics of evenly"


async def test_an_end_point_that_is_named_twice_is_asked_once() -> None:
    with answering(Pages(metrics=text(backend_admitted_total=1))) as where:
        assert len(await watching(where, f"http://{where}/").look()) == 1


async def test_garbage_is_no_page() -> None:
    with answering(Pages(metrics=b"<html>")) as where:
        watch = watching(where)
        (sight,) = await watch.look()

    assert sight.problem == "the answer is not in Prometheus's text format"
    assert not watch.has_read


def test_a_list_and_its_targets_fit_in_an_interval() -> None:
    assert timeout_of(0.5) == 0.25
    assert timeout_of(2.0) == 1.0
    assert timeout_of(60.0) == 1.0
