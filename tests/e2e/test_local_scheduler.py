"""The local scheduler with real processes that will not go quietly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from medevac.adapters.schedulers.local import JobSpec, LocalScheduler
from medevac.adapters.schedulers.local.files import Attempt, Keeping
from medevac.adapters.schedulers.local.processes import environment, everyone, look
from medevac.core.actions import RequestCheckpoint, StartAttempt, StopAttempt
from medevac.core.events import AttemptEnded, AttemptStarted, JobPolicy, RankPlace
from medevac.ports.errors import Refused

pytestmark = pytest.mark.e2e
LONG_S = 60.0
JOB = "train"


class Machine:
    """A state folder, this machine, and a job whose ranks run a Python program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.shm = folder / "shm"
        self.shm.mkdir()

    def scheduler(self) -> LocalScheduler:
        return LocalScheduler(self.state, shm=self.shm)

    async def submit(self, program: str, ranks: int = 1, **more: object) -> None:
        command = (sys.executable, "-S", "-c", program, str(self.folder))
        spec = JobSpec(job=JOB, command=command, ranks=ranks, cwd=str(self.folder), **more)  # type: ignore[arg-type]
        await self.scheduler().submit(spec)

    async def start(self, ranks: int = 1, attempt: int = 1) -> AttemptStarted:
        return await self.scheduler().start(await self.order(ranks, attempt))

    async def order(self, ranks: int = 1, attempt: int = 1) -> StartAttempt:
        node = (await self.scheduler().cluster()).nodes[0].name
        where = tuple(RankPlace(rank=rank, node=node, local_rank=rank) for rank in range(ranks))
        return StartAttempt(id=f"start{attempt}", job=JOB, attempt=attempt, ranks=where)

    async def stop(self, grace_s: float = 0.0, attempt: int = 1) -> AttemptEnded | None:
        action = StopAttempt(id=f"stop{attempt}", job=JOB, attempt=attempt, grace_s=grace_s)
        return await self.scheduler().stop(action)

    def attempt(self, number: int = 1) -> Attempt:
        return Attempt(self.state / "jobs" / JOB / "attempts" / str(number))

    def keeping(self, number: int = 1) -> Keeping:
        keeping = self.attempt(number).keeping
        assert keeping is not None
        return keeping

    def mine(self) -> list[int]:
        """Living processes that carry this state folder in their environment."""
        mark = f"MEDEVAC_STATE_DIR={self.state}".encode()
        return [process.pid for process in everyone().values() if not process.gone and mark in environment(process.pid)]

    async def ended(self, attempt: int = 1) -> AttemptEnded:
        async with asyncio.timeout(LONG_S):
            while True:
                for event in await self.scheduler().observe():
                    if isinstance(event, AttemptEnded) and event.attempt == attempt:
                        return event
                await asyncio.sleep(0.05)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    for folder in machine.state.glob("jobs/*/attempts/*"):
        await machine.stop(attempt=int(folder.name))
    for pid in machine.mine():
        os.kill(pid, signal.SIGKILL)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.02)


SLEEP = "import time; print('here', flush=True); time.sleep(3600)"
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1], "ready").touch()
while True: time.sleep(1)
"""


async def test_a_stopped_rank_and_a_stopped_keeper_do_not_delay_the_stop(machine: Machine) -> None:
    await machine.submit(SLEEP, 3)
    await machine.start(3)
    keeping = machine.keeping()
    for pid in (keeping.process.pid, *(rank.process.pid for rank in keeping.ranks)):
        os.kill(pid, signal.SIGSTOP)
        await until(lambda pid=pid: (now := look(pid)) and now.stopped)  # type: ignore[misc]
    began = time.monotonic()
    over = await machine.stop(grace_s=50.0)
    assert time.monotonic() - began < 25.0, "half of the grace, on a machine that has other work"
    assert over is not None
    assert (over.why, len(over.exits)) == ("stopped", 3)
    assert machine.mine() == []


async def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(machine: Machine) -> None:
    await machine.submit(STUBBORN)
    await machine.start()
    await until((machine.folder / "ready").exists)
    over = await machine.stop(grace_s=0.3)
    assert over is not None
    assert (over.exits[0].signal, over.why) == (signal.SIGKILL, "stopped")


async def test_a_rank_may_leave_in_its_own_way_within_the_grace(machine: Machine) -> None:
    program = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(83))
pathlib.Path(sys.argv[1], "ready").touch()
while True: time.sleep(0.1)
"""
    await machine.submit(program)
    await machine.start()
    await until((machine.folder / "ready").exists)
    over = await machine.stop(grace_s=LONG_S)
    assert over is not None
    assert (over.code, over.exits[0].code, over.why) == (83, 83, "stopped")


