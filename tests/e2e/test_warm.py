"""Ranks forked from a warm process: as good as started ones, and nothing is left of them or of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.e2e.test_local_scheduler import JOB, LONG_S, Machine

from medevac.adapters.lease import Lease, read
from medevac.adapters.schedulers.local import JobSpec
from medevac.adapters.schedulers.local.processes import environment, look
from medevac.core.events import JobPolicy

pytestmark = pytest.mark.e2e
RANKS = 2

SCRIPT = """
import json, os, random, subprocess, sys, time
import by_rank
import seeded
{more}
rank = os.environ["RANK"]
said = dict(argv=sys.argv, name=__name__, file=__file__, by_rank=by_rank.RANK, seeded=seeded.DRAWN,
            drawn=random.random(), parent=os.getppid(), leads=os.getpgid(0) == os.getpid(), cwd=os.getcwd(),
            imported=seeded.BY, attempt=os.environ["MEDEVAC_ATTEMPT"], room="MEDEVAC_WARM_ROOM" in os.environ)
print(json.dumps(said), flush=True)
door = os.path.join(sys.argv[1], os.environ["MEDEVAC_ATTEMPT"] + "." + rank)
while not os.path.exists(door):
    time.sleep(0.01)
exec(open(door).read())
"""
MODULES = {
    "by_rank": "import os\nRANK = os.environ.get('RANK', 'nobody')\n",
    "seeded": "import os, random\nrandom.seed(7)\nDRAWN = random.random()\nBY = os.getpid()\n",
}


class Warmed(Machine):
    """The machine with a controller's lease and a job that is kept warm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state.mkdir(parents=True)
        self.lease = Lease(self.state / "controller.lease")
        self.lease.take()

    async def begin(self, *, more: str = "", **modules: str) -> None:
        for name, text in (MODULES | modules).items():
            (self.folder / f"{name}.py").write_text(text)
        (self.folder / "train.py").write_text(SCRIPT.format(more=more))
        command = (sys.executable, "train.py", str(self.folder))
        spec = JobSpec(job=JOB, command=command, ranks=RANKS, cwd=str(self.folder), policy=JobPolicy(warm=True))
        await self.scheduler().submit(spec)
        await self.start(RANKS)

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(LONG_S):
            while not what():
                await asyncio.sleep(0.02)

    def keeper_says(self, number: int = 1) -> str:
        path = self.attempt(number).folder / "keeper.log"
        return path.read_text() if path.exists() else ""

    async def warm(self) -> int:
        """Wait for the warm process; its pid."""
        await self.until(lambda: "modules after" in self.keeper_says())
        warm = self.keeping().warm
        assert warm is not None
        return warm.pid

    async def said(self, number: int, rank: int) -> dict[str, object]:
        log = self.attempt(number).log(rank)
        await self.until(lambda: log.exists() and log.read_text().endswith("}\n"))
        return dict(json.loads(log.read_text().splitlines()[-1]))

    def leave(self, number: int, *programs: str) -> None:
        for rank, program in enumerate(programs):
            door = self.folder / f"{number}.{rank}"
            door.with_suffix(".new").write_text(program)
            door.with_suffix(".new").replace(self.folder / f"{number}.{rank}")

    async def again(self, number: int = 2) -> None:
        """The attempt before ends with a failure, and the next one is started."""
        self.leave(number - 1, *["sys.exit(3)"] * RANKS)
        await self.ended(number - 1)
        await self.start(RANKS, number)


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Warmed]:
    monkeypatch.setenv("MEDEVAC_WARM_AFTER_S", "0.1")
    made = Warmed(tmp_path)
    yield made
    for pid in made.mine():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_forked_rank_is_as_a_started_one(machine: Warmed) -> None:
    await machine.begin()
    warm, cold = await machine.warm(), await machine.said(1, 1)
    assert "without by_rank" in machine.keeper_says()
    await machine.again()
    one, other = await machine.said(2, 0), await machine.said(2, 1)
    same = ("argv", "name", "file", "by_rank", "seeded", "drawn", "parent", "leads", "cwd", "room")
    assert {key: other[key] for key in same} == {key: cold[key] for key in same}
    assert other["imported"] == warm == one["imported"], "not forked"
    assert (one["by_rank"], one["attempt"]) == ("0", "2")
    pid = machine.keeping(2).ranks[1].process.pid
    assert {b"MEDEVAC_ATTEMPT=2", b"RANK=1"} <= environment(pid)
    assert Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").endswith(f"train.py\0{machine.folder}".encode())
    machine.leave(2, "sys.exit(0)", "raise ValueError('so it goes')")
    ended = await machine.ended(2)
    assert sorted((one.rank, one.code) for one in ended.exits) == [(0, 0), (1, 1)]
    words = machine.attempt(2).log(1).read_text()
    assert words.endswith("ValueError: so it goes\n")
    assert "warm.py" not in words


