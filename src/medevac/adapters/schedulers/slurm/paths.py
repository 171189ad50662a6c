"""Where a job's output goes: the %-patterns of `--output` (sbatch(1), "filename pattern")."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from medevac.adapters.schedulers.slurm.hostlist import expand
from medevac.adapters.schedulers.slurm.values import SlurmJob

_PATTERN = re.compile(r"%(\d*)([AaJjNnstuxb%])|\\(.)")
_WIDEST = 10


def output(job: SlurmJob) -> str:
    """The absolute path of the job's standard output."""
    task = job.id.partition("_")[2]
    pattern = job.stdout
    if not pattern or (task and pattern.rpartition("/")[2] == f"slurm-{job.number}.out"):
        pattern = "slurm-%A_%a.out" if task else "slurm-%j.out"  # what 22.05 shows of an array's default is no file
    return _expanded(job, pattern)


def errors(job: SlurmJob) -> str:
    """The same of its standard error; "" where that goes to its output."""
    if not job.stderr or job.stderr == job.stdout:
        return ""
    path = _expanded(job, job.stderr)
    return path if path != output(job) else ""


def _expanded(job: SlurmJob, pattern: str) -> str:
    array, _, task = job.id.partition("_")
    if "\\" in pattern.partition("%")[0]:
        return _absolute(job, pattern.replace("\\", ""))
    hosts = expand(job.nodes) or ("",)
    values = {
        "A": array,
        "a": task or "4294967294",
        "J": job.number,
        "j": job.number,
        "N": hosts[0],
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": job.user,
        "x": job.name,
        "b": str(int(task) % 10) if task.isdigit() else "4",
        "%": "%",
    }

    def value(match: re.Match[str]) -> str:
        if match[3]:
            return match[3]
        text = values[match[2]]
        return text.zfill(min(int(match[1]), _WIDEST)) if match[1] and text.isdigit() else text

    return _absolute(job, _PATTERN.sub(value, pattern))


def _absolute(job: SlurmJob, path: str) -> str:
    return str(PurePosixPath(job.folder or "/") / path)
