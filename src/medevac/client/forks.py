"""Ordering ranks from a warm process (`medevac.client.warm`): for a keeper, and for a launcher of ranks."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].+")
_WITH_VALUE = {"-W", "-X"}
_LONGEST = 200_000


class Order(NamedTuple):
    """A rank to be forked: its whole environment, files that its output is appended to ("" for the warm process's own),
    and whether it leads a session, not only a process group.
    """

    rank: int
    env: Mapping[str, str]
    out: str = ""
    err: str = ""
    session: bool = False


class Interpreter(NamedTuple):
    """How a job's command calls Python: the program and its options, then the script (or -m) and its arguments."""

    options: tuple[str, ...]
    argv: tuple[str, ...]


def interpreter(command: Sequence[str]) -> Interpreter | None:
    """None for a command that is no Python with a script or a module."""
    if not re.fullmatch(r"python[0-9.]*", Path(command[0]).name):
        return None
    at = 1
    while at < len(command) and (command[at] in _WITH_VALUE or _OPTION.fullmatch(command[at])):
        at += 2 if command[at] in _WITH_VALUE else 1
    argv = tuple(command[at:])
    is_module = len(argv) > 1 and argv[0] == "-m"
    is_script = bool(argv) and argv[0].endswith(".py")
    return Interpreter(tuple(command[:at]), argv) if is_module or is_script else None


def fork(link: socket.socket, orders: Sequence[Order], wait_s: float) -> tuple[dict[int, int], dict[int, str]]:
    """The pids of the ranks that run, by rank, and why the others do not. Each is a child of this process, which must
    be a sub-reaper.
    """
    waiting: dict[socket.socket, int] = {}
    problems: dict[int, str] = {}
    for order in orders:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        told = {**order._asdict(), "env": dict(order.env), "keeper": os.getpid()}
        with theirs:
            try:
                socket.send_fds(link, [json.dumps(told).encode()], [theirs.fileno()])
                waiting[ours] = order.rank
            except OSError as problem:
                problems[order.rank] = problem.strerror or "the warm process is gone"
                ours.close()
    return _answers(waiting, problems, time.monotonic() + wait_s), problems


def _answers(waiting: dict[socket.socket, int], problems: dict[int, str], deadline: float) -> dict[int, int]:
    found: dict[int, int] = {}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for link in select.select(list(waiting), [], [], left)[0]:
            rank, told = waiting.pop(link), read(link)
            if "pid" in told and _let_go(link):
                found[rank] = told["pid"]
            else:
                problems[rank] = told.get("problem", "the warm process does not answer")
            link.close()
    for link, rank in waiting.items():  # closed, it ends a rank that comes late
        problems[rank] = "the warm process is late"
        link.close()
    return found


def read(link: socket.socket) -> dict[str, Any]:
    """One message, empty for none."""
    try:
        data = link.recv(_LONGEST)
        return dict(json.loads(data)) if data else {}
    except (OSError, ValueError):
        return {}


def _let_go(link: socket.socket) -> bool:
    try:
        return link.send(b"1") == 1
    except OSError:
        return False
