from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from evenly import context
from evenly.context import (
    ContextThreadPoolExecutor,
    carry_context,
    current_request,
    degradable,
    mark_degraded,
    outgoing_request,
    request_context,
    run_in_thread,
    serving,
    should_degrade,
)
from evenly.core.criticality import Criticality
from evenly.core.request import Request
from evenly.errors import ConfigError, NoBackend, Overloaded, RejectedError, UsageError
from evenly.testing import ManualClock


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = (context.job_criticality, context._user_key)
    for name in ("EVENLY_CRITICALITY", "EVENLY_USER_KEY"):
        monkeypatch.delenv(name, raising=False)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_outside_of_any_context_a_request_is_the_default() -> None:
    assert current_request() == Request()


def test_a_whole_job_may_have_a_criticality_which_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVENLY_CRITICALITY", "SHEDDABLE_PLUS")
    assert current_request().criticality is Criticality.SHEDDABLE_PLUS

    monkeypatch.setenv("EVENLY_CRITICALITY", "CRITICAL")

    assert current_request().criticality is Criticality.SHEDDABLE_PLUS
    with request_context(customer="indexer"):
        assert current_request().criticality is Criticality.SHEDDABLE_PLUS


@pytest.mark.parametrize("value", ["ULTRA", "critical", " CRITICAL"])
def test_a_wrong_criticality_of_the_job_is_named(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENLY_CRITICALITY", value)

    with pytest.raises(ConfigError, match=f"EVENLY_CRITICALITY must be one of .*, not '{value}'"):
        current_request()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLY_CRITICALITY", "")

    assert current_request().criticality is Criticality.CRITICAL


def test_a_context_says_what_requests_carry_and_ends() -> None:
    clock = ManualClock(100.0)
    whole = request_context(
        criticality=Criticality.SHEDDABLE, customer="indexer", deadline_seconds=2.5, clock=clock
    )
    clock.advance(1.0)  # The deadline runs from the moment the block is entered.

    with whole as request:
        assert current_request() is request
        assert request == Request(
            criticality=Criticality.SHEDDABLE, customer="indexer", deadline_at=103.5
        )

    assert current_request() == Request()


def test_what_is_not_given_is_inherited_and_what_is_overrides() -> None:
    with request_context(criticality=Criticality.SHEDDABLE, customer="indexer"):
        with request_context(criticality=Criticality.CRITICAL_PLUS):
            assert current_request() == Request(
                criticality=Criticality.CRITICAL_PLUS, customer="indexer"
            )
        with request_context(customer=""):
            assert current_request() == Request(criticality=Criticality.SHEDDABLE)
        assert current_request() == Request(criticality=Criticality.SHEDDABLE, customer="indexer")


@pytest.mark.parametrize(
    ("inner_seconds", "expected_at"),
    [
        pytest.param(None, 110.0, id="inherited"),
        pytest.param(3.0, 104.0, id="shorter"),  # entered at 101
        pytest.param(60.0, 110.0, id="longer is cut"),
        pytest.param(0.0, 101.0, id="zero has passed"),
        pytest.param(-1.0, 100.0, id="passed a second ago"),
    ],
)
def test_a_nested_deadline_can_only_shorten(
    inner_seconds: float | None, expected_at: float
) -> None:
    clock = ManualClock(100.0)
    with request_context(deadline_seconds=10.0, clock=clock):
        clock.advance(1.0)
        with request_context(deadline_seconds=inner_seconds, clock=clock):
            assert current_request().deadline_at == expected_at


def test_work_that_outlives_the_request_starts_afresh() -> None:
    with (
        request_context(criticality=Criticality.SHEDDABLE, customer="a", deadline_seconds=1.0),
        request_context(customer="b", inherit=False),
    ):
        assert current_request() == Request(customer="b")


def test_wrong_values_are_refused_at_the_call() -> None:
    with pytest.raises(ConfigError, match=r"must be a Criticality, such as .*, not 'SHEDDABLE'"):
        request_context(criticality="SHEDDABLE")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"customer must be at most 128 printable .* 'a\\n'"):
        request_context(customer="a\n")
    with pytest.raises(ConfigError, match=r"deadline_seconds must be in .* not nan"):
        request_context(deadline_seconds=float("nan"))


