"""Find the scenario that a person means, and write what they asked for without losing any of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import typer

__all__ = ["STANDARD_OUTPUT", "check_output", "find_scenario", "shipped_names", "write_output"]

STANDARD_OUTPUT = Path("-")

_SUFFIX = ".toml"
_SCENARIO = "'SCENARIO'"


def find_scenario(text: str) -> Path:
    """Return the file of a scenario given by path, or by the name of one that evenly ships."""
    path = Path(text)
    for candidate in (path, *_of_this_name(path)):
        if _is_file(candidate):
            return candidate
    if len(path.parts) > 1:
        raise typer.BadParameter(f"there is no file {text}", param_hint=_SCENARIO)
    raise typer.BadParameter(
        f"there is no file {text}, and no shipped scenario of this name; "
        f"there are {', '.join(shipped_names()) or 'none'}",
        param_hint=_SCENARIO,
    )


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


def check_output(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before the work whose results it is to hold."""
    if path == STANDARD_OUTPUT:
        return
    try:
        if path.is_dir() or not path.parent.is_dir():
            raise _bad(option, f"must be a file in a folder that exists, not {path}")
        if _is_special(path):  # To open a pipe or a device would already do something.
            return
        draft = _draft_of(path)
        with draft.open("wb"):
            pass
        draft.unlink()
    except OSError as error:
        raise _unwritable(option, path, error) from None


def write_output(path: Path, option: str, text: str) -> None:
    """Write the whole text or nothing: what was there before stays until the new one is whole."""
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    try:
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        draft = _draft_of(path)
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path.resolve())
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:  # A disk can fill up meanwhile.
        raise _unwritable(option, path, error) from None


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _draft_of(path: Path) -> Path:
    # Beside the file that a link leads to: only within one file system can it take its place.
    return path.resolve().with_name(f".evenly-{os.getpid()}.draft")


def _unwritable(option: str, path: Path, error: OSError) -> typer.BadParameter:
    return _bad(option, f"cannot write {path}: {error.strerror or error}")


def _bad(option: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{option}'")
