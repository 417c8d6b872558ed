from __future__ import annotations

import io

import pytest
from rich.console import Console

from evenly.lab.top.cells import Cells, escaped
from evenly.lab.top.facts import Facts, make_facts
from evenly.lab.top.rates import Sight
from evenly.lab.top.table import Picture
from tests.lab.top.pages import page, sight
from tests.lab.top.test_facts import backend, client

CELLS = Cells(is_ascii=False, is_wide=True)


def drawn(
    facts: Facts,
    width: int = 120,
    rows: int | None = None,
    encoding: str = "utf-8",
    height: int | None = None,
) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    picture = Picture(facts, rows=rows, height=height)
    Console(file=file, width=width, highlight=False).print(picture)
    file.seek(0)
    return file.read()


def fleet() -> list[Sight]:
    return [
        *(backend(f"10.20.30.4{n}:59102", utilization=n / 4, ok=12345 * n) for n in range(5)),
        backend("10.20.30.49:59102", utilization=0.1, lame=1.0),
        *(client(f"10.20.31.4{n}:59102", first=900, again=8, refused=70) for n in range(3)),
        sight(None, problem="connection refused", instance="10.20.30.50:59102"),
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_nothing_is_cut_off_or_wrapped(width: int, encoding: str) -> None:
    text = drawn(make_facts(fleet(), at=0.0), width, encoding=encoding)

    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for instance in (each.instance for each in fleet()):
        assert instance in text
    assert "lame duck" in text
    assert "100%" in text
    assert "24,690" in text  # b4: 4 * 12,345 requests in 2 s.


def test_a_long_name_gives_way_to_the_figures() -> None:
    name = "a-service-with-a-long-name-7d9f5b6c4-x2x7z.namespace.svc:9102"
    text = drawn(make_facts([backend(name, utilization=0.5, ok=40)], at=0.0), 80)

    (line,) = [line for line in text.splitlines() if line.startswith("a-service")]
    assert line.split()[0].endswith("…")
    assert line.split()[1] == "healthy"
    assert line.split()[-2:] == ["S+", "40%"]


def test_where_there_is_no_room_trouble_is_shown_first() -> None:
    text = drawn(make_facts(fleet(), at=0.0), rows=2)

    assert "10.20.30.49:59102  lame duck" in text
    assert "10.20.30.44:59102  healthy" in text  # The busiest.
    assert "10.20.30.40:59102" not in text
    assert "… 4 more backends, in less trouble" in text
    assert "… 1 more client, in less trouble" in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("count", [1, 2])
def test_customers_are_left_out_where_they_do_not_fit(width: int, count: int) -> None:
    facts = make_facts(fleet(), at=0.0)
    facts = Facts(at=0.0, services=facts.services * count, end_points=facts.end_points)
    whole = drawn(facts, width, rows=2).splitlines()

    fits = drawn(facts, width, rows=2, height=len(whole)).splitlines()
    less = drawn(facts, width, rows=2, height=len(whole) - 1).splitlines()

    def customers(lines: list[str]) -> int:
        return sum(line.startswith("customer") for line in lines)

    assert fits == whole
    assert (customers(fits), customers(less)) == (count, count - 1)
    assert len(less) < len(whole)
    assert sum("more client" in line for line in less) == count


@pytest.mark.parametrize(("width", "text"), [(80, "unlisted"), (120, "no longer listed")])
def test_who_is_listed_no_more(width: int, text: str) -> None:
    before = page(backend_utilization=0.5, client_active_requests=1)
    gone = Sight(url="u", instance="b1", problem="no longer listed", before=before, is_listed=False)

    lines = drawn(make_facts([gone], at=0.0), width).splitlines()

    rows = [line for line in lines if line.startswith("b1 ")]
    assert [text in row for row in rows] == [True, True]


def test_customers_that_clients_throttle() -> None:
    lines = drawn(make_facts([client("c1", first=9, again=0)], at=0.0)).splitlines()

    heads, row = next((lines[at - 1], line) for at, line in enumerate(lines) if line[:2] == "c1")
    assert heads.split()[-2] == "customers"
    assert row.split()[-2:] == ["2", "5/2/1"]


def test_what_is_not_known_is_no_zero() -> None:
    text = drawn(make_facts([sight(page(backend_utilization=0.5), instance="b1")], at=0.0))

    (line,) = [line for line in text.splitlines() if line.startswith("b1")]
    assert line.split() == ["b1", "unknown", "████████", "50%", *["–"] * 7]


def test_nothing_at_all() -> None:
    assert drawn(make_facts([], at=0.0)) == "Nothing has been read yet.\n"


def test_problems_are_listed_up_to_ten() -> None:
    down = [sight(None, instance=f"d{n}", problem="connection refused") for n in range(12)]

    text = drawn(make_facts(down, at=0.0))

    assert text.count("connection refused") == 10
    assert "… 2 more of these" in text


def test_on_a_screen_problems_come_first_and_are_few() -> None:
    down = [sight(None, instance=f"d{n}", problem="connection refused") for n in range(5)]

    lines = drawn(make_facts([*down, backend("b1", utilization=0.5)], at=0.0), rows=5).splitlines()

    assert lines[:5] == [
        "d0: connection refused",
        "d1: connection refused",
        "d2: connection refused",
        "… 2 more of these",
        "service search",
    ]


def test_odd_values_are_told() -> None:
    odd = sight(page(observer_odd_total=3), page(observer_odd_total=1), instance="b1")

    assert "b1: 2 values could not be counted" in drawn(make_facts([odd], at=0.0))


def test_markup_means_nothing() -> None:
    named = [backend("[bold red]b1[/nothing]", utilization=0.5)]

    assert "[bold red]b1[/nothing]" in drawn(make_facts(named, at=0.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b1:80", "b1:80"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b\x7f\r\n\t\0", "\\x9b\\x7f\\r\\n\\t\\x00"),
        ("\u202ea\u2028\u200b", "\\u202ea\\u2028\\u200b"),
        ("\ud800", "\\ud800"),
        ("zürich", "zürich"),
    ],
)
def test_what_controls_a_terminal_is_escaped(text: str, expected: str) -> None:
    assert escaped(text) == expected
    assert escaped(text, is_ascii=True).isascii()


