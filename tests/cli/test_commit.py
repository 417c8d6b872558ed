"""Which code gave a figure: a commit, a commit with changes, or a version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from evenly.cli.commit import describe_commit

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="there is no git here")


def git(folder: Path, *arguments: str) -> str:
    assert GIT is not None
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        [GIT, *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    return folder


@pytest.fixture
def committed(package: Path) -> Path:
    root = package.parents[1]
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    return package


@needs_git
def test_a_clean_checkout_has_twelve_digits(committed: Path) -> None:
    commit = describe_commit(committed)

    assert len(commit) == 12
    assert git(committed, "rev-parse", "HEAD").startswith(commit)


@needs_git
@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_changed_and_new_sources_are_said(committed: Path, name: str) -> None:
    commit = describe_commit(committed)
    (committed / name).write_text("changed = True\n")

    assert describe_commit(committed) == f"{commit}+changes"


@needs_git
def test_changed_scenarios_are_said(committed: Path) -> None:
    commit = describe_commit(committed)
    scenarios = committed.parents[1] / "scenarios"
    scenarios.mkdir()
    (scenarios / "overload.toml").touch()

    assert describe_commit(committed) == f"{commit}+changes"


@needs_git
def test_what_lies_beside_the_sources_is_no_change(committed: Path) -> None:
    commit = describe_commit(committed)
    (committed.parents[1] / "notes.txt").write_text("Not code.\n")

    assert describe_commit(committed) == commit


@needs_git
def test_a_package_inside_of_another_checkout_does_not_borrow_its_commit(committed: Path) -> None:
    installed = committed.parents[1] / ".venv" / "package"
    shutil.copytree(committed, installed)

    assert describe_commit(installed).startswith("evenly 0.")


@needs_git
def test_the_repository_of_a_hook_is_not_ours(
    committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")

    assert len(describe_commit(committed)) == 12


def test_outside_of_a_checkout_there_is_the_version(package: Path) -> None:
    assert describe_commit(package).startswith("evenly 0.")


def test_without_git_there_is_the_version(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert describe_commit(package).startswith("evenly 0.")


def test_a_folder_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    assert describe_commit(tmp_path / "gone").startswith("evenly 0.")
