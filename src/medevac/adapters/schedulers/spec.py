"""What a job is, for the schedulers that start its processes themselves."""

from __future__ import annotations

import re

import msgspec

from medevac.core.events import JobPolicy, JobSubmitted
from medevac.ports.errors import Refused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as it was submitted.

    `ranks` 0 is one process that starts its own ranks. `env` is added to the environment of whoever starts an
    attempt. `checkpoint_dir` is absolute, "" for none. `at`: when it was submitted, unix seconds.
    """

    job: str
    command: tuple[str, ...]
    cwd: str = ""
    env: dict[str, str] = {}
    ranks: int = 0
    gpus_per_rank: int = 1
    checkpoint_dir: str = ""
    policy: JobPolicy = JobPolicy()
    at: float = 0.0


def check(spec: JobSpec) -> None:
    """Raises `Refused` for a spec that no backend could start."""
    if not _NAME.fullmatch(spec.job):
        raise Refused(f"job name {spec.job!r}: use up to 64 letters, digits, '.', '_' and '-', a letter or digit first")
    if not spec.command:
        raise Refused(f"job {spec.job}: no command; give one after --")
    for text in (*spec.command, spec.cwd, spec.checkpoint_dir, *spec.env, *spec.env.values()):
        if "\0" in text or not _is_utf8(text):
            raise Refused(f"job {spec.job}: {text!r} has bytes that are no UTF-8; use other names")
    if spec.ranks < 0 or spec.gpus_per_rank < 0:
        raise Refused(f"job {spec.job}: ranks and gpus_per_rank cannot be negative")
    if spec.checkpoint_dir and not spec.checkpoint_dir.startswith("/"):
        raise Refused(f"job {spec.job}: checkpoint_dir {spec.checkpoint_dir!r} must be an absolute path")


def _is_utf8(text: str) -> bool:
    """False for bytes of the command line that Python could not decode."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def submitted(spec: JobSpec, source: str) -> JobSubmitted:
    """The event of a submission; the same each time."""
    return JobSubmitted(
        at=spec.at,
        id=f"{spec.job}/submitted",
        source=source,
        job=spec.job,
        command=spec.command,
        ranks=spec.ranks,
        gpus_per_rank=spec.gpus_per_rank,
        policy=spec.policy,
    )
