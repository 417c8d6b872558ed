"""Build configuration objects from nested tables, by their type hints alone.

A table's keys are the fields of its class, unchanged, so that a field added to any configuration
can be set in a scenario at once.  Whatever is wrong is refused with its full dotted key, its value
and what is allowed: a misspelt key that nobody reads would simulate another story than the one
that was meant.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import EnumMeta
from functools import cache
from types import NoneType, UnionType
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from evenly.errors import ConfigError

__all__ = [
    "allowed",
    "dotted",
    "from_table",
    "key_name",
    "kind_of",
    "kinds_of",
    "schema",
    "shown",
    "toml_key",
    "toml_string",
]

_T = TypeVar("_T")

_WORDS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Mapping: "a table",
}
# TOML's own limit.  Beyond it numbers cannot even be shown: Python refuses 4,300 digits and more.
_INT_END = 2**63
_SHOWN_LENGTH = 80
# Which of several classes a table is of.
_KIND = "kind"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def from_table(cls: type[_T], table: object, at: str = "") -> _T:
    """Return the object that a table describes; `at` is the table's own dotted key.

    Raises `ConfigError`, and nothing else, whatever the table holds.
    """
    keys = schema(cls)
    given = {}
    kind = kind_of(cls)
    for name, value in _table(cls, table, at).items():
        if name == _KIND and kind is not None:
            continue
        _check_known(name, keys, at, kind)
        given[name] = _convert(keys[name][0], value, dotted(at, name))
    for name, (hint, field) in keys.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{dotted(at, name)} is missing; it must be {allowed(hint)}")
    try:
        return cls(**given)
    except ConfigError as error:
        raise ConfigError(_located(str(error), given, keys, at)) from None


def schema(hint: object) -> Mapping[str, tuple[object, Field[object]]]:
    """Return the type hint and the field of each key; nothing for what is no dataclass."""
    return _schema(hint)


@cache
def _schema(hint: object) -> Mapping[str, tuple[object, Field[object]]]:
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return {}
    # Hints are strings until then, and reading them takes longer than all the rest.
    hints = get_type_hints(hint)
    return {field.name: (hints[field.name], field) for field in fields(hint)}


def kinds_of(hint: object) -> Mapping[str, type]:
    """Return the classes of a union of which a table's `kind` chooses one; nothing for others."""
    classes = get_args(hint) if get_origin(hint) is UnionType else ()
    kinds = {kind_of(cls): cls for cls in classes if isinstance(cls, type)}
    return {kind: cls for kind, cls in kinds.items() if kind is not None}


def kind_of(cls: type) -> str | None:
    """Return the `kind` of a class's tables, for a class that is one of a union."""
    kind = getattr(cls, _KIND, None)
    return kind if isinstance(kind, str) and _KIND not in schema(cls) else None


def allowed(hint: object) -> str:
    """Say in words what a key of this type hint may be."""
    if kinds_of(hint):
        return "a table"
    hint = _present(hint)
    origin = get_origin(hint)
    if schema(hint):
        names = ", ".join(schema(hint))
        return f"a table or an array [{names}]" if _is_positional(hint) else "a table"
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin is tuple:
        return f"an array of {len(get_args(hint))}" if _is_fixed(hint) else "an array"
    return _WORDS[origin or hint]


def dotted(at: str, key: str) -> str:
    """Return the dotted key of a key in the table at `at`."""
    return f"{at}.{toml_key(key)}" if at else toml_key(key)


def toml_key(key: str) -> str:
    """Return a key as TOML writes it: bare if possible, else quoted."""
    return key if _BARE_KEY.fullmatch(key) else toml_string(key)


def toml_string(text: str) -> str:
    """Return a string as TOML writes it."""
    # JSON's escapes are TOML's, except for pairs of surrogates; and TOML has one more, for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key_name(key: object) -> str:
    """Return how a mapping's key is written: an enumeration's members by their names."""
    return str(getattr(key, "name", key))


