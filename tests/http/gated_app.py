"""An application whose import waits, in every process, until there is a file (`GATE`)."""

from __future__ import annotations

from tests.http.serve_app import app, wait_for_gate_in_a_thread

__all__ = ["app"]

print("importing", flush=True)  # noqa: T201 -- the test waits for it
wait_for_gate_in_a_thread()