def test_one_context_object_nested_in_itself_is_a_misuse_and_the_outer_block_ends_well() -> None:
    whole = request_context(customer="indexer")
    with whole as request:
        with pytest.raises(UsageError, match="make one for each"), whole:
            pytest.fail("entered twice")
        assert current_request() is request

    assert current_request() == Request()
    with whole:  # One after the other is no trouble.
        assert current_request().customer == "indexer"
    assert current_request() == Request()


async def test_one_context_object_entered_by_two_tasks_at_a_time_is_a_misuse() -> None:
    shared = request_context(customer="indexer")
    may_end = asyncio.Event()

    async def hold() -> None:
        with shared:
            await may_end.wait()
            assert current_request().customer == "indexer"
        assert current_request() == Request()

    async def intrude() -> None:
        with pytest.raises(UsageError), shared:
            pytest.fail("entered by two")
        assert current_request() == Request()

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)  # It enters, and waits.
    await asyncio.create_task(intrude())
    may_end.set()
    await holder


async def test_child_tasks_inherit_and_keep_their_own_changes() -> None:
    async def child() -> Request:
        seen = current_request()
        with request_context(customer="child"):
            await asyncio.sleep(0)
        return seen

    with request_context(customer="parent") as request:
        seen, parallel = await asyncio.gather(child(), child())
        assert current_request() is request

    assert seen == parallel == Request(customer="parent")


async def test_threads_started_through_our_helpers_inherit() -> None:
    executor = ContextThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    with request_context(customer="parent"):
        carried = carry_context(current_request)
        seen = [
            await run_in_thread(current_request),
            await loop.run_in_executor(executor, current_request),
            *executor.map(lambda _: current_request(), [0]),
        ]
    executor.shutdown()
    thread = threading.Thread(target=lambda: seen.append(carried()))
    thread.start()
    thread.join()

    assert seen == [Request(customer="parent")] * 4


async def test_run_in_thread_passes_arguments_results_and_errors() -> None:
    def divide(a: int, *, by: int) -> float:
        return a / by

    assert await run_in_thread(divide, 6, by=4) == 1.5
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divide, 6, by=0)


def test_a_carried_function_may_run_in_two_threads_at_once() -> None:
    both_inside = threading.Barrier(2)

    def wait() -> str:
        both_inside.wait(timeout=60)
        return current_request().customer

    with request_context(customer="parent"):
        carried = carry_context(wait)
    with ContextThreadPoolExecutor(2) as executor:
        futures = [executor.submit(carried) for _ in range(2)]

        assert [future.result() for future in futures] == ["parent", "parent"]


async def test_a_generator_dropped_inside_its_context_ends_quietly() -> None:
    closed: list[bool] = []

    async def stream() -> AsyncIterator[str]:
        try:
            with request_context(customer="stream"), serving(Request(customer="served")):
                yield current_request().customer
        finally:
            closed.append(True)

    async def take_one() -> str:
        return await anext(aiter(stream()))

    assert await asyncio.create_task(take_one()) == "served"
    gc.collect()
    while not closed:  # The loop closes the generator in a context of its own.
        await asyncio.sleep(0)

    assert current_request() == Request()


def test_serving_sets_the_request_that_outgoing_ones_inherit() -> None:
    request = Request(criticality=Criticality.SHEDDABLE, customer="indexer", deadline_at=7.0)

    assert context.current_serving() is None
    with serving(request) as scope:
        assert context.current_serving() is scope
        assert current_request() is request
        assert not should_degrade()

    assert context.current_serving() is None
    assert current_request() == Request()
    assert not scope.was_degraded


def test_should_degrade_is_asked_anew_and_false_outside() -> None:
    answers = [True, False]

    assert not should_degrade()
    with serving(Request(), should_degrade=lambda _: answers.pop(0)):
        assert [should_degrade(), should_degrade()] == [True, False]
    mark_degraded()  # Outside of a request there is nothing to mark.


