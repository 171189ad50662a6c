"""The keeper: one small process per attempt that starts the ranks, waits for them and writes down how they ended.

It outlives the controller, and the ranks do not outlive it (PR_SET_PDEATHSIG). It holds the attempt's lock, so that
one attempt can never run twice, and whoever gets that lock knows that no keeper is left.

    python -m medevac.adapters.schedulers.local.keeper <attempt folder>

returns 0 once the ranks are started (or another keeper has the attempt) and goes on in a session of its own. With a
warm process it stays when its attempt has failed, and keeps the next one too: the ranks that are forked become its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from medevac.adapters.schedulers.local import processes, shm
from medevac.adapters.schedulers.local.ending import LEFT_IN_ORDER, settle
from medevac.adapters.schedulers.local.family import Family, end
from medevac.adapters.schedulers.local.files import Attempt, Keeping, Plan, PlannedRank, StartedRank
from medevac.core.events import RankExit
from medevac.ports.errors import OutcomeUnknown

if TYPE_CHECKING:
    from medevac.adapters.schedulers.local.warm import Pool

CASCADE_SECONDS = 2.0
"""After one rank failed the others get this long to print why and leave."""

KILLED_SECONDS = 0.3
"""The same after one was killed: that the connection to it broke is all that they could say."""

STOP_SECONDS = 10.0
"""Grace when the keeper itself is asked to end (SIGTERM, as at shutdown)."""

STAYS_SECONDS = 120.0
"""How long a keeper waits for its next attempt, as long as a controller acts."""

NEXT = signal.SIGUSR1
"""Says that the next attempt's plan is written."""

_LEASE = "controller.lease"
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, NEXT}
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class Keeper:
    """Runs one attempt from start to end. Single-threaded, so that fork and PDEATHSIG mean what they say."""

    def __init__(self, attempt: Attempt, plan: Plan, pool: Pool | None = None) -> None:
        self._attempt = attempt
        self._plan = plan
        self._pool = pool or _pool(plan)
        self._family = Family(attempt, plan)
        self._running: dict[int, int] = {}
        self._exits: list[RankExit] = []
        self._why = ""
        self._keeping = Keeping(
            process=processes.identify(os.getpid()),
            at=time.time(),
            shm=shm.segments(Path(plan.shm)),
            warm=processes.identify(pool.pid) if pool and pool.pid else None,
        )

    def start(self) -> None:
        """Start all ranks; they are written down when this returns."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._attempt.save(self._keeping)
        if self._attempt.stop:
            return
        shared = rendezvous(self._plan)
        started, forked = [], self._forked(shared)
        for planned in self._plan.ranks:
            pid = forked.get(planned.place.rank) or self._spawn(planned, shared)
            self._running[pid] = planned.place.rank
            started.append(StartedRank(rank=planned.place.rank, process=processes.identify(pid)))
        self._keeping = msgspec.structs.replace(self._keeping, ranks=tuple(started))
        self._attempt.save(self._keeping)

    def finish(self) -> None:
        """Wait for the ranks, clear away what they left, write the end: when there is room, on a disk that is full."""
        self._wait()
        self._end_all()
        self._reap()
        while True:
            try:
                return settle(self._attempt, self._plan, self._keeping, tuple(self._exits), self._why)
            except OSError as problem:
                _say(problem)
                time.sleep(1.0)

    def _wait(self) -> None:
        deadline = None
        while self._running:
            pause = 5.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
            got = signal.sigtimedwait(_WATCHED, min(pause, self._pool.pause() if self._pool else pause))
            self._reap()
            self._warm_up()
            if got and got.si_signo in {signal.SIGTERM, signal.SIGINT}:
                self._why = "keeper-lost"
                self._end_all(grace_s=STOP_SECONDS)
            failed = [exit_ for exit_ in self._exits if exit_.code not in LEFT_IN_ORDER]
            if deadline is None and failed:
                killed = failed[0].signal == signal.SIGKILL
                deadline = time.monotonic() + (KILLED_SECONDS if killed else CASCADE_SECONDS)
            elif deadline is not None and time.monotonic() >= deadline:
                self._end_all()

    def _end_all(self, grace_s: float = 0.0) -> None:
        try:
            end(self._family, grace_s=grace_s)
        except OutcomeUnknown as problem:
            _say(problem)  # ranks are waited for all the same

    def _reap(self) -> None:
        """Take notice of all that died: ranks, and orphans that came to us as their sub-reaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (rank := self._running.pop(pid, None)) is not None:
                self._note(rank, os.waitstatus_to_exitcode(status))
            elif self._pool:
                self._pool.lost(pid)

    def _note(self, rank: int, code: int) -> None:
        number = -code if code < 0 else 0
        self._exits.append(RankExit(rank=rank, code=128 + number if number else code, signal=number, at=time.time()))
        try:
            with (self._attempt.folder / "exits.jsonl").open("ab") as out:
                out.write(msgspec.json.encode(self._exits[-1]) + b"\n")
        except OSError as problem:
            _say(problem)  # it is in ended.json again

    def next(self) -> tuple[Attempt, Pool] | None:
        """The attempt that follows, as soon as it is planned, and what warms it; None when nobody asks for one."""
        pool, deadline = self._pool, time.monotonic() + STAYS_SECONDS
        following = Attempt(self._attempt.folder.with_name(str(self._attempt.number + 1)))
        while pool and pool.pid and not self._over() and time.monotonic() < deadline:
            if following.plan:
                return following, pool
            got = signal.sigtimedwait(_WATCHED, 0.5)
            self._reap()
            if got and got.si_signo in {signal.SIGTERM, signal.SIGINT}:
                break
        if pool:
            pool.close()
        return None

    def _over(self) -> bool:
        """It ended well, or no controller is there to start another attempt."""
        from medevac.adapters.lease import is_over, read

        held, ended = read(Path(self._plan.state) / _LEASE), self._attempt.ended
        return is_over(held, time.time()) or ended is None or ended.code == 0

    def _warm_up(self) -> None:
        """Have a warm process for the next attempt, and say so, that nobody ends it with this one."""
        if self._pool is None:
            return
        started = self._pool.tend()
        if why := self._pool.untold():
            with contextlib.suppress(OSError), self._attempt.log(self._plan.ranks[0].place.rank).open("ab") as out:
                out.write(f"medevac: --warm: no warm process: {why}\n".encode())
        if started:
            self._keeping = msgspec.structs.replace(self._keeping, warm=processes.identify(self._pool.pid))
            with contextlib.suppress(OSError):
                self._attempt.save(self._keeping)

    def _forked(self, shared: Mapping[str, str]) -> dict[int, int]:
        """Ranks that need no start, by rank their pid."""
        if self._pool is None:
            return {}
        from medevac.client.forks import Order

        orders = []
        for planned in self._plan.ranks:
            log = str(self._attempt.log(planned.place.rank))
            orders.append(Order(planned.place.rank, os.environ | shared | planned.env, log, log))
        return self._pool.ranks(orders)

    def _spawn(self, planned: PlannedRank, shared: Mapping[str, str]) -> int:
        keeper = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _become(self._plan, planned, shared, self._attempt.log(planned.place.rank), keeper)
        finally:
            os._exit(127)


