"""What `evenly serve` says to whoever typed it; what it does is in `tests/http/test_serve.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.serve_process import served

APP = "tests.http.serve_app:app"


def evenly(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "evenly", "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cwd,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("appy",), "'appy' must be of the form module:attribute, such as main:app"),
        (("nowhere:app",), "cannot import 'nowhere': ModuleNotFoundError: No module named"),
        (("tests.http.serve_app:nothing",), "'tests.http.serve_app' has no attribute 'nothing'"),
        ((APP, "--warm-up", "tests.http.serve_app:none"), "has no attribute 'none'"),
        (
            (APP, "--warm-up", "tests.http.serve_app:no_cache"),
            "warm_up 'tests.http.serve_app:no_cache' failed: ValueError: no cache (",
        ),
        (
            ("tests.http.serve_app:make_nothing", "--factory"),
            "cannot make the application: ValueError: no database (",
        ),
        (("tests.http.serve_app:make_app",), "makes the application (--factory, factory=True)"),
        ((APP, "--drain-seconds", "nan"), "drain_seconds must be in [0, 86400], not nan"),
        ((APP, "--grace-seconds", "-1"), "grace_seconds must be in [0, 86400], not -1.0"),
        ((APP, "--loop", "trio"), "loop must be 'auto', 'asyncio' or 'uvloop', not 'trio'"),
        ((APP, "--ssl-certfile", "none.pem"), "ssl_certfile must be a file, not none.pem"),
        (
            ("tests.http.serve_app:guarded", "--drain-seconds", "9"),
            "an evenly.http.Middleware already",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = evenly(*arguments, "--port", "0", "--log-level", "critical")

    assert done.returncode == 1
    assert "--warm-up" in arguments or done.stdout == ""  # It listens while it warms up.
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--port", "70000"), ("--workers", "0"), ("--log-level", "loud")]
)
def test_what_cannot_be_an_option_is_named(option: str, value: str) -> None:
    done = evenly(APP, option, value)

    assert done.returncode == 2
    assert f"Invalid value for '{option}': must be" in done.stderr


def test_a_folder_that_does_not_exist_is_said_so() -> None:
    done = evenly("main:app", "--app-dir", "/nonexist")

    assert done.returncode == 2
    assert "Invalid value for '--app-dir': " in done.stderr
    assert "'/nonexist' does not exist" in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_import_that_fails_is_said_with_its_place(tmp_path: Path, workers: str) -> None:
    module = tmp_path / "broken.py"
    module.write_text("x = 1\nx / 0\n")

    done = evenly("broken:app", "--app-dir", str(tmp_path), "--workers", workers, "--port", "0")

    assert done.returncode == 1
    assert done.stderr == (
        f"Error: cannot import 'broken': ZeroDivisionError: division by zero ({module}, line 2)\n"
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_import_that_exits_is_said_with_its_place(tmp_path: Path, workers: str) -> None:
    module = tmp_path / "exits.py"
    module.write_text("import sys\nsys.exit(3)\n")

    done = evenly("exits:app", "--app-dir", str(tmp_path), "--workers", workers, "--port", "0")

    assert done.returncode == 1
    assert done.stderr == f"Error: cannot import 'exits': SystemExit: 3 ({module}, line 2)\n"


def test_modules_are_looked_for_in_the_present_folder(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("app = 7\n")
    # The command itself, because `python -m` puts the folder there by itself.
    done = subprocess.run(
        [Path(sys.executable).with_name("evenly"), "serve", "here:app"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )

    assert done.stderr == "Error: 'here:app' is no ASGI application but int\n"


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("uvicorn", "evenly serve needs uvicorn: pip install uvicorn"),
        ("uvloop", "loop='uvloop' needs uvloop: pip install uvloop"),
        ("httptools", 'evenly.http1 needs httptools: pip install "evenly[http]"'),
    ],
)
def test_what_is_not_installed_is_named(package: str, message: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"sys.argv[1:] = ['serve', {APP!r}, '--loop', 'uvloop']\n"
        "from evenly.cli.entry import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {message}")
    assert done.stderr.count("\n") == 1


async def test_a_free_port_is_found_and_printed() -> None:
    async with served() as backend:  # It reads the port from "listening on http://127.0.0.1:N".
        assert backend.port > 0
        assert (await backend.get()).status == 200


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_an_application_may_have_to_be_made(workers: str) -> None:
    async with served("--factory", "--workers", workers, app="make_app") as backend:
        assert (await backend.get()).status == 200


async def test_the_log_tells_the_story_once() -> None:
    async with served("--workers", "2", "--quiet-seconds", "0.1") as backend:
        backend.process.terminate()
        assert await backend.status() == 0
        log = await backend.errors()

    assert log.count("ready: clients are asked to send") == 1
    assert log.count("lame duck: clients are asked to send elsewhere") == 1
    assert log.count("drained: what is left has 5 s") == 1
