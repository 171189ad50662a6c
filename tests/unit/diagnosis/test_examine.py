"""A hung attempt looked at before its stop: real processes, real dump files, and the place in the log."""

from __future__ import annotations

import asyncio
import os
import pickle  # noqa: TID251 - the format that is read
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.controller.worlds import World

from medevac.adapters.schedulers.local import processes
from medevac.adapters.schedulers.local.files import Attempt, Keeping, Plan, PlannedRank, StartedRank
from medevac.controller.examine import examine, examine_files, silent_ranks
from medevac.core.actions import ExamineAttempt
from medevac.core.diagnose_case import Clue
from medevac.core.events import AttemptEnded, AttemptExamined, RankPlace, StepReported
from medevac.ports.store import EventRecord


def soon(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


LOOK = ExamineAttempt(id="job/look/1/0", job="job", attempt=1)


class Ranks:
    """Three sleeping ranks as the files of an attempt show them."""

    def __init__(self, state: Path, *, launcher: bool = False) -> None:
        folder = state / "jobs" / "job" / "attempts" / "1"
        folder.mkdir(parents=True)
        self.attempt = Attempt(folder)
        marks = {"MEDEVAC_STATE_DIR": str(state), "MEDEVAC_JOB_ID": "job", "MEDEVAC_ATTEMPT": "1"}
        dumps = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(state / "trace_")}
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.ranks = [
            subprocess.Popen(sleep, env=os.environ | marks | dumps | {"RANK": str(rank)}, start_new_session=True)
            for rank in range(3)
        ]
        places = [RankPlace(rank=rank, node=f"n{rank}") for rank in range(3)]
        self.attempt.save(
            Plan(
                job="job",
                attempt=1,
                action="a",
                at=time.time() - 60,
                command=("true",),
                cwd="/",
                state=str(state),
                ranks=tuple(PlannedRank(place=place) for place in (places[:1] if launcher else places)),
            )
        )
        started = [StartedRank(rank=rank, process=processes.identify(one.pid)) for rank, one in enumerate(self.ranks)]
        keeper = processes.identify(os.getpid())
        self.attempt.save(Keeping(process=keeper, at=time.time(), ranks=tuple(started[:1] if launcher else started)))

    def stop(self, rank: int) -> None:
        pid = self.ranks[rank].pid
        os.kill(pid, signal.SIGSTOP)
        soon(lambda: (seen := processes.look(pid)) and seen.stopped)

    def close(self) -> None:
        for one in self.ranks:
            one.kill()
            one.wait()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path / "state")
    yield made
    made.close()


async def clues(ranks: Ranks, dumps: str | None = None) -> tuple[Clue, ...]:
    found = await examine(LOOK, ranks.attempt, dumps, 5.0)
    return found[0].clues if found else ()


async def test_healthy_processes_say_nothing(ranks: Ranks) -> None:
    assert await clues(ranks) == ()


async def test_a_stopped_rank_is_named_with_its_node(ranks: Ranks) -> None:
    ranks.stop(1)
    (found,) = await clues(ranks)
    assert (found.signature, found.rank, found.node, found.cause) == ("process-stopped", 1, "n1", None)


async def test_a_stopped_rank_under_a_launcher_is_found_by_its_environment(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "state", launcher=True)
    try:
        ranks.stop(2)
        (found,) = await clues(ranks)
        assert found.rank == 2
    finally:
        ranks.close()


def dump(rank: int, seq: int, state: str) -> bytes:
    entry = {"process_group": ("0", "default"), "collective_seq_id": seq, "profiling_name": "nccl:all_reduce"}
    entries = [entry | {"state": state, "input_sizes": [[8]], "input_dtypes": ["Float"], "time_created_ns": seq}]
    return pickle.dumps({"rank": rank, "pg_config": {"0": {"ranks": "[0, 1, 2]", "desc": "x"}}, "entries": entries})


async def test_dumps_are_read_where_the_ranks_write_them(ranks: Ranks, tmp_path: Path) -> None:
    for rank in range(3):
        late = dump(rank, 6, "completed") if rank == 2 else dump(rank, 7, "started")
        (tmp_path / "state" / f"trace_{rank}").write_bytes(late)
    (found,) = await clues(ranks)
    assert (found.signature, found.rank, found.node) == ("flight-recorder-behind", 2, "n2")


async def test_dumps_of_an_earlier_attempt_are_not_evidence(ranks: Ranks, tmp_path: Path) -> None:
    for rank in range(3):
        path = tmp_path / "state" / f"trace_{rank}"
        path.write_bytes(dump(rank, 6 + rank, "started"))
        os.utime(path, (1.0, 1.0))
    assert await clues(ranks) == ()


