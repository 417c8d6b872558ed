"""Read scenarios from TOML files, with changes from the command line, and write them as TOML.

A table in a file, or made by a change, replaces its key's default as a whole where the keys are
free to choose: `workload.criticalities` with one criticality has only that one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path

from evenly.errors import ConfigError
from evenly.lab.sim.from_table import (
    dotted,
    from_table,
    key_name,
    kind_of,
    schema,
    shown,
    toml_key,
    toml_string,
)
from evenly.lab.sim.scenario import Scenario

__all__ = ["load_scenario", "parse_scenario", "to_table", "to_toml"]


def load_scenario(path: Path, changes: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a TOML file, after changes such as `backends.count=50`.

    A change's key is a dotted path, with indices into arrays (`below.0.count=3`); its value is
    TOML, or a string without its quotes.  Raises `ConfigError`, which names the file.
    """
    source = str(path)
    try:
        table: object = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: is not valid TOML: {error}") from None
    return _parse(table, changes, source)


def parse_scenario(table: Mapping[str, object], *, source: str) -> Scenario:
    """Return the scenario that a table describes; a `ConfigError` begins with the source."""
    return _parse(table, (), source)


def to_table(scenario: Scenario) -> dict[str, object]:
    """Return the table that describes a scenario, without what is as by default."""
    return _table_of(scenario)


def to_toml(scenario: Scenario) -> str:
    """Return a file's text that loads as an equal scenario."""
    lines: list[str] = []
    sections: list[str] = []
    for key, value in to_table(scenario).items():
        name = toml_key(key)
        if isinstance(value, dict):
            sections += ["", f"[{name}]", *_lines(value)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                sections += ["", f"[[{name}]]", *_lines(entry)]
        else:
            lines += _lines({key: value})
    return "\n".join([*lines, *sections, ""])


def _parse(table: object, changes: Sequence[str], source: str) -> Scenario:
    try:
        for change in changes:
            parts, value = _parse_change(change)
            table = _changed(table, parts, value, "")
        return from_table(Scenario, table)
    except (ConfigError, RecursionError) as error:
        raise ConfigError(f"{source}: {error}") from None


def _parse_change(change: str) -> tuple[Sequence[str], object]:
    key, _, text = change.partition("=")
    parts = []
    try:
        # TOML's own reader splits the key, because a quoted part may hold dots.
        rest: object = tomllib.loads(f"{key.strip()} = 0")
        while isinstance(rest, dict):
            [(part, rest)] = rest.items()
            parts.append(part)
        if "\n" in key or not text:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"a change must be key=value with a dotted key, not {shown(change)}"
        ) from None
    return parts, _parse_value(text.strip(), key.strip())


def _parse_value(text: str, key: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        table = {}
    if table.keys() == {"value"}:
        return table["value"]
    # What begins like an array, a table or a string was meant as one.
    if not text or text[0] in "[{\"'":
        raise ConfigError(f"{key} must be a TOML value or a bare word, not {shown(text)}")
    return text


def _changed(place: object, parts: Sequence[str], value: object, at: str) -> object:
    """Return a place with the value at `parts` in it; tables on the way are made where missing."""
    if not parts:
        return value
    part, *rest = parts
    inside = dotted(at, part)
    if isinstance(place, dict):
        return {**place, part: _changed(place.get(part, {}), rest, value, inside)}
    if isinstance(place, list):
        # Compared as text: a part may be no number at all.
        indices = [str(index) for index in range(len(place))]
        if part not in indices:
            entries = "1 entry" if len(place) == 1 else f"{len(place)} entries"
            raise ConfigError(f"{inside} must be an index from 0 into {at}, which has {entries}")
        index = indices.index(part)
        entry = _changed(place[index], rest, value, inside)
        return [*place[:index], entry, *place[index + 1 :]]
    raise ConfigError(f"{inside}: {at} must be a table or an array, not {shown(place)}")


def _table_of(config: object) -> dict[str, object]:
    kind = kind_of(type(config))
    table: dict[str, object] = {} if kind is None else {"kind": kind}
    for name, (_, field) in schema(type(config)).items():
        value = getattr(config, name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if value != default:
            table[name] = _plain(value)
    return table


def _plain(value: object) -> object:
    if schema(type(value)):
        return _table_of(value)
    if isinstance(value, Mapping):
        return {key_name(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{toml_key(key)} = {_toml(value)}" for key, value in table.items()]


def _toml(value: object) -> str:
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_lines(value))}}}"
    return repr(value)
