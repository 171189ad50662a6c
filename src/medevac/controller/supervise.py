"""The parent of `medevac run`: thin. It starts the controller anew when that dies, passes output on and waits for the
end. Everything it knows it reads from the state folder, so that another can take its place at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from medevac.adapters.clock import SystemClock
from medevac.adapters.lease import Lease, is_gone, is_over, read
from medevac.adapters.schedulers.local.scheduler import LocalScheduler
from medevac.adapters.store.sqlite import SqliteStore
from medevac.controller.patience import patiently
from medevac.controller.runtime import RESTING
from medevac.controller.settings import LEASE, LOG, Run
from medevac.controller.stream import Output
from medevac.controller.tell import line
from medevac.core.actions import FinishJob, HoldJob, StopAttempt
from medevac.core.events import ActionSettled, AttemptStarted, OrderGiven, WatchBegan
from medevac.core.job_recovery import JOB
from medevac.ports.errors import ConfigError, PortError
from medevac.ports.store import EventRecord, Record

LOOK_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
LEAVES_S = 5.0
"""How long the controller may take to end after the job's end."""

STARTS_S = 30.0
"""A controller that has no lease after that hangs."""

WAITS = 5
KILLED = 130
WRONG_CONFIGURATION = 2

Say = Callable[[str], None]


