from __future__ import annotations

from typing import Any

import pytest

from evenly.errors import ConfigError
from evenly.probe.config import KEY_VARIABLE, ProbeConfig


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_by_default_probes_are_on_without_a_key_on_the_services_port() -> None:
    config = ProbeConfig()

    assert (config.is_on, config.key, config.port) == (True, None, None)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLY_PROBE_KEY", "0123456789abcdef")

    assert ProbeConfig().key == b"0123456789abcdef"
    assert ProbeConfig(key=None).key is None


def test_an_empty_variable_is_a_mistake_and_not_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLY_PROBE_KEY", "")

    with pytest.raises(ConfigError, match=r"EVENLY_PROBE_KEY.*16 to 1024 bytes, not 0 bytes"):
        ProbeConfig()


def test_the_key_is_never_shown() -> None:
    assert "sixteen" not in repr(ProbeConfig(key=b"sixteen bytes..."))
    with pytest.raises(ConfigError) as caught:
        ProbeConfig(key=b"secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": bytes(15)},
        {"key": bytes(1025)},
        {"key": "a string of 16 b"},
        {"port": -1},
        {"port": 65536},
        {"port": float("nan")},
        {"port": True},
        {"is_on": 1},
    ],
    ids=str,
)
def test_a_value_out_of_its_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ProbeConfig(**wrong)


def test_the_ends_of_the_ranges_are_fine() -> None:
    ProbeConfig(key=bytes(16), port=0)
    ProbeConfig(key=bytes(1024), port=65535)
