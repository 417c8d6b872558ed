"""What one client task knows about one backend's health: three states from two facts.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State".  The state is never
stored by hand: it follows from whether the backend is *reachable* and whether it asked to be left
alone, which are learned from different places and in any order.

    reachable  lame duck  state
    no         either     REFUSING
    yes        yes        LAME_DUCK
    yes        no         HEALTHY

Overload is not death: no error, rejection or latency ever changes the state.  Errors raise the
backend's load instead (`backend.py`), where the policies see them.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Final, final

from evenly.core import check
from evenly.core.balancing.processes import Processes

__all__ = ["Health", "HealthConfig", "State"]


# The latest boot where several processes share the address: no report has it.
_OF_SEVERAL: Final = -1


@final
class State(enum.Enum):
    """Name the book's three states of a backend, from a client task's perspective."""

    HEALTHY = "healthy"
    LAME_DUCK = "lame duck"
    """Listening and able to serve, but asking not to be sent to: starting up or shutting down."""
    REFUSING = "refusing"
    """Not accepting connections, or silent."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """Set how a silent backend is noticed and how a refusing one is tried again."""

    check_seconds: float = 1.0
    """Between two health checks; a check is skipped when something was heard since the last."""
    unanswered_checks: int = 3
    """In a row, with no other byte received, make a backend REFUSING."""
    silent_max_ratio: float = 0.5
    """The panic rule: silence takes at most this part of a subset out, because when most backends
    fall silent at once, it is more likely the client task that cannot hear."""
    backoff_first_seconds: float = 1.0
    backoff_factor: float = 1.6
    backoff_max_seconds: float = 120.0
    backoff_jitter_ratio: float = 0.2
    """Reconnect delays are spread by ± this part, so that clients do not come back in step."""
    connect_jitter_seconds: float = 1.0
    """Connections that nobody waits for are opened within this time and not at once, or a thousand
    client tasks would all meet the backend that has just been added, or restarted."""
    idle_seconds: float = 300.0
    """A connection that had no requests for so long is closed, where probes get through."""
    idle_check_every: int = 10
    """An idle backend is checked at only every so many checks."""

    def __post_init__(self) -> None:
        check.positive("check_seconds", self.check_seconds)
        check.count("unanswered_checks", self.unanswered_checks, 1, 1000)
        check.fraction("silent_max_ratio", self.silent_max_ratio)
        check.positive("backoff_first_seconds", self.backoff_first_seconds)
        check.number("backoff_factor", self.backoff_factor, 1.0, 100.0)
        check.number(
            "backoff_max_seconds", self.backoff_max_seconds, self.backoff_first_seconds, 86400.0
        )
        check.number("backoff_jitter_ratio", self.backoff_jitter_ratio, 0.0, 0.99)
        check.number("connect_jitter_seconds", self.connect_jitter_seconds, 0.0, 3600.0)
        check.positive("idle_seconds", self.idle_seconds)
        check.count("idle_check_every", self.idle_check_every, 1, 1000)


@final
class Health:
    """Track one backend's state, and when to connect to it next."""

    __slots__ = (
        "_backoff_seconds",
        "_boot",
        "_boot_connection",
        "_checks_sent",
        "_config",
        "_idle_checks",
        "_lame_connection",
        "_lame_said",
        "_lame_watched",
        "_opened_at",
        "_processes",
        "_rng",
        "_sequence",
        "_silent",
        "_superseded_boot",
        "connect_at",
        "has_answered",
        "is_connected",
        "is_connecting",
        "is_heard",
        "is_idle",
        "is_untried",
        "opened_count",
        "state",
    )

    def __init__(self, config: HealthConfig, *, now: float, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self.state = State.REFUSING
        self.is_untried = True
        """Nobody knows whether it accepts connections: none was tried since it was listed, or since
        the last one broke."""
        self.connect_at: float | None = now
        """When the transport is to open a connection; `None` while it has one or was told to."""
        self.is_connected = False
        self.is_connecting = False
        """Whether the transport was told to connect and has not said what came of it."""
        self.is_idle = False
        """Whether its connection was closed because nobody used it: one is opened on demand."""
        self.has_answered = False
        """Whether it has answered a request since its connection was opened."""
        self._idle_checks = 0
        self._backoff_seconds = 0.0
        self._opened_at = now
        self.opened_count = 0
        self._silent = False
        self.is_heard = False
        """Whether something came from it since the last check."""
        self._checks_sent = 0
        self._boot = 0
        self._sequence = 0
        self._lame_said = False
        self._lame_watched = False
        # Which connection, by number, was the latest when the boot and the lame duck were learned.
        self._boot_connection = 0
        self._lame_connection = 0
        self._superseded_boot = -1
        self._processes = Processes()

    @property
    def is_shared(self) -> bool:
        """Whether several processes answer at its address, each for itself."""
        return self._processes.are_several

    @property
    def is_silent(self) -> bool:
        """Whether it is out for leaving health checks unanswered."""
        return self._silent

    @property
    def is_refusing(self) -> bool:
        """Whether it is known not to accept: tried and refused, or silent."""
        return self.state is State.REFUSING and not self.is_untried

    def opened(self, now: float) -> None:
        """Learn that a connection stands.

        That does not end a silence: the kernel accepts connections for a process that is stopped.
        """
        self.is_connected = True
        self.is_connecting = False
        self.is_idle = False
        self.is_untried = False
        self.has_answered = False
        self._opened_at = now
        self.opened_count += 1
        self.connect_at = None
        self._lame_watched = False  # NOT_SERVING was the word of the connection before.
        if self._silent:
            self._back_off(now)
        else:
            self.is_heard = True
            self._checks_sent = 0
        self._settle()

    def refused(self, now: float) -> None:
        """Learn that a connection could not be opened; try again after a growing delay."""
        self.is_connected = False
        self.is_connecting = False
        self.is_idle = False
        self.is_untried = False
        self._silent = False
        # A lame duck listens.  What does not listen is gone, and whatever listens at this address
        # next is another process, which will speak for itself.
        self._lame_said = False
        self._lame_watched = False
        self._processes.record_end()
        self._back_off(now)
        self._settle()

    def lost(self, now: float) -> None:
        """Learn that a standing connection broke; try again soon, unless it was of no use.

        One that has answered was of use, however short: a server may end connections by their age.
        """
        if not self.is_connected:
            return  # A transport that says so twice, or of a connection that was replaced.
        self.is_connected = False
        self._silent = False
        self._processes.record_end()
        is_short = now - self._opened_at < self._config.backoff_first_seconds
        if is_short and not self.has_answered:
            # Accepted and dropped: trying again at once would be a busy loop of connects.
            self._back_off(now)
        else:
            self.is_untried = True
            self._backoff_seconds = 0.0
            self.connect_at = self.spread(now)
        self._settle()

    def is_connection_due(self, now: float) -> bool:
        """Return whether the transport is to open a connection, and is not doing so already."""
        return self.connect_at is not None and self.connect_at <= now and not self.is_connecting

    def connecting(self) -> None:
        """Note that the transport was told to connect, so that it is told once."""
        self.is_connecting = True
        self.connect_at = None

    def spread(self, now: float) -> float:
        """Return when to connect if nobody waits for it."""
        return now + self._config.connect_jitter_seconds * self._rng.random()

    def demand(self, now: float) -> bool:
        """Learn that a request waits for a connection; return whether one is to be opened."""
        if self.is_connected or self.is_connecting:
            return False
        self.connect_at = now
        return True

    def hope(self, at: float) -> None:
        """Learn that it may accept again: try it by `at`, and count its delays anew."""
        self._backoff_seconds = 0.0
        if self.connect_at is not None:
            self.connect_at = min(self.connect_at, at)

    def rest(self) -> None:
        """Give up the connection of a backend that nobody uses; it counts as reachable still."""
        self.is_connected = False
        self.is_idle = True
        self._idle_checks = 0

    def heard(self) -> None:
        """Learn that bytes came from it: whatever they say, it is not silent."""
        self.is_heard = True
        if self._checks_sent:
            self._checks_sent = 0
            self.forgive()

    def answered(self, now: float) -> None:
        """Learn that it answered a request."""
        self.heard()
        if self.opened_count == 0:
            self.opened(now)  # A transport that does not speak of connections has one.
        self.has_answered = True

    def said(self, boot: int, sequence: int, now: float, *, lame_duck: bool) -> bool:
        """Learn what it says of itself; return False if that tells nothing new or true of it.

        The order is (boot, sequence), so that a HEALTHY that was overtaken on its way never undoes
        a lame duck.  Where several processes share the address, each has an order of its own, and
        one that leaves speaks for itself alone.
        """
        if (
            boot == self._boot
            and sequence == self._sequence
            and not lame_duck
            and self.state is State.HEALTHY
            and self._boot_connection == self.opened_count
        ):
            return True  # Nothing new: what nearly every response says.
        processes = self._processes
        if processes.are_several or (not lame_duck and processes.lives_on(boot, now)):
            return self._said_by_one(boot, sequence, now, lame_duck=lame_duck)
        if not self._is_current(boot, sequence):
            if boot != self._boot and not lame_duck:
                processes.record_former(boot, now)
            return False
        is_new_boot = boot != self._boot
        is_new_word = sequence > self._sequence and not is_new_boot
        if is_new_boot:
            if self._boot > 0:  # 0 is "unknown" and nobody's.
                self._superseded_boot = self._boot
                processes.record_former(self._boot, now)
            processes.record_latest(boot)
            self._boot = boot
        self._sequence = sequence
        self._boot_connection = self.opened_count
        if lame_duck:
            self._lame_said = True
            self._lame_connection = self.opened_count
        elif is_new_boot or is_new_word:
            self._lame_said = False
            # A boot's first report may be older than its NOT_SERVING; a later word is not.
            self._lame_watched = self._lame_watched and is_new_boot
        self._settle()
        return True

    def _said_by_one(self, boot: int, sequence: int, now: float, *, lame_duck: bool) -> bool:
        """Learn what one of several processes says of itself."""
        if not self._processes.record_word(boot, sequence, now, lame_duck=lame_duck):
            return False
        # Whoever listens here after all of them have gone is a new process.
        self._boot = _OF_SEVERAL
        self._superseded_boot = -1
        self._lame_said = self._processes.are_lame_ducks(now)
        if self._lame_said:
            self._lame_connection = self.opened_count
        elif not lame_duck:
            self._lame_watched = False  # That was another's.
        self._settle()
        return self._lame_said or not lame_duck

    def watched(self, *, serving: bool) -> None:
        """Learn from `grpc.health.v1` Watch, which has no order beyond its own connection.

        SERVING does not override what a report said on the same connection.
        """
        if self.is_idle:
            return  # A last word of the connection that was closed, which none would take back.
        self._lame_watched = not serving
        if serving and self.opened_count > self._lame_connection:
            self._lame_said = False
        self._settle()

    def check(self, now: float, *, may_go_silent: bool) -> bool:
        """End one check interval; return whether the backend is to be asked now."""
        if self.is_idle:
            self._idle_checks += 1
            if self._idle_checks % self._config.idle_check_every:
                return False
        elif not self.is_connected:
            return False  # It is tried by reconnecting.
        if self.is_heard:
            self.is_heard = False
            return False
        if self._checks_sent >= self._config.unanswered_checks and may_go_silent:
            self._go_silent(now)
        self._checks_sent += 1
        return True

    def forgive(self) -> None:
        """End a silence: something was heard, or too many are out for it."""
        if self._silent:
            self._silent = False
            self._backoff_seconds = 0.0
            self.connect_at = None  # A replacement that is under way does no harm.
            self._settle()

    def _go_silent(self, now: float) -> None:
        if not self._silent:
            self._silent = True
            # The process may live and only this connection be dead, which a new one would show.
            self._back_off(now)
            self._settle()

    def _is_current(self, boot: int, sequence: int) -> bool:
        if boot == self._boot:
            return sequence >= self._sequence
        if boot == self._superseded_boot:
            return False  # A straggler of the process before.
        # After a reconnect any other boot is a new process, even where the machine's clock was set
        # back in between; otherwise only a later one is.
        return boot > self._boot or self.opened_count > self._boot_connection

    def _back_off(self, now: float) -> None:
        config = self._config
        if self._backoff_seconds == 0.0:
            self._backoff_seconds = config.backoff_first_seconds
        else:
            self._backoff_seconds = min(
                config.backoff_max_seconds, self._backoff_seconds * config.backoff_factor
            )
        spread = config.backoff_jitter_ratio * (2.0 * self._rng.random() - 1.0)
        self.connect_at = now + self._backoff_seconds * (1.0 + spread)

    def _settle(self) -> None:
        if not (self.is_connected or self.is_idle) or self._silent:
            self.state = State.REFUSING
        elif self._lame_said or self._lame_watched:
            self.state = State.LAME_DUCK
        else:
            self.state = State.HEALTHY
