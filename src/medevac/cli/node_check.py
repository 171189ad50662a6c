"""`medevac node-check`: may this node take work? For Prolog, Epilog and HealthCheckProgram."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.marks import drain_tag
from medevac.adapters.schedulers.slurm.parse import nodes
from medevac.catalog.policy import load_policy
from medevac.cli.exits import Exit
from medevac.core.decide import decide
from medevac.core.events import FaultSeen
from medevac.core.view import View
from medevac.decode.context import Context
from medevac.decode.lines import decode_line
from medevac.ports.errors import PortError

LOGS = ("/dev/kmsg", "/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
LAST = 4 << 20
"""Bytes at the end of a log file that are read."""


MARK_S = 4.0
"""How long Slurm may take to say whether the node is drained."""


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
    """Say whether work must keep off this node: by a fault that it met lately, or because Medevac took it out in Slurm.

    Ends with 1 where that is so, else with 0. What cannot be read, or not in time, is unknown and no fault; so is a
    Slurm that does not answer.

    Args:
        kernel_log: The node's kernel log (else /dev/kmsg, /var/log/kern.log, messages or syslog).
        within: How old a fault may be, in seconds; what was before the last boot is over.
        node: The node's name (else SLURMD_NODENAME, or the host's).
        policy: The policy that says which faults those are.
        limit: Seconds after which what was not read yet stays unknown.
    """
    name = node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    began = time.monotonic()
    found, unknown = _by_log(name, kernel_log, max(time.time() - within, _booted()), policy, limit)
    found += _by_mark(name, limit - (time.monotonic() - began))
    said = "; ".join(found) or unknown or f"no fault within {within:g} s"
    print(f"{name}: {said}")
    return Exit.FOUND if found else Exit.DONE


def _by_log(name: str, given: Path | None, since: float, policy: str, limit: float) -> tuple[list[str], str]:
    """What the kernel log says against the node, and why that is not known."""
    try:
        with _in_time(limit):
            path = given or _readable()
            if path is None:
                return [], "unknown: no kernel log can be read; run as root, or name one with --kernel-log"
            return bad(_faults(path, name), since, policy), ""
    except (OSError, Late) as problem:
        why = problem.strerror if isinstance(problem, OSError) else f"not read within {limit:g} s"
        return [], f"unknown: {given or 'the kernel log'}: {why}"


def _by_mark(name: str, left_s: float) -> list[str]:
    """Our own drain of the node, where there is a Slurm that tells it soon."""
    commands = Commands(mode="monitor", deadline_s=max(min(left_s, MARK_S), 0.1))
    try:
        shown = asyncio.run(commands.run("scontrol", "-o", "show", "node", name))
        drains = [tag for one in nodes(shown) if one.name == name and one.drained and (tag := drain_tag(one.reason))]
    except PortError:
        return []
    return [f"taken out by Medevac: {tag.why or 'by order'} ({tag.incident})" for tag in drains]


def _booted() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


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
