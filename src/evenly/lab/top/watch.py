"""Scrape again and again, and remember what is needed to compare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, final

from evenly.errors import ConfigError
from evenly.lab.top.fetch import Budget
from evenly.lab.top.rates import Sight
from evenly.lab.top.read import NotOursError, Page, PageError, read_page
from evenly.lab.top.scrape import Answer, fetch_all
from evenly.lab.top.targets import TARGETS_MAX, Target, is_document, read_document

__all__ = ["LOOKS_UNLISTED", "Watch", "timeout_of"]

T = TypeVar("T")

_TIMEOUT_MAX_SECONDS = 1.0
# A page is compared with one that is at most so many intervals old.  One scrape that failed does
# not cost a rate then, and a backend that was away for a minute does not show a minute's mean.
_INTERVALS_MAX = 3.5
LOOKS_UNLISTED = 5
"""For how many looks an end point that is listed no more is still shown."""


def timeout_of(interval_seconds: float) -> float:
    """Return how long to wait for an answer: a list and then its targets fit in an interval."""
    return min(_TIMEOUT_MAX_SECONDS, interval_seconds / 2.0)


@final
@dataclass(frozen=True, slots=True)
class _Past:
    target: Target
    page: Page
    at: float
    looks_unlisted: int = 0


@final
class Watch:
    """Follow the end points that were named, and those that their lists of targets name."""

    def __init__(self, targets: Sequence[Target], *, interval_seconds: float) -> None:
        self._named = list(dict.fromkeys(targets))
        self._timeout_seconds = timeout_of(interval_seconds)
        self._age_max_seconds = _INTERVALS_MAX * interval_seconds
        self._listed: dict[Target, list[Target]] = {}
        """What each list of targets said last."""
        self._past: dict[str, _Past] = {}
        # A thread of its own, so that a long page delays neither keys nor deadlines; and not the
        # loop's threads, which names that nobody resolves may hold.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="evenly-top-read")
        self.has_read = False
        """Whether any page could ever be read."""

    async def look(self) -> list[Sight]:
        """Scrape everything once."""
        sights: dict[str, Sight] = {}
        budget = Budget()
        answers = await fetch_all(self._named, self._timeout_seconds, budget)
        for target, answer in answers.items():
            if answer.body is not None and is_document(answer.body):
                problem = await self._take_list(target, answer.body)
                if problem is not None:
                    sights[target.url] = _failed(target, problem)
            else:
                # A list that does not answer keeps the targets that it named last.
                sights[target.url] = await self._sight(target, answer)
        wanted = self._wanted(sights)
        answers = await fetch_all(wanted, self._timeout_seconds, budget)
        for target, answer in answers.items():
            sight = await self._sight(target, answer)
            if not sight.is_of_others:  # A list may be of everything that Prometheus scrapes.
                sights[target.url] = sight
        self._keep_unlisted(sights, wanted)
        return list(sights.values())

    def _wanted(self, sights: dict[str, Sight]) -> list[Target]:
        """Return the targets of all lists that are asked; say of a list which are not."""
        wanted: dict[str, Target] = {}
        named = {*sights}
        for target, listed in self._listed.items():
            new = [each for each in listed if each.url not in named and each.url not in wanted]
            room = TARGETS_MAX - len(wanted)
            wanted |= {each.url: each for each in new[:room]}
            if len(new) > room and target.url not in sights:
                problem = (
                    f"{len(new) - room} of its targets are not asked: at most {TARGETS_MAX} are, "
                    "of all lists"
                )
                sights[target.url] = _failed(target, problem)
        return list(wanted.values())

    def _keep_unlisted(self, sights: dict[str, Sight], wanted: Sequence[Target]) -> None:
        """Show for some looks who was listed and is not any more; then forget them.

        Somebody who looks away for a moment must not find a backend gone without a word.  One that
        has come back under another address is here already.
        """
        known = {target.url for target in (*self._named, *wanted)}
        here = {sight.instance for sight in sights.values() if sight.page is not None}
        kept = {}
        for url, past in self._past.items():
            if url in sights:
                kept[url] = past
            elif (
                url not in known
                and past.target.instance not in here
                and past.looks_unlisted < LOOKS_UNLISTED
            ):
                kept[url] = _Past(past.target, past.page, past.at, past.looks_unlisted + 1)
                sights[url] = Sight(
                    url=url,
                    instance=past.target.instance,
                    problem="no longer listed",
                    before=past.page,
                    is_listed=False,
                )
        self._past = kept

    async def _take_list(self, target: Target, body: bytes) -> str | None:
        """Remember the targets of a list; return why it could not be read, if so."""
        try:
            self._listed[target] = await self._read(read_document, body)
        except ConfigError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 -- no list may end what is shown of the others
            return _unread(error)
        return None if self._listed[target] else "the list has no targets"

    async def _sight(self, target: Target, answer: Answer) -> Sight:
        past = self._past.get(target.url)
        before = None if past is None else past.page
        problem, page, is_of_others = answer.problem, None, False
        if answer.body is not None:
            try:
                page = await self._read(read_page, answer.body)
            except PageError as error:
                problem, is_of_others = str(error), isinstance(error, NotOursError)
            except Exception as error:  # noqa: BLE001 -- no page may end what is shown of the others
                problem = _unread(error)
        if page is None:
            return Sight(
                url=target.url,
                instance=target.instance,
                problem=problem,
                before=before,
                is_of_others=is_of_others,
            )
        self.has_read = True
        self._past[target.url] = _Past(target, page, answer.at)
        seconds = None if past is None else answer.at - past.at
        if seconds is not None and not 0.0 < seconds <= self._age_max_seconds:
            seconds = None
        return Sight(
            url=target.url,
            instance=target.instance,
            page=page,
            before=before,
            seconds=seconds,
        )

    async def _read(self, read: Callable[[bytes], T], body: bytes) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, read, body)


def _failed(target: Target, problem: str) -> Sight:
    return Sight(url=target.url, instance=target.instance, problem=problem)


def _unread(error: Exception) -> str:
    return f"the answer could not be read: {type(error).__name__}"