ORPHANS = """
import os, pathlib, subprocess, sys, time
here = pathlib.Path(sys.argv[1])
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
for number, options in enumerate(({"start_new_session": True}, {"start_new_session": True, "env": {}})):
    if os.fork() == 0:  # the child leaves at once: the sleeper has nobody of the job above it
        child = subprocess.Popen(sleeper, **options)
        (here / f"orphan{number}.part").write_text(str(child.pid))
        (here / f"orphan{number}.part").rename(here / f"orphan{number}")
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)"], ids=["stopped", "ended by itself"])
async def test_orphans_in_sessions_of_their_own_go_too(machine: Machine, end: str) -> None:
    """One carries the job's environment; the other carries nothing, and is found below the keeper."""
    await machine.submit(ORPHANS + (end or "time.sleep(3600)"))
    await machine.start()
    files = [machine.folder / "orphan0", machine.folder / "orphan1"]
    await until(lambda: all(file.exists() for file in files))
    orphans = [int(file.read_text()) for file in files]
    await (machine.ended() if end else machine.stop())
    for pid in orphans:
        now = look(pid)
        assert now is None or now.gone


async def test_a_killed_keeper_ends_its_attempt(machine: Machine) -> None:
    await machine.submit(SLEEP, 2)
    await machine.start(2)
    ranks = [rank.process.pid for rank in machine.keeping().ranks]
    os.kill(machine.keeping().process.pid, signal.SIGKILL)
    over = await machine.ended()
    assert (over.code, over.why) == (137, "keeper-lost")
    assert all((now := look(pid)) is None or now.gone for pid in ranks)
    assert machine.mine() == []


async def test_orphans_of_a_killed_keeper_are_killed_before_the_end_is_told(machine: Machine) -> None:
    await machine.submit(ORPHANS + "time.sleep(3600)")
    await machine.start()
    await until((machine.folder / "orphan0").exists)
    orphan = int((machine.folder / "orphan0").read_text())
    os.kill(machine.keeping().process.pid, signal.SIGKILL)
    assert (await machine.ended()).why == "keeper-lost"
    assert (now := look(orphan)) is None or now.gone
    await until((machine.folder / "orphan1").exists)
    os.kill(int((machine.folder / "orphan1").read_text()), signal.SIGKILL)  # nothing ties this one to the job


async def test_the_first_to_die_is_told_first_and_takes_the_others_along(machine: Machine) -> None:
    await machine.submit("import os, sys, time\nif os.environ['RANK'] == '2': sys.exit(9)\ntime.sleep(3600)", 4)
    await machine.start(4)
    over = await machine.ended()
    assert (over.code, over.exits[0].rank, over.exits[0].code, over.why) == (9, 2, 9, "")
    assert {one.signal for one in over.exits[1:]} == {signal.SIGKILL}
    assert len(over.exits) == 4


async def test_leaving_after_a_checkpoint_is_no_failure(machine: Machine) -> None:
    """The others may take their time: the cascade's two seconds are not for them."""
    program = "import os, sys, time\ntime.sleep(0 if os.environ['RANK'] == '0' else 3)\nsys.exit(83)"
    await machine.submit(program, 2)
    await machine.start(2)
    over = await machine.ended()
    assert (over.code, [one.code for one in over.exits]) == (83, [83, 83])


@pytest.mark.parametrize(("command", "code"), [("./gone", 127), ("./plain", 126)])
async def test_a_program_that_cannot_start_says_so(machine: Machine, command: str, code: int) -> None:
    program = machine.folder / command
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    spec = JobSpec(job=JOB, command=(command,), cwd=str(machine.folder))
    await machine.scheduler().submit(spec)
    if code == 127:
        program.unlink()
    else:
        program.chmod(0o644)
    await machine.start()
    assert (await machine.ended()).code == code
    text = machine.attempt().log(0).read_text()
    assert f"medevac: cannot start {command}" in text
    assert len(text.splitlines()) == 1


