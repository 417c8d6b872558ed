from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
from evenly.errors import ConfigError
from evenly.lab.sim.from_table import allowed, kind_of, kinds_of, schema, toml_key
from evenly.lab.sim.load import load_scenario, parse_scenario, to_table, to_toml
from evenly.lab.sim.scenario import SIMULATED_POLICIES, Scenario


def keys(hint: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Yield every dotted key of the schema with its type hint, `0` for the entries of an array."""
    yield at, hint
    for cls in (hint, *kinds_of(hint).values()):
        for name, (inner, _) in schema(cls).items():
            yield from keys(inner, f"{at}.{name}" if at else name)
    # The entries of an array, the values of a mapping, and X of `X | None`.
    origin = get_origin(hint)
    if origin is tuple:
        yield from keys(get_args(hint)[0], f"{at}.0")
    elif origin is Mapping:
        key_hint, inner = get_args(hint)
        yield from keys(inner, f"{at}.{'a' if key_hint is str else 'CRITICAL'}")
    elif NoneType in get_args(hint):
        yield from keys(get_args(hint)[0], at)


KEYS = [(key, hint) for key, hint in keys(Scenario) if key]
NAMES = sorted({part for key, _ in KEYS for part in key.split(".")} | set(Criticality.__members__))

junk_scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 10**400]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([*SIMULATED_POLICIES, "off", "crash", "service"]),
    st.dates(),
    st.times(),
    st.datetimes(),
)
names = st.one_of(st.sampled_from(NAMES), st.text(max_size=5))
junk = st.recursive(
    junk_scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)


@cache
def plausible(hint: object) -> st.SearchStrategy[object]:
    """Draw values of a type hint's kind, in the range or not."""
    if NoneType in get_args(hint):
        hint = get_args(hint)[0]
    origin, args = get_origin(hint), get_args(hint)
    if schema(hint) or kinds_of(hint):
        return st.one_of([_tables(cls) for cls in kinds_of(hint).values() or (hint,)])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        many = st.lists(mixed(args[0]), max_size=3)
        return many if Ellipsis in args else st.tuples(*map(mixed, args)).map(list)
    if origin is Mapping:
        some = st.text(max_size=3) if args[0] is str else st.sampled_from(list(args[0].__members__))
        return st.dictionaries(some, mixed(args[1]), max_size=3)
    scalars: Mapping[object, st.SearchStrategy[object]] = {
        bool: st.booleans(),
        int: st.integers(0, 30),
        float: st.one_of(st.floats(0.0, 1.0), st.floats(0.0, 50.0), st.integers(0, 5)),
        str: st.one_of(st.sampled_from([*SIMULATED_POLICIES, "off"]), st.text(max_size=3)),
    }
    return scalars[hint]


def _tables(cls: object) -> st.SearchStrategy[object]:
    kind = kind_of(cls) if isinstance(cls, type) else None
    needed: dict[str, st.SearchStrategy[object]] = {}
    if kind is not None:
        needed["kind"] = st.just(kind)
    inside: tuple[dict[str, st.SearchStrategy[object]], ...] = ({}, needed)
    for name, (inner, field) in schema(cls).items():
        is_required = field.default is MISSING and field.default_factory is MISSING
        inside[is_required][name] = mixed(inner)
    return st.fixed_dictionaries(inside[True], optional=inside[False])


def mixed(hint: object) -> st.SearchStrategy[object]:
    """Draw what is plausible nearly always: one wrong value hides all after it."""
    return st.integers(0, 30).flatmap(lambda draw: plausible(hint) if draw else junk)


# With an entry in every array: a random fault or datacenter is nearly always a wrong one.
RICH: Mapping[str, object] = {
    "title": "rich",
    "ideal": False,
    "phases": [{"seconds": 30}, {"seconds": 40, "load": 2}],
    "workload": {"customers": [{"name": "a"}, {"name": "b.c", "share": 2}]},
    "backends": {"antagonists": {}, "restarts": {}},
    "below": [{"name": "leaf"}],
    "faults": [{"kind": "slow", "at_seconds": 3, "ratio": 0.5}],
    "datacenters": [{"name": "east", "clients_ratio": 1, "backends_ratio": 1}],
    "backend_task": {"quota": {"limits": {"a": 30}, "default_limit": 2}},
}


def put(place: object, parts: list[str], value: object) -> None:
    """Set what is at the end of a key, if there is a way."""
    part, *rest = parts
    if isinstance(place, list) and place:
        put(place[0], rest, value) if rest else place.__setitem__(0, value)
    elif isinstance(place, dict):
        put(place.setdefault(part, {}), rest, value) if rest else place.update({part: value})


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw a scenario, key by key: what would make it a wrong one is left out."""
    base = draw(st.sampled_from([{"title": "bare"}, RICH]))
    scenario = parse_scenario(base, source="base")
    for key, hint in draw(st.lists(st.sampled_from(KEYS), max_size=12)):
        table = to_table(scenario)
        put(table, key.split("."), draw(plausible(hint)))
        with contextlib.suppress(ConfigError):
            scenario = parse_scenario(table, source="drawn")
    return scenario


def test_every_key_can_be_explained() -> None:
    assert all(allowed(hint) for _, hint in KEYS)


@given(table=st.one_of(st.dictionaries(names, junk), plausible(Scenario)))
def test_any_table_is_a_scenario_or_refused(table: Mapping[str, object]) -> None:
    try:
        scenario = parse_scenario(table, source="drawn")
    except ConfigError as error:
        assert str(error).startswith("drawn: ")  # noqa: PT017 -- being refused is not a must
    else:
        assert isinstance(scenario, Scenario)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenarios") / "x.toml"
    path.write_text('title = "x"\nbelow = [{name = "leaf"}]\n')
    return path


values = st.one_of(
    st.sampled_from(["1", "0.5", "[]", "{}", "off", "nan", "[[1]]", "{a = 1}", "1979-05-27"]),
    st.text(min_size=1, max_size=8),
)
paths = st.sampled_from([key for key, _ in KEYS])
changes = st.one_of(
    st.builds("{}={}".format, paths, values),
    st.builds("{}={}".format, paths, values),
    st.builds("{}.{}={}".format, paths, names.map(toml_key), values),
    st.text(max_size=12),
)


@given(some=st.lists(changes, min_size=1, max_size=2))
def test_any_change_makes_a_scenario_or_is_refused(some: list[str], path: Path) -> None:
    try:
        scenario = load_scenario(path, some)
    except ConfigError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 -- being refused is not a must
    else:
        assert isinstance(scenario, Scenario)


@given(scenario=scenarios())
def test_a_scenario_survives_being_written(scenario: Scenario) -> None:
    assert parse_scenario(to_table(scenario), source="table") == scenario
    assert parse_scenario(tomllib.loads(to_toml(scenario)), source="text") == scenario


@given(key=st.text())
def test_any_text_can_be_a_key(key: str) -> None:
    assert tomllib.loads(f"{toml_key(key)} = 1") == {key: 1}