async def test_a_configured_folder_is_read_instead(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in (0, 1, 2):
        (folder / f"rank_{rank}").write_bytes(dump(rank, 5 if rank else 4, "started" if rank else "completed"))
    assert [clue.rank for clue in await clues(ranks, str(folder))] == [0]
    elsewhere = await examine_files(LOOK, str(folder), None, (), 0.0, 1.0)
    assert (elsewhere[0].attempt, elsewhere[0].id) == (1, "job/look/1/0/examined")
    assert await examine_files(LOOK, None, None, (), 0.0, 1.0) == ()


async def test_a_job_that_its_scheduler_suspended_is_seen_as_that(tmp_path: Path) -> None:
    touched(tmp_path, n1_0=0.0, n1_1=99.0, n1_2=0.0)
    (seen,) = await examine_files(LOOK, None, str(tmp_path), (), 0.0, 1.0, suspended=True)
    assert [clue.signature for clue in seen.clues] == ["job-suspended"]


async def test_an_attempt_that_left_no_files_says_nothing(tmp_path: Path) -> None:
    assert await examine(LOOK, Attempt(tmp_path / "jobs" / "j" / "attempts" / "4"), None, 1.0) == ()


async def test_dumps_of_before_the_silence_say_nothing_of_it(ranks: Ranks, tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / "state" / f"trace_{rank}").write_bytes(dump(rank, *((6, "started") if rank else (5, "completed"))))
    later = replace(LOOK, since=time.time() + 60)
    assert await examine(later, ranks.attempt, None, 1.0) == ()
    assert [e.clues[0].rank for e in await examine(LOOK, ranks.attempt, None, 1.0)] == [0]


def touched(folder: Path, **ages: float) -> None:
    """Heartbeat files `<node>_<rank>` so many seconds old."""
    for name, age in ages.items():
        path = folder / f"{name.replace('_', '.')}.jsonl"
        path.write_text("{}\n")
        os.utime(path, (50_000 - age, 50_000 - age))


def test_a_rank_whose_file_is_not_touched_any_more_is_silent(tmp_path: Path) -> None:
    touched(tmp_path, n1_0=0.0, n1_1=1.0, n2_2=11.0, n2_3=2.0)
    (found,) = silent_ranks(tmp_path, 10.0, 0.0, {2: "node-2"})
    assert (found.signature, found.rank, found.node) == ("process-silent", 2, "node-2")
    assert silent_ranks(tmp_path, 12.0, 0.0, {}) == []


def test_silence_of_most_is_the_file_systems(tmp_path: Path) -> None:
    touched(tmp_path, n1_0=0.0, n1_1=30.0, n2_2=31.0)
    assert silent_ranks(tmp_path, 10.0, 0.0, {}) == []
    touched(tmp_path, n1_0=30.0)
    assert silent_ranks(tmp_path, 10.0, 0.0, {}) == []


def test_files_of_earlier_attempts_and_other_places_are_left_out(tmp_path: Path) -> None:
    touched(tmp_path, n1_0=0.0, n1_1=0.5, n1_2=0.2, n9_3=500.0, old_2=90.0)
    assert silent_ranks(tmp_path, 10.0, 50_000 - 100, {}) == []
    assert silent_ranks(tmp_path / "none", 10.0, 0.0, {}) == []


def test_a_stopped_process_stops_touching_its_file_and_a_waiting_one_does_not(tmp_path: Path) -> None:
    """Real clients in real processes: what tells a hang from a stall where no process can be seen."""
    says = "import time; from medevac.client import Client; c = Client.from_env(); c.heartbeat(1); time.sleep(60)"
    marks = {"MEDEVAC_JOB_ID": "job", "MEDEVAC_ATTEMPT": "1", "MEDEVAC_CHECKPOINT_DIR": str(tmp_path)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", says], env=os.environ | marks | {"RANK": str(rank)})
        for rank in range(3)
    ]
    folder = tmp_path / ".medevac"
    try:
        soon(lambda: len(list(folder.glob("*.jsonl"))) == 3)
        os.kill(ranks[1].pid, signal.SIGSTOP)
        soon(lambda: silent_ranks(folder, 3.0, 0.0, {}))
        assert [(clue.signature, clue.rank) for clue in silent_ranks(folder, 3.0, 0.0, {})] == [("process-silent", 1)]
    finally:
        for one in ranks:
            one.kill()
            one.wait()


@pytest.mark.looptime
async def test_what_was_seen_stands_in_the_log_before_the_end() -> None:
    world = World()
    world.seen = [AttemptExamined(at=1.0, id="train/1/examined", job="train", attempt=1)]
    await world.submit()
    running = asyncio.create_task(world.run())
    await world.started()
    for step in range(1, 30):
        await world.step(step)
        await asyncio.sleep(1)
    await world.until(lambda: ("train", 1) in world.cluster.ended)
    kinds: list[type] = []
    async with asyncio.timeout(600):
        while AttemptEnded not in kinds:
            await asyncio.sleep(0.1)
            kinds = [type(r.event) for r in await world.log() if isinstance(r, EventRecord)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert kinds.index(StepReported) < kinds.index(AttemptExamined) < kinds.index(AttemptEnded)
