"""What the next attempt of a job is told: `<folder>/<job id>`, which the TaskProlog prints on each node.

A requeued job's environment cannot be changed in Slurm; a line `export NAME=value` that the TaskProlog prints is put
into the environment of the job's tasks (slurm.conf(5), "TaskProlog"). `latest_clean` in the checkpoint folder says the
same to a job whose site does not install the prolog.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from medevac.ports.errors import Unavailable

if TYPE_CHECKING:
    from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler
    from medevac.adapters.schedulers.slurm.memory import JobMemory
    from medevac.adapters.schedulers.slurm.values import SlurmJob


def tell(slurm: SlurmScheduler, job: SlurmJob, memory: JobMemory, attempt: int, step: int | None) -> None:
    """Before a job can start. The file is named for what SLURM_JOB_ID will be."""
    if not slurm.site.pointers:
        return
    policy = memory.submitted.policy if memory.submitted else slurm.policy(job)
    folder = policy.checkpoint_dir if policy else None
    told = {
        "MEDEVAC_JOB_ID": memory.name,
        "MEDEVAC_ATTEMPT": str(attempt),
        "MEDEVAC_CHECKPOINT_DIR": folder or "",
        "MEDEVAC_RESUME_FROM": step_folder(folder, step),
        "MEDEVAC_LINEAGE": "none" if policy and policy.lineage == "none" else "",
    }
    write(Path(slurm.site.pointers), job.number, told)


def write(folder: Path, slurm_job: str, told: dict[str, str]) -> None:
    """Replace the file of a job. Raises `Unavailable` naming it."""
    path = folder / slurm_job
    lines = [f"export {name}={value}\n" for name, value in told.items() if value and "\n" not in value]
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        with staged.open("w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        staged.chmod(0o644)
        staged.replace(path)
    except OSError as problem:
        raise Unavailable(f"{path}: cannot be written: {problem.strerror or problem}") from problem


def step_folder(checkpoint_dir: str | None, step: int | None) -> str:
    """The checkpoint that an attempt loads, "" for none."""
    return f"{checkpoint_dir}/step_{step:08d}" if checkpoint_dir and step is not None else ""
