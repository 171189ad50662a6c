"""`medevac run --warm`: what the command line says of a warm process (docs/run.md)."""

from __future__ import annotations

import msgspec

from medevac.cli.output import CommandError
from medevac.client.forks import interpreter
from medevac.core.events import JobPolicy


def warmed(policy: JobPolicy, *, wanted: bool, imports: tuple[str, ...]) -> JobPolicy:
    """The job's policy with what the command line says."""
    every = tuple(dict.fromkeys((*policy.warm_imports, *imports)))
    return msgspec.structs.replace(policy, warm=policy.warm or wanted, warm_imports=every)


def check_warm(policy: JobPolicy, command: tuple[str, ...]) -> None:
    """Raises `CommandError` for what could never be warm."""
    if policy.warm and interpreter(command) is None:
        raise CommandError(f"--warm: needs `python script.py` or `python -m module` as the command, not {command[0]}")
    if policy.warm_imports and not policy.warm:
        raise CommandError("--warm-import: means something with --warm only")
