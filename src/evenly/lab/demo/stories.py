"""Tell six stories with a real fleet, for somebody who has read neither chapter.

SRE book, chapters 20 and 21.  A story is a list of steps; a step says what to look at and why it
happens, does things to the fleet, and leaves it some seconds to show.  However a story ends, the
fleet is put back to how it started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.errors import ConfigError, EvenlyError
from evenly.lab.demo.plan import USUAL_LOAD

__all__ = [
    "STORIES",
    "Action",
    "Sleep",
    "Step",
    "Story",
    "StoryFleet",
    "are_replaced",
    "find_story",
    "play",
]

Frame = Mapping[str, Any]
Sleep = Callable[[float], Awaitable[None]]

_OWN_POLICY: Final = PolicyConfig().name
# A restart takes half a minute, and several on a busy machine.
_PATIENCE_SECONDS: Final = 180.0


class StoryFleet(Protocol):
    """Be what a story is played on: the fleet."""

    async def control(self, name: str, arguments: dict[str, object]) -> None:
        """Do one of the controls of the page."""

    def tell(self, text: str, *, step: int, steps: int, panels: Sequence[str]) -> None:
        """Show a text, and which panels to look at."""

    def subscribe(self) -> AsyncGenerator[Any, None]:
        """Give each frame as it is made."""


@final
@dataclass(frozen=True, slots=True)
class Action:
    """Do one control of the page, in a story."""

    name: str
    arguments: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Say what to look at, do something, and leave time to see it."""

    text: str
    panels: tuple[str, ...]
    seconds: float
    actions: tuple[Action, ...] = ()
    is_until_replaced: bool = False
    """Whether it lasts until all backends are other processes than at the story's start, too."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Show one problem and what helps."""

    name: str
    title: str
    intro: str
    look: str
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return sum(step.seconds for step in self.steps)

    def describe(self) -> dict[str, object]:
        """Return what the page shows before the story begins."""
        return {
            "name": self.name,
            "title": self.title,
            "intro": self.intro,
            "look": self.look,
            "seconds": self.seconds,
            "steps": [
                {"text": step.text, "panels": list(step.panels), "seconds": step.seconds}
                for step in self.steps
            ],
        }


def find_story(name: object) -> Story:
    """Return a story by its name, or refuse with the names there are."""
    if not isinstance(name, str) or name not in STORIES:
        raise ConfigError(f"story must be one of {', '.join(STORIES)}, not {name!r}")
    return STORIES[name]


def are_replaced(before: Frame, frame: Frame) -> bool:
    """Return whether every backend is another process than before, and serves."""
    pids = {backend["name"]: backend["pid"] for backend in before["backends"]}
    return all(
        backend["state"] == "healthy" and backend["pid"] != pids.get(backend["name"])
        for backend in frame["backends"]
    )


async def play(story: Story, stage: StoryFleet, *, sleep: Sleep = asyncio.sleep) -> None:
    """Play all steps; cancel it at any time.  The fleet is as at the start afterwards."""
    try:
        # The texts speak of this load; the fleet may run with another.
        await stage.control("load", {"load": USUAL_LOAD})
        before = await _next_frame(stage) if any(s.is_until_replaced for s in story.steps) else {}
        for index, step in enumerate(story.steps):
            # The text first: whoever reads it sees the change come.
            stage.tell(step.text, step=index, steps=len(story.steps), panels=step.panels)
            for action in step.actions:
                await stage.control(action.name, dict(action.arguments))
            await sleep(step.seconds)
            if step.is_until_replaced:
                await _until_replaced(stage, before)
    finally:
        await stage.control("reset", {})


async def _next_frame(stage: StoryFleet) -> Frame:
    async with aclosing(stage.subscribe()) as frames:
        async for frame in frames:
            return frame  # type: ignore[no-any-return]  # A frame is JSON.
    raise EvenlyError("the fleet has stopped reporting")


async def _until_replaced(stage: StoryFleet, before: Frame) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not are_replaced(before, await _next_frame(stage)):
                pass
    except TimeoutError:
        text = f"the restart has not ended after {_PATIENCE_SECONDS:g} s"
        raise EvenlyError(text) from None


def _do(name: str, **arguments: object) -> Action:
    return Action(name, arguments)


