"""`medevac decode`: every GPU-related line of a log, what it means, who is to blame, what to do."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from medevac.catalog.schema import Severity
from medevac.cli.decode_filters import Filters, moment_of
from medevac.cli.exits import Exit
from medevac.cli.inputs import HYPHEN, names
from medevac.cli.output import CommandError, print_json, say_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from medevac.core.events import FaultSeen
    from medevac.decode.incidents_told import Members, Told
    from medevac.decode.output_spool import Spool

Files = Annotated[str, HYPHEN, Parameter(help='Logs to read; "-" or nothing for stdin.')]
Recursive = Annotated[bool, Parameter(alias="-r", negative="", help="Read all files of the folders given.")]
Follow = Annotated[
    bool, Parameter(alias="-f", negative="", help="Go on as the log grows; without a file, this machine's kernel log.")
]
Json = Annotated[bool, Parameter(negative="", help="One JSON object a line: each event.")]
Csv = Annotated[bool, Parameter(negative="", help="Events as CSV.")]
Html = Annotated[Path | None, Parameter(help="Write the incidents as one HTML file.")]
AsIncidents = Annotated[bool, Parameter(negative="", help="One JSON object a line: each incident.")]
Since = Annotated[str | None, Parameter(help="From this time on: 2026-03-01T10:00 (UTC), or 2h for two hours ago.")]
Until = Annotated[str | None, Parameter(help="Up to this time.")]
Nodes = Annotated[list[str] | None, Parameter(negative="", help="Only this node (may be given again).")]
Codes = Annotated[list[int] | None, Parameter(negative="", help="Only this Xid or SXid code (may be given again).")]
NAMED = 5
"""Places of unread lines that are named."""
Least = Annotated[Severity, Parameter(help="Only this severity and above: info, unknown, warning, critical.")]


def decode(
    *files: Files,
    recursive: Recursive = False,
    follow: Follow = False,
    json: Json = False,
    csv: Csv = False,
    html: Html = None,
    incidents: AsIncidents = False,
    since: Since = None,
    until: Until = None,
    node: Nodes = None,
    code: Codes = None,
    severity: Least = "info",
) -> Exit:
    """Say what the GPU faults in a log mean, who is to blame, and what to do.

    Reads kernel logs of any form: files, globs, folders, .gz .xz .zst .bz2, tars, bug reports, `journalctl -o json` or
    `-o export`, and stdin. Exit code 0: nothing found; 1: something found; 3: an input could not be read.
    """
    files = names(files, "decode")
    if json + csv > 1:
        raise CommandError("--json and --csv: choose one")
    if csv and incidents:
        raise CommandError("--csv gives events: leave out --incidents, or use --json")
    wanted = Filters(
        since=moment_of(since, "--since"),
        until=moment_of(until, "--until"),
        nodes=frozenset(node or ()),
        codes=frozenset(code or ()),
        severity=severity,
    )
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise CommandError("--since lies after --until: nothing is between them")
    if follow:
        if csv or incidents or html is not None:
            raise CommandError("--follow tells events as they come: leave out --csv, --incidents and --html")
        from medevac.cli.decode_follow import follow_log

        return follow_log(files, wanted, json=json)
    if html is not None and not os.path.isdir(html.parent):  # noqa: PTH112 - before hours of reading; never raises
        raise CommandError(f"--html {html}: cannot be written: there is no folder {html.parent}")
    output = Output(json=json or (incidents), csv=csv, incidents=incidents, html=html)
    return read_logs(_inputs(files), wanted, output, recursive=recursive)


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; with neither of them, the table."""

    json: bool
    csv: bool
    incidents: bool
    html: Path | None

    @property
    def events(self) -> bool:
        """Are single events wanted?"""
        return (self.json or self.csv) and not self.incidents

    @property
    def stories(self) -> bool:
        """Are incidents wanted?"""
        return not self.events or self.html is not None


