"""How commands speak: tables on a terminal, plain text in a pipe, JSON lines with --json, errors as one line.

Results go to stdout, everything else to stderr. Colour is never the only sign and is left out in a pipe.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

SEVERITY_STYLES = {severity: f"severity.{severity}" for severity in ("critical", "warning", "unknown", "info")}
STYLES = {
    "severity.critical": "bold red",
    "severity.warning": "yellow",
    "severity.unknown": "magenta",
    "severity.info": "dim",
    "state.healthy": "green",
    "state.restricted": "yellow",
    "state.draining": "yellow",
    "state.drained": "red",
    "state.unknown": "magenta",
    "quiet": "dim",
}
PIPE_WIDTH = 200
FORCED = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
"""Variables that make a pipe a terminal for rich."""


class CommandError(Exception):
    """The user can mend it: wrong use, wrong file, wrong value. One line that names it; exit code 2."""


@cache
def console() -> Console:
    """Where results go. In a pipe: no colour, and wide enough that nothing wraps."""
    return _console(stderr=False)


@cache
def errors() -> Console:
    """Where messages and progress go."""
    return _console(stderr=True)


def on_terminal(*, stderr: bool = False) -> bool:
    """Does a person read stdout (or stderr) as it comes? As rich says, which is not imported for a plain pipe."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty() and FORCED.isdisjoint(os.environ):
        return False
    return (errors() if stderr else console()).is_terminal


def _console(*, stderr: bool) -> Console:
    from rich.console import Console
    from rich.theme import Theme

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else PIPE_WIDTH
    return Console(stderr=stderr, theme=Theme(STYLES), width=width, highlight=False, soft_wrap=not terminal)


def say_error(message: str) -> None:
    """One line on stderr: `medevac: ...`."""
    print(f"medevac: {' '.join(message.split())}", file=sys.stderr)


def print_json(value: object) -> None:
    """One JSON object on one line."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def table(*columns: str, title: str | None = None) -> Table:
    """The one table style of all commands."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD if on_terminal() else None, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], styles: Mapping[str, str] | None = None) -> None:
    """A table on a terminal; in a pipe one line a row, values between tabs, so that cut, sort and grep work.

    `styles` colours cells that hold exactly this text.
    """
    if not on_terminal():
        for row in (columns, *rows):
            print("\t".join(" ".join(value.split()) for value in row))
        return
    from rich.text import Text

    made = table(*columns)
    for row in rows:
        made.add_row(*(Text(value, style=(styles or {}).get(value, "")) for value in row))
    console().print(made)


def moment(at: float | None) -> str:
    """Unix seconds as `2026-03-01 10:00:00Z`; a dash where there is no time."""
    if not at:
        return "-"
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
