"""What `curl` and `wrk` see of a backend that refuses: well-formed answers, and nothing else."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.request import Reason
from evenly.runtime.backend_config import BackendConfig
from tests.interop.http_backend import BY_HAND, Backend, running


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    """Give a backend that refuses what the test says."""
    made = Backend(BY_HAND)
    async with running(made):
        yield made


async def run(program: str, *arguments: str) -> str:
    """Run a program; return what it prints."""
    found = shutil.which(program)
    assert found is not None, f"{program} is not installed: run `make system`"
    process = await asyncio.create_subprocess_exec(
        found, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60.0):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return output.decode()


async def curl(backend: Backend, *options: str) -> tuple[int, Message, str]:
    """Ask once; return status, headers and body."""
    url = f"http://{backend.address}/thing"
    answer = await run("curl", "--silent", "--show-error", "--include", *options, url)
    head, _, body = answer.partition("\r\n\r\n")
    line, _, headers = head.partition("\r\n")
    return int(line.split()[1]), Parser().parsestr(headers), body


async def test_curl_sees_what_is_served(backend: Backend) -> None:
    status, headers, body = await curl(backend)

    assert (status, body) == (200, "ok")
    assert headers["endpoint-load-metrics"].startswith("TEXT cpu_utilization=")
    assert headers["evenly-load"].startswith("1;")


async def test_curl_sees_a_refusal_and_what_it_is_about(backend: Backend) -> None:
    backend.press(100.0)
    status, headers, body = await curl(backend)

    assert status == 503
    assert headers["evenly-reject"] == "overloaded"
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["endpoint-load-metrics"].startswith("TEXT cpu_utilization=")
    told = json.loads(body)
    assert (told["error"], told["retryable"]) == ("overloaded", True)
    assert told["detail"]


async def test_curl_is_refused_by_criticality(backend: Backend) -> None:
    backend.press(1.0)
    refused, _, _ = await curl(backend, "--header", "evenly-criticality: SHEDDABLE")
    served, _, _ = await curl(backend, "--header", "evenly-criticality: CRITICAL_PLUS")

    assert (refused, served) == (503, 200)


async def test_curl_is_not_kept_sending_a_body_that_is_refused(
    backend: Backend, tmp_path: Path
) -> None:
    backend.press(100.0)
    large = tmp_path / "large"
    large.write_bytes(bytes(5_000_000))
    status, _, _ = await curl(backend, "--data-binary", f"@{large}")

    assert status == 503


async def test_curl_is_told_when_to_come_back_for_its_quota() -> None:
    # A millionth of a CPU: the first request is served, and paid for long afterwards.
    quota = QuotaConfig(limits={}, default_limit=1e-6)
    backend = Backend(BackendConfig(task=BackendTaskConfig(quota=quota)))
    async with running(backend):
        async with asyncio.timeout(30.0):
            while (answer := await curl(backend))[0] == 200:
                pass

    status, headers, body = answer
    assert status == 429
    assert headers["evenly-reject"] == "quota"
    assert headers["x-envoy-ratelimited"] == "true"
    assert int(headers["retry-after"]) >= 1
    assert json.loads(body)["retryable"] is False
    assert backend.refused == {Reason.OUT_OF_QUOTA: 1}


# Every other request is SHEDDABLE.  `done` is given what all threads counted; `response` is called
# in the thread's own Lua, so what it counts is printed by itself.
_SCRIPT = """
local number = 0
request = function()
  number = number + 1
  local criticality = number % 2 == 0 and "SHEDDABLE" or "CRITICAL_PLUS"
  return wrk.format("GET", "/thing", {["evenly-criticality"] = criticality})
end
response = function(status, headers, body)
  local is_served = status == 200 and body == "ok"
  local is_refused = status == 503 and headers["evenly-reject"] ~= nil
    and headers["content-type"] == "application/json" and body:match('^{.*"error".*}%s*$') ~= nil
  if not is_served and not is_refused then
    io.write("malformed: ", status, " ", body, "\\n")
  end
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\n{"requests": %d, "refused": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}\\n',
    summary.requests, errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
"""


async def test_wrk_gets_a_well_formed_answer_to_everything(
    backend: Backend, tmp_path: Path
) -> None:
    script = tmp_path / "script.lua"
    script.write_text(_SCRIPT)
    backend.press(1.0)
    options = ["--threads", "1", "--connections", "20", "--duration", "2s", "--script"]
    output = await run("wrk", *options, str(script), f"http://{backend.address}")
    counted = json.loads(output.splitlines()[-1])
    requests, refused = counted.pop("requests"), counted.pop("refused")

    assert "malformed" not in output
    assert counted == {"connect": 0, "read": 0, "write": 0, "timeout": 0}
    assert requests > 100
    # Each connection takes turns of its own with the others, so that it is half but for the last.
    assert refused == pytest.approx(requests / 2, abs=20)