async def test_shared_memory_goes_and_what_others_use_stays(machine: Machine) -> None:
    program = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
for name in ("torch_1_2", "used", f"medevac-{os.environ['MEDEVAC_JOB_ID']}-segment"):
    (here / "shm" / name).write_bytes(b"x" * 4096)
(here / "ready").touch()
time.sleep(3600)
"""
    (machine.shm / "older").touch()
    await machine.submit(program)
    await machine.start()
    await until((machine.folder / "ready").exists)
    with (machine.shm / "used").open():
        await machine.stop()
    assert sorted(path.name for path in machine.shm.iterdir()) == ["medevac-train-segment", "older", "used"]


SAVER = """
import os, pathlib, subprocess, sys, time
here = pathlib.Path(sys.argv[1])
savers = pathlib.Path(os.environ["MEDEVAC_STATE_DIR"], "jobs", os.environ["MEDEVAC_JOB_ID"], "savers")
savers.mkdir(exist_ok=True)
saver = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"], start_new_session=True)
(savers / str(saver.pid)).touch()
(here / "shm" / "medevac-train-1").touch()
(here / "ready").touch()
time.sleep(3600)
"""


async def test_the_saver_and_its_segments_outlive_the_attempt_until_they_are_cleared(machine: Machine) -> None:
    await machine.submit(SAVER)
    await machine.start()
    await until((machine.folder / "ready").exists)
    await machine.stop()
    (saver,) = machine.mine()
    assert (machine.shm / "medevac-train-1").exists()
    await machine.scheduler().clear_savers(JOB)
    await until(lambda: (now := look(saver)) is None or now.gone)
    assert list(machine.shm.iterdir()) == []


async def test_a_checkpoint_is_asked_for_by_the_policys_signal(machine: Machine) -> None:
    program = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(83))
pathlib.Path(sys.argv[1], "ready").touch()
while True: time.sleep(0.1)
"""
    await machine.submit(program, policy=JobPolicy(signal="USR1"))
    await machine.start()
    await until((machine.folder / "ready").exists)
    await machine.scheduler().request_checkpoint(RequestCheckpoint(id="ask", job=JOB, attempt=1))
    assert (await machine.ended()).code == 83


async def test_a_request_of_an_earlier_run_in_the_same_folder_is_not_heard(machine: Machine) -> None:
    request = machine.folder / ".medevac" / "requests" / "1.checkpoint"
    request.parent.mkdir(parents=True)
    request.touch()
    await machine.submit(SLEEP, checkpoint_dir=str(machine.folder))
    await machine.start()
    assert not request.exists()
    await machine.scheduler().request_checkpoint(RequestCheckpoint(id="ask", job=JOB, attempt=1))
    assert request.exists()


async def test_ranks_find_each_other_and_one_process_finds_its_own_way(machine: Machine) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    program = f"import os\nfor name in '{names}'.split(): print(os.environ.get(name))"
    await machine.submit(program, 2)
    await machine.start(2)
    await machine.ended()
    first, second = (machine.attempt().log(rank).read_text().split() for rank in (0, 1))
    assert (first[:5], second[:5]) == (["0", "0", "2", "2", "127.0.0.1"], ["1", "1", "2", "2", "127.0.0.1"])
    assert first[5:] == second[5:]
    assert first[6] == "None"


CALLER = """
import asyncio, sys
from pathlib import Path
from medevac.adapters.schedulers.local import LocalScheduler
from medevac.core.actions import StartAttempt
from medevac.core.events import RankPlace

async def main():
    scheduler = LocalScheduler(Path(sys.argv[1]), shm=Path(sys.argv[2]))
    node = (await scheduler.cluster()).nodes[0].name
    ranks = tuple(RankPlace(rank=rank, node=node, local_rank=rank) for rank in range(2))
    print("now", flush=True)
    await scheduler.start(StartAttempt(id="s", job="train", attempt=int(sys.argv[3]), ranks=ranks))

asyncio.run(main())
"""


