from __future__ import annotations

import pytest

from evenly.core.balancing.backend import Backend
from evenly.probe.peer import Peer, Question

T = 1_000.25
V4 = 2
TARGET = (V4, ("192.0.2.1", 50051))


def peer_asked(at: list[float], address: str = "192.0.2.1:50051") -> tuple[Peer, list[Question]]:
    """Return a peer and its questions, sent at these instants as a prober does."""
    peer = Peer(Backend(address))
    sent = []
    for nonce, now in enumerate(at):
        while peer.pop_old_question(now) is not None:
            pass
        sent.append(peer.ask(nonce, TARGET, now, None))
    return peer, sent


def test_a_backend_that_was_never_asked_is_not_answering() -> None:
    assert not Peer(Backend("192.0.2.1:50051")).is_answering(T)


def test_a_backend_that_never_answered_is_not_answering() -> None:
    peer, _ = peer_asked([T + number for number in range(8)])

    assert not peer.is_answering(T + 8.0)


def test_an_answer_in_the_last_two_seconds_is_enough() -> None:
    peer, sent = peer_asked([T, *(T + 0.1 + 0.01 * number for number in range(63))])
    peer.record_answer(sent[0], T + 0.1)

    # The last four that are older than half a second are all unanswered.
    assert peer.is_answering(T + 0.1 + 2.0)
    assert not peer.is_answering(T + 0.1 + 2.001)


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        pytest.param(0, False, id="the fifth to last"),
        pytest.param(1, True, id="the fourth to last"),
        pytest.param(4, True, id="the last"),
    ],
)
def test_one_answered_of_the_last_four_is_enough_at_any_pace(answered: int, expected: bool) -> None:
    # A client in idle mode: one question in ten seconds.
    peer, sent = peer_asked([T + 10.0 * number for number in range(5)])
    peer.record_answer(sent[answered], T + 10.0 * answered + 0.01)

    assert peer.is_answering(T + 10.0 * 4 + 2.5) is expected


def test_a_question_younger_than_half_a_second_does_not_count_as_unanswered() -> None:
    peer, sent = peer_asked([T, T + 10.0, T + 20.0, T + 30.0, T + 40.0])
    peer.record_answer(sent[0], T + 0.01)

    assert peer.is_answering(T + 40.0 + 0.499)
    assert not peer.is_answering(T + 40.0 + 0.5)


def test_a_burst_after_silence_does_not_count_before_it_could_be_answered() -> None:
    peer, sent = peer_asked([T])
    peer.record_answer(sent[0], T + 0.01)
    for number in range(10):  # three stay remembered of which none is old enough
        now = T + 60.0 + 0.001 * number
        while peer.pop_old_question(now) is not None:
            pass
        peer.ask(100 + number, TARGET, now, None)

    assert peer.is_answering(T + 60.4)
    assert not peer.is_answering(T + 60.6)


def test_a_burst_does_not_hide_that_the_four_before_it_went_unanswered() -> None:
    peer, sent = peer_asked([*(T + 10.0 * number for number in range(5)), *[T + 60.0] * 3])
    peer.record_answer(sent[0], T + 0.01)
    assert list(peer.questions) == sent[-3:]

    assert not peer.is_answering(T + 60.1)


def test_at_most_64_questions_are_remembered() -> None:
    peer, sent = peer_asked([T] * 1_000)

    assert list(peer.questions) == sent[-64:]


def test_questions_are_forgotten_after_two_seconds_but_for_the_last_three() -> None:
    peer, sent = peer_asked([T, T, T, T, T, T + 2.001])
    assert list(peer.questions) == sent[-3:]

    peer, sent = peer_asked([T, T, T, T, T, T + 2.0])
    assert list(peer.questions) == sent


def test_an_answer_is_waited_for_once_and_for_two_seconds() -> None:
    peer, (question,) = peer_asked([T])
    assert question.may_be_answered(T + 2.0)
    assert not question.may_be_answered(T + 2.001)

    peer.record_answer(question, T)
    assert not question.may_be_answered(T)


def test_a_notice_is_believed_with_one_of_the_last_three_nonces_however_old() -> None:
    _, sent = peer_asked([T, T, T, T, T])

    assert [question.may_be_noticed() for question in sent] == [False, False, True, True, True]


def test_a_name_without_an_address_is_looked_up_and_a_literal_never() -> None:
    assert Peer(Backend("backend.invalid:1")).should_look_up(T)
    assert not Peer(Backend("192.0.2.1:1")).should_look_up(T)
    assert not Peer(Backend("unix:/tmp/socket")).should_look_up(T)


def test_a_late_answer_to_an_older_question_does_not_make_the_newer_one_unanswered() -> None:
    peer, sent = peer_asked([T + 10.0 * number for number in range(6)])
    peer.record_answer(sent[5], T + 50.1)
    peer.record_answer(sent[1], T + 50.2)

    assert peer.is_answering(T + 60.0)
