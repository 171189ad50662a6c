"""`medevac slurm check`: what Medevac would do for one Slurm job, and what is missing for it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from medevac.adapters.schedulers.slurm import Commands, optin
from medevac.adapters.schedulers.slurm.look import Look
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.cli.exits import Exit
from medevac.cli.output import CommandError, print_json
from medevac.controller.config import Config, config_path, load_config
from medevac.controller.service import output_paths
from medevac.core.events import JobPolicy

app = App(name="slurm", help="Check how a Slurm job is looked after.")


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a job. `problems` are what the user can mend."""

    job: str
    care: str
    policy: dict[str, Any] = {}
    output: str = ""
    errors: str = ""
    at_requeue: str = ""
    resumes_by: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@app.command
def check(jobid: str, /, *, config: Path | None = None, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Say what Medevac does for a job: its policy, its output, how it learns what to load. Ends with 1 for mistakes.

    Parameters
    ----------
    jobid
        The job's number, as in 17 or 12_3.
    config
        The configuration (else MEDEVAC_CONFIG, else /etc/medevac/medevac.toml).
    json
        Print one JSON object.
    """
    found = asyncio.run(_check(jobid, load_config(config_path(config))))
    if json:
        print_json(msgspec.to_builtins(found))
        return Exit.FOUND if found.problems else Exit.DONE
    print(f"job {found.job}: {found.care}")
    for name, value in found.policy.items():
        print(f"  {name}: {value}")
    if found.output:
        print(f"output: {found.output}, at a requeue {found.at_requeue}")
    if found.errors:
        print(f"errors: {found.errors}")
    for way in found.resumes_by:
        print(f"told what to load by: {way}")
    for problem in found.problems:
        print(f"mistake: {problem}")
    return Exit.FOUND if found.problems else Exit.DONE


async def _check(jobid: str, config: Config) -> Checked:
    site = config.slurm
    commands = Commands(mode="monitor", prefix=site.prefix, deadline_s=site.deadline_s)
    job = await Look(commands, site).job(jobid.removeprefix("slurm-"))
    if job is None:
        raise CommandError(f"{jobid}: Slurm has no job of that number (any more)")
    policy, problems = optin.policy(job, site)
    if policy is None:
        care = "Medevac leaves it alone: neither its --comment nor the site's configuration says otherwise"
        return Checked(job=job.id, care=care, problems=problems)
    path, *more = output_paths(job, policy)
    settings = await commands.run("scontrol", "show", "config")
    acts = policy.enabled and config.mode == "act"
    return Checked(
        job=job.id,
        care="recovered by Medevac" if acts else "watched only",
        policy=msgspec.to_builtins(policy),
        output=str(path),
        errors=str(more[0]) if more else "",
        at_requeue=await _at_requeue(job, commands, settings),
        resumes_by=_ways(policy, config, settings),
        problems=(*problems, *_problems(policy, path, job)),
    )


async def _at_requeue(job: SlurmJob, commands: Commands, settings: str) -> str:
    """Slurm tells the site's default; a job's own --open-mode stands in its script, where that is a line of it."""
    detail = await commands.run("scontrol", "-o", "show", "job", job.number)
    for mode, word in (("append", "appended"), ("truncate", "truncated")):
        if f"OpenMode={mode}" in detail or f"--open-mode={mode}" in detail:
            return word
    default = _setting(settings, "JobFileAppend") == "1"
    return "appended" if default else "truncated, unless the job was submitted with --open-mode=append"


def _ways(policy: JobPolicy, config: Config, settings: str) -> tuple[str, ...]:
    if not policy.checkpoint_dir:
        return ()
    ways = [f"{policy.checkpoint_dir}/latest_clean"]
    prolog = _setting(settings, "TaskProlog")
    if config.slurm.pointers and prolog not in {"", "(null)"}:
        ways.append(f"MEDEVAC_RESUME_FROM (by {prolog}, if that is Medevac's)")
    return tuple(ways)


def _setting(settings: str, name: str) -> str:
    for line in settings.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() == name:
            return value.strip()
    return ""


def _problems(policy: JobPolicy, output: Path, job: SlurmJob) -> list[str]:
    found = []
    folder = policy.checkpoint_dir
    if not folder:
        found.append("checkpoint_dir: not given: a restart begins from whatever the job itself loads")
    elif not Path(folder).is_absolute():
        found.append(f"checkpoint_dir: {folder}: must be an absolute path")
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        found.append(f"checkpoint_dir: {folder}: is not there yet, or cannot be read and written from here")
    if job.nodes and not os.access(output, os.R_OK):
        found.append(f"{output}: cannot be read from here: progress is seen through the in-job library only")
    return found