_UNEVEN = Story(
    name="uneven",
    title="Uneven machines",
    intro="The machines here are not alike: the fastest does three times the work of the"
    " slowest.  A balancer that gives each the same number of requests drowns the slow ones while"
    " the fast ones idle.",
    look="Look at the utilization lines: apart means wasted machines, together means an even load.",
    steps=(
        Step(
            text="This is evenly's own policy at 70 % load.  All lines run together near"
            " 70 %, because each backend says how busy it is and gets requests to match.",
            panels=("utilization", "backends"),
            seconds=8,
        ),
        Step(
            text="Now plain round robin: every backend gets the same number of requests.  The slow"
            " ones, b7 and b8, climb to 100 % and stay there; b1, the fastest, falls below half.",
            panels=("utilization", "controls"),
            actions=(_do("policy", policy="round_robin"),),
            seconds=14,
        ),
        Step(
            text="The fleet has room for everything, but the p99 has grown: some requests wait at"
            " the slow machines, or are refused there, while fast ones idle.  “Wasted” says how"
            " much you paid for and cannot use.",
            panels=("latency", "utilization"),
            seconds=10,
        ),
        Step(
            text=f"Back to evenly's policy ({_OWN_POLICY}).  In ten seconds the lines meet again."
            "  In the table, the shares follow the speeds: nobody had to type them in.",
            panels=("utilization", "backends"),
            actions=(_do("policy", policy=_OWN_POLICY),),
            seconds=14,
        ),
    ),
)

_SINKHOLE = Story(
    name="sinkhole",
    title="The sinkhole",
    intro="A broken backend often fails fast: it answers every request at once, with an error."
    "  To a balancer that counts requests under way it looks idle, and it swallows ever more.",
    look="Look at failed requests: a short tick when the backend breaks, and then almost none.",
    steps=(
        Step(
            text="All is well.  b3 gets its share of the requests, like all the others.",
            panels=("requests", "backends"),
            seconds=6,
        ),
        Step(
            text="b3 now answers every request with an error, in no time.  Its line falls to zero:"
            " it gets next to nothing, because errors count as load.  A backend that idles because"
            " it fails does not look idle.",
            panels=("requests", "utilization", "backends"),
            actions=(_do("fail", backend="b3", is_on=True),),
            seconds=14,
        ),
        Step(
            text="The others carry the load.  b3 still gets a request now and then: that is"
            " how its clients will learn when it is well again.",
            panels=("backends", "utilization"),
            seconds=8,
        ),
        Step(
            text="b3 is repaired.  Its share comes back within seconds, without anyone telling"
            " the clients.",
            panels=("backends", "utilization"),
            actions=(_do("fail", backend="b3", is_on=False),),
            seconds=14,
        ),
    ),
)

_DEPLOY = Story(
    name="deploy",
    title="A deploy that nobody notices",
    intro="Every backend must be restarted for a new version, while users go on sending."
    "  A process that just exits takes the requests under way with it, and those on their way.",
    look="Look at failed requests: the line stays at zero while every backend is replaced.",
    steps=(
        Step(
            text="Note the process ids in the table.  In a moment each will be another.",
            panels=("backends",),
            seconds=5,
        ),
        Step(
            text="SIGTERM to one backend after the other.  Each becomes a lame duck: it goes on"
            " serving, and asks its clients to send elsewhere.  It exits when nobody sends any"
            " more, and a new process takes its place.",
            panels=("backends", "clients"),
            actions=(_do("rolling_restart"),),
            seconds=10,
        ),
        Step(
            text="Zero failed requests so far.  Utilization of the others rises a little for each"
            " one that is away: that is the only trace.",
            panels=("requests", "utilization"),
            seconds=10,
            is_until_replaced=True,
        ),
        Step(
            text="All processes are new.  Nobody outside has noticed.",
            panels=("backends", "requests"),
            seconds=6,
        ),
    ),
)

