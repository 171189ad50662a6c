"""Ranks that torchrun forks from a process with everything imported, in place of starting each.

The launcher has torch already. It forks, before it has threads, a process that imports the rest of what the script
imports, and has its ranks forked by that (`medevac.client.warm`). Whatever does not fit is started as ever.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from medevac.client import warm
from medevac.client.agents import asked
from medevac.client.forks import Order, fork

log = logging.getLogger("medevac.torch")

WANTED = "MEDEVAC_WARM"
FORK_SECONDS = 30.0
"""How long the first ranks may wait for the imports: cold ones would take longer, each of them."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LOOK_SECONDS = 0.01


class Forked:
    """A rank, as much of `subprocess.Popen` as torchrun uses."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args = pid, args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Ranks:
    """Makes ranks for torchrun's agent: called as `Popen`."""

    def __init__(self, link: socket.socket, argv: Sequence[str]) -> None:
        self._link, self._argv = link, list(argv)

    def __call__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        **how: Any,
    ) -> Forked | subprocess.Popen[bytes]:
        ours = [sys.executable, "-u", *self._argv]
        if list(args) == ours and how == {"start_new_session": True}:
            out, err = (str(file.name) if file else "" for file in (stdout, stderr))
            order = Order(int(env.get("LOCAL_RANK", "0")), env, out, err, session=True)
            pids, problems = fork(self._link, [order], FORK_SECONDS)
            if pids:
                return Forked(pids[order.rank], args)
            log.warning("rank %s is started cold: %s", env.get("RANK"), problems.get(order.rank))
        return subprocess.Popen(args, env=env, stdout=stdout, stderr=stderr, **how)


def fork_ranks(words: Sequence[str]) -> None:
    """Have torchrun's ranks forked where Medevac wants it and the command line, what follows `torchrun`, names a
    script. Returns in the launcher; each rank runs the script in here and ends.
    """
    argv = script_of(words)
    if not os.environ.get(WANTED) or argv is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = os.getpid()
    if os.fork():
        theirs.close()
        vars(subprocess_handler)["Popen"] = Ranks(ours, argv)
        return
    ours.close()
    gc.unfreeze()
    warm.die_with(launcher)
    for name in filter(warm.is_own, list(os.environ)):
        del os.environ[name]  # the launcher's; each rank comes with its own
    made = warm.Warm({"argv": argv, "cwd": os.getcwd(), "imports": (), "leave": ()})  # noqa: PTH109 - as it is
    if left := made.prepare(rests=0.0):
        made.refused = f"{', '.join(left)} asks for its rank on import"
    order = made.serve(theirs)
    if order is None:
        os._exit(0)
    made.run(order)
    sys.exit(0)


def script_of(words: Sequence[str]) -> list[str] | None:
    """The script and its arguments; None for a module, another program, or a command line that torchrun refuses."""
    try:
        at = asked(words).script
    except ValueError:
        return None
    plain = not {"-m", "--module", "--no-python", "--run-path"} & set(words[:at])
    return list(words[at:]) if plain and at < len(words) and words[at].endswith(".py") else None
