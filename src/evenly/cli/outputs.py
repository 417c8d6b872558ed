"""Write what a person asked for without losing any of it: the whole file or nothing.

What cannot be written is found out first, because nobody should wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import typer

__all__ = ["STANDARD_OUTPUT", "check_folder", "check_output", "check_outputs", "write_output"]

STANDARD_OUTPUT = Path("-")


def check_outputs(files: Mapping[str, Path | None]) -> None:
    """Refuse files, by option, of which one cannot be written or two are the same."""
    options: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        check_output(path, option)
        # By where a link leads; "-" is the same as itself, too.
        first = options.setdefault(path.resolve(), option)
        if first != option:
            raise _bad(option, f"must be another file than that of {first}, not {path}")


def check_output(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before the work whose results it is to hold."""
    if path == STANDARD_OUTPUT:
        return
    try:
        if path.is_dir() or not path.parent.is_dir():
            raise _bad(option, f"must be a file in a folder that exists, not {path}")
        if _is_special(path):  # To open a pipe or a device would already do something.
            return
        _try_draft(path)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def check_folder(path: Path, option: str) -> None:
    """Make a folder where there is none, and refuse one that cannot be written into."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try_draft(path / "any")
    except OSError as error:
        raise _bad(option, f"cannot write into {path}: {error.strerror or error}") from None


def write_output(path: Path, option: str, content: str | bytes) -> None:
    """Write all of it or nothing: what was there before stays until the new file is whole."""
    content = content.encode() if isinstance(content, str) else content
    if path == STANDARD_OUTPUT:
        typer.echo(content, nl=False)
        return
    try:
        if _is_special(path):
            path.write_bytes(content)
            return
        draft = _draft_of(path)
        try:
            draft.write_bytes(content)
            draft.replace(path.resolve())
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:  # A disk can fill up meanwhile.
        raise _unwritable(option, path, error) from None


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _try_draft(path: Path) -> None:
    draft = _draft_of(path)
    draft.touch()
    draft.unlink()


def _draft_of(path: Path) -> Path:
    # Beside the file that a link leads to: only within one file system can it take its place.
    # The process's id keeps two commands that write into one folder apart.
    return path.resolve().with_name(f".evenly-{os.getpid()}.draft")


def _unwritable(option: str, path: Path, error: OSError) -> typer.BadParameter:
    return _bad(option, f"cannot write {path}: {error.strerror or error}")


def _bad(option: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{option}'")
