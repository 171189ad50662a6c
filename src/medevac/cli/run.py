"""`medevac run`: supervise a command on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from medevac.adapters.lease import is_over, read
from medevac.adapters.schedulers.local import files
from medevac.adapters.schedulers.local.scheduler import LocalScheduler
from medevac.adapters.schedulers.spec import JobSpec, check
from medevac.adapters.store.sqlite import SqliteStore, read_all
from medevac.adapters.topology import load_topology
from medevac.cli.elastic import by_agents
from medevac.cli.exits import Exit
from medevac.cli.output import CommandError, errors, print_json, say_error
from medevac.cli.torchrun import passing_codes_on
from medevac.cli.warm import check_warm, warmed
from medevac.controller.settings import LEASE, STORE, Run, Settings, acting_settings, state_folder
from medevac.controller.stream import Output
from medevac.controller.supervise import Progress, Supervisor, supervisor_of
from medevac.core.events import JobPolicy
from medevac.ports.errors import FencedOff, PortError

NOT_KEPT = re.compile(r"_|SHLVL|OLDPWD|PWD|MEDEVAC_(JOB_ID|ATTEMPT|RESUME_FROM|SOCKET|KILL_AT|STATE_DIR)")
"""Variables that say something of this shell, not of the job."""


def run(
    *command: str,
    nproc: int = 0,
    gpus_per_rank: int = 1,
    policy: str = "local",
    checkpoint_dir: Path | None = None,
    cluster: Path | None = None,
    state_dir: Path | None = None,
    job: str | None = None,
    job_policy: str | None = None,
    monitor: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    html: Path | None = None,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    attach: str | None = None,
    warm: Annotated[bool, Parameter(negative="")] = False,
    warm_import: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Keep a command running through GPU faults: medevac run [OPTIONS] -- COMMAND...

    Ends with the command's own exit code; 4 gave up without progress, 5 waits for a person, 2 wrong use.

    Args:
        command: What to run. Without --nproc it is one process, which may start its own ranks (torchrun does).
        nproc: Start so many ranks, each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
        gpus_per_rank: GPUs that each rank gets.
        policy: A policy's name (standard, local, demo) or a TOML file.
        checkpoint_dir: The job's checkpoint folder. Without it the command sees to its own resuming.
        cluster: Run on a simulated cluster: a folder with a topology.toml.
        state_dir: Where everything is kept (else MEDEVAC_STATE_DIR, /var/lib/medevac or ~/.local/state/medevac).
        job: The job's name (else taken from the command).
        job_policy: The job's own policy, as JSON or a file of it.
        monitor: Decide and record, touch nothing.
        json: Print the story as one JSON object; the ranks' output stays in the state folder.
        html: Write the story as an HTML file.
        quiet: Do not pass the ranks' output on.
        attach: Take over, or watch, a job of this state folder.
        warm: Keep a process that has imported what the ranks import, and start the next attempt from it.
        warm_import: A module more that it imports; may be repeated.
    """
    state = state_folder(state_dir)
    _check_state(state)
    if attach is not None:
        taken = _attached(state, attach, command)
    else:
        own = warmed(_job_policy(job_policy), wanted=warm, imports=warm_import)
        spec = by_agents(_spec(passing_codes_on(command), nproc, gpus_per_rank, checkpoint_dir, own))
        taken = _submitted(state, spec, job, _settings(policy, cluster, html, monitor=monitor))
    return _watched(taken, as_json=json, html=html, quiet=quiet, from_now=attach is not None)


def _attached(state: Path, job: str, command: tuple[str, ...]) -> Run:
    if command:
        raise CommandError("--attach: takes no command; the job has one already")
    taken = Run(state, job)
    if not taken.known:
        raise CommandError(f"--attach {job}: {state} has no such job; it has {_listed(state)}")
    return taken


def _check_state(state: Path) -> None:
    """One line before anything is begun where the state folder, or what it is to be made in, is another user's."""
    there = next(folder for folder in (state, *state.parents) if os.access(folder, os.F_OK))
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise CommandError(f"{state}: {there} may not be read and written; name another folder with --state-dir")


def _settings(policy: str, cluster: Path | None, html: Path | None, *, monitor: bool) -> Settings:
    text = ""
    if policy.endswith(".toml") or "/" in policy:
        try:
            text = Path(policy).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "is not UTF-8"
            raise CommandError(f"--policy {policy}: cannot be read: {why}") from problem
    settings = Settings(
        policy=policy,
        policy_text=text,
        mode="monitor" if monitor else "act",
        cluster=str(cluster.absolute()) if cluster else "",
        html=str(html.absolute()) if html else "",
    )
    settings.load()
    return settings


def _job_policy(given: str | None) -> JobPolicy:
    if given is None:
        return JobPolicy()
    where, text = "--job-policy", given
    if not given.lstrip().startswith("{"):
        where = f"--job-policy {given}"
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise CommandError(f"{where}: is neither JSON nor a file that can be read") from problem
    try:
        return msgspec.json.decode(text, type=JobPolicy)
    except msgspec.DecodeError as problem:
        raise CommandError(f"{where}: {problem}") from problem


