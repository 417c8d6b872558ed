"""Find an application by its name, `module:app`, and say in one line why that fails."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path

from evenly.errors import EvenlyError

__all__ = ["StartError", "describe", "load", "made_by"]


class StartError(EvenlyError, RuntimeError):
    """Report that a backend could not start, in words for whoever started it."""


def load(name: str) -> object:
    """Return what `module:attribute` names; raise `StartError` where that cannot be had."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise StartError(f"{name!r} must be of the form module:attribute, such as main:app")
    try:
        found: object = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # A module of the user's may raise anything.
        text = f"cannot import {module_name!r}: {describe(error)}"
        if module_name.endswith(".py") or "/" in module_name:
            text += f"; did you mean {_dotted(module_name)}:{path}?"
        raise StartError(text) from error
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise StartError(f"{module_name!r} has no attribute {path!r}") from None
    return found


def _dotted(path: str) -> str:
    """Return what a module is called that is in this file, below a folder where modules are."""
    file = Path(path.removesuffix(".py"))
    parts = (file.name,) if file.is_absolute() or ".." in file.parts else file.parts
    return ".".join(parts)


def made_by(factory: Callable[[], object], name: object) -> object:
    """Return the application that `factory` makes; raise `StartError` if it raises."""
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise StartError(f"{name!r} cannot make the application: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Return what went wrong, and where in the user's own code."""
    text = f"{type(error).__name__}: {error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ") and frame.filename != __file__
    ]
    frames = [frame for frame in frames if Path(frame.filename).parent.name != "importlib"]
    if frames:
        text += f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return text