def cheap(name: str, *, loud: bool = False) -> str:
    return f"cheap {name}" + "!" * loud


async def cheap_async(name: str, *, loud: bool = False) -> str:
    await asyncio.sleep(0)
    return cheap(name, loud=loud)


@degradable(cheap)
def full(name: str, *, loud: bool = False) -> str:
    """Answer in full."""
    raise_if_told(name)
    return f"full {name}"


@degradable(cheap)
async def full_async(name: str, *, loud: bool = False) -> str:
    await asyncio.sleep(0)
    raise_if_told(name)
    return f"full {name}"


@degradable(cheap_async)
async def full_async_cheap_async(name: str, *, loud: bool = False) -> str:
    raise_if_told(name)
    return f"full {name}"


ERRORS: dict[str, Exception] = {
    "refused": Overloaded("busy"),
    "none": NoBackend("none"),
    "group": ExceptionGroup("both", [Overloaded("busy"), ExceptionGroup("", [NoBackend("none")])]),
    "broken": KeyError("broken"),
    "mixed": ExceptionGroup("both", [Overloaded("busy"), KeyError("broken")]),
}


def raise_if_told(name: str) -> None:
    if name in ERRORS:
        raise ERRORS[name]


async def ask(handler: Any, name: str, **options: bool) -> tuple[str, bool]:
    with serving(Request(), should_degrade=lambda _: options.pop("degrade", False)) as scope:
        answer = handler(name, **{"loud": True} if options.pop("loud", False) else {})
        return await answer if inspect.isawaitable(answer) else answer, scope.was_degraded


handlers = pytest.mark.parametrize(
    "handler", [full, full_async, full_async_cheap_async], ids=lambda handler: handler.__name__
)


@handlers
async def test_a_degradable_handler_answers_in_full_while_it_can(handler: object) -> None:
    assert await ask(handler, "x") == ("full x", False)


@handlers
async def test_it_is_replaced_when_the_backend_should_degrade(handler: object) -> None:
    assert await ask(handler, "x", degrade=True) == ("cheap x", True)
    assert await ask(handler, "x", degrade=True, loud=True) == ("cheap x!", True)


@handlers
@pytest.mark.parametrize("name", ["refused", "none", "group"])
async def test_it_is_replaced_when_a_dependency_refuses(handler: object, name: str) -> None:
    assert await ask(handler, name) == (f"cheap {name}", True)


@handlers
@pytest.mark.parametrize("name", ["broken", "mixed"])
async def test_other_errors_go_out_as_they_are(handler: object, name: str) -> None:
    with pytest.raises((KeyError, ExceptionGroup)) as caught:
        await ask(handler, name)

    assert caught.value is ERRORS[name]


def test_a_refusal_degrades_outside_of_serving_too() -> None:
    assert full("refused") == "cheap refused"


def test_what_the_cheaper_one_raises_goes_out() -> None:
    def refuse() -> str:
        raise NoBackend("none either")

    @degradable(refuse)
    def handler() -> str:
        raise Overloaded("busy")

    with pytest.raises(RejectedError, match="none either"):
        handler()


async def test_a_child_task_marks_the_response_of_its_request() -> None:
    with serving(Request(), should_degrade=lambda _: True) as scope:
        await asyncio.create_task(full_async("x"))

    assert scope.was_degraded


def test_a_method_is_degradable() -> None:
    class Search:
        def cheap(self, query: str) -> list[str]:
            return []

        @degradable(cheap)
        def search(self, query: str) -> list[str]:
            return [query]

    with serving(Request(), should_degrade=lambda _: True):
        assert Search().search("x") == []
    assert Search().search("x") == ["x"]


def test_the_handler_keeps_its_name_signature_and_kind() -> None:
    assert full.__name__ == "full"
    assert full.__doc__ == "Answer in full."
    assert str(inspect.signature(full)) == "(name: 'str', *, loud: 'bool' = False) -> 'str'"
    assert inspect.iscoroutinefunction(full_async)
    assert not inspect.iscoroutinefunction(full)


