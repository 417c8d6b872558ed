"""What can be set about the calling side."""

from __future__ import annotations

import pytest

from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.errors import ConfigError
from evenly.runtime.client_config import ClientConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect_seconds": 0.0},
        {"connect_seconds": float("nan")},
        {"patience_seconds": 0.0},
        {"discovery_seconds": -1.0},
        {"discovery_seconds": float("nan")},
        {"idempotent_methods": "/a/B"},
        {"idempotent_methods": ("/a/B", 5)},
    ],
    ids=str,
)
def test_a_wrong_config_says_which_field(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ClientConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", ["POST search", "search", "a.A/Get", "POST  /search", " /a/B", "POST http://a/b", ""]
)
def test_a_method_without_the_slash_before_its_path_is_refused(method: str) -> None:
    message = f"like /package.Service/Method for gRPC and like POST /path for HTTP, not {method!r}"
    with pytest.raises(ConfigError, match=f"idempotent_methods must be {message}"):
        ClientConfig(idempotent_methods=("POST /search", "POST /*", method))


def test_methods_are_idempotent_by_name_or_by_service() -> None:
    config = ClientConfig(idempotent_methods=("/a.A/Get", "/b.B/*"))

    assert config.is_idempotent("/a.A/Get")
    assert config.is_idempotent("/b.B/Anything")
    assert not config.is_idempotent("/a.A/Set")
    assert not config.is_idempotent("/b/B")


def test_the_environment_says_the_client_s_index_where_the_config_does_not() -> None:
    config = ClientConfig()
    given = ClientConfig(task=ClientTaskConfig(membership=MembershipConfig(client_index=3)))
    environment = {"EVENLY_CLIENT_INDEX": "7"}

    assert config.resolved_task({}).membership.client_index is None
    assert config.resolved_task(environment).membership.client_index == 7
    assert given.resolved_task(environment).membership.client_index == 3
