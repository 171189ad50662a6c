"""The keeper's end of a warm process (`medevac.client.warm`): when it is started, and ranks that it forks.

One per keeper, made while an attempt runs and used when the next one starts. What goes wrong with it costs a cold
start, never a rank.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from medevac.adapters.schedulers.local.files import Plan
from medevac.client import warm
from medevac.client.forks import Order, fork, interpreter, read

AFTER_SECONDS = 5.0
"""Into an attempt, that its ranks have the cores while they start; MEDEVAC_WARM_AFTER_S says otherwise."""

AGAIN_SECONDS = (5.0, 60.0, 600.0)
"""Pauses before a warm process that was lost is replaced."""

FORK_SECONDS = 3.0
"""How long a rank may take to say that it is there, before it is started cold."""

Say = Callable[[str], None]


class Pool:
    """The warm process of one job here. `say` takes a line for the keeper's log."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._python = interpreter(plan.command)
        self._link: socket.socket | None = None
        self._ready = False
        self._losses = 0
        self._due = time.monotonic() + float(os.environ.get("MEDEVAC_WARM_AFTER_S") or AFTER_SECONDS)
        self.pid = 0
        """The process, 0 for none."""
        self.refused = ""
        """Why there will be none."""
        self._told = False
        if self._python is None:
            self._refuse("the command is no `python script.py` or `python -m module`")

    def tend(self) -> bool:
        """Start the process when it is time; True when it was started now."""
        self._listen()
        if self.pid or self.refused or time.monotonic() < self._due:
            return False
        try:
            self._start()
        except OSError as problem:
            self._refuse(f"{problem.filename or self._plan.command[0]}: {problem.strerror}")
        return self.pid > 0

    def untold(self) -> str:
        """Why there will be none, once: for who reads the job's output."""
        told, self._told = self._told, bool(self.refused)
        return "" if told else self.refused

    def pause(self) -> float:
        """Seconds until `tend` has something to do."""
        return 60.0 if self.pid or self.refused else max(self._due - time.monotonic(), 0.0)

    def lost(self, pid: int) -> None:
        """A process has ended; if it is ours another one takes its place, later and later."""
        if pid == self.pid:
            self._say(f"the warm process {pid} is gone")
            self._forget()

    def close(self) -> None:
        """End it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._forget()

    def ranks(self, orders: Sequence[Order]) -> dict[int, int]:
        """Fork these ranks; the pids of those that run. Each is a child of ours, in a group of its own."""
        self._listen()
        if not (self._link and self._ready):
            return {}
        found, problems = fork(self._link, orders, FORK_SECONDS)
        for rank, why in problems.items():
            self._say(f"rank {rank} is started cold: {why}")
        return found

    def _start(self) -> None:
        assert self._python
        env = {name: value for name, value in (os.environ | self._plan.ranks[0].env).items() if not _of_a_rank(name)}
        env[warm.ROOM] = "." * 4096
        name = self._python.options[0]
        program = shutil.which(Path(self._plan.cwd) / name if "/" in name else name, path=env.get("PATH"))
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "is not there", name)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        imports = [(name, "") for name in self._plan.warm_imports]
        task = {"argv": self._python.argv, "cwd": self._plan.cwd, "imports": imports, "leave": ()}
        argv = [program, *self._python.options[1:], str(warm.__file__), str(theirs.fileno())]
        with theirs:
            theirs.set_inheritable(True)
            self.pid = os.posix_spawn(
                program,
                [*argv, json.dumps({**task, "keeper": os.getpid()})],
                env,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM),
            )
        self._link, self._ready = ours, False

    def _listen(self) -> None:
        """What it says once: that it is ready, or of no use."""
        if self._link is None or self._ready or not select.select([self._link], [], [], 0)[0]:
            return
        told = read(self._link)
        if refused := told.get("refused"):
            self._refuse(refused)
            self.close()
        elif told:
            self._ready, self._losses = True, 0
            left = f", without {', '.join(told['left'])}, which ask for their rank" if told["left"] else ""
            self._say(f"the warm process {self.pid} has {told['modules']} modules after {told['seconds']:.1f} s{left}")

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._say(f"no warm process: {why}")

    def _forget(self) -> None:
        if self._link:
            self._link.close()
        self._link, self.pid, self._ready = None, 0, False
        self._due = time.monotonic() + AGAIN_SECONDS[min(self._losses, len(AGAIN_SECONDS) - 1)]
        self._losses += 1


def _of_a_rank(name: str) -> bool:
    return warm.is_own(name) and name not in {"MEDEVAC_STATE_DIR", "MEDEVAC_JOB_ID", "MEDEVAC_SOCKET"}
