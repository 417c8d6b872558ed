"""Which processes speak at one address: one after the other, or several at a time.

A backend is one process.  Its successor has another boot, and what the former one said comes late.
Behind gunicorn, or a balancer that is not ours, several processes share an address, and a client
task hears now one of them and now another.  To follow the latest would take each in turn for a new
process, which is cold, and ignore what most of them say; and the first that leaves would take the
address of all others with it.

What tells them apart is time: a former process's words are on their way for a moment, and one that
speaks on after that lives.  A former one that leaves and says so is no evidence, because it may
have requests to finish while its successor serves.

    one       the latest process speaks for the address
    several   each speaks for itself: the address is a lame duck if all who spoke lately are
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

__all__ = ["Processes"]

# What a former process says later than that was not on its way.
_STRAGGLER_SECONDS: Final = 5.0
# So long the word of one of several counts.  Connections keep to their processes, so that a client
# task may hear of one for long alone; and one that has died must not be taken for a healthy one for
# ever.
_WORD_SECONDS: Final = 30.0
# Per address.  gunicorn's own advice is twice the number of CPUs, and one.
_MOST: Final = 64


class _Word(NamedTuple):
    sequence: int
    lame_duck: bool
    heard_at: float


@final
class Processes:
    """Know the processes of one address besides the latest; once there are several, all of them."""

    __slots__ = ("_former", "_words", "are_several")

    def __init__(self) -> None:
        self.are_several = False
        """Whether several speak at a time."""
        # Since when each is known not to be the latest, the first of them first.
        self._former: dict[int, float] = {}
        # What each said last, the latest word last.
        self._words: dict[int, _Word] = {}

    def record_former(self, boot: int, now: float) -> None:
        """Learn that a process is not the latest, unless that is known."""
        if boot in self._former:
            return
        if len(self._former) >= _MOST:
            first = next(iter(self._former))
            # One that lived would have shown that by now.
            if now - self._former[first] < 2.0 * _STRAGGLER_SECONDS:
                return
            del self._former[first]
        self._former[boot] = now

    def record_latest(self, boot: int) -> None:
        """Learn that a process is the latest, whatever it was taken for."""
        self._former.pop(boot, None)

    def lives_on(self, boot: int, now: float) -> bool:
        """Return whether a process that has just spoken was taken for a former one, wrongly."""
        since = self._former.get(boot)
        return since is not None and now - since >= _STRAGGLER_SECONDS

    def record_word(self, boot: int, sequence: int, now: float, *, lame_duck: bool) -> bool:
        """Learn what one of several says; return False if it is older than its last word."""
        self.are_several = True
        known = self._words.get(boot)
        if known is not None:
            if sequence < known.sequence:
                return False
            # Of the same moment: the careful side.
            lame_duck = lame_duck or (known.lame_duck and sequence == known.sequence)
            del self._words[boot]
        elif len(self._words) >= _MOST:
            del self._words[next(iter(self._words))]
        self._words[boot] = _Word(sequence, lame_duck, now)
        return True

    def are_lame_ducks(self, now: float) -> bool:
        """Return whether all of those who spoke lately are lame ducks."""
        for word in reversed(self._words.values()):
            if now - word.heard_at > _WORD_SECONDS:
                break
            if not word.lame_duck:
                return False
        return True

    def record_end(self) -> None:
        """Learn that nobody listens any more: who does next begins anew."""
        self.are_several = False
        self._former.clear()
        self._words.clear()