def test_handlers_that_cannot_be_replaced_are_refused() -> None:
    async def stream(name: str, *, loud: bool = False) -> AsyncIterator[str]:
        yield name

    def handler(name: str, *, loud: bool = False) -> str:
        return name

    with pytest.raises(ConfigError, match=r"degradable takes no generators: .*stream"):
        degradable(cheap)(stream)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="handler cannot await cheap_async"):
        degradable(cheap_async)(handler)  # type: ignore[arg-type]


def test_handlers_without_a_name_are_refused_by_what_they_are() -> None:
    async def stream(name: str) -> AsyncIterator[str]:
        yield name

    def handler(name: str, *, loud: bool = False) -> str:
        return name

    nameless = partial(cheap_async, loud=True)
    assert not hasattr(nameless, "__qualname__")
    with pytest.raises(
        ConfigError, match=r"handler cannot await functools\.partial\(.*cheap_async"
    ):
        degradable(nameless)(handler)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no generators: functools\.partial\(.*stream"):
        degradable(cheap)(partial(stream))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inherited_seconds", "timeout_seconds", "expected_seconds"),
    [
        pytest.param(None, None, None, id="nobody sets one"),
        pytest.param(None, 3.0, 3.0, id="its own"),
        pytest.param(5.0, None, 5.0, id="the inherited"),
        pytest.param(5.0, 3.0, 3.0, id="its own is shorter"),
        pytest.param(5.0, 7.0, 5.0, id="nobody waits longer for a part than for the whole"),
    ],
)
def test_a_call_has_the_shorter_of_two_deadlines(
    inherited_seconds: float | None, timeout_seconds: float | None, expected_seconds: float | None
) -> None:
    now = 100.0
    with request_context(
        criticality=Criticality.SHEDDABLE,
        customer="indexer",
        deadline_seconds=inherited_seconds,
        clock=lambda: now,
    ):
        request = outgoing_request(now, timeout_seconds, idempotent=True)

    deadline_at = None if expected_seconds is None else now + expected_seconds
    assert request == Request(
        criticality=Criticality.SHEDDABLE,
        customer="indexer",
        deadline_at=deadline_at,
        idempotent=True,
        luck=request.luck,
    )


# Luck.


def lucks(count: int) -> list[float | None]:
    return [outgoing_request(0.0, None).luck for _ in range(count)]


def test_outside_of_any_request_there_is_no_luck_to_share() -> None:
    assert lucks(2) == [None, None]
    assert current_request().luck is None


def test_all_calls_of_one_request_share_its_luck_which_is_drawn_once() -> None:
    request = Request(customer="indexer")
    with serving(request) as scope:
        assert [scope.luck, current_request().luck] == [None, None]  # Nobody has needed it.
        first, second = lucks(2)
        assert first == second == scope.luck == current_request().luck
        assert current_request() == Request(customer="indexer", luck=first)

    assert first is not None
    assert 0.0 <= first < 1.0
    assert request.luck is None  # Others may share it.


def test_luck_that_came_with_the_request_is_carried_on() -> None:
    with serving(Request(luck=0.25)):
        assert lucks(2) == [0.25, 0.25]
    with context.Serving(Request(), lambda _: False, 0.75):
        assert lucks(1) == [0.75]
        assert current_request().luck == 0.75


def test_different_requests_have_different_luck() -> None:
    drawn = set()
    for _ in range(200):
        with serving(Request()):
            drawn.update(lucks(1))

    # 64 values: that 200 draws miss half of them has a probability below 1e-30.
    assert len(drawn) > 32


def test_a_context_outside_of_any_request_has_no_luck_and_that_of_a_user_has_one() -> None:
    # A worker may go on in one for ever, and is not to be lucky or unlucky all the while.
    with request_context(customer="a"), request_context(customer="b"):
        assert lucks(3) == [None, None, None]

    with request_context(user="ann"), request_context(criticality=Criticality.SHEDDABLE):
        assert len(set(lucks(3))) == 1
        assert current_request().luck is not None


