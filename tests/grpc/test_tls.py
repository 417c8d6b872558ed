"""Connections with TLS: certificates are checked for the service's name, and tokens travel."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest

import evenly
import evenly.grpc
from tests.discovery.dns_server import dns_server
from tests.grpc.plain import UNARY_UNARY, Listed, PlainBackend, plain_backends, quick, target

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by the openssl command"
)

NAME = "search.test"


@dataclass
class Certificate:
    """Be a certificate that signed itself, for one name."""

    key: bytes
    chain: bytes

    @property
    def for_server(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key, self.chain)])

    @property
    def for_client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.chain)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder: Path = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "cert.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN={NAME} -addext subjectAltName=DNS:{NAME} -keyout {key} -out {chain}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return Certificate(key.read_bytes(), chain.read_bytes())


async def test_a_service_that_was_looked_up_is_known_by_its_name(certificate: Certificate) -> None:
    """The certificate is for `search.test`, and the backends are addresses."""
    async with dns_server() as dns, plain_backends(1, credentials=certificate.for_server) as [one]:
        dns.serve(NAME, "A", "127.0.0.1")
        name = f"{dns.target}/{NAME}:{one.port}"
        async with evenly.grpc.channel(name, credentials=certificate.for_client) as channel:
            call = channel.unary_unary(UNARY_UNARY)(b"hello", timeout=20)

            assert await call == b"hello"
            assert call.backend == f"127.0.0.1:{one.port}"


async def test_a_service_of_another_name_is_not_believed(certificate: Certificate) -> None:
    async with dns_server() as dns, plain_backends(1, credentials=certificate.for_server) as [one]:
        dns.serve("other.test", "A", "127.0.0.1")
        name = f"{dns.target}/other.test:{one.port}"
        async with evenly.grpc.channel(
            name, credentials=certificate.for_client, config=quick()
        ) as channel:
            with pytest.raises(evenly.NoBackend):
                await channel.unary_unary(UNARY_UNARY)(b"hello", timeout=20)
            assert one.requests == 0


async def test_a_discovery_of_one_s_own_says_the_name_in_the_options(
    certificate: Certificate,
) -> None:
    async with plain_backends(1, credentials=certificate.for_server) as [one]:
        async with evenly.grpc.channel(
            Listed(one),
            credentials=certificate.for_client,
            options=[("grpc.default_authority", NAME)],
        ) as channel:
            assert await channel.unary_unary(UNARY_UNARY)(b"hello", timeout=20) == b"hello"
        async with evenly.grpc.channel(
            Listed(one), credentials=certificate.for_client, config=quick()
        ) as nameless:
            with pytest.raises(evenly.NoBackend):  # The certificate is not for 127.0.0.1.
                await nameless.unary_unary(UNARY_UNARY)(b"hello", timeout=20)


async def test_the_credentials_of_a_call_travel(certificate: Certificate) -> None:
    async with (
        plain_backends(1, credentials=certificate.for_server) as [one],
        evenly.grpc.channel(
            target(one),
            credentials=certificate.for_client,
            options=[("grpc.ssl_target_name_override", NAME)],
        ) as channel,
    ):
        token = grpc.access_token_call_credentials("secret")
        await channel.unary_unary(UNARY_UNARY)(b"", timeout=20, credentials=token)
        await channel.unary_unary(UNARY_UNARY)(b"", timeout=20)

        with_token, without = one.arrivals
        assert with_token.metadata["authorization"] == "Bearer secret"
        assert "authorization" not in without.metadata


async def test_a_backend_that_speaks_in_the_clear_is_refusing(certificate: Certificate) -> None:
    async with plain_backends(1) as [clear]:
        secure = PlainBackend()
        await secure.start(credentials=certificate.for_server)
        async with evenly.grpc.channel(
            target(clear, secure),
            credentials=certificate.for_client,
            config=quick(connect_seconds=1.0),
            options=[("grpc.ssl_target_name_override", NAME)],
        ) as channel:
            for _ in range(10):
                call = channel.unary_unary(UNARY_UNARY)(b"", timeout=20)
                await call
                assert call.backend == secure.address
        await secure.stop()
