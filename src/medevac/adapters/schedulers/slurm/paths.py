"""Where a job's output goes: the %-patterns of `--output` (sbatch(1), "filename pattern")."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from medevac.adapters.schedulers.slurm.hostlist import expand
from medevac.adapters.schedulers.slurm.values import SlurmJob

_PATTERN = re.compile(r"%(\d*)([AaJjNnstuxb%])|\\(.)")
_WIDEST = 10


def output(job: SlurmJob, step: str = "batch") -> str:
    """The absolute path of the job's standard output."""
    array, _, task = job.id.partition("_")
    pattern = job.stdout or ("slurm-%A_%a.out" if task else "slurm-%j.out")
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
        "s": step,
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