@pytest.mark.timeout(600)  # many rounds, on a machine that may have other work
async def test_a_caller_killed_anywhere_in_start_leaves_one_attempt_or_none(machine: Machine) -> None:
    """Twenty callers, killed at random; then `start` is repeated and each rank has run exactly once."""
    count = "import os, sys, time\nopen(f\"{sys.argv[1]}/ran.{os.environ['MEDEVAC_ATTEMPT']}\", 'a').write('x')\n"
    await machine.submit(count + "time.sleep(3600)", 2)
    dice = random.Random(3)
    for attempt in range(1, 21):
        command = [sys.executable, "-c", CALLER, str(machine.state), str(machine.shm), str(attempt)]
        caller = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert caller.stdout is not None
        assert await caller.stdout.readline() == b"now\n"
        await asyncio.sleep(dice.uniform(0.0, 0.35))
        with contextlib.suppress(ProcessLookupError):  # it was quicker than we were
            caller.kill()
        await caller.wait()
        await machine.start(2, attempt)
        ran = machine.folder / f"ran.{attempt}"
        await until(lambda ran=ran: ran.exists() and len(ran.read_text()) >= 2)  # type: ignore[misc]
        assert len(machine.mine()) == 2
        over = await machine.stop(attempt=attempt)
        assert over is not None
        assert over.why == "stopped"
        assert ran.read_text() == "xx"
        assert machine.mine() == []


@pytest.mark.timeout(600)  # many rounds, on a machine that may have other work
async def test_a_keeper_killed_at_any_time_leaves_nothing_and_a_told_end(machine: Machine) -> None:
    await machine.submit("import sys, time\ntime.sleep(3600)", 3)
    dice = random.Random(5)
    for attempt in range(1, 11):
        starting = asyncio.create_task(machine.start(3, attempt))
        await until(lambda number=attempt: machine.attempt(number).keeping)  # type: ignore[misc]
        await asyncio.sleep(dice.uniform(0.0, 0.03))
        os.kill(machine.keeping(attempt).process.pid, signal.SIGKILL)
        over = await machine.ended(attempt)
        assert (over.code, over.why) == (137, "keeper-lost")
        assert machine.mine() == []
        assert (await starting).attempt == attempt


async def test_a_keeper_that_is_asked_to_end_takes_its_ranks_along(machine: Machine) -> None:
    await machine.submit(SLEEP, 2)
    await machine.start(2)
    os.kill(machine.keeping().process.pid, signal.SIGTERM)
    over = await machine.ended()
    assert (over.why, {one.signal for one in over.exits}) == ("keeper-lost", {signal.SIGTERM})


async def test_two_schedulers_that_start_at_once_start_one(machine: Machine) -> None:
    await machine.submit(SLEEP, 2)
    order = await machine.order(2)
    started = await asyncio.gather(*(machine.scheduler().start(order) for _ in range(4)))
    assert len(set(started)) == 1
    assert len(machine.mine()) == 2


async def test_a_stop_that_comes_before_the_keeper_prevents_the_ranks(machine: Machine) -> None:
    """As after a kill between plan and keeper: nothing runs, and nothing comes to run later."""
    await machine.submit(SLEEP, 2)
    await machine.start(2)
    await machine.stop()
    late = machine.attempt(2)
    late.folder.mkdir()
    plan = machine.attempt(1).plan
    assert plan is not None
    (late.folder / "plan.json").write_bytes((machine.attempt(1).folder / "plan.json").read_bytes())
    over = await machine.stop(attempt=2)
    assert over is not None
    assert (over.why, over.exits) == ("stopped", ())
    await machine.scheduler().start(await machine.order(2, 2))
    assert machine.mine() == []


async def test_a_full_story_survives_a_new_object_each_time(machine: Machine) -> None:
    await machine.submit(SLEEP, 2)
    await machine.start(2)
    with pytest.raises(Refused, match="still runs"):
        await machine.start(2, attempt=2)
    await machine.stop()
    await machine.start(2, attempt=2)
    events = await machine.scheduler().observe()
    assert [event.id for event in events] == ["train/1/started", "train/1/ended", "train/2/started"]
