"""The six stories: what they say, what they do, and how they leave the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig
from evenly.errors import ConfigError, EvenlyError
from evenly.lab.demo import stories
from evenly.lab.demo.stories import STORIES, Story, are_replaced, find_story, play

PANELS = {
    "utilization", "requests", "refused-where", "refused-criticality", "refused-now",
    "latency", "active", "attempts", "backends", "clients", "controls", "customers",
}  # fmt: skip


class Stage:
    """A fleet that only writes down what it is told."""

    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, object]]] = []
        self.told: list[tuple[str, int, int, tuple[str, ...]]] = []
        self.order: list[str] = []
        self.frames = 0
        self.replaced_at = 5

    async def control(self, name: str, arguments: dict[str, object]) -> None:
        self.done.append((name, arguments))
        self.order.append(name)

    async def subscribe(self) -> AsyncGenerator[dict[str, Any], None]:
        """Give frames of two backends; the second is replaced at the fifth frame."""
        while True:
            self.frames += 1
            if self.frames > 100:
                await asyncio.Event().wait()
            yield {
                "backends": [
                    {"name": "b1", "pid": 1 if self.frames < 3 else 11, "state": "healthy"},
                    {
                        "name": "b2",
                        "pid": 2 if self.frames < self.replaced_at else 12,
                        "state": "healthy",
                    },
                ]
            }

    def tell(self, text: str, *, step: int, steps: int, panels: Sequence[str]) -> None:
        self.told.append((text, step, steps, tuple(panels)))
        self.order.append("tell")


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


async def played(story: Story) -> Stage:
    stage = Stage()
    await play(story, stage, sleep=at_once)
    return stage


def test_the_tour_has_its_six_stories_in_order() -> None:
    names = ["uneven", "sinkhole", "deploy", "overload", "retry-storm", "noisy-customer"]

    assert list(STORIES) == names
    assert [story.name for story in STORIES.values()] == names


@pytest.mark.parametrize("story", STORIES.values(), ids=lambda story: story.name)
def test_a_story_is_short_and_says_where_to_look(story: Story) -> None:
    assert story.title
    assert story.intro.count(".") == 2  # Two sentences.
    assert story.look.startswith("Look at ")
    assert story.look.count(".") == 1
    assert 3 <= len(story.steps) <= 6
    assert 20 <= story.seconds <= 90
    for step in story.steps:
        assert set(step.panels) <= PANELS
        assert 1 <= len(step.panels) <= 3
        assert 5 <= step.seconds <= 30
        assert 30 <= len(step.text) <= 300, step.text


@pytest.mark.parametrize("story", STORIES.values(), ids=lambda story: story.name)
async def test_a_story_tells_every_step_and_leaves_the_fleet_as_it_was(story: Story) -> None:
    stage = await played(story)

    steps = len(story.steps)
    assert stage.told == [
        (step.text, index, steps, step.panels) for index, step in enumerate(story.steps)
    ]
    assert stage.done[0] == ("load", {"load": 0.7})
    assert stage.done[-1] == ("reset", {})
    assert [name for name, _ in stage.done].count("reset") == 1


async def test_a_step_is_told_before_it_is_done() -> None:
    stage = await played(STORIES["overload"])

    assert stage.order == ["load", "tell", "tell", "load", "tell", "tell", "tell", "load", "reset"]


@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("uneven", [("policy", {"policy": "round_robin"}), ("policy", {"policy": "probing"})]),
        (
            "sinkhole",
            [
                ("fail", {"backend": "b3", "is_on": True}),
                ("fail", {"backend": "b3", "is_on": False}),
            ],
        ),
        ("deploy", [("rolling_restart", {})]),
        ("overload", [("load", {"load": 5.0}), ("load", {"load": 0.7})]),
        (
            "retry-storm",
            [
                ("protect", {"is_on": False}),
                ("load", {"load": 2.0}),
                ("load", {"load": 0.7}),
                ("protect", {"is_on": True}),
            ],
        ),
        ("noisy-customer", [("wild", {"is_on": True}), ("wild", {"is_on": False})]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_a_story_does(name: str, done: list[tuple[str, dict[str, object]]]) -> None:
    stage = await played(STORIES[name])

    assert stage.done[1:-1] == done


async def test_the_deploy_goes_on_until_every_backend_is_new() -> None:
    stage = await played(STORIES["deploy"])

    assert stage.frames == 5
    assert [step.is_until_replaced for step in STORIES["deploy"].steps] == [0, 0, 1, 0]


async def test_a_restart_that_does_not_end_ends_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "_PATIENCE_SECONDS", 0.01)
    stage = Stage()
    stage.replaced_at = 1_000

    with pytest.raises(EvenlyError, match=r"the restart has not ended after 0\.01 s"):
        await play(STORIES["deploy"], stage, sleep=at_once)

    assert stage.done[-1] == ("reset", {})


@pytest.mark.parametrize(
    ("pid", "state", "is_new"),
    [
        pytest.param(7, "healthy", True, id="new"),
        pytest.param(1, "healthy", False, id="the same"),
        pytest.param(7, "lame duck", False, id="about to serve"),
        pytest.param(None, "down", False, id="down"),
    ],
)
def test_a_backend_is_replaced_when_another_process_serves(
    pid: int | None, state: str, is_new: bool
) -> None:
    before = {"backends": [{"name": "b1", "pid": 1, "state": "healthy"}]}

    after = {"backends": [{"name": "b1", "pid": pid, "state": state}]}
    assert are_replaced(before, after) is is_new


def test_the_policies_of_stories_exist() -> None:
    used = [
        action.arguments["policy"]
        for story in STORIES.values()
        for step in story.steps
        for action in step.actions
        if action.name == "policy"
    ]

    assert set(used) <= set(POLICIES)
    assert used[-1] == PolicyConfig().name


async def test_a_cancelled_story_puts_the_fleet_back() -> None:
    stage = Stage()
    playing = asyncio.create_task(play(STORIES["retry-storm"], stage))
    while not stage.told:
        await asyncio.sleep(0)

    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing

    assert [name for name, _ in stage.done][-2:] == ["protect", "reset"]


async def test_a_story_that_meets_an_error_puts_the_fleet_back() -> None:
    class Broken(Stage):
        async def control(self, name: str, arguments: dict[str, object]) -> None:
            await super().control(name, arguments)
            if name == "fail":
                raise ConfigError("backend must be one of b1, b2, not 'b3'")

    stage = Broken()
    with pytest.raises(ConfigError):
        await play(STORIES["sinkhole"], stage, sleep=at_once)

    assert stage.done[-1] == ("reset", {})


@pytest.mark.parametrize("name", ["Uneven", "", None, 3, ["uneven"]])
def test_another_name_is_refused_with_the_names_there_are(name: object) -> None:
    with pytest.raises(ConfigError, match=r"story must be one of uneven, .*noisy-customer, not "):
        find_story(name)


def test_a_story_is_found_by_its_name() -> None:
    assert find_story("deploy") is STORIES["deploy"]


def test_what_the_page_shows_of_a_story() -> None:
    story = STORIES["deploy"]

    shown = story.describe()

    assert list(shown) == ["name", "title", "intro", "look", "seconds", "steps"]
    assert shown["seconds"] == sum(step.seconds for step in story.steps)
    assert shown["steps"] == [
        {"text": step.text, "panels": list(step.panels), "seconds": step.seconds}
        for step in story.steps
    ]
