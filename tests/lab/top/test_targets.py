from __future__ import annotations

import json

import pytest

from evenly.errors import ConfigError
from evenly.lab.top.targets import TARGETS_MAX, is_document, parse_target, read_document


@pytest.mark.parametrize(
    ("text", "url", "instance"),
    [
        ("localhost:9000", "http://localhost:9000/metrics", "localhost:9000"),
        ("http://localhost:9000", "http://localhost:9000/metrics", "localhost:9000"),
        ("http://localhost:9000/", "http://localhost:9000/metrics", "localhost:9000"),
        ("https://host", "https://host/metrics", "host"),
        ("[::1]:9000", "http://[::1]:9000/metrics", "[::1]:9000"),
        ("http://host:1/targets", "http://host:1/targets", "host:1/targets"),
        ("http://host:1/m?a=b", "http://host:1/m?a=b", "host:1/m"),
    ],
)
def test_addresses_are_completed(text: str, url: str, instance: str) -> None:
    target = parse_target(text)

    assert (target.url, target.instance) == (url, instance)


def test_where_and_what_to_ask() -> None:
    target = parse_target("https://[::1]/m?a=b")

    assert target.origin == ("https", "::1", 443)
    assert target.path == "/m?a=b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":1",
        "host:0",
        "host:x",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "höst:1",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="an address must be"):
        parse_target(text)


@pytest.mark.parametrize("text", ["host:1\r\nX: y", "host:1/a b", "host:1/\x1b"])
def test_nothing_slips_into_the_request(text: str) -> None:
    with pytest.raises(ConfigError, match="ASCII without spaces"):
        parse_target(text)


def document(*addresses: object, **labels: object) -> bytes:
    return json.dumps([{"targets": list(addresses), "labels": labels}]).encode()


def test_a_document_of_service_discovery() -> None:
    body = json.dumps(
        [
            {"targets": ["a:1", "b:2", "a:1"]},
            {"targets": ["c:3"], "labels": {"instance": "b3", "job": "x"}},
            {"targets": ["e:5"], "labels": {"name": "b5", "role": "backend"}},
            {"targets": ["d:4"], "labels": {"__scheme__": "https", "__metrics_path__": "/m"}},
        ]
    ).encode()

    assert is_document(body)
    assert [(target.url, target.instance) for target in read_document(body)] == [
        ("http://a:1/metrics", "a:1"),
        ("http://b:2/metrics", "b:2"),
        ("http://c:3/metrics", "b3"),
        ("http://e:5/metrics", "b5"),
        ("https://d:4/m", "d:4/m"),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[1", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1]", 'must have "targets"'),
        (b'[{"targets": "a:1"}]', 'must have "targets"'),
        (document(7), "a target must be host:port, not 7"),
        (document("http://a:1/x"), "a target must be host:port, not 'http://a:1/x'"),
        (document("a:1", __scheme__="file"), "an address must be host:port or http"),
        (document(*(f"a:{n}" for n in range(1, TARGETS_MAX + 2))), "more than 500 targets"),
        (document(*["a:1"] * (TARGETS_MAX + 1)), "more than 500 targets"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_document(body: bytes, message: str) -> None:
    assert is_document(body)
    with pytest.raises(ConfigError, match=message):
        read_document(body)


def test_a_page_is_no_document() -> None:
    assert not is_document(b"# HELP evenly_backend_utilization\n")
    assert not is_document(b"")
