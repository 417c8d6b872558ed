from __future__ import annotations

from evenly.probe.limit import AnswerLimit

T = 1_000.25


def test_a_source_gets_its_answers_and_no_more_within_a_window() -> None:
    limit = AnswerLimit(answers_per_second=3, sources_max=10)

    assert [limit.admit("192.0.2.1", T) for _ in range(5)] == [True, True, True, False, False]
    assert limit.admit("192.0.2.2", T)  # another source has its own


def test_the_next_window_begins_a_second_later() -> None:
    limit = AnswerLimit(answers_per_second=1, sources_max=10)
    limit.admit("192.0.2.1", T)

    assert not limit.admit("192.0.2.1", T + 0.999)
    assert limit.admit("192.0.2.1", T + 1.0)


def test_all_addresses_of_one_ipv6_network_are_one_source() -> None:
    limit = AnswerLimit(answers_per_second=2, sources_max=10)

    assert limit.admit("2001:db8::1", T)
    assert limit.admit("2001:db8::ffff:2", T)
    assert not limit.admit("2001:db8:0:0:9::3", T)
    assert limit.admit("2001:db8:0:1::1", T)


def test_ipv4_addresses_on_a_socket_for_both_families_are_sources_of_their_own() -> None:
    limit = AnswerLimit(answers_per_second=1, sources_max=10)

    assert limit.admit("::ffff:192.0.2.1", T)
    assert limit.admit("::ffff:192.0.2.2", T)
    assert not limit.admit("::ffff:192.0.2.1", T)


def test_sources_beyond_the_table_share_one_count_and_harm_none_that_are_in_it() -> None:
    limit = AnswerLimit(answers_per_second=2, sources_max=3)
    for source in ("a", "b", "c"):
        assert limit.admit(source, T)

    admitted = [limit.admit(f"late-{number}", T) for number in range(1000)]

    assert admitted.count(True) == 2
    assert limit.admit("a", T)
    assert len(limit) == 3 + 1
    assert limit.admit("late-1", T + 1.0)
    assert len(limit) == 1
