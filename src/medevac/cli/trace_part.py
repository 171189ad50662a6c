"""`medevac trace GPU --since T`: which steps, ranks, checkpoints and exports a faulty GPU has touched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from medevac.adapters.checkpoints import FolderCheckpoints
from medevac.cli.exits import Exit
from medevac.cli.history import read
from medevac.cli.output import CommandError, moment, print_json, print_rows
from medevac.core.events import CheckpointSealed, JobSubmitted
from medevac.core.jobs import Job
from medevac.core.progress import Pace
from medevac.core.seal import SEAL, decode_seal, step_of
from medevac.core.trace import Traced, trace
from medevac.report.words import count


def trace_part(part: str, since: float, folder: Path | None, state_dir: Path | None, *, json: bool) -> Exit:
    """By the seals of `folder`, or of all jobs of the state folder. Ends with 1 where something is touched."""
    if folder is not None and not folder.is_dir():
        raise CommandError(f"--checkpoint-dir {folder}: there is no such folder")
    jobs = [_of_folder(folder)] if folder else list(read(state_dir).view.jobs.values())
    found = [_with_exports(trace(job.spec.job, job.checkpoints, part, since), _home(job, folder)) for job in jobs]
    touched = [one for one in found if one.checkpoints]
    if json:
        for one in touched:
            print_json(msgspec.structs.asdict(one))
    else:
        for one in touched:
            _show(one)
        if not touched:
            print(f"{part}: no sealed checkpoint of {count(len(jobs), 'job')} has it after {moment(since)}")
    return Exit.FOUND if touched else Exit.DONE


def _of_folder(folder: Path) -> Job:
    """A job as its checkpoint folder tells."""
    submitted = JobSubmitted(at=0.0, job=folder.absolute().name)
    job = Job(spec=submitted, pace=Pace())
    for event in asyncio.run(FolderCheckpoints(writer="\0").scan(submitted.job, str(folder))):
        if isinstance(event, CheckpointSealed):
            job = job.apply(event)
    return job


def _home(job: Job, folder: Path | None) -> Path | None:
    own = job.spec.policy.checkpoint_dir
    return folder or (Path(own) if own else None)


def _with_exports(found: Traced, folder: Path | None) -> Traced:
    """Sealed folders beside the steps, by what their seals say that they were made from."""
    steps = {one.step for one in found.checkpoints}
    names = sorted(name for name, step in (_exports(folder) if folder and steps else ()) if step in steps)
    return msgspec.structs.replace(found, exports=tuple(names))


def _exports(folder: Path) -> Iterable[tuple[str, int]]:
    for path in folder.rglob(SEAL):
        if step_of(path.parent.name) is None and not path.parent.name.startswith("."):
            try:
                yield str(path.parent.relative_to(folder)), decode_seal(path.read_bytes()).step
            except (OSError, ValueError):
                continue


def _show(one: Traced) -> None:
    ranks = ", ".join(map(str, one.ranks))
    steps = ", ".join(f"{first} to {last}" for first, last in one.steps)
    print(f"job {one.job}: rank {ranks} in attempt {', '.join(map(str, one.attempts))}; steps {steps}")
    print_rows(
        ("checkpoint", "sealed", "attempt", "why"),
        [(str(c.step), moment(c.sealed_at), str(c.attempt or "-"), _why(c.why, c.ranks)) for c in one.checkpoints],
    )
    for name in one.exports:
        print(f"exported from one of them: {name}")


def _why(why: str, ranks: tuple[int, ...]) -> str:
    return f"{why} (rank {', '.join(map(str, ranks))})" if ranks else why
