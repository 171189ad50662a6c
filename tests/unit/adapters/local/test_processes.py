"""Processes of this machine, looked at from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from medevac.adapters.schedulers.local import processes
from medevac.adapters.schedulers.local.processes import Process

SLEEP = (sys.executable, "-S", "-c", "import sys, time; print(1, flush=True); time.sleep(3600)")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env={"MARK": "a b"}, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def seen(pid: int) -> Process:
    process = processes.look(pid)
    assert process is not None
    return process


def test_a_process_is_seen_with_its_parent_group_and_environment(child: subprocess.Popen[bytes]) -> None:
    process = seen(child.pid)
    assert (process.parent, process.group, process.session) == (os.getpid(), child.pid, child.pid)
    assert not process.gone
    assert b"MARK=a b" in processes.environment(child.pid)
    assert processes.everyone()[child.pid].started == process.started


def test_a_dead_process_is_gone_before_its_parent_takes_notice(child: subprocess.Popen[bytes]) -> None:
    who = processes.identify(child.pid)
    assert processes.alive(who) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert seen(child.pid).gone
    assert processes.alive(who) is None
    child.wait()
    assert processes.look(child.pid) is None
    with pytest.raises(ProcessLookupError):
        processes.identify(child.pid)


def test_a_later_process_or_another_boot_is_not_taken_for_ours(child: subprocess.Popen[bytes]) -> None:
    who = processes.identify(child.pid)
    assert processes.alive(msgspec.structs.replace(who, started=who.started - 1)) is None
    assert processes.alive(msgspec.structs.replace(who, boot="before")) is None


def test_a_signal_hits_no_process_with_the_same_pid(child: subprocess.Popen[bytes]) -> None:
    other = seen(child.pid)._replace(started=1)
    processes.send(other, signal.SIGKILL)
    assert child.poll() is None
    processes.send(seen(child.pid), signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    processes.send(other, signal.SIGKILL)


def test_a_stopped_process_is_told_from_a_running_one(child: subprocess.Popen[bytes]) -> None:
    processes.send(seen(child.pid), signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert seen(child.pid).stopped


def test_a_name_with_brackets_and_spaces_is_read_past() -> None:
    program = "open('/proc/self/comm', 'w').write('a) R (b c'); " + SLEEP[-1]
    with subprocess.Popen((*SLEEP[:-1], program), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert seen(process.pid).parent == os.getpid()
        process.kill()


def test_those_above_and_below() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, "S", parent, pid, pid, 1, 1)

    table = {p.pid: p for p in (process(1, 0), process(2, 1), process(3, 2), process(4, 2), process(5, 1))}
    assert processes.ancestors(3, table) == {3, 2, 1}
    assert processes.descendants({2}, table) == {2, 3, 4}
    assert processes.descendants(set(), table) == set()
