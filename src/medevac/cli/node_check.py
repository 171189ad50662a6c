"""`medevac node-check`: may this node take work? For Prolog, Epilog and HealthCheckProgram."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from medevac.catalog.policy import load_policy
from medevac.cli.exits import Exit
from medevac.core.decide import decide
from medevac.core.events import FaultSeen
from medevac.core.view import View
from medevac.decode.context import Context
from medevac.decode.lines import decode_line

LOGS = ("/dev/kmsg", "/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
LAST = 4 << 20
"""Bytes at the end of a log file that are read."""


class Late(Exception):
    """The time is up."""


def node_check(
    *,
    kernel_log: Path | None = None,
    within: float = 900.0,
    node: str = "",
    policy: str = "standard",
    limit: float = 8.0,
) -> int:
    """Say whether this node met a fault lately that must keep work off it. Ends with 1 where it did, else with 0.

    A log that cannot be read, or not in time, is unknown and no fault.

    Args:
        kernel_log: The node's kernel log (else /dev/kmsg, /var/log/kern.log, messages or syslog).
        within: How old a fault may be, in seconds.
        node: The node's name (else SLURMD_NODENAME, or the host's).
        policy: The policy that says which faults those are.
        limit: Seconds after which what was not read yet stays unknown.
    """
    name = node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    try:
        with _in_time(limit):
            path = kernel_log or _readable()
            if path is None:
                print(f"{name}: unknown: no kernel log can be read; run as root, or name one with --kernel-log")
                return Exit.DONE
            found = bad(_faults(path, name), time.time() - within, policy)
    except (OSError, Late) as problem:
        why = problem.strerror if isinstance(problem, OSError) else f"not read within {limit:g} s"
        print(f"{name}: unknown: {kernel_log or 'the kernel log'}: {why}")
        return Exit.DONE
    print(f"{name}: {'; '.join(found) if found else f'no fault within {within:g} s'}")
    return Exit.FOUND if found else Exit.DONE


def bad(faults: Iterator[FaultSeen], since: float, policy: str) -> list[str]:
    """What of the faults after `since` takes a part out at once, in words."""
    view, rules, said = View(), load_policy(policy, "monitor"), []
    for fault in faults:
        if fault.at < since:
            continue
        view = view.apply(fault, view.seq + 1)
        decision = decide(view, fault, rules)
        said += [f"{f.part.name}: {f.meaning}" for f in decision.findings if f.response == "hard"]
        view = view.after(decision)
    return list(dict.fromkeys(said))


def _faults(path: Path, node: str) -> Iterator[FaultSeen]:
    now = time.time()
    context = Context(reference=now, node=node)
    if path.is_char_device():
        context.clock.joined("", 0.0, now - time.clock_gettime(time.CLOCK_MONOTONIC))
    for line in _lines(path):
        if event := decode_line(line, context):
            yield event


def _lines(path: Path) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if path.is_char_device():
            yield from _records(descriptor)
            return
        size = os.fstat(descriptor).st_size
        yield from os.pread(descriptor, LAST, max(size - LAST, 0)).splitlines()
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(descriptor, 16384)
        except BrokenPipeError:  # overwritten meanwhile; the next read goes on
            continue
        except BlockingIOError:
            return


def _readable() -> Path | None:
    return next((Path(log) for log in LOGS if os.access(log, os.R_OK)), None)


@contextmanager
def _in_time(limit_s: float) -> Iterator[None]:
    """Raises `Late` in the body, even where it hangs in a read."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