def _spec(
    command: tuple[str, ...], nproc: int, gpus_per_rank: int, checkpoint_dir: Path | None, policy: JobPolicy
) -> JobSpec:
    """The job as it is to be submitted, without a name yet."""
    if not command:
        raise CommandError("no command: write it after --, as in: medevac run -- python train.py")
    check_warm(policy, command)
    folder = checkpoint_dir or (Path(policy.checkpoint_dir) if policy.checkpoint_dir else None)
    if folder is not None:
        folder = folder.absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise CommandError(
                f"--checkpoint-dir {folder}: cannot be made or used: {problem.strerror}; name another folder"
            ) from problem
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise CommandError(f"--checkpoint-dir {folder}: may not be read and written; name another folder")
        policy = msgspec.structs.replace(policy, checkpoint_dir=str(folder))
    return JobSpec(
        job="job",
        command=command,
        cwd=str(Path.cwd()),
        env={name: value for name, value in os.environ.items() if not NOT_KEPT.fullmatch(name)},
        ranks=nproc,
        gpus_per_rank=gpus_per_rank,
        checkpoint_dir=policy.checkpoint_dir or "",
        policy=policy,
    )


def _submitted(state: Path, spec: JobSpec, name: str | None, settings: Settings) -> Run:
    """The job, submitted; or the unfinished one that this very command began here earlier."""
    states = _states(state)
    for folder in files.jobs(state):
        known = files.load(folder / "spec.json", JobSpec)
        if known is None or name not in {None, known.job}:
            continue
        if _same(known, spec) and not _ended(states.get(known.job)):
            say_error(f"job {known.job} was begun here before: taking it over")
            return Run(state, known.job)
    run = Run(state, _free_name(state, spec.command) if name is None else name)
    if run.known:
        how = "has ended" if _ended(states.get(run.job)) else "is another command"
        raise CommandError(f"--job {run.job}: {how} in {state}; use another name, or another --state-dir")
    spec = msgspec.structs.replace(spec, job=run.job)
    try:
        check(spec)
        _check_controller(state, settings)
        if settings.cluster:
            load_topology(Path(settings.cluster) / "topology.toml")
        run.save(settings)
        asyncio.run(LocalScheduler(state).submit(spec))
    except PortError as problem:
        raise CommandError(str(problem)) from problem
    return run


def _check_controller(state: Path, settings: Settings) -> None:
    """One controller acts for a state folder, by one policy on one cluster."""
    held = read(state / LEASE)
    if is_over(held, time.time()):
        return
    acting = acting_settings(state)
    if acting is not None and msgspec.structs.replace(acting, html=settings.html) != settings:
        words = f"--policy {acting.policy}" + (" --monitor" if acting.mode == "monitor" else "")
        words += f" --cluster {acting.cluster}" if acting.cluster else ""
        raise CommandError(f"{state}: a controller acts here with {words}; use the same, or another --state-dir")


def _watched(taken: Run, *, as_json: bool, html: Path | None, quiet: bool, from_now: bool) -> int:
    """Watch over it to its end, and tell its story; the exit code."""
    try:
        lease = supervisor_of(taken)
    except FencedOff as problem:
        raise CommandError(
            f"job {taken.job} is looked after already ({_holder(taken)}): see `medevac status`"
        ) from problem
    spec = files.load(taken.folder / "spec.json", JobSpec)
    assert spec is not None, "it was submitted"
    silent = quiet or as_json
    output = None if silent else Output(taken.folder, sys.stdout.buffer, several=spec.ranks > 1, from_now=from_now)

    async def watch() -> int:
        store = SqliteStore.open(taken.state / STORE)
        try:
            return await Supervisor(taken, store, output, say_error).run(lease)
        finally:
            await store.close()

    try:
        code = asyncio.run(watch())
    finally:
        lease.release()
    if code == Exit.WAITS:
        orders = f"`medevac release {taken.job} --resume-from STEP`, then `medevac run --attach {taken.job}`"
        say_error(f"job {taken.job} waits for a person, {orders} (--state-dir {taken.state})")
    _tell(taken, code, as_json=as_json, html=html or _html_of(taken))
    return code


def _tell(taken: Run, code: int, *, as_json: bool, html: Path | None) -> None:
    """The story, where there is one to tell."""
    from medevac.report import story, text
    from medevac.report.html import render_html

    told = story.build(tuple(read_all(taken.state / STORE)), taken.job)
    if html is not None:
        try:
            html.write_text(render_html(told), encoding="utf-8")
        except OSError as problem:
            say_error(f"--html {html}: cannot be written: {problem.strerror}")
    if as_json:
        print_json(story.to_json(told))
    elif code or told.incidents or len(told.attempts) > 1:
        text.render_text(told, errors())


def _html_of(taken: Run) -> Path | None:
    html = taken.settings().html
    return Path(html) if html else None


def _states(state: Path) -> dict[str, Progress]:
    """How far each job of the state folder is."""
    if not (state / STORE).is_file():
        return {}
    found = {folder.name: Progress(folder.name) for folder in files.jobs(state)}
    for record in read_all(state / STORE):
        for progress in found.values():
            progress.take(record)
    return found


def _ended(progress: Progress | None) -> bool:
    return progress is not None and progress.code is not None and progress.state not in {"held", "gave-up"}


def _same(known: JobSpec, spec: JobSpec) -> bool:
    """The same job, whatever shell it was written in."""
    alike = {"job": "", "env": {}, "at": 0.0}
    return msgspec.structs.replace(known, **alike) == msgspec.structs.replace(spec, **alike)


def _free_name(state: Path, command: tuple[str, ...]) -> str:
    """A name after the script, or the program, that no job has here."""
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-._")[:48] or "job"
    number, free = 1, name
    while Run(state, free).known:
        number += 1
        free = f"{name}-{number}"
    return free


def _listed(state: Path) -> str:
    return ", ".join(folder.name for folder in files.jobs(state)) or "none"


def _holder(taken: Run) -> str:
    held = read(taken.supervisor)
    return f"process {held.process.pid}" if held and held.process else "another process"