def test_contexts_inside_of_one_request_share_its_luck() -> None:
    with serving(Request()) as scope:
        shared = []
        for customer in "ab":
            with request_context(customer=customer, deadline_seconds=1.0):
                shared += lucks(2)
        assert set(shared) == {scope.luck}

        with request_context(inherit=False):  # Work that outlives the request.
            assert lucks(1) == [None]


async def test_tasks_and_threads_share_the_luck_whoever_needs_it_first() -> None:
    both = threading.Barrier(2)

    def in_thread() -> float | None:
        both.wait(timeout=60)
        return outgoing_request(0.0, None).luck

    async def child() -> float | None:
        await asyncio.sleep(0)
        with request_context(customer="child"):
            return outgoing_request(0.0, None).luck

    for _ in range(50):
        with serving(Request()) as scope:
            seen = await asyncio.gather(
                run_in_thread(in_thread), run_in_thread(in_thread), child(), child()
            )
        assert set(seen) == {scope.luck}
        assert None not in seen


def luck_of(user: str, unix_seconds: float) -> float | None:
    with request_context(user=user, unix_clock=lambda: unix_seconds):
        luck = current_request().luck
        assert lucks(2) == [luck, luck]
    return luck


def test_a_user_has_the_same_luck_for_an_hour_and_another_in_the_next() -> None:
    hours = [luck_of("ann", 3_600.0 * hour) for hour in range(100)]

    assert luck_of("ann", 0.0) == luck_of("ann", 3_599.9) == hours[0]
    assert luck_of("ann", 3_600.0) == luck_of("ann", 7_199.9) == hours[1]
    # 100 draws of 64 values: fewer than 30 different ones have a probability below 1e-9.
    assert len(set(hours)) > 30
    assert hours != [luck_of("bob", 3_600.0 * hour) for hour in range(100)]


def test_the_luck_of_users_depends_on_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    users = [f"user {number}" for number in range(50)]
    with_default = [luck_of(user, 0.0) for user in users]
    monkeypatch.setenv("EVENLY_USER_KEY", "")
    context._user_key.cache_clear()
    assert [luck_of(user, 0.0) for user in users] == with_default  # Empty is none.

    monkeypatch.setenv("EVENLY_USER_KEY", "a secret")
    assert [luck_of(user, 0.0) for user in users] == with_default  # It is read once.
    context._user_key.cache_clear()
    assert [luck_of(user, 0.0) for user in users] != with_default


def test_a_user_replaces_the_luck_of_the_request_and_inner_contexts_inherit_it() -> None:
    of_user = luck_of("ann", 0.0)
    drawn = 0.5 if of_user != 0.5 else 0.25
    with serving(Request(luck=drawn)) as scope:
        with (
            request_context(user="ann", unix_clock=lambda: 0.0),
            request_context(criticality=Criticality.SHEDDABLE),
        ):
            assert lucks(1) == [of_user]
            assert current_request().luck == of_user
        assert lucks(1) == [drawn] == [scope.luck]


@pytest.mark.parametrize("user", ["", "x" * 257, 7, b"ann", None.__class__, "half \ud800"])
def test_a_wrong_user_is_refused_at_the_call(user: Any) -> None:
    with pytest.raises(ConfigError, match="user must be a string of 1 to 256 characters"):
        request_context(user=user)


@pytest.mark.parametrize("user", ["x" * 256, "Ægir 🙂", "a\r\nb"])
def test_a_user_may_be_any_text_because_it_is_not_sent(user: str) -> None:
    assert luck_of(user, 0.0) is not None


def test_whether_to_degrade_is_asked_with_the_requests_level() -> None:
    asked: list[float] = []

    def wants(level: float) -> bool:
        asked.append(level)
        return level < 1.5

    with serving(Request(criticality=Criticality.SHEDDABLE_PLUS), should_degrade=wants):
        assert should_degrade()
    with serving(Request(criticality=Criticality.SHEDDABLE_PLUS, luck=0.75), should_degrade=wants):
        assert not should_degrade()

    assert asked == [1.0, 1.75]