def _pool(plan: Plan) -> Pool | None:
    if not plan.warm:
        return None
    from medevac.adapters.schedulers.local.warm import Pool

    return Pool(plan, _say)


def _say(problem: Exception | str) -> None:
    """Into keeper.log, if the disk takes it."""
    with contextlib.suppress(OSError):
        print(problem, file=sys.stderr, flush=True)  # noqa: T201 - stderr is the log


def _become(plan: Plan, planned: PlannedRank, shared: Mapping[str, str], log: Path, keeper: int) -> NoReturn:
    """The child's side of a fork: turn into the rank's program, or say in its log why not and leave as a shell does."""
    os.setpgid(0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(128 + signal.SIGKILL)  # the keeper died before we asked to go with it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    environ = os.environ | shared | planned.env
    try:
        os.chdir(plan.cwd)
        os.execvpe(plan.command[0], plan.command, environ)  # noqa: S606 - an argv, no shell
    except OSError as problem:
        os.write(2, f"medevac: cannot start {plan.command[0]} in {plan.cwd}: {problem.strerror}\n".encode())
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def rendezvous(plan: Plan) -> dict[str, str]:
    """Where the ranks meet: a port that was free a moment ago, a fresh one per attempt (a dead attempt's peers may
    linger on the old one). Taken from below the range that the kernel gives to outgoing connections.
    """
    if len(plan.ranks) == 1 and "RANK" not in plan.ranks[0].env:
        return {}
    for _ in range(200):
        port = random.randint(15000, 32000)  # noqa: S311 - any free one will do
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    raise OSError("no free port between 15000 and 32000")


def keep(attempt: Attempt, ready: int, pool: Pool | None = None) -> Keeper | None:
    """One attempt from start to end; writes to `ready` when its ranks run. None where another keeper has it."""
    deadline = time.monotonic() + 5.0
    while True:
        with attempt.lock(wait=False) as held:
            if held and (plan := attempt.plan) and not attempt.keeping and not attempt.ended:
                keeper = Keeper(attempt, plan, pool)
                keeper.start()
                os.write(ready, b"1")
                os.close(ready)
                keeper.finish()
                return keeper
        if held or attempt.keeping or time.monotonic() > deadline:
            os.write(ready, b"1")
            return None
        time.sleep(0.02)  # somebody looks at the attempt, or another keeper is about to start


def keep_on(attempt: Attempt, ready: int) -> None:
    """The keeper's whole life: this attempt, and those that follow and find its process warm."""
    write_to(attempt)
    keeper = keep(attempt, ready)
    while keeper and (following := keeper.next()):
        write_to(following[0])
        keeper = keep(following[0], os.open(os.devnull, os.O_WRONLY), following[1])


def write_to(attempt: Attempt) -> None:
    """Have what is said go to the attempt's log."""
    log = os.open(attempt.folder / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def main() -> int:
    """Fork, let the child be the keeper, and return when it says that the ranks run."""
    folder = Path(sys.argv[1]).absolute()
    told, ready = os.pipe()
    if os.fork():
        os.close(ready)
        return 0 if os.read(told, 1) else 1
    os.close(told)
    os.setsid()
    os.chdir("/")
    keep_on(Attempt(folder), ready)
    return 0


if __name__ == "__main__":
    sys.exit(main())
