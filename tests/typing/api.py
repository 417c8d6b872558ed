"""Use every public name as a user would.  Checked by mypy, never executed."""

from __future__ import annotations

import grpc
import grpc.aio

import evenly
import evenly.config
import evenly.grpc
import evenly.grpc.sync
import evenly.testing


def subsets() -> tuple[str, ...]:
    backends: list[str | None] = ["a", "b", None, "d"]
    mine: tuple[str, ...] = evenly.nested_subset(backends, 0, 2)
    mine = evenly.deterministic_subset(backends, 0, 2)
    mine = evenly.rendezvous_subset(backends, 0, 2)
    mine = evenly.rocksteadier_subset(backends, 0, 2)
    mine += evenly.random_subset(backends, 0, 2, seed=1)
    return mine


def criticality() -> bool:
    return evenly.Criticality.SHEDDABLE < evenly.Criticality.CRITICAL


def errors() -> evenly.EvenlyError | None:
    try:
        subsets()
    except evenly.ConfigError as error:
        return _either(error, error)
    except evenly.UsageError as error:
        return _either(error, error)
    return None


def _either(ours: evenly.EvenlyError, _theirs: ValueError | RuntimeError) -> evenly.EvenlyError:
    return ours


def refused(error: evenly.RejectedError) -> str:
    match error:
        case evenly.Throttled() | evenly.NoBackend() | evenly.RetryBudgetExhausted():
            return error.where
        case evenly.Overloaded() | evenly.QuotaExceeded():
            return f"{error.where}, retryable: {error.retryable}"
        case _:
            return str(error)


class Watcher(evenly.Observer):
    def asked(self, count: int) -> None:
        super().asked(count)


def configs() -> tuple[evenly.config.ClientTaskConfig, evenly.config.BackendTaskConfig]:
    client = evenly.config.ClientTaskConfig(
        policy=evenly.config.PolicyConfig(name="probing"),
        membership=evenly.config.MembershipConfig(health=evenly.config.HealthConfig()),
        throttle=evenly.config.ThrottleConfig(),
        retry=evenly.config.RetryConfig(attempts=1),
    )
    ramp = evenly.config.Ramp
    disk = evenly.config.SignalConfig(ramps=(ramp(1, 2), ramp(2, 3), ramp(3, 4), ramp(4, 5)))
    signals = {**evenly.config.default_signals(), "disk": disk}
    backend = evenly.config.BackendTaskConfig(
        utilization=evenly.config.UtilizationConfig(signals=signals),
        quota=evenly.config.QuotaConfig(limits={}, default_limit=1.0),
        cost=evenly.config.CostConfig(),
    )
    return client, backend


async def cheaper(query: str) -> str:
    return query[:1]


@evenly.degradable(cheaper)
async def search(query: str) -> str:
    if evenly.should_degrade():
        evenly.mark_degraded()
    return await evenly.run_in_thread(query.upper)


def estimate(query: str) -> int:
    return len(query) // 5


@evenly.degradable(estimate)
def count(query: str) -> int:
    return len(query.split())


async def context() -> evenly.Request:
    with evenly.request_context(
        criticality=evenly.Criticality.SHEDDABLE, customer="indexer", deadline_seconds=1.0
    ):
        answer: str = await search("a")
        number: int = count(answer)
        with evenly.ContextThreadPoolExecutor(max_workers=number) as executor:
            executor.submit(evenly.carry_context(print), answer).result()
        return evenly.current_request()


def clock() -> float:
    manual = evenly.testing.ManualClock()
    manual.advance(1.0)
    return manual()


async def grpc_client(credentials: grpc.ChannelCredentials) -> str:
    probe = evenly.grpc.ProbeConfig(is_on=True, key=b"sixteen bytes or more")
    config = evenly.grpc.ClientConfig(probe=probe, idempotent_methods=("/search.Search/*",))
    channel: evenly.grpc.Channel = evenly.grpc.channel(
        "dns:///search.prod:50051", config=config, credentials=credentials, options=()
    )
    async with channel:
        try:
            await channel.unary_unary("/search.Search/Search")(b"", timeout=1.0)
        except (evenly.grpc.ThrottledRpcError, evenly.grpc.NoBackendRpcError) as error:
            return error.where
        except (evenly.grpc.OverloadedRpcError, evenly.grpc.QuotaExceededRpcError) as error:
            return error.where
        except evenly.grpc.RejectedRpcError as error:
            return f"{error.code()} {_rejected(error)}"
    return str(channel.snapshot().active)


def _rejected(error: evenly.RejectedError) -> bool:
    return error.retryable


async def grpc_backend() -> None:
    config = evenly.grpc.BackendConfig(trusted_networks=("203.0.113.0/24",), orca="always")
    server: evenly.grpc.Server = evenly.grpc.server(config=config, health=True)
    server.add_insecure_port("0.0.0.0:50051")
    await evenly.grpc.serve(server, warm_up=_warm_up, grace_seconds=5.0)


async def grpc_backend_with_an_interceptor() -> None:
    guard: evenly.grpc.Interceptor = evenly.grpc.interceptor()
    server = grpc.aio.server(interceptors=[guard])
    port = server.add_insecure_port("0.0.0.0:50051")
    guard.attach(server, f"0.0.0.0:{port}", services=("search.Search",))
    await evenly.grpc.serve(server, interceptor=guard)


async def _warm_up() -> None: ...


def grpc_sync_client() -> str:
    channel: evenly.grpc.sync.Channel = evenly.grpc.sync.channel(
        "file:/etc/search/backends", config=evenly.grpc.ClientConfig()
    )
    with channel:
        try:
            channel.unary_unary("/search.Search/Search")(b"", timeout=1.0)
        except (evenly.grpc.sync.ThrottledRpcError, evenly.grpc.sync.NoBackendRpcError) as error:
            return error.where
        except evenly.grpc.sync.OverloadedRpcError as error:
            return error.details()
        except evenly.grpc.sync.QuotaExceededRpcError as error:
            return error.details()
        except evenly.grpc.sync.RejectedRpcError as error:
            return f"{error.code()} {_rejected(error)}"
    return str(channel.snapshot().active)


def grpc_sync_backend() -> None:
    server: evenly.grpc.sync.Server = evenly.grpc.sync.server(
        max_workers=10, config=evenly.grpc.BackendConfig()
    )
    server.add_insecure_port("0.0.0.0:50051")
    evenly.grpc.sync.serve(server, warm_up=lambda: None, grace_seconds=5.0)
