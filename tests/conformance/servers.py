"""Start real servers on free ports, and stop them by their process ids."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.suites.transports.processes import ROOT, free_port

_APP = "tests.conformance.app:app"
_START_SECONDS = 30.0
# Debian has these where only root looks.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
KEEP_ALIVE_REQUESTS = 3
KEEP_ALIVE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Servers:
    """Say where everyone listens."""

    addresses: dict[str, str]
    """By the name of a server; `unix …` are sockets, `nginx …` are nginx with other settings."""
    certificate: Path


def program(name: str) -> str:
    """Return where a program is, or say how to get it."""
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{name} is not installed: run `make system`"
    return found


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost; return it and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [
            program("openssl"),
            "req",
            *kind,
            "-days",
            "2",
            "-keyout",
            key,
            "-out",
            certificate,
            *name,
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def is_listening(address: str) -> bool:
    """Tell whether somebody accepts connections there."""
    if address.startswith("unix:"):
        family, where = socket.AF_UNIX, address.removeprefix("unix:")
        with socket.socket(family) as connection:
            return connection.connect_ex(where) == 0
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


@contextmanager
def running(command: Sequence[str], *addresses: str, log: Path) -> Iterator[None]:
    """Run a program that listens, until the end of the `with`."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        ends_at = time.monotonic() + _START_SECONDS
        while not all(is_listening(address) for address in addresses):
            is_alive = process.poll() is None and time.monotonic() < ends_at
            assert is_alive, f"{command[0]} does not listen: {log.read_text()}"
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def uvicorn(name: str, folder: Path, *options: str) -> Iterator[str]:
    """Run uvicorn at a port; its connections stay open for a minute."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", _APP, "--port", str(port), *options]
    settings = ["--timeout-keep-alive", "60", "--no-access-log"]
    address = f"127.0.0.1:{port}"
    with running([*command, *settings], address, log=folder / f"{name}.log"):
        yield address


@contextmanager
def uvicorn_at_a_socket(folder: Path) -> Iterator[str]:
    """Run uvicorn at a unix socket."""
    path = folder / "uvicorn.sock"
    command = [sys.executable, "-m", "uvicorn", _APP, "--uds", str(path), "--no-access-log"]
    with running(command, f"unix:{path}", log=folder / "uvicorn-socket.log"):
        yield f"unix:{path}"


@contextmanager
def granian(folder: Path) -> Iterator[str]:
    """Run granian: Rust's hyper below an ASGI application."""
    port = free_port()
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--port", str(port)]
    settings = ["--http", "1", "--workers", "1", "--no-ws", _APP]
    address = f"127.0.0.1:{port}"
    with running([*command, *settings], address, log=folder / "granian.log"):
        yield address


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[dict[str, str]]:
    """Run nginx before another server: plain, with few requests a connection, TLS, a socket."""
    certificate, key = self_signed(folder)
    ports = {name: free_port() for name in ("nginx", "nginx few", "nginx short", "nginx tls")}
    path = folder / "nginx.sock"
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{name}_temp_path {folder}/{name};" for name in folders)
    served = f"""
        location / {{ proxy_pass http://{upstream}; }}
        location /small {{ client_max_body_size 1k; proxy_request_buffering on;
                           proxy_pass http://{upstream}; }}
    """
    configuration = folder / "nginx.conf"
    # In one process: as root, nginx's children would be someone who cannot read this folder.
    configuration.write_text(
        f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
        events {{}}
        http {{
          access_log off; {temporary}
          proxy_http_version 1.1; proxy_buffering off; proxy_request_buffering off;
          proxy_set_header Connection ""; client_max_body_size 0; keepalive_timeout 60s;
          server {{ listen 127.0.0.1:{ports["nginx"]}; listen unix:{path}; {served} }}
          server {{ listen 127.0.0.1:{ports["nginx few"]};
                    keepalive_requests {KEEP_ALIVE_REQUESTS}; {served} }}
          server {{ listen 127.0.0.1:{ports["nginx short"]};
                    keepalive_timeout {KEEP_ALIVE_SECONDS}s {KEEP_ALIVE_SECONDS}s; {served} }}
          server {{ listen 127.0.0.1:{ports["nginx tls"]} ssl;
                    ssl_certificate {certificate}; ssl_certificate_key {key}; {served} }}
        }}
        """
    )
    addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    addresses["unix nginx"] = f"unix:{path}"
    command = [program("nginx"), "-e", f"{folder}/error.log", "-c", str(configuration)]
    with running(command, *addresses.values(), log=folder / "nginx.log"):
        yield addresses


@contextmanager
def haproxy(folder: Path, upstream: str) -> Iterator[dict[str, str]]:
    """Run HAProxy before another server; `/hinted` is told of a style sheet before the answer."""
    port, path = free_port(), folder / "haproxy.sock"
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"""
        defaults
          mode http
          timeout connect 10s
          timeout client 60s
          timeout server 60s
          timeout http-keep-alive 60s
        frontend before
          bind 127.0.0.1:{port}
          bind unix@{path}
          http-request early-hint Link "</style.css>; rel=preload" if {{ path_beg /hinted }}
          http-request replace-path /hinted(.*) \\1
          default_backend behind
        backend behind
          server only {upstream}
        """.replace("\n        ", "\n")
    )
    addresses = {"haproxy": f"127.0.0.1:{port}", "unix haproxy": f"unix:{path}"}
    command = [program("haproxy"), "-db", "-f", str(configuration)]
    with running(command, *addresses.values(), log=folder / "haproxy.log"):
        yield addresses