_OVERLOAD = Story(
    name="overload",
    title="Five times too much",
    intro="More arrives than the fleet can do, and no balancing helps against that."
    "  A service that tries to serve everybody then serves nobody: queues grow until every answer"
    " comes too late.",
    look="Look at goodput: it stays at capacity, and CRITICAL_PLUS is served as if nothing was.",
    steps=(
        Step(
            text="A quiet day: 70 % load, nothing refused.",
            panels=("requests",),
            seconds=5,
        ),
        Step(
            text="Five times what the fleet can do.  Goodput climbs to capacity and stays there:"
            " backends refuse at once what they could not finish.  Latency stays low for those"
            " that are served.",
            panels=("requests", "latency"),
            actions=(_do("load", load=5.0),),
            seconds=12,
        ),
        Step(
            text="Who is refused?  Each backend and client has one line and refuses what is below"
            " it.  All lines are together in CRITICAL: everything SHEDDABLE is refused, and most of"
            " CRITICAL.  CRITICAL_PLUS goes through: what matters least pays for what matters"
            " most.",
            panels=("refused-now", "refused-criticality"),
            seconds=12,
        ),
        Step(
            text="Where are they refused?  Mostly “throttled”: in the client, before anything is"
            " sent.  To refuse costs a backend work, too; so each answer tells where the backend's"
            " line is, and clients do not send what is below.",
            panels=("refused-where", "clients"),
            seconds=12,
        ),
        Step(
            text="The load is back at 70 %.  Within seconds nothing is refused any more: there is"
            " no queue to work off.",
            panels=("requests", "refused-now"),
            actions=(_do("load", load=USUAL_LOAD),),
            seconds=12,
        ),
    ),
)

_RETRY_STORM = Story(
    name="retry-storm",
    title="The retry storm",
    intro="Without protection, clients try again when an answer is late, and backends work on for"
    " clients that have left.  A short burst is then enough to keep a service down for good, long"
    " after the burst is over.",
    look="Look at goodput after the burst: it stays down until protection is switched on.",
    steps=(
        Step(
            text="Protection is off: round robin, no throttle, nothing shed, and up to three"
            " attempts for each request.  At 70 % load most requests do not feel it.",
            panels=("requests", "attempts"),
            actions=(_do("protect", is_on=False),),
            seconds=8,
        ),
        Step(
            text="A short burst: twice the capacity.  Queues grow, answers come after their"
            " timeout, and every timeout is tried again: look at the attempts.",
            panels=("attempts", "latency"),
            actions=(_do("load", load=2.0),),
            seconds=10,
        ),
        Step(
            text="The burst is over: 70 % again.  Nothing recovers.  Each request still makes up"
            " to three attempts, which is twice what the fleet can do, and nearly all the work is"
            " for clients that have given up.",
            panels=("requests", "attempts", "utilization"),
            actions=(_do("load", load=USUAL_LOAD),),
            seconds=18,
        ),
        Step(
            text="Protection is on again.  Backends refuse what comes too late, clients throttle"
            " themselves, and retries have a budget of a tenth of the requests.  Goodput comes"
            " back within seconds.",
            panels=("requests", "attempts", "controls"),
            actions=(_do("protect", is_on=True),),
            seconds=16,
        ),
    ),
)

_NOISY_CUSTOMER = Story(
    name="noisy-customer",
    title="A noisy customer",
    intro="Many customers share a service, and one of them runs wild: a loop that asks without"
    " end.  Without quotas it takes the capacity of all the others.",
    look="Look at the customers: only “wild” is refused, the other three are served as before.",
    steps=(
        Step(
            text="Three customers, shop, search and ads, send 70 % of what the fleet can do.",
            panels=("customers",),
            seconds=6,
        ),
        Step(
            text="A fourth, “wild”, asks for twice the capacity on top.  Its quota is a tenth of"
            " the capacity: so much it gets, and the rest is refused as out of quota.",
            panels=("customers", "refused-where"),
            actions=(_do("wild", is_on=True),),
            seconds=14,
        ),
        Step(
            text="The other three do not feel it.  And look where “wild” is refused: after some"
            " seconds mostly in its own client, so that not even refusing it costs much.",
            panels=("customers", "refused-where", "latency"),
            seconds=14,
        ),
        Step(
            text="“wild” has gone.  The others never noticed.",
            panels=("customers", "requests"),
            actions=(_do("wild", is_on=False),),
            seconds=8,
        ),
    ),
)

STORIES: Mapping[str, Story] = {
    story.name: story
    for story in (_UNEVEN, _SINKHOLE, _DEPLOY, _OVERLOAD, _RETRY_STORM, _NOISY_CUSTOMER)
}
"""The stories by name, in the order of the tour."""
