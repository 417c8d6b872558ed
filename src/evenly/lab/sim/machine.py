"""The place of one backend: a machine with its speed and its troubles, and process after process.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State": a process listens as
lame duck until it is warm, and again from SIGTERM until its last request has been answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, final

from evenly.core.backend_task import BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.request import Outcome
from evenly.lab.sim.job import Caller, Job
from evenly.lab.sim.process import Below, Process
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.stage import Stage

__all__ = ["Machine", "Watcher"]

# How many steps a cold process takes up to full speed.
_COLD_STEPS = 10


class Watcher(Protocol):
    """Be told when a machine's speed or its process changes: the omniscient balancers are."""

    def changed(self, machine: Machine) -> None:
        """Look at the machine again."""


@final
class Machine:
    """Run one backend's processes, one after another."""

    def __init__(
        self,
        stage: Stage,
        config: ServiceConfig,
        backend: Backend,
        *,
        speed: float,
        make_below: Callable[[int], Below] | None,
    ) -> None:
        self.stage = stage
        self.config = config
        self.backend = backend
        self.task_config: BackendTaskConfig = replace(
            stage.scenario.backend_task, cores=float(config.cores)
        )
        self.process: Process | None = None
        self.watcher: Watcher | None = None
        self.lame_duck_since = math.inf
        """Since when it has been asking not to be sent to; `inf` while it does not."""
        self.word = (0, 0)
        """Which process speaks (its boot), and the sequence of what it last said of its state."""
        self.unhealthy_at = 0.0
        """When it was last anything but healthy."""
        self.answers_probes = True
        """Whether datagrams reach it; a firewall may be in the way."""
        self._make_below = make_below
        # Of their own, so that a policy does not choose which troubles it meets.
        self._antagonist_rng = stage.rng(f"{backend.address}/antagonist")
        self._io_rng = stage.rng(f"{backend.address}/io")
        self._base_speed = speed
        self._ratios: dict[object, float] = {"antagonist": 1.0, "cold": 1.0}
        self._boots = 0
        self._busy_before = 0.0
        self._fast_fails = 0
        self._is_leaving = False
        if config.antagonists is not None:
            self._schedule_antagonist()

    def __repr__(self) -> str:
        return f"<Machine {self.backend} {'up' if self.process else 'down'}>"

    @property
    def speed(self) -> float:
        """How fast its CPUs are now."""
        return self._base_speed * math.prod(self._ratios.values())

    @property
    def is_healthy(self) -> bool:
        """Whether it serves, and wants to be sent to."""
        return self.process is not None and self.lame_duck_since == math.inf

    def healthy_since(self) -> float:
        """Return since when it has been healthy; `inf` if it is not."""
        return self.unhealthy_at if self.is_healthy else math.inf

    def busy_seconds(self) -> float:
        """Return the CPU time used so far, by all its processes."""
        process = self.process
        return self._busy_before + (process.busy_seconds() if process is not None else 0.0)

    def draw_io_seconds(self) -> float:
        """Draw how long a request waits for something else than a CPU."""
        return self._io_rng.expovariate(1.0 / self.config.io_seconds)

    # The life of a process.

    def start(self, *, is_warm: bool = False) -> None:
        """Start a process: it listens at once as lame duck, warms up, and announces itself."""
        stage = self.stage
        self._boots += 1
        self._is_leaving = False
        name = f"{self.backend.address}/{self._boots}"
        task = BackendTask(
            self.task_config,
            clock=stage.events.clock,
            rng=stage.rng(name),
            boot=self._boots,
            observer=stage.observer,
        )
        make_below = self._make_below
        self._ratios["cold"] = 1.0 if is_warm else self.config.cold_speed_ratio
        process = self.process = Process(
            self,
            task,
            events=stage.events,
            speed=self.speed,
            below=None if make_below is None else make_below(self.backend.index or 0),
        )
        process.fails_fast = self._fast_fails > 0
        self.lame_duck_since = stage.events.now
        self.word = (self._boots, 0)
        if is_warm:
            self._announce(process)
        else:
            announce = partial(process.when_running, partial(self._announce, process))
            stage.events.after(self.config.warm_up_seconds, announce)
        self._tell_watcher()

    def terminate(self) -> None:
        """Send SIGTERM: lame duck, drain, exit, and a successor starts."""
        if self.process is not None:
            self.process.when_running(partial(self._leave, self.process))

    def crash(self) -> None:
        """Send kill -9; a successor starts."""
        if self.process is not None:
            self._end(self.process)

    def stall(self) -> None:
        """Send SIGSTOP."""
        if self.process is not None:
            self.process.stall()
            self._tell_watcher()

    def go_on(self) -> None:
        """Send SIGCONT."""
        if self.process is not None:
            self.process.go_on(self.speed)
            self._tell_watcher()

    def set_fast_fail(self, *, fails_fast: bool) -> None:
        """Answer every request with an error, or let that end; a restart does not help."""
        self._fast_fails += 1 if fails_fast else -1  # There may be several causes at once.
        if self.process is not None:
            self.process.fails_fast = self._fast_fails > 0
        self._tell_watcher()

    def set_speed_ratio(self, cause: object, ratio: float) -> None:
        """Run at a part of the speed, for one cause beside others."""
        self._ratios[cause] = ratio
        if self.process is not None and not self.process.is_stalled:
            self.process.set_speed(self.speed)
        self._tell_watcher()

    # What the network brings.

    def receive(self, job: Job) -> None:
        """Take a request, or let the kernel reset the connection of a process that is gone."""
        network = self.stage.network
        caller = job.call.caller
        if network.is_cut and not network.passes(caller.index, self.backend.address):
            return  # Its client task will wait in vain.
        if self.process is not None:
            self.process.receive(job)
        else:
            job.outcome = Outcome.LOST
            self.stage.events.after(caller.delay(), job.come_back)

    def connect(self, caller: Caller) -> None:
        """Take a new connection."""
        if self.process is not None:
            self.process.accept(caller)
        else:
            refused = partial(caller.connected, self, ConnectionEvent.REFUSED)
            self.stage.events.after(caller.delay(), refused)

    def disconnect(self, caller: Caller) -> None:
        """Close a connection."""
        if self.process is not None:
            self.process.clients.pop(caller, None)

    def left(self, process: Process) -> None:
        """See a request leave the process: the last one lets a lame duck exit sooner."""
        if self._is_leaving:
            self._exit_when_drained(process)

    def _leave(self, process: Process) -> None:
        if process is not self.process or self._is_leaving:
            return
        self._is_leaving = True
        process.task.enter_lame_duck()
        self.lame_duck_since = min(self.lame_duck_since, self.stage.events.now)
        self._tell_clients(process)
        self._tell_watcher()
        self._exit_when_drained(process)

    def _announce(self, process: Process) -> None:
        if process is self.process and process.task.announce_healthy():
            now = self.stage.events.now
            self.lame_duck_since = math.inf
            self.unhealthy_at = now
            self._tell_clients(process)
            self._warm_up(process, 0)
            self._tell_watcher()

    def _warm_up(self, process: Process, step: int) -> None:
        """Come up to full speed, in steps."""
        config = self.config
        if process is not self.process or self._ratios["cold"] == 1.0:
            return
        # What is missing, in steps: so that the last step reaches 1, whatever the rounding.
        ratio = 1.0 - (1.0 - config.cold_speed_ratio) * (1.0 - step / _COLD_STEPS)
        self.set_speed_ratio("cold", ratio)
        again = partial(self._warm_up, process, step + 1)
        self.stage.events.after(config.cold_seconds / _COLD_STEPS, again)

    def _exit_when_drained(self, process: Process) -> None:
        if process is not self.process:
            return
        again = partial(self._exit_when_drained, process)
        if process.is_stalled:
            process.when_running(again)
        elif process.task.is_drained():
            self._end(process)
        else:
            self.stage.events.at(process.task.next_wake_at(), again)

    def _end(self, process: Process) -> None:
        self.process = None
        self._is_leaving = False
        self.lame_duck_since = math.inf
        process.die()
        self._busy_before += process.busy_seconds()
        self._tell_watcher()
        self.stage.events.after(self.config.down_seconds, self.start)

    def _schedule_antagonist(self, *, is_on: bool = False) -> None:
        config = self.config.antagonists
        if config is None:
            return
        seconds = config.episode_seconds if is_on else config.quiet_seconds
        turn = partial(self._turn_antagonist, is_on=not is_on)
        self.stage.events.after(self._antagonist_rng.expovariate(1.0 / seconds), turn)

    def _turn_antagonist(self, *, is_on: bool) -> None:
        config = self.config.antagonists
        if config is not None:
            self.set_speed_ratio("antagonist", config.speed_ratio if is_on else 1.0)
            self._schedule_antagonist(is_on=is_on)

    def _tell_clients(self, process: Process) -> None:
        report = process.tell()
        self.word = (report.boot, report.sequence)

    def _tell_watcher(self) -> None:
        if self.watcher is not None:
            self.watcher.changed(self)
