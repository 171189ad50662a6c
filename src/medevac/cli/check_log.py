"""`medevac check-log FILE`: can the job's progress be followed by its log, and would a hang be noticed?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from medevac.cli.exits import Exit
from medevac.cli.inputs import HYPHEN, names
from medevac.cli.output import CommandError, print_json, say_error
from medevac.decode.joblog import whole_lines
from medevac.decode.joblog_files import UnreadableLog, blocks
from medevac.decode.progress_lines_survey import Survey, survey


def check_log(
    file: Annotated[str, HYPHEN],
    /,
    *,
    progress_regex: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Say whether the progress of a job can be followed by its log, and after how long a hang would be noticed.

    Parameters
    ----------
    file
        The job's output (also .gz, .xz, .zst); `-` for standard input.
    progress_regex
        How your job prints a step: a regex with a group `step`, and if you like `total`, `loss`, `seconds`.
    json
        Print one JSON object.
    """
    names((file,), "check-log")
    try:
        seen = survey(_lines(file), progress_regex)
    except UnreadableLog as error:
        say_error(str(error))
        return Exit.UNREADABLE
    except ValueError as error:
        raise CommandError(str(error)) from error
    if json:
        print_json(_object(file, seen))
    else:
        print("\n".join(_report(file, seen)))
    return Exit.DONE if seen.progress_lines else Exit.FOUND


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """Numbered lines; the parts of a progress bar have the number of their line."""
    number = 1
    for block in whole_lines(blocks(file)):
        for row in block.split(b"\n"):
            for part in row.split(b"\r"):
                if part:
                    yield number, part.decode("utf-8", "replace")
            number += 1
        number -= 1


def _object(file: str, seen: Survey) -> dict[str, Any]:
    return {"file": file, **msgspec.structs.asdict(seen), "followed": seen.progress_lines > 0}


def _report(file: str, seen: Survey) -> Iterator[str]:
    if not seen.progress_lines:
        yield f"{file}: no progress seen in {seen.lines} lines: a hang would not be noticed."
        yield "Give --progress-regex with a group `step`, or have the job print its steps."
        return
    yield f"{file}: progress as {seen.format} prints it, {seen.progress_lines} of {seen.lines} lines."
    yield f"  such as line {seen.example_line}: {seen.example[:120]}"
    of = f" of {seen.total}" if seen.total else ""
    yield f"  steps {_number(seen.first)} to {_number(seen.last)}{of}{_more(seen)}"
    if seen.step_s is not None:
        yield f"  a step takes {_seconds(seen.step_s)}"
    if seen.every_s is not None and seen.limit_s is not None:
        yield f"  a line every {_seconds(seen.every_s)}: a hang is noticed after {_seconds(seen.limit_s)} without one"
    else:
        yield "  the lines tell no time: a hang is noticed by when they arrive, after 30 min until 10 have come"
    if seen.last == seen.first and seen.total:
        yield "  no step was made"


def _more(seen: Survey) -> str:
    """What is odd in the order of steps."""
    if seen.writers > 1:
        return f"; {seen.writers} writers append the same steps, so they seem to jump back {seen.jumps_back} times"
    if seen.restarts:
        return f"; {seen.restarts} jump{'s' if seen.restarts > 1 else ''} back (restarted, or run again)"
    return ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if value != int(value) else str(int(value))


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"