def _inputs(files: Sequence[str]) -> tuple[str, ...]:
    if files:
        return tuple(files)
    if sys.stdin.isatty():
        raise CommandError("no log given: name a file, or pipe one in: dmesg | medevac decode")
    return ("-",)


def read_logs(files: Sequence[str], wanted: Filters, output: Output, *, recursive: bool) -> Exit:
    """One pass over all inputs, then what was asked for."""
    from medevac.cli.decode_show import progress_bar
    from medevac.decode.files import Options, decode_files, total_size
    from medevac.decode.incidents_told import Told
    from medevac.decode.output_spool import Spool

    problems: list[Exception] = []
    broken, events = Broken(), 0
    with Spool() as spool, Told(wanted.tells, members_only=not output.stories) as told, seldom_collected():
        with progress_bar(total_size(files)) as progress, room_to_wait():
            options = Options(recursive=recursive, progress=progress, unreadable=problems.append)
            for fault in decode_files(files, options=options):
                if not wanted.takes(fault):
                    continue
                events += 1
                reading, burst = told.add(fault)
                if is_broken(fault):
                    broken.add(fault)
                elif output.events and wanted.shows(fault, reading):
                    spool.add(fault, reading, burst)
        told.finish()
        with room_to_print():
            if output.events:
                _print_events(spool, told.members, output)
            _print_incidents(told, output, events)
    if broken.count and output.events:
        say_error(str(broken))
    for problem in problems:
        say_error(str(problem))
    return Exit.UNREADABLE if problems else Exit.FOUND if told.count else Exit.DONE


@contextmanager
def room_to_wait() -> Iterator[None]:
    """A full folder for temporary files is one line; inputs have errors of their own (`Unreadable`)."""
    try:
        yield
    except OSError as problem:
        folder = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - only named
        why = problem.strerror or str(problem)
        raise CommandError(f"no room in {folder} for what waits till all is read: {why}: set TMPDIR") from problem


@contextmanager
def room_to_print() -> Iterator[None]:
    """Output that cannot be written is one line, and no exit code that says it was."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it is tried again at the end
        raise CommandError(f"the output could not be written: {problem.strerror or problem}") from problem


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Python looks for cycles after a hundred thousand objects, not 700: a tenth of the time, and events have none."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def is_broken(fault: FaultSeen) -> bool:
    """Does the line begin as the driver's own and say nothing? It is no event, but it is counted in an incident."""
    return fault.kind == "unread" and "malformed" in fault.details


class Broken:
    """Such lines: how many, and where the first of them stand."""

    def __init__(self) -> None:
        self.count = 0
        self._places: list[str] = []

    def add(self, fault: FaultSeen) -> None:
        """Count one."""
        self.count += 1
        if self.count <= NAMED:
            self._places.append(f"{fault.file}:{fault.line}")

    def __str__(self) -> str:
        places = ", ".join(self._places) + (", ..." if self.count > NAMED else "")
        lines = "1 line looks" if self.count == 1 else f"{self.count} lines look"
        return f"{lines} like a GPU fault but cannot be read: {places} (--incidents lists them)"


def _print_events(spool: Spool, members: Members, output: Output) -> None:
    if output.json:
        spool.write_json(members, sys.stdout.buffer)
    else:
        spool.write_csv(members, sys.stdout)


def _print_incidents(told: Told, output: Output, events: int) -> None:
    from medevac.cli.decode_show import show_incidents, show_summary
    from medevac.decode.output import incident_object

    if output.html is not None:
        _write_html(output.html, told, events)
    if output.incidents and output.json:
        for incident in told:
            print_json(incident_object(incident))
    elif not output.events and output.html is None:
        if told.count:
            show_incidents(told, told.catalog)
        show_summary(told.count, events)


def _write_html(path: Path, told: Told, events: int) -> None:
    from medevac.decode.output_html import render

    try:
        page = render(list(told), told.catalog.buckets, title="GPU incidents", events=events)
        path.write_text(page, encoding="utf-8")
    except OSError as problem:
        raise CommandError(f"--html {path}: cannot be written: {problem.strerror}") from problem
