from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from evenly.core.balancing.health import Health, HealthConfig, State
from evenly.errors import ConfigError

HEALTHY = State.HEALTHY
LAME_DUCK = State.LAME_DUCK
REFUSING = State.REFUSING
START = 1_000.0
BOOT = 5_000


class SameDraw(random.Random):
    """Give one number for ever: 0.5 is no jitter."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self._number = number

    def random(self) -> float:
        return self._number


# What a draw of a half makes of the jitter of 1 s.
SOON = 0.5


def new_health(*, draw: float = 0.5) -> Health:
    return Health(HealthConfig(), now=START, rng=SameDraw(draw))


def connected() -> Health:
    health = new_health()
    health.opened(START)
    health.check(START, may_go_silent=True)  # Skipped: the opening was something heard.
    return health


def silenced() -> Health:
    """Return one that left three checks unanswered."""
    health = connected()
    for _ in range(4):
        health.check(START, may_go_silent=True)
    return health


def lame() -> Health:
    health = connected()
    health.said(BOOT, 1, START, lame_duck=True)
    return health


def refused() -> Health:
    health = new_health()
    health.refused(START)
    return health


def watched_lame() -> Health:
    health = connected()
    health.watched(serving=False)
    return health


def idle() -> Health:
    health = connected()
    health.rest()
    return health


def idle_lame() -> Health:
    health = idle()
    health.said(BOOT, 1, START, lame_duck=True)  # by UDP
    return health


def idle_silenced() -> Health:
    """Return one that was asked at the 10th, 20th and 30th check, and never answered."""
    health = idle()
    for _ in range(40):
        health.check(START, may_go_silent=True)
    return health


def test_a_new_one_is_refusing_but_untried_and_to_be_connected_at_once() -> None:
    health = new_health()

    assert health.state is REFUSING
    assert health.is_untried
    assert health.connect_at == START


# Every state and every event: what reachable and lame duck make of it.
@pytest.mark.parametrize(
    ("make", "event", "expected"),
    [
        pytest.param(new_health, "opened", HEALTHY, id="untried, opened"),
        pytest.param(new_health, "refused", REFUSING, id="untried, refused"),
        pytest.param(new_health, "lost", REFUSING, id="untried, lost"),
        pytest.param(new_health, "heard", REFUSING, id="untried, heard"),
        pytest.param(new_health, "said healthy", REFUSING, id="untried, said healthy"),
        pytest.param(new_health, "said lame", REFUSING, id="untried, said lame"),
        pytest.param(new_health, "not serving", REFUSING, id="untried, not serving"),
        pytest.param(new_health, "serving", REFUSING, id="untried, serving"),
        pytest.param(connected, "opened", HEALTHY, id="healthy, opened"),
        pytest.param(connected, "refused", REFUSING, id="healthy, refused"),
        pytest.param(connected, "lost", REFUSING, id="healthy, lost"),
        pytest.param(connected, "heard", HEALTHY, id="healthy, heard"),
        pytest.param(connected, "said healthy", HEALTHY, id="healthy, said healthy"),
        pytest.param(connected, "said lame", LAME_DUCK, id="healthy, said lame"),
        pytest.param(connected, "not serving", LAME_DUCK, id="healthy, not serving"),
        pytest.param(connected, "serving", HEALTHY, id="healthy, serving"),
        pytest.param(lame, "opened", LAME_DUCK, id="lame, opened: maybe the same process"),
        pytest.param(lame, "refused", REFUSING, id="lame, refused"),
        pytest.param(lame, "lost", REFUSING, id="lame, lost"),
        pytest.param(lame, "heard", LAME_DUCK, id="lame, heard"),
        pytest.param(lame, "said healthy", HEALTHY, id="lame, said healthy later"),
        pytest.param(lame, "said lame", LAME_DUCK, id="lame, said lame"),
        pytest.param(lame, "not serving", LAME_DUCK, id="lame, not serving"),
        pytest.param(lame, "serving", LAME_DUCK, id="lame, serving: Watch has no order"),
        pytest.param(watched_lame, "opened", HEALTHY, id="not serving, opened"),
        pytest.param(watched_lame, "refused", REFUSING, id="not serving, refused"),
        pytest.param(watched_lame, "lost", REFUSING, id="not serving, lost"),
        pytest.param(watched_lame, "heard", LAME_DUCK, id="not serving, heard"),
        pytest.param(watched_lame, "said healthy", LAME_DUCK, id="not serving, first report"),
        pytest.param(watched_lame, "said lame", LAME_DUCK, id="not serving, said lame"),
        pytest.param(watched_lame, "not serving", LAME_DUCK, id="not serving, not serving"),
        pytest.param(watched_lame, "serving", HEALTHY, id="not serving, serving"),
        pytest.param(silenced, "opened", REFUSING, id="silent, opened: by the kernel alone"),
        pytest.param(silenced, "refused", REFUSING, id="silent, refused"),
        pytest.param(silenced, "lost", REFUSING, id="silent, lost"),
        pytest.param(silenced, "heard", HEALTHY, id="silent, heard"),
        pytest.param(refused, "opened", HEALTHY, id="refusing, opened"),
        pytest.param(refused, "refused", REFUSING, id="refusing, refused"),
        pytest.param(refused, "lost", REFUSING, id="refusing, lost"),
        pytest.param(refused, "heard", REFUSING, id="refusing, heard: no connection yet"),
        pytest.param(refused, "said healthy", REFUSING, id="refusing, said healthy"),
        pytest.param(refused, "serving", REFUSING, id="refusing, serving"),
        pytest.param(idle, "opened", HEALTHY, id="idle, opened"),
        pytest.param(idle, "refused", REFUSING, id="idle, refused"),
        pytest.param(idle, "lost", HEALTHY, id="idle, lost: there is none to lose"),
        pytest.param(idle, "heard", HEALTHY, id="idle, heard"),
        pytest.param(idle, "said healthy", HEALTHY, id="idle, said healthy"),
        pytest.param(idle, "said lame", LAME_DUCK, id="idle, said lame"),
        pytest.param(idle, "not serving", HEALTHY, id="idle, not serving: of the closed one"),
        pytest.param(idle, "serving", HEALTHY, id="idle, serving"),
        pytest.param(idle_lame, "opened", LAME_DUCK, id="idle lame duck, opened"),
        pytest.param(idle_lame, "refused", REFUSING, id="idle lame duck, refused"),
        pytest.param(idle_lame, "lost", LAME_DUCK, id="idle lame duck, lost"),
        pytest.param(idle_lame, "heard", LAME_DUCK, id="idle lame duck, heard"),
        pytest.param(idle_lame, "said healthy", HEALTHY, id="idle lame duck, said healthy later"),
        pytest.param(idle_lame, "serving", LAME_DUCK, id="idle lame duck, serving: of the closed"),
        pytest.param(idle_silenced, "opened", REFUSING, id="idle and silent, opened"),
        pytest.param(idle_silenced, "refused", REFUSING, id="idle and silent, refused"),
        pytest.param(idle_silenced, "lost", REFUSING, id="idle and silent, lost"),
        pytest.param(idle_silenced, "heard", HEALTHY, id="idle and silent, heard"),
    ],
)
def test_transition(make: Callable[[], Health], event: str, expected: State) -> None:
    health = make()

    later = START + 60.0
    events: dict[str, Callable[[], object]] = {
        "opened": lambda: health.opened(later),
        "refused": lambda: health.refused(later),
        "lost": lambda: health.lost(later),
        "heard": health.heard,
        "said healthy": lambda: health.said(BOOT, 2, START, lame_duck=False),
        "said lame": lambda: health.said(BOOT, 2, START, lame_duck=True),
        "serving": lambda: health.watched(serving=True),
        "not serving": lambda: health.watched(serving=False),
    }
    events[event]()

    assert health.state is expected


def test_what_was_said_before_the_connection_stood_counts_once_it_stands() -> None:
    health = new_health()
    health.said(BOOT, 1, START, lame_duck=True)  # by UDP
    health.opened(START)

    assert health.state is LAME_DUCK


def test_delays_grow_by_1_6_up_to_120() -> None:
    health = new_health(draw=0.5)
    delays = []
    now = START
    for _ in range(13):
        health.refused(now)
        assert health.connect_at is not None
        delays.append(health.connect_at - now)
        now = health.connect_at

    # 1.6⁰, 1.6¹, 1.6² ... 1.6¹⁰ = 109.95; 1.6¹¹ = 175.9 is above the bound.
    assert delays == pytest.approx(
        [
            1.0,
            1.6,
            2.56,
            4.096,
            6.5536,
            10.48576,
            16.777216,
            26.8435456,
            42.94967296,
            68.719476736,
            109.9511627776,
            120.0,
            120.0,
        ]
    )


@pytest.mark.parametrize(
    ("draw", "first", "second"),
    [
        pytest.param(0.0, 0.8, 1.28, id="the shortest: − 20 %"),
        pytest.param(0.25, 0.9, 1.44, id="half of that"),
        pytest.param(0.5, 1.0, 1.6, id="the middle"),
        pytest.param(1.0, 1.2, 1.92, id="the longest: + 20 %"),
    ],
)
def test_jitter_spreads_each_delay_but_not_the_growth(
    draw: float, first: float, second: float
) -> None:
    health = new_health(draw=draw)
    health.refused(START)
    assert health.connect_at == pytest.approx(START + first)
    health.refused(START + 10.0)
    assert health.connect_at == pytest.approx(START + 10.0 + second)


def test_jitter_may_pass_the_longest_delay() -> None:
    health = new_health(draw=1.0)
    for _ in range(20):
        health.refused(START)

    assert health.connect_at == pytest.approx(START + 144.0)  # 120 · 1.2


@pytest.mark.parametrize(
    ("draw", "delay"),
    [
        pytest.param(0.0, 0.0, id="the first of a thousand client tasks: at once"),
        pytest.param(0.25, 0.25, id="a quarter of them before this one"),
        pytest.param(0.999, 0.999, id="the last of them: after 1 s"),
    ],
)
def test_a_lost_connection_is_tried_again_within_a_second(draw: float, delay: float) -> None:
    health = new_health(draw=draw)
    health.opened(START)
    health.lost(START + 1.0)

    assert health.connect_at == START + 1.0 + delay
    assert not health.is_connection_due(START + 1.0 + delay - 0.001)
    assert health.is_connection_due(START + 1.0 + delay)
    assert health.state is REFUSING
    assert health.is_untried  # Nobody knows whether it still accepts.


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(new_health, False, id="untried"),
        pytest.param(connected, False, id="healthy"),
        pytest.param(lame, False, id="lame duck"),
        pytest.param(refused, True, id="refused"),
        pytest.param(silenced, True, id="silent"),
    ],
)
def test_refusing_is_what_is_known_not_to_accept(
    make: Callable[[], Health], expected: bool
) -> None:
    assert make().is_refusing is expected


@pytest.mark.parametrize(
    ("stood", "expected"),
    [
        pytest.param(0.5, True, id="accepted and dropped: as good as refused"),
        pytest.param(60.0, False, id="stood for long: nobody knows"),
    ],
)
def test_a_lost_connection_refuses_only_if_it_was_short_lived(stood: float, expected: bool) -> None:
    health = connected()
    health.lost(START + stood)

    assert health.is_refusing is expected
    assert health.is_untried is not expected


def test_a_short_lived_connection_that_has_answered_is_tried_again_soon() -> None:
    health = connected()
    health.answered(START + 0.1)
    health.lost(START + 0.5)

    assert not health.is_refusing
    assert health.connect_at == START + 0.5 + SOON


def test_an_answer_speaks_for_its_own_connection_only() -> None:
    health = connected()
    health.answered(START + 0.1)
    health.lost(START + 0.5)
    health.opened(START + 0.6)
    health.lost(START + 0.7)

    assert health.is_refusing


def test_a_connection_that_stood_for_long_forgives_the_delays_before_it() -> None:
    health = new_health()
    for _ in range(5):
        health.refused(START)
    health.opened(START + 10.0)
    health.lost(START + 3_600.0)
    assert health.connect_at == START + 3_600.0 + SOON
    health.refused(START + 3_600.5)

    assert health.connect_at == START + 3_601.5  # the first delay again


def test_a_connection_dropped_as_soon_as_it_was_accepted_is_no_busy_loop() -> None:
    health = new_health()
    now = START
    tries = 0
    while now < START + 60.0:
        health.opened(now)
        tries += 1
        health.lost(now + 0.01)
        assert health.connect_at is not None
        now = health.connect_at

    # The delays 1, 1.6, 2.56 ... sum to 24.9 after six, 41.7 after seven and 68.6 after eight
    # (plus a hundredth each), so that the ninth try would come after a minute.
    assert tries == 8


@pytest.mark.parametrize(
    ("stood", "delay"),
    [
        pytest.param(0.99, 1.0, id="shorter than the first delay: back off"),
        pytest.param(1.0, SOON, id="as long as the first delay: soon"),
    ],
)
def test_short_lived_is_shorter_than_the_first_delay(stood: float, delay: float) -> None:
    health = connected()
    health.lost(START + stood)

    assert health.connect_at == START + stood + delay


def test_the_transport_is_told_once() -> None:
    health = new_health()
    health.connecting()

    assert health.connect_at is None
    health.opened(START)
    assert health.connect_at is None


def test_silence_is_three_unanswered_checks_in_a_row() -> None:
    health = connected()

    asked = [health.check(START, may_go_silent=True) for _ in range(3)]
    assert asked == [True, True, True]
    assert health.state is HEALTHY  # The third has its whole interval, too.
    assert health.check(START, may_go_silent=True)  # A silent backend is still asked.
    assert health.state is REFUSING
    assert health.is_silent


def test_any_byte_answers_a_check() -> None:
    health = connected()
    for _ in range(3):
        health.check(START, may_go_silent=True)
    health.heard()

    assert not health.check(START, may_go_silent=True)  # Heard since the last: skipped.
    asked = [health.check(START, may_go_silent=True) for _ in range(3)]
    assert asked == [True, True, True]
    assert health.state is HEALTHY  # The count began anew.
    health.check(START, may_go_silent=True)
    assert health.state is REFUSING


def test_a_check_is_skipped_only_once_for_what_was_heard() -> None:
    health = connected()
    health.heard()
    health.heard()

    assert not health.check(START, may_go_silent=True)
    assert health.check(START, may_go_silent=True)


def test_a_backend_without_a_connection_is_not_asked_and_not_silent() -> None:
    health = refused()

    assert not any(health.check(START, may_go_silent=True) for _ in range(10))
    assert not health.is_silent


def test_panic_keeps_a_silent_backend_in_until_there_is_room() -> None:
    health = connected()
    for _ in range(10):
        assert health.check(START, may_go_silent=False)
    assert health.state is HEALTHY

    health.check(START, may_go_silent=True)
    assert health.state is REFUSING


def test_a_silent_backend_that_speaks_is_back() -> None:
    health = silenced()
    assert health.state is REFUSING
    health.heard()

    assert health.state is HEALTHY
    assert not health.is_silent


def test_a_lame_duck_that_was_silent_comes_back_as_one() -> None:
    health = lame()
    for _ in range(4):
        health.check(START, may_go_silent=True)
    assert health.state is REFUSING
    health.heard()

    assert health.state is LAME_DUCK


def test_a_connection_just_opened_answers_the_first_check() -> None:
    health = new_health()
    health.opened(START)

    assert not health.check(START, may_go_silent=True)
    assert health.check(START, may_go_silent=True)


def test_a_silent_backend_is_reconnected_with_growing_delays() -> None:
    health = silenced()
    assert health.connect_at == START + 1.0
    health.check(START + 0.5, may_go_silent=True)
    assert health.connect_at == START + 1.0  # Going on being silent is nothing new.

    health.connecting()
    health.opened(START + 1.0)
    assert health.is_silent  # The kernel accepts for a process that is stopped.
    assert health.connect_at == START + 1.0 + 1.6
    health.opened(START + 3.0)
    assert health.connect_at == START + 3.0 + 2.56


def test_a_word_ends_the_silence_its_reconnect_and_its_delays() -> None:
    health = silenced()
    health.opened(START + 1.0)
    health.heard()
    assert health.state is HEALTHY
    assert health.connect_at is None

    assert not health.check(START + 9.0, may_go_silent=True)  # heard
    for _ in range(4):
        health.check(START + 10.0, may_go_silent=True)
    assert health.connect_at == START + 11.0  # the first delay again


def test_forgiving_a_silence_takes_back_its_reconnect() -> None:
    health = silenced()
    health.forgive()

    assert health.state is HEALTHY
    assert not health.is_silent
    assert health.connect_at is None


def test_there_is_nothing_to_forgive_in_a_refused_connection() -> None:
    health = refused()
    health.forgive()

    assert health.state is REFUSING
    assert health.connect_at == START + 1.0


@pytest.mark.parametrize(
    ("event", "connect_at"),
    [
        pytest.param("refused", START + 61.6, id="refused: it goes on backing off"),
        pytest.param("lost", START + 60.0 + SOON, id="lost: soon"),
    ],
)
def test_without_its_connection_a_backend_is_no_longer_silent(
    event: str, connect_at: float
) -> None:
    health = silenced()
    if event == "refused":
        health.refused(START + 60.0)
    else:
        health.lost(START + 60.0)

    assert not health.is_silent
    assert health.state is REFUSING
    assert health.connect_at == pytest.approx(connect_at)
    health.opened(START + 62.0)
    assert health.state is HEALTHY


def test_an_answer_shows_the_connection_of_a_transport_that_speaks_of_none() -> None:
    health = new_health()
    health.answered(START + 1.0)

    assert health.state is HEALTHY
    assert not health.is_untried
    assert health.connect_at is None


def test_a_late_answer_does_not_bring_a_lost_connection_back() -> None:
    health = connected()
    health.lost(START + 60.0)
    health.answered(START + 60.0)

    assert health.state is REFUSING
    assert health.connect_at == START + 60.0 + SOON


def test_an_answer_ends_a_silence() -> None:
    health = silenced()
    health.answered(START + 60.0)

    assert health.state is HEALTHY


# The known report is (5000, 3), a lame duck.
@pytest.mark.parametrize(
    ("boot", "sequence", "is_current", "expected"),
    [
        pytest.param(5_000, 2, False, LAME_DUCK, id="a late one"),
        pytest.param(5_000, 3, True, LAME_DUCK, id="of the same moment"),
        pytest.param(5_000, 4, True, HEALTHY, id="a newer one"),
        pytest.param(4_999, 9, False, LAME_DUCK, id="of an earlier process"),
        pytest.param(5_001, 0, True, HEALTHY, id="of a later process"),
    ],
)
def test_healthy_undoes_a_lame_duck_only_if_it_is_newer(
    boot: int, sequence: int, is_current: bool, expected: State
) -> None:
    health = connected()
    health.said(5_000, 3, START, lame_duck=True)

    assert health.said(boot, sequence, START, lame_duck=False) is is_current
    assert health.state is expected


@pytest.mark.parametrize(
    ("boot", "sequence", "expected"),
    [
        pytest.param(5_000, 2, HEALTHY, id="a late one"),
        pytest.param(5_000, 3, LAME_DUCK, id="of the same moment: the careful side"),
        pytest.param(5_000, 4, LAME_DUCK, id="a newer one"),
        pytest.param(4_999, 9, HEALTHY, id="of an earlier process"),
        pytest.param(5_001, 0, LAME_DUCK, id="of a later process, which starts as one"),
    ],
)
def test_a_late_lame_duck_does_not_undo_healthy(boot: int, sequence: int, expected: State) -> None:
    health = connected()
    health.said(5_000, 3, START, lame_duck=False)
    health.said(boot, sequence, START, lame_duck=True)

    assert health.state is expected


def test_a_clock_set_back_does_not_hide_the_next_process() -> None:
    health = connected()
    health.said(5_000, 3, START, lame_duck=True)
    health.lost(START + 60.0)
    health.opened(START + 61.0)

    assert health.said(4_000, 1, START, lame_duck=False)
    assert health.state is HEALTHY
    # And from then on that process's own order counts.
    assert not health.said(3_999, 9, START, lame_duck=True)
    assert not health.said(4_000, 0, START, lame_duck=True)
    assert health.state is HEALTHY


def test_a_straggler_of_the_process_before_a_clock_set_back_is_ignored() -> None:
    health = connected()
    health.said(5_000, 3, START, lame_duck=False)
    health.lost(START + 60.0)
    health.opened(START + 61.0)
    assert health.said(4_000, 0, START, lame_duck=False)  # the new process
    assert not health.said(5_000, 4, START, lame_duck=True)  # The old one's last word comes late.

    assert health.said(
        4_000, 0, START, lame_duck=False
    )  # The new one repeats itself in every response.
    assert health.state is HEALTHY


def test_a_straggler_is_ignored_on_a_later_connection_too() -> None:
    health = connected()
    health.said(4_000, 0, START, lame_duck=False)
    health.said(5_000, 0, START, lame_duck=False)
    health.lost(START + 60.0)
    health.opened(START + 61.0)

    assert not health.said(4_000, 1, START, lame_duck=True)
    assert health.state is HEALTHY


def test_a_process_that_knows_nothing_of_boots_may_follow_one_that_does() -> None:
    health = connected()
    health.said(0, 0, START, lame_duck=False)
    health.said(5_000, 3, START, lame_duck=True)
    health.lost(START + 60.0)
    health.opened(START + 61.0)

    assert health.said(
        0, 0, START, lame_duck=False
    )  # 0 is nobody's boot, and so nobody's straggler.
    assert health.state is HEALTHY


def test_a_reconnect_to_the_same_process_keeps_the_order() -> None:
    health = connected()
    health.said(5_000, 3, START, lame_duck=True)
    health.lost(START + 60.0)
    health.opened(START + 61.0)

    assert not health.said(5_000, 2, START, lame_duck=False)
    assert health.state is LAME_DUCK


def test_serving_does_not_override_a_report_of_the_same_connection() -> None:
    health = connected()
    health.said(BOOT, 1, START, lame_duck=True)
    health.watched(serving=True)

    assert health.state is LAME_DUCK


def test_serving_on_a_new_connection_overrides_the_report_of_an_old_one() -> None:
    health = connected()
    health.said(BOOT, 1, START, lame_duck=True)
    health.lost(START + 60.0)
    health.opened(START + 61.0)
    health.watched(serving=True)

    assert health.state is HEALTHY


def test_not_serving_counts_for_its_connection_only() -> None:
    health = connected()
    health.watched(serving=False)
    health.lost(START + 60.0)
    health.opened(START + 61.0)

    assert health.state is HEALTHY


def test_an_old_healthy_report_repeated_does_not_undo_not_serving() -> None:
    health = connected()
    health.said(BOOT, 1, START, lame_duck=False)
    health.watched(serving=False)
    health.said(BOOT, 1, START, lame_duck=False)  # Every response repeats it.

    assert health.state is LAME_DUCK


def test_whoever_listens_after_a_refusal_is_not_yet_a_lame_duck() -> None:
    health = connected()
    health.said(BOOT, 1, START, lame_duck=True)
    health.lost(START + 60.0)
    health.refused(START + 60.0)
    health.opened(START + 62.0)

    assert health.state is HEALTHY


def test_the_default_report_of_a_backend_that_knows_nothing_of_boots_is_current() -> None:
    health = connected()

    assert health.said(0, 0, START, lame_duck=False)
    assert health.said(0, 0, START, lame_duck=False)
    assert health.state is HEALTHY


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"check_seconds": 0.0}, "check_seconds must be", id="no interval"),
        pytest.param({"check_seconds": math.nan}, "check_seconds must be", id="NaN interval"),
        pytest.param({"unanswered_checks": 0}, "unanswered_checks must be", id="no checks"),
        pytest.param({"silent_max_ratio": 1.1}, "silent_max_ratio must be", id="more than all"),
        pytest.param({"silent_max_ratio": math.nan}, "silent_max_ratio must be", id="NaN part"),
        pytest.param({"backoff_first_seconds": 0.0}, "backoff_first_seconds", id="no delay"),
        pytest.param({"backoff_factor": 0.9}, "backoff_factor must be", id="shrinking delays"),
        pytest.param({"backoff_max_seconds": 0.5}, "backoff_max_seconds", id="most below first"),
        pytest.param({"backoff_max_seconds": math.inf}, "backoff_max_seconds", id="for ever"),
        pytest.param({"backoff_jitter_ratio": 1.0}, "backoff_jitter_ratio", id="all jitter"),
        pytest.param({"backoff_jitter_ratio": -0.1}, "backoff_jitter_ratio", id="negative jitter"),
        pytest.param({"connect_jitter_seconds": -0.1}, "connect_jitter_seconds", id="in the past"),
        pytest.param({"connect_jitter_seconds": math.nan}, "connect_jitter_seconds", id="NaN s"),
        pytest.param({"idle_seconds": 0.0}, "idle_seconds must be", id="idle at once"),
        pytest.param({"idle_seconds": math.nan}, "idle_seconds must be", id="idle after NaN s"),
        pytest.param({"idle_check_every": 0}, "idle_check_every must be", id="never checked"),
    ],
)
def test_a_wrong_config_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HealthConfig(**settings)  # type: ignore[arg-type]


def test_not_serving_is_undone_by_a_later_word_of_a_known_boot() -> None:
    health = connected()
    health.said(BOOT, 1, START, lame_duck=False)
    health.watched(serving=False)
    assert not health.said(BOOT, 0, START, lame_duck=False)
    health.said(BOOT, 1, START, lame_duck=False)
    assert health.state is LAME_DUCK

    health.said(BOOT, 2, START, lame_duck=False)
    assert health.state is HEALTHY


def test_a_straggler_two_boots_old_changes_nothing_after_a_reconnect() -> None:
    health = connected()
    for boot in (BOOT, BOOT + 100, BOOT + 200):
        assert health.said(boot, 1, START, lame_duck=False)
    health.lost(START + 60.0)
    health.opened(START + 61.0)
    assert health.said(BOOT + 200, 1, START, lame_duck=False)

    assert not health.said(BOOT, 5, START, lame_duck=True)
    assert health.state is HEALTHY


def test_a_lame_duck_that_drops_a_new_connection_stays_one() -> None:
    health = connected()
    health.said(BOOT, 2, START, lame_duck=True)
    health.lost(START + 60.0)
    health.opened(START + 61.0)
    health.lost(START + 61.5)  # Half a second old: it counts as refused, but says nothing new.
    assert health.connect_at is not None
    assert health.connect_at > START + 61.5
    health.opened(START + 63.0)

    assert health.state is LAME_DUCK


def test_a_connection_under_way_is_not_ordered_again() -> None:
    health = new_health()
    assert health.is_connection_due(START)
    health.connecting()
    health.lost(START + 1.0)  # There is none to lose.
    assert health.connect_at is None
    assert not health.is_connection_due(START + 100.0)

    health.refused(START + 2.0)
    assert health.is_connection_due(START + 100.0)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(new_health, True, id="untried"),
        pytest.param(idle, True, id="idle"),
        pytest.param(connected, False, id="it has one"),
    ],
)
def test_a_request_has_a_connection_opened_at_once(
    make: Callable[[], Health], expected: bool
) -> None:
    health = make()

    assert health.demand(START + 60.0) is expected
    assert health.is_connection_due(START + 60.0) is expected


def test_a_request_does_not_wait_for_the_jitter_of_a_lost_connection() -> None:
    health = connected()
    health.lost(START + 60.0)
    assert not health.is_connection_due(START + 60.1)

    assert health.demand(START + 60.1)
    assert health.is_connection_due(START + 60.1)


def test_a_connection_is_demanded_once() -> None:
    health = new_health()
    assert health.demand(START)
    health.connecting()

    assert not health.demand(START + 0.1)  # It is under way, and they wait for it too.
    assert not health.is_connection_due(START + 0.1)


def test_an_idle_backend_has_no_connection_and_none_is_due_until_one_is_demanded() -> None:
    health = idle()

    assert (health.is_idle, health.is_connected, health.state) == (True, False, HEALTHY)
    assert not health.is_connection_due(START + 3_600.0)
    health.demand(START + 3_600.0)
    health.connecting()
    assert health.is_idle  # until the connection stands, so that it can be picked
    health.opened(START + 3_600.1)
    assert (health.is_idle, health.is_connected, health.state) == (False, True, HEALTHY)


def test_an_idle_backend_that_refuses_is_idle_no_longer_and_backs_off() -> None:
    health = idle()
    health.refused(START + 60.0)

    assert not health.is_idle
    assert health.is_refusing
    assert health.connect_at == START + 61.0


def test_an_idle_backend_is_asked_at_every_tenth_check() -> None:
    health = idle()
    asked = []
    for number in range(1, 31):
        if health.check(START, may_go_silent=True):
            asked.append(number)
            health.heard()

    # It answers the 10th, so that the 20th is skipped, as ever.
    assert asked == [10, 30]


def test_an_idle_backend_is_silent_after_three_checks_at_a_tenth_of_the_rate() -> None:
    health = idle()
    asked = [n for n in range(1, 40) if health.check(START, may_go_silent=True)]
    assert asked == [10, 20, 30]
    assert health.state is HEALTHY

    assert health.check(START + 40.0, may_go_silent=True)
    assert health.is_silent
    assert health.is_refusing
    # A connection shows whether it is there, and then it is asked at every check.
    assert health.connect_at == START + 41.0
    health.connecting()
    health.opened(START + 41.0)
    assert health.is_silent
    assert [health.check(START + 42.0, may_go_silent=True) for _ in range(3)] == [True, True, True]


def test_an_idle_backend_that_speaks_after_a_silence_is_idle_again() -> None:
    health = idle_silenced()
    health.heard()

    assert (health.state, health.is_idle) == (HEALTHY, True)
    assert not health.is_connection_due(START + 3_600.0)


def test_how_often_an_idle_backend_is_asked_is_a_setting() -> None:
    health = Health(HealthConfig(idle_check_every=2), now=START, rng=SameDraw(0.5))
    health.opened(START)
    health.check(START, may_go_silent=True)
    health.rest()

    asked = [n for n in range(1, 7) if health.check(START, may_go_silent=True)]
    assert asked == [2, 4, 6]


def test_the_order_of_reports_outlasts_a_rest() -> None:
    health = connected()
    health.said(BOOT, 3, START, lame_duck=False)
    health.rest()

    assert not health.said(BOOT, 2, START, lame_duck=True)
    assert health.state is HEALTHY
    assert health.said(BOOT, 4, START, lame_duck=True)  # SIGTERM, by an unasked notice
    assert health.state is LAME_DUCK
    assert health.said(BOOT + 1, 0, START, lame_duck=True)  # its successor, which warms up ...
    assert health.said(BOOT + 1, 1, START, lame_duck=False)  # ... and announces itself
    assert health.state is HEALTHY


def test_a_backend_that_rests_again_is_asked_at_the_tenth_check_from_then() -> None:
    health = idle()
    for _ in range(5):
        health.check(START, may_go_silent=True)
    health.opened(START)
    health.check(START, may_go_silent=True)  # Skipped: the opening was something heard.
    health.rest()

    asked = [n for n in range(1, 21) if health.check(START, may_go_silent=True)]
    assert asked == [10, 20]