def test_cells() -> None:
    assert [CELLS.rate(value) for value in (None, 0.0, 0.123, 1.23, 99.94, 99.96, 12345.6)] == [
        "–", "0", "0.12", "1.2", "99.9", "100", "12,346",
    ]  # fmt: skip
    assert [CELLS.cost(value) for value in (None, 0.0, 0.0123, 1.234)] == [
        "–", "0.00", "0.012", "1.23",
    ]  # fmt: skip
    assert [CELLS.duration(value) for value in (0.0012, 0.0123, 0.999, 1.0)] == [
        "1.2 ms", "12 ms", "999 ms", "1.00 s",
    ]  # fmt: skip
    assert CELLS.ratio(0.0123) == "1.2%"
    assert CELLS.name("x" * 100) == "x" * 80 + "…"


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        pytest.param(None, "–", id="unknown"),
        pytest.param(0.0, "nothing", id="calm"),
        pytest.param(0.004, "nothing", id="less than can be shown"),
        pytest.param(0.4, "S 40%", id="some of the lowest"),
        pytest.param(1.0, "S 100%", id="the end of a criticality is not the next one's beginning"),
        pytest.param(1.004, "S 100%", id="nor is what rounds to it"),
        pytest.param(1.4, "S+ 40%", id="all of the lowest, some of the next"),
        pytest.param(2.75, "C 75%", id="most of the third"),
        pytest.param(4.0, "C+ 100%", id="everything"),
        pytest.param(7.0, "C+ 100%", id="more than there is"),
        pytest.param(-1.0, "nothing", id="less than there is"),
    ],
)
def test_what_is_below_a_cut_line(cut: float | None, expected: str) -> None:
    assert CELLS.cut(cut) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, " " * 16 + "   0%"),
        (0.5, "█" * 8 + " " * 8 + "  50%"),
        (0.53, "█" * 8 + "▍" + " " * 7 + "  53%"),  # 0.53 * 16 = 8.48, and 3/8 = 0.375.
        (1.0, "█" * 16 + " 100%"),
        (2.5, "█" * 16 + " 250%"),
        (-1.0, " " * 16 + " -100%"),
    ],
)
def test_a_bar_is_full_at_one(value: float, expected: str) -> None:
    assert CELLS.bar(value).plain == expected
