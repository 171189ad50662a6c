"""Names of files on the command line, where `-` stands for standard input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cyclopts import Parameter

from medevac.cli.output import CommandError

STDIN = "-"
HYPHEN = Parameter(allow_leading_hyphen=True, negative="")
"""For such a name: `-` looks like an option to the parser, which then lets all such words through."""


def names(given: Sequence[str], command: str) -> tuple[str, ...]:
    """The names, without words that were meant as options. Raises CommandError."""
    for name in given:
        if name.startswith("-") and name != STDIN and not Path(name).exists():
            raise CommandError(f"unknown option {name} (see: medevac {command} --help)")
    return tuple(given)