class Progress:
    """What the log says of one job: how far it is, and what it ended with."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.state = JOB.initial
        self.attempt = 0
        self._closing: FinishJob | HoldJob | None = None
        self._settled: set[str] = set()
        self._released = False

    def take(self, record: Record) -> None:
        """One more record."""
        if isinstance(record, EventRecord):
            match record.event:
                case ActionSettled(action=action):
                    self._settled.add(action)
                case OrderGiven(what="release", target=self.job):
                    self._released = True
                case AttemptStarted(job=self.job, attempt=attempt):
                    self.attempt = attempt
            return
        for moved in record.decision.moved:
            if moved.trigger.machine == "job" and moved.trigger.who == self.job:
                self.state, self._released = moved.target, False
        for wanted in record.decision.actions:
            if isinstance(wanted, FinishJob | HoldJob) and wanted.job == self.job:
                self._closing = wanted

    @property
    def code(self) -> int | None:
        """What `medevac run` ends with; None while the job is not over."""
        over = self.state in RESTING
        if not over or self._released or self._closing is None or self._closing.id not in self._settled:
            return None
        return self._closing.code if isinstance(self._closing, FinishJob) else WAITS


class Controller:
    """The controller process: ours, or one that somebody else started for the same state folder."""

    def __init__(self, run: Run, say: Say) -> None:
        self._run = run
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause = FIRST_PAUSE_S
        self._failures = 0

    def done_something(self) -> None:
        """Something new stands in the log: what ends it next is another matter."""
        self._pause, self._failures = FIRST_PAUSE_S, 0

    async def tend(self) -> None:
        """For ever: have one running."""
        while True:
            if not self._acts():
                await self._again()
            await asyncio.sleep(LOOK_S)

    async def gone(self, limit_s: float) -> None:
        """Wait until ours has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._process and self._process.poll() is None:
                    await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End it, whoever started it."""
        held = read(self._run.state / LEASE)
        if self._process and self._process.poll() is None:
            self._process.kill()
        elif held and held.process and not is_gone(held.process):
            os.kill(held.process.pid, signal.SIGKILL)

    def _acts(self) -> bool:
        held = read(self._run.state / LEASE)
        leads = not is_over(held, time.time())
        if self._process is None or self._process.poll() is not None:
            return leads
        if not leads and time.monotonic() > self._began + STARTS_S:
            self._say("the controller does not answer: it is ended and started anew")
            self._process.kill()
            self._process.wait()
            return False
        return True

    async def _again(self) -> None:
        if self._process is not None:
            self._failed(self._process.returncode)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        self._start()

    def _start(self) -> None:
        with (self._run.state / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "medevac.controller.child", str(self._run.state), self._run.job],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._began = time.monotonic()

    def _failed(self, code: int) -> None:
        log = self._run.state / LOG
        if code == WRONG_CONFIGURATION:
            raise ConfigError(str(log), _last_problem(log) or "the controller could not begin")
        self._failures += 1
        if code and self._failures in {1, 10}:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            again = "" if self._failures == 1 else f", for the {self._failures}th time; {log} says why"
            self._say(f"the controller ended by {how} and is started anew{again}")


class Supervisor:
    """One `medevac run`, from the job's submission (or a take-over) to its end."""

    def __init__(self, run: Run, store: SqliteStore, output: Output | None, say: Say) -> None:
        self._run = run
        self._store = store
        self._output = output
        self._say = say
        self._progress = Progress(run.job)
        self._cursor = 0
        self._stops = 0
        self._controller = Controller(run, say)
        self._clock = SystemClock()

    async def run(self, lease: Lease) -> int:
        """The exit code. Raises `ConfigError` when no controller can begin."""
        await self._read(quiet=True)
        if self._progress.code is not None:
            return self._progress.code
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        beside = [asyncio.create_task(work) for work in (self._controller.tend(), lease.keep(self._clock))]
        try:
            code = await self._watch(beside)
        finally:
            for task in beside:
                task.cancel()
        await self._controller.gone(LEAVES_S)
        if self._output:
            self._output.pass_on(last=True)
        return code

    async def _watch(self, beside: list[asyncio.Task[None]]) -> int:
        while True:
            for task in beside:
                if task.done():
                    task.result()
            await self._read()
            if self._output:
                self._output.pass_on()
            if self._stops > 1:
                return await self._kill()
            if self._progress.code is not None:
                return self._progress.code
            await patiently("store", lambda: self._store.wait(self._cursor, LOOK_S), self._clock)

    async def _read(self, *, quiet: bool = False) -> None:
        """Take in what is new in the log, and say what was decided."""
        while records := await patiently("store", lambda: self._store.records(after=self._cursor), self._clock):
            for record in records:
                self._cursor = record.seq
                self._progress.take(record)
                if quiet:
                    continue
                if not (isinstance(record, EventRecord) and isinstance(record.event, WatchBegan)):
                    self._controller.done_something()
                if isinstance(record, EventRecord):
                    continue
                if words := line(record.decision):
                    self._say(words)

    def _interrupted(self) -> None:
        """The first time the job is stopped in order, the second time it is killed."""
        self._stops += 1
        if self._stops == 1:
            self._say("the job is stopped; once more kills it")
            self._ordering = asyncio.ensure_future(self._order_stop())

    async def _order_stop(self) -> None:
        order = OrderGiven(at=time.time(), what="stop", who=user(), target=self._run.job, why="interrupted")
        await patiently("store", lambda: self._store.append_events((order,)), self._clock)

    async def _kill(self) -> int:
        """Nobody acts any more, and nothing of the job is left."""
        self._controller.kill()
        scheduler = LocalScheduler(self._run.state)
        stop = StopAttempt(id=f"{self._run.job}/killed", job=self._run.job, attempt=self._progress.attempt)
        try:
            await scheduler.stop(stop)
        except PortError as problem:
            self._say(str(problem))
        return KILLED


def _last_problem(log: Path) -> str:
    """The last one that the controller wrote down."""
    lines = log.read_text(errors="replace").splitlines()
    with contextlib.suppress(IndexError, msgspec.DecodeError, msgspec.ValidationError):
        return str(msgspec.json.decode(lines[-1], type=dict[str, str]).get("problem", ""))
    return ""


def user() -> str:
    """The name of who runs this."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def supervisor_of(run: Run) -> Lease:
    """The parent's lease, taken. Raises `FencedOff` where the job has a parent."""
    Path(run.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    lease = Lease(run.supervisor)
    lease.take()
    return lease
