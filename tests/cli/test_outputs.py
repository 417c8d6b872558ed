"""Files are written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer

from evenly.cli.outputs import check_folder, check_output, check_outputs, write_output


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_output(file, "--json", "\ud800")

    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_take_its_place_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "rows.json"
    file.write_text("before")
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(typer.BadParameter, match=r"cannot write .*: No space left on device"):
        write_output(file, "--json", b"after")

    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)
    write_output(link, "--json", "after")

    assert link.is_symlink()
    assert file.read_text() == "after"


def test_a_link_and_its_file_are_the_same(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(file)

    with pytest.raises(typer.BadParameter, match="another file than that of --json"):
        check_outputs({"--json": file, "--html": link})


def test_to_check_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    check_output(file, "--json")
    check_output(tmp_path / "other", "--json")
    check_outputs({"--json": file, "--html": None})

    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_is_made_and_a_file_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_folder(folder, "--out")

    assert list(folder.iterdir()) == []
    (folder / "file").touch()
    with pytest.raises(typer.BadParameter, match="cannot write into"):
        check_folder(folder / "file", "--out")
