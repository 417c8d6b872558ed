"""Use every public name as a user would.  Checked by mypy, never executed."""

from __future__ import annotations

import grpc
import grpc.aio
import httpx

import evenly
import evenly.config
import evenly.grpc
import evenly.grpc.sync
import evenly.http
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
        case evenly.Throttled() | evenly.NoBackend():
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
        policy=evenly.config.PolicyConfig(
            name="probing",
            weights=evenly.config.WeightConfig(),
            probing=evenly.config.ProbingConfig(),
            prequal=evenly.config.PrequalConfig(),
        ),
        membership=evenly.config.MembershipConfig(health=evenly.config.HealthConfig()),
        throttle=evenly.config.ThrottleConfig(
            responsive=evenly.config.ResponsiveThrottleConfig(
                customer_send_probability=evenly.config.SendProbabilityConfig(),
                unreported=evenly.config.AdaptiveThrottleConfig(),
            ),
        ),
        retry=evenly.config.RetryConfig(attempts=1),
    )
    ramp = evenly.config.Ramp
    disk = evenly.config.SignalConfig(ramps=(ramp(1, 2), ramp(2, 3), ramp(3, 4), ramp(4, 5)))
    signals = {**evenly.config.default_signals(), "disk": disk}
    backend = evenly.config.BackendTaskConfig(
        limits_queue=True,
        utilization=evenly.config.UtilizationConfig(signals=signals),
        quota=evenly.config.QuotaConfig(limits={}, default_limit=1.0),
        cost=evenly.config.CostConfig(),
        attempts=evenly.config.AttemptHistogramConfig(),
    )
    return client, backend


def transports() -> tuple[evenly.config.ClientConfig, evenly.config.BackendConfig]:
    client, backend = configs()
    probe = evenly.config.ProbeConfig(is_on=False)
    return (
        evenly.config.ClientConfig(task=client, probe=probe),
        evenly.config.BackendConfig(task=backend, probe=probe),
    )


async def cheaper(query: str) -> str:
    return query[:1]


@evenly.degradable(cheaper)
async def search(query: str) -> str:
    if evenly.should_degrade():
        evenly.mark_degraded()
        evenly.charge(0.02)
    return await evenly.run_in_thread(query.upper)


def estimate(query: str) -> int:
    return len(query) // 5


@evenly.degradable(estimate)
def count(query: str) -> int:
    return len(query.split())


async def context() -> evenly.Request:
    with evenly.request_context(
        criticality=evenly.Criticality.SHEDDABLE,
        customer="indexer",
        user="a user",
        deadline_seconds=1.0,
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


async def httpx_client() -> str:
    transport = evenly.http.Transport("dns:///search.prod:8080", config=evenly.http.ClientConfig())
    async with httpx.AsyncClient(transport=transport) as client:
        response = await client.get("http://search.prod/q")
        return str(response.extensions["evenly_backend"])


async def http_session() -> str:
    session: evenly.http.Session = evenly.http.Session(
        "static:10.0.0.1:80,10.0.0.2:80", base_path="/v1", timeout_seconds=1.0
    )
    async with session:
        try:
            response: evenly.http.Response = await session.post(
                "/q", json={"text": "evenly"}, params={"page": 1}, idempotent=True
            )
            headers: evenly.http.Headers = response.raise_for_status().headers
            async with session.stream("GET", "/all", headers={"accept": "text/plain"}) as streamed:
                whole: evenly.http.StreamedResponse = streamed
                async for chunk in whole:
                    return f"{chunk!r} {headers.get('etag')}"
        except (evenly.http.ThrottledHttpError, evenly.http.NoBackendHttpError) as error:
            return error.where
        except (evenly.http.OverloadedHttpError, evenly.http.QuotaExceededHttpError) as error:
            return str(error.response)
        except evenly.http.RejectedHttpError as error:
            return str(_rejected(error))
        except (evenly.http.ConnectionLost, evenly.http.Timeout, evenly.http.StatusError) as error:
            _failed(error)
    await session.aclose()
    return str(session.snapshot().active)


def _failed(error: evenly.http.HttpError) -> None: ...


async def http_backend(app: evenly.http.Middleware) -> None:
    config = evenly.http.BackendConfig(probe=evenly.http.ProbeConfig(is_on=False))
    wrapped = evenly.http.Middleware(app, config=config, ready_path=None)
    try:
        await evenly.http.serve(wrapped, host="127.0.0.1", port=8080, warm_up=_warm_up)
    except evenly.http.StartError as error:
        raise SystemExit(str(error)) from None


def http_workers() -> None:
    evenly.http.run("main:app", port=8080, workers=4, grace_seconds=5.0)
