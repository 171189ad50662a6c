"""Which jobs are under care, and what each says about its recovery."""

from __future__ import annotations

import json

import msgspec

from medevac.adapters.schedulers.slurm.settings import SlurmSettings
from medevac.adapters.schedulers.slurm.values import SlurmJob
from medevac.core.events import JobPolicy

KEYS = tuple(field.name for field in msgspec.structs.fields(JobPolicy))


def said(comment: str) -> tuple[dict[str, object] | None, tuple[str, ...]]:
    """What stands under `medevac` in a job's comment (None: nothing), and what is wrong with it.

    Unknown keys and values of the wrong kind are left out: a spelling mistake must not cost a job its recovery.
    """
    if '"medevac"' not in comment:
        return None, ()
    try:
        found = json.loads(comment)
    except ValueError:
        return None, ()
    if not isinstance(found, dict) or "medevac" not in found:
        return None, ()
    asked = found["medevac"]
    if not isinstance(asked, dict):
        return None, ('comment: medevac: must be an object, as in {"medevac": {"max_restarts": 3}}',)  # fmt: skip
    good: dict[str, object] = {}
    problems = []
    for key, value in asked.items():
        try:
            msgspec.convert({key: value}, JobPolicy)
            good[key] = value
        except msgspec.ValidationError as problem:
            why = f"unknown key; there are {', '.join(KEYS)}" if key not in KEYS else str(problem)
            problems.append(f"comment: medevac.{key}: {why}")
    return good, tuple(problems)


def policy(job: SlurmJob, site: SlurmSettings) -> tuple[JobPolicy | None, tuple[str, ...]]:
    """The job's policy, None for a job that is nobody's business; and what its comment has wrong.

    A job that Slurm may not requeue is watched only.
    """
    own, problems = said(job.comment)
    layers = (site.partitions.get(job.partition), site.accounts.get(job.account), site.qos.get(job.qos))
    defaults = [msgspec.to_builtins(layer) for layer in layers if layer is not None]
    if own is None and not defaults:
        return None, problems
    merged: dict[str, object] = {}
    for layer in (*defaults, own or {}):
        merged |= layer
    if not (job.requeue and job.batch):
        merged["enabled"] = False
        problems = (*problems, "Slurm may not requeue it (--no-requeue, or not a batch job): it is only watched")
    return msgspec.convert(merged, JobPolicy), problems
