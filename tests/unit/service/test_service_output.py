"""Whose attempt a line of a Slurm job's output is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from medevac.adapters.sources.output import Printed
from medevac.controller.service_output import Ends, SlurmOutput, read_ended
from medevac.core.events import AnyEvent, AttemptStarted, RankPlace, StepReported

TIME_OUT_S = 30.0


class EveryTurn:
    """A clock whose sleep gives way, and no more."""

    def now(self) -> float:
        return 1.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.001)


def step(line: Printed) -> AnyEvent | None:
    word, _, number = line.text.partition(" ")
    return StepReported(at=1.0, job=line.job, attempt=line.attempt, step=int(number)) if word == "step" else None


class World:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "slurm-1.out"
        self.attempt = 1
        self.ends = Ends(folder / "ends")

    def source(self) -> SlurmOutput:
        return SlurmOutput("slurm-1", lambda: self.path, lambda: self.attempt, self.ends, step, EveryTurn())

    def prints(self, *steps: int, anew: bool = False) -> None:
        with self.path.open("w" if anew else "a") as out:
            out.writelines(f"step {number}\n" for number in steps)

    def end(self) -> None:
        started = AttemptStarted(at=1.0, job="slurm-1", attempt=self.attempt, ranks=(RankPlace(rank=0, node="node0"),))
        read_ended((self.path,), started, None, self.ends, None)


async def heard(events: AsyncIterator[tuple[AnyEvent, str]], count: int) -> tuple[list[tuple[int, int]], str]:
    """(attempt, step) of so many events, and the last cursor."""
    found: list[tuple[int, int]] = []
    cursor = ""
    async with asyncio.timeout(TIME_OUT_S):
        while len(found) < count:
            event, cursor = await anext(events)
            assert isinstance(event, StepReported)
            found.append((event.attempt, event.step))
    return found, cursor


async def test_appended_output(tmp_path: Path) -> None:
    world = World(tmp_path)
    events = world.source().follow("")
    world.prints(1, 2)
    assert (await heard(events, 2))[0] == [(1, 1), (1, 2)]
    world.prints(3)
    world.end()
    world.attempt = 2
    world.prints(2)
    assert (await heard(events, 2))[0] == [(1, 3), (2, 2)], "what the first one printed last is not the second's"


async def test_truncated_output(tmp_path: Path) -> None:
    world = World(tmp_path)
    events = world.source().follow("")
    world.prints(1, 2, 3)
    await heard(events, 3)
    world.end()
    world.attempt = 2
    world.prints(1, anew=True)
    assert (await heard(events, 1))[0] == [(2, 1)]
    world.prints(2, 3)
    assert (await heard(events, 2))[0] == [(2, 2), (2, 3)]


async def test_a_controller_that_comes_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.prints(1)
    _, cursor = await heard(world.source().follow(""), 1)
    world.prints(2)
    world.end()
    world.attempt = 2
    world.prints(3)
    assert (await heard(world.source().follow(cursor), 2))[0] == [(1, 2), (2, 3)]


def test_an_ended_attempt_is_read_from_its_own_beginning(tmp_path: Path) -> None:
    world = World(tmp_path)
    oom = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    world.path.write_text(oom)
    started = AttemptStarted(at=1.0, job="slurm-1", attempt=1)
    first = read_ended((world.path,), started, None, world.ends, None)
    assert [clue.text for clue in first.clues]
    with world.path.open("a") as out:
        out.write("all is well\n")
    second = read_ended((world.path,), AttemptStarted(at=2.0, job="slurm-1", attempt=2), None, world.ends, None)
    assert (second.attempt, second.clues) == (2, ())
    gone = read_ended((tmp_path / "none",), AttemptStarted(at=2.0, job="slurm-1", attempt=3), None, world.ends, None)
    assert gone.clues == ()


def test_errors_in_a_file_of_their_own_are_read_with_the_output(tmp_path: Path) -> None:
    world = World(tmp_path)
    errors = tmp_path / "job.err"
    world.path.write_text("step 3\n")
    errors.write_text("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    started = AttemptStarted(at=1.0, job="slurm-1", attempt=1)
    read = read_ended((world.path, errors), started, None, world.ends, None)
    assert any("out of memory" in clue.text for clue in read.clues)
    errors.write_text(errors.read_text() + "another attempt\n")
    again = read_ended((world.path, errors), AttemptStarted(at=2.0, job="slurm-1", attempt=2), None, world.ends, None)
    assert not any("out of memory" in clue.text for clue in again.clues), "the first attempt printed it"
