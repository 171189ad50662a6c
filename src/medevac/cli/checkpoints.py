"""`medevac checkpoints JOB|DIR`: which are clean, why, who took part in them; and a person's word about one."""

from __future__ import annotations

import asyncio
import getpass
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from medevac.adapters.checkpoints import FolderCheckpoints
from medevac.cli.exits import Exit
from medevac.cli.history import read
from medevac.cli.output import CommandError, moment, print_json, print_rows, say_error
from medevac.core.actions import JudgeCheckpoint, VerifyCheckpoint
from medevac.core.events import CheckpointJudged, JobSubmitted, SealRank
from medevac.core.jobs import Checkpoint, Job
from medevac.core.lineage import Verdict, newest_clean, verdicts
from medevac.core.progress import Pace
from medevac.core.view import View
from medevac.report.words import listed


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A job's checkpoints and what is thought of them; `folder` where they are, "" where that is not known."""

    job: Job
    view: View
    folder: str
    source: str


def checkpoints(
    target: str,
    /,
    *,
    state_dir: Path | None = None,
    verify: Annotated[bool, Parameter(negative="")] = False,
    condemn: int | None = None,
    clean: int | None = None,
    why: str = "",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """List a job's checkpoints: verdict, why, who took part. Ends with 1 where --verify finds a file that differs.

    Parameters
    ----------
    target
        A job of the state folder, or a checkpoint folder.
    state_dir
        The state folder, or the file of a store.
    verify
        Read all files and compare them with what was sealed.
    condemn
        A step: nobody is to resume from it, nor from what continues it. Goes with --why; first written, then listed.
    clean
        A suspect step: you vouch for it. Its files are compared with its seal first. Goes with --why.
    why
        The reason, kept with it.
    json
        Print one JSON object a line.
    """
    if "/" in target and not Path(target).is_dir():
        raise CommandError(f"{target}: there is no such folder; name a checkpoint folder, or a job of the state folder")
    found = _of_folder(Path(target)) if Path(target).is_dir() else _of_job(target, state_dir)
    if condemn is not None:
        _condemn(found, condemn, why)
        found = _of_folder(Path(found.folder))
    if clean is not None:
        _vouch(found, clean, why)
        found = _of_folder(Path(found.folder))
    judged = verdicts(found.job, found.view.doubts)
    problems = asyncio.run(_verified(found, list(judged))) if verify else {}
    rows = [_told(found.job.checkpoints[step], verdict, problems.get(step)) for step, verdict in judged.items()]
    _show(found, rows, json=json, verify=verify)
    return Exit.FOUND if any(problems.values()) else Exit.DONE


def _show(found: Read, rows: list[dict[str, Any]], *, json: bool, verify: bool) -> None:
    if json:
        for row in rows:
            print_json(row)
    elif rows:
        print_rows(
            ("step", "verdict", "why", "attempt", "sealed", "ranks on", *(["files"] if verify else [])), _cells(rows)
        )
        best = newest_clean(found.job, found.view.doubts)
        print("no checkpoint is known clean" if best is None else f"the newest clean one is step {best}")
    else:
        print(f"{found.source}: no checkpoints")


def _of_job(name: str, state_dir: Path | None) -> Read:
    history = read(state_dir)
    job = history.view.jobs.get(name)
    if job is None:
        known = listed(sorted(history.view.jobs)) or "none"
        raise CommandError(f"{name}: neither a folder nor a job of {history.path}, which has {known}")
    return Read(job=job, view=history.view, folder=job.spec.policy.checkpoint_dir or "", source=name)


def _of_folder(folder: Path) -> Read:
    """As the folder itself tells: seals, and the verdicts of its lineage file, whoever wrote them."""
    events = asyncio.run(FolderCheckpoints(writer="\0").scan("job", str(folder)))
    submitted = JobSubmitted(at=0.0, job="job")
    job = Job(spec=submitted, pace=Pace())
    view = View().apply(submitted, 1)
    for event in events:
        view = view.apply(event, 1)
    job = view.jobs.get("job", job)
    return Read(job=job, view=view, folder=str(folder), source=str(folder))


def _condemn(found: Read, step: int, why: str) -> None:
    _known(found, f"--condemn {step}", step, why)
    _say(found, step, "condemned", f"condemned by {getpass.getuser()}: {why.strip()}")


def _vouch(found: Read, step: int, why: str) -> None:
    """A person's word lifts a verdict of the folder; what a controller itself doubts, only an order does."""
    option = f"--clean {step}"
    _known(found, option, step, why)
    state, reason = _thought_of(found.job, found.view, step)
    if found.job.checkpoints[step].sealed_at is None:
        raise CommandError(f"{option}: it has no seal to compare with; {_order(found, step)}")
    if state != "suspect":
        raise CommandError(
            f"{option}: it is {state}{f' ({reason})' if reason else ''}; only a suspect one may be cleaned"
        )
    judged = CheckpointJudged(at=time.time(), job=found.job.spec.job, step=step, state="clean")
    state, reason = _thought_of(found.job.apply(judged), found.view, step)
    if state != "clean":
        raise CommandError(f"{option}: {reason}, which your word on this one does not change; {_order(found, step)}")
    if problem := asyncio.run(_verified(found, [step]))[step]:
        raise CommandError(f"{option}: it is not what was sealed: {problem}")
    _say(found, step, "clean", f"vouched for by {getpass.getuser()}: {why.strip()}")
    say_error(
        f"written down; a controller that itself doubts a GPU or a step of it says so again: {_order(found, step)}"
    )


def _thought_of(job: Job, view: View, step: int) -> tuple[str, str]:
    verdict = verdicts(job, view.doubts)[step]
    return verdict.state, verdict.why


def _order(found: Read, step: int) -> str:
    """How a person has a job resume from it whatever is thought of it (law 5: by name, in the audit)."""
    job = "JOB" if found.source == found.folder else found.source
    return f"`medevac release {job} --resume-from {step}` resumes from it on your order"


def _known(found: Read, option: str, step: int, why: str) -> None:
    if not why.strip():
        raise CommandError(f"{option}: say why, with --why")
    if not found.folder:
        raise CommandError(f"{option}: job {found.source} has no checkpoint folder that is known")
    if step not in found.job.checkpoints:
        known = listed([str(one) for one in sorted(found.job.checkpoints)]) or "none"
        raise CommandError(f"{option}: there is no such checkpoint in {found.source}, which has {known}")


def _say(found: Read, step: int, state: Literal["clean", "condemned"], reason: str) -> None:
    """Append a person's verdict to the folder's lineage file."""
    order = JudgeCheckpoint(id=f"cli/{time.time():.3f}/{step}", job=found.source, step=step, state=state, reason=reason)
    asyncio.run(FolderCheckpoints(writer="").judge(order, found.folder))


async def _verified(found: Read, steps: list[int]) -> dict[int, str]:
    """The problem of each step's files, "" for none."""
    if not found.folder:
        raise CommandError(f"--verify: job {found.source} has no checkpoint folder that is known; name the folder")
    keeper, problems = FolderCheckpoints(writer="\0"), {}
    for step in steps:
        if found.job.checkpoints[step].sealed_at is None:
            problems[step] = "it has no seal to compare with"
            continue
        action = VerifyCheckpoint(id=f"cli/{time.time():.3f}/{step}", job=found.source, step=step)
        answer = await keeper.verify(action, found.folder)
        problems[step] = "" if answer.ok else answer.problem
    return problems


def _told(one: Checkpoint, verdict: Verdict, problem: str | None) -> dict[str, Any]:
    told = {
        "step": one.step,
        "state": verdict.state,
        "why": verdict.why,
        "attempt": one.attempt,
        "sealed_at": one.sealed_at,
        "parent": one.parent,
        "ranks": one.ranks,
    }
    return told if problem is None else {**told, "files": problem or "as sealed"}


def _cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            str(row["step"]),
            row["state"],
            row["why"] or "-",
            str(row["attempt"] or "-"),
            moment(row["sealed_at"]),
            _places(row["ranks"]),
            *([row["files"]] if "files" in row else []),
        )
        for row in rows
    ]


def _places(ranks: tuple[SealRank, ...]) -> str:
    nodes: dict[str, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node or "?", []).append(rank.rank)
    return "; ".join(f"{node}: {','.join(map(str, some))}" for node, some in nodes.items()) or "-"
