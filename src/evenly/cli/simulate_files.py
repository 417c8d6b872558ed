"""Find the scenario that a person means."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import typer

__all__ = ["find_scenario", "shipped_names"]

_SUFFIX = ".toml"
_SCENARIO = "'SCENARIO'"


def find_scenario(text: str) -> Path:
    """Return the file of a scenario given by path, or by the name of one that evenly ships."""
    path = Path(text)
    for candidate in (path, *_of_this_name(path)):
        if _is_file(candidate):
            return candidate
    raise typer.BadParameter(_why_not(path, text), param_hint=_SCENARIO)


def _why_not(path: Path, text: str) -> str:
    if _is_folder(path):
        return f"{text} is a folder; name a TOML file, or one of {_choices()}"
    if len(path.parts) > 1:
        return f"there is no file {text}"
    close = difflib.get_close_matches(path.name.removesuffix(_SUFFIX), shipped_names(), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return (
        f"there is no file {text}, and no shipped scenario of this name{hint};"
        f" there are {_choices()}"
    )


def _choices() -> str:
    return ", ".join(shipped_names()) or "none"


def _of_this_name(path: Path) -> Iterator[Path]:
    if len(path.parts) == 1:
        name = path.name.removesuffix(_SUFFIX) + _SUFFIX
        for folder in (Path(), *_shipped_folders()):
            yield folder / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # Its name is too long, or a folder on the way is closed to us.
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _shipped_folders() -> Iterator[Path]:
    package = Path(str(resources.files("evenly")))
    yield package / "scenarios"  # in a wheel
    if package.parent.name == "src":
        yield package.parent.parent / "scenarios"  # in a checkout


def shipped_names() -> list[str]:
    """Return the names of the scenarios that come with evenly."""
    return sorted(
        {path.stem for folder in _shipped_folders() for path in folder.glob(f"*{_SUFFIX}")}
    )
