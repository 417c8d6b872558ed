"""The order of options: gRPC takes the first of two with one name."""

from __future__ import annotations

from evenly.grpc.common.options import channel_options, merged, server_options


def test_forced_ones_stand_first_and_a_default_is_left_out_where_the_user_gives_it() -> None:
    given = [("a", 2), ("b", 2)]

    assert merged([("a", 1)], given, [("b", 3), ("c", 3)]) == (
        ("a", 1),
        ("a", 2),
        ("b", 2),
        ("c", 3),
    )


def test_what_evenly_does_not_work_without_cannot_be_overridden() -> None:
    given = [("grpc.enable_retries", 1), ("grpc.use_local_subchannel_pool", 0)]
    options = channel_options("static:127.0.0.1:1", given)

    first = dict(reversed(options))
    assert first["grpc.enable_retries"] == 0
    assert first["grpc.use_local_subchannel_pool"] == 1


def test_the_user_s_keepalive_and_authority_stand_before_ours() -> None:
    given = [("grpc.keepalive_time_ms", 1_000), ("grpc.default_authority", "other.test")]
    options = channel_options("dns:///search.test:443", given)

    assert [value for name, value in options if name == "grpc.keepalive_time_ms"] == [1_000]
    assert [value for name, value in options if name == "grpc.default_authority"] == ["other.test"]


def test_a_name_to_check_certificates_for_is_the_authority_too() -> None:
    given = [("grpc.ssl_target_name_override", "other.test")]

    assert "grpc.default_authority" in dict(channel_options("dns:///search.test:443", []))
    assert "grpc.default_authority" not in dict(channel_options("dns:///search.test:443", given))


def test_a_server_s_user_may_forbid_pings() -> None:
    options = server_options([("grpc.keepalive_permit_without_calls", 0)])

    assert [v for name, v in options if name == "grpc.keepalive_permit_without_calls"] == [0]
    assert "grpc.http2.min_recv_ping_interval_without_data_ms" in dict(options)
