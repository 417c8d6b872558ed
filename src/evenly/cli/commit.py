"""Say which code gave a figure: the checkout's commit, or the installed version.

A figure can be repeated by whoever has its scenario, its seed and this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import evenly

__all__ = ["describe_commit"]

_LENGTH = 12
_PATIENCE_SECONDS = 10.0


def describe_commit(package: Path | None = None) -> str:
    """Return the commit of the checkout that `package` (this one) is in; never fail.

    `+changes` follows where sources or shipped scenarios are not as they were committed.  Without
    git, or where the package is not part of a checkout, the installed version takes its place.
    """
    folder = Path(evenly.__file__).parent if package is None else package
    # A virtual environment often lies inside somebody else's checkout, whose commit says nothing.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return _describe_version()
    commit = _git(folder, "rev-parse", f"--short={_LENGTH}", "HEAD")
    # From the folder above, `src` in our checkout; and the scenarios, from the checkout's top.
    changes = _git(folder.parent, "status", "--porcelain", "--", ".", ":(top)scenarios")
    if not commit or changes is None:
        return _describe_version()
    return f"{commit}+changes" if changes else commit


def _describe_version() -> str:
    try:
        return f"evenly {version('evenly')}"
    except PackageNotFoundError:
        return "evenly, not installed"


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or `None` if it is missing, fails or takes too long."""
    git = shutil.which("git")
    if git is None:
        return None
    # Inside a hook these point to the hook's own repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603  The arguments are ours.
            # Looking must not take the lock that a commit going on beside us needs.
            [git, "--no-optional-locks", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