async def test_nothing_of_it_outlives_the_job_or_its_keeper(machine: Warmed) -> None:
    await machine.begin()
    warm = await machine.warm()
    await machine.again()
    await machine.said(2, 0)
    escapes = "if not os.fork():\n os.setsid()\n if os.fork(): os._exit(0)\n time.sleep(600)\nsys.exit(3)"
    machine.leave(2, escapes, "sys.exit(3)")
    await machine.ended(2)
    assert machine.mine() == [warm]
    await machine.scheduler().clear_savers(JOB)
    await machine.until(lambda: not machine.mine() and not look(machine.keeping(2).process.pid))


async def test_a_killed_keeper_takes_all_along(machine: Warmed) -> None:
    await machine.begin()
    await machine.warm()
    await machine.again()
    await machine.said(2, 0)
    os.kill(machine.keeping(2).process.pid, signal.SIGKILL)
    assert (await machine.ended(2)).why == "keeper-lost"
    await machine.until(lambda: not machine.mine())


async def test_it_goes_when_the_controller_was_killed(machine: Warmed) -> None:
    machine.lease.release()
    program = "import sys, time\nfrom medevac.adapters.lease import Lease\nLease(sys.argv[1]).take()\ntime.sleep(600)"
    controller = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(machine.lease.path))
    try:
        await machine.until(lambda: (held := read(machine.lease.path)) and held.expires > time.time())
        await machine.begin()
        await machine.warm()
    finally:
        controller.kill()
        await controller.wait()
    assert machine.mine(), "the ranks outlive it"
    machine.leave(1, *["sys.exit(3)"] * RANKS)
    await machine.ended()
    await machine.until(lambda: not machine.mine() and not look(machine.keeping().process.pid))


async def test_a_lost_one_costs_a_cold_start(machine: Warmed) -> None:
    await machine.begin()
    warm = await machine.warm()
    os.kill(warm, signal.SIGSTOP)
    machine.leave(1, *["sys.exit(3)"] * RANKS)
    await machine.ended(1)
    os.kill(warm, signal.SIGKILL)
    await machine.start(RANKS, 2)
    assert (await machine.said(2, 1))["imported"] != warm
    await machine.until(lambda: look(warm) is None)


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
CUDA = """
import sys
torch = sys.modules["torch"] = type(sys)("torch")
class cuda:
    _is_in_bad_fork = staticmethod(lambda: True)
torch.cuda = cuda
"""


@pytest.mark.parametrize(("module", "why"), [(THREAD, "an import started a thread"), (CUDA, "CUDA was initialised")])
async def test_what_a_fork_would_break_is_started(machine: Warmed, module: str, why: str) -> None:
    await machine.begin(more="import spoils", spoils=module)
    await machine.until(lambda: "no warm process: " in machine.keeper_says())
    assert why in machine.keeper_says()
    await machine.until(lambda: f"--warm: no warm process: {why}" in machine.attempt().log(0).read_text())
    await machine.again()
    assert (await machine.said(2, 1))["imported"] == machine.keeping(2).ranks[1].process.pid


async def test_an_edited_module_is_read_anew(machine: Warmed) -> None:
    await machine.begin()
    await machine.warm()
    (machine.folder / "seeded.py").write_text(MODULES["seeded"] + "# edited\n")
    await machine.again()
    assert (await machine.said(2, 0))["imported"] == machine.keeping(2).ranks[0].process.pid
    assert "seeded.py has changed" in machine.keeper_says(2)
