"""torchrun under `medevac run`: started in a form that passes its ranks' exit codes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from medevac.cli.output import say_error

OURS = "medevac.torch.run"
_THEIRS = ("torch.distributed.run", "torch.distributed.launch")


def passing_codes_on(command: tuple[str, ...]) -> tuple[str, ...]:
    """`torchrun ...` as `python -m medevac.torch.run ...`, said; any other command, and one for an environment without
    Medevac, as it is.
    """
    found = _python_and_rest(command)
    if found is None:
        return command
    python, rest = found
    if not _has_medevac(python):
        say_error(f"{command[0]}: {python} has no Medevac: torchrun's own exit code is 1 for all that its ranks say")
        return command
    ours = (python, "-m", OURS, *rest)
    say_error(f"started as `{' '.join(ours[:3])} ...`, which passes the ranks' exit codes on (docs/exit-codes.md)")
    return ours


def _python_and_rest(command: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    if not command:
        return None
    name = Path(command[0]).name
    if re.fullmatch(r"python[0-9.]*", name) and command[1:2] == ("-m",) and command[2:3] and command[2] in _THEIRS:
        return command[0], command[3:]
    program = shutil.which(command[0]) if name == "torchrun" else None
    if program is None:
        return None
    pythons = [Path(program).with_name("python"), Path(program).with_name("python3")]
    return next(((str(python), command[1:]) for python in pythons if os.access(python, os.X_OK)), None)


def _has_medevac(python: str) -> bool:
    if shutil.which(python) == sys.executable:
        return True
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('medevac') is None)"
    try:
        return subprocess.run([python, "-c", look], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