def shown(value: object) -> str:
    """Return a value as messages show it: in one line that is not too long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "something too large to show"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."


def _convert(hint: object, value: object, at: str) -> object:
    if value is None and NoneType in get_args(hint):
        return None  # TOML has no such value, but code that builds tables does.
    hint = _present(hint)
    if kinds := kinds_of(hint):
        return _of_its_kind(kinds, value, at)
    if isinstance(hint, type) and schema(hint):
        return from_table(hint, value, at)
    if get_origin(hint) is tuple:
        return _tuple(hint, value, at)
    if get_origin(hint) is Mapping:
        return _mapping(hint, value, at)
    return _scalar(hint, value, at)


def _of_its_kind(kinds: Mapping[str, type], value: object, at: str) -> object:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{at} must be a table, not {shown(value)}")
    known = f"one of {', '.join(kinds)}"
    if _KIND not in value:
        raise ConfigError(f"{dotted(at, _KIND)} is missing; it must be {known}")
    kind = value[_KIND]
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"{dotted(at, _KIND)} must be {known}, not {shown(kind)}")
    return from_table(kinds[kind], value, at)


def _table(hint: object, value: object, at: str) -> Mapping[str, object]:
    keys = schema(hint)
    if _is_positional(hint) and isinstance(value, list | tuple) and len(value) == len(keys):
        return dict(zip(keys, value, strict=True))
    if not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise _wrong(hint, value, at)
    return value


def _tuple(hint: object, value: object, at: str) -> tuple[object, ...]:
    if isinstance(value, Mapping) and value and all(key.isdecimal() for key in map(str, value)):
        # What a change makes of an index into an array that is not there.
        raise ConfigError(
            f"{dotted(at, str(next(iter(value))))} must be an index into {at}, which has 0 entries"
            f" in the file; give it whole: {at} must be {allowed(hint)}"
        )
    hints = get_args(hint)
    if not isinstance(value, list | tuple):
        raise _wrong(hint, value, at)
    if not _is_fixed(hint):
        hints = hints[:1] * len(value)
    if len(value) != len(hints):
        raise _wrong(hint, value, at)
    entries = enumerate(zip(hints, value, strict=True))
    return tuple(_convert(each, entry, dotted(at, str(index))) for index, (each, entry) in entries)


def _mapping(hint: object, value: object, at: str) -> Mapping[object, object]:
    key_hint, value_hint = get_args(hint)
    mapping: dict[object, object] = {}
    for name, entry in _table(hint, value, at).items():
        key: object = name
        if isinstance(key_hint, EnumMeta):
            _check_known(name, key_hint.__members__, at)
            key = key_hint[name]
        mapping[key] = _convert(value_hint, entry, dotted(at, name))
    return mapping


def _scalar(hint: object, value: object, at: str) -> object:
    if isinstance(value, int) and not -_INT_END <= value < _INT_END:
        raise ConfigError(f"{at} must be {allowed(hint)} of 64 bits, not {shown(value)}")
    # By exact type, because True is an int too.
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint or (get_origin(hint) is Literal and value in get_args(hint)):
        return value
    raise _wrong(hint, value, at)


def _present(hint: object) -> object:
    """Return X of `X | None`."""
    args = get_args(hint)
    return next(arg for arg in args if arg is not NoneType) if NoneType in args else hint


def _is_positional(hint: object) -> bool:
    keys = schema(hint)
    return bool(keys) and not any(field.kw_only for _, field in keys.values())


def _is_fixed(hint: object) -> bool:
    return Ellipsis not in get_args(hint)


def _wrong(hint: object, value: object, at: str) -> ConfigError:
    return ConfigError(f"{at or 'a scenario'} must be {allowed(hint)}, not {shown(value)}")


def _check_known(name: str, known: Iterable[str], at: str, kind: str | None = None) -> None:
    names = sorted(known)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        of_what = "" if kind is None else f" of the kind {kind}"
        raise ConfigError(
            f"{dotted(at, name)}: unknown key{of_what}; known are {', '.join(names)}{hint}"
        )


def _located(message: str, given: Mapping[str, object], keys: Iterable[str], at: str) -> str:
    """Return a class's own message with the full key that it is about.

    Most begin with the field.  For one that speaks of something else ("policy must be ..." of the
    key `name`), the key is the one whose value it ends with, if that is only one.
    """
    word = re.match(r"\w*", message)
    if word is not None and word[0] in keys:
        return f"{at}.{message}" if at else message
    culprits = [key for key, leaf in _leaves(given) if message.endswith(f"not {leaf!r}")]
    where = ".".join(part for part in (at, *culprits[:1]) if part) if len(culprits) == 1 else at
    return f"{where}: {message}" if where else message


def _leaves(mapping: Mapping[str, object], at: str = "") -> Iterator[tuple[str, object]]:
    for key, value in mapping.items():
        inside = dotted(at, key_name(key))
        if isinstance(value, Mapping):
            yield from _leaves(value, inside)
        else:
            yield inside, value
