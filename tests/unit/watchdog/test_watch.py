"""What the watchdog lets go, and what it never touches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from medevac.adapters.lease import Lease
from medevac.adapters.schedulers.slurm.marks import HoldMark, with_mark
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.ports.errors import OutcomeUnknown, PortError, Refused
from medevac.watchdog.watch import Watchdog, needs

NOW = 1_000_000.0
LIMIT = 120.0


def job(mark: HoldMark | None, *, state: str = "PENDING", held: bool = True, comment: str = "") -> SlurmJob:
    admin = with_mark(comment, mark) if mark else comment
    return SlurmJob(id="17", number="17", state=state, restarts=1, held=held, admin_comment=admin)


def ours(age: float = 200.0) -> HoldMark:
    return HoldMark(hold="incident-1", at=NOW - age, purpose="recovery", by="stop")


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    "spared",
    [
        job(None),
        job(None, comment="a person's own words"),
        job(None, comment='{"medevac": {"hold": 3}}'),
        job(replace(ours(), purpose="person")),
        job(replace(ours(), theirs=True)),
        job(ours(), state="RUNNING", held=False),
        job(ours(), held=False),
        job(ours(), state="CANCELLED", held=False),
        job(replace(ours(), by="hold"), state="FAILED", held=False),
        replace(job(ours(), state="FAILED", held=False), requeue=False),
    ],
)
def test_what_is_never_touched(spared: SlurmJob, gone: bool) -> None:
    assert needs(spared, 200.0, LIMIT, gone=gone) == ""


@pytest.mark.parametrize(
    ("age", "gone", "need"),
    [(119.0, False, ""), (121.0, False, "release"), (0.0, True, "release"), (-5.0, False, ""), (-5.0, True, "release")],
)
def test_a_hold_of_ours_is_let_go_when_it_is_old_or_nobody_acts(age: float, gone: bool, need: str) -> None:
    assert needs(job(ours(age)), age, LIMIT, gone=gone) == need


@pytest.mark.parametrize(
    ("state", "restarts", "need"),
    [
        ("PENDING", 1, "release"),
        ("PENDING", 2, "release"),
        ("PENDING", 3, ""),
        ("FAILED", 1, "requeue"),
        ("FAILED", 2, ""),
    ],
)
def test_a_hold_after_a_run_that_a_person_let_begin_is_a_persons(state: str, restarts: int, need: str) -> None:
    """They released ours by hand, its mark was left, and they hold the job anew."""
    held = replace(job(replace(ours(), run=1), state=state, held=state == "PENDING"), restarts=restarts)
    assert needs(held, 200.0, LIMIT, gone=True) == need


def test_a_job_that_was_killed_to_run_again_and_never_requeued() -> None:
    assert needs(job(ours(), state="FAILED", held=False), 200.0, LIMIT, gone=False) == "requeue"
    assert needs(job(ours(10.0), state="FAILED", held=False), 10.0, LIMIT, gone=False) == ""


class Queue:
    """A Slurm with one job."""

    def __init__(self, one: SlurmJob) -> None:
        self.one = one
        self.shown = one
        self.done: list[tuple[str, ...]] = []
        self.refuses = ""
        self.problem: PortError = Refused("no")

    async def jobs(self, *, fresh: bool = False) -> tuple[SlurmJob, ...]:
        return (self.shown,)

    async def job(self, id_: str) -> SlurmJob | None:
        return self.one

    async def run(self, name: str, *words: str) -> str:
        if self.refuses and self.refuses in words:
            raise self.problem
        self.done.append((name, *words))
        return ""


async def test_a_controller_is_gone(tmp_path: Path) -> None:
    path, wall = tmp_path / "controller.lease", time.time()
    queue = Queue(job(ours()))

    async def freed(grace_s: float = 0.0) -> bool:
        return bool(await Watchdog(queue, queue.run, path, 9e9, grace_s=grace_s, wall=lambda: wall).once())

    assert await freed(), "no lease at all"
    lease = Lease(path)
    lease.take()
    assert not await freed()
    wall += 31
    assert await freed(), "not renewed"
    assert not await freed(6.0), "it may just have been the clock"
    lease.release()
    assert await freed(6.0), "released"
    path.write_text("{")
    assert await freed(6.0), "unreadable"


async def test_a_lease_that_stays_run_out_is_gone(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "controller.lease")
    lease.take()
    wall, monotonic = time.time() + 3600, 50.0
    queue = Queue(job(ours()))
    dog = Watchdog(queue, queue.run, lease.path, 9e9, grace_s=6.0, wall=lambda: wall, monotonic=lambda: monotonic)
    assert await dog.once() == ()
    monotonic += 5.0
    assert await dog.once() == ()
    monotonic += 1.0
    assert await dog.once() == ("17",)


async def test_how_a_hold_is_let_go(tmp_path: Path) -> None:
    queue = Queue(job(ours(), comment='{"theirs": 1}'))
    dog = Watchdog(queue, queue.run, tmp_path / "controller.lease", LIMIT)
    assert await dog.once() == ("17",)
    assert queue.done == [
        ("scontrol", "update", "JobId=17", "StartTime=now"),
        ("scontrol", "release", "17"),
        ("scontrol", "update", "JobId=17", 'AdminComment={"theirs": 1}'),
    ]


async def test_a_job_that_was_let_go_meanwhile_is_left(tmp_path: Path) -> None:
    queue = Queue(job(None, state="RUNNING", held=False))
    queue.shown = job(ours())
    dog = Watchdog(queue, queue.run, tmp_path / "controller.lease", LIMIT)
    assert await dog.once() == ()
    assert queue.done == []


def test_a_launch_that_failed_after_ours_was_let_go_is_let_go_again() -> None:
    held = replace(job(replace(ours(), run=1)), restarts=3, reason="launch failed requeued held")
    assert needs(held, 200.0, LIMIT, gone=True) == "release"


async def test_a_start_time_that_is_refused_keeps_no_job_held(tmp_path: Path) -> None:
    queue = Queue(job(ours()))
    queue.refuses = "StartTime=now"
    assert await Watchdog(queue, queue.run, tmp_path / "controller.lease", LIMIT).once() == ("17",)
    assert ("scontrol", "release", "17") in queue.done


@pytest.mark.parametrize("problem", [Refused("no"), OutcomeUnknown("no answer")])
async def test_what_slurm_refuses_is_tried_again(tmp_path: Path, problem: PortError) -> None:
    queue = Queue(job(ours()))
    queue.refuses, queue.problem = "release", problem
    dog = Watchdog(queue, queue.run, tmp_path / "controller.lease", LIMIT)
    assert await dog.once() == ()
    queue.refuses = ""
    assert await dog.once() == ("17",)


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
async def test_a_wall_clock_that_is_set_neither_frees_a_job_early_nor_keeps_it(tmp_path: Path, jump: float) -> None:
    lease = Lease(tmp_path / "controller.lease", now=lambda: time.time() + abs(jump))
    lease.take()
    wall, monotonic = NOW, 50.0
    queue = Queue(job(ours(age=10.0)))
    dog = Watchdog(queue, queue.run, lease.path, LIMIT, wall=lambda: wall, monotonic=lambda: monotonic)
    assert await dog.once() == ()
    wall += jump
    monotonic += 100.0
    assert await dog.once() == (), "110 s old"
    monotonic += 11.0
    assert await dog.once() == ("17",)
